//! mDNS: the discovery service announced on the local network (DNS-SD, RFC 6763), so that hosts find it without being told.
//!
//! The library answers on a thread of its own, away from the reactors. Ports that only this machine can reach are not
//! announced; where a transport has ports for discovery only, those are and no others of that transport.

use crate::{
    config::TransportKind,
    target::{BoundPort, Target},
};
use mdns_sd::{DaemonEvent, Error, IfKind, Receiver, ServiceDaemon, ServiceInfo};
use nvme::Nqn;
use std::{
    fs,
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};

/// How long the farewell to each service may take.
const GOODBYE_TIME: Duration = Duration::from_secs(1);

/// How long the first announcement may take: less than a second of probing, as a rule.
const FIRST_TIME: Duration = Duration::from_secs(10);

/// What is announced, until it is dropped.
pub struct Announcement {
    daemon: ServiceDaemon,
    names: Vec<String>,
}

/// Announces the discovery service; none when no port can be reached from elsewhere.
///
/// # Errors
///
/// The library cannot start, most likely for want of a socket on port 5353.
pub fn announce(target: &Target) -> Result<Option<Announcement>, Error> {
    let local = target.ports.iter().filter(|port| is_local(port)).map(|port| port.id.to_string());
    let local = local.collect::<Vec<_>>().join(", ");
    if !local.is_empty() {
        tracing::info!("not announced by mDNS, since only this machine can reach them: port(s) {local}");
    }
    let host = host_name(&fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default());
    let services = announced(&target.ports)
        .into_iter()
        .map(|port| service(port, &target.discovery.nqn, &host))
        .collect::<Result<Vec<_>, Error>>()?;
    if services.is_empty() {
        return Ok(None);
    }
    // From here on a failure ends the daemon as well.
    let mut announcement = Announcement { daemon: ServiceDaemon::new()?, names: Vec::new() };
    let daemon = &announcement.daemon;
    daemon.disable_interface(vec![IfKind::LoopbackV4, IfKind::LoopbackV6])?;
    let events = daemon.monitor()?;
    for service in services {
        let name = service.get_fullname().to_owned();
        announcement.daemon.register(service)?;
        announcement.names.push(name);
    }
    if let Err(error) = thread::Builder::new().name("mdns-watch".into()).spawn(move || watch(&events)) {
        tracing::warn!("whether mDNS works will not be known: no thread to see it: {error}");
    }
    Ok(Some(announcement))
}

/// Says whether anything could be announced: the library only tells by events, and leaves out what it cannot use.
fn watch(events: &Receiver<DaemonEvent>) {
    let deadline = Instant::now() + FIRST_TIME;
    // No event before the deadline, and none to come: the announcement has ended.
    loop {
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(DaemonEvent::Announce(name, place)) => {
                tracing::info!("announced by mDNS: {name} ({place})");
                return;
            }
            Ok(DaemonEvent::Error(error)) => {
                tracing::warn!("cannot announce the discovery service by mDNS: {error}");
                return;
            }
            Ok(_) => {}
            Err(_) if Instant::now() < deadline => return,
            Err(_) => {
                tracing::warn!(
                    "nothing could be announced by mDNS in {} s: is there a network interface that is up, takes multicast \
                     and has the address of the port?",
                    FIRST_TIME.as_secs()
                );
                return;
            }
        }
    }
}

impl Drop for Announcement {
    /// Says goodbye, so that hosts need not wait until what they know is too old.
    fn drop(&mut self) {
        for name in &self.names {
            if let Ok(done) = self.daemon.unregister(name) {
                let _ = done.recv_timeout(GOODBYE_TIME);
            }
        }
        if let Ok(done) = self.daemon.shutdown() {
            let _ = done.recv_timeout(GOODBYE_TIME);
        }
    }
}

fn announced(ports: &[BoundPort]) -> Vec<&BoundPort> {
    let reachable: Vec<_> = ports.iter().filter(|port| !is_local(port)).collect();
    let has_better = |port: &BoundPort| {
        !port.discovery && reachable.iter().any(|p| p.discovery && p.transport == port.transport)
    };
    reachable.iter().copied().filter(|port| !has_better(port)).collect()
}

