//! A host that owes something has a time limit: the rest of a PDU it began, data it was asked for, or reading what it is sent.
//!
//! Nothing on the command path keeps time for this. A queue pair looks a few times per limit, and an idle one finds nothing.

use super::queue_pair::{Fetch, Inner};
use crate::CloseReason;
use futures::future::{Either, select};
use reactor::system;
use std::{pin::pin, rc::Rc, time::Instant};

/// Looks per time limit.
const LOOKS: u32 = 4;

/// Closes the queue pair when its host stalls.
pub(super) async fn watch(inner: Rc<Inner>) {
    let limit = inner.parameters.stall_time;
    let mut sending: Option<(usize, Instant)> = None;
    loop {
        let closed = pin!(inner.wait_for_close());
        if let Either::Left(_) = select(closed, inner.reactor.sleep(limit / LOOKS)).await {
            return;
        }
        let now = inner.reactor.now();
        let unread = inner.send.is_in_flight().then(|| system::unacknowledged(&inner.socket));
        sending = match (unread, sending) {
            (Some(unread), Some((before, since))) if unread == before => Some((unread, since)),
            (unread, _) => unread.map(|unread| (unread, now)),
        };
        let expired = |since: Instant| now.saturating_duration_since(since) >= limit;
        if sending.is_some_and(|(_, since)| expired(since)) || owes_data(&inner, expired) {
            inner.close(CloseReason::Stalled);
            return;
        }
    }
}

/// Whether data the host promised is overdue.
fn owes_data(inner: &Inner, expired: impl Fn(Instant) -> bool) -> bool {
    if inner.starved.get() {
        return false;
    }
    let fetches = &inner.slots.borrow().all;
    let overdue = |fetch: &Fetch| matches!(fetch, Fetch::Active { since, .. } if expired(*since));
    inner.partial_since.get().is_some_and(&expired) || fetches.iter().any(|slot| overdue(&slot.fetch))
}
