//! Fused operations: which command follows which, by order of arrival on the queue.
//!
//! A first half and its second are neighbours in the submission queue. The slots that execute them run in any order and data
//! may come late, so only the transport knows who came after whom: it notes every command here, before the command's slot can
//! see it. What the halves are for, and whether they fit, is the pipeline's business.

use crate::Slot;
use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    task::{Poll, Waker},
};

/// FUSE: the first command of a fused operation.
pub const FUSED_FIRST: u8 = 0b01;
/// FUSE: the second command of a fused operation.
pub const FUSED_SECOND: u8 = 0b10;

/// A half until its slot has asked for its partner.
struct Half {
    slot: Slot,
    /// Known when the next command has come (or none can come any more).
    partner: Option<Option<Slot>>,
    waker: Option<Waker>,
}

/// The order of arrival of a queue pair's commands, as far as fused operations need it.
#[derive(Default)]
pub struct Arrivals {
    /// The latest command, if it was a first half.
    first: Cell<Option<Slot>>,
    halves: RefCell<Vec<Half>>,
    ended: Cell<bool>,
}

impl Arrivals {
    /// A command has arrived and will be given to `slot`. `fuse` is its FUSE field.
    pub fn note(&self, slot: Slot, fuse: u8) {
        if fuse != 0 || self.first.get().is_some() {
            self.note_half(slot, fuse);
        }
    }

    #[cold]
    fn note_half(&self, slot: Slot, fuse: u8) {
        let before = self.first.take();
        if let Some(first) = before {
            self.resolve(first, (fuse == FUSED_SECOND).then_some(slot));
        }
        let partner = match fuse {
            FUSED_FIRST => {
                self.first.set(Some(slot));
                self.ended.get().then_some(None)
            }
            FUSED_SECOND => Some(before),
            _ => return,
        };
        self.halves.borrow_mut().push(Half { slot, partner, waker: None });
    }

    fn resolve(&self, slot: Slot, partner: Option<Slot>) {
        let mut halves = self.halves.borrow_mut();
        let Some(half) = halves.iter_mut().find(|half| half.slot == slot) else { return };
        half.partner = Some(partner);
        let waker = half.waker.take();
        drop(halves);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The slot of the other half of the command in `slot`, if it has one. A first half waits for the next command. To be asked
    /// once for each half.
    pub async fn partner(&self, slot: Slot) -> Option<Slot> {
        poll_fn(|cx| {
            let mut halves = self.halves.borrow_mut();
            let Some(at) = halves.iter().position(|half| half.slot == slot) else { return Poll::Ready(None) };
            match halves[at].partner {
                Some(partner) => {
                    halves.swap_remove(at);
                    Poll::Ready(partner)
                }
                None => {
                    halves[at].waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// The first half in `slot` waits no more. A command that comes from now on does not belong to it.
    pub fn give_up(&self, slot: Slot) {
        if self.first.get() == Some(slot) {
            self.first.set(None);
        }
        self.halves.borrow_mut().retain(|half| half.slot != slot);
    }

    /// No more commands come: a first half that waits for its second waits in vain.
    pub fn end(&self) {
        self.ended.set(true);
        if let Some(first) = self.first.take() {
            self.resolve(first, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn partner(arrivals: &Arrivals, slot: Slot) -> Option<Slot> {
        arrivals.partner(slot).now_or_never().expect("known by now")
    }

    #[test]
    fn neighbours_pair_and_nobody_else() {
        let arrivals = Arrivals::default();
        let all = [(7, 1), (3, 2), (5, 1), (4, 0), (9, 2), (1, 1), (2, 1), (6, 2), (8, 2), (10, 1), (11, 3)];
        for (slot, fuse) in all {
            arrivals.note(slot, fuse);
        }
        // In any order.
        assert_eq!((partner(&arrivals, 3), partner(&arrivals, 7)), (Some(7), Some(3)));
        assert_eq!((partner(&arrivals, 5), partner(&arrivals, 9)), (None, None));
        assert_eq!((partner(&arrivals, 1), partner(&arrivals, 2)), (None, Some(6)));
        assert_eq!((partner(&arrivals, 6), partner(&arrivals, 8)), (Some(2), None));
        assert_eq!(partner(&arrivals, 10), None);
        assert!(arrivals.halves.borrow().is_empty());
    }

    #[test]
    fn a_first_half_waits_for_the_next_command_or_the_end() {
        let arrivals = Arrivals::default();
        arrivals.note(1, 1);
        assert!(arrivals.partner(1).now_or_never().is_none());
        arrivals.note(2, 2);
        assert_eq!((partner(&arrivals, 1), partner(&arrivals, 2)), (Some(2), Some(1)));
        arrivals.note(1, 1);
        arrivals.give_up(1);
        arrivals.note(2, 2);
        assert_eq!(partner(&arrivals, 2), None, "who gave up is nobody's partner");
        arrivals.note(1, 1);
        arrivals.end();
        assert_eq!(partner(&arrivals, 1), None);
        assert!(arrivals.halves.borrow().is_empty());
    }
}
