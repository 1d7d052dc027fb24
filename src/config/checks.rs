//! What must fit together across the parts of a file, whatever its format: nothing twice, no two ports on one
//! address, no two volumes that look like one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use nvme::{Nqn, Uuid};

use super::json::printable;
use super::model::TransportKind;
use super::report::Report;
use super::section::Located;

/// What earlier parts have taken, to notice what is there twice. Values are byte offsets.
pub(super) struct Known<'a> {
    /// Where relative paths start.
    pub(super) directory: &'a Path,
    report: &'a Report<'a>,
    nqns: BTreeMap<Nqn, usize>,
    paths: BTreeMap<PathBuf, usize>,
    uuids: BTreeMap<Uuid, usize>,
    nguids: BTreeMap<[u8; 16], usize>,
}

/// What the namespaces of one subsystem have taken.
#[derive(Default)]
pub(super) struct Taken {
    nsids: BTreeMap<u32, usize>,
    uuids: BTreeMap<Uuid, usize>,
    nguids: BTreeMap<[u8; 16], usize>,
}

/// Remembers where `key` stands; gives the place of an earlier one, which stays.
fn earlier<K: Ord>(seen: &mut BTreeMap<K, usize>, key: K, at: usize) -> Option<usize> {
    let first = *seen.entry(key).or_insert(at);
    (first != at).then_some(first)
}

impl<'a> Known<'a> {
    pub(super) fn new(report: &'a Report<'a>, directory: &'a Path) -> Self {
        Self {
            directory,
            report,
            nqns: BTreeMap::new(),
            paths: BTreeMap::new(),
            uuids: BTreeMap::new(),
            nguids: BTreeMap::new(),
        }
    }

    /// Reports a subsystem that is there already.
    pub(super) fn check_nqn(&mut self, nqn: &Located<Nqn>, key: String) {
        if let Some(first) = earlier(&mut self.nqns, nqn.value.clone(), nqn.at) {
            let line = self.report.line(first);
            let name = printable(nqn.value.as_str());
            let message = format!("{name} is taken by line {line}: expected a different NQN");
            self.report.mistake(nqn.at, key, message);
        }
    }

    /// Warns of one file behind two namespaces, also when one of the two paths is a link to it.
    pub(super) fn check_path(&mut self, path: &Located<PathBuf>, key: String) {
        let real = path.value.canonicalize().unwrap_or_else(|_| path.value.clone());
        if let Some(first) = earlier(&mut self.paths, real, path.at) {
            let line = self.report.line(first);
            let message = format!(
                "{} is also used by line {line}: hosts will overwrite each other",
                path.value.display()
            );
            self.report.warning(path.at, key, message);
        }
    }

    /// Reports an NSID that is taken in the same subsystem.
    pub(super) fn check_nsid(&self, taken: &mut Taken, nsid: Located<u32>, key: String) {
        if let Some(first) = earlier(&mut taken.nsids, nsid.value, nsid.at) {
            let line = self.report.line(first);
            let message = format!("{} is taken by line {line}: expected a different NSID", nsid.value);
            self.report.mistake(nsid.at, key, message);
        }
    }

    /// Reports a UUID that is there already.
    pub(super) fn check_uuid(&mut self, taken: &mut Taken, uuid: Located<Uuid>, key: String) {
        let here = earlier(&mut taken.uuids, uuid.value, uuid.at);
        let anywhere = earlier(&mut self.uuids, uuid.value, uuid.at);
        self.check_identity(uuid.at, key, &uuid.value.to_string(), here, anywhere);
    }

    /// Reports an NGUID that is there already.
    pub(super) fn check_nguid(&mut self, taken: &mut Taken, nguid: Located<[u8; 16]>, key: String) {
        let here = earlier(&mut taken.nguids, nguid.value, nguid.at);
        let anywhere = earlier(&mut self.nguids, nguid.value, nguid.at);
        let shown = format!("{:032x}", u128::from_be_bytes(nguid.value));
        self.check_identity(nguid.at, key, &shown, here, anywhere);
    }

    /// Two namespaces that look like one volume make hosts treat them as two paths to it: inside a subsystem that
    /// destroys data, across subsystems it may be meant (the same file offered twice).
    fn check_identity(
        &self,
        at: usize,
        key: String,
        shown: &str,
        here: Option<usize>,
        anywhere: Option<usize>,
    ) {
        if let Some(first) = here {
            let line = self.report.line(first);
            let message = format!("{shown} is taken by line {line}: expected a different one");
            self.report.mistake(at, key, message);
        } else if let Some(first) = anywhere {
            let line = self.report.line(first);
            let message = format!("{shown} is also that of line {line}: hosts will take both for one volume");
            self.report.warning(at, key, message);
        }
    }
}

/// What earlier ports have taken.
pub(super) struct KnownPorts<'a> {
    report: &'a Report<'a>,
    metrics: SocketAddr,
    ids: BTreeMap<u16, usize>,
    /// By transport and TCP port: only these can clash.
    addresses: BTreeMap<(TransportKind, u16), Vec<Located<SocketAddr>>>,
}

impl<'a> KnownPorts<'a> {
    /// None yet; `metrics` is where the metrics page is.
    pub(super) fn new(report: &'a Report<'a>, metrics: SocketAddr) -> Self {
        Self { report, metrics, ids: BTreeMap::new(), addresses: BTreeMap::new() }
    }

    /// The ids so far.
    pub(super) fn ids(&self) -> Vec<u16> {
        self.ids.keys().copied().collect()
    }

    /// Reports an id that is taken.
    pub(super) fn check_id(&mut self, id: Located<u16>, key: String) {
        if let Some(first) = earlier(&mut self.ids, id.value, id.at) {
            let line = self.report.line(first);
            let message = format!("{} is taken by line {line}: expected a different id", id.value);
            self.report.mistake(id.at, key, message);
        }
    }

    /// Reports an address that could not be bound beside those before it.
    pub(super) fn check_address(
        &mut self,
        transport: TransportKind,
        address: Located<SocketAddr>,
        key: &str,
    ) {
        let taken = self.addresses.entry((transport, address.value.port())).or_default();
        if let Some(first) = taken.iter().find(|taken| overlap(taken.value, address.value)) {
            let line = self.report.line(first.at);
            let message = format!("{} is taken by line {line}: expected a different address", address.value);
            self.report.mistake(address.at, key, message);
        } else {
            taken.push(address);
        }
        if transport == TransportKind::Tcp && overlap(self.metrics, address.value) {
            let message =
                format!("{} is taken by the metrics page: expected a different address", address.value);
            self.report.mistake(address.at, key, message);
        }
    }
}

/// Whether one socket would keep the other from listening. Port 0 never does; the wildcard covers its address
/// family.
fn overlap(left: SocketAddr, right: SocketAddr) -> bool {
    let wildcard = left.ip().is_unspecified() || right.ip().is_unspecified();
    left.port() != 0
        && left.port() == right.port()
        && left.is_ipv4() == right.is_ipv4()
        && (wildcard || left.ip() == right.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_keep_each_other_from_listening() {
        let overlap = |left: &str, right: &str| overlap(left.parse().unwrap(), right.parse().unwrap());
        assert!(overlap("0.0.0.0:1", "127.0.0.1:1") && overlap("[::1]:1", "[::]:1"));
        assert!(!overlap("127.0.0.1:0", "127.0.0.1:0") && !overlap("127.0.0.1:1", "127.0.0.1:2"));
        assert!(!overlap("0.0.0.0:1", "[::]:1") && !overlap("127.0.0.1:1", "127.0.0.2:1"));
    }
}
