//! `ports[].referrals[]`: other discovery services. The kernel has them for each port, weft for all of them.

use nvme::Nqn;

use super::port::{ReadPort, read_socket};
use crate::config::model::Referral;
use crate::config::object::Object;
use crate::config::report::Report;

/// A referral of one port.
pub(super) struct ReadReferral {
    referral: Referral,
    at: usize,
    path: String,
}

/// Reads one referral; nothing when hosts are not to be told of it, or cannot be.
pub(super) fn read(object: Object<'_>) -> Option<ReadReferral> {
    let name = object.text("name").map_or_else(String::new, |name| name.value.into_owned());
    let enabled = object.flag("enable");
    let addr = object.child("addr");
    let addr = object.require("addr", addr, "an object with trtype, traddr and trsvcid");
    let path = object.path("");
    let at = object.at;
    if enabled.is_some_and(|flag| !flag.value) {
        object.warning(at, "", "is disabled: it is left out");
        return None;
    }
    object.finish();
    let addr = addr?;
    // Who asks there is told by that service whether it wants a secure channel.
    addr.ignore(&["treq", "tsas"]);
    let port_id = addr.whole("portid", 0..=u16::MAX).map_or(0, |id| id.value);
    let (transport, address) = read_socket(addr, &format!("referral {name:?}"))??;
    let address = address.value;
    let referral = Referral { transport, address, nqn: Nqn::discovery(), port_id };
    Some(ReadReferral { referral, at, path })
}

/// The referrals of all ports together.
pub(super) fn merge(report: &Report<'_>, ports: &[ReadPort<'_>]) -> Vec<Referral> {
    let served = || ports.iter().filter_map(|read| Some((read.port.as_ref()?, &read.referrals)));
    let count = served().count();
    let mut merged: Vec<(&ReadReferral, usize)> = Vec::new();
    for read in served().flat_map(|(_, referrals)| referrals) {
        let to = (read.referral.transport, read.referral.address);
        let same = |(other, _): &&mut (&ReadReferral, usize)| {
            (other.referral.transport, other.referral.address) == to
        };
        if let Some((_, times)) = merged.iter_mut().find(same) {
            *times += 1;
        } else if to.1.ip().is_unspecified() || to.1.port() == 0 {
            report.warning(read.at, read.path.as_str(), format!("{} leads nowhere: it is left out", to.1));
        } else if served().any(|(port, _)| (port.transport, port.address) == to) {
            let message = format!("{} is a port of this target: it is left out", to.1);
            report.warning(read.at, read.path.as_str(), message);
        } else {
            merged.push((read, 1));
        }
    }
    for (read, times) in &merged {
        if *times < count {
            let message = "referrals of some ports only: hosts are told of it on every port";
            report.unsupported(read.at, read.path.as_str(), message);
        }
    }
    merged.into_iter().map(|(read, _)| read.referral.clone()).collect()
}
