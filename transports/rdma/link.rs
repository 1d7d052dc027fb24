//! Between the connection manager's events, read on the reactor of the port, and a queue pair on another.

use futures::task::AtomicWaker;
use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    task::Poll,
};

/// The connection is established.
pub const ESTABLISHED: u8 = 1;
/// The connection has ended.
pub const ENDED: u8 = 2;
/// Nobody will take the queue pair into service.
pub const ABANDONED: u8 = 4;
/// The connection has ended because its device goes away.
pub const REMOVED: u8 = 8;

/// What is known of one connection. Marks come and stay.
#[derive(Default)]
pub struct Link {
    marks: AtomicU8,
    waker: AtomicWaker,
}

impl Link {
    /// Sets a mark, from any thread.
    pub fn mark(&self, mark: u8) {
        self.marks.fetch_or(mark, Ordering::AcqRel);
        self.waker.wake();
    }

    /// Waits for marks other than `known`; all marks. One task may wait at a time.
    pub async fn beyond(&self, known: u8) -> u8 {
        poll_fn(|cx| {
            self.waker.register(cx.waker());
            let marks = self.marks.load(Ordering::Acquire);
            if marks == known { Poll::Pending } else { Poll::Ready(marks) }
        })
        .await
    }
}

/// The connections of a port by the key that events name them with.
#[derive(Default)]
pub struct Links(Mutex<HashMap<u64, Arc<Link>>>);

impl Links {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Link>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new connection.
    pub fn add(&self, key: u64) -> Arc<Link> {
        let link = Arc::<Link>::default();
        self.lock().insert(key, link.clone());
        link
    }

    /// Sets a mark on a connection, if it is still known.
    pub fn mark(&self, key: u64, mark: u8) {
        let link = self.lock().get(&key).cloned();
        if let Some(link) = link {
            link.mark(mark);
        }
    }

    /// Forgets a connection; called before its identifier is destroyed, because another may get the same key.
    pub fn remove(&self, key: u64) {
        self.lock().remove(&key);
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}
