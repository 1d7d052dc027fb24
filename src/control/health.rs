//! Whether the reactors live.
//!
//! An open port proves nothing: the kernel accepts connections for a process whose threads are all stuck. So
//! every reactor is asked for a heartbeat through its mailbox, the way any other message goes, whenever
//! somebody asks for the health. Between such requests nothing is woken.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{self, Instant};

use crate::metrics::Registry;

/// Much longer than any turn of a reactor, much shorter than the patience of hosts.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Asks the reactors for heartbeats.
pub(super) struct Health {
    registry: Arc<Registry>,
    /// By reactor: how many heartbeats were asked for. Only the control thread touches them.
    asked: Vec<AtomicU64>,
}

impl Health {
    pub(super) fn new(registry: Arc<Registry>) -> Self {
        let asked = registry.reactors().iter().map(|_| AtomicU64::new(0)).collect();
        Self { registry, asked }
    }

    /// One line for each reactor that does not answer; empty when all is well. A reactor that does not run
    /// yet is well.
    pub(super) async fn complaints(&self) -> String {
        for reactor in 0..self.asked.len() {
            // One question at a time: a stuck reactor's mailbox must not grow by being asked after.
            if self.answered(reactor) && self.registry.ping(reactor) {
                self.asked[reactor].fetch_add(1, Ordering::Relaxed);
            }
        }
        let deadline = Instant::now() + PATIENCE;
        while (0..self.asked.len()).any(|reactor| !self.answered(reactor)) && Instant::now() < deadline {
            time::sleep(LOOK_AGAIN).await;
        }
        let mut complaints = String::new();
        for reactor in (0..self.asked.len()).filter(|reactor| !self.answered(*reactor)) {
            // Writing to a String cannot fail.
            let _ =
                writeln!(complaints, "reactor {reactor} has not answered within {} s", PATIENCE.as_secs());
        }
        complaints
    }

    fn answered(&self, reactor: usize) -> bool {
        self.registry.reactors()[reactor].heartbeats.get() >= self.asked[reactor].load(Ordering::Relaxed)
    }
}
