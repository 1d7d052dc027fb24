//! Error information (01h), SMART / health (02h) and firmware slots (03h).

use crate::identify::layout::{wire_layout, write_ascii};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Parameter error location of an error that is not about a parameter.
pub const NO_PARAMETER_ERROR: u16 = 0xffff;

/// One entry of the error information log (01h); all zero is unused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ErrorLogEntry {
    /// Unique, ascending number of the error; 0 is unused (bytes 0 to 7).
    pub error_count: U64,
    /// Submission queue (SQID, bytes 8 to 9).
    pub submission_queue: U16,
    /// Command identifier (CID, bytes 10 to 11).
    pub command_id: U16,
    /// Status as in the CQE: bits 15:1, phase in bit 0 (bytes 12 to 13).
    pub status: U16,
    /// Byte 7:0 and bit 10:8 of the command, or [`NO_PARAMETER_ERROR`]
    /// (bytes 14 to 15).
    pub parameter_error_location: U16,
    /// First logical block with the error (LBA, bytes 16 to 23).
    pub lba: U64,
    /// Namespace (NSID, bytes 24 to 27).
    pub nsid: U32,
    /// Vendor specific log page with more; 0 is none (byte 28).
    pub vendor_log_page: u8,
    /// Transport type (TRTYPE, byte 29).
    pub transport_type: u8,
    /// I/O command set of the command (CSI, byte 30).
    pub csi: u8,
    /// Opcode of the command (OPC, byte 31).
    pub opcode: u8,
    /// Command specific information (bytes 32 to 39).
    pub command_specific: U64,
    /// Transport specific information (bytes 40 to 41).
    pub transport_specific: U16,
    _reserved42: [u8; 22],
}

wire_layout!(ErrorLogEntry, 64, {
    0 error_count,
    8 submission_queue,
    10 command_id,
    12 status,
    14 parameter_error_location,
    16 lba,
    24 nsid,
    28 vendor_log_page,
    29 transport_type,
    30 csi,
    31 opcode,
    32 command_specific,
    40 transport_specific,
});

/// Bits of the critical warning in [`SmartLog`].
pub mod critical_warning {
    /// The spare is below its threshold.
    pub const SPARE: u8 = 1 << 0;
    /// A temperature passed its threshold.
    pub const TEMPERATURE: u8 = 1 << 1;
    /// Reliability is degraded.
    pub const RELIABILITY: u8 = 1 << 2;
    /// All media are read only.
    pub const READ_ONLY: u8 = 1 << 3;
    /// The backup of volatile memory failed.
    pub const BACKUP: u8 = 1 << 4;
    /// The persistent memory region is read only or unreliable.
    pub const PERSISTENT_MEMORY: u8 = 1 << 5;
}

/// SMART / health information log (02h). Counters of 16 bytes are
/// little-endian: `u128::to_le_bytes`.
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SmartLog {
    /// Critical warning; bits in [`critical_warning`] (CW, byte 0).
    pub critical_warning: u8,
    /// Composite temperature in Kelvin (CTEMP, bytes 1 to 2).
    pub composite_temperature: U16,
    /// Available spare in percent (AVSP, byte 3).
    pub available_spare: u8,
    /// Available spare threshold in percent (AVSPT, byte 4).
    pub available_spare_threshold: u8,
    /// Percentage used, up to 255 (PUSED, byte 5).
    pub percentage_used: u8,
    /// Endurance group critical warning summary (EGCWS, byte 6).
    pub endurance_group_warning: u8,
    _reserved7: [u8; 25],
    /// Data units read, of 512000 bytes, rounded up (DUR, bytes 32 to 47).
    pub data_units_read: [u8; 16],
    /// Data units written, of 512000 bytes, rounded up (DUW, bytes 48 to 63).
    pub data_units_written: [u8; 16],
    /// Host read commands (HRC, bytes 64 to 79).
    pub host_read_commands: [u8; 16],
    /// Host write commands (HWC, bytes 80 to 95).
    pub host_write_commands: [u8; 16],
    /// Controller busy time in minutes (CBT, bytes 96 to 111).
    pub controller_busy_time: [u8; 16],
    /// Power cycles (PWRC, bytes 112 to 127).
    pub power_cycles: [u8; 16],
    /// Power on hours (POH, bytes 128 to 143).
    pub power_on_hours: [u8; 16],
    /// Unsafe shutdowns (UPL, bytes 144 to 159).
    pub unsafe_shutdowns: [u8; 16],
    /// Media and data integrity errors (MDIE, bytes 160 to 175).
    pub media_errors: [u8; 16],
    /// Error information log entries ever made (NEILE, bytes 176 to 191).
    pub error_log_entries: [u8; 16],
    /// Minutes above the warning temperature (WCTT, bytes 192 to 195).
    pub warning_temperature_time: U32,
    /// Minutes above the critical temperature (CCTT, bytes 196 to 199).
    pub critical_temperature_time: U32,
    /// Temperature sensors 1 to 8 in Kelvin; 0 is none (TSEN, bytes 200 to 215).
    pub temperature_sensors: [U16; 8],
    _reserved216: [u8; 296],
}

