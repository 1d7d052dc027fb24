//! Tasks: futures of one reactor, many of one type under one roof.
//!
//! A task has *slots*, each a future of the same type; a queue pair's commands are the slots of one task. Waking names a
//! slot, and a turn polls all ready slots of a task behind one dynamic call. A waker is an integer (reactor, task,
//! generation, slot): cloning and dropping it costs nothing, and one that outlives its task does nothing.

use crate::mailbox;
use slab::Slab;
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::Future,
    pin::Pin,
    ptr,
    rc::Rc,
    task::{Context, RawWaker, RawWakerVTable, Waker},
};

const SLOT_BITS: u32 = 12;
const TASK_BITS: u32 = 24;
const GENERATION_BITS: u32 = 20;

/// Slots a task may have.
pub(crate) const MAX_SLOTS: usize = 1 << SLOT_BITS;

/// A waker's integer: which slot of which task on which reactor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlotRef(u64);

impl SlotRef {
    fn new(reactor: u8, task: usize, generation: u32, slot: usize) -> SlotRef {
        let generation = u64::from(generation) & ((1 << GENERATION_BITS) - 1);
        SlotRef(
            u64::from(reactor) << (SLOT_BITS + TASK_BITS + GENERATION_BITS)
                | generation << (SLOT_BITS + TASK_BITS)
                | (task as u64) << SLOT_BITS
                | slot as u64,
        )
    }

    pub(crate) fn reactor(self) -> u8 {
        (self.0 >> (SLOT_BITS + TASK_BITS + GENERATION_BITS)) as u8
    }

    fn generation(self) -> u32 {
        (self.0 >> (SLOT_BITS + TASK_BITS)) as u32 & ((1 << GENERATION_BITS) - 1)
    }

    fn task(self) -> usize {
        (self.0 >> SLOT_BITS) as usize & ((1 << TASK_BITS) - 1)
    }

    fn slot(self) -> usize {
        self.0 as usize & (MAX_SLOTS - 1)
    }

    fn raw(self) -> RawWaker {
        RawWaker::new(ptr::without_provenance(self.0 as usize), &VTABLE)
    }
}

const _: () = assert!(usize::BITS == 64, "wakers are 64-bit integers");

static VTABLE: RawWakerVTable = RawWakerVTable::new(
    |data| SlotRef(data.addr() as u64).raw(),
    |data| wake(SlotRef(data.addr() as u64)),
    |data| wake(SlotRef(data.addr() as u64)),
    |_| {},
);

thread_local! {
    /// The executor whose tasks run on this thread.
    static CURRENT: RefCell<Option<(u8, Rc<Executor>)>> = const { RefCell::new(None) };
}

fn wake(slot: SlotRef) {
    let here = CURRENT.try_with(|current| match &*current.borrow() {
        Some((reactor, executor)) if *reactor == slot.reactor() => {
            executor.make_ready(slot);
            true
        }
        _ => false,
    });
    if here != Ok(true) {
        mailbox::wake_elsewhere(slot);
    }
}

trait Body {
    /// Polls one slot; true when the last slot of the task has ended.
    fn poll(&mut self, slot: usize, waker: &Waker) -> bool;
}

struct Slots<F> {
    futures: Pin<Box<[Option<F>]>>,
    live: usize,
}

impl<F: Future<Output = ()>> Body for Slots<F> {
    fn poll(&mut self, slot: usize, waker: &Waker) -> bool {
        // SAFETY: the futures stay in their box until dropped in place by `Pin::set`; only pinned access is given out.
        let mut future = unsafe { self.futures.as_mut().map_unchecked_mut(|all| &mut all[slot]) };
        let poll = match future.as_mut().as_pin_mut() {
            Some(future) => future.poll(&mut Context::from_waker(waker)),
            None => return false,
        };
        if poll.is_ready() {
            future.set(None);
            self.live -= 1;
        }
        self.live == 0
    }
}

struct Task {
    generation: u32,
    queued: Cell<bool>,
    ready: Box<[Cell<u64>]>,
    /// Taken out while it is polled.
    body: Option<Box<dyn Body>>,
}

/// The tasks of one reactor.
pub(crate) struct Executor {
    reactor: u8,
    tasks: RefCell<Slab<Task>>,
    queue: RefCell<VecDeque<u32>>,
    generation: Cell<u32>,
}

impl Executor {
    pub(crate) fn new(reactor: u8) -> Executor {
        Executor {
            reactor,
            tasks: RefCell::new(Slab::with_capacity(256)),
            queue: RefCell::new(VecDeque::with_capacity(1024)),
            generation: Cell::new(0),
        }
    }

    /// Makes this executor the one that wakers on this thread find.
    pub(crate) fn enter(self: &Rc<Self>) {
        CURRENT.with(|current| *current.borrow_mut() = Some((self.reactor, self.clone())));
    }

    /// The end of `enter`.
    pub(crate) fn leave(&self) {
        CURRENT.with(|current| *current.borrow_mut() = None);
    }

