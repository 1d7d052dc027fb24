//! The whole document: the single tables, the ports, and what must fit together across sections.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use toml::de::DeTable;

use super::ana::AnaGroups;
use super::checks::{Known, KnownPorts};
use super::model::{
    AnaGroup, AnaState, Config, GIB, KIB, Limits, MAX_ANA_GROUP, MIB, Metrics, Port, Reactors, TransportKind,
};
use super::report::{ConfigError, Report};
use super::section::{Located, Section};
use super::subsystem::{self, PortIds};
use super::value::Names;
use super::{Format, Loaded, discovery, value};
use crate::logging;

/// A reactor's arena must hold a few of the largest transfers at once, or commands would wait for each other
/// one by one.
const TRANSFERS_PER_ARENA: u64 = 4;

/// Reads and checks the document; relative paths in it start at `directory`.
pub(super) fn read(source: &str, file: &str, directory: &Path) -> Result<Loaded, ConfigError> {
    let report = Report::new(source);
    let (table, errors) = DeTable::parse_recoverable(source);
    // Too deep, it is broken off there, and what else is said comes of that.
    match errors.iter().find(|error| error.message().contains("recurs")) {
        Some(error) => report.broken(error.span().map_or(0, |span| span.start), "is nested too deep"),
        None => errors.iter().for_each(|error| report.syntax(error)),
    }
    let config = walk(Section::root(&report, table.get_ref()), directory);
    report.conclude(file, config, Format::Toml)
}

/// Reads every section. The result is only worth something when no mistake was reported.
fn walk(root: Section<'_>, directory: &Path) -> Config {
    let log = root.text("log", "a log filter such as \"info\"", |text| {
        logging::check_filter(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
    });
    let state_dir = root.text("state_dir", "the path of a directory", |text| match text {
        "" => Err("is empty: expected the path of a directory".to_owned()),
        path => Ok(directory.join(path)),
    });
    let metrics = root.child("metrics", "metrics").map_or_else(Metrics::default, read_metrics);
    let reactors = root.child("reactors", "reactors");
    let limits = root.child("limits", "limits").map_or_else(Limits::default, read_limits);
    let reactors = reactors.map_or_else(Reactors::default, |section| read_reactors(section, &limits));
    let ports = root.children("port", "port");
    let service = root.child("discovery", "discovery");
    let referrals = root.children("referral", "referral");
    let subsystems = root.children("subsystem", "subsystem");

    // Written out as empty, it is meant; nowhere in the file, it has been forgotten.
    let none = |key| root.is_empty_list(key);
    match (ports.is_empty() && !none("port"), subsystems.is_empty() && !none("subsystem")) {
        (true, true) => {
            let message = "nothing is configured: expected at least one [[port]] and one [[subsystem]]";
            root.report.absent(0, "", message);
        }
        (true, false) => _ = root.require::<()>("port", None, "at least one [[port]]"),
        (false, true) => _ = root.require::<()>("subsystem", None, "at least one [[subsystem]]"),
        (false, false) => {}
    }

    let strict_names = root.flag("strict_names").is_none_or(|flag| flag.value);
    let names = if strict_names { Names::Standard } else { Names::Any };
    let (ports, port_ids) = read_ports(root.report, ports, metrics.address);
    if !ports.is_empty() && ports.iter().all(|port| port.discovery) {
        let message = "all are for discovery only: expected one where subsystems are offered";
        root.report.absent(0, "port", message);
    }
    let for_discovery = ports.iter().filter(|port| port.discovery).map(|port| port.id).collect();
    let port_ids = PortIds { all: port_ids, discovery: for_discovery };
    let mut known = Known::new(root.report, directory);
    let subsystems: Vec<_> = subsystems
        .into_iter()
        .filter_map(|section| subsystem::read(section, names, &port_ids, &mut known))
        .collect();
    root.finish();
    let mut config = Config {
        log: log.map(|log| log.value),
        state_dir: state_dir.map(|directory| directory.value),
        metrics,
        reactors,
        limits,
        discovery: discovery::read(service, &subsystems),
        referrals: discovery::read_referrals(referrals, &ports),
        ports,
        subsystems,
    };
    config.sort();
    config
}

fn read_metrics(section: Section<'_>) -> Metrics {
    let default = Metrics::default();
    let address = section.text("address", value::ADDRESS_FORM, value::address);
    section.finish();
    Metrics { address: address.map_or(default.address, |address| address.value) }
}

fn read_reactors(section: Section<'_>, limits: &Limits) -> Reactors {
    let default = Reactors::default();
    let count = section.whole("count", 1..=256_usize);
    let poll = section.whole("poll_us", 0..=1_000_000_u64);
    let least = (u64::from(limits.max_transfer_bytes) * TRANSFERS_PER_ARENA).max(MIB);
    let buffers = section.size("buffers", least..=256 * GIB);
    if let Some(buffers) = buffers
        && buffers.value % (4 * KIB) != 0
    {
        section.mistake(
            buffers.at,
            "buffers",
            format!("{} bytes: expected a multiple of 4 KiB", buffers.value),
        );
    }
    section.finish();
    Reactors {
        count: count.and_then(|count| NonZeroUsize::new(count.value)),
        poll: poll.map_or(default.poll, |poll| Duration::from_micros(poll.value)),
        buffer_bytes: buffers.map_or(default.buffer_bytes, |buffers| buffers.value),
    }
}

fn read_limits(section: Section<'_>) -> Limits {
    let default = Limits::default();
    let connections = section.whole("connections", 1..=65536_usize);
    let max_transfer = size32(&section, "max_transfer", 4 * KIB..=16 * MIB);
    if let Some(max_transfer) = max_transfer
        && !max_transfer.value.is_power_of_two()
    {
        let message = format!("{} bytes: expected 4 KiB times a power of two", max_transfer.value);
        section.mistake(max_transfer.at, "max_transfer", message);
    }
    let max_transfer_bytes = max_transfer.map_or(default.max_transfer_bytes, |size| size.value);
    let io_queues = section.whole("io_queues", 1..=1024_u16);
    let queue_depth = section.whole("queue_depth", 2..=1024_u16);
    let in_capsule =
        size32(&section, "in_capsule", 4 * KIB..=u64::from(max_transfer_bytes).clamp(4 * KIB, 64 * KIB));
    if let Some(in_capsule) = in_capsule
        && u64::from(in_capsule.value) % (4 * KIB) != 0
    {
        section.mistake(
            in_capsule.at,
            "in_capsule",
            format!("{} bytes: expected a multiple of 4 KiB", in_capsule.value),
        );
    }
    let timeout = |key, default| {
        section
            .whole(key, 1..=3_600_000_u64)
            .map_or(default, |milliseconds| Duration::from_millis(milliseconds.value))
    };
    let limits = Limits {
        connections: connections.map_or(default.connections, |connections| connections.value),
        max_transfer_bytes,
        io_queues: io_queues.map_or(default.io_queues, |io_queues| io_queues.value),
        queue_depth: queue_depth.map_or(default.queue_depth, |queue_depth| queue_depth.value),
        // The default follows a smaller largest transfer, so that this alone is never a contradiction.
        in_capsule_bytes: in_capsule
            .map_or(default.in_capsule_bytes.min(max_transfer_bytes), |size| size.value),
        handshake_timeout: timeout("handshake_timeout_ms", default.handshake_timeout),
        data_timeout: timeout("data_timeout_ms", default.data_timeout),
        shutdown_timeout: timeout("shutdown_timeout_ms", default.shutdown_timeout),
    };
    section.finish();
    limits
}

/// A size within a range that ends below 4 GiB.
fn size32(section: &Section<'_>, key: &'static str, range: RangeInclusive<u64>) -> Option<Located<u32>> {
    section.size(key, range).map(|size| size.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX)))
}

