//! `[discovery]` and `[[referral]]`: the discovery service, and the others it refers to.

use nvme::Nqn;

use super::model::{Discovery, Port, Referral, Subsystem, TransportKind};
use super::section::{Located, Section};
use super::value::{self, Names};

/// What a referral's address may look like, for messages.
const REFERRAL_FORM: &str = "\"ADDRESS:PORT\" such as \"192.0.2.1:8009\" or \"[2001:db8::1]:8009\"";

/// Reads the table, if there is one.
pub(super) fn read(section: Option<Section<'_>>, subsystems: &[Subsystem]) -> Discovery {
    let Some(section) = section else { return Discovery::default() };
    let nqn = section.text("nqn", "an NQN such as \"nqn.2026-12.io.weft:discovery\"", |text| {
        value::nqn(text, Names::Standard)
    });
    if let Some(nqn) = nqn.as_ref().filter(|nqn| subsystems.iter().any(|other| other.nqn == nqn.value)) {
        let message = format!("{} is the NQN of a subsystem: expected a different one", nqn.value);
        section.mistake(nqn.at, "nqn", message);
    }
    let mdns = section.flag("mdns").is_some_and(|flag| flag.value);
    section.finish();
    Discovery { nqn: nqn.map_or_else(Nqn::discovery, |nqn| nqn.value), mdns }
}

/// Reads the referrals; a host that is sent back here would go round in circles.
pub(super) fn read_referrals(sections: Vec<Section<'_>>, ports: &[Port]) -> Vec<Referral> {
    let mut referrals: Vec<Referral> = Vec::new();
    for section in sections {
        let transport = section.choice("transport", &TransportKind::ALL.map(|kind| (kind.name(), kind)));
        let transport = section.require("transport", transport, "\"tcp\" or \"rdma\"");
        let address = section.text("address", REFERRAL_FORM, value::address);
        let address = section.require("address", address, REFERRAL_FORM);
        let nqn =
            section.text("nqn", "the NQN of a discovery service", |text| value::nqn(text, Names::Standard));
        let port_id = section.whole("port_id", 0..=u16::MAX);
        if let (Some(transport), Some(address)) = (transport, address) {
            let Located { value: to, at } = address;
            let complaint = if to.ip().is_unspecified() || to.port() == 0 {
                Some(format!(
                    "{to} leads nowhere: expected the address and port of another discovery service"
                ))
            } else if ports.iter().any(|port| port.transport == transport.value && port.address == to) {
                Some(format!(
                    "{to} is one of the ports here: expected the address of another discovery service"
                ))
            } else if referrals.iter().any(|other| other.transport == transport.value && other.address == to)
            {
                Some(format!("{to} is referred to twice: expected it once"))
            } else {
                None
            };
            match complaint {
                Some(complaint) => section.mistake(at, "address", complaint),
                None => referrals.push(Referral {
                    transport: transport.value,
                    address: to,
                    nqn: nqn.map_or_else(Nqn::discovery, |nqn| nqn.value),
                    port_id: port_id.map_or(0, |id| id.value),
                }),
            }
        }
        section.finish();
    }
    referrals
}
