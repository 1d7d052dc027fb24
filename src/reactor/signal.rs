//! Waiting for a condition on the same reactor.

use std::{
    cell::RefCell,
    future::poll_fn,
    task::{Poll, Waker},
};

/// Wakes everyone who waits whenever something they look at may have changed.
#[derive(Default)]
pub struct Signal(RefCell<Vec<Waker>>);

impl Signal {
    /// A signal nobody waits on.
    pub fn new() -> Signal {
        Signal::default()
    }

    /// Wakes all who wait; each looks at its condition again.
    pub fn notify(&self) {
        // Taken out first: a waker of another executor could come back here.
        let mut wakers = std::mem::take(&mut *self.0.borrow_mut());
        wakers.drain(..).for_each(Waker::wake);
        let mut now = self.0.borrow_mut();
        if now.is_empty() {
            // Keeps the room, so that waiting again allocates nothing.
            *now = wakers;
        }
    }

    /// Waits until `condition` yields something.
    pub async fn wait_for<T>(&self, mut condition: impl FnMut() -> Option<T>) -> T {
        poll_fn(|cx| match condition() {
            Some(value) => Poll::Ready(value),
            None => {
                let mut wakers = self.0.borrow_mut();
                if !wakers.iter().any(|w| w.will_wake(cx.waker())) {
                    wakers.push(cx.waker().clone());
                }
                Poll::Pending
            }
        })
        .await
    }
}