wire_layout!(SmartLog, 512, {
    0 critical_warning,
    1 composite_temperature,
    3 available_spare,
    4 available_spare_threshold,
    5 percentage_used,
    6 endurance_group_warning,
    32 data_units_read,
    48 data_units_written,
    64 host_read_commands,
    80 host_write_commands,
    96 controller_busy_time,
    112 power_cycles,
    128 power_on_hours,
    144 unsafe_shutdowns,
    160 media_errors,
    176 error_log_entries,
    192 warning_temperature_time,
    196 critical_temperature_time,
    200 temperature_sensors,
});

/// Firmware slot information log (03h).
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct FirmwareSlotLog {
    /// Active slot 2:0, slot after the next reset 6:4 (AFI, byte 0).
    pub active: u8,
    _reserved1: [u8; 7],
    /// Revision in slot 1 to 7, ASCII padded with spaces, zero if empty
    /// (FRS, bytes 8 to 63).
    pub revisions: [[u8; 8]; 7],
    _reserved64: [u8; 448],
}

wire_layout!(FirmwareSlotLog, 512, {
    0 active,
    8 revisions,
});

impl FirmwareSlotLog {
    /// The log of a controller whose only slot holds `revision`.
    #[must_use]
    pub fn single(revision: &str) -> Self {
        let mut log = Self::new_zeroed();
        log.active = 1;
        write_ascii(&mut log.revisions[0], revision);
        log
    }
}

#[cfg(test)]
mod tests {
    use super::{ErrorLogEntry, FirmwareSlotLog, SmartLog};
    use proptest::prelude::*;

    #[test]
    fn single_slot() {
        let log = FirmwareSlotLog::single("1.2.3");
        assert_eq!(log.as_bytes()[..16], *b"\x01\0\0\0\0\0\0\x001.2.3   ");
        assert!(log.as_bytes()[16..].iter().all(|&b| b == 0));
    }

    #[test]
    fn counters_are_little_endian() {
        let mut log = SmartLog::new_zeroed();
        log.composite_temperature = 0x0139.into();
        log.error_log_entries = 0x0102_u128.to_le_bytes();
        assert_eq!(log.as_bytes()[1..3], [0x39, 0x01]);
        assert_eq!(log.as_bytes()[176..179], [2, 1, 0]);
    }

    proptest! {
        #[test]
        fn any_bytes_round_trip(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            match SmartLog::from_bytes(&bytes) {
                Some(log) => prop_assert_eq!(log.as_bytes(), &bytes[..512]),
                None => prop_assert!(bytes.len() < 512),
            }
            match ErrorLogEntry::from_bytes(&bytes) {
                Some(entry) => prop_assert_eq!(entry.as_bytes(), &bytes[..64]),
                None => prop_assert!(bytes.len() < 64),
            }
        }
    }
}
