//! The discovery controller: where the subsystems are that a host may use.
//!
//! Base specification, "Discovery Controller" and "Discovery log page". A host gets what it may connect to
//! through the port it asks on, with all paths there; on a port for discovery only, everything it may connect to. The first
//! entry is the discovery subsystem itself, the last ones are other discovery services.

use crate::{
    admin::Answer,
    config::{Referral, TransportKind},
    identify, log_page,
    queue_pair::QueuePair,
    subsystem::Subsystem,
    target::{BoundPort, Target},
};
use nvme::{
    AdminOpcode, Nqn, Sqe, Status,
    discovery::{
        AddressFamily, DYNAMIC_CONTROLLER, DiscoveryEntry, DiscoveryHeader, SubsystemType, TransportType,
        entry_flags, transport_requirements,
    },
    identify::{IDENTIFY_LEN, IdentifyCommand, cns, controller_type, log_attributes},
    log_page::log_id,
};
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};
use transports::QueuePair as TransportQueuePair;

/// The admin commands a discovery controller supports.
pub const SUPPORTED: &[AdminOpcode] = &[
    AdminOpcode::GetLogPage,
    AdminOpcode::Identify,
    AdminOpcode::SetFeatures,
    AdminOpcode::GetFeatures,
    AdminOpcode::AsyncEventRequest,
    AdminOpcode::KeepAlive,
];

/// Entries of the admin queue (ASQSZ) that hosts are told.
const ADMIN_QUEUE_SIZE: u16 = 32;

/// Answers Identify: the controller is all there is.
pub fn identify<Q: TransportQueuePair>(pair: &QueuePair<Q>, sqe: &Sqe) -> Result<Answer, Status> {
    if IdentifyCommand::parse(sqe).cns != cns::CONTROLLER {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let mut page = identify::common_controller(pair);
    page.controller_type = controller_type::DISCOVERY;
    page.log_page_attributes = log_attributes::EXTENDED_DATA;
    let bytes = page.as_bytes();
    debug_assert_eq!(bytes.len(), IDENTIFY_LEN);
    Ok(Answer::whole(bytes))
}

/// Answers Get Log Page: the discovery log, and what the controller supports.
pub fn log_page<Q: TransportQueuePair>(
    pair: &QueuePair<Q>,
    token: &Q::Token,
    sqe: &Sqe,
) -> Result<Answer, Status> {
    let command = log_page::begin(pair, token, sqe)?;
    let controller = &pair.controller;
    let page = match command.id {
        log_id::DISCOVERY => {
            log(&pair.local.target, &controller.host_nqn, controller.port_id, controller.local_address)
        }
        log_id::SUPPORTED_LOG_PAGES => log_page::supported::pages(controller),
        log_id::FEATURES => log_page::supported::features(controller),
        _ => return Err(Status::INVALID_LOG_PAGE.dnr()),
    };
    log_page::cut(&command, page)
}

/// The discovery log for a host that asks on a port, through one of our addresses.
fn log(target: &Target, host: &Nqn, port_id: u16, reached: SocketAddr) -> Vec<u8> {
    // Read before the content: an old counter over new content is read again by the host, the reverse would not be.
    let generation = target.discovery_generation();
    let mut entries = Vec::new();
    if let Some(here) = target.ports.iter().find(|p| p.id == port_id) {
        let subsystems = visible(target, host, here);
        entries.extend(own_entry(target, host, here, reached));
        for subsystem in subsystems {
            let ports = target.ports.iter().filter(|p| subsystem.ports.contains(&p.id));
            entries.extend(ports.filter_map(|port| entry(subsystem, port, reached)));
        }
    }
    entries.extend(target.referrals.iter().map(referral));
    let mut header = DiscoveryHeader::new_zeroed();
    header.generation = generation.into();
    header.record_count = (entries.len() as u64).into();
    let mut page = header.as_bytes().to_vec();
    entries.iter().for_each(|entry| page.extend_from_slice(entry.as_bytes()));
    page
}

/// What a host is told of on a port: what it may use and could use through this port; through a port for discovery only,
/// all it may use.
fn visible<'a>(target: &'a Target, host: &Nqn, port: &BoundPort) -> Vec<&'a Arc<Subsystem>> {
    let offered = |s: &&Arc<Subsystem>| port.discovery || s.ports.contains(&port.id);
    target.subsystems.iter().filter(|s| s.admits(host)).filter(offered).collect()
}

