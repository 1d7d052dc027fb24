//! What one run of the load generator measured.

/// One run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Commands that succeeded.
    pub commands: u64,
    /// Commands that did not.
    pub errors: u64,
    /// How long it was measured.
    pub seconds: f64,
    /// Bytes of data in a command.
    pub bytes_each: u64,
    /// Median latency.
    pub p50_us: f64,
    /// The latency 99 of 100 commands are not above.
    pub p99_us: f64,
    /// CPU time of the target.
    pub target_cpu_ns: Option<u64>,
    /// Share of a CPU the generator used.
    pub generator_busy: f64,
}

impl Report {
    /// Commands in a second.
    pub fn iops(&self) -> f64 {
        self.commands as f64 / self.seconds.max(1e-9)
    }

    /// CPU time of the target for each command.
    pub fn cpu_each_ns(&self) -> f64 {
        self.target_cpu_ns.unwrap_or(0) as f64 / (self.commands as f64).max(1.0)
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let megabytes = self.iops() * self.bytes_each as f64 / 1e6;
        let mut line = format!(
            "{:.0} IOPS, {megabytes:.0} MB/s, p50 {:.1} us, p99 {:.1} us, {} commands in {:.2} s, {} errors, generator {:.0} % busy",
            self.iops(),
            self.p50_us,
            self.p99_us,
            self.commands,
            self.seconds,
            self.errors,
            self.generator_busy * 100.0,
        );
        if self.target_cpu_ns.is_some() {
            line += &format!(", target {:.0} ns CPU each", self.cpu_each_ns());
        }
        line
    }
}
