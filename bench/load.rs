//! The load generator: one thread, one ring, every queue pair kept full. Lean enough that the target is what is
//! measured: capsules are prepared, data is neither copied nor looked at, one gather send each turn.

use crate::handshake::Controller;
use crate::options::{LoadOptions, Operation};
use crate::process;
use crate::report::Report;
use crate::ring::Ring;
use crate::slots::{Queue, Tally, Work};
use std::error::Error;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// How long the target may stay silent.
const PATIENCE: Duration = Duration::from_secs(10);

/// `weft-bench load`
pub fn command(options: &LoadOptions) -> Result<bool, Box<dyn Error>> {
    process::pin(options.cpu)?;
    let report = run(options)?;
    println!("{}", report.line());
    Ok(report.errors == 0)
}

/// Runs the load from connect to the last answer.
pub fn run(options: &LoadOptions) -> io::Result<Report> {
    if options.bare && (options.header_digest || options.data_digest || options.op == Operation::Mix) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "--bare has neither digests nor a mix"));
    }
    let mut controller =
        if options.bare { Controller::bare(options)? } else { Controller::connect(options)? };
    let mut work = Work::new(options, &controller)?;
    let sockets = std::mem::take(&mut controller.queues);
    let mut queues: Vec<_> =
        sockets.into_iter().map(|socket| Queue::new(socket, options.depth, &work)).collect();
    let mut ring = Ring::new((queues.len() as u32 * 2).next_power_of_two().max(64))?;
    let mut clock = Clock::start(options);
    for (index, queue) in queues.iter_mut().enumerate() {
        queue.start(&mut ring, index as u64, &mut work, clock.now_ns());
    }
    let mut outcomes = Vec::with_capacity(256);
    loop {
        for (index, queue) in queues.iter_mut().enumerate() {
            queue.flush(&mut ring, index as u64);
        }
        ring.enter(PATIENCE).map_err(|error| match error.raw_os_error() {
            Some(libc::ETIME) => {
                io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {PATIENCE:?}"))
            }
            _ => error,
        })?;
        let now_ns = clock.now_ns();
        ring.reap(&mut outcomes);
        for outcome in &outcomes {
            queues[(outcome.user_data >> 1) as usize].take(&mut ring, *outcome, &mut work, now_ns)?;
        }
        let idle = work.budget == 0 && queues.iter().all(|queue| queue.in_flight == 0);
        if clock.turn(&mut work.tally, now_ns, idle)? {
            return Ok(clock.report(options, work.tally));
        }
    }
}

/// When the measurement begins and ends, and the CPU time in between.
struct Clock {
    origin: Instant,
    begin_ns: u64,
    end_ns: u64,
    pid: Option<u32>,
    measuring: bool,
    target_cpu_ns: u64,
    own_cpu_ns: u64,
}

impl Clock {
    fn start(options: &LoadOptions) -> Self {
        let ns = |seconds: f64| (seconds.max(0.0) * 1e9) as u64;
        let counted = options.count.is_some();
        let begin_ns = if counted { 0 } else { ns(options.warm_up) };
        let end_ns = if counted { u64::MAX } else { begin_ns + ns(options.seconds) };
        Self {
            origin: Instant::now(),
            begin_ns,
            end_ns,
            pid: options.pid,
            measuring: false,
            target_cpu_ns: 0,
            own_cpu_ns: 0,
        }
    }

    fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    fn cpu(&self) -> io::Result<(u64, u64)> {
        let own = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let own = own.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
        Ok((self.pid.map_or(Ok(0), process::cpu_ns)?, own))
    }

    /// Whether it is over. Everything before the measurement is forgotten.
    fn turn(&mut self, tally: &mut Tally, now_ns: u64, idle: bool) -> io::Result<bool> {
        if !self.measuring && now_ns >= self.begin_ns {
            self.measuring = true;
            (self.target_cpu_ns, self.own_cpu_ns) = self.cpu()?;
            let length = self.end_ns.saturating_sub(self.begin_ns);
            self.begin_ns = if self.end_ns == u64::MAX { 0 } else { self.now_ns() };
            self.end_ns = self.begin_ns.saturating_add(length);
            if self.begin_ns > 0 {
                *tally = Tally::new();
            }
            return Ok(idle);
        }
        if now_ns < self.end_ns && !idle {
            return Ok(false);
        }
        let (target, own) = self.cpu()?;
        (self.target_cpu_ns, self.own_cpu_ns) =
            (target.saturating_sub(self.target_cpu_ns), own.saturating_sub(self.own_cpu_ns));
        self.end_ns = now_ns;
        Ok(true)
    }

    fn report(&self, options: &LoadOptions, tally: Tally) -> Report {
        Report {
            commands: tally.done,
            errors: tally.errors,
            seconds: (self.end_ns - self.begin_ns) as f64 / 1e9,
            bytes_each: u64::from(options.bs),
            p50_us: tally.latencies.quantile_ns(0.5) as f64 / 1e3,
            p99_us: tally.latencies.quantile_ns(0.99) as f64 / 1e3,
            target_cpu_ns: self.pid.map(|_| self.target_cpu_ns),
            generator_busy: self.own_cpu_ns as f64 / (self.end_ns - self.begin_ns).max(1) as f64,
        }
    }
}
