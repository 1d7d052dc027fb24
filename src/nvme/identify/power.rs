//! The power state descriptor, of which Identify Controller holds 32.

use super::layout::wire_layout;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Power state descriptor of Identify Controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct PowerState {
    /// Maximum power in centiwatts (MP, bytes 0 to 1).
    pub max_power: U16,
    _reserved2: u8,
    /// Bit 0: the unit is 0.1 mW (MXPS); bit 1: non-operational (NOPS) (byte 3).
    pub flags: u8,
    /// Entry latency in microseconds (ENLAT, bytes 4 to 7).
    pub entry_latency: U32,
    /// Exit latency in microseconds (EXLAT, bytes 8 to 11).
    pub exit_latency: U32,
    /// Relative performance and idle and active power (bytes 12 to 31).
    pub relative: [u8; 20],
}

wire_layout!(PowerState, 32, {
    0 max_power,
    3 flags,
    4 entry_latency,
    8 exit_latency,
    12 relative,
});
