//! The cells the pipeline counts in. (What a reactor counts about itself is [`reactor::Stats`].)
//!
//! Every reactor has a [`ReactorMetrics`] of its own and is its only writer, so counting is a relaxed load
//! and a relaxed store (half a nanosecond; an atomic addition would cost sixteen times that). The control
//! thread reads the cells of all reactors when the metrics page is asked for ([`crate::exporter`]); it may
//! see one cell a little newer than another, which rates do not notice. Nothing here allocates, locks or
//! reads a clock.

mod failures;
mod histogram;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use nvme::opcode::METRIC_OPCODES;
use nvme::{AdminOpcode, IoOpcode, Status};
use reactor::{Mailbox, Stats};
use transports::ProtocolError;

pub use failures::{Failure, FailureTable};
pub use histogram::{Histogram, HistogramSnapshot};

use crate::config::TransportKind;

/// How many different opcodes can be counted.
pub const OPCODES: usize = 64;

/// A number that only rises. One thread writes, all may read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Zero.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `n`. Only the owning reactor may call this: additions of two threads at once would be lost.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// The value now.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that rises and falls. One thread writes, all may read.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Zero.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `n`. Only the owning reactor may call this.
    #[inline]
    pub fn add(&self, n: u64) {
        self.set(self.get().wrapping_add(n));
    }

    /// Takes `n` off, not below zero. Only the owning reactor may call this.
    #[inline]
    pub fn sub(&self, n: u64) {
        debug_assert!(self.get() >= n, "more was taken off a gauge than was added");
        self.set(self.get().saturating_sub(n));
    }

    /// Replaces the value. Only the owning reactor may call this.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The value now.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why a connection ended before its Connect command was answered with success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// The limit on connections was reached.
    Limit,
    /// The host took too long over the handshake.
    Timeout,
    /// The host closed the connection, or sent something else than a handshake.
    Handshake,
    /// The host asked for a subsystem that this port does not have.
    UnknownSubsystem,
    /// The subsystem does not admit this host.
    HostNotAllowed,
    /// The Connect command had a parameter that cannot be accepted.
    InvalidConnect,
    /// There was no controller, queue or memory left, or the target is being stopped: the host may try again.
    Busy,
}

impl RejectReason {
    /// Every reason, in the order of its index.
    pub const ALL: [Self; 7] = [
        Self::Limit,
        Self::Timeout,
        Self::Handshake,
        Self::UnknownSubsystem,
        Self::HostNotAllowed,
        Self::InvalidConnect,
        Self::Busy,
    ];

    /// The label on the metrics page.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Timeout => "timeout",
            Self::Handshake => "handshake",
            Self::UnknownSubsystem => "unknown_subsystem",
            Self::HostNotAllowed => "host_not_allowed",
            Self::InvalidConnect => "invalid_connect",
            Self::Busy => "busy",
        }
    }
}

/// Everything one reactor counts. Aligned so that two reactors never share a cache line.
#[derive(Debug)]
#[repr(align(64))]
pub struct ReactorMetrics {
    /// Host connections accepted here.
    pub connections_accepted: Counter,
    /// Host connections, accepted here or elsewhere, that ended here for whatever reason.
    pub connections_closed: Counter,
    /// Connections that never became a queue pair, by [`RejectReason`]; use [`ReactorMetrics::reject`].
    pub connections_rejected: [Counter; RejectReason::ALL.len()],
    /// Queue pairs that live here.
    pub queue_pairs_open: Gauge,
    /// Commands completed, by the index of their opcode in [`Labels::opcodes`]; use
    /// [`ReactorMetrics::command`].
    pub commands: [Counter; OPCODES],
    /// Commands that ended with another status than success.
    pub failures: FailureTable,
    /// Data sent to hosts by Read and the like.
    pub read_bytes: Counter,
    /// Data taken from hosts by Write and the like.
    pub written_bytes: Counter,
    /// From the capsule's last byte to the response's hand-over, by [`TransportKind::index`].
    pub latency: [Histogram; TransportKind::ALL.len()],
    /// Controllers ended because their host fell silent.
    pub keep_alive_expiries: Counter,
    /// Breaches of the transport's protocol by hosts, by kind; use [`ReactorMetrics::protocol_error`].
    pub protocol_errors: [Counter; ProtocolError::ALL.len()],
    /// Connections that hosts ended for an error they saw, by kind; use [`ReactorMetrics::host_termination`].
    pub host_terminations: [Counter; ProtocolError::ALL.len()],
    /// Health checks answered; see [`Registry::attach`].
    pub heartbeats: Counter,
    /// What is counted of RDMA, where there is any.
    pub rdma: OnceLock<Arc<transports::rdma::Counters>>,
}

