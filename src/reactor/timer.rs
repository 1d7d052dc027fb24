//! Timers: a heap in user space; the ring's wait ends at the earliest.

use slab::Slab;
use std::{
    cell::{Cell, RefCell},
    cmp::Reverse,
    collections::BinaryHeap,
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Instant,
};

struct Entry {
    serial: u64,
    waker: Waker,
}

#[derive(Default)]
struct State {
    heap: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    entries: Slab<Entry>,
    serial: u64,
}

/// The timers of one reactor, and the clock they follow.
#[derive(Default)]
pub(crate) struct Timers {
    state: RefCell<State>,
    /// The time, where it is made up.
    made_up: Cell<Option<Instant>>,
}

impl Timers {
    /// Lets time stand still until [`Timers::jump`].
    pub(crate) fn make_up_time(&self) {
        self.made_up.set(Some(Instant::now()));
    }

    pub(crate) fn has_made_up_time(&self) -> bool {
        self.made_up.get().is_some()
    }

    /// Moves made-up time on to when the next timer is due; false when there is none.
    pub(crate) fn jump(&self) -> bool {
        let next = self.next();
        if let (Some(now), Some(at)) = (self.made_up.get(), next) {
            self.made_up.set(Some(now.max(at)));
        }
        next.is_some()
    }

    /// The time.
    pub(crate) fn now(&self) -> Instant {
        self.made_up.get().unwrap_or_else(Instant::now)
    }

    /// When the next one is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        let mut state = self.state.borrow_mut();
        while let Some(Reverse((at, serial, key))) = state.heap.peek().copied() {
            if state.entries.get(key).is_some_and(|e| e.serial == serial) {
                return Some(at);
            }
            state.heap.pop();
        }
        None
    }

    /// Wakes those that are due.
    pub(crate) fn fire(&self, now: Instant) {
        while self.next().is_some_and(|at| at <= now) {
            let mut state = self.state.borrow_mut();
            let Some(Reverse((_, _, key))) = state.heap.pop() else { return };
            let entry = state.entries.remove(key);
            drop(state);
            entry.waker.wake();
        }
    }

    #[cfg(test)]
    pub(crate) fn pending(&self) -> usize {
        self.state.borrow().entries.len()
    }
}

/// Waits until a time.
pub struct Sleep {
    timers: Rc<Timers>,
    at: Instant,
    entry: Option<(usize, u64)>,
}

impl Sleep {
    pub(crate) fn new(timers: &Rc<Timers>, at: Instant) -> Sleep {
        Sleep { timers: timers.clone(), at, entry: None }
    }

    fn forget(&mut self) {
        let Some((key, serial)) = self.entry.take() else { return };
        let mut state = self.timers.state.borrow_mut();
        if state.entries.get(key).is_some_and(|e| e.serial == serial) {
            state.entries.remove(key);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.timers.now() >= self.at {
            self.forget();
            return Poll::Ready(());
        }
        let timers = self.timers.clone();
        let mut state = timers.state.borrow_mut();
        if let Some((key, serial)) = self.entry
            && let Some(entry) = state.entries.get_mut(key).filter(|e| e.serial == serial)
        {
            entry.waker.clone_from(cx.waker());
            return Poll::Pending;
        }
        state.serial += 1;
        let serial = state.serial;
        let key = state.entries.insert(Entry { serial, waker: cx.waker().clone() });
        state.heap.push(Reverse((self.at, serial, key)));
        self.entry = Some((key, serial));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.forget();
    }
}