/// The ports without mistakes, and the ids of all; no ids when one of them could not be read, since then
/// nobody can say which id does not exist.
fn read_ports(
    report: &Report<'_>,
    sections: Vec<Section<'_>>,
    metrics: SocketAddr,
) -> (Vec<Port>, Option<Vec<u16>>) {
    let mut ports = Vec::new();
    let mut known = KnownPorts::new(report, metrics);
    let mut all_ids_read = true;
    for section in sections {
        let id = section.whole("id", 0..=u16::MAX);
        let id = section.require("id", id, "a number from 0 to 65535, different for each port");
        let transport = section.choice("transport", &TransportKind::ALL.map(|kind| (kind.name(), kind)));
        let transport = section.require("transport", transport, "\"tcp\" or \"rdma\"");
        let address = section.text("address", value::ADDRESS_FORM, value::address);
        let address = section.require("address", address, value::ADDRESS_FORM);
        let discovery = section.flag("discovery").is_some_and(|flag| flag.value);

        all_ids_read &= id.is_some();
        if let Some(id) = id {
            known.check_id(id, section.path("id"));
        }
        if let (Some(transport), Some(address)) = (transport, address) {
            known.check_address(transport.value, address, &section.path("address"));
        }
        let ana_groups = read_ana_groups(report, section.children("ana_group", "port.ana_group"));
        section.finish();
        if let (Some(id), Some(transport), Some(address)) = (id, transport, address) {
            let (id, transport, address) = (id.value, transport.value, address.value);
            ports.push(Port { id, transport, address, discovery, ana_groups });
        }
    }
    (ports, all_ids_read.then(|| known.ids()))
}

fn read_ana_groups(report: &Report<'_>, sections: Vec<Section<'_>>) -> Vec<AnaGroup> {
    let mut groups = AnaGroups::new(report);
    for section in sections {
        let id = section.whole("id", 1..=MAX_ANA_GROUP);
        let id = section.require("id", id, &format!("a number from 1 to {MAX_ANA_GROUP}"));
        let state = section.choice("state", &AnaState::ALL.map(|state| (state.name(), state)));
        let state = section.require("state", state, "a state such as \"inaccessible\"");
        if let (Some(id), Some(state)) = (id, state) {
            groups.add(id, state, &section.path("id"), &section.path("state"));
        }
        section.finish();
    }
    groups.finish()
}
