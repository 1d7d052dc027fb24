//! An RDMA adapter in memory, for tests: reliable connections between the transport and hosts in the same process.
//!
//! It checks what an adapter checks (keys, ranges, access, who may still use what) and does what no adapter does on request: it
//! fails chosen work, holds events back, loses a device. A thread stands for the adapter and picks what to do next at random, from
//! a seed: across queue pairs nothing comes in order, within one everything does.
//!
//! | File | Holds |
//! |---|---|
//! | `mod.rs` | the objects, as the transport has them |
//! | `state.rs` | what the adapter knows |
//! | `nic.rs` | the adapter at work |
//! | `host.rs` | the other end: hosts' queue pairs and memory |

mod host;
mod nic;
mod state;

pub use host::{HostMemory, HostQueue, Refused, Response};
pub use state::{Counts, Faults};

use super::adapter::{
    CmEvent, DeviceLimits, Done, EndCause, PostReceive, PostSend, QpSizes, Verbs, WorkStatus,
};
use reactor::DeviceMemory;
use state::{ChannelState, CqState, IdState, Kind, QpState, SrqState, State};
use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

/// What all handles of one adapter share.
struct Fabric {
    state: Mutex<State>,
    /// There is something to do for the adapter, or news for a host.
    changed: Condvar,
}

impl Fabric {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

/// The adapter. Cheap to clone.
#[derive(Clone)]
pub struct Software {
    fabric: Arc<Fabric>,
    /// Ends the thread with the last handle.
    _thread: Arc<Ending>,
}

struct Ending(Arc<Fabric>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.lock().stopping = true;
        self.0.changed.notify_all();
    }
}

impl Software {
    /// An adapter whose choices follow from `seed`.
    pub fn new(seed: u64) -> Software {
        let fabric = Arc::new(Fabric { state: Mutex::new(State::new(seed)), changed: Condvar::new() });
        let for_thread = fabric.clone();
        std::thread::spawn(move || nic::run(&for_thread));
        Software { _thread: Arc::new(Ending(fabric.clone())), fabric }
    }

    /// Objects that exist.
    pub fn counts(&self) -> Counts {
        self.fabric.lock().counts()
    }

    /// What the transport did that it must not do.
    pub fn violations(&self) -> Vec<String> {
        self.fabric.lock().violations.clone()
    }

    /// Changes what goes wrong.
    pub fn faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.fabric.lock().faults);
        self.fabric.changed.notify_all();
    }

    /// Changes what the device says of itself, before it is opened.
    pub fn limits(&self, change: impl FnOnce(&mut DeviceLimits)) {
        change(&mut self.fabric.lock().limits);
    }

    /// SENDs of hosts that found no receive, and were tried again.
    pub fn receiver_not_ready(&self) -> u64 {
        self.fabric.lock().receiver_not_ready
    }

    /// The most READs that were posted to one queue pair at once.
    pub fn most_reads(&self) -> usize {
        self.fabric.lock().most_reads
    }

    /// The device goes away, and a new one takes its place.
    pub fn remove_device(&self) {
        let mut state = self.fabric.lock();
        state.device += 1;
        let ids: Vec<u64> = state.ids.keys().copied().collect();
        for id in ids {
            state.fail_id(id);
            let channel = state.ids[&id].channel;
            state.tell(channel, Event::DeviceRemoval(id));
        }
        self.fabric.changed.notify_all();
    }

    /// Has every connection see an event of the connection manager.
    pub fn end_all(&self, cause: EndCause) {
        let mut state = self.fabric.lock();
        let connections: Vec<_> =
            state.ids.iter().filter(|(_, id)| !id.listens).map(|(key, id)| (*key, id.channel)).collect();
        for (id, channel) in connections {
            state.tell(channel, Event::Ended(id, cause));
        }
        self.fabric.changed.notify_all();
    }

    fn object(&self, state: &mut State, kind: Kind) -> Arc<Object> {
        let key = state.new_key();
        *state.count(kind) += 1;
        Arc::new(Object { adapter: self.clone(), key, kind })
    }
}

/// An object of the adapter; it is destroyed with this value.
pub struct Object {
    adapter: Software,
    key: u64,
    kind: Kind,
}

impl Object {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.adapter.fabric.lock()
    }

    fn changed(&self) {
        self.adapter.fabric.changed.notify_all();
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let mut state = self.lock();
        *state.count(self.kind) -= 1;
        state.destroy(self.kind, self.key);
        drop(state);
        self.changed();
    }
}

/// An event on its way: keys and no handles.
#[derive(Clone)]
pub(super) enum Event {
    Request(u64),
    Established(u64),
    Ended(u64, EndCause),
    DeviceRemoval(u64),
}

