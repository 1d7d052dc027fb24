//! Fabrics commands: Connect and the properties.
//!
//! Base specification, "Fabrics Command Set" and "Controller Properties". Which status a host may try again after (DNR
//! clear) decides whether it comes back by itself: conditions that heal never set it.

use crate::{
    controller::{Controller, Effect, FIRST_CLAIM, NewController, RegisterError, Registered},
    io::Failure,
    metrics::RejectReason,
    queue_pair::QueuePair,
    subsystem::{Subsystem, SubsystemKind},
    target::{BoundPort, Target},
};
use backends::BackendQueue;
use nvme::{
    Completion, ControllerId, Cqe, FabricsType, IoCommand, IoOpcode, Nqn, Nsid, Qid, Sqe, Status,
    connect::{ConnectCommand, ConnectData, InvalidParameter, offset},
    property::{self, Capabilities, Configuration, PropertyGet, PropertySet},
};
use reactor::Mailbox;
use std::{
    rc::Rc,
    sync::{Arc, atomic::AtomicU64},
};
use transports::{Announced, Endpoints, FirstCapsule, QueuePair as TransportQueuePair, QueueParameters};

/// The version of the specification controllers follow (VS): 2.0.
pub const VERSION: u32 = property::VERSION_2_0;
/// Entries an admin queue may have: enough for any host, whatever the depth of I/O queues.
const ADMIN_ENTRIES: u32 = 128;
/// Slots beyond the commands a host may have outstanding: it may send the next before our last response has left.
const SLOT_MARGIN: u16 = 1;

/// A queue pair to be installed.
pub struct Plan {
    /// What exists.
    pub target: Arc<Target>,
    /// Whose queue it will be.
    pub controller: Arc<Controller>,
    /// Its number in this process.
    pub id: u64,
    /// The reactor it goes to.
    pub mailbox: Mailbox,
    /// Its activity counter.
    pub activity: Arc<AtomicU64>,
    /// Entries of its submission queue.
    pub sq_entries: u32,
    /// What its transport needs to know.
    pub parameters: QueueParameters,
    /// The answer to Connect.
    pub connected: Cqe,
}

/// A Connect that is refused.
pub struct Refusal {
    /// What the host is told.
    pub completion: Completion,
    /// How it is counted.
    pub reason: RejectReason,
    /// For the log.
    pub why: String,
    /// The queue it asks for has a connection, which may be about to end.
    pub in_use: bool,
}

fn refuse(completion: Completion, reason: RejectReason, why: impl Into<String>) -> Refusal {
    Refusal { completion, reason, why: why.into(), in_use: false }
}

/// There is no room for another queue pair; there may be later.
fn full() -> Refusal {
    let status = Status::CONNECT_CONTROLLER_BUSY;
    refuse(status.into(), RejectReason::Limit, "`limits.connections` is reached")
}

/// "Connect Invalid Parameters", with where the parameter is.
fn invalid(result: u64, reason: RejectReason, why: impl Into<String>) -> Refusal {
    refuse(Completion::new(Status::CONNECT_INVALID_PARAMETER.dnr(), result), reason, why)
}

