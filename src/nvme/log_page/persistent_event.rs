//! Persistent event log (0Dh): its header and the events a target records.
//!
//! Which events happen, and when, is the target's business.

use crate::Nqn;
use crate::identify::layout::{wire_layout, write_ascii};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Values of the action in the log specific parameter (LSP, bits 1:0).
pub mod event_log_action {
    /// Reads what the context holds.
    pub const READ: u8 = 0;
    /// Establishes the context: the log as it is now; and reads.
    pub const ESTABLISH: u8 = 1;
    /// Releases the context.
    pub const RELEASE: u8 = 2;
}

/// Values of the type of a [`PersistentEvent`].
pub mod event_type {
    /// Timestamp change.
    pub const TIMESTAMP_CHANGE: u8 = 0x03;
    /// Power-on or reset.
    pub const POWER_ON_OR_RESET: u8 = 0x04;
}

/// Header of the persistent event log.
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct PersistentEventHeader {
    /// The log page identifier (LID, byte 0).
    pub log_id: u8,
    _reserved1: [u8; 3],
    /// Total number of events (TNEV, bytes 4 to 7).
    pub event_count: U32,
    /// Length of header and events in bytes (TLL, bytes 8 to 15).
    pub log_len: U64,
    /// Log revision (REV, byte 16).
    pub revision: u8,
    _reserved17: u8,
    /// Bytes of the header behind this field (LHL, bytes 18 to 19).
    pub header_len: U16,
    /// When the context was established (TSTMP, bytes 20 to 27).
    pub timestamp: [u8; 8],
    /// Power on hours, little-endian (POH, bytes 28 to 43).
    pub power_on_hours: [u8; 16],
    /// Power cycles (PWRCC, bytes 44 to 51).
    pub power_cycles: U64,
    /// PCI vendor identifier (VID, bytes 52 to 53).
    pub pci_vendor_id: U16,
    /// PCI subsystem vendor identifier (SSVID, bytes 54 to 55).
    pub pci_subsystem_vendor_id: U16,
    /// Serial number (SN, bytes 56 to 75).
    pub serial_number: [u8; 20],
    /// Model number (MN, bytes 76 to 115).
    pub model_number: [u8; 40],
    /// NVM subsystem NQN (SUBNQN, bytes 116 to 371).
    pub subsystem_nqn: [u8; 256],
    /// Changes with the log (GNUM, bytes 372 to 373).
    pub generation: U16,
    /// Who established the context: port 15:0, kind of port 17:16, whether
    /// there is one 18 (RCI, bytes 374 to 377).
    pub reporting_context: U32,
    _reserved378: [u8; 102],
    /// Bit n: events of type n are supported (SEB, bytes 480 to 511).
    pub supported_events: [u8; 32],
}

wire_layout!(PersistentEventHeader, 512, {
    0 log_id,
    4 event_count,
    8 log_len,
    16 revision,
    18 header_len,
    20 timestamp,
    28 power_on_hours,
    44 power_cycles,
    52 pci_vendor_id,
    54 pci_subsystem_vendor_id,
    56 serial_number,
    76 model_number,
    116 subsystem_nqn,
    372 generation,
    374 reporting_context,
    480 supported_events,
});

/// [`PersistentEventHeader::reporting_context`] where an NVM subsystem port
/// established it.
pub const CONTEXT_OF_PORT: u32 = 1 << 18 | 1 << 16;

impl PersistentEventHeader {
    /// A header with what is always the same: identifier, revision, its length.
    #[must_use]
    pub fn new() -> Self {
        let mut header = Self::new_zeroed();
        header.log_id = crate::log_page::log_id::PERSISTENT_EVENT;
        header.revision = 3;
        header.header_len = 492.into();
        header
    }

    /// Writes serial number, model number and name of the subsystem.
    pub fn set_subsystem(&mut self, serial: &str, model: &str, nqn: &Nqn) {
        write_ascii(&mut self.serial_number, serial);
        write_ascii(&mut self.model_number, model);
        nqn.write_field(&mut self.subsystem_nqn);
    }

    /// Marks events of a type as supported.
    pub fn add_supported(&mut self, event_type: u8) {
        self.supported_events[usize::from(event_type / 8)] |= 1 << (event_type % 8);
    }
}

impl Default for PersistentEventHeader {
    fn default() -> Self {
        Self::new()
    }
}

