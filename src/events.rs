//! Asynchronous events: what a controller has to tell its host, and the requests that carry it.
//!
//! Base specification, "Asynchronous Event Request command". An event is told once and then masked until the host reads
//! its log page with RAE clear. What happened while nobody asked waits for the next request. Events are raised from any
//! thread ([`Controller::raise`](crate::controller::Controller::raise)); the admin queue pair's reactor tells them.

use crate::{io::Failure, queue_pair::QueuePair};
use futures::future::{Either, select};
use nvme::{
    Cid, Completion, Nsid, Status,
    features::{AsyncEvent, async_event_configuration},
    identify::IDENTIFY_LEN,
    log_page::write_changed_namespaces,
};
use reactor::Signal;
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    pin::pin,
    sync::{Mutex, MutexGuard, PoisonError},
};
use transports::QueuePair as TransportQueuePair;

/// Asynchronous Event Requests a controller holds (AERL, 1's based).
pub const MAX_EVENT_REQUESTS: u8 = 4;
/// The events an I/O controller offers (OAES).
pub const IO_EVENTS: u32 = async_event_configuration::NAMESPACE_ATTRIBUTE;
/// The events a discovery controller offers (OAES).
pub const DISCOVERY_EVENTS: u32 = async_event_configuration::DISCOVERY_LOG;

/// What a controller has to tell its host.
#[derive(Default)]
pub struct Events(Mutex<State>);

#[derive(Default)]
struct State {
    /// The asynchronous event configuration feature.
    configuration: u32,
    /// Raised and not told yet, oldest first; each at most once.
    pending: Vec<AsyncEvent>,
    /// Told, and their log pages not read since.
    masked: Vec<AsyncEvent>,
    /// Namespaces that changed since their list was read.
    changed_namespaces: BTreeSet<Nsid>,
    /// The host has shut the controller down: it wants to hear nothing more.
    shut_down: bool,
}

impl Events {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The asynchronous event configuration feature.
    pub fn configuration(&self) -> u32 {
        self.state().configuration
    }

    /// Sets it. What the host no longer wants to hear is not told.
    pub fn configure(&self, configuration: u32) {
        let mut state = self.state();
        state.configuration = configuration;
        state.pending.retain(|event| event.is_enabled(configuration));
    }

    /// Takes note of an event; whether there is something new to tell.
    pub fn raise(&self, event: AsyncEvent) -> bool {
        self.state().raise(event)
    }

    /// Takes note of a change of a namespace; whether there is something new to tell.
    pub fn namespace_changed(&self, nsid: Nsid) -> bool {
        let mut state = self.state();
        state.changed_namespaces.insert(nsid);
        state.raise(AsyncEvent::NamespaceAttribute)
    }

    /// The next event to tell, which is masked from now on.
    fn take(&self) -> Option<AsyncEvent> {
        let mut state = self.state();
        if state.pending.is_empty() {
            return None;
        }
        let event = state.pending.remove(0);
        state.masked.push(event);
        Some(event)
    }

    /// A log page is about to be read with RAE clear: its events may come again. To be called before the page is made, so
    /// that a change the page does not show raises its event anew. An event that was not told yet stays: one too many costs
    /// the host a look, one too few the change.
    pub fn log_read(&self, log_id: u8) {
        self.state().masked.retain(|event| event.log_id() != log_id);
    }

    /// The changed namespace list (log page 04h). Reading it empties it, unless the event is retained (RAE).
    pub fn changed_namespaces(&self, retain: bool) -> [u8; IDENTIFY_LEN] {
        let mut page = [0; IDENTIFY_LEN];
        let mut state = self.state();
        write_changed_namespaces(state.changed_namespaces.iter().copied(), &mut page);
        if !retain {
            state.changed_namespaces.clear();
            // The list has told it, and the next change is told anew.
            state.pending.retain(|event| *event != AsyncEvent::NamespaceAttribute);
            state.masked.retain(|event| *event != AsyncEvent::NamespaceAttribute);
        }
        page
    }

    /// The controller is reset or enabled: everything starts anew.
    pub fn reset(&self) {
        *self.state() = State::default();
    }

    /// The host shuts the controller down: nothing is told until it is enabled again.
    pub fn shut_down(&self) {
        let mut state = self.state();
        state.shut_down = true;
        state.pending.clear();
    }
}

impl State {
    fn raise(&mut self, event: AsyncEvent) -> bool {
        let wanted = event.is_enabled(self.configuration) && !self.shut_down;
        let known = self.masked.contains(&event) || self.pending.contains(&event);
        if wanted && !known {
            self.pending.push(event);
        }
        wanted && !known
    }
}

/// The Asynchronous Event Requests that wait on an admin queue.
#[derive(Default)]
pub struct EventRequests {
    /// Oldest first.
    waiting: RefCell<Vec<(u64, Cid)>>,
    serial: Cell<u64>,
    changed: Signal,
}

impl EventRequests {
    /// Takes one in, unless there are as many as there may be.
    fn add(&self, cid: Cid) -> Option<u64> {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() >= MAX_EVENT_REQUESTS.into() {
            return None;
        }
        self.serial.set(self.serial.get() + 1);
        waiting.push((self.serial.get(), cid));
        Some(self.serial.get())
    }

