//! `weft-bench compare --instructions`: instructions for each command, counted by callgrind. A short run and a long one
//! are subtracted, so that connecting does not count. Unlike times these numbers hardly differ from run to run.
//!
//! Valgrind (3.19) keeps its one lock while a thread waits in the ring, so a target under it does not get to see a
//! signal. Counts are therefore fetched from outside with `vgdb`, and in the end the target is killed.

use crate::compare::{NQN, start_weft};
use crate::load;
use crate::options::{CompareOptions, LoadOptions, Operation};
use crate::process::Started;
use std::error::Error;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const SHORT: u64 = 1_000;
const LONG: u64 = 11_000;

/// A target under callgrind.
struct Counted {
    weft: Started,
    address: SocketAddr,
    directory: PathBuf,
    dumps: u32,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Counts and prints.
pub fn run(options: &CompareOptions) -> Result<bool, Box<dyn Error>> {
    for program in ["valgrind", "vgdb"] {
        let found = Command::new(program).arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status();
        found.map_err(|error| format!("{program}: {error}"))?;
    }
    let directory = std::env::temp_dir().join(format!("weft-bench-callgrind-{}", std::process::id()));
    fs::create_dir_all(&directory)?;
    let mut command = Command::new("valgrind");
    command.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}", directory.join("out").display()));
    command.arg(&options.weft);
    let (weft, address) = start_weft(command, options, &directory)?;
    let mut counted = Counted { weft, address, directory, dumps: 0 };
    println!("{:<24} {:>12} {:>12}", "instructions", "weft, null", "weft, memory");
    for (name, op, bs, depth) in [
        ("4 KiB read, depth 1", Operation::Read, 4096, 1),
        ("4 KiB read, depth 32", Operation::Read, 4096, 32),
        ("4 KiB read, depth 128", Operation::Read, 4096, 128),
        ("4 KiB write, depth 32", Operation::Write, 4096, 32),
        ("4 KiB write, depth 128", Operation::Write, 4096, 128),
        ("128 KiB read, depth 32", Operation::Read, 128 << 10, 32),
        ("128 KiB write, depth 32", Operation::Write, 128 << 10, 32),
    ] {
        let null = counted.each(1, op, bs, depth)?;
        let memory = counted.each(2, op, bs, depth)?;
        println!("{name:<24} {null:>12.0} {memory:>12.0}");
    }
    println!("User-space instructions of the target for each command; the kernel's are not counted.");
    println!(
        "A large copy counts about one for each byte: callgrind counts every step of a repeated instruction."
    );
    Ok(true)
}

impl Counted {
    /// Instructions for one more command.
    fn each(&mut self, nsid: u32, op: Operation, bs: u32, depth: u16) -> Result<f64, Box<dyn Error>> {
        let options = |count| LoadOptions {
            address: self.address,
            nqn: NQN.to_owned(),
            nsid,
            op,
            bs,
            depth,
            queue_pairs: 1,
            seconds: 0.0,
            warm_up: 0.0,
            count: Some(count),
            header_digest: false,
            data_digest: false,
            bare: false,
            cpu: None,
            pid: None,
        };
        let (short, long) = (options(SHORT), options(LONG));
        self.count_of(&short)?;
        let (short, long) = (self.count_of(&short)?, self.count_of(&long)?);
        Ok((long as f64 - short as f64) / (LONG - SHORT) as f64)
    }

    /// All instructions of a run, from connect to the end of the queue pairs.
    fn count_of(&mut self, load: &LoadOptions) -> Result<u64, Box<dyn Error>> {
        let report = load::run(load)?;
        if report.errors > 0 {
            return Err(format!("{} commands failed", report.errors).into());
        }
        std::thread::sleep(Duration::from_millis(300));
        let status = Command::new("vgdb")
            .args([&format!("--pid={}", self.weft.pid()), "dump"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        self.dumps += 1;
        let path = self.directory.join(format!("out.{}", self.dumps));
        let summary = summary(&path)
            .ok_or_else(|| format!("no count in {} ({status}):\n{}", path.display(), self.weft.said()))?;
        fs::remove_file(path)?;
        Ok(summary)
    }
}

/// The number of instructions in a dump; dumping starts the count anew.
fn summary(path: &Path) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix("summary: ")?.trim().parse().ok())
}
