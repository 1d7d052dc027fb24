//! What a reactor keeps of a device: protection domain, the arena as memory region, one completion queue, shared receives, and the
//! queue pairs. Once per turn it takes what completed and passes on what was prepared.

use super::{
    adapter::{DeviceLimits, Done, Verbs},
    counters::Counters,
    flow::{Numbers, Work, WorkId},
    offload,
    queue_pair::Inner,
    receives::{self, Receives, SHARED},
};
use crate::CloseReason;
use futures::future::{Either, select};
use reactor::{BufferPool, DataBuffer, HookGuard, Reactor, Signal, TurnHook};
use std::{
    cell::{Cell, RefCell},
    io,
    pin::pin,
    rc::{Rc, Weak},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

/// Memory for shared receives of one reactor and device.
const SHARED_MEMORY: usize = 16 << 20;
/// Shared receives below this are not worth it.
const FEWEST_SHARED: usize = 256;
/// Memory for completion queue entries on their way and for zeroes.
const SMALL_MEMORY: usize = 4 << 20;
/// Bytes of zeroes that one WRITE can take.
pub const ZEROES: usize = 64 << 10;
/// Room of a completion queue at first.
const FIRST_COMPLETIONS: u32 = 4096;
/// Completions taken in one look.
const BATCH: usize = 64;
/// Looks in a row, so that the ring is served as well.
const MOST_BATCHES: usize = 8;

/// Shared receives: given to queue pairs as long as there is one for every command that was promised, so that they never run dry.
struct Shared<V: Verbs> {
    srq: V::Srq,
    receives: RefCell<Receives>,
    _region: V::Region,
    count: u32,
    promised: Cell<u32>,
}

struct Place<V: Verbs> {
    generation: u32,
    pair: Option<Rc<Inner<V>>>,
}

/// A device on one reactor. Queue pairs come before what they are made of, so that they go first.
pub struct LocalDevice<V: Verbs> {
    /// What tells it from other devices.
    pub key: u64,
    places: RefCell<Vec<Place<V>>>,
    numbers: RefCell<Numbers>,
    dirty: RefCell<Vec<u32>>,
    shared: Option<Shared<V>>,
    /// The reactor it is on.
    pub reactor: Reactor,
    /// What the device can do.
    pub limits: DeviceLimits,
    /// Counted here.
    pub counters: Arc<Counters>,
    /// What queue pairs are made with.
    pub domain: V::Domain,
    /// Likewise.
    pub cq: V::Cq,
    /// Small memory: completion queue entries.
    pub small: BufferPool,
    /// Its key.
    pub small_key: u32,
    /// Zeroes to be sent.
    pub zeroes: DataBuffer,
    /// The key of the reactor's data buffers.
    pub arena_key: u32,
    /// Sending with invalidation works, as far as is known.
    pub can_invalidate: Cell<bool>,
    _regions: [V::Region; 2],
    armed: Cell<bool>,
    completions: Cell<u32>,
    reserved: Cell<u32>,
    gone: Cell<bool>,
    retired: Cell<bool>,
    changed: Signal,
}

impl<V: Verbs> LocalDevice<V> {
    async fn open(
        reactor: &Reactor,
        device: V::Device,
        in_capsule: usize,
        counters: Arc<Counters>,
    ) -> io::Result<Rc<LocalDevice<V>>> {
        let (key, for_limits) = (V::device_key(&device), device.clone());
        let limits = offload::run(move || V::limits(&for_limits)).await?;
        let small = reactor.buffer_pool(SMALL_MEMORY, ZEROES)?;
        let none = || io::Error::other("the memory for completion queue entries is too small");
        let mut zeroes = small.try_buffer(ZEROES).ok_or_else(none)?;
        zeroes.as_mut_slice().fill(0);
        let count = shared_receives(&limits, in_capsule);
        let mut shared = match count {
            0 => None,
            count => Some(Receives::new(reactor, SHARED, count, in_capsule)?),
        };
        let (arena, pool) = (reactor.device_memory(), small.device_memory());
        let receives = shared.as_ref().map(Receives::device_memory);
        let completions = FIRST_COMPLETIONS.min(limits.max_completions);
        let made = offload::run(move || {
            let domain = V::domain(&device)?;
            let regions = [V::register(&domain, &arena)?, V::register(&domain, &pool)?];
            let shared = match receives {
                Some(memory) => {
                    let region = V::register(&domain, &memory)?;
                    Some((V::shared_receives(&domain, count as u32)?, region))
                }
                None => None,
            };
            let cq = V::completion_queue(&device, completions, next_vector())?;
            let descriptor = V::cq_descriptor(&cq)?;
            Ok((domain, regions, shared, cq, descriptor))
        });
        let (domain, regions, srq, cq, descriptor) = made.await?;
        let shared = shared.take().zip(srq).map(|(mut receives, (srq, region))| {
            receives.start(V::region_key(&region));
            let (receives, promised) = (RefCell::new(receives), Cell::new(0));
            Shared { srq, receives, _region: region, count: count as u32, promised }
        });
        let device = Rc::new(LocalDevice {
            key,
            places: RefCell::default(),
            numbers: RefCell::new(Numbers::new()),
            dirty: RefCell::new(Vec::with_capacity(64)),
            shared,
            reactor: reactor.clone(),
            can_invalidate: Cell::new(limits.can_invalidate),
            limits,
            counters,
            domain,
            cq,
            small,
            small_key: V::region_key(&regions[1]),
            zeroes,
            arena_key: V::region_key(&regions[0]),
            _regions: regions,
            armed: Cell::new(false),
            completions: Cell::new(completions),
            reserved: Cell::new(0),
            gone: Cell::new(false),
            retired: Cell::new(false),
            changed: Signal::new(),
        });
        device.post_shared();
        reactor.spawn(watch(Rc::downgrade(&device), reactor.clone(), Rc::new(descriptor)));
        Ok(device)
    }

    /// A shared receive queue with receives for `entries` more commands.
    pub fn take_shared(&self, entries: u32) -> Option<V::Srq> {
        let shared = self.shared.as_ref()?;
        let promised = shared.promised.get() + entries;
        (promised <= shared.count).then(|| {
            shared.promised.set(promised);
            shared.srq.clone()
        })
    }

    /// The end of [`LocalDevice::take_shared`].
    pub fn give_shared(&self, entries: u32) {
        if let Some(shared) = &self.shared {
            shared.promised.set(shared.promised.get() - entries);
        }
    }

    /// The shared receives.
    pub fn shared(&self) -> Option<&RefCell<Receives>> {
        self.shared.as_ref().map(|shared| &shared.receives)
    }

    /// Makes sure of room for `count` more completions.
    pub async fn reserve(&self, count: u32) -> io::Result<()> {
        self.reserved.set(self.reserved.get() + count);
        while self.reserved.get() > self.completions.get() {
            let wanted = self.reserved.get().next_power_of_two().min(self.limits.max_completions);
            let cq = self.cq.clone();
            let resized = match wanted >= self.reserved.get() {
                true => offload::run(move || V::resize(&cq, wanted)).await,
                false => Err(io::Error::new(io::ErrorKind::OutOfMemory, "the completion queue is full")),
            };
            if let Err(error) = resized {
                self.release(count);
                return Err(error);
            }
            self.completions.set(self.completions.get().max(wanted));
        }
        Ok(())
    }

    /// The end of [`LocalDevice::reserve`].
    pub fn release(&self, count: u32) {
        self.reserved.set(self.reserved.get() - count);
    }

    /// A free place for a queue pair: its owner number.
    pub fn place(&self) -> u32 {
        let mut places = self.places.borrow_mut();
        let free = places.iter().position(|place| place.pair.is_none() && place.generation & 1 == 0);
        let index = free.unwrap_or(places.len());
        if index == places.len() {
            places.push(Place { generation: 0, pair: None });
        }
        // Odd while taken, so that nothing of the last queue pair is taken for this one's.
        places[index].generation = (places[index].generation + 1) & 0x3fff;
        places[index].generation << 16 | index as u32
    }

    /// A queue pair takes its place.
    pub fn add(&self, owner: u32, number: u32, pair: Rc<Inner<V>>) {
        self.numbers.borrow_mut().insert(number, owner);
        self.places.borrow_mut()[owner as usize & 0xffff].pair = Some(pair);
        self.counters.queue_pairs.add(1);
    }

    /// A queue pair is no more, or did not come to be.
    pub fn remove(&self, owner: u32, number: Option<u32>) {
        let pair = {
            let mut places = self.places.borrow_mut();
            let place = &mut places[owner as usize & 0xffff];
            place.generation = (place.generation + 1) & 0x3fff;
            place.pair.take()
        };
        if let Some(number) = number {
            self.numbers.borrow_mut().remove(number);
            self.counters.queue_pairs.sub(1);
        }
        drop(pair);
        self.changed.notify();
    }

    /// A queue pair by its owner number.
    pub fn pair(&self, owner: u32) -> Option<Rc<Inner<V>>> {
        let places = self.places.borrow();
        let place = places.get(owner as usize & 0xffff)?;
        if place.generation == owner >> 16 { place.pair.clone() } else { None }
    }

    /// A queue pair has something for the next flush.
    pub fn mark_dirty(&self, owner: u32) {
        self.dirty.borrow_mut().push(owner);
    }

    /// The device goes away: its queue pairs end, and with the last of them everything else is destroyed.
    pub fn is_gone(&self) {
        if self.gone.replace(true) {
            return;
        }
        let pairs: Vec<_> = self.places.borrow().iter().filter_map(|place| place.pair.clone()).collect();
        pairs.iter().for_each(|pair| pair.close(CloseReason::HostGone));
        self.changed.notify();
    }

    fn is_empty(&self) -> bool {
        self.places.borrow().iter().all(|place| place.generation & 1 == 0)
    }

    fn post_shared(&self) {
        let Some(shared) = self.shared.as_ref().filter(|shared| shared.receives.borrow().is_due()) else {
            return;
        };
        let mut receives = shared.receives.borrow_mut();
        let due = receives.due();
        if due.is_empty() {
            return;
        }
        self.counters.receives.add(due.len() as u64);
        if let Err(error) = V::post_shared(&shared.srq, due) {
            tracing::error!(device = self.limits.name, %error, "cannot post shared receives");
        }
        due.clear();
    }

    fn dispatch(&self, done: &Done) {
        self.counters.ended[done.status.index()].add(1);
        let Some(work) = WorkId::parse(done.id) else { return };
        let is_shared = work.work == Work::Receive && work.owner == SHARED;
        let owner = if is_shared { self.numbers.borrow().get(done.number) } else { Some(work.owner) };
        match owner.and_then(|owner| self.pair(owner)) {
            Some(pair) => pair.complete(work, done),
            // Its queue pair is gone; the receive is everybody's.
            None if is_shared => {
                if let Some(receives) = self.shared() {
                    receives.borrow_mut().give_back(work.index);
                }
            }
            None => {}
        }
    }

    /// Ends everything at once: the reactor stops.
    fn shut(&self) {
        self.retired.set(true);
        self.changed.notify();
        let pairs: Vec<_> =
            self.places.borrow_mut().iter_mut().filter_map(|place| place.pair.take()).collect();
        drop(pairs);
    }
}

/// Interrupts of one device's queues go to different processors, as far as the device can.
fn next_vector() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// How many shared receives are worth having.
fn shared_receives(limits: &DeviceLimits, in_capsule: usize) -> usize {
    let mut count = SHARED_MEMORY / (nvme::Sqe::LEN + in_capsule.next_power_of_two());
    count = count.min(limits.max_shared_receives as usize).min(1 << 14);
    debug_assert!(receives::memory_for(count, in_capsule) <= 4 * SHARED_MEMORY);
    if count < FEWEST_SHARED { 0 } else { count }
}

/// Takes note of what the completion channel tells. What completed is taken by the hook, in every turn.
async fn watch<V: Verbs>(
    device: Weak<LocalDevice<V>>,
    reactor: Reactor,
    descriptor: Rc<std::os::fd::OwnedFd>,
) {
    let mut readable = reactor.readable(&descriptor);
    loop {
        let Some(strong) = device.upgrade() else { return };
        {
            let news = pin!(readable.next());
            let retired = pin!(strong.changed.wait_for(|| strong.retired.get().then_some(())));
            match select(news, retired).await {
                Either::Left((Ok(()), _)) => {}
                Either::Left((Err(error), _)) => {
                    tracing::error!(%error, "cannot watch a completion channel");
                    return;
                }
                Either::Right(_) => return,
            }
        }
        V::acknowledge(&strong.cq);
        strong.armed.set(false);
    }
}

impl<V: Verbs> TurnHook for LocalDevice<V> {
    fn poll(&self) -> usize {
        let mut done = [Done::EMPTY; BATCH];
        let mut total = 0;
        for _ in 0..MOST_BATCHES {
            let count = V::poll(&self.cq, &mut done);
            done[..count].iter().for_each(|done| self.dispatch(done));
            total += count;
            if count < BATCH {
                break;
            }
        }
        if total > 0 {
            self.counters.completions.add(total as u64);
            self.counters.polls.add(1);
        }
        total
    }

    fn flush(&self) {
        // Receives first: the host may send its next command the moment it gets a response.
        self.post_shared();
        while let Some(owner) = { self.dirty.borrow_mut().pop() } {
            if let Some(pair) = self.pair(owner) {
                pair.flush();
            }
        }
    }

    fn before_sleep(&self) -> bool {
        let mut is_news = false;
        if !self.armed.get() && !self.gone.get() {
            match V::arm(&self.cq) {
                Ok(()) => self.armed.set(true),
                Err(error) => {
                    tracing::warn!(device = self.limits.name, %error, "an RDMA device can no longer be used");
                    self.is_gone();
                    is_news = true;
                }
            }
        }
        // What completed before it was armed makes no noise.
        let found = self.poll() > 0;
        // A completion can be an order to post: not asleep with that undone.
        self.flush();
        found || is_news
    }
}

/// Lets go of a device that went away, when its last queue pair has ended.
async fn retire<V: Verbs>(devices: Weak<Devices<V>>, device: Rc<LocalDevice<V>>) {
    let over = || device.retired.get() || (device.gone.get() && device.is_empty());
    device.changed.wait_for(|| over().then_some(())).await;
    let is_it = |entry: &Entry<V>| matches!(entry, Entry::Open(other, _) if Rc::ptr_eq(other, &device));
    let entry = devices.upgrade().and_then(|devices| {
        let mut devices = devices.borrow_mut();
        let at = devices.iter().position(|(_, entry)| is_it(entry))?;
        Some(devices.remove(at))
    });
    drop(entry);
    device.shut();
}

type Devices<V> = RefCell<Vec<(u64, Entry<V>)>>;

enum Entry<V: Verbs> {
    Opening,
    Open(Rc<LocalDevice<V>>, #[allow(dead_code, reason = "held: it ends the hook")] HookGuard),
}

/// What one reactor keeps of RDMA.
pub struct Local<V: Verbs> {
    reactor: Reactor,
    devices: Rc<Devices<V>>,
    changed: Signal,
    /// Counted here.
    pub counters: Arc<Counters>,
}

impl<V: Verbs> Local<V> {
    /// No device yet.
    pub fn new(reactor: &Reactor) -> Local<V> {
        Local {
            reactor: reactor.clone(),
            devices: Rc::default(),
            changed: Signal::new(),
            counters: Arc::default(),
        }
    }

    fn find(&self, key: u64) -> Option<Option<Rc<LocalDevice<V>>>> {
        self.devices.borrow().iter().find(|(other, _)| *other == key).map(|(_, entry)| match entry {
            Entry::Opening => None,
            Entry::Open(device, _) => Some(device.clone()),
        })
    }

    /// A device, opened when it is first needed.
    pub async fn device(&self, device: V::Device, in_capsule: usize) -> io::Result<Rc<LocalDevice<V>>> {
        let key = V::device_key(&device);
        loop {
            match self.find(key) {
                Some(Some(device)) => return Ok(device),
                Some(None) => {
                    let ready = || (!matches!(self.find(key), Some(None))).then_some(());
                    self.changed.wait_for(ready).await;
                }
                None => break,
            }
        }
        self.retire_all_but(key);
        self.devices.borrow_mut().push((key, Entry::Opening));
        let unfinished = Unfinished { local: self, key };
        let device = LocalDevice::open(&self.reactor, device, in_capsule, self.counters.clone()).await?;
        std::mem::forget(unfinished);
        let hook = self.reactor.add_hook(device.clone());
        let mut devices = self.devices.borrow_mut();
        devices.retain(|(other, _)| *other != key);
        devices.push((key, Entry::Open(device.clone(), hook)));
        drop(devices);
        self.reactor.spawn(retire(Rc::downgrade(&self.devices), device.clone()));
        self.changed.notify();
        Ok(device)
    }

    /// A queue pair by its device and owner number.
    pub fn pair(&self, device: u64, owner: u32) -> Option<Rc<Inner<V>>> {
        self.find(device).flatten()?.pair(owner)
    }

    /// Lets go of devices that have no queue pair any more: they may be gone.
    fn retire_all_but(&self, key: u64) {
        let mut devices = self.devices.borrow_mut();
        let unused = |(other, entry): &mut (u64, Entry<V>)| {
            *other != key && matches!(entry, Entry::Open(device, _) if device.is_empty())
        };
        let retired: Vec<_> = devices.extract_if(.., unused).collect();
        drop(devices);
        for (_, entry) in retired {
            if let Entry::Open(device, _) = entry {
                device.shut();
            }
        }
    }
}

/// Opening was given up or failed: others may try.
struct Unfinished<'a, V: Verbs> {
    local: &'a Local<V>,
    key: u64,
}

impl<V: Verbs> Drop for Unfinished<'_, V> {
    fn drop(&mut self) {
        self.local.devices.borrow_mut().retain(|(key, _)| *key != self.key);
        self.local.changed.notify();
    }
}

impl<V: Verbs> Drop for Local<V> {
    fn drop(&mut self) {
        let devices = std::mem::take(&mut *self.devices.borrow_mut());
        for (_, entry) in &devices {
            if let Entry::Open(device, _) = entry {
                device.shut();
            }
        }
    }
}
