//! The command line of `weft-bench`.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Load generator and yardsticks for weft.
#[derive(Parser)]
#[command(name = "weft-bench", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The four programs in one.
#[derive(Subcommand)]
pub enum Command {
    /// Drive a target and print IOPS, bandwidth and latency
    Load(LoadOptions),
    /// Serve the bare request/response work on a plain ring
    EchoRing(EchoOptions),
    /// Serve the bare request/response work on tokio-uring
    EchoTokio(EchoOptions),
    /// Run weft and both yardsticks in turns and print their ratios
    Compare(CompareOptions),
}

/// What the commands do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Operation {
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// Reads and writes in turns.
    Mix,
}

/// `weft-bench load`
#[derive(Args, Clone)]
pub struct LoadOptions {
    /// Where the target listens
    #[arg(long, default_value = "127.0.0.1:4420")]
    pub address: SocketAddr,
    /// The subsystem
    #[arg(long, default_value = "nqn.2026-12.io.weft:default")]
    pub nqn: String,
    /// The namespace
    #[arg(long, default_value_t = 1)]
    pub nsid: u32,
    /// read, write, or both in turns
    #[arg(long, value_enum, default_value = "read")]
    pub op: Operation,
    /// Bytes in one command: a multiple of the block size, at most MDTS
    #[arg(long, default_value_t = 4096)]
    pub bs: u32,
    /// Commands in flight on each queue pair
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: u16,
    /// I/O queue pairs
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub queue_pairs: u16,
    /// Seconds to measure
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Seconds to run before measuring
    #[arg(long, default_value_t = 0.3)]
    pub warm_up: f64,
    /// Stop after this many commands instead; without a warm-up
    #[arg(long)]
    pub count: Option<u64>,
    /// Ask for header digests
    #[arg(long)]
    pub header_digest: bool,
    /// Ask for data digests (those of reads are not verified: that would be the generator's work)
    #[arg(long)]
    pub data_digest: bool,
    /// Drive a yardstick: no handshake, all data in the capsule
    #[arg(long)]
    pub bare: bool,
    /// Pin the generator to this CPU
    #[arg(long)]
    pub cpu: Option<usize>,
    /// Also report the CPU time of this process
    #[arg(long)]
    pub pid: Option<u32>,
}

/// `weft-bench echo-ring` and `echo-tokio`
#[derive(Args, Clone)]
pub struct EchoOptions {
    /// Where to listen; port 0 lets the kernel choose, and the address is printed
    #[arg(long, default_value = "127.0.0.1:0")]
    pub address: SocketAddr,
    /// Pin the server to this CPU
    #[arg(long)]
    pub cpu: Option<usize>,
}

/// `weft-bench compare`
#[derive(Args, Clone)]
pub struct CompareOptions {
    /// The weft binary
    #[arg(long, default_value = "target/release/weft")]
    pub weft: PathBuf,
    /// About one minute instead of six
    #[arg(long)]
    pub quick: bool,
    /// Rounds of every measurement; medians are reported
    #[arg(long)]
    pub rounds: Option<usize>,
    /// weft's `[reactors] poll_us`; 0 makes the comparison with the yardsticks fair, for they never poll
    #[arg(long, default_value_t = 0)]
    pub poll_us: u64,
    /// The CPU of the target
    #[arg(long, default_value_t = 0)]
    pub target_cpu: usize,
    /// The CPU of the generator
    #[arg(long, default_value_t = 1)]
    pub generator_cpu: usize,
    /// Fail when weft needs more than this times the CPU of the bare ring for a 4 KiB read at depth 128
    #[arg(long, default_value_t = 2.5)]
    pub limit: f64,
    /// Count instructions for each command under callgrind instead of measuring time
    #[arg(long)]
    pub instructions: bool,
}
