//! `[[subsystem]]`: who may connect, through which ports, and to what.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nvme::{Nqn, Uuid};

use super::identity;
use super::model::{AllowedHosts, DEFAULT_MODEL, Subsystem};
use super::namespace;
use super::section::{Located, Section};
use super::value;

const LONGEST_SERIAL: usize = 20;
const LONGEST_MODEL: usize = 40;

/// What earlier sections have taken, to notice what is there twice. Values are byte offsets.
pub(super) struct Known<'a> {
    /// Where relative paths start.
    pub(super) directory: &'a Path,
    /// Every port id, when all of them could be read.
    port_ids: Option<Vec<u16>>,
    nqns: BTreeMap<Nqn, usize>,
    pub(super) paths: BTreeMap<PathBuf, usize>,
    pub(super) uuids: BTreeMap<Uuid, usize>,
    pub(super) nguids: BTreeMap<[u8; 16], usize>,
}

impl<'a> Known<'a> {
    pub(super) fn new(directory: &'a Path, port_ids: Option<Vec<u16>>) -> Self {
        Self {
            directory,
            port_ids,
            nqns: BTreeMap::new(),
            paths: BTreeMap::new(),
            uuids: BTreeMap::new(),
            nguids: BTreeMap::new(),
        }
    }
}

/// Remembers where `key` stands; gives the place of an earlier one, which stays.
pub(super) fn earlier<K: Ord>(seen: &mut BTreeMap<K, usize>, key: K, at: usize) -> Option<usize> {
    let first = *seen.entry(key).or_insert(at);
    (first != at).then_some(first)
}

/// Reads one subsystem; `None` when something it cannot do without is missing or wrong.
pub(super) fn read(section: Section<'_>, known: &mut Known<'_>) -> Option<Subsystem> {
    let nqn = section.text("nqn", "an NQN such as \"nqn.2026-12.io.weft:one\"", value::subsystem_nqn);
    let nqn = section.require("nqn", nqn, "an NQN such as \"nqn.2026-12.io.weft:one\"");
    if let Some(nqn) = &nqn
        && let Some(first) = earlier(&mut known.nqns, nqn.value.clone(), nqn.at)
    {
        let line = section.report.line(first);
        section.mistake(
            nqn.at,
            "nqn",
            format!("{} is taken by line {line}: expected a different NQN", nqn.value),
        );
    }
    let serial = section.text("serial", "text", |text| value::printable(text, LONGEST_SERIAL));
    let model = section.text("model", "text", |text| value::printable(text, LONGEST_MODEL));
    let hosts = read_hosts(&section);
    let ports = read_ports(&section, known);
    let namespaces = section.children("namespace", "subsystem.namespace");
    if namespaces.is_empty() {
        section.report.warning(
            section.at,
            "subsystem",
            "has no [[subsystem.namespace]]: hosts will find nothing in it",
        );
    }
    let nqn_text = nqn.as_ref().map_or("", |nqn| nqn.value.as_str());
    let namespaces = namespace::read_all(namespaces, nqn_text, known);
    section.finish();

    let nqn = nqn?.value;
    Some(Subsystem {
        serial: serial.map_or_else(|| identity::derived_serial(nqn.as_str()), |serial| serial.value),
        model: model.map_or_else(|| DEFAULT_MODEL.to_owned(), |model| model.value),
        hosts,
        ports,
        namespaces,
        nqn,
    })
}

/// `allow_any_host` or `allowed_hosts`. Both together are a contradiction that other targets have resolved
/// either way, so this one asks.
fn read_hosts(section: &Section<'_>) -> AllowedHosts {
    let any = section.flag("allow_any_host");
    let listed = section.texts("allowed_hosts", "host NQNs", value::nqn);
    match (any, listed) {
        (Some(Located { value: true, .. }), Some(listed)) => {
            let message = "cannot stand beside allow_any_host = true: expected one of the two";
            section.mistake(listed.at, "allowed_hosts", message);
            AllowedHosts::Any
        }
        (Some(Located { value: true, .. }), None) => AllowedHosts::Any,
        (_, listed) => {
            let nqns: Vec<Nqn> =
                listed.into_iter().flat_map(|listed| listed.value).map(|nqn| nqn.value).collect();
            if nqns.is_empty() {
                let message = "admits no host: expected allow_any_host = true, or NQNs in allowed_hosts";
                section.report.warning(section.at, "subsystem", message);
            }
            AllowedHosts::Listed(nqns)
        }
    }
}

/// The ports that offer the subsystem: those listed, or all.
fn read_ports(section: &Section<'_>, known: &Known<'_>) -> Vec<u16> {
    let all = known.port_ids.as_deref();
    let Some(listed) = section.wholes("ports", "port ids", 1..=u16::MAX) else {
        return all.unwrap_or_default().to_vec();
    };
    if listed.value.is_empty() {
        section.mistake(
            listed.at,
            "ports",
            "names no port: expected at least one id, or no such key for all ports",
        );
    }
    let mut ports = Vec::new();
    for id in listed.value {
        if let Some(all) = all
            && !all.contains(&id.value)
        {
            let message = format!("there is no port {}: expected the id of a [[port]]", id.value);
            section.report.absent(id.at, section.path("ports"), message);
        } else if ports.contains(&id.value) {
            section.mistake(id.at, "ports", format!("names port {} twice: expected it once", id.value));
        } else {
            ports.push(id.value);
        }
    }
    ports
}