    /// Starts a task whose slots are `futures`. It ends when all of them have.
    pub(crate) fn spawn<F: Future<Output = ()> + 'static>(&self, futures: impl Iterator<Item = F>) {
        let futures: Box<[Option<F>]> = futures.map(Some).collect();
        let slots = futures.len();
        assert!((1..=MAX_SLOTS).contains(&slots), "a task of {slots} slots");
        let generation = self.generation.get().wrapping_add(1);
        self.generation.set(generation);
        let ready = (0..slots.div_ceil(64))
            .map(|word| Cell::new(if (word + 1) * 64 <= slots { u64::MAX } else { (1 << (slots % 64)) - 1 }))
            .collect();
        let body: Box<dyn Body> = Box::new(Slots { live: slots, futures: Box::into_pin(futures) });
        let generation = generation & ((1 << GENERATION_BITS) - 1);
        let task = Task { generation, queued: Cell::new(true), ready, body: Some(body) };
        let index = self.tasks.borrow_mut().insert(task);
        assert!(index < 1 << TASK_BITS, "too many tasks");
        self.queue.borrow_mut().push_back(index as u32);
    }

    pub(crate) fn make_ready(&self, slot: SlotRef) {
        let tasks = self.tasks.borrow();
        let Some(task) = tasks.get(slot.task()).filter(|t| t.generation == slot.generation()) else { return };
        let word = &task.ready[slot.slot() / 64];
        word.set(word.get() | 1 << (slot.slot() % 64));
        if !task.queued.replace(true) {
            self.queue.borrow_mut().push_back(slot.task() as u32);
        }
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.queue.borrow().is_empty()
    }

    pub(crate) fn tasks(&self) -> usize {
        self.tasks.borrow().len()
    }

    /// Polls what is ready, and what that makes ready, up to a bound that keeps the ring served.
    pub(crate) fn run_ready(&self) {
        for _ in 0..4096 {
            let Some(index) = self.queue.borrow_mut().pop_front() else { return };
            self.poll_task(index as usize);
        }
    }

    fn poll_task(&self, index: usize) {
        let (mut body, generation, words) = {
            let mut tasks = self.tasks.borrow_mut();
            // Woken in its own last poll, it is gone when its turn comes.
            let Some(task) = tasks.get_mut(index) else { return };
            task.queued.set(false);
            let Some(body) = task.body.take() else { return };
            (body, task.generation, task.ready.len())
        };
        let mut ended = false;
        for word in 0..words {
            let mut bits = self.tasks.borrow()[index].ready[word].take();
            while bits != 0 {
                let slot = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let raw = SlotRef::new(self.reactor, index, generation, slot).raw();
                // SAFETY: the table's functions keep the contract: plain integers, no state to keep alive.
                let waker = unsafe { Waker::from_raw(raw) };
                ended |= body.poll(slot, &waker);
            }
        }
        if ended {
            self.tasks.borrow_mut().remove(index);
            // Only now: dropping may wake other tasks, this one is gone.
            drop(body);
        } else {
            self.tasks.borrow_mut()[index].body = Some(body);
        }
    }

    /// Drops every task.
    pub(crate) fn clear(&self) {
        loop {
            let Some(key) = self.tasks.borrow().iter().next().map(|(key, _)| key) else { break };
            let task = self.tasks.borrow_mut().remove(key);
            drop(task);
        }
        self.queue.borrow_mut().clear();
    }
}

#[cfg(test)]
mod unit {
    use super::*;
    use std::{future::poll_fn, task::Poll};

    #[test]
    fn a_task_that_wakes_itself_and_ends_is_gone() {
        let executor = Rc::new(Executor::new(201));
        executor.enter();
        executor.spawn(std::iter::once(poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::Ready(())
        })));
        executor.run_ready();
        assert_eq!((executor.tasks(), executor.has_ready()), (0, false));
        executor.leave();
    }

    #[test]
    fn ready_slots_of_a_task_are_polled_and_no_others() {
        let executor = Rc::new(Executor::new(200));
        executor.enter();
        let polls: Rc<RefCell<Vec<usize>>> = Rc::default();
        let wakers: Rc<RefCell<Vec<Option<Waker>>>> = Rc::new(RefCell::new(vec![None; 130]));
        let slots = (0..130).map(|i| {
            let (polls, wakers) = (polls.clone(), wakers.clone());
            let mut times = 0;
            poll_fn(move |cx| {
                polls.borrow_mut().push(i);
                wakers.borrow_mut()[i] = Some(cx.waker().clone());
                times += 1;
                if times == 2 { Poll::Ready(()) } else { Poll::Pending }
            })
        });
        executor.spawn(slots);
        executor.run_ready();
        assert_eq!(polls.borrow_mut().drain(..).collect::<Vec<_>>(), (0..130).collect::<Vec<_>>());
        for i in [129, 3, 64, 3] {
            wakers.borrow()[i].as_ref().unwrap().wake_by_ref();
        }
        executor.run_ready();
        assert_eq!(polls.borrow_mut().drain(..).collect::<Vec<_>>(), [3, 64, 129]);
        let all: Vec<_> = wakers.borrow().iter().flatten().cloned().collect();
        all.iter().for_each(Waker::wake_by_ref);
        executor.run_ready();
        assert_eq!((polls.borrow().len(), executor.tasks()), (127, 0));
        executor.spawn(std::iter::once(async {}));
        all.iter().for_each(Waker::wake_by_ref);
        executor.run_ready();
        assert_eq!(polls.borrow().len(), 127, "a waker that outlives its task does nothing to the next one");
        executor.leave();
    }
}
