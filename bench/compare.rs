//! `weft-bench compare`: weft and the two yardsticks under the same load, in turns, so that whatever else the machine
//! does falls on all of them. Target and generator have a CPU each. One table of medians and ratios.

use crate::callgrind;
use crate::load;
use crate::options::{CompareOptions, LoadOptions, Operation};
use crate::process::Started;
use crate::report::Report;
use crate::statistics::median;
use std::error::Error;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// One column of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Contender {
    Null,
    Memory,
    Ring,
    Tokio,
}

const CONTENDERS: [(Contender, &str); 4] = [
    (Contender::Null, "weft, null"),
    (Contender::Memory, "weft, memory"),
    (Contender::Ring, "echo-ring"),
    (Contender::Tokio, "echo-tokio"),
];

/// One load.
#[derive(Clone, Copy)]
struct Workload {
    name: &'static str,
    operation: Operation,
    bytes: u32,
    depth: u16,
}

const fn workload(name: &'static str, operation: Operation, bytes: u32, depth: u16) -> Workload {
    Workload { name, operation, bytes, depth }
}

const WORKLOADS: [Workload; 8] = [
    workload("4 KiB read, depth 1", Operation::Read, 4096, 1),
    workload("4 KiB read, depth 32", Operation::Read, 4096, 32),
    workload("4 KiB read, depth 128", Operation::Read, 4096, 128),
    workload("4 KiB write, depth 1", Operation::Write, 4096, 1),
    workload("4 KiB write, depth 32", Operation::Write, 4096, 32),
    workload("4 KiB write, depth 128", Operation::Write, 4096, 128),
    workload("128 KiB read, depth 32", Operation::Read, 128 << 10, 32),
    workload("128 KiB write, depth 32", Operation::Write, 128 << 10, 32),
];

/// The workload the limit is about.
const JUDGED: usize = 2;

/// The three processes under load.
struct Contest {
    weft: (Started, SocketAddr),
    ring: (Started, SocketAddr),
    tokio: (Started, SocketAddr),
    directory: PathBuf,
}

impl Drop for Contest {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Measures, prints, and says whether weft stays below the limit.
pub fn run(options: &CompareOptions) -> Result<bool, Box<dyn Error>> {
    if options.instructions {
        return callgrind::run(options);
    }
    let (rounds, seconds, warm_up) = if options.quick { (3, 0.4, 0.15) } else { (5, 2.0, 0.2) };
    let rounds = options.rounds.unwrap_or(rounds).max(1);
    let contest = Contest::start(options)?;
    let mut reports = vec![Vec::new(); WORKLOADS.len() * CONTENDERS.len()];
    let total = rounds * reports.len();
    let start = Instant::now();
    for round in 0..rounds {
        for (index, workload) in WORKLOADS.iter().enumerate() {
            for place in 0..CONTENDERS.len() {
                // Nobody always goes first.
                let which = (place + round) % CONTENDERS.len();
                let load = contest.load(*workload, CONTENDERS[which].0, seconds, warm_up);
                let report = load::run(&load).map_err(|error| {
                    let said = contest.weft.0.said();
                    let tail: Vec<_> = said.lines().rev().take(5).collect();
                    format!(
                        "{}, {}: {error}; the last weft said, latest first:\n{}",
                        CONTENDERS[which].1,
                        workload.name,
                        tail.join("\n")
                    )
                })?;
                let cell = &mut reports[index * CONTENDERS.len() + which];
                cell.push(report);
                let done = round * WORKLOADS.len() * CONTENDERS.len() + index * CONTENDERS.len() + place + 1;
                eprint!("\r{done}/{total} runs, {:.0} s ", start.elapsed().as_secs_f64());
            }
        }
    }
    eprintln!("\r{total} runs, {:.0} s ", start.elapsed().as_secs_f64());
    Ok(print_table(&reports, options))
}

impl Contest {
    fn start(options: &CompareOptions) -> Result<Self, Box<dyn Error>> {
        let directory = std::env::temp_dir().join(format!("weft-bench-{}", std::process::id()));
        fs::create_dir_all(&directory)?;
        let (cpu, own) = (options.target_cpu, options.generator_cpu);
        let weft = start_weft(Command::new(&options.weft), options, &directory)?;
        let echo = |name: &str| -> Result<(Started, SocketAddr), Box<dyn Error>> {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg(name);
            let log = directory.join(name);
            let mut started = Started::on(cpu, own, &mut command, &log)?;
            let address = wait_for(&mut started, |started| {
                started.said().strip_prefix("listening on ")?.trim().parse().ok()
            })?;
            Ok((started, address))
        };
        let ring = echo("echo-ring")?;
        let tokio = echo("echo-tokio")?;
        Ok(Self { weft, ring, tokio, directory })
    }

