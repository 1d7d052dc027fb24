//! The helper thread: what may block (making, registering, destroying, accepting) is done there, never on a reactor.

use futures::channel::oneshot;
use std::{
    io,
    sync::{OnceLock, mpsc},
    thread,
};

type Job = Box<dyn FnOnce() + Send>;

/// One for the process: the calls are short, and the verbs take locks of their own.
fn helper() -> Option<&'static mpsc::Sender<Job>> {
    static HELPER: OnceLock<Option<mpsc::Sender<Job>>> = OnceLock::new();
    let start = || {
        let (sender, receiver) = mpsc::channel::<Job>();
        let body = move || receiver.into_iter().for_each(|job| job());
        thread::Builder::new().name("weft-verbs".into()).spawn(body).ok().map(|_| sender)
    };
    HELPER.get_or_init(start).as_ref()
}

fn give(job: Job) {
    match helper() {
        // Without a helper (no thread could be started) it is done here: slow, not wrong.
        None => job(),
        Some(helper) => {
            if let Err(mpsc::SendError(job)) = helper.send(job) {
                job();
            }
        }
    }
}

/// Runs `job` on the helper thread.
pub async fn run<T: Send + 'static>(job: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let (sender, receiver) = oneshot::channel();
    give(Box::new(move || {
        // Nobody waits any more: what was made is destroyed here, where that may block.
        drop(sender.send(job()));
    }));
    receiver.await.unwrap_or_else(|_| Err(io::Error::other("the helper thread panicked")))
}

/// Drops `value` on the helper thread.
pub fn dispose(value: impl Send + 'static) {
    give(Box::new(move || drop(value)));
}
