//! A controller: its properties, its queue pairs, its end.
//!
//! A controller is shared by the reactors its queue pairs live on. Its lock is taken when something changes (a queue pair
//! comes or goes, a property or feature is set), never on the way of an I/O command.

use crate::claims::Claim;
use crate::error_log::ErrorLog;
use crate::events::{self, Events};
use crate::features::FeatureValues;
use crate::local;
use crate::persistent_event;
use crate::subsystem::{Subsystem, SubsystemKind};
use nvme::{
    ControllerId, HostId, Nqn, Nsid, Qid,
    features::AsyncEvent,
    log_page::EventPlace,
    property::{Configuration, ControllerStatus, ShutdownStatus},
};
use reactor::Mailbox;
use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};
use transports::CloseReason;

/// What a new controller has a claim to: its admin queue and one I/O queue, the fewest that can be granted.
pub const FIRST_CLAIM: usize = 2;

/// What a Connect to the admin queue brings.
pub struct NewController {
    /// The host's name.
    pub host_nqn: Nqn,
    /// The host's identifier.
    pub host_id: HostId,
    /// Our address that it connected to.
    pub local_address: SocketAddr,
    /// The port it connected to.
    pub port_id: u16,
    /// Keep alive timeout (KATO) in milliseconds; 0 for none.
    pub keep_alive_ms: u32,
    /// To its admin queue, and to one I/O queue if it can have any.
    pub claim: Claim,
}

/// A queue pair of a controller, wherever it lives.
pub struct Registered {
    /// The queue.
    pub qid: Qid,
    /// Which queue pair of this process: a QID may be used again.
    pub id: u64,
    /// The door to its reactor.
    pub mailbox: Mailbox,
    /// Counts commands received and completed; the queue pair's reactor is the only writer.
    pub activity: Arc<AtomicU64>,
}

struct State {
    configuration: Configuration,
    status: ControllerStatus,
    queue_pairs: Vec<Registered>,
    /// Pairs of I/O queues that Set Features granted (0's based nowhere but on the wire).
    granted_queues: Option<u32>,
    features: FeatureValues,
    /// To the admin queue and the I/O queues it has or was granted.
    claim: Claim,
}

/// What follows from a write to the configuration property (CC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing more.
    None,
    /// CC.EN went to 0: the I/O queue pairs have been ended; event requests that wait are to be aborted.
    Reset,
    /// CC.SHN asks for a shutdown: caches are to be flushed, then `shut_down` called.
    Shutdown,
}

/// Why a queue pair cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// The controller has ended or is being ended.
    Ended,
    /// CC.EN is 0.
    NotEnabled,
    /// The queue exists.
    InUse,
    /// The host was granted fewer I/O queues.
    NotGranted,
    /// There is no room for another queue pair.
    Full,
}

/// A controller.
pub struct Controller {
    /// Its identifier (CNTLID).
    pub id: ControllerId,
    /// Whose controller it is.
    pub subsystem: Arc<Subsystem>,
    /// The host's name.
    pub host_nqn: Nqn,
    /// The host's identifier.
    pub host_id: HostId,
    /// Our address that the host connected to.
    pub local_address: SocketAddr,
    /// The port it connected to.
    pub port_id: u16,
    /// Its latest failed commands.
    pub errors: ErrorLog,
    /// What it has to tell its host.
    pub events: Events,
    /// What its host reads of the subsystem's events.
    pub event_context: persistent_event::Context,
    keep_alive_ms: AtomicU32,
    ended: AtomicBool,
    state: Mutex<State>,
}