    /// Aborts one; false when none of that identifier waits.
    pub fn abort(&self, cid: Cid) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let found = waiting.iter().position(|(_, other)| *other == cid);
        if let Some(index) = found {
            waiting.remove(index);
            self.changed.notify();
        }
        found.is_some()
    }

    /// Aborts all that wait: the controller was reset, the queue pair lives.
    pub fn abort_all(&self) {
        self.waiting.borrow_mut().clear();
        self.changed.notify();
    }

    /// There may be something to tell.
    pub fn notify(&self) {
        self.changed.notify();
    }

    /// Waits until a request is the oldest and there is an event for it; none when it was aborted.
    async fn event(&self, serial: u64, events: &Events) -> Option<AsyncEvent> {
        let event = self
            .changed
            .wait_for(|| {
                let mut waiting = self.waiting.borrow_mut();
                let Some(place) = waiting.iter().position(|(other, _)| *other == serial) else {
                    return Some(None);
                };
                let event = if place == 0 { events.take()? } else { return None };
                waiting.remove(0);
                Some(Some(event))
            })
            .await;
        // The next in line is the oldest now.
        self.changed.notify();
        event
    }
}

/// Holds an Asynchronous Event Request until there is an event: it costs a slot and nothing else, for hours. When the queue
/// pair ends it is dropped without a completion.
pub async fn wait<Q: TransportQueuePair>(pair: &QueuePair<Q>, cid: Cid) -> Result<Completion, Failure> {
    let requests = &pair.event_requests;
    let serial = requests.add(cid).ok_or(Status::AER_LIMIT_EXCEEDED.dnr())?;
    let closing = pin!(pair.transport.closing());
    let event = pin!(requests.event(serial, &pair.controller.events));
    match select(closing, event).await {
        Either::Left(_) => Err(Failure::Disconnected),
        Either::Right((Some(event), _)) => {
            let (controller, host) = (pair.controller.id, &pair.controller.host_nqn);
            tracing::debug!(%controller, %host, "told the host: {event:?}");
            Ok(Completion::success(event.dw0().into()))
        }
        Either::Right((None, _)) => Err(Status::ABORT_REQUESTED.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: AsyncEvent = AsyncEvent::NamespaceAttribute;
    const LOG: u8 = 0x04;

    fn enabled() -> Events {
        let events = Events::default();
        events.configure(IO_EVENTS);
        events
    }

    fn list(events: &Events, retain: bool) -> Vec<u32> {
        let page = events.changed_namespaces(retain);
        let all = page.chunks(4).map(|entry| u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]));
        all.take_while(|nsid| *nsid != 0).collect()
    }

    #[test]
    fn an_event_is_told_once_until_its_log_is_read() {
        let events = enabled();
        assert!(events.namespace_changed(Nsid(2)));
        assert!(!events.namespace_changed(Nsid(1)), "it is pending already");
        assert_eq!((events.take(), events.take()), (Some(EVENT), None));
        assert!(!events.namespace_changed(Nsid(3)), "it is masked");
        assert_eq!(list(&events, true), [1, 2, 3]);
        assert!(!events.namespace_changed(Nsid(3)), "the event was retained");
        events.log_read(0x02);
        assert!(!events.namespace_changed(Nsid(3)), "another log was read");
        events.log_read(LOG);
        assert_eq!(list(&events, false), [1, 2, 3]);
        assert!(list(&events, false).is_empty());
        assert!(events.namespace_changed(Nsid(9)));
        assert_eq!(events.take(), Some(EVENT));
    }

    #[test]
    fn what_is_not_enabled_is_not_told_but_listed() {
        let events = Events::default();
        assert!(!events.namespace_changed(Nsid(7)));
        events.configure(IO_EVENTS);
        assert_eq!(events.take(), None);
        assert!(events.namespace_changed(Nsid(8)));
        events.configure(0);
        assert_eq!(events.take(), None, "the host does not want it any more");
        assert_eq!(list(&events, false), [7, 8]);
        assert!(events.raise(AsyncEvent::PersistentInternalError), "always told");
    }

    #[test]
    fn a_list_that_was_read_needs_no_event() {
        let events = enabled();
        assert!(events.namespace_changed(Nsid(1)));
        assert_eq!(list(&events, false), [1]);
        assert_eq!(events.take(), None);
        assert!(events.namespace_changed(Nsid(1)), "the next change does");
    }

    #[test]
    fn more_changes_than_the_list_holds_are_all() {
        let events = enabled();
        (1..=1024).for_each(|nsid| _ = events.namespace_changed(Nsid(nsid)));
        assert_eq!(list(&events, true).len(), 1024);
        events.namespace_changed(Nsid(1025));
        assert_eq!(list(&events, false), [u32::MAX]);
    }

    #[test]
    fn a_reset_forgets_everything_and_a_shutdown_is_silent() {
        let events = enabled();
        events.namespace_changed(Nsid(1));
        events.take();
        events.reset();
        assert_eq!(events.configuration(), 0);
        assert!(list(&events, true).is_empty());
        events.configure(IO_EVENTS);
        assert!(events.namespace_changed(Nsid(1)), "no mask is left");
        events.shut_down();
        assert_eq!(events.take(), None);
        assert!(!events.namespace_changed(Nsid(2)));
    }
}
