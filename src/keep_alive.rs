//! Keep alive: a controller whose host shows no sign of life for its timeout (KATO) ends.
//!
//! Any command on any queue pair of the controller counts (CTRATT.TBKAS), seen as a change of the sum of the queue pairs'
//! activity counters. Base specification, "Keep Alive".

use crate::queue_pair::QueuePair;
use futures::future::{Either, select};
use std::{pin::pin, rc::Rc, time::Duration};
use transports::QueuePair as TransportQueuePair;

/// Idle sessions of discovery controllers without a timeout of their own are ended after this.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(120);
/// Looked at so many times per timeout, so that an expiry is late by this part of it at most.
const LOOKS: u32 = 4;
/// How often a controller without a timeout looks whether it was given one.
const UNSET: Duration = Duration::from_secs(10);

/// Watches over the controller of an admin queue pair until that ends.
pub async fn watch<Q: TransportQueuePair>(pair: Rc<QueuePair<Q>>) {
    let closing = pin!(pair.transport.closing());
    let expired = pin!(expiry(&pair));
    if let Either::Right(_) = select(closing, expired).await {
        let controller = &pair.controller;
        let timeout_ms = controller.keep_alive_ms();
        tracing::warn!(controller = %controller.id, host = %controller.host_nqn, timeout_ms, "keep alive expired");
        pair.local.metrics.keep_alive_expiries.add(1);
        controller.fail();
    }
}

async fn expiry<Q: TransportQueuePair>(pair: &QueuePair<Q>) {
    let reactor = &pair.local.reactor;
    let mut seen = pair.controller.activity();
    let mut silent = Duration::ZERO;
    loop {
        let timeout = match pair.controller.keep_alive_ms() {
            0 if pair.controller.is_discovery() => DISCOVERY_TIMEOUT,
            0 => {
                reactor.sleep(UNSET).await;
                silent = Duration::ZERO;
                continue;
            }
            ms => Duration::from_millis(ms.into()),
        };
        let asleep = timeout / LOOKS;
        reactor.sleep(asleep).await;
        let activity = pair.controller.activity();
        if activity != seen {
            (seen, silent) = (activity, Duration::ZERO);
            continue;
        }
        // Counted in looks and not by the clock: when this reactor did not run for a while, what the host sent meanwhile lies
        // unread, and the look that comes too late must not be the last.
        silent += asleep;
        if silent >= timeout + asleep {
            return;
        }
    }
}
