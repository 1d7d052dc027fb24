//! Every metric on the page: its name, kind, unit, labels and help, and how it is read out of the cells.
//!
//! Dashboards and alert rules may use these names and no others. Label values are bounded by the
//! configuration and by tables in the program; what a host chooses (addresses, ports, controller ids) is
//! never a label, so that reconnects do not add series.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, UNIX_EPOCH};

use metrics::Unit;
use reactor::Stats;
use transports::{
    ProtocolError,
    rdma::{Counters, adapter::WorkStatus},
};

use super::{Value, seconds};
use crate::config::TransportKind;
use crate::metrics::{Counter, HistogramSnapshot, ReactorMetrics, Registry, RejectReason};

/// One metric, with all its combinations of labels.
#[derive(Debug)]
pub struct Family {
    /// Its name on the page.
    pub name: &'static str,
    /// What sort of metric it is.
    pub kind: Kind,
    /// What it counts; the name ends with it.
    pub unit: Unit,
    /// The keys of its labels.
    pub labels: &'static [&'static str],
    /// What it says, for the page.
    pub help: &'static str,
    /// Hands out every value, with the values of the labels.
    pub read: fn(&Registry, &mut Out<'_>),
}

/// Takes the values of the labels, in the order of [`Family::labels`], and the metric's value.
pub type Out<'a> = dyn FnMut(&[&str], Value) + 'a;

/// The sorts of metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Only rises, in fractions of seconds.
    SecondsCounter,
    /// Rises and falls.
    Gauge,
    /// Counts in buckets.
    Histogram,
}

