//! The discovery controller: where the subsystems are that a host may use.
//!
//! Base specification, "Discovery Controller" and "Discovery log page". A host gets what it may connect to, on every port
//! that offers it; the first entry is the discovery subsystem itself.

use crate::{
    admin::Answer,
    config::TransportKind,
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
use std::net::{IpAddr, SocketAddr};
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
    if let Some(port) = target.ports.iter().find(|p| p.id == port_id) {
        entries.extend(entry(&target.discovery, port, reached));
    }
    for subsystem in target.subsystems.iter().filter(|s| s.admits(host)) {
        let ports = target.ports.iter().filter(|p| subsystem.ports.contains(&p.id));
        entries.extend(ports.filter_map(|port| entry(subsystem, port, reached)));
    }
    let mut header = DiscoveryHeader::new_zeroed();
    header.generation = generation.into();
    header.record_count = (entries.len() as u64).into();
    let mut page = header.as_bytes().to_vec();
    entries.iter().for_each(|entry| page.extend_from_slice(entry.as_bytes()));
    page
}

/// A subsystem on a port; none where the port cannot be told an address this host could use.
fn entry(subsystem: &Subsystem, port: &BoundPort, reached: SocketAddr) -> Option<DiscoveryEntry> {
    let mut entry = DiscoveryEntry::new_zeroed();
    let mut address = port.address.ip();
    if address.is_unspecified() {
        // A port on all addresses has none of its own: the host learns the one it came through.
        address = reached.ip().to_canonical();
        if address.is_ipv6() && port.address.is_ipv4() {
            return None;
        }
    }
    entry.transport_type = match port.transport {
        TransportKind::Tcp => TransportType::Tcp,
        TransportKind::Rdma => TransportType::Rdma,
    } as u8;
    if port.transport == TransportKind::Rdma {
        entry.set_rdma();
    }
    entry.address_family = match address {
        IpAddr::V4(_) => AddressFamily::Ipv4,
        IpAddr::V6(_) => AddressFamily::Ipv6,
    } as u8;
    let is_self = subsystem.nqn.is_discovery();
    entry.subsystem_type = if is_self { SubsystemType::CurrentDiscovery } else { SubsystemType::Nvm } as u8;
    entry.transport_requirements = transport_requirements::SECURE_CHANNEL_NOT_REQUIRED
        | transport_requirements::SQ_FLOW_CONTROL_OPTIONAL;
    entry.port_id = port.id.into();
    entry.controller_id = DYNAMIC_CONTROLLER.into();
    entry.admin_queue_size = ADMIN_QUEUE_SIZE.into();
    if is_self {
        entry.entry_flags = (entry_flags::DUPLICATE_INFORMATION | entry_flags::PERSISTENT_CONNECTIONS).into();
    }
    entry.set_service(&port.address.port().to_string());
    entry.set_address(&address.to_string());
    entry.set_subsystem_nqn(&subsystem.nqn);
    Some(entry)
}