/// Decides about the first command of a connection.
pub fn connect(
    target: &Arc<Target>,
    port: &BoundPort,
    endpoints: Endpoints,
    first: &FirstCapsule,
    here: Option<Mailbox>,
) -> Result<Plan, Refusal> {
    let sqe = &first.sqe;
    let is_connect =
        sqe.is_fabrics() && FabricsType::from_u8(sqe.fabrics_type()) == Some(FabricsType::Connect);
    if !is_connect {
        let status = Status::COMMAND_SEQUENCE_ERROR.dnr();
        return Err(refuse(status.into(), RejectReason::Handshake, "the first command is not Connect"));
    }
    let Some(data) = ConnectData::parse(&first.data).filter(|_| sqe.uses_sgl()) else {
        let status = Status::DATA_SGL_LENGTH_INVALID.dnr();
        let why = "its data is not 1024 bytes where this transport takes them from";
        return Err(refuse(status.into(), RejectReason::InvalidConnect, why));
    };
    let command = ConnectCommand::parse(sqe);
    if command.record_format != 0 {
        let status = Status::CONNECT_INCOMPATIBLE_FORMAT.dnr();
        return Err(refuse(status.into(), RejectReason::InvalidConnect, "unknown record format"));
    }
    agrees(&command, first.announced)?;
    let (subsystem, host) = who(target, port, &data)?;
    let max_entries = max_entries(target, command.qid);
    if command.sq_entries < 2 || command.sq_entries > max_entries {
        let why = format!("queue of {} entries, allowed are 2 to {max_entries}", command.sq_entries);
        return Err(invalid(InvalidParameter::in_command(offset::SQSIZE), RejectReason::InvalidConnect, why));
    }
    let controller = if command.qid.is_admin() {
        new_controller(target, subsystem, host, &data, &command, port, endpoints)?
    } else {
        io_controller(target, subsystem, &host, &data, &command)?
    };
    plan(target, controller, &command, sqe, here)
}

/// Entries a queue may have.
pub fn max_entries(target: &Target, qid: Qid) -> u32 {
    let depth = u32::from(target.limits.queue_depth);
    if qid.is_admin() { ADMIN_ENTRIES.max(depth) } else { depth }
}

/// Connect must name the queue that the connection was made for.
fn agrees(command: &ConnectCommand, announced: Option<Announced>) -> Result<(), Refusal> {
    let Some(Announced { qid, entries }) = announced else { return Ok(()) };
    let (at, why) = if command.qid != qid {
        (offset::QID, format!("it names queue {}, the connection was made for queue {qid}", command.qid))
    } else if command.sq_entries > entries {
        (offset::SQSIZE, format!("{} entries, the connection was made for {entries}", command.sq_entries))
    } else {
        return Ok(());
    };
    Err(invalid(InvalidParameter::in_command(at), RejectReason::InvalidConnect, why))
}

/// The subsystem and host that a Connect names.
fn who<'a>(
    target: &'a Target,
    port: &BoundPort,
    data: &ConnectData,
) -> Result<(&'a Arc<Subsystem>, Nqn), Refusal> {
    let subsystem_at = InvalidParameter::in_data(offset::SUBNQN);
    let name = data.subsystem_nqn.as_ref().map_err(|error| {
        invalid(subsystem_at, RejectReason::InvalidConnect, format!("subsystem NQN: {error}"))
    })?;
    let host_at = InvalidParameter::in_data(offset::HOSTNQN);
    let host = data
        .host_nqn
        .clone()
        .map_err(|error| invalid(host_at, RejectReason::InvalidConnect, format!("host NQN: {error}")))?;
    let subsystem = target.subsystem(name, port.id).ok_or_else(|| {
        invalid(
            subsystem_at,
            RejectReason::UnknownSubsystem,
            format!("port {} has no subsystem {name}", port.id),
        )
    })?;
    if !subsystem.admits(&host) {
        let completion = Completion::new(Status::CONNECT_INVALID_HOST.dnr(), host_at);
        let why = format!("{} does not admit host {host}", subsystem.nqn);
        return Err(refuse(completion, RejectReason::HostNotAllowed, why));
    }
    Ok((subsystem, host))
}

fn new_controller(
    target: &Target,
    subsystem: &Arc<Subsystem>,
    host_nqn: Nqn,
    data: &ConnectData,
    command: &ConnectCommand,
    port: &BoundPort,
    endpoints: Endpoints,
) -> Result<Arc<Controller>, Refusal> {
    if data.controller_id != ControllerId::DYNAMIC && data.controller_id != ControllerId::STATIC_ANY {
        let why = format!("controller {} asked for, controllers are dynamic", data.controller_id);
        return Err(invalid(InvalidParameter::in_data(offset::CNTLID), RejectReason::InvalidConnect, why));
    }
    let discovery = subsystem.kind == SubsystemKind::Discovery;
    let claim = target.claims.claim(if discovery { 1 } else { FIRST_CLAIM }).ok_or_else(full)?;
    let new = NewController {
        host_nqn,
        host_id: data.host_id,
        local_address: endpoints.local,
        port_id: port.id,
        keep_alive_ms: command.keep_alive_ms,
        claim,
    };
    subsystem.create_controller(new).ok_or_else(|| {
        refuse(Status::CONNECT_CONTROLLER_BUSY.into(), RejectReason::Busy, "no controller identifier is free")
    })
}

