//! The only door into a reactor for other threads: a queue of closures and an eventfd that the ring reads.

use crate::{Reactor, executor::SlotRef};
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError, RwLock},
};

type Message = Box<dyn FnOnce(&Reactor) + Send>;

struct Shared {
    /// None once the reactor has ended: then messages are dropped.
    queue: Mutex<Option<VecDeque<Message>>>,
    event: OwnedFd,
}

/// Sends closures to be run on a reactor's thread.
#[derive(Clone)]
pub struct Mailbox {
    reactor: u8,
    shared: Arc<Shared>,
}

/// The mailboxes of this process by reactor, so that wakers (integers) find home from any thread.
static ALL: RwLock<Vec<Option<Mailbox>>> = RwLock::new(Vec::new());

impl Mailbox {
    /// A mailbox for a new reactor, which it numbers.
    pub(crate) fn register() -> io::Result<Mailbox> {
        // SAFETY: plain system call; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nothing else owns.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut all = ALL.write().unwrap_or_else(PoisonError::into_inner);
        let free = all.iter().position(Option::is_none).unwrap_or(all.len());
        let reactor =
            u8::try_from(free).map_err(|_| io::Error::other("more than 256 reactors in one process"))?;
        let mailbox =
            Mailbox { reactor, shared: Arc::new(Shared { queue: Mutex::new(Some(VecDeque::new())), event }) };
        if free == all.len() {
            all.push(None);
        }
        all[free] = Some(mailbox.clone());
        Ok(mailbox)
    }

    /// Takes the reactor's number back; later wakes for it are dropped.
    pub(crate) fn unregister(&self) {
        ALL.write().unwrap_or_else(PoisonError::into_inner)[self.reactor as usize] = None;
        let left = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(left);
    }

    pub(crate) fn reactor(&self) -> u8 {
        self.reactor
    }

    pub(crate) fn event_fd(&self) -> i32 {
        self.shared.event.as_raw_fd()
    }

    /// Runs `message` on the reactor's thread, soon. If the reactor has ended, it is dropped.
    pub fn send(&self, message: impl FnOnce(&Reactor) + Send + 'static) {
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(messages) = queue.as_mut() else {
            drop(queue);
            // Outside of the lock: what it holds may send messages of its own.
            return drop(message);
        };
        messages.push_back(Box::new(message));
        let first = messages.len() == 1;
        drop(queue);
        if first {
            let one = 1u64;
            // SAFETY: eight bytes of a live value. It can only fail when the counter is full, and then it is awake.
            unsafe { libc::write(self.event_fd(), (&raw const one).cast(), 8) };
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.as_ref().is_none_or(VecDeque::is_empty)
    }

    pub(crate) fn take(&self) -> VecDeque<Message> {
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

/// Wakes a slot whose reactor is not the one of this thread.
pub(crate) fn wake_elsewhere(slot: SlotRef) {
    let all = ALL.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(Some(mailbox)) = all.get(slot.reactor() as usize) {
        mailbox.send(move |reactor| reactor.make_ready(slot));
    }
}
