//! What one reactor counts of RDMA: single-writer cells, read by the exporter.

use super::adapter::WorkStatus;
use reactor::Counter;

/// The counters.
#[derive(Debug, Default)]
pub struct Counters {
    /// READs posted.
    pub reads: Counter,
    /// WRITEs posted.
    pub writes: Counter,
    /// Responses posted.
    pub sends: Counter,
    /// Receives posted.
    pub receives: Counter,
    /// Calls that posted to a send queue.
    pub doorbells: Counter,
    /// Completions taken.
    pub completions: Counter,
    /// Looks at a completion queue that found something.
    pub polls: Counter,
    /// READs that had to wait for others.
    pub read_waits: Counter,
    /// Responses that had to wait for room in the send queue.
    pub send_waits: Counter,
    /// Capsules that had to wait for a slot.
    pub parked: Counter,
    /// Keys invalidated with a response.
    pub invalidations: Counter,
    /// Keys that a host asked to have invalidated, and that were left to it.
    pub invalidations_left: Counter,
    /// Work requests by how they ended: [`WorkStatus::NAMES`].
    pub ended: [Counter; WorkStatus::NAMES.len()],
    /// Connection requests rejected.
    pub rejects: Counter,
    /// Queue pairs that exist.
    pub queue_pairs: Counter,
}