/// Header of an event; its data follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct PersistentEvent {
    /// What happened; values in [`event_type`] (ET, byte 0).
    pub event_type: u8,
    /// Revision of that type (ETR, byte 1).
    pub revision: u8,
    /// Bytes of the header behind this field (EHL, byte 2).
    pub header_len: u8,
    /// Kind of port: 1 an NVM subsystem port, 3 none (EHAI, byte 3).
    pub port_kind: u8,
    /// Controller (CNTLID, bytes 4 to 5).
    pub controller_id: U16,
    /// When (ETIMESTAMP, bytes 6 to 13).
    pub timestamp: [u8; 8],
    /// Port (PELPID, bytes 14 to 15).
    pub port_id: U16,
    _reserved16: [u8; 4],
    /// Length of vendor specific information (VSIL, bytes 20 to 21).
    pub vendor_len: U16,
    /// Bytes behind the header (EL, bytes 22 to 23).
    pub event_len: U16,
}

wire_layout!(PersistentEvent, 24, {
    0 event_type,
    1 revision,
    2 header_len,
    3 port_kind,
    4 controller_id,
    6 timestamp,
    14 port_id,
    20 vendor_len,
    22 event_len,
});

/// Where an event happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventPlace {
    /// The controller (CNTLID); FFFFh for the whole subsystem.
    pub controller_id: u16,
    /// The port its host uses, if it is about one.
    pub port_id: Option<u16>,
}

impl PersistentEvent {
    /// The header of an event with so much data.
    #[must_use]
    pub fn new(event_type: u8, place: EventPlace, timestamp: [u8; 8], data_len: u16) -> Self {
        let mut event = Self::new_zeroed();
        event.event_type = event_type;
        event.revision = 1;
        event.header_len = 21;
        event.port_kind = if place.port_id.is_some() { 1 } else { 3 };
        event.controller_id = place.controller_id.into();
        event.timestamp = timestamp;
        event.port_id = place.port_id.unwrap_or(0).into();
        event.event_len = data_len.into();
        event
    }
}

/// A controller in a power-on or reset event; the firmware revision, 8 bytes
/// of ASCII, goes before the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ControllerReset {
    /// Controller (CNTLID, bytes 0 to 1).
    pub controller_id: U16,
    /// Whether it activated firmware (byte 2).
    pub firmware_activation: u8,
    /// Operations that it interrupted (byte 3).
    pub operations_in_progress: u8,
    _reserved4: [u8; 12],
    /// Power cycles of the controller (bytes 16 to 19).
    pub power_cycles: U32,
    /// Milliseconds since power on (bytes 20 to 27).
    pub power_on_ms: U64,
    /// The controller's timestamp (bytes 28 to 35).
    pub timestamp: [u8; 8],
}

wire_layout!(ControllerReset, 36, {
    0 controller_id,
    2 firmware_activation,
    3 operations_in_progress,
    16 power_cycles,
    20 power_on_ms,
    28 timestamp,
});

/// A firmware revision as events carry it.
#[must_use]
pub fn firmware_field(revision: &str) -> [u8; 8] {
    let mut field = [0; 8];
    write_ascii(&mut field, revision);
    field
}

/// Data of a timestamp change event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct TimestampChange {
    /// The timestamp before (bytes 0 to 7).
    pub previous: [u8; 8],
    /// Milliseconds since the last reset (bytes 8 to 15).
    pub since_reset_ms: U64,
}

wire_layout!(TimestampChange, 16, {
    0 previous,
    8 since_reset_ms,
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_lead_from_one_part_to_the_next() {
        let header = PersistentEventHeader::new();
        assert_eq!(usize::from(header.header_len.get()) + 20, PersistentEventHeader::LEN);
        let place = EventPlace { controller_id: 7, port_id: Some(3) };
        let event = PersistentEvent::new(event_type::POWER_ON_OR_RESET, place, [9; 8], 44);
        assert_eq!(usize::from(event.header_len) + 3, PersistentEvent::LEN);
        assert_eq!(event.as_bytes()[..6], [4, 1, 21, 1, 7, 0]);
        assert_eq!(event.as_bytes()[14..], [3, 0, 0, 0, 0, 0, 0, 0, 44, 0]);
    }

    #[test]
    fn supported_events_are_bits() {
        let mut header = PersistentEventHeader::new();
        header.add_supported(0x03);
        header.add_supported(0xde);
        let bits: Vec<_> = header.as_bytes()[480..].iter().enumerate().filter(|(_, b)| **b != 0).collect();
        assert_eq!(bits, [(0, &8), (27, &0x40)]);
    }
}