impl Controller {
    /// A controller that was just connected: nothing enabled.
    pub fn new(id: ControllerId, subsystem: Arc<Subsystem>, new: NewController) -> Controller {
        Controller {
            id,
            subsystem,
            host_nqn: new.host_nqn,
            host_id: new.host_id,
            local_address: new.local_address,
            port_id: new.port_id,
            errors: ErrorLog::default(),
            events: Events::default(),
            event_context: persistent_event::Context::default(),
            keep_alive_ms: AtomicU32::new(round_keep_alive(new.keep_alive_ms)),
            ended: AtomicBool::new(false),
            state: Mutex::new(State {
                configuration: Configuration(0),
                status: ControllerStatus { ready: false, fatal: false, shutdown: ShutdownStatus::Normal },
                queue_pairs: Vec::new(),
                granted_queues: None,
                features: FeatureValues::default(),
                claim: new.claim,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is a discovery controller.
    pub fn is_discovery(&self) -> bool {
        self.subsystem.kind == SubsystemKind::Discovery
    }

    /// The configuration property (CC).
    pub fn configuration(&self) -> Configuration {
        self.state().configuration
    }

    /// The status property (CSTS).
    pub fn status(&self) -> ControllerStatus {
        self.state().status
    }

    /// Keep alive timeout in milliseconds; 0 for none.
    pub fn keep_alive_ms(&self) -> u32 {
        self.keep_alive_ms.load(Ordering::Relaxed)
    }

    /// Sets the keep alive timeout, rounded up to the granularity; the value set.
    pub fn set_keep_alive_ms(&self, ms: u32) -> u32 {
        let ms = round_keep_alive(ms);
        self.keep_alive_ms.store(ms, Ordering::Relaxed);
        ms
    }

    /// The events it offers (OAES).
    pub fn offered_events(&self) -> u32 {
        if self.is_discovery() { events::DISCOVERY_EVENTS } else { events::IO_EVENTS }
    }

    /// Tells the host of an event, when it wants to hear of it and was not told already.
    pub fn raise(&self, event: AsyncEvent) {
        if self.events.raise(event) {
            self.tell();
        }
    }

    /// Tells the host that a namespace was added, removed or changed: it is in the changed namespace list from now on.
    pub fn namespace_changed(&self, nsid: Nsid) {
        if self.events.namespace_changed(nsid) {
            self.tell();
        }
    }

    /// Wakes what waits for events. An admin queue pair that is not in service yet finds them when it is.
    fn tell(&self) {
        if let Some(admin) = self.state().queue_pairs.iter().find(|pair| pair.qid.is_admin()) {
            let id = admin.id;
            admin.mailbox.send(move |_| local::events_raised(id));
        }
    }

    /// Reads or sets the other features.
    pub fn with_features<R>(&self, work: impl FnOnce(&mut FeatureValues) -> R) -> R {
        work(&mut self.state().features)
    }

    /// Where its events happen.
    pub fn place(&self) -> EventPlace {
        EventPlace { controller_id: self.id.0, port_id: Some(self.port_id) }
    }

    /// Whether the host heeds the retry delay of a completion (ACRE).
    pub fn acre(&self) -> bool {
        self.with_features(|values| values.host_behavior().command_retry == 1)
    }

    /// Pairs of I/O queues granted to the host, once it asked.
    pub fn granted_queues(&self) -> Option<u32> {
        self.state().granted_queues
    }

    /// Grants pairs of I/O queues: as many as asked for and left, one at least. They stay set aside until the controller
    /// ends, is reset or asks anew.
    pub fn grant_queues(&self, asked: u32) -> u32 {
        let mut state = self.state();
        let claimed = state.claim.resize(1 + asked.max(1) as usize);
        let granted = (claimed as u32).saturating_sub(1);
        state.granted_queues = Some(granted);
        granted
    }

    /// Writes the configuration property (CC).
    pub fn configure(&self, new: Configuration) -> Effect {
        let mut state = self.state();
        let old = std::mem::replace(&mut state.configuration, new);
        let mut effect = Effect::None;
        if new.enabled() && !old.enabled() {
            if self.is_valid(new) {
                state.status.ready = true;
                self.events.reset();
                state.status.shutdown = ShutdownStatus::Normal;
            } else {
                state.status.fatal = true;
            }
        }
        if !new.enabled() && old.enabled() {
            state.status = ControllerStatus { ready: false, fatal: false, shutdown: ShutdownStatus::Normal };
            self.events.reset();
            state.granted_queues = None;
            state.features = FeatureValues::default();
            self.event_context.release();
            self.subsystem.persistent_events.controller_reset(self.place());
            state.claim.resize(FIRST_CLAIM);
            let io = state.queue_pairs.extract_if(.., |pair| !pair.qid.is_admin()).collect::<Vec<_>>();
            io.iter().for_each(|pair| pair.close(CloseReason::ControllerEnded));
            effect = Effect::Reset;
        }
        if new.shutdown() != 0 && old.shutdown() == 0 {
            state.status.shutdown = ShutdownStatus::Occurring;
            self.events.shut_down();
            effect = Effect::Shutdown;
        }
        effect
    }

    /// Only what this controller offers can be enabled. A discovery host need not set the entry sizes.
    fn is_valid(&self, new: Configuration) -> bool {
        let sizes = (new.io_sq_entry_size(), new.io_cq_entry_size());
        let sizes_valid = sizes == (6, 4) || self.is_discovery();
        sizes_valid && new.memory_page_size() == 0 && new.arbitration() == 0 && new.command_set() == 0
    }

    /// The caches have been flushed after CC.SHN.
    pub fn shut_down(&self) {
        let mut state = self.state();
        if state.status.shutdown == ShutdownStatus::Occurring {
            state.status.shutdown = ShutdownStatus::Complete;
        }
    }

    /// Takes in a queue pair that is about to be installed.
    pub fn register(&self, pair: Registered) -> Result<(), RegisterError> {
        let mut state = self.state();
        if self.has_ended() {
            return Err(RegisterError::Ended);
        }
        if !pair.qid.is_admin() && !state.status.ready {
            return Err(RegisterError::NotEnabled);
        }
        if state.queue_pairs.iter().any(|other| other.qid == pair.qid) {
            return Err(RegisterError::InUse);
        }
        match state.granted_queues {
            _ if pair.qid.is_admin() => {}
            Some(granted) if u32::from(pair.qid.0) > granted => return Err(RegisterError::NotGranted),
            Some(_) => {}
            // It did not ask how many it may have, so nothing was set aside but the first.
            None => {
                let wanted = (state.queue_pairs.len() + 1).max(FIRST_CLAIM);
                if state.claim.resize(wanted) < wanted {
                    return Err(RegisterError::Full);
                }
            }
        }
        state.queue_pairs.push(pair);
        Ok(())
    }

    /// Whether a queue pair is still wanted.
    pub fn is_registered(&self, id: u64) -> bool {
        !self.has_ended() && self.state().queue_pairs.iter().any(|pair| pair.id == id)
    }

    /// A queue pair has ended. The controller ends with its admin queue pair.
    pub fn unregister(&self, id: u64, qid: Qid) {
        let mut state = self.state();
        state.queue_pairs.retain(|pair| pair.id != id);
        if let ([admin], false) = (&*state.queue_pairs, qid.is_admin()) {
            // The last I/O queue pair: an admin queue pair that is to drain has waited for it.
            let id = admin.id;
            admin.mailbox.send(move |_| local::drain_if_stopping(id));
        }
        drop(state);
        if qid.is_admin() {
            self.end();
        }
    }

    /// Where a queue lives: its queue pair's number and the door to its reactor.
    pub fn find(&self, qid: Qid) -> Option<(u64, Mailbox)> {
        let state = self.state();
        state.queue_pairs.iter().find(|pair| pair.qid == qid).map(|pair| (pair.id, pair.mailbox.clone()))
    }

    /// How many I/O queue pairs it has.
    pub fn io_queue_pairs(&self) -> usize {
        self.state().queue_pairs.iter().filter(|pair| !pair.qid.is_admin()).count()
    }

    /// Commands received and completed on all its queue pairs: it changes when the host shows a sign of life.
    pub fn activity(&self) -> u64 {
        let state = self.state();
        state.queue_pairs.iter().fold(0, |sum, pair| sum.wrapping_add(pair.activity.load(Ordering::Relaxed)))
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Ends it because of a fatal condition, which is what its status says (CSTS.CFS) while its queue pairs go.
    pub fn fail(&self) {
        self.state().status.fatal = true;
        self.end();
    }

    /// Ends it: no queue pair can join any more, those it has are closed wherever they live.
    pub fn end(&self) {
        // The lock orders this against `register`: who registers later finds the mark.
        let pairs = {
            let mut state = self.state();
            if self.ended.swap(true, Ordering::AcqRel) {
                return;
            }
            state.claim.resize(0);
            std::mem::take(&mut state.queue_pairs)
        };
        pairs.iter().for_each(|pair| pair.close(CloseReason::ControllerEnded));
        self.subsystem.remove_controller(self.id);
    }
}

impl Registered {
    fn close(&self, reason: CloseReason) {
        let id = self.id;
        self.mailbox.send(move |_| local::close_queue_pair(id, reason));
    }
}

/// KATO counts in units of KAS (Identify Controller), which is one second: it is rounded up.
fn round_keep_alive(ms: u32) -> u32 {
    ms.div_ceil(1000).saturating_mul(1000)
}
