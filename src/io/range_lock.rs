//! Ranges of a namespace that nobody else may write: what makes a fused Compare and Write atomic on every reactor.
//!
//! Ordinary writes must pay next to nothing for it. So a lock is not looked up where all reactors see it; it is *told* to
//! every reactor, and each answers once no write of its own can touch the range any more.
//!
//! # What a write does
//!
//! On its reactor it looks at the list of told ranges (empty but for the time of a fused pair: one load), counts itself into
//! the current *epoch*, executes, and counts itself out: plain cells of the reactor, nothing shared. A write that meets a
//! told range queues in the shared table instead, and counts itself in when its turn has come.
//!
//! # What a fused pair does
//!
//! 1. It queues in the shared table of the namespace (a mutex that only fused pairs and writes that met one touch). Its turn
//!    comes when nothing that overlaps stands before it: first come, first served, so that neither kind starves.
//! 2. It tells its range to all reactors that use the namespace. Each takes it into its list, so that new writes to the
//!    range go to the queue (behind the pair), then begins a new epoch and waits until the writes counted in the old one are
//!    out. Then it acknowledges. Writes to other ranges go on all the time, in the new epoch.
//! 3. With all acknowledgements, no write to the range is in flight and none can begin. The pair compares and writes.
//! 4. It leaves the table, which gives those behind it their turn, and tells the reactors.
//!
//! # Why nothing slips through
//!
//! * A write on reactor X is one thread's work: it is counted in before or after X takes the range into its list. Before: it
//!   is in the old epoch, and X does not acknowledge until it is out. After: it met the range.
//! * A write that queued counts itself in *before* it leaves the table, and the next fused pair is told to X after that: so it
//!   is in an epoch which that pair waits for.
//! * A reactor that opens the namespace in the middle copies the told ranges under the table's mutex, under which it also
//!   becomes one of those who are told: it sees every lock in one way or the other.
//! * A reactor that has ended drops its messages; that acknowledges them: it writes nothing any more.
//!
//! # Why nothing hangs
//!
//! A write that is counted in never waits for a range: commands of several ranges count in and out range by range, and wait
//! for their buffers before. A pair has both its buffers before it queues. What is held frees itself when dropped.

use reactor::{Mailbox, Reactor, Signal};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    future::poll_fn,
    rc::{Rc, Weak},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Poll, Waker},
};

/// Numbers for [`LocalLocks`], never used twice in a process.
static NEXT_KEY: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// This thread's halves, where messages find them.
    static HERE: RefCell<HashMap<u64, Weak<LocalLocks>>> = RefCell::default();
}

/// Blocks of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    first: u64,
    end: u64,
}

impl BlockRange {
    /// `blocks` blocks from `first` on.
    pub const fn new(first: u64, blocks: u64) -> BlockRange {
        BlockRange { first, end: first.saturating_add(blocks) }
    }

    const fn overlaps(&self, other: &BlockRange) -> bool {
        self.first < other.end && other.first < self.end
    }
}

/// Who waits in the table, and for what.
struct Entry {
    id: u64,
    range: BlockRange,
    /// A fused pair; otherwise a write that met one.
    exclusive: bool,
    /// Told to the reactors.
    told: bool,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// By arrival.
    entries: Vec<Entry>,
    reactors: Vec<(u64, Mailbox)>,
}

/// The locked ranges of a namespace: the half all reactors share.
#[derive(Default)]
pub struct RangeLocks(Mutex<Table>);

impl RangeLocks {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reactor's half. From now on the reactor is told of every lock.
    pub fn local(self: &Arc<Self>, reactor: &Reactor) -> Rc<LocalLocks> {
        let key = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
        let local = Rc::new(LocalLocks {
            key,
            shared: self.clone(),
            told: RefCell::default(),
            any_told: Cell::new(false),
            epoch: Cell::new(0),
            in_flight: Default::default(),
            turning: Cell::new(false),
            changed: Signal::new(),
        });
        HERE.with(|here| here.borrow_mut().insert(key, Rc::downgrade(&local)));
        let mut table = self.table();
        table.reactors.push((key, reactor.mailbox()));
        local.take_over(&table);
        drop(table);
        local
    }

