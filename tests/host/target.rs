//! The process under test: starts the real `weft` binary on ports of its own, waits until it is healthy, keeps its
//! log, and never leaves it behind.

use super::http::{self, Metrics};
use super::{Failure, LIMIT, until};
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The subsystem of a target that was started without a configuration.
pub const DEFAULT_NQN: &str = "nqn.2026-12.io.weft:default";

/// The binary under test; `WEFT_BIN` names another one.
pub fn binary() -> PathBuf {
    std::env::var_os("WEFT_BIN").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_weft")), PathBuf::from)
}

/// A directory that disappears with the value.
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// A new, empty directory.
    pub fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weft-test-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a temporary directory");
        Self { path }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file in it and returns its path.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.join(name);
        fs::write(&path, text).expect("a file in the temporary directory");
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A port of 127.0.0.1 nobody listens on. It lies below the range connections take theirs from.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mut seed = u64::from(std::process::id()) << 32 ^ u64::from(now.subsec_nanos());
    loop {
        seed = (seed ^ seed >> 29).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let port = 10_000 + (seed >> 40) as u16 % 22_000;
        if !given.contains(&port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            given.push(port);
            return port;
        }
    }
}

/// A running target.
pub struct Target {
    /// Where the first port listens.
    pub address: SocketAddr,
    /// Where `/metrics` and `/healthz` are.
    pub metrics_address: SocketAddr,
    process: Child,
    /// Configuration, log, and whatever a test put there.
    pub directory: TempDir,
}

impl Target {
    /// `weft serve` without a configuration, with two reactors; these arguments come on top or instead.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_in(TempDir::new(), |listen, metrics, _| {
            let mut all = vec!["serve".to_owned()];
            all.extend(arguments.iter().map(ToString::to_string));
            let defaults = [
                ("--listen", listen.to_string()),
                ("--metrics", metrics.to_string()),
                ("--reactors", "2".to_owned()),
            ];
            for (name, value) in defaults {
                if !arguments.contains(&name) {
                    all.extend([name.to_owned(), value]);
                }
            }
            all
        })
    }

    /// `weft serve --config` with a port, metrics and two reactors, and `rest` as the remainder of the configuration.
    pub fn configured(rest: &str) -> Self {
        Self::configured_in(TempDir::new(), rest)
    }

    /// A target with [`three_backends`].
    pub fn with_three_backends() -> Self {
        let directory = TempDir::new();
        let rest = three_backends(&directory);
        Self::configured_in(directory, &rest)
    }

    /// The same with a directory that holds backing files.
    pub fn configured_in(directory: TempDir, rest: &str) -> Self {
        Self::start_in(directory, |listen, metrics, directory| {
            let config = directory.file("weft.toml", &configuration(listen, metrics, rest));
            vec!["serve".to_owned(), "--config".to_owned(), config.to_string_lossy().into_owned()]
        })
    }

    fn start_in(
        directory: TempDir,
        arguments: impl Fn(SocketAddr, SocketAddr, &TempDir) -> Vec<String>,
    ) -> Self {
        for _ in 0..5 {
            let (address, metrics_address) = (local(free_port()), local(free_port()));
            let log = directory.join("log");
            let mut process = spawn(&arguments(address, metrics_address, &directory), &log);
            let deadline = Instant::now() + LIMIT;
            loop {
                if http::get(metrics_address, "/healthz").is_some_and(|(status, _)| status == 200) {
                    return Self { address, metrics_address, process, directory };
                }
                if process.try_wait().expect("wait for weft").is_some() {
                    break;
                }
                if Instant::now() > deadline {
                    let _ = process.kill();
                    let _ = process.wait();
                    panic!("weft did not become healthy:\n{}", read_log(&log));
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            let text = read_log(&log);
            // Somebody else may have taken the port in between.
            assert!(text.contains("in use"), "weft ended instead of serving:\n{text}");
        }
        panic!("no free ports");
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Everything it wrote to its output so far.
    pub fn log(&self) -> String {
        read_log(&self.directory.join("log"))
    }

    /// CPU time all its threads have used so far.
    pub fn cpu_ns(&self) -> u64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).expect("its threads");
        let stats = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok());
        stats.filter_map(|text| text.split(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: &str) {
        let pid = self.pid().to_string();
        let status = Command::new("kill").args(["-s", signal, &pid]).status().expect("kill");
        assert!(status.success(), "kill -s {signal} {pid}");
    }

    /// How it ended, if it did.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().expect("wait for weft")
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.exit_status() {
                return status;
            }
            assert!(Instant::now() < deadline, "weft does not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// SIGTERM; it has to end with exit status 0.
    pub fn stop(mut self) {
        self.signal("TERM");
        let status = self.wait();
        assert_eq!(status.code(), Some(0), "exit status after SIGTERM; log:\n{}", self.log());
    }

    /// SIGKILL; returns the directory with the backing files.
    pub fn kill(mut self) -> TempDir {
        let _ = self.process.kill();
        let _ = self.process.wait();
        std::mem::replace(&mut self.directory, TempDir { path: PathBuf::new() })
    }

    /// Scrapes `/metrics`.
    pub fn metrics(&self) -> Metrics {
        let (status, text) = http::get(self.metrics_address, "/metrics").expect("an answer of /metrics");
        assert_eq!(status, 200, "{text}");
        Metrics::parse(&text)
    }

    /// Waits until the metric has this value.
    pub async fn metric_becomes(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        value: f64,
    ) -> Result<(), Failure> {
        until(&format!("{name} becomes {value}"), || {
            let metrics = self.metrics();
            metrics.has(name) && metrics.sum(name, labels) == value
        })
        .await
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(60)..].join("\n");
            eprintln!("--- log of weft ---\n{tail}\n--- end of log ---");
        }
    }
}

