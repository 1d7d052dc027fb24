//! `ports[]`: addresses, ANA groups and referrals of the kernel's target.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use super::common::Common;
use super::referral::{self, ReadReferral};
use crate::config::ana::AnaGroups;
use crate::config::checks::KnownPorts;
use crate::config::json::shorten;
use crate::config::model::{AnaGroup, AnaState, MAX_ANA_GROUP, Port, TransportKind};
use crate::config::object::Object;
use crate::config::section::Located;

/// A port, and the names of what it offers.
pub(super) struct ReadPort<'a> {
    /// Nothing when weft cannot serve it, which has been said.
    pub(super) port: Option<Port>,
    pub(super) subsystems: Vec<Located<Cow<'a, str>>>,
    pub(super) subsystems_path: String,
    pub(super) referrals: Vec<ReadReferral>,
}

/// The kernel's transports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Served(TransportKind),
    Other(&'static str),
}

/// The kernel's address families.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Unnamed,
    Ipv4,
    Ipv6,
    Other(&'static str),
}

/// What `treq` says of a secure channel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SecureChannel {
    Unspecified,
    Required,
    NotRequired,
}

const TRANSPORTS: [(&str, Transport); 6] = [
    ("tcp", Transport::Served(TransportKind::Tcp)),
    ("rdma", Transport::Served(TransportKind::Rdma)),
    ("loop", Transport::Other("loop")),
    ("fc", Transport::Other("fc")),
    ("pci", Transport::Other("pci")),
    ("pcie", Transport::Other("pci")),
];

const FAMILIES: [(&str, Family); 8] = [
    ("", Family::Unnamed),
    ("ipv4", Family::Ipv4),
    ("ipv6", Family::Ipv6),
    ("ib", Family::Other("ib")),
    ("fc", Family::Other("fc")),
    ("loop", Family::Other("loop")),
    ("pci", Family::Other("pci")),
    ("pcie", Family::Other("pci")),
];

const SECURE_CHANNELS: [(&str, SecureChannel); 4] = [
    ("", SecureChannel::Unspecified),
    ("not specified", SecureChannel::Unspecified),
    ("required", SecureChannel::Required),
    ("not required", SecureChannel::NotRequired),
];

/// Reads one port; `None` when it has a mistake.
pub(super) fn read<'a>(
    object: Object<'a>,
    known: &mut KnownPorts<'_>,
    limits: &mut Common,
) -> Option<ReadPort<'a>> {
    let id = object.whole("portid", 0..=u16::MAX);
    let id = object.require("portid", id, "a number from 0 to 65535, different for each port");
    if let Some(id) = id {
        known.check_id(id, object.path("portid"));
    }
    let addr = object.child("addr");
    let addr = object.require("addr", addr, "an object with trtype, traddr and trsvcid");
    let subsystems = object.texts("subsystems");
    let subsystems_path = object.path("subsystems");
    let address = addr.and_then(|addr| {
        let key = addr.path("traddr");
        let socket = read_socket(addr, &format!("port {}", id.map_or(0, |id| id.value)))?;
        Some(socket.map(|(transport, address)| {
            known.check_address(transport, address, &key);
            (transport, address.value)
        }))
    });
    let param = object.child("param");
    let ana_groups = object.children("ana_groups");
    let referrals = object.children("referrals");

    let left_out = ReadPort { port: None, subsystems, subsystems_path, referrals: Vec::new() };
    let Some((transport, address)) = address? else {
        // Nothing of it is served, so nothing more is to be said about it.
        return Some(left_out);
    };
    if let Some(param) = param {
        limits.in_capsule(&param);
        limits.queue_depth(&param);
        refuse_number(&param, "mdts", "limits.max_transfer of weft's own configuration holds for every port");
        refuse_number(&param, "pi_enable", "protection information: ignored");
        param.finish();
    }
    let ana_groups = read_ana_groups(&object, ana_groups);
    let referrals = referrals.into_iter().filter_map(referral::read).collect();
    object.finish();
    let port = Port { id: id?.value, transport, address, discovery: false, ana_groups };
    Some(ReadPort { port: Some(port), referrals, ..left_out })
}

/// Says that a number other than zero does nothing.
fn refuse_number(param: &Object<'_>, key: &'static str, why: &str) {
    if let Some(number) = param.whole(key, i32::MIN..=i32::MAX)
        && number.value > 0
    {
        param.unsupported(number.at, key, why);
    }
}