/// An event channel.
pub struct Channel(Arc<Object>);

/// An identifier; it keeps its channel.
#[derive(Clone)]
pub struct Id {
    object: Arc<Object>,
    _channel: Arc<Object>,
}

/// A device, of one life.
#[derive(Clone)]
pub struct Device {
    adapter: Software,
    generation: u64,
}

/// A protection domain.
#[derive(Clone)]
pub struct Domain(Arc<Object>);

/// A memory region.
pub struct Region {
    object: Arc<Object>,
    _domain: Domain,
}

/// A shared receive queue.
#[derive(Clone)]
pub struct Srq {
    object: Arc<Object>,
    _domain: Domain,
}

/// A queue pair, with what it is made of.
pub struct Qp {
    object: Arc<Object>,
    _parents: (Id, Domain, Arc<Object>, Option<Srq>),
}

fn full(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, format!("{what} is full"))
}

impl Verbs for Software {
    type Channel = Channel;
    type Id = Id;
    type Device = Device;
    type Domain = Domain;
    type Region = Region;
    type Cq = Arc<Object>;
    type Srq = Srq;
    type Qp = Qp;

    fn load() -> io::Result<Software> {
        Ok(Software::new(1))
    }

    fn listen(&self, address: SocketAddr, _: u32) -> io::Result<(Channel, Id)> {
        let mut state = self.fabric.lock();
        if state.ids.values().any(|id| id.listens && id.local == address && !id.failed) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let channel = self.object(&mut state, Kind::Channel);
        state.channels.insert(channel.key, ChannelState::new()?);
        let object = self.object(&mut state, Kind::Id);
        state.ids.insert(object.key, IdState::listening(address, channel.key));
        drop(state);
        Ok((Channel(channel.clone()), Id { object, _channel: channel }))
    }

    fn channel_descriptor(channel: &Channel) -> io::Result<OwnedFd> {
        channel.0.lock().channels[&channel.0.key].bell.descriptor()
    }

    fn next_event(channel: &Channel) -> io::Result<Option<CmEvent<Software>>> {
        let mut state = channel.0.lock();
        let Some(own) = state.channels.get_mut(&channel.0.key) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let Some(event) = own.events.pop_front() else {
            own.bell.silence();
            return Ok(None);
        };
        Ok(Some(match event {
            Event::Request(key) => {
                *state.count(Kind::Id) += 1;
                let id = &state.ids[&key];
                let (private_data, host_serves) = (id.private_data.clone(), id.host_serves);
                let object = Arc::new(Object { adapter: channel.0.adapter.clone(), key, kind: Kind::Id });
                let id = Id { object, _channel: channel.0.clone() };
                CmEvent::Request(super::adapter::Incoming { id, private_data, host_serves })
            }
            Event::Established(id) => CmEvent::Established(id),
            Event::Ended(id, cause) => CmEvent::Ended(id, cause),
            Event::DeviceRemoval(id) => CmEvent::DeviceRemoval(id),
        }))
    }

    fn key(id: &Id) -> u64 {
        id.object.key
    }

    fn local_address(id: &Id) -> SocketAddr {
        id.object.lock().ids[&id.object.key].local
    }

    fn peer_address(id: &Id) -> SocketAddr {
        id.object.lock().ids[&id.object.key].peer
    }

    fn device(id: &Id) -> io::Result<Device> {
        let generation = id.object.lock().device;
        Ok(Device { adapter: id.object.adapter.clone(), generation })
    }

    fn reject(id: &Id, private_data: &[u8]) -> io::Result<()> {
        id.object.lock().answer(id.object.key, Err(private_data.to_vec()))?;
        id.object.changed();
        Ok(())
    }

    fn accept(id: &Id, reads: u8, private_data: &[u8]) -> io::Result<()> {
        id.object.lock().accept(id.object.key, reads, private_data)?;
        id.object.changed();
        Ok(())
    }

    fn disconnect(id: &Id) -> io::Result<()> {
        id.object.lock().fail_id(id.object.key);
        id.object.changed();
        Ok(())
    }

    fn device_key(device: &Device) -> u64 {
        device.generation
    }

    fn limits(device: &Device) -> io::Result<DeviceLimits> {
        Ok(device.adapter.fabric.lock().limits.clone())
    }

    fn domain(device: &Device) -> io::Result<Domain> {
        Ok(Domain(device.adapter.object(&mut device.adapter.fabric.lock(), Kind::Domain)))
    }

    fn completion_queue(device: &Device, entries: u32, _: u32) -> io::Result<Arc<Object>> {
        let mut state = device.adapter.fabric.lock();
        let object = device.adapter.object(&mut state, Kind::Cq);
        state.cqs.insert(object.key, CqState::new(entries as usize, device.generation)?);
        drop(state);
        Ok(object)
    }