    fn queue(self: &Arc<Self>, range: BlockRange, exclusive: bool) -> Queued {
        let mut table = self.table();
        let id = table.next;
        table.next += 1;
        table.entries.push(Entry { id, range, exclusive, told: false, waker: None });
        Queued { shared: self.clone(), id }
    }
}

/// A place in the table; given up when dropped.
struct Queued {
    shared: Arc<RangeLocks>,
    id: u64,
}

impl Queued {
    /// Waits until nothing that excludes this one stands before it.
    async fn turn(&self) {
        poll_fn(|cx| {
            let mut table = self.shared.table();
            let Some(at) = table.entries.iter().position(|e| e.id == self.id) else { return Poll::Ready(()) };
            let (before, rest) = table.entries.split_at_mut(at);
            let mine = &mut rest[0];
            let excludes = |e: &Entry| (e.exclusive || mine.exclusive) && e.range.overlaps(&mine.range);
            if !before.iter().any(excludes) {
                mine.waker = None;
                return Poll::Ready(());
            }
            mine.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Tells all reactors but the one whose half is `except`.
    fn tell(&self, except: u64) -> Acknowledgements {
        let pending = Arc::new(Pending::default());
        let mut table = self.shared.table();
        if let Some(mine) = table.entries.iter_mut().find(|e| e.id == self.id) {
            mine.told = true;
        }
        for (key, mailbox) in table.reactors.iter().filter(|(key, _)| *key != except) {
            let (key, acknowledgement) = (*key, pending.acknowledgement());
            mailbox.send(move |reactor| told(reactor, key, acknowledgement));
        }
        Acknowledgements(pending)
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let mut table = self.shared.table();
        let Some(at) = table.entries.iter().position(|e| e.id == self.id) else { return };
        let mine = table.entries.remove(at);
        if mine.told {
            for (key, mailbox) in &table.reactors {
                let key = *key;
                mailbox.send(move |_| drop(here(key).inspect(|local| local.refresh())));
            }
        }
        let wakers: Vec<Waker> = table.entries.iter_mut().filter_map(|e| e.waker.take()).collect();
        drop(table);
        wakers.into_iter().for_each(Waker::wake);
    }
}

fn here(key: u64) -> Option<Rc<LocalLocks>> {
    HERE.with(|here| here.borrow().get(&key).and_then(Weak::upgrade))
}

/// A message: a range was locked. It is acknowledged when no write of this reactor can touch it.
fn told(reactor: &Reactor, key: u64, acknowledgement: Acknowledgement) {
    let Some(local) = here(key) else { return };
    local.refresh();
    if local.is_idle() {
        return;
    }
    reactor.spawn(async move {
        local.settle().await;
        drop(acknowledgement);
    });
}

/// Acknowledgements that are still to come.
#[derive(Default)]
struct Pending(Mutex<(usize, Option<Waker>)>);

impl Pending {
    fn lock(&self) -> MutexGuard<'_, (usize, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn acknowledgement(self: &Arc<Self>) -> Acknowledgement {
        self.lock().0 += 1;
        Acknowledgement(self.clone())
    }
}

/// Given by being dropped, so that a message nobody reads any more gives it too.
struct Acknowledgement(Arc<Pending>);

impl Drop for Acknowledgement {
    fn drop(&mut self) {
        let mut pending = self.0.lock();
        pending.0 -= 1;
        let waker = if pending.0 == 0 { pending.1.take() } else { None };
        drop(pending);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

struct Acknowledgements(Arc<Pending>);

impl Acknowledgements {
    async fn all(self) {
        poll_fn(|cx| {
            let mut pending = self.0.lock();
            if pending.0 == 0 {
                return Poll::Ready(());
            }
            pending.1 = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// What a command remembers of having been counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a write that is counted in must be counted out"]
pub enum Mark {
    /// It changes nothing, and was not counted.
    None,
    /// Counted in the epoch of this number.
    Epoch(bool),
}

/// The locked ranges of a namespace: one reactor's half.
pub struct LocalLocks {
    key: u64,
    shared: Arc<RangeLocks>,
    told: RefCell<Vec<BlockRange>>,
    any_told: Cell<bool>,
    /// The epoch writes are counted into, 0 or 1. The other one is empty unless `turning`.
    epoch: Cell<usize>,
    in_flight: [Cell<u32>; 2],
    /// Somebody waits for the end of the other epoch.
    turning: Cell<bool>,
    changed: Signal,
}

impl LocalLocks {
    /// Counts a write in; none when it meets a locked range and has to [`wait`](Self::wait).
    pub fn enter(&self, first: u64, blocks: u64) -> Option<Mark> {
        if self.any_told.get() && self.meets(&BlockRange::new(first, blocks)) {
            return None;
        }
        Some(self.count_in())
    }

    #[cold]
    fn meets(&self, range: &BlockRange) -> bool {
        self.told.borrow().iter().any(|told| told.overlaps(range))
    }

    /// Counts a write in when the pairs before it are done.
    pub async fn wait(&self, first: u64, blocks: u64) -> Mark {
        let queued = self.shared.queue(BlockRange::new(first, blocks), false);
        queued.turn().await;
        // Before it leaves the table: see the head of this file.
        self.count_in()
    }

    /// Counts a write in, at once or when it can be.
    pub async fn entered(&self, first: u64, blocks: u64) -> Mark {
        match self.enter(first, blocks) {
            Some(mark) => mark,
            None => self.wait(first, blocks).await,
        }
    }

    fn count_in(&self) -> Mark {
        let epoch = self.epoch.get();
        self.in_flight[epoch].set(self.in_flight[epoch].get() + 1);
        Mark::Epoch(epoch == 1)
    }

    /// Counts a write out.
    pub fn leave(&self, mark: Mark) {
        let Mark::Epoch(epoch) = mark else { return };
        let count = &self.in_flight[usize::from(epoch)];
        count.set(count.get() - 1);
        if self.turning.get() && count.get() == 0 {
            self.changed.notify();
        }
    }

    /// Locks a range on all reactors, until what is returned is dropped.
    pub async fn lock(self: &Rc<Self>, first: u64, blocks: u64) -> RangeLock {
        let queued = self.shared.queue(BlockRange::new(first, blocks), true);
        queued.turn().await;
        let acknowledgements = queued.tell(self.key);
        self.refresh();
        self.settle().await;
        acknowledgements.all().await;
        RangeLock { queued: Some(queued), local: self.clone() }
    }

    fn refresh(&self) {
        self.take_over(&self.shared.table());
    }

    fn take_over(&self, table: &Table) {
        let mut told = self.told.borrow_mut();
        told.clear();
        told.extend(table.entries.iter().filter(|e| e.told).map(|e| e.range));
        self.any_told.set(!told.is_empty());
    }

    /// Whether no write is in flight.
    fn is_idle(&self) -> bool {
        self.in_flight.iter().all(|count| count.get() == 0)
    }

    /// Waits until all writes that are in flight now have ended.
    async fn settle(&self) {
        // An epoch that is ending may hold writes that began before this one's range was told, and so may the new one.
        self.changed.wait_for(|| (!self.turning.get()).then_some(())).await;
        if self.is_idle() {
            return;
        }
        let old = self.epoch.get();
        self.turning.set(true);
        self.epoch.set(1 - old);
        self.changed.wait_for(|| (self.in_flight[old].get() == 0).then_some(())).await;
        self.turning.set(false);
        self.changed.notify();
    }
}

impl Drop for LocalLocks {
    fn drop(&mut self) {
        self.shared.table().reactors.retain(|(key, _)| *key != self.key);
        // At the end of the thread the map may be gone before.
        let _ = HERE.try_with(|here| here.borrow_mut().remove(&self.key));
    }
}

/// A locked range; free when dropped.
pub struct RangeLock {
    queued: Option<Queued>,
    local: Rc<LocalLocks>,
}

impl Drop for RangeLock {
    fn drop(&mut self) {
        drop(self.queued.take());
        // Its own reactor knows at once.
        self.local.refresh();
    }
}