/// Where `whose` address leads. `Some(None)` when weft cannot use it, which is said; `None` when there is a mistake.
pub(super) fn read_socket(
    addr: Object<'_>,
    whose: &str,
) -> Option<Option<(TransportKind, Located<SocketAddr>)>> {
    if let Some(unset) = addr.text("trtype").filter(|transport| transport.value.trim().is_empty()) {
        addr.warning(unset.at, "trtype", format!("names no transport: {whose} is left out"));
        return Some(None);
    }
    let transport = addr.choice("trtype", &TRANSPORTS);
    let transport = addr.require("trtype", transport, "\"tcp\" or \"rdma\"")?;
    let kind = match transport.value {
        Transport::Served(kind) => kind,
        Transport::Other(name) => {
            let message = format!("{name:?} ports: {whose} is left out");
            addr.unsupported(transport.at, "trtype", message);
            return Some(None);
        }
    };
    let family = addr.choice("adrfam", &FAMILIES);
    if let Some(Located { value: Family::Other(name), at }) = family {
        addr.unsupported(at, "adrfam", format!("{name:?} addresses: {whose} is left out"));
        return Some(None);
    }
    let is_clear = is_clear(&addr, kind, whose);
    let ip = addr.text("traddr");
    let ip = addr.require("traddr", ip, "an IP address");
    let service = addr.whole("trsvcid", 0..=u16::MAX);
    let service = addr.require("trsvcid", service, "a number such as 4420");
    let ip = ip.and_then(|ip| read_ip(&addr, ip, family, whose));
    addr.finish();
    if !is_clear? {
        return Some(None);
    }
    let Some(ip) = ip? else { return Some(None) };
    let address = Located { value: SocketAddr::new(ip.value, service?.value), at: ip.at };
    Some(Some((kind, address)))
}

/// `Some(None)` when it is sound, but weft cannot listen there.
fn read_ip(
    addr: &Object<'_>,
    text: Located<Cow<'_, str>>,
    family: Option<Located<Family>>,
    whose: &str,
) -> Option<Option<Located<IpAddr>>> {
    let plain = text.value.trim().trim_start_matches('[').trim_end_matches(']');
    if let Some((_, zone)) = plain.split_once('%') {
        let message = format!("an address with a zone ({:?}): {whose} is left out", shorten(zone));
        addr.unsupported(text.at, "traddr", message);
        return Some(None);
    }
    let Ok(ip) = plain.parse::<IpAddr>() else {
        let message = format!("{:?} is no IP address: expected one such as \"192.0.2.1\"", shorten(plain));
        addr.mistake(text.at, "traddr", message);
        return None;
    };
    let fits = match family.map_or(Family::Unnamed, |family| family.value) {
        Family::Ipv4 => ip.is_ipv4(),
        Family::Ipv6 => ip.is_ipv6(),
        Family::Unnamed | Family::Other(_) => true,
    };
    if !fits {
        let message = format!("{ip} is not of the family that adrfam names: expected both to agree");
        addr.mistake(text.at, "traddr", message);
        return None;
    }
    Some(Some(Located { value: ip, at: text.at }))
}

/// Whether hosts may talk to the port in the clear. When they must not, nobody may: it is said and left out.
fn is_clear(addr: &Object<'_>, kind: TransportKind, whose: &str) -> Option<bool> {
    let channel = match (addr.has("treq"), addr.choice("treq", &SECURE_CHANNELS)) {
        (true, None) => return None,
        (_, channel) => channel,
    };
    let tsas = addr.text("tsas");
    let tls = tsas.as_ref().filter(|tsas| tsas.value.trim().to_ascii_lowercase().starts_with("tls"));
    let wanted = channel.as_ref().map_or(SecureChannel::Unspecified, |channel| channel.value);
    match (wanted, tls) {
        (SecureChannel::Required, _) => {
            let at = channel.map_or(addr.at, |channel| channel.at);
            let message = format!("TLS: {whose} demands a secure channel and is left out");
            addr.unsupported(at, "treq", message);
            Some(false)
        }
        // The kernel makes it a demand as well.
        (SecureChannel::Unspecified, Some(tls)) => {
            addr.unsupported(tls.at, "tsas", format!("TLS: {whose} demands it and is left out"));
            Some(false)
        }
        (SecureChannel::NotRequired, Some(tls)) => {
            addr.unsupported(tls.at, "tsas", format!("TLS: {whose} takes connections without it only"));
            Some(true)
        }
        (_, None) => {
            if let Some(tsas) = tsas
                && kind == TransportKind::Rdma
                && tsas.value.trim().eq_ignore_ascii_case("datagram")
            {
                addr.unsupported(tsas.at, "tsas", format!("datagrams: {whose} is served connected"));
            }
            Some(true)
        }
    }
}

fn read_ana_groups(port: &Object<'_>, objects: Vec<Object<'_>>) -> Vec<AnaGroup> {
    let mut groups = AnaGroups::new(port.report);
    for object in objects {
        let id = object.whole("grpid", 1..=MAX_ANA_GROUP);
        let id = object.require("grpid", id, &format!("a number from 1 to {MAX_ANA_GROUP}"));
        let ana = object.child("ana");
        let state = ana.as_ref().and_then(|ana| ana.choice("state", &AnaState::ALL.map(|s| (s.name(), s))));
        // A new group of the kernel's is inaccessible until it is told otherwise; only the first is optimized.
        let default = |id: u32| if id == 1 { AnaState::Optimized } else { AnaState::Inaccessible };
        if let Some(id) = id {
            let state = state.unwrap_or(Located { value: default(id.value), at: object.at });
            groups.add(id, state, &object.path("grpid"), &object.path("ana.state"));
        }
        if let Some(ana) = ana {
            ana.finish();
        }
        object.finish();
    }
    groups.finish()
}
