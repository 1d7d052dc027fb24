//! A subsystem: its namespaces, who may connect, and its controllers.

use crate::{
    config::AllowedHosts,
    controller::{Controller, NewController},
    namespace::Namespace,
    persistent_event::PersistentEvents,
};
use nvme::{ControllerId, Nqn, Nsid, features::AsyncEvent};
use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What a subsystem is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubsystemKind {
    /// It has namespaces.
    Nvm,
    /// It tells where the others are.
    Discovery,
}

/// A subsystem.
pub struct Subsystem {
    /// Its place in the target's list.
    pub index: usize,
    /// What it is for.
    pub kind: SubsystemKind,
    /// Its name.
    pub nqn: Nqn,
    /// The serial number its controllers report (SN).
    pub serial: String,
    /// The model number (MN).
    pub model: String,
    /// The firmware revision (FR).
    pub firmware: String,
    /// Who may connect.
    pub hosts: AllowedHosts,
    /// Ports that offer it, by identifier.
    pub ports: Vec<u16>,
    /// The identifiers its controllers get.
    pub controller_ids: RangeInclusive<u16>,
    /// Hosts can write protect its namespaces: what they say is kept.
    pub can_protect: bool,
    /// By ascending NSID.
    pub namespaces: Vec<Arc<Namespace>>,
    /// What happened to it and its controllers.
    pub persistent_events: PersistentEvents,
    controllers: Mutex<Controllers>,
}

#[derive(Default)]
struct Controllers {
    live: BTreeMap<ControllerId, Arc<Controller>>,
    last: u16,
}

/// What describes a subsystem.
pub struct NewSubsystem {
    /// What it is for.
    pub kind: SubsystemKind,
    /// Its name.
    pub nqn: Nqn,
    /// The serial number (SN).
    pub serial: String,
    /// The model number (MN).
    pub model: String,
    /// The firmware revision (FR).
    pub firmware: String,
    /// The identifiers its controllers get.
    pub controller_ids: RangeInclusive<u16>,
    /// Who may connect.
    pub hosts: AllowedHosts,
    /// Ports that offer it.
    pub ports: Vec<u16>,
    /// Hosts can write protect its namespaces.
    pub can_protect: bool,
    /// Its namespaces.
    pub namespaces: Vec<Arc<Namespace>>,
}

impl Subsystem {
    /// A subsystem at `index` of the target's list.
    pub fn new(index: usize, new: NewSubsystem) -> Subsystem {
        let mut namespaces = new.namespaces;
        namespaces.sort_by_key(|n| n.nsid);
        Subsystem {
            index,
            kind: new.kind,
            nqn: new.nqn,
            serial: new.serial,
            model: new.model,
            controller_ids: new.controller_ids,
            hosts: new.hosts,
            ports: new.ports,
            can_protect: new.can_protect,
            namespaces,
            persistent_events: PersistentEvents::new(&new.firmware),
            firmware: new.firmware,
            controllers: Mutex::default(),
        }
    }

    fn controllers(&self) -> MutexGuard<'_, Controllers> {
        self.controllers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a host may use it.
    pub fn admits(&self, host: &Nqn) -> bool {
        self.hosts.admits(host.as_str())
    }

    /// A namespace by its identifier.
    pub fn namespace(&self, nsid: Nsid) -> Option<&Arc<Namespace>> {
        self.namespaces.iter().find(|n| n.nsid == nsid)
    }

    /// Whether any namespace's writes are volatile until flushed.
    pub fn has_volatile_write_cache(&self) -> bool {
        self.namespaces.iter().any(|n| n.geometry().volatile_write_cache)
    }

    /// Makes a controller under the next free identifier of its range. Identifiers are not reused soon, so that a host that comes back
    /// cannot mistake a new controller for its old one.
    pub fn create_controller(self: &Arc<Self>, new: NewController) -> Option<Arc<Controller>> {
        let mut controllers = self.controllers();
        let (first, last) = (*self.controller_ids.start(), *self.controller_ids.end());
        let next = controllers.last.saturating_add(1).max(first);
        let id = (next..=last)
            .chain(first..next)
            .map(ControllerId)
            .find(|id| !controllers.live.contains_key(id))?;
        controllers.last = id.0;
        let controller = Arc::new(Controller::new(id, self.clone(), new));
        self.persistent_events.controller_reset(controller.place());
        controllers.live.insert(id, controller.clone());
        Some(controller)
    }

    /// A live controller.
    pub fn controller(&self, id: ControllerId) -> Option<Arc<Controller>> {
        self.controllers().live.get(&id).cloned()
    }

    /// Its live controllers.
    pub fn live_controllers(&self) -> Vec<Arc<Controller>> {
        self.controllers().live.values().cloned().collect()
    }

    /// Tells every host of a change of a namespace: added, removed, resized, read-only or no longer. To be called when
    /// Identify already says what is new.
    pub fn namespace_changed(&self, nsid: Nsid) {
        self.live_controllers().iter().for_each(|controller| controller.namespace_changed(nsid));
    }

    /// Tells every host of an event.
    pub fn raise(&self, event: AsyncEvent) {
        self.live_controllers().iter().for_each(|controller| controller.raise(event));
    }

    /// The identifiers of its live controllers, ascending.
    pub fn controller_ids(&self) -> Vec<ControllerId> {
        self.controllers().live.keys().copied().collect()
    }

    /// Forgets a controller that ended.
    pub fn remove_controller(&self, id: ControllerId) {
        self.controllers().live.remove(&id);
    }
}
