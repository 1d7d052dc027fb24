//! Queue pairs: accepting connections, placing them on a reactor, serving their slots, ending them.
//!
//! Generic over the transport: the choice is made once per connection, and each transport gets its own compiled copy of
//! the command path.

use crate::{
    admin,
    config::TransportKind,
    controller::Controller,
    events::EventRequests,
    fabrics::{self, Plan},
    io, keep_alive,
    local::{self, Ending, Local},
    metrics::RejectReason,
    namespace::NamespaceTable,
    retry_delay,
    target::BoundPort,
};
use nvme::{Cid, Completion, Cqe, Qid, Sqe, Status};
use reactor::{Data, Reactor};
use std::{
    cell::Cell,
    marker::PhantomData,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use transports::{
    CloseReason, Described, Disconnected, HandshakeError, HandshakeLimits, QueuePair as TransportQueuePair,
    QueueParameters, Slot, Transport,
};

/// After an accept that failed for want of something (descriptors, memory).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often, and after which time each, it is looked again whether a queue that is connected is free.
const IN_USE_LOOKS: u32 = 100;
const IN_USE_PAUSE: Duration = Duration::from_millis(10);

/// A queue pair in service.
pub struct QueuePair<Q> {
    /// Its transport's side.
    pub transport: Q,
    /// Its reactor's state.
    pub local: Rc<Local>,
    /// Whose queue it is.
    pub controller: Arc<Controller>,
    /// The subsystem's namespaces.
    pub namespaces: Rc<NamespaceTable>,
    /// Its number in the controller.
    pub qid: Qid,
    /// Asynchronous Event Requests that wait; only on the admin queue.
    pub event_requests: EventRequests,
    /// Abort commands that run; only on the admin queue.
    pub aborts: Cell<u8>,
    /// Where the halves of fused commands meet; only on I/O queues.
    pub fused: io::fused::Meetings,
    id: u64,
    sq_entries: u32,
    sq_head: Cell<u32>,
    sq_flow_control: bool,
    activity: Arc<AtomicU64>,
    transport_kind: TransportKind,
    live_slots: Cell<u16>,
}

impl<Q: TransportQueuePair> QueuePair<Q> {
    /// Counts a sign of life for keep alive: a command that was received or completed. Completions count, because a host may
    /// need longer for the data of those it has sent than for its timeout.
    fn note_activity(&self) {
        self.activity.store(self.activity.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// A command was received: the host lives.
    pub fn begin(&self) -> Instant {
        self.note_activity();
        self.local.reactor.now()
    }

    /// Answers a command, in the one place where a completion becomes a completion queue entry.
    pub fn respond<'a>(
        &'a self,
        token: Q::Token,
        sqe: &Sqe,
        begun: Instant,
        mut completion: Completion,
        data: Data,
    ) -> impl Future<Output = Result<(), Disconnected>> + use<'a, Q> {
        self.note_activity();
        let metrics = &self.local.metrics;
        let opcode = nvme::opcode::metric_index(self.qid.is_admin(), sqe);
        let latency = self.local.reactor.recent_now().saturating_duration_since(begun);
        metrics.command(opcode, self.transport_kind, latency.as_nanos() as u64);
        if !completion.status.is_success() {
            completion.status = retry_delay::told(&self.controller, completion.status);
            metrics.failures.add(opcode as u8, completion.status.code());
            self.controller.errors.record(self.transport_kind, self.qid, sqe, completion);
        }
        let cqe = Cqe::new(completion, self.next_sq_head(), self.qid, sqe.cid());
        self.transport.respond(token, cqe, data)
    }

    /// The submission queue's head after one more command; zero when the host does without (fabrics: "SQ flow control").
    fn next_sq_head(&self) -> u16 {
        if !self.sq_flow_control {
            return 0;
        }
        let head = (self.sq_head.get() + 1) % self.sq_entries;
        self.sq_head.set(head);
        head as u16
    }

    /// A slot has ended; with the last one the queue pair does.
    pub fn slot_ended(self: &Rc<Self>) {
        self.live_slots.set(self.live_slots.get() - 1);
        if self.live_slots.get() == 0 {
            let pair = self.clone();
            self.local.reactor.spawn(async move { pair.finish().await });
        }
    }

    async fn finish(&self) {
        let reason = self.transport.finish().await;
        self.local.remove_queue_pair(self.id);
        self.local.metrics.connections_closed.add(1);
        self.local.target.release_connection();
        self.controller.unregister(self.id, self.qid);
        let (controller, host) = (self.controller.id, &self.controller.host_nqn);
        match reason {
            CloseReason::Protocol(error, _) => self.local.metrics.protocol_error(error),
            CloseReason::HostTerminated { error, .. } => self.local.metrics.host_termination(error),
            CloseReason::Stalled => {}
            _ => {
                tracing::info!(qid = self.qid.0, %controller, %host, "queue pair ended: {reason}");
                return;
            }
        }
        tracing::warn!(qid = self.qid.0, %controller, %host, "queue pair ended: {reason}");
    }
}

impl<Q: TransportQueuePair> Ending for QueuePair<Q> {
    fn close(&self, reason: CloseReason) {
        self.transport.close(reason);
    }

    fn drain(&self) {
        // The controller ends with its admin queue pair, so that goes last: see `Controller::unregister`.
        if !self.qid.is_admin() || self.controller.io_queue_pairs() == 0 {
            self.transport.drain();
        }
    }

    fn events_raised(&self) {
        self.event_requests.notify();
    }

    fn abort(&self, cid: Cid) -> bool {
        self.transport.abort(cid)
    }
}

/// Accepts the connections of a port until the target stops.
pub async fn serve_port<T: Transport>(local: Rc<Local>, port: Arc<BoundPort>, listening: T::Port) {
    let mut incoming = T::incoming(listening, &local.reactor);
    loop {
        let accepted = {
            let accept = std::pin::pin!(T::accept(&mut incoming));
            let stopping = std::pin::pin!(local.stopping());
            match futures::future::select(accept, stopping).await {
                futures::future::Either::Left((accepted, _)) => accepted,
                futures::future::Either::Right(_) => return,
            }
        };
        match accepted {
            Ok(connection) => admit::<T>(&local, &port, connection),
            Err(error) => {
                tracing::warn!(port = port.id, %error, "cannot accept a connection; trying again");
                local.reactor.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn admit<T: Transport>(local: &Rc<Local>, port: &Arc<BoundPort>, connection: T::Connection) {
    local.metrics.connections_accepted.add(1);
    if !local.target.admit_connection() {
        local.metrics.reject(RejectReason::Limit);
        local.metrics.connections_closed.add(1);
        let limit = local.target.limits.connections;
        tracing::warn!(port = port.id, limit, "connection refused: `limits.connections` is reached");
        return;
    }
    if !T::PLACED_AT_ACCEPT {
        return begin::<T>(local.clone(), port.clone(), connection);
    }
    let (target, port) = (local.target.clone(), port.clone());
    let placed = target.place().filter(|_| !target.is_stopping());
    let Some(mailbox) = placed else { return target.release_connection() };
    mailbox.send(move |_| match local::current().filter(|local| !local.is_stopping()) {
        Some(local) => begin::<T>(local, port, connection),
        None => target.release_connection(),
    });
}

/// Starts the handshake, on the reactor where it takes place.
fn begin<T: Transport>(local: Rc<Local>, port: Arc<BoundPort>, connection: T::Connection) {
    local.greeting(1);
    local.reactor.clone().spawn(async move {
        greet::<T>(&local, &port, connection).await;
        local.greeting(-1);
    });
}

/// Handshake and Connect, then off to the queue pair's reactor.
async fn greet<T: Transport>(local: &Rc<Local>, port: &BoundPort, mut connection: T::Connection) {
    let endpoints = T::endpoints(&connection);
    let limits = HandshakeLimits {
        time: local.target.limits.handshake_timeout,
        max_host_data: local.target.limits.max_transfer_bytes,
        in_capsule: local.target.limits.in_capsule_bytes as usize,
        admin_entries: fabrics::max_entries(&local.target, Qid::ADMIN),
        io_entries: local.target.limits.queue_depth.into(),
        io_queues: local.target.limits.io_queues,
    };
    let transport = local.transport::<T>();
    let gone = |reason: RejectReason| {
        local.metrics.reject(reason);
        local.metrics.connections_closed.add(1);
        local.target.release_connection();
    };
    let first = match T::handshake(&mut connection, &transport, &local.reactor, limits).await {
        Ok(first) => first,
        Err(error) => {
            let timeout = matches!(error, HandshakeError::Timeout);
            gone(if timeout { RejectReason::Timeout } else { RejectReason::Handshake });
            let (peer, port) = (endpoints.peer, port.id);
            match error {
                // Port scanners and health checks come and go; that is no news.
                HandshakeError::Io(_) => tracing::debug!(%peer, port, "{error}"),
                HandshakeError::Timeout => tracing::info!(%peer, port, "{error}"),
                HandshakeError::Stranger(kind, _) => {
                    local.metrics.protocol_error(kind);
                    tracing::info!(%peer, port, "{error}");
                }
                HandshakeError::Protocol(kind, _) => {
                    local.metrics.protocol_error(kind);
                    tracing::warn!(%peer, port, "{error}");
                }
            }
            return;
        }
    };
    let here = T::PLACED_AT_ACCEPT.then(|| local.reactor.mailbox());
    let decide = || fabrics::connect(&local.target, port, endpoints, &first, here.clone());
    let mut decision = decide();
    // A host that comes back at once may be faster than the end of its old connection.
    for _ in 0..IN_USE_LOOKS {
        if !decision.as_ref().is_err_and(|refusal| refusal.in_use) {
            break;
        }
        local.reactor.sleep(IN_USE_PAUSE).await;
        decision = decide();
    }
    match decision {
        Ok(plan) => {
            let mailbox = plan.mailbox.clone();
            let message = Installation::<T> { connection, plan, transport: PhantomData };
            mailbox.send(move |reactor| message.install(reactor));
        }
        Err(refusal) => {
            tracing::warn!(peer = %endpoints.peer, port = port.id, "Connect refused: {}", refusal.why);
            gone(refusal.reason);
            let cqe = Cqe::new(refusal.completion, 1, Qid::ADMIN, first.sqe.cid());
            T::refuse(connection, &transport, &local.reactor, cqe).await;
        }
    }
}

/// A connection on its way to its reactor.
struct Installation<T: Transport> {
    connection: T::Connection,
    plan: Plan,
    transport: PhantomData<fn() -> T>,
}

impl<T: Transport> Installation<T> {
    fn install(self, reactor: &Reactor) {
        let plan = self.plan;
        let controller = plan.controller.clone();
        let (id, qid) = (plan.id, plan.parameters.qid);
        let target = plan.target.clone();
        let failed = |what: &str| {
            tracing::warn!(qid = qid.0, controller = %controller.id, "queue pair not taken into service: {what}");
            controller.unregister(id, qid);
            target.release_connection();
        };
        let Some(local) = local::current() else { return failed("the target is stopping") };
        // The controller may have ended while the connection was on its way.
        if local.is_stopping() || !controller.is_registered(id) {
            local.metrics.connections_closed.add(1);
            return failed("its controller has ended");
        }
        let namespaces = match local.namespaces(&controller.subsystem) {
            Ok(namespaces) => namespaces,
            Err(error) => {
                local.metrics.connections_closed.add(1);
                return failed(&error.to_string());
            }
        };
        match T::install(self.connection, &local.transport::<T>(), reactor, plan.parameters, plan.connected) {
            Ok(transport) => serve(local, plan, transport, namespaces, transport_kind::<T>()),
            Err(error) => {
                local.metrics.connections_closed.add(1);
                failed(&error.to_string());
            }
        }
    }
}

fn transport_kind<T: Transport>() -> TransportKind {
    if T::NAME == "rdma" { TransportKind::Rdma } else { TransportKind::Tcp }
}

fn serve<Q: TransportQueuePair>(
    local: Rc<Local>,
    plan: Plan,
    transport: Q,
    namespaces: Rc<NamespaceTable>,
    transport_kind: TransportKind,
) {
    let QueueParameters { qid, slots, sq_flow_control, .. } = plan.parameters;
    let pair = Rc::new(QueuePair {
        transport,
        local: local.clone(),
        controller: plan.controller,
        namespaces,
        qid,
        event_requests: EventRequests::default(),
        aborts: Cell::new(0),
        fused: io::fused::Meetings::default(),
        id: plan.id,
        sq_entries: plan.sq_entries,
        // Connect has taken the first entry.
        sq_head: Cell::new(1),
        sq_flow_control,
        activity: plan.activity,
        transport_kind,
        live_slots: Cell::new(slots),
    });
    let (controller, host) = (pair.controller.id, &pair.controller.host_nqn);
    tracing::info!(qid = qid.0, %controller, %host, entries = pair.sq_entries, "queue pair connected");
    local.add_queue_pair(plan.id, pair.clone());
    let slots = 0..slots;
    if qid.is_admin() {
        local.reactor.spawn(keep_alive::watch(pair.clone()));
        local.reactor.spawn_slots(slots.map(|slot: Slot| admin::serve(pair.clone(), slot)));
    } else {
        local.reactor.spawn_slots(slots.map(|slot: Slot| io::serve(pair.clone(), slot)));
    }
}

/// Whether what a command's data descriptor describes is what the command transfers; `arrived` when data came in its capsule.
///
/// Base specification, "SGL descriptors"; which kinds there are is each transport's rule.
pub fn check_transfer(described: Described, len: u64, to_host: bool, arrived: bool) -> Result<(), Status> {
    if described.in_capsule && to_host {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let missing = described.in_capsule && !arrived && len > 0;
    if described.len == len && !missing { Ok(()) } else { Err(Status::DATA_SGL_LENGTH_INVALID.dnr()) }
}