impl ReactorMetrics {
    /// All zero.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            connections_accepted: Counter::new(),
            connections_closed: Counter::new(),
            connections_rejected: [const { Counter::new() }; RejectReason::ALL.len()],
            queue_pairs_open: Gauge::new(),
            commands: [const { Counter::new() }; OPCODES],
            failures: FailureTable::new(),
            read_bytes: Counter::new(),
            written_bytes: Counter::new(),
            latency: [const { Histogram::new() }; TransportKind::ALL.len()],
            keep_alive_expiries: Counter::new(),
            protocol_errors: [const { Counter::new() }; ProtocolError::ALL.len()],
            host_terminations: [const { Counter::new() }; ProtocolError::ALL.len()],
            heartbeats: Counter::new(),
            rdma: OnceLock::new(),
        }
    }

    /// Counts a connection that never became a queue pair.
    #[inline]
    pub fn reject(&self, reason: RejectReason) {
        self.connections_rejected[reason as usize].add(1);
    }

    /// Counts a breach of the transport's protocol by a host.
    pub fn protocol_error(&self, error: ProtocolError) {
        self.protocol_errors[error as usize].add(1);
    }

    /// Counts a connection that a host ended for an error it saw.
    pub fn host_termination(&self, error: ProtocolError) {
        self.host_terminations[error as usize].add(1);
    }

    /// Counts a completed command; an `opcode` beyond the table counts as its last entry.
    #[inline]
    pub fn command(&self, opcode: usize, transport: TransportKind, latency_ns: u64) {
        self.commands[opcode.min(OPCODES - 1)].add(1);
        self.latency[transport.index()].record(latency_ns);
    }
}

impl Default for ReactorMetrics {
    fn default() -> Self {
        Self::new()
    }
}

/// What the cells' indices mean, and what is the same for the life of the process.
#[derive(Clone, Copy, Debug)]
pub struct Labels {
    /// The version of this program.
    pub version: &'static str,
    /// The opcodes by index, at most [`OPCODES`] of them.
    pub opcodes: &'static [&'static str],
    /// The name of a status ([`Status::code`]) of the opcode with that index.
    pub status: fn(usize, u16) -> &'static str,
    /// How many host connections are allowed at once.
    pub connection_limit: usize,
}

impl Labels {
    /// The names of NVMe: opcodes have the index that [`nvme::opcode::metric_index`] gives them.
    #[must_use]
    pub const fn nvme(version: &'static str, connection_limit: usize) -> Self {
        const { assert!(METRIC_OPCODES.len() <= OPCODES, "there is a counter for every opcode") };
        Self { version, opcodes: METRIC_OPCODES, status: status_name, connection_limit }
    }
}

/// Some codes mean one thing for Connect and another for an I/O command.
fn status_name(opcode: usize, code: u16) -> &'static str {
    let status = Status::from_wire(code << 1);
    let first_io = AdminOpcode::ALL.len();
    let io = (first_io..first_io + IoOpcode::ALL.len()).contains(&opcode);
    if io { status.io_name() } else { status.name() }
}

/// The cells of all reactors.
#[derive(Debug)]
pub struct Registry {
    labels: Labels,
    started: SystemTime,
    reactors: Vec<Arc<ReactorMetrics>>,
    attached: Vec<OnceLock<Attached>>,
}

/// What a running reactor adds.
struct Attached {
    stats: Arc<Stats>,
    ping: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attached").field("stats", &self.stats).finish_non_exhaustive()
    }
}