/// The controller an I/O queue wants to join. A controller that has just ended heals: the host connects anew, so its
/// refusal must not say "do not retry".
fn io_controller(
    target: &Target,
    subsystem: &Arc<Subsystem>,
    host: &Nqn,
    data: &ConnectData,
    command: &ConnectCommand,
) -> Result<Arc<Controller>, Refusal> {
    if subsystem.kind == SubsystemKind::Discovery || command.qid.0 > target.limits.io_queues {
        let why = format!("queue {}: the controller has fewer I/O queues", command.qid);
        return Err(invalid(InvalidParameter::in_command(offset::QID), RejectReason::InvalidConnect, why));
    }
    let controller_at = InvalidParameter::in_data(offset::CNTLID);
    let controller = subsystem.controller(data.controller_id).ok_or_else(|| {
        let completion = Completion::new(Status::CONNECT_INVALID_PARAMETER, controller_at);
        refuse(
            completion,
            RejectReason::InvalidConnect,
            format!("there is no controller {}", data.controller_id),
        )
    })?;
    if controller.host_nqn != *host {
        let why = format!("controller {} belongs to another host", controller.id);
        return Err(invalid(InvalidParameter::in_data(offset::HOSTNQN), RejectReason::InvalidConnect, why));
    }
    if controller.host_id != data.host_id {
        let why = format!("the host identifier is not the one of controller {}'s admin queue", controller.id);
        return Err(invalid(InvalidParameter::in_data(offset::HOSTID), RejectReason::InvalidConnect, why));
    }
    Ok(controller)
}

fn plan(
    target: &Arc<Target>,
    controller: Arc<Controller>,
    command: &ConnectCommand,
    sqe: &Sqe,
    here: Option<Mailbox>,
) -> Result<Plan, Refusal> {
    let busy =
        || refuse(Status::CONNECT_CONTROLLER_BUSY.into(), RejectReason::Busy, "the target is stopping");
    let mailbox = here.or_else(|| target.place()).filter(|_| !target.is_stopping()).ok_or_else(busy)?;
    let (id, activity) = (target.next_queue_pair(), Arc::new(AtomicU64::new(0)));
    let pair = Registered { qid: command.qid, id, mailbox: mailbox.clone(), activity: activity.clone() };
    controller.register(pair).map_err(|error| {
        let at = InvalidParameter::in_command(offset::QID);
        match error {
            RegisterError::Ended => {
                let completion = Completion::new(Status::CONNECT_INVALID_PARAMETER, at);
                refuse(completion, RejectReason::Busy, "its controller has ended")
            }
            RegisterError::NotEnabled => {
                invalid(at, RejectReason::InvalidConnect, "its controller is not enabled")
            }
            RegisterError::InUse => {
                let status = Status::COMMAND_SEQUENCE_ERROR;
                let why = format!("queue {} is connected", command.qid);
                Refusal { in_use: true, ..refuse(status.into(), RejectReason::InvalidConnect, why) }
            }
            RegisterError::NotGranted => {
                let why = format!("queue {}: the controller was granted fewer I/O queues", command.qid);
                invalid(at, RejectReason::InvalidConnect, why)
            }
            RegisterError::Full => full(),
        }
    })?;
    let sq_flow_control = !command.sq_flow_control_disabled;
    let completion = Completion::success(controller.id.0.into());
    let head = if sq_flow_control { 1 % command.sq_entries as u16 } else { u16::MAX };
    Ok(Plan {
        target: target.clone(),
        id,
        mailbox,
        activity,
        sq_entries: command.sq_entries,
        parameters: QueueParameters {
            qid: command.qid,
            slots: command.sq_entries as u16 + SLOT_MARGIN,
            sq_entries: command.sq_entries,
            in_capsule: target.limits.in_capsule_bytes as usize,
            sq_flow_control,
            stall_time: target.limits.data_timeout,
        },
        connected: Cqe::new(completion, head, command.qid, sqe.cid()),
        controller,
    })
}

