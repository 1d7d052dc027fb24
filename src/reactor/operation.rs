//! Operations in flight, and the future that waits for one.
//!
//! An entry owns what the kernel reads or writes (buffer, gather, descriptor) until the operation's last completion. When
//! the future is dropped before, the entry becomes an *orphan*: it is asked to cancel, and only its completion frees it.

use crate::{DataBuffer, Gather, reactor_loop::Core};
use io_uring::{cqueue, opcode, squeue};
use slab::Slab;
use std::{
    cell::RefCell,
    collections::VecDeque,
    future::Future,
    io,
    os::fd::{FromRawFd, OwnedFd},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

/// What an operation keeps alive besides its descriptor.
pub(crate) enum Keep {
    None,
    Buffer(DataBuffer),
    Gather(Box<Gather>),
    Bytes(Box<[u8]>),
    /// Descriptors of a multishot accept not yet taken.
    Accepted(VecDeque<OwnedFd>),
    /// Whether a multishot poll has fired since it was last asked.
    Fired(bool),
}

/// What a completion nobody waits for brings, which must not be lost.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Brings {
    Nothing,
    SharedBuffer,
    Descriptor,
    /// News, many times.
    Event,
}

enum State {
    Waiting(Option<Waker>),
    Done { result: i32, flags: u32, extra: u64 },
    Orphan,
}

struct Entry {
    state: State,
    brings: Brings,
    keep: Keep,
    _descriptor: Option<Rc<OwnedFd>>,
}

/// How an operation ended, and what it kept.
pub(crate) struct Outcome {
    pub(crate) result: io::Result<usize>,
    pub(crate) flags: u32,
    /// The first of the two more words of a large completion.
    pub(crate) extra: u64,
    pub(crate) keep: Keep,
}

/// The operations of one reactor.
pub(crate) struct Operations(RefCell<Slab<Entry>>);

