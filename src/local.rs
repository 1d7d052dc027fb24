//! What one reactor keeps: its queue pairs, its queues to the namespaces, its metrics.

use crate::{metrics::ReactorMetrics, namespace::NamespaceTable, subsystem::Subsystem, target::Target};
use nvme::{Cid, Nsid};
use reactor::{Reactor, Signal};
use std::{
    any::{Any, TypeId},
    cell::{Cell, RefCell},
    collections::{BTreeMap, HashMap},
    io,
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use transports::{CloseReason, Transport};

thread_local! {
    /// The reactor of this thread. Messages from other threads find it here.
    static LOCAL: RefCell<Option<Rc<Local>>> = const { RefCell::new(None) };
}

/// A queue pair as its controller and the target's end see it, from other threads through messages.
pub trait Ending {
    /// Ends it at once.
    fn close(&self, reason: CloseReason);
    /// Ends it after the commands it has.
    fn drain(&self);
    /// Its controller may have events to tell.
    fn events_raised(&self);
    /// Aborts a command that still waits for its data; whether there was one.
    fn abort(&self, cid: Cid) -> bool;
}

/// What one reactor keeps.
pub struct Local {
    /// The reactor.
    pub reactor: Reactor,
    /// What exists.
    pub target: Arc<Target>,
    /// Counted here.
    pub metrics: Arc<ReactorMetrics>,
    queue_pairs: RefCell<BTreeMap<u64, Rc<dyn Ending>>>,
    greeting: Cell<usize>,
    tables: RefCell<HashMap<usize, Rc<NamespaceTable>>>,
    transports: RefCell<HashMap<TypeId, Rc<dyn Any>>>,
    stopping: Cell<bool>,
    changed: Signal,
}

impl Local {
    /// Makes what this thread's reactor keeps, and lets messages find it.
    pub fn install(reactor: &Reactor, target: Arc<Target>, metrics: Arc<ReactorMetrics>) -> Rc<Local> {
        let local = Rc::new(Local {
            reactor: reactor.clone(),
            target,
            metrics,
            queue_pairs: RefCell::default(),
            greeting: Cell::new(0),
            tables: RefCell::default(),
            transports: RefCell::default(),
            stopping: Cell::new(false),
            changed: Signal::new(),
        });
        LOCAL.with(|cell| *cell.borrow_mut() = Some(local.clone()));
        local
    }

    /// The namespaces of a subsystem, with queues opened when first asked for.
    pub fn namespaces(&self, subsystem: &Subsystem) -> io::Result<Rc<NamespaceTable>> {
        if let Some(table) = self.tables.borrow().get(&subsystem.index) {
            return Ok(table.clone());
        }
        let table = Rc::new(NamespaceTable::open(&subsystem.namespaces, &self.reactor)?);
        self.tables.borrow_mut().insert(subsystem.index, table.clone());
        Ok(table)
    }

    /// What a transport keeps on this reactor.
    pub fn transport<T: Transport>(&self) -> Rc<T::Local> {
        let make = || -> Rc<dyn Any> { Rc::new(T::local(&self.reactor)) };
        let kept = self.transports.borrow_mut().entry(TypeId::of::<T>()).or_insert_with(make).clone();
        let kept: Rc<T::Local> = kept.downcast().expect("it was made for this transport");
        if let Some(counters) = T::counters(&kept) {
            self.metrics.rdma.get_or_init(|| counters.clone());
        }
        kept
    }

    /// Takes a queue pair in.
    pub fn add_queue_pair(&self, id: u64, pair: Rc<dyn Ending>) {
        if self.stopping.get() {
            pair.drain();
        }
        self.queue_pairs.borrow_mut().insert(id, pair);
        self.metrics.queue_pairs_open.add(1);
    }

    /// A queue pair has ended.
    pub fn remove_queue_pair(&self, id: u64) {
        self.queue_pairs.borrow_mut().remove(&id);
        self.metrics.queue_pairs_open.sub(1);
        self.changed.notify();
    }

    /// A handshake begins (1) or has ended (-1).
    pub fn greeting(&self, change: isize) {
        self.greeting.set(self.greeting.get().wrapping_add_signed(change));
        self.changed.notify();
    }

    /// Whether the target is stopping.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Waits until the target is stopping.
    pub async fn stopping(&self) {
        self.changed.wait_for(|| self.stopping.get().then_some(())).await;
    }

    fn is_empty(&self) -> bool {
        self.queue_pairs.borrow().is_empty() && self.greeting.get() == 0
    }

    fn all(&self) -> Vec<Rc<dyn Ending>> {
        self.queue_pairs.borrow().values().cloned().collect()
    }

    /// Takes no more commands, answers what it has, and stops the reactor: after `time` at the latest.
    async fn stop(self: Rc<Self>, time: Duration) {
        self.stopping.set(true);
        self.changed.notify();
        self.all().iter().for_each(|pair| pair.drain());
        let idle = || self.changed.wait_for(|| self.is_empty().then_some(()));
        if self.reactor.timeout(time, idle()).await.is_none() {
            let left = self.queue_pairs.borrow().len();
            tracing::warn!(queue_pairs = left, "commands did not finish in time; closing their queue pairs");
            self.all().iter().for_each(|pair| pair.close(CloseReason::Drained));
            self.reactor.timeout(Duration::from_secs(2), idle()).await;
        }
        self.tables.borrow_mut().clear();
        self.transports.borrow_mut().clear();
        LOCAL.with(|cell| *cell.borrow_mut() = None);
        self.reactor.stop();
    }
}

/// The reactor of this thread, if it serves.
pub fn current() -> Option<Rc<Local>> {
    LOCAL.with(|cell| cell.borrow().clone())
}

/// Closes a queue pair of this thread's reactor, if it still lives.
pub fn close_queue_pair(id: u64, reason: CloseReason) {
    if let Some(pair) = queue_pair(id) {
        pair.close(reason);
    }
}

/// Lets an admin queue pair of this thread's reactor tell the events of its controller, if it still lives.
pub fn events_raised(id: u64) {
    if let Some(pair) = queue_pair(id) {
        pair.events_raised();
    }
}

/// Aborts a command of a queue pair of this thread's reactor, if it still can be.
pub fn abort(id: u64, cid: Cid) -> bool {
    queue_pair(id).is_some_and(|pair| pair.abort(cid))
}

fn queue_pair(id: u64) -> Option<Rc<dyn Ending>> {
    current()?.queue_pairs.borrow().get(&id).cloned()
}

/// Takes in the new size of a namespace on this thread's reactor; see [`crate::watch`].
pub fn resize(subsystem: usize, nsid: Nsid, lba_count: u64, present: u64) {
    let Some(local) = current() else { return };
    if let Some(namespace) = local.tables.borrow().get(&subsystem).and_then(|table| table.get(nsid)) {
        namespace.resize(lba_count, present);
    }
}

/// Drains a queue pair of this thread's reactor, if the target is stopping.
pub fn drain_if_stopping(id: u64) {
    if let Some(pair) = queue_pair(id)
        && current().is_some_and(|local| local.is_stopping())
    {
        pair.drain();
    }
}

/// Stops this thread's reactor; see [`Target::stop`].
pub fn stop(time: Duration) {
    if let Some(local) = current() {
        let reactor = local.reactor.clone();
        reactor.spawn(local.stop(time));
    }
}
