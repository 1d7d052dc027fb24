//! Identify (admin command 06h) of an I/O controller: every field says what is true.
//!
//! Base specification, "Identify command"; NVM command set specification for the structures of its own.

mod lists;

use crate::{
    admin::{Answer, MAX_ABORTS},
    config::{Limits, MAX_NSID},
    controller::Controller,
    error_log,
    events::MAX_EVENT_REQUESTS,
    fabrics,
    io::{copy, fused},
    namespace::Namespace,
    persistent_event,
    queue_pair::QueuePair,
    retry_delay,
};
use backends::Topology;
use nvme::{
    Nsid, Sqe, Status,
    identify::{
        self, IDENTIFY_LEN, IdentifyCommand, IdentifyController, IdentifyNamespace,
        IdentifyNamespaceIndependent, LbaFormat, NamespaceDescriptors, attributes, cns, command_set,
        controller_type, deallocate, firmware_updates, fused_operations, independent_features,
        log_attributes, multipath, namespace_attributes, namespace_features, namespace_sharing,
        namespace_status, nvm_commands, sgl_support, volatile_write_cache, write_protection,
    },
};
use transports::{QueuePair as TransportQueuePair, SglSupport};

/// Keep alive granularity (KAS) in units of 100 ms: one second.
pub const KEEP_ALIVE_GRANULARITY: u16 = 10;

/// The controller that is asked, where CNTID names one.
const THIS_CONTROLLER: u16 = 0xffff;

/// Answers Identify.
pub fn execute<Q: TransportQueuePair>(pair: &QueuePair<Q>, sqe: &Sqe) -> Result<Answer, Status> {
    let command = IdentifyCommand::parse(sqe);
    let controller = &pair.controller;
    let subsystem = &controller.subsystem;
    let mut page = [0; IDENTIFY_LEN];
    match command.cns {
        cns::CONTROLLER => page.copy_from_slice(io_controller(pair).as_bytes()),
        cns::NAMESPACE => {
            if command.nsid == Nsid::ALL {
                return Err(Status::INVALID_NAMESPACE.dnr());
            }
            // An inactive namespace is all zero.
            if let Some(found) = subsystem.namespace(command.nsid) {
                page.copy_from_slice(namespace(found).as_bytes());
            }
        }
        cns::ACTIVE_NAMESPACES => lists::namespaces(controller, command.nsid, &mut page)?,
        cns::COMMAND_SET_ACTIVE_NAMESPACES if command.csi == command_set::NVM => {
            lists::namespaces(controller, command.nsid, &mut page)?
        }
        cns::NAMESPACE_DESCRIPTORS => {
            let found = known(controller, command.nsid)?;
            let mut descriptors = NamespaceDescriptors::new(&mut page);
            if found.nguid != [0; 16] {
                descriptors.nguid(found.nguid);
            }
            descriptors.uuid(found.uuid).command_set(command_set::NVM);
        }
        cns::COMMAND_SET_NAMESPACE if command.csi == command_set::NVM => {
            // No protection information: all zero, for a namespace that exists.
            known(controller, command.nsid)?;
        }
        // No limits but MDTS: all zero.
        cns::COMMAND_SET_CONTROLLER if command.csi == command_set::NVM => {}
        cns::NAMESPACE_INDEPENDENT => {
            let found = known(controller, command.nsid)?;
            page.copy_from_slice(independent(found).as_bytes());
        }
        cns::ATTACHED_CONTROLLERS | cns::CONTROLLERS => lists::controllers(controller, &command, &mut page)?,
        cns::COMMAND_SETS
            if command.controller_id == THIS_CONTROLLER || command.controller_id == controller.id.0 =>
        {
            identify::write_command_sets(&[command_set::NVM], &mut page)
        }
        _ => return Err(Status::INVALID_FIELD.dnr()),
    }
    Ok(Answer::whole(&page))
}

fn known(controller: &Controller, nsid: Nsid) -> Result<&Namespace, Status> {
    controller.subsystem.namespace(nsid).map(AsRef::as_ref).ok_or(Status::INVALID_NAMESPACE.dnr())
}

/// What controllers of either kind say of themselves.
pub fn common_controller<Q: TransportQueuePair>(pair: &QueuePair<Q>) -> IdentifyController {
    let (controller, limits) = (&pair.controller, &pair.local.target.limits);
    let subsystem = &controller.subsystem;
    let mut page = IdentifyController::new_zeroed();
    page.set_serial(&subsystem.serial);
    page.set_model(&subsystem.model);
    page.set_firmware(&subsystem.firmware);
    page.max_data_transfer_size = (limits.max_transfer_bytes / 4096).ilog2() as u8;
    page.controller_id = controller.id.0.into();
    page.version = fabrics::VERSION.into();
    page.optional_async_events = controller.offered_events().into();
    page.async_event_limit = MAX_EVENT_REQUESTS - 1;
    page.keep_alive_support = KEEP_ALIVE_GRANULARITY.into();
    page.max_outstanding_commands = limits.queue_depth.into();
    let keyed = if sgl_rules::<Q>(limits).keyed { sgl_support::KEYED } else { 0 };
    page.sgl_support = (sgl_support::BYTE_ALIGNED | sgl_support::OFFSET | keyed).into();
    page.attributes = (attributes::HOST_ID_128 | attributes::TRAFFIC_KEEP_ALIVE).into();
    page.set_subsystem_nqn(&subsystem.nqn);
    page
}

fn sgl_rules<Q: TransportQueuePair>(limits: &Limits) -> SglSupport {
    Q::sgl_support(limits.in_capsule_bytes as usize)
}