impl Kind {
    /// The word on the `# TYPE` line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter | Self::SecondsCounter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

const fn family(
    name: &'static str,
    kind: Kind,
    unit: Unit,
    labels: &'static [&'static str],
    help: &'static str,
    read: fn(&Registry, &mut Out<'_>),
) -> Family {
    Family { name, kind, unit, labels, help, read }
}

/// Every metric, in the order of the page.
#[rustfmt::skip]
pub static FAMILIES: &[Family] = &[
    family("weft_build_info", Kind::Gauge, Unit::Count, &["version"],
        "Always 1; the label says which version runs.",
        |registry, out| out(&[registry.labels().version], Value::Whole(1))),
    family("weft_start_time_seconds", Kind::Gauge, Unit::Seconds, &[],
        "When this process began to count, since 1970.",
        |registry, out| {
            let since = registry.started().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
            out(&[], Value::Real(since.as_secs_f64()));
        }),
    family("weft_open_fds", Kind::Gauge, Unit::Count, &[],
        "Open file descriptors of the process.",
        |_, out| if let Some(count) = open_fds() { out(&[], Value::Whole(count)) }),
    family("weft_max_fds", Kind::Gauge, Unit::Count, &[],
        "How many file descriptors the process may have open.",
        |_, out| if let Some(limit) = max_fds() { out(&[], Value::Whole(limit)) }),
    family("weft_resident_memory_bytes", Kind::Gauge, Unit::Bytes, &[],
        "Memory of the process that is in RAM.",
        |_, out| if let Some(bytes) = resident_bytes() { out(&[], Value::Whole(bytes)) }),

    family("weft_connections_open", Kind::Gauge, Unit::Count, &[],
        "Host connections open now. A connection is one queue.",
        |registry, out| {
            // Closed before accepted: a connection that comes and goes in between must not make this
            // negative.
            let closed = sum(registry, |cells| &cells.connections_closed);
            let accepted = sum(registry, |cells| &cells.connections_accepted);
            out(&[], Value::Whole(accepted.saturating_sub(closed)));
        }),
    family("weft_connections_limit", Kind::Gauge, Unit::Count, &[],
        "How many host connections may be open at once.",
        |registry, out| out(&[], Value::Whole(registry.labels().connection_limit as u64))),
    family("weft_connections_total", Kind::Counter, Unit::Count, &[],
        "Host connections accepted.",
        |registry, out| out(&[], Value::Whole(sum(registry, |cells| &cells.connections_accepted)))),
    family("weft_connections_rejected_total", Kind::Counter, Unit::Count, &["reason"],
        "Connections that ended before their Connect command succeeded.",
        |registry, out| for (index, reason) in RejectReason::ALL.iter().enumerate() {
            out(&[reason.name()], Value::Whole(sum(registry, |cells| &cells.connections_rejected[index])));
        }),
    family("weft_protocol_errors_total", Kind::Counter, Unit::Count, &["error"],
        "Connections ended because their host broke the transport's protocol, by Fatal Error Status.",
        |registry, out| for (index, error) in ProtocolError::ALL.iter().enumerate() {
            out(&[error.name()], Value::Whole(sum(registry, |cells| &cells.protocol_errors[index])));
        }),
    family("weft_host_terminations_total", Kind::Counter, Unit::Count, &["error"],
        "Connections that a host ended with H2CTermReq, by the Fatal Error Status it gave.",
        |registry, out| for (index, error) in ProtocolError::ALL.iter().enumerate() {
            out(&[error.name()], Value::Whole(sum(registry, |cells| &cells.host_terminations[index])));
        }),
    family("weft_queue_pairs_open", Kind::Gauge, Unit::Count, &["reactor"],
        "Queue pairs on a reactor.",
        |registry, out| each(registry, out, |cells| Value::Whole(cells.queue_pairs_open.get()))),
    family("weft_keep_alive_expiries_total", Kind::Counter, Unit::Count, &[],
        "Controllers ended because their host fell silent.",
        |registry, out| out(&[], Value::Whole(sum(registry, |cells| &cells.keep_alive_expiries)))),

    family("weft_commands_total", Kind::Counter, Unit::Count, &["opcode"],
        "Commands completed, failed ones included.",
        |registry, out| for (index, opcode) in registry.labels().opcodes.iter().enumerate() {
            out(&[opcode], Value::Whole(sum(registry, |cells| &cells.commands[index])));
        }),
    family("weft_commands_failed_total", Kind::Counter, Unit::Count, &["opcode", "status"],
        "Commands that ended with another status than success. \"other\" is what found no room in the table.",
        failures),
    family("weft_command_duration_seconds", Kind::Histogram, Unit::Seconds, &["transport"],
        "From a command's arrival to the hand-over of its response.",
        |registry, out| for transport in TransportKind::ALL {
            let mut snapshot = HistogramSnapshot::default();
            registry.reactors().iter().for_each(|cells| snapshot.add(&cells.latency[transport.index()]));
            out(&[transport.name()], Value::Distribution(Box::new(snapshot)));
        }),
    family("weft_read_bytes_total", Kind::Counter, Unit::Bytes, &[],
        "Data that hosts have read.",
        |registry, out| out(&[], Value::Whole(sum(registry, |cells| &cells.read_bytes)))),
    family("weft_written_bytes_total", Kind::Counter, Unit::Bytes, &[],
        "Data that hosts have written.",
        |registry, out| out(&[], Value::Whole(sum(registry, |cells| &cells.written_bytes)))),
    family("weft_copied_bytes_total", Kind::Counter, Unit::Bytes, &[],
        "Data that the processor had to copy on its way.",
        |registry, out| out(&[], Value::Whole(sum_stats(registry, |stats| stats.copied_bytes.get())))),
    family("weft_buffer_waits_total", Kind::Counter, Unit::Count, &[],
        "Commands that had to wait for a data buffer.",
        |registry, out| out(&[], Value::Whole(sum_stats(registry, |stats| stats.buffer_waits.get())))),
    family("weft_buffer_used_bytes", Kind::Gauge, Unit::Bytes, &[],
        "Data buffers in use, in bytes.",
        |registry, out| out(&[], Value::Whole(sum_stats(registry, |stats| stats.buffer_bytes.get())))),
    family("weft_receive_stalls_total", Kind::Counter, Unit::Count, &[],
        "Times a queue pair stopped receiving because its slots or buffers were taken.",
        |registry, out| out(&[], Value::Whole(sum_stats(registry, |stats| stats.receive_stalls.get())))),
    family("weft_drive_commands_total", Kind::Counter, Unit::Count, &[],
        "Commands sent to NVMe drives as they are (backend passthrough).",
        |registry, out| out(&[], Value::Whole(sum_stats(registry, |stats| stats.drive_commands.get())))),
    family("weft_orphaned_operations", Kind::Gauge, Unit::Count, &[],
        "Operations that the kernel or a drive still holds and nobody waits for any more.",
        |registry, out| out(&[], Value::Whole(sum_stats(registry, |stats| stats.orphans.get())))),

    family("weft_reactor_turns_total", Kind::Counter, Unit::Count, &["reactor"],
        "Turns of a reactor's loop.",
        |registry, out| each_stats(registry, out, |stats| stats.turns.get())),
    family("weft_reactor_enters_total", Kind::Counter, Unit::Count, &["reactor"],
        "System calls of a reactor to submit and reap.",
        |registry, out| each_stats(registry, out, |stats| stats.enters.get())),
    family("weft_reactor_operations_total", Kind::Counter, Unit::Count, &["reactor"],
        "Operations a reactor gave to the kernel.",
        |registry, out| each_stats(registry, out, |stats| stats.operations.get())),
    family("weft_reactor_completions_total", Kind::Counter, Unit::Count, &["reactor"],
        "Completions a reactor took off its ring.",
        |registry, out| each_stats(registry, out, |stats| stats.completions.get())),
    family("weft_reactor_messages_total", Kind::Counter, Unit::Count, &["reactor"],
        "Messages a reactor took from its mailbox.",
        |registry, out| each_stats(registry, out, |stats| stats.messages.get())),
    family("weft_reactor_receive_retries_total", Kind::Counter, Unit::Count, &["reactor"],
        "Receives that found no shared buffer and were repeated.",
        |registry, out| each_stats(registry, out, |stats| stats.receive_retries.get())),
    family("weft_reactor_syncs_total", Kind::Counter, Unit::Count, &["reactor"],
        "Times a reactor had data of files and block devices brought to stable storage: for Flush, and for writes with FUA.",
        |registry, out| each_stats(registry, out, |stats| stats.syncs.get())),
    family("weft_reactor_asleep_seconds_total", Kind::SecondsCounter, Unit::Seconds, &["reactor"],
        "Time a reactor spent asleep in the kernel; counted when it wakes.",
        |registry, out| each_stats_seconds(registry, out, |stats| stats.asleep_ns.get())),
    family("weft_reactor_polling_seconds_total", Kind::SecondsCounter, Unit::Seconds, &["reactor"],
        "Time a reactor spent polling without finding work.",
        |registry, out| each_stats_seconds(registry, out, |stats| stats.polling_ns.get())),

    family("weft_rdma_queue_pairs", Kind::Gauge, Unit::Count, &[],
        "RDMA queue pairs that exist, those that are ending included.",
        |registry, out| rdma(registry, out, &[(&[], &|rdma| &rdma.queue_pairs)])),
    family("weft_rdma_work_requests_total", Kind::Counter, Unit::Count, &["kind"],
        "Work requests posted to RDMA adapters.",
        |registry, out| rdma(registry, out, &[
            (&["receive"], &|rdma| &rdma.receives), (&["read"], &|rdma| &rdma.reads),
            (&["write"], &|rdma| &rdma.writes), (&["send"], &|rdma| &rdma.sends),
        ])),
    family("weft_rdma_work_ended_total", Kind::Counter, Unit::Count, &["status"],
        "Completions by status. Most work that succeeds makes none, and all that is flushed at a queue pair's end does.",
        |registry, out| for (index, status) in WorkStatus::NAMES.iter().enumerate() {
            rdma(registry, out, &[(&[status], &|rdma| &rdma.ended[index])]);
        }),
    family("weft_rdma_completions_total", Kind::Counter, Unit::Count, &[],
        "Completions taken from RDMA completion queues.",
        |registry, out| rdma(registry, out, &[(&[], &|rdma| &rdma.completions)])),
    family("weft_rdma_polls_total", Kind::Counter, Unit::Count, &[],
        "Looks at RDMA completion queues that found something.",
        |registry, out| rdma(registry, out, &[(&[], &|rdma| &rdma.polls)])),
    family("weft_rdma_doorbells_total", Kind::Counter, Unit::Count, &[],
        "Calls that posted to a send queue: READs, WRITEs and responses of one turn go together.",
        |registry, out| rdma(registry, out, &[(&[], &|rdma| &rdma.doorbells)])),
    family("weft_rdma_waits_total", Kind::Counter, Unit::Count, &["reason"],
        "Waits: for earlier READs, for room in the send queue, of a capsule for a free slot.",
        |registry, out| rdma(registry, out, &[
            (&["read"], &|rdma| &rdma.read_waits), (&["send"], &|rdma| &rdma.send_waits),
            (&["slot"], &|rdma| &rdma.parked),
        ])),
    family("weft_rdma_invalidations_total", Kind::Counter, Unit::Count, &["by"],
        "Keys that hosts asked to have invalidated: done with the response, or left to the host.",
        |registry, out| rdma(registry, out, &[
            (&["target"], &|rdma| &rdma.invalidations), (&["host"], &|rdma| &rdma.invalidations_left),
        ])),
    family("weft_rdma_rejects_total", Kind::Counter, Unit::Count, &[],
        "RDMA connection requests rejected.",
        |registry, out| rdma(registry, out, &[(&[], &|rdma| &rdma.rejects)])),
];

/// Labels and the counter they are for.
type RdmaCounter<'a> = (&'a [&'a str], &'a dyn Fn(&Counters) -> &reactor::Counter);

/// Counters of RDMA over all reactors; zero where there is none.
fn rdma(registry: &Registry, out: &mut Out<'_>, counters: &[RdmaCounter<'_>]) {
    for (labels, counter) in counters {
        let here = registry.reactors().iter().filter_map(|cells| cells.rdma.get());
        out(labels, Value::Whole(here.map(|rdma| counter(rdma).get()).sum()));
    }
}