/// A Fabrics command on a connected I/O queue: Connect is over, and the rest belongs to the admin queue.
pub fn on_io_queue(sqe: &Sqe) -> Status {
    match FabricsType::from_u8(sqe.fabrics_type()) {
        Some(FabricsType::Connect) => Status::COMMAND_SEQUENCE_ERROR.dnr(),
        _ => Status::INVALID_OPCODE.dnr(),
    }
}

/// A Fabrics command on a connected admin queue.
pub fn on_admin_queue<Q: TransportQueuePair>(
    pair: &Rc<QueuePair<Q>>,
    sqe: &Sqe,
) -> Result<Completion, Failure> {
    match FabricsType::from_u8(sqe.fabrics_type()) {
        Some(FabricsType::PropertyGet) => {
            let value = get_property(pair, PropertyGet::parse(sqe)?)?;
            Ok(Completion::success(value))
        }
        Some(FabricsType::PropertySet) => set_property(pair, PropertySet::parse(sqe)?),
        Some(FabricsType::Connect) => Err(Status::COMMAND_SEQUENCE_ERROR.dnr().into()),
        _ => Err(Status::INVALID_OPCODE.dnr().into()),
    }
}

/// Controller capabilities (CAP).
fn capabilities(target: &Target) -> Capabilities {
    Capabilities { max_queue_entries: target.limits.queue_depth.into(), ..Capabilities::default() }
}

fn get_property<Q: TransportQueuePair>(pair: &QueuePair<Q>, get: PropertyGet) -> Result<u64, Status> {
    use property::PropertySize::{Eight, Four};
    let controller = &pair.controller;
    let value = match (get.offset, get.size) {
        (property::CAP, Eight) => capabilities(&pair.local.target).encode(),
        // Either half of an 8-byte property may be read on its own.
        (property::CAP, Four) => capabilities(&pair.local.target).encode() & 0xffff_ffff,
        (0x04, Four) => capabilities(&pair.local.target).encode() >> 32,
        (property::VS, Four) => VERSION.into(),
        (property::CC, Four) => controller.configuration().0.into(),
        (property::CSTS, Four) => controller.status().encode().into(),
        _ => return Err(Status::INVALID_FIELD.dnr()),
    };
    Ok(value)
}

fn set_property<Q: TransportQueuePair>(
    pair: &Rc<QueuePair<Q>>,
    set: PropertySet,
) -> Result<Completion, Failure> {
    if set.offset != property::CC || set.size != property::PropertySize::Four {
        return Err(Status::INVALID_FIELD.dnr().into());
    }
    let controller = &pair.controller;
    match controller.configure(Configuration(set.value as u32)) {
        Effect::None => {}
        Effect::Reset => {
            // The queue lives, so that each of them is answered.
            pair.event_requests.abort_all();
            tracing::info!(controller = %controller.id, host = %controller.host_nqn, "controller reset")
        }
        Effect::Shutdown => {
            let pair = pair.clone();
            pair.local.reactor.clone().spawn(async move {
                flush_all(&pair).await;
                pair.controller.shut_down();
            });
        }
    }
    Ok(Completion::OK)
}

/// Brings what was written to stable storage before a shutdown is reported complete.
async fn flush_all<Q: TransportQueuePair>(pair: &QueuePair<Q>) {
    for namespace in pair.namespaces.iter().filter(|n| n.geometry().volatile_write_cache) {
        let sqe = Sqe::new(IoOpcode::Flush.code());
        let Ok(flush) = IoCommand::parse(&sqe) else { continue };
        let flush = IoCommand { nsid: Nsid::ALL, ..flush };
        let (completion, _) = namespace.queue.execute(&flush, None).await;
        if !completion.status.is_success() {
            let controller = pair.controller.id;
            tracing::error!(%controller, status = %completion.status, "flush before shutdown failed");
        }
    }
}
