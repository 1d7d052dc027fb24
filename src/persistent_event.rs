//! The persistent event log (0Dh) of a subsystem: when it started, which controllers were made and reset, which clocks were
//! set. It is kept in memory as long as weft runs, in at most 64 KiB: the oldest events go.
//!
//! Base specification, "Persistent Event Log". A host reads it through a context: a copy that stays as it is until released.

use crate::{controller::Controller, subsystem::Subsystem};
use nvme::{
    Status,
    features::{Timestamp, timestamp_origin},
    log_page::{
        self, CONTEXT_OF_PORT, ControllerReset, EventPlace, GetLogPage, PersistentEvent,
        PersistentEventHeader, TimestampChange, event_log_action, event_type,
    },
};
use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// The largest size of the log in units of 64 KiB (PELS).
pub const SIZE_UNITS: u32 = 1;
/// Bytes all events may take.
const CAPACITY: usize = (SIZE_UNITS as usize * (64 << 10)) - PersistentEventHeader::LEN;
/// Stands for the subsystem where a controller is named.
const NO_CONTROLLER: u16 = 0xffff;

/// The events of a subsystem.
pub struct PersistentEvents {
    started: Instant,
    firmware: [u8; 8],
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    /// Newest first.
    events: VecDeque<Vec<u8>>,
    bytes: usize,
    generation: u16,
}

impl PersistentEvents {
    /// The events of a subsystem that starts now, with this firmware revision.
    pub fn new(firmware: &str) -> PersistentEvents {
        let events = PersistentEvents {
            started: Instant::now(),
            firmware: log_page::firmware_field(firmware),
            log: Mutex::default(),
        };
        let place = EventPlace { controller_id: NO_CONTROLLER, port_id: None };
        events.record(event_type::POWER_ON_OR_RESET, place, &events.firmware);
        events
    }

    /// A controller was made or reset.
    pub fn controller_reset(&self, place: EventPlace) {
        let mut reset = ControllerReset::new_zeroed();
        reset.controller_id = place.controller_id.into();
        reset.power_cycles = 1.into();
        reset.power_on_ms = (self.started.elapsed().as_millis() as u64).into();
        // It counts from zero again.
        reset.timestamp.copy_from_slice(Timestamp::new(0, timestamp_origin::RESET).as_bytes());
        let data = [&self.firmware[..], reset.as_bytes()].concat();
        self.record(event_type::POWER_ON_OR_RESET, place, &data);
    }

    /// A host has set the timestamp of its controller.
    pub fn timestamp_changed(&self, place: EventPlace, previous: Timestamp, since_reset: Duration) {
        let mut change = TimestampChange::new_zeroed();
        change.previous.copy_from_slice(previous.as_bytes());
        change.since_reset_ms = (since_reset.as_millis() as u64).into();
        self.record(event_type::TIMESTAMP_CHANGE, place, change.as_bytes());
    }

    fn record(&self, kind: u8, place: EventPlace, data: &[u8]) {
        let event = PersistentEvent::new(kind, place, now(), data.len() as u16);
        let bytes = [event.as_bytes(), data].concat();
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.bytes += bytes.len();
        log.events.push_front(bytes);
        log.generation = log.generation.wrapping_add(1);
        while log.bytes > CAPACITY {
            let oldest = log.events.pop_back().map_or(0, |event| event.len());
            log.bytes -= oldest;
        }
    }

    /// The whole log as it is now, for a host on a port.
    fn page(&self, subsystem: &Subsystem, port_id: u16) -> Vec<u8> {
        let mut header = PersistentEventHeader::new();
        header.timestamp = now();
        header.power_on_hours = u128::from(self.started.elapsed().as_secs() / 3600).to_le_bytes();
        header.power_cycles = 1.into();
        header.set_subsystem(&subsystem.serial, &subsystem.model, &subsystem.nqn);
        header.reporting_context = (CONTEXT_OF_PORT | u32::from(port_id)).into();
        header.add_supported(event_type::TIMESTAMP_CHANGE);
        header.add_supported(event_type::POWER_ON_OR_RESET);
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        header.generation = log.generation.into();
        header.event_count = (log.events.len() as u32).into();
        header.log_len = ((PersistentEventHeader::LEN + log.bytes) as u64).into();
        let mut page = Vec::with_capacity(PersistentEventHeader::LEN + log.bytes);
        page.extend_from_slice(header.as_bytes());
        log.events.iter().for_each(|event| page.extend_from_slice(event));
        page
    }
}

/// What a controller's host is reading, if it is.
#[derive(Default)]
pub struct Context(Mutex<Option<Vec<u8>>>);

impl Context {
    /// Forgets it.
    pub fn release(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Answers Get Log Page for the log: establishes a context, reads from it, or releases it.
pub fn read(controller: &Controller, command: &GetLogPage) -> Result<Vec<u8>, Status> {
    let mut context = controller.event_context.0.lock().unwrap_or_else(PoisonError::into_inner);
    match (command.specific & 0x3, &*context) {
        (event_log_action::READ, Some(page)) => Ok(page.clone()),
        (event_log_action::ESTABLISH, None) => {
            let subsystem = &controller.subsystem;
            let page = subsystem.persistent_events.page(subsystem, controller.port_id);
            *context = Some(page.clone());
            Ok(page)
        }
        (event_log_action::READ | event_log_action::ESTABLISH, _) => {
            Err(Status::COMMAND_SEQUENCE_ERROR.dnr())
        }
        // There is nothing to return; a host gets zeroes for what it asked for.
        (event_log_action::RELEASE, _) => {
            *context = None;
            Ok(Vec::new())
        }
        _ => Err(Status::INVALID_FIELD.dnr()),
    }
}

/// The time of day, in the form of a timestamp that was set.
fn now() -> [u8; 8] {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let stamp = Timestamp::new(Timestamp::wrap(since_1970.as_millis()), timestamp_origin::HOST);
    let mut bytes = [0; 8];
    bytes.copy_from_slice(stamp.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_bounded_and_the_oldest_go() {
        let events = PersistentEvents::new("1.0");
        for id in 0..3000 {
            events.controller_reset(EventPlace { controller_id: id, port_id: Some(1) });
        }
        let log = events.log.lock().unwrap();
        assert_eq!(log.bytes, log.events.iter().map(Vec::len).sum::<usize>());
        assert!(log.bytes <= CAPACITY && log.bytes > CAPACITY - 100, "{} bytes", log.bytes);
        let newest = PersistentEvent::from_bytes(&log.events[0]).unwrap();
        assert_eq!(newest.controller_id.get(), 2999);
    }
}