    fn register(domain: &Domain, memory: &DeviceMemory) -> io::Result<Region> {
        let adapter = &domain.0.adapter;
        let mut state = adapter.fabric.lock();
        let object = adapter.object(&mut state, Kind::Region);
        state.regions.insert(object.key as u32, memory.clone());
        drop(state);
        Ok(Region { object, _domain: domain.clone() })
    }

    fn region_key(region: &Region) -> u32 {
        region.object.key as u32
    }

    fn shared_receives(domain: &Domain, entries: u32) -> io::Result<Srq> {
        let adapter = &domain.0.adapter;
        let mut state = adapter.fabric.lock();
        let object = adapter.object(&mut state, Kind::Srq);
        let capacity = entries as usize;
        state.srqs.insert(object.key, SrqState { capacity, receives: VecDeque::new() });
        drop(state);
        Ok(Srq { object, _domain: domain.clone() })
    }

    fn queue_pair(
        id: &Id,
        domain: &Domain,
        cq: &Arc<Object>,
        srq: Option<&Srq>,
        sizes: QpSizes,
    ) -> io::Result<Qp> {
        let adapter = &id.object.adapter;
        let mut state = adapter.fabric.lock();
        if state.faults.no_queue_pairs {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let object = adapter.object(&mut state, Kind::Qp);
        let qp = QpState::new(id.object.key, cq.key, srq.map(|srq| srq.object.key), sizes);
        state.qps.insert(object.key, qp);
        if let Some(id) = state.ids.get_mut(&id.object.key) {
            id.qp = Some(object.key);
        }
        drop(state);
        Ok(Qp { object, _parents: (id.clone(), domain.clone(), cq.clone(), srq.cloned()) })
    }

    fn number(qp: &Qp) -> u32 {
        qp.object.key as u32
    }

    fn post_receives(qp: &Qp, receives: &[PostReceive]) -> io::Result<()> {
        let mut state = qp.object.lock();
        let own = state.qps.get_mut(&qp.object.key).ok_or(io::ErrorKind::NotConnected)?;
        if own.receives.len() + receives.len() > own.sizes.receives as usize {
            return Err(full("the receive queue"));
        }
        if own.failed {
            let flushed =
                receives.iter().map(|r| Done { id: r.id, status: WorkStatus::Flushed, ..Done::EMPTY });
            own.receive_done.extend(flushed);
        } else {
            own.receives.extend(receives);
        }
        drop(state);
        qp.object.changed();
        Ok(())
    }

    fn post_shared(srq: &Srq, receives: &[PostReceive]) -> io::Result<()> {
        let mut state = srq.object.lock();
        let own = state.srqs.get_mut(&srq.object.key).ok_or(io::ErrorKind::NotConnected)?;
        if own.receives.len() + receives.len() > own.capacity {
            return Err(full("the shared receive queue"));
        }
        own.receives.extend(receives);
        drop(state);
        srq.object.changed();
        Ok(())
    }

    fn post_sends(qp: &Qp, sends: &[PostSend]) -> io::Result<()> {
        let mut state = qp.object.lock();
        state.post_sends(qp.object.key, sends)?;
        drop(state);
        qp.object.changed();
        Ok(())
    }

    fn cq_descriptor(cq: &Arc<Object>) -> io::Result<OwnedFd> {
        cq.lock().cqs[&cq.key].bell.descriptor()
    }

    fn poll(cq: &Arc<Object>, into: &mut [Done]) -> usize {
        let mut state = cq.lock();
        let Some(own) = state.cqs.get_mut(&cq.key) else { return 0 };
        let count = own.done.len().min(into.len());
        into.iter_mut().zip(own.done.drain(..count)).for_each(|(place, done)| *place = done);
        count
    }

    fn arm(cq: &Arc<Object>) -> io::Result<()> {
        let mut state = cq.lock();
        let device = state.device;
        match state.cqs.get_mut(&cq.key) {
            Some(own) if own.device == device => own.armed = true,
            _ => return Err(io::Error::other("the device is gone")),
        }
        Ok(())
    }

    fn acknowledge(cq: &Arc<Object>) {
        if let Some(own) = cq.lock().cqs.get_mut(&cq.key) {
            own.bell.silence();
        }
    }

    fn resize(cq: &Arc<Object>, entries: u32) -> io::Result<()> {
        let mut state = cq.lock();
        if entries > state.limits.max_completions {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if let Some(own) = state.cqs.get_mut(&cq.key) {
            own.capacity = entries as usize;
        }
        Ok(())
    }
}
