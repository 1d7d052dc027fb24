//! Timers: a heap in user space; the ring's wait ends at the earliest.

use slab::Slab;
use std::{
    cell::RefCell,
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

/// The timers of one reactor.
#[derive(Default)]
pub(crate) struct Timers(RefCell<State>);

impl Timers {
    /// When the next one is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        let mut state = self.0.borrow_mut();
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
            let mut state = self.0.borrow_mut();
            let Some(Reverse((_, _, key))) = state.heap.pop() else { return };
            let entry = state.entries.remove(key);
            drop(state);
            entry.waker.wake();
        }
    }

    #[cfg(test)]
    pub(crate) fn pending(&self) -> usize {
        self.0.borrow().entries.len()
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
        let mut state = self.timers.0.borrow_mut();
        if state.entries.get(key).is_some_and(|e| e.serial == serial) {
            state.entries.remove(key);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.at {
            self.forget();
            return Poll::Ready(());
        }
        let timers = self.timers.clone();
        let mut state = timers.0.borrow_mut();
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