/// The discovery service itself, as the host reached it.
fn own_entry(target: &Target, host: &Nqn, here: &BoundPort, reached: SocketAddr) -> Option<DiscoveryEntry> {
    let mut entry = entry(&target.discovery, here, reached)?;
    entry.subsystem_type = SubsystemType::CurrentDiscovery as u8;
    entry.entry_flags = entry_flags::PERSISTENT_CONNECTIONS.into();
    // Another port would tell the same, unless one tells what depends on the address the host came through.
    let names = |port| visible(target, host, port).into_iter().map(|s| s.index).collect::<Vec<_>>();
    let same = |port| names(port) == names(here);
    if target.ports.iter().all(|port| !port.address.ip().is_unspecified() && same(port)) {
        entry.entry_flags = (entry_flags::PERSISTENT_CONNECTIONS | entry_flags::DUPLICATE_INFORMATION).into();
    }
    Some(entry)
}

/// A subsystem on a port; none where the port cannot be told an address this host could use.
fn entry(subsystem: &Subsystem, port: &BoundPort, reached: SocketAddr) -> Option<DiscoveryEntry> {
    let mut address = port.address.ip();
    if address.is_unspecified() {
        // A port on all addresses has none of its own: the host learns the one it came through.
        address = reached.ip().to_canonical();
        if address.is_ipv6() && port.address.is_ipv4() {
            return None;
        }
    }
    let mut entry = located(port.transport, SocketAddr::new(address, port.address.port()));
    entry.subsystem_type = SubsystemType::Nvm as u8;
    entry.transport_requirements = transport_requirements::SECURE_CHANNEL_NOT_REQUIRED
        | transport_requirements::SQ_FLOW_CONTROL_OPTIONAL;
    entry.port_id = port.id.into();
    entry.set_subsystem_nqn(&subsystem.nqn);
    Some(entry)
}

/// Another discovery service. What it requires is not known here, and it speaks for itself about persistent connections.
fn referral(to: &Referral) -> DiscoveryEntry {
    let mut entry = located(to.transport, to.address);
    entry.subsystem_type = SubsystemType::Referral as u8;
    entry.transport_requirements = transport_requirements::SECURE_CHANNEL_UNSPECIFIED;
    entry.port_id = to.port_id.into();
    entry.set_subsystem_nqn(&to.nqn);
    entry
}

/// An entry for something at an address.
fn located(transport: TransportKind, address: SocketAddr) -> DiscoveryEntry {
    let mut entry = DiscoveryEntry::new_zeroed();
    entry.transport_type = match transport {
        TransportKind::Tcp => TransportType::Tcp,
        TransportKind::Rdma => TransportType::Rdma,
    } as u8;
    if transport == TransportKind::Rdma {
        entry.set_rdma();
    }
    entry.address_family = match address.ip() {
        IpAddr::V4(_) => AddressFamily::Ipv4,
        IpAddr::V6(_) => AddressFamily::Ipv6,
    } as u8;
    entry.controller_id = DYNAMIC_CONTROLLER.into();
    entry.admin_queue_size = ADMIN_QUEUE_SIZE.into();
    entry.set_service(&address.port().to_string());
    entry.set_address(&address.ip().to_string());
    entry
}

/// Stands for everything the log depends on: a different number means that some host would read something else. The same
/// number is good for nothing but to see that nothing changed, over a restart.
pub fn fingerprint(target: &Target) -> u64 {
    let mut hasher = DefaultHasher::new();
    let subsystems: Vec<_> = target.subsystems.iter().map(|s| (&s.nqn, &s.hosts, &s.ports)).collect();
    format!("{:?}", (&target.ports, &target.discovery.nqn, &target.referrals, subsystems)).hash(&mut hasher);
    hasher.finish()
}