/// One counter over all reactors.
fn sum(registry: &Registry, counter: impl Fn(&ReactorMetrics) -> &Counter) -> u64 {
    registry.reactors().iter().map(|cells| counter(cells).get()).sum()
}

/// One value for each reactor.
fn each(registry: &Registry, out: &mut Out<'_>, value: impl Fn(&ReactorMetrics) -> Value) {
    for (index, cells) in registry.reactors().iter().enumerate() {
        out(&[&index.to_string()], value(cells));
    }
}

/// What the reactors count about themselves, by reactor; zero for one that does not run yet.
fn stats<'a>(registry: &'a Registry, value: impl Fn(&Stats) -> u64 + 'a) -> impl Iterator<Item = u64> + 'a {
    (0..registry.reactors().len()).map(move |index| registry.stats(index).map_or(0, &value))
}

fn sum_stats(registry: &Registry, value: impl Fn(&Stats) -> u64) -> u64 {
    stats(registry, value).sum()
}

fn each_stats(registry: &Registry, out: &mut Out<'_>, value: impl Fn(&Stats) -> u64) {
    for (index, value) in stats(registry, value).enumerate() {
        out(&[&index.to_string()], Value::Whole(value));
    }
}

fn each_stats_seconds(registry: &Registry, out: &mut Out<'_>, value: impl Fn(&Stats) -> u64) {
    for (index, value_ns) in stats(registry, value).enumerate() {
        out(&[&index.to_string()], Value::Real(seconds(value_ns)));
    }
}

fn failures(registry: &Registry, out: &mut Out<'_>) {
    let labels = registry.labels();
    let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for failure in registry.reactors().iter().flat_map(|cells| cells.failures.iter()) {
        let index = usize::from(failure.opcode);
        let opcode = labels.opcodes.get(index).copied().unwrap_or("other");
        *counts.entry((opcode, (labels.status)(index, failure.status))).or_default() += failure.count;
    }
    // Always there, so that the metric exists before the first failure.
    let other = registry.reactors().iter().map(|cells| cells.failures.other()).sum::<u64>();
    *counts.entry(("other", "other")).or_default() += other;
    for ((opcode, status), count) in counts {
        out(&[opcode, status], Value::Whole(count));
    }
}

fn open_fds() -> Option<u64> {
    // Reading the directory takes a descriptor itself.
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as u64)
}

fn max_fds() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}
