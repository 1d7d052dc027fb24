//! `[[subsystem]]`: who may connect, through which ports, and to what.

use std::ops::RangeInclusive;

use nvme::Nqn;

use super::checks::Known;
use super::identity;
use super::model::{ALL_CONTROLLER_IDS, AllowedHosts, DEFAULT_MODEL, Subsystem};
use super::namespace;
use super::section::{Located, Section};
use super::value::{self, LONGEST_FIRMWARE, LONGEST_MODEL, LONGEST_SERIAL, Names};

const NQN_FORM: &str = "an NQN such as \"nqn.2026-12.io.weft:one\"";

/// The ids of the ports.
pub(super) struct PortIds {
    /// Every one, when all of them could be read.
    pub(super) all: Option<Vec<u16>>,
    /// Those that are for discovery only.
    pub(super) discovery: Vec<u16>,
}

/// Reads one subsystem; `None` when something it cannot do without is missing or wrong.
pub(super) fn read(
    section: Section<'_>,
    names: Names,
    port_ids: &PortIds,
    known: &mut Known<'_>,
) -> Option<Subsystem> {
    let nqn = section.text("nqn", NQN_FORM, |text| value::subsystem_nqn(text, names));
    let nqn = section.require("nqn", nqn, NQN_FORM);
    if let Some(nqn) = &nqn {
        known.check_nqn(nqn, section.path("nqn"));
    }
    let serial = section.text("serial", "text", |text| value::printable(text, LONGEST_SERIAL));
    let model = section.text("model", "text", |text| value::printable(text, LONGEST_MODEL));
    let firmware = section.text("firmware", "text", |text| value::printable(text, LONGEST_FIRMWARE));
    let controller_ids = read_controller_ids(&section);
    let hosts = read_hosts(&section, names);
    let ports = read_ports(&section, port_ids);
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
        firmware: firmware.map(|firmware| firmware.value),
        controller_ids,
        hosts,
        ports,
        namespaces,
        nqn,
    })
}

/// The first and the last identifier its controllers get.
fn read_controller_ids(section: &Section<'_>) -> RangeInclusive<u16> {
    let expected = "two controller identifiers, the first and the last";
    let Some(list) = section.wholes("controller_ids", expected, ALL_CONTROLLER_IDS) else {
        return ALL_CONTROLLER_IDS;
    };
    let ids: Vec<u16> = list.value.iter().map(|id| id.value).collect();
    match *ids {
        [first, last] if first <= last => first..=last,
        _ => {
            section.mistake(list.at, "controller_ids", format!("is no range: expected {expected}"));
            ALL_CONTROLLER_IDS
        }
    }
}

/// `allow_any_host` or `allowed_hosts`. Both together are a contradiction that other targets have resolved
/// either way, so this one asks.
fn read_hosts(section: &Section<'_>, names: Names) -> AllowedHosts {
    let any = section.flag("allow_any_host");
    let listed = section.texts("allowed_hosts", "host NQNs", |text| value::nqn(text, names));
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

/// The ports that offer the subsystem: those listed, or all that are not for discovery only.
fn read_ports(section: &Section<'_>, known: &PortIds) -> Vec<u16> {
    let all = known.all.as_deref();
    let Some(listed) = section.wholes("ports", "port ids", 0..=u16::MAX) else {
        let offering = |id: &&u16| !known.discovery.contains(id);
        return all.unwrap_or_default().iter().filter(offering).copied().collect();
    };
    if listed.value.is_empty() {
        let message = "names no port: no host can connect; without this key every port offers the subsystem";
        section.report.warning(listed.at, section.path("ports"), message);
    }
    let mut ports = Vec::new();
    for id in listed.value {
        if let Some(all) = all
            && !all.contains(&id.value)
        {
            let message = format!("there is no port {}: expected the id of a [[port]]", id.value);
            section.report.absent(id.at, section.path("ports"), message);
        } else if known.discovery.contains(&id.value) {
            let message = format!("port {} is for discovery only: expected another", id.value);
            section.mistake(id.at, "ports", message);
        } else if ports.contains(&id.value) {
            section.mistake(id.at, "ports", format!("names port {} twice: expected it once", id.value));
        } else {
            ports.push(id.value);
        }
    }
    ports
}
