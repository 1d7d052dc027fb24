//! The JSON that nvmetcli saves from the kernel's target and restores into it.
//!
//! Read with the kernel's meaning and nvmetcli's leniency: what the kernel would take is taken, what it would skip is
//! skipped with a word. What weft cannot do yet is said item by item. The stricter reading wins wherever there are
//! two: a host with a key, a port with TLS and a path without its transport are left out, never opened wider than
//! the file says.

mod common;
mod port;
mod referral;
mod subsystem;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::checks::{Known, KnownPorts};
use super::model::{Config, Discovery, Limits, Metrics, Reactors};
use super::object::Object;
use super::report::{ConfigError, Report};
use super::{Format, Loaded, json};
use common::Common;

/// What the file says of hosts, by name.
type Hosts = BTreeMap<String, Host>;

/// What the file says of a host.
struct Host {
    /// It has a key and must authenticate.
    keyed: bool,
    /// A subsystem lists it.
    listed: bool,
    at: usize,
    path: String,
}

/// Reads and checks the document; relative paths in it start at `directory`.
pub(super) fn read(source: &str, file: &str, directory: &Path) -> Result<Loaded, ConfigError> {
    let report = Report::new(source);
    let config = json::parse(source, &report).and_then(|node| {
        let root = Object::new(&report, &node, String::new())?;
        Some(walk(root, &report, directory))
    });
    report.conclude(file, config, Format::Json)
}

fn walk(root: Object<'_>, report: &Report<'_>, directory: &Path) -> Config {
    let metrics = Metrics::default();
    let mut limits = Common::default();
    let mut hosts = read_hosts(&root);
    let mut known_ports = KnownPorts::new(report, metrics.address);
    let ports: Vec<_> = root
        .children("ports")
        .into_iter()
        .filter_map(|object| port::read(object, &mut known_ports, &mut limits))
        .collect();
    let mut known = Known::new(report, directory);
    let mut subsystems: Vec<_> = root
        .children("subsystems")
        .into_iter()
        .filter_map(|object| subsystem::read(object, &mut hosts, &mut known, &mut limits))
        .collect();
    let by_name: BTreeMap<_, _> =
        subsystems.iter().enumerate().map(|(index, read)| (read.nqn.clone(), index)).collect();
    for port in &ports {
        link(report, port, &by_name, &mut subsystems);
    }
    for read in &subsystems {
        if read.subsystem.as_ref().is_some_and(|subsystem| subsystem.ports.is_empty()) {
            let message = "no port that is served offers it: no host can connect";
            report.warning(read.at, read.path.as_str(), message);
        }
    }
    root.finish();
    for (name, host) in hosts.iter().filter(|(_, host)| !host.listed) {
        let message = format!("no subsystem lists {:?}: it is left out", json::shorten(name));
        report.warning(host.at, host.path.as_str(), message);
    }
    if ports.iter().all(|port| port.port.is_none()) {
        report.warning(0, "ports", "there is no port that weft serves: no host can connect");
    }
    let mut config = Config {
        log: None,
        state_dir: None,
        metrics,
        reactors: Reactors::default(),
        limits: limits.finish(Limits::default()),
        discovery: Discovery::default(),
        referrals: referral::merge(report, &ports),
        ports: ports.into_iter().filter_map(|read| read.port).collect(),
        subsystems: subsystems.into_iter().filter_map(|read| read.subsystem).collect(),
    };
    config.sort();
    config
}

/// Puts the port on every subsystem it offers. nvmetcli skips what does not exist.
fn link(
    report: &Report<'_>,
    read: &port::ReadPort<'_>,
    by_name: &BTreeMap<String, usize>,
    subsystems: &mut [subsystem::ReadSubsystem],
) {
    let mut linked = BTreeSet::new();
    for name in &read.subsystems {
        let Some(&index) = by_name.get(&*name.value) else {
            let message = format!("there is no subsystem {:?}: it is skipped", json::shorten(&name.value));
            report.warning(name.at, read.subsystems_path.as_str(), message);
            continue;
        };
        if let (Some(port), Some(subsystem)) = (&read.port, &mut subsystems[index].subsystem)
            && linked.insert(index)
        {
            subsystem.ports.push(port.id);
        }
    }
}

fn read_hosts(root: &Object<'_>) -> Hosts {
    let mut hosts = Hosts::new();
    for object in root.children("hosts") {
        let name = object.text("nqn");
        let name = object.require("nqn", name, "the name of a host");
        let keyed = object.child("dhchap").is_some_and(|dhchap| {
            let keys = ["key", "ctrl_key"].map(|key| {
                let text = dhchap.text(key);
                text.is_some_and(|text| !text.value.trim().is_empty())
            });
            dhchap.ignore(&["hash", "dhgroup"]);
            dhchap.finish();
            keys.contains(&true)
        });
        if let Some(name) = name {
            let host = Host { keyed: false, listed: false, at: name.at, path: object.path("nqn") };
            hosts.entry(name.value.into_owned()).or_insert(host).keyed |= keyed;
        }
        object.finish();
    }
    hosts
}