impl Registry {
    /// Cells for `reactors` reactors. Reactor `i` takes a clone of `reactors()[i]` and is its only writer.
    #[must_use]
    pub fn new(reactors: usize, labels: Labels) -> Arc<Self> {
        let attached = (0..reactors).map(|_| OnceLock::new()).collect();
        let reactors = (0..reactors).map(|_| Arc::new(ReactorMetrics::new())).collect();
        Arc::new(Self { labels, started: SystemTime::now(), reactors, attached })
    }

    /// Adds what a reactor counts about itself, and the way to ask it whether it lives. Once for each
    /// reactor, when it runs; until then these metrics are zero and the health check passes over it.
    pub fn attach(&self, reactor: usize, stats: Arc<Stats>, mailbox: Mailbox) {
        let cells = Arc::clone(&self.reactors[reactor]);
        let ping = move || {
            let cells = Arc::clone(&cells);
            mailbox.send(move |_| cells.heartbeats.add(1));
        };
        self.attach_with(reactor, stats, Box::new(ping));
    }

    /// As [`Registry::attach`], with any way to ask: `ping` must lead to one addition to the reactor's
    /// heartbeats.
    pub(crate) fn attach_with(&self, reactor: usize, stats: Arc<Stats>, ping: Box<dyn Fn() + Send + Sync>) {
        let fresh = self.attached[reactor].set(Attached { stats, ping }).is_ok();
        debug_assert!(fresh, "reactor {reactor} was attached twice");
    }

    /// The cells, by reactor.
    #[must_use]
    pub fn reactors(&self) -> &[Arc<ReactorMetrics>] {
        &self.reactors
    }

    /// What a reactor counts about itself, once it runs.
    #[must_use]
    pub fn stats(&self, reactor: usize) -> Option<&Stats> {
        self.attached[reactor].get().map(|attached| &*attached.stats)
    }

    /// Asks a reactor for a heartbeat; `false` when it does not run yet.
    pub(crate) fn ping(&self, reactor: usize) -> bool {
        self.attached[reactor].get().map(|attached| (attached.ping)()).is_some()
    }

    /// What the cells' indices mean.
    #[must_use]
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// When counting began.
    #[must_use]
    pub fn started(&self) -> SystemTime {
        self.started
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_belong_to_threads() {
        fn shared<T: Send + Sync + 'static>() {}
        shared::<ReactorMetrics>();
        shared::<Registry>();
        static CELLS: ReactorMetrics = ReactorMetrics::new();
        CELLS.read_bytes.add(1);
        assert_eq!(CELLS.read_bytes.get(), 1);
        assert_eq!(align_of::<ReactorMetrics>(), 64);
    }

    #[test]
    fn counters_and_gauges() {
        let counter = Counter::new();
        counter.add(2);
        counter.add(3);
        assert_eq!(counter.get(), 5);
        let gauge = Gauge::new();
        gauge.add(7);
        gauge.sub(3);
        assert_eq!(gauge.get(), 4);
        gauge.set(1);
        assert_eq!(gauge.get(), 1);
    }

    #[test]
    fn reasons_are_their_own_index_and_have_different_names() {
        for (index, reason) in RejectReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
            assert_eq!(RejectReason::ALL.iter().filter(|other| other.name() == reason.name()).count(), 1);
        }
        let cells = ReactorMetrics::new();
        cells.reject(RejectReason::Busy);
        assert_eq!(cells.connections_rejected[6].get(), 1);
    }

    #[test]
    fn statuses_are_named_by_what_they_mean_for_the_command() {
        let status = Labels::nvme("", 0).status;
        let index = |name| METRIC_OPCODES.iter().position(|opcode| *opcode == name).unwrap();
        assert_eq!(status(index("connect"), 0x182), "connect_invalid_parameter");
        assert_eq!(status(index("write"), 0x182), "write_to_read_only_range");
        assert_eq!(status(index("identify"), 0x002), "invalid_field");
    }

    #[test]
    fn an_unknown_opcode_counts_as_the_last() {
        let cells = ReactorMetrics::new();
        cells.command(3, TransportKind::Tcp, 10);
        cells.command(OPCODES + 5, TransportKind::Rdma, 10);
        assert_eq!((cells.commands[3].get(), cells.commands[OPCODES - 1].get()), (1, 1));
        assert_eq!((cells.latency[0].snapshot().count(), cells.latency[1].snapshot().count()), (1, 1));
    }
}