/// A complete configuration: port 1, metrics, two reactors, and `rest`, whose keys before any section come first.
pub fn configuration(listen: SocketAddr, metrics: SocketAddr, rest: &str) -> String {
    let (head, rest) = rest.split_at(rest.find('[').unwrap_or(rest.len()));
    let reactors = if rest.contains("[reactors]") { "" } else { "[reactors]\ncount = 2\n" };
    format!(
        "{head}[metrics]\naddress = \"{metrics}\"\n{reactors}\
         [[port]]\nid = 1\ntransport = \"tcp\"\naddress = \"{listen}\"\n{rest}\n"
    )
}

/// The subsystem of [`one_subsystem`].
pub const ONE_NQN: &str = "nqn.2026-12.io.weft:one";

/// The part of a configuration that describes one subsystem for any host, with these namespaces.
pub fn one_subsystem(namespaces: &str) -> String {
    format!("[[subsystem]]\nnqn = \"{ONE_NQN}\"\nserial = \"WEFT0001\"\nallow_any_host = true\n{namespaces}")
}

/// One namespace of `size`; `rest` is the remainder of its section.
pub fn namespace(nsid: u32, backend: &str, lba_size: u32, size: &str, rest: &str) -> String {
    format!(
        "[[subsystem.namespace]]\nnsid = {nsid}\nbackend = \"{backend}\"\nlba_size = {lba_size}\n\
         size = \"{size}\"\n{rest}\n"
    )
}

/// A memory namespace of 64 MiB with 512-byte blocks, as NSID 1 of [`ONE_NQN`].
pub fn one_memory() -> String {
    one_subsystem(&namespace(1, "memory", 512, "64 MiB", ""))
}

/// NSID 1 in memory with 512-byte blocks, NSID 2 in a file with 4096-byte blocks, NSID 3 the null backend; 64 MiB each.
pub fn three_backends(directory: &TempDir) -> String {
    let path = format!("path = \"{}\"", directory.join("namespace.img").display());
    let namespaces = [
        namespace(1, "memory", 512, "64 MiB", ""),
        namespace(2, "file", 4096, "64 MiB", &path),
        namespace(3, "null", 512, "64 MiB", ""),
    ];
    one_subsystem(&namespaces.concat())
}

/// What a program that cannot start says: one line with the error, which names `about`, and no panic.
#[track_caller]
pub fn one_clear_error(status: ExitStatus, said: &str, about: &str) {
    assert!(status.code().is_some_and(|code| code != 0), "{status:?}: {said}");
    let is_error = |line: &&str| line.starts_with("weft:") || line.to_ascii_lowercase().contains("error");
    let lines: Vec<_> = said.lines().filter(is_error).collect();
    assert_eq!(lines.len(), 1, "one line with an error:\n{said}");
    assert!(lines[0].contains(about), "the error names {about}:\n{said}");
    assert!(!said.contains("panicked"), "{said}");
}

/// An address of this machine.
pub fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn read_log(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

fn spawn(arguments: &[String], log: &Path) -> Child {
    let log = File::create(log).expect("a log file");
    Command::new(binary())
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("the log file twice"))
        .stderr(log)
        .spawn()
        .expect("start weft")
}

/// Runs weft to its end; panics if it goes on serving. Returns how it ended and everything it said.
pub fn weft(arguments: &[&str]) -> (ExitStatus, String) {
    let directory = TempDir::new();
    let path = directory.join("log");
    let all: Vec<_> = arguments.iter().map(ToString::to_string).collect();
    let mut process = spawn(&all, &path);
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(status) = process.try_wait().expect("wait for weft") {
            return (status, read_log(&path));
        }
        if Instant::now() > deadline {
            let _ = process.kill();
            let _ = process.wait();
            panic!("weft {arguments:?} goes on instead of ending:\n{}", read_log(&path));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