fn io_controller<Q: TransportQueuePair>(pair: &QueuePair<Q>) -> IdentifyController {
    let (controller, limits) = (&pair.controller, &pair.local.target.limits);
    let mut page = common_controller(pair);
    page.multipath = multipath::MULTIPLE_PORTS | multipath::MULTIPLE_CONTROLLERS;
    page.controller_type = controller_type::IO;
    let [first, second, third] = retry_delay::DELAYS;
    page.command_retry_delay_1 = first.into();
    page.command_retry_delay_2 = second.into();
    page.command_retry_delay_3 = third.into();
    page.abort_limit = MAX_ABORTS - 1;
    page.firmware_updates = firmware_updates::SLOT_1_READ_ONLY | firmware_updates::ONE_SLOT;
    page.log_page_attributes = log_attributes::SMART_PER_NAMESPACE
        | log_attributes::EFFECTS
        | log_attributes::EXTENDED_DATA
        | log_attributes::PERSISTENT_EVENT
        | log_attributes::SUPPORTED_PAGES;
    page.persistent_event_log_size = persistent_event::SIZE_UNITS.into();
    page.error_log_entries = (error_log::ENTRIES - 1) as u8;
    page.sqe_size = 0x66;
    page.cqe_size = 0x44;
    page.namespace_count = MAX_NSID.into();
    page.optional_nvm_commands = (nvm_commands::COMPARE
        | nvm_commands::DATASET_MANAGEMENT
        | nvm_commands::WRITE_ZEROES
        | nvm_commands::VERIFY
        | nvm_commands::COPY
        | nvm_commands::SAVE_SELECT
        | nvm_commands::TIMESTAMP)
        .into();
    page.fused_operations = fused_operations::COMPARE_AND_WRITE.into();
    page.atomic_compare_write_unit = (fused::MAX_BLOCKS as u16 - 1).into();
    page.write_protection = if controller.subsystem.can_protect { write_protection::SUPPORTED } else { 0 };
    page.copy_formats = (1 << 0 | 1 << 1).into();
    page.max_namespaces = MAX_NSID.into();
    let cached =
        if controller.subsystem.has_volatile_write_cache() { volatile_write_cache::PRESENT } else { 0 };
    page.volatile_write_cache = volatile_write_cache::FLUSH_BROADCAST_UNSUPPORTED | cached;
    page.io_command_capsule_size = ((64 + limits.in_capsule_bytes) / 16).into();
    page.io_response_capsule_size = 1.into();
    page.max_sgl_descriptors = sgl_rules::<Q>(limits).max_descriptors;
    page
}

fn namespace(namespace: &Namespace) -> IdentifyNamespace {
    let geometry = namespace.geometry();
    let mut page = IdentifyNamespace::new_zeroed();
    page.size = geometry.lba_count.into();
    page.capacity = geometry.lba_count.into();
    page.utilization = namespace.used_blocks().into();
    page.sharing = namespace_sharing::SHARED;
    page.max_copy_range_length = copy::max_range_blocks(geometry.lba_size).into();
    page.max_copy_length = copy::max_blocks(geometry.lba_size).into();
    page.max_copy_ranges = (copy::MAX_RANGES - 1) as u8;
    let description = namespace.description();
    if description.deallocated_reads_zeroes {
        page.deallocate_features = deallocate::READS_ZEROS | deallocate::WRITE_ZEROES;
    }
    if description.thin {
        page.features |= namespace_features::THIN;
    }
    if let Some(topology) = description.topology {
        describe(topology, &mut page);
    }
    page.nguid = namespace.nguid;
    page.attributes = if namespace.is_protected() { namespace_attributes::WRITE_PROTECTED } else { 0 };
    page.lba_formats[0] = LbaFormat {
        metadata_size: 0.into(),
        lba_data_size: geometry.lba_size.ilog2() as u8,
        relative_performance: 0,
    };
    page
}

/// The accesses a medium likes, 0's based.
fn describe(topology: Topology, page: &mut IdentifyNamespace) {
    let zero_based = |blocks: u32| (blocks - 1) as u16;
    page.features |= namespace_features::OPTIMAL_PERFORMANCE;
    page.preferred_write_granularity = zero_based(topology.write_granularity).into();
    page.preferred_write_alignment = zero_based(topology.write_granularity).into();
    page.preferred_deallocate_granularity = zero_based(topology.deallocate_granularity).into();
    page.preferred_deallocate_alignment = zero_based(topology.deallocate_granularity).into();
    page.optimal_write_size = zero_based(topology.optimal_write).into();
    if topology.atomic_write > 1 {
        // Only what is aligned is atomic: it ends at a boundary of the same size.
        page.features |= namespace_features::ATOMICS;
        page.atomic_write_unit = zero_based(topology.atomic_write).into();
        page.atomic_write_unit_power_fail = zero_based(topology.atomic_write).into();
        page.atomic_boundary_size = zero_based(topology.atomic_write).into();
        page.atomic_boundary_size_power_fail = zero_based(topology.atomic_write).into();
    }
}

fn independent(namespace: &Namespace) -> IdentifyNamespaceIndependent {
    let mut page = IdentifyNamespaceIndependent::new_zeroed();
    let cached = namespace.geometry().volatile_write_cache;
    page.features = if cached { 0 } else { independent_features::NO_WRITE_CACHE };
    if namespace.description().rotational {
        page.features |= independent_features::ROTATIONAL;
    }
    page.sharing = namespace_sharing::SHARED;
    page.attributes = if namespace.is_protected() { namespace_attributes::WRITE_PROTECTED } else { 0 };
    page.status = namespace_status::READY;
    page
}