    fn load(&self, workload: Workload, contender: Contender, seconds: f64, warm_up: f64) -> LoadOptions {
        let (started, address) = match contender {
            Contender::Null | Contender::Memory => &self.weft,
            Contender::Ring => &self.ring,
            Contender::Tokio => &self.tokio,
        };
        LoadOptions {
            address: *address,
            nqn: NQN.to_owned(),
            nsid: if contender == Contender::Memory { 2 } else { 1 },
            op: workload.operation,
            bs: workload.bytes,
            depth: workload.depth,
            queue_pairs: 1,
            seconds,
            warm_up,
            count: None,
            header_digest: false,
            data_digest: false,
            bare: matches!(contender, Contender::Ring | Contender::Tokio),
            cpu: None,
            pid: Some(started.pid()),
        }
    }
}

/// The subsystem weft is started with: namespace 1 null, namespace 2 memory.
pub const NQN: &str = "nqn.2026-12.io.weft:bench";

/// Starts weft (or something that starts weft) on its CPU with one reactor and waits until it listens.
pub fn start_weft(
    mut command: Command,
    options: &CompareOptions,
    directory: &Path,
) -> Result<(Started, SocketAddr), Box<dyn Error>> {
    let address = free_address()?;
    let text = format!(
        "[metrics]\naddress = \"{}\"\n[reactors]\ncount = 1\npoll_us = {}\n\
         [[port]]\nid = 1\ntransport = \"tcp\"\naddress = \"{address}\"\n\
         [[subsystem]]\nnqn = \"{NQN}\"\nserial = \"BENCH\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnsid = 1\nbackend = \"null\"\nsize = \"1 GiB\"\n\
         [[subsystem.namespace]]\nnsid = 2\nbackend = \"memory\"\nsize = \"64 MiB\"\n",
        free_address()?,
        options.poll_us
    );
    let config = directory.join("weft.toml");
    fs::write(&config, text)?;
    command.args(["serve", "--log", "warn", "--config"]).arg(&config);
    let log = directory.join("weft.log");
    let mut weft = Started::on(options.target_cpu, options.generator_cpu, &mut command, &log)?;
    wait_for(&mut weft, |_| TcpStream::connect(address).ok())?;
    Ok((weft, address))
}

fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

fn wait_for<T>(
    started: &mut Started,
    mut ready: impl FnMut(&Started) -> Option<T>,
) -> Result<T, Box<dyn Error>> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(value) = ready(started) {
            return Ok(value);
        }
        if !started.runs() || Instant::now() > deadline {
            return Err(format!("the target did not start:\n{}", started.said()).into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn print_table(reports: &[Vec<Report>], options: &CompareOptions) -> bool {
    println!(
        "{:<24} {:<13} {:>9} {:>8} {:>8} {:>8} {:>9} {:>8} {:>7} {:>6}",
        "", "", "IOPS", "MB/s", "p50 us", "p99 us", "CPU ns", "CPU x", "IOPS x", "gen %"
    );
    let mut judged = 0.0;
    let mut errors = 0;
    for (index, workload) in WORKLOADS.iter().enumerate() {
        let cells = &reports[index * CONTENDERS.len()..(index + 1) * CONTENDERS.len()];
        let middle = |which: usize, value: fn(&Report) -> f64| {
            median(&cells[which].iter().map(value).collect::<Vec<_>>())
        };
        let yardstick =
            CONTENDERS.iter().position(|(contender, _)| *contender == Contender::Ring).unwrap_or(0);
        for (which, (contender, name)) in CONTENDERS.iter().enumerate() {
            let (iops, cpu) = (middle(which, Report::iops), middle(which, Report::cpu_each_ns));
            let cpu_ratio = cpu / middle(yardstick, Report::cpu_each_ns).max(1e-9);
            let iops_ratio = iops / middle(yardstick, Report::iops).max(1e-9);
            errors += cells[which].iter().map(|report| report.errors).sum::<u64>();
            if index == JUDGED && *contender == Contender::Null {
                judged = cpu_ratio;
            }
            println!(
                "{:<24} {name:<13} {iops:>9.0} {:>8.0} {:>8.1} {:>8.1} {cpu:>9.0} {cpu_ratio:>8.2} {iops_ratio:>7.2} {:>6.0}",
                if which == 0 { workload.name } else { "" },
                iops * f64::from(workload.bytes) / 1e6,
                middle(which, |report| report.p50_us),
                middle(which, |report| report.p99_us),
                middle(which, |report| report.generator_busy) * 100.0,
            );
        }
    }
    println!(
        "CPU ns: of the target, for each command. CPU x and IOPS x: against echo-ring. Medians of {} rounds.",
        reports[0].len()
    );
    let good = judged <= options.limit && errors == 0;
    let verdict = if judged <= options.limit { "within" } else { "ABOVE" };
    println!(
        "weft needs {judged:.2} times the CPU of the bare ring for a {} (null): {verdict} the limit of {}",
        WORKLOADS[JUDGED].name, options.limit
    );
    if errors > 0 {
        println!("{errors} commands failed");
    }
    good
}