/// Only this machine can reach it.
fn is_local(port: &BoundPort) -> bool {
    port.address.ip().to_canonical().is_loopback()
}

/// The records of a port: instance, host name and TXT (p, the transport; nqn, the discovery service's name).
fn service(port: &BoundPort, nqn: &Nqn, host: &str) -> Result<ServiceInfo, Error> {
    let (kind, protocol) = match port.transport {
        TransportKind::Tcp => ("_nvme-disc._tcp.local.", "tcp"),
        TransportKind::Rdma => ("_nvme-disc._udp.local.", "roce"),
    };
    let instance = format!("weft-{host}-{}", port.id);
    // A name of its own: the machine's belongs to whoever answers for the machine.
    let server = format!("{instance}.local.");
    let properties = [("p", protocol), ("nqn", nqn.as_str())];
    let address = port.address.ip();
    let none: &[IpAddr] = &[];
    let wildcard = address.is_unspecified();
    let addresses = if wildcard { none } else { std::slice::from_ref(&address) };
    let service =
        ServiceInfo::new(kind, &instance, &server, addresses, port.address.port(), &properties[..])?;
    Ok(if wildcard { service.enable_addr_auto() } else { service })
}

/// The first label of the machine's name, made of what a host name may have.
fn host_name(text: &str) -> String {
    let label = text.trim().split('.').next().unwrap_or("");
    let clean = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = label.chars().map(clean).take(40).collect();
    if name.is_empty() { "host".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(id: u16, transport: TransportKind, address: &str, discovery: bool) -> BoundPort {
        BoundPort { id, transport, address: address.parse().unwrap(), discovery }
    }

    #[test]
    fn records_say_how_to_connect() {
        let nqn: Nqn = "nqn.2026-12.io.weft:discovery".parse().unwrap();
        let tcp = port(3, TransportKind::Tcp, "192.0.2.1:8009", true);
        let info = service(&tcp, &nqn, "store").unwrap();
        assert_eq!(info.get_type(), "_nvme-disc._tcp.local.");
        assert_eq!(info.get_fullname(), "weft-store-3._nvme-disc._tcp.local.");
        assert_eq!(info.get_hostname(), "weft-store-3.local.");
        assert_eq!((info.get_port(), info.is_addr_auto()), (8009, false));
        let addresses: Vec<_> = info.get_addresses().iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["192.0.2.1"]);
        assert_eq!(info.get_property_val_str("p"), Some("tcp"));
        assert_eq!(info.get_property_val_str("nqn"), Some(nqn.as_str()));
        let rdma = port(4, TransportKind::Rdma, "0.0.0.0:4420", false);
        let info = service(&rdma, &Nqn::discovery(), "store").unwrap();
        assert_eq!(info.get_type(), "_nvme-disc._udp.local.");
        assert_eq!(info.get_property_val_str("p"), Some("roce"));
        assert!(info.is_addr_auto() && info.get_addresses().is_empty(), "the addresses of the machine");
    }

    #[test]
    fn only_what_others_can_reach_is_announced() {
        let local = port(1, TransportKind::Tcp, "127.0.0.1:4420", false);
        let (data, only) = (
            port(2, TransportKind::Tcp, "0.0.0.0:4420", false),
            port(3, TransportKind::Tcp, "192.0.2.1:8009", true),
        );
        let ids = |ports: &[BoundPort]| announced(ports).iter().map(|port| port.id).collect::<Vec<_>>();
        assert!(ids(std::slice::from_ref(&local)).is_empty());
        assert_eq!(ids(&[local.clone(), data.clone()]), [2]);
        assert_eq!(ids(&[local, data.clone(), only.clone()]), [3]);
        let rdma = port(4, TransportKind::Rdma, "192.0.2.1:4420", false);
        assert_eq!(ids(&[data, only, rdma]), [3, 4], "each transport by itself");
        assert!(ids(&[port(5, TransportKind::Tcp, "[::ffff:127.0.0.1]:4420", true)]).is_empty());
    }

    #[test]
    fn any_machine_name_makes_a_label() {
        assert_eq!(host_name("Store_1.example.org\n"), "store-1");
        assert_eq!(host_name(""), "host");
        assert_eq!(host_name(&"x".repeat(80)).len(), 40);
    }
}