impl Operations {
    pub(crate) fn new() -> Operations {
        Operations(RefCell::new(Slab::with_capacity(4096)))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// A completion of the ring. Returns a shared buffer that nobody wants.
    pub(crate) fn complete(
        &self,
        key: usize,
        result: i32,
        flags: u32,
        extra: u64,
        orphan_ended: impl FnOnce(),
    ) -> Option<u16> {
        let mut table = self.0.borrow_mut();
        let entry = table.get_mut(key)?;
        let last = !cqueue::more(flags);
        let mut unwanted = None;
        let mut waker = None;
        match &mut entry.state {
            State::Orphan => {
                match entry.brings {
                    Brings::SharedBuffer => unwanted = cqueue::buffer_select(flags),
                    Brings::Descriptor if result >= 0 => drop(own(result)),
                    _ => {}
                }
                if last {
                    let entry = table.remove(key);
                    drop(table);
                    drop(entry);
                    orphan_ended();
                    return unwanted;
                }
            }
            State::Waiting(_) if matches!(entry.brings, Brings::Descriptor | Brings::Event) => {
                match &mut entry.keep {
                    Keep::Accepted(accepted) if result >= 0 => accepted.push_back(own(result)),
                    Keep::Fired(fired) => *fired |= result >= 0,
                    _ => {}
                }
                let state = if last { State::Done { result, flags, extra } } else { State::Waiting(None) };
                if let State::Waiting(w) = std::mem::replace(&mut entry.state, state) {
                    waker = w;
                }
            }
            State::Waiting(_) => {
                if let State::Waiting(w) =
                    std::mem::replace(&mut entry.state, State::Done { result, flags, extra })
                {
                    waker = w;
                }
            }
            State::Done { .. } => {}
        }
        drop(table);
        if let Some(waker) = waker {
            waker.wake();
        }
        unwanted
    }

    /// Leaves what the kernel still holds to it for ever: only for a reactor that ends while a drive hangs.
    pub(crate) fn leak(&self) {
        std::mem::forget(std::mem::take(&mut *self.0.borrow_mut()));
    }
}

fn own(fd: i32) -> OwnedFd {
    // SAFETY: the completion of an accept hands over a new descriptor.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Waits for one operation.
pub(crate) struct Operation {
    core: Rc<Core>,
    key: Option<usize>,
}

impl Operation {
    /// Starts an operation. `build` makes the ring's entry from what is kept.
    ///
    /// # Safety
    /// The entry may only point into `keep` (at a place that does not move with it) or to memory that outlives the
    /// ring, and may only name `descriptor`.
    pub(crate) unsafe fn start<E: Into<squeue::Entry128>>(
        core: &Rc<Core>,
        descriptor: Option<Rc<OwnedFd>>,
        brings: Brings,
        mut keep: Keep,
        build: impl FnOnce(&mut Keep) -> E,
    ) -> Operation {
        let entry: squeue::Entry128 = build(&mut keep).into();
        let key = core.operations.0.borrow_mut().insert(Entry {
            state: State::Waiting(None),
            brings,
            keep,
            _descriptor: descriptor,
        });
        core.push(entry.user_data(key as u64));
        core.stats.operations.add(1);
        Operation { core: core.clone(), key: Some(key) }
    }

    /// News of a multishot poll; an error when it has ended and must be started again.
    pub(crate) fn poll_fired(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(key) = self.key else { return Poll::Ready(Err(io::ErrorKind::NotConnected.into())) };
        let mut table = self.core.operations.0.borrow_mut();
        let entry = &mut table[key];
        if let Keep::Fired(fired) = &mut entry.keep
            && std::mem::take(fired)
        {
            return Poll::Ready(Ok(()));
        }
        match &mut entry.state {
            State::Done { result, .. } => {
                let error = if *result < 0 { -*result } else { libc::EAGAIN };
                table.remove(key);
                drop(table);
                self.key = None;
                Poll::Ready(Err(io::Error::from_raw_os_error(error)))
            }
            state => {
                *state = State::Waiting(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }

    /// The next descriptor of a multishot accept.
    pub(crate) fn poll_accepted(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<OwnedFd>> {
        let Some(key) = self.key else { return Poll::Ready(Err(io::ErrorKind::NotConnected.into())) };
        let mut table = self.core.operations.0.borrow_mut();
        let entry = &mut table[key];
        if let Keep::Accepted(accepted) = &mut entry.keep
            && let Some(fd) = accepted.pop_front()
        {
            return Poll::Ready(Ok(fd));
        }
        match &mut entry.state {
            State::Done { result, .. } => {
                let result = *result;
                table.remove(key);
                drop(table);
                self.key = None;
                Poll::Ready(Err(io::Error::from_raw_os_error(if result < 0 {
                    -result
                } else {
                    libc::EAGAIN
                })))
            }
            state => {
                *state = State::Waiting(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl Future for Operation {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let key = self.key.expect("an operation is not polled after its end");
        let mut table = self.core.operations.0.borrow_mut();
        match &mut table[key].state {
            State::Done { result, flags, extra } => {
                let (result, flags, extra) = (*result, *flags, *extra);
                let keep = table.remove(key).keep;
                drop(table);
                self.key = None;
                let result =
                    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as usize) };
                Poll::Ready(Outcome { result, flags, extra, keep })
            }
            state => {
                *state = State::Waiting(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut table = self.core.operations.0.borrow_mut();
        let entry = &mut table[key];
        if let State::Done { flags, .. } = entry.state {
            let shared = entry.brings == Brings::SharedBuffer;
            let entry = table.remove(key);
            drop(table);
            drop(entry);
            if let (true, Some(id)) = (shared, cqueue::buffer_select(flags)) {
                self.core.receive_pool.give(id);
            }
            return;
        }
        entry.state = State::Orphan;
        drop(table);
        self.core.stats.orphans.add(1);
        self.core
            .push(opcode::AsyncCancel::new(key as u64).build().user_data(crate::reactor_loop::CANCEL).into());
    }
}
