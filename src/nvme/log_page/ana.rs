//! Asymmetric namespace access log (0Ch): its fixed parts.
//!
//! The log is a header, then for each group a descriptor and its NSIDs; the
//! target puts them together.

use crate::identify::layout::wire_layout;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bit of the log specific parameter: return groups only, without NSIDs (RGO).
pub const RETURN_GROUPS_ONLY: u8 = 1 << 0;

/// State of an ANA group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum AnaState {
    /// Full speed.
    Optimized = 0x1,
    /// Works, another path is better.
    NonOptimized = 0x2,
    /// No access on this path for now.
    Inaccessible = 0x3,
    /// No access on this path any more.
    PersistentLoss = 0x4,
    /// Between two states.
    Change = 0xf,
}

impl AnaState {
    /// The value in the descriptor.
    #[must_use]
    pub fn value(self) -> u8 {
        self as u8
    }

    /// The state with this value; `None` for a reserved one.
    #[must_use]
    pub fn from_value(value: u8) -> Option<Self> {
        [Self::Optimized, Self::NonOptimized, Self::Inaccessible, Self::PersistentLoss, Self::Change]
            .into_iter()
            .find(|state| state.value() == value)
    }
}

/// Header of the ANA log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct AnaHeader {
    /// Changes of the log's content so far (CHGC, bytes 0 to 7).
    pub change_count: U64,
    /// Number of group descriptors (NAGD, bytes 8 to 9).
    pub descriptor_count: U16,
    _reserved10: [u8; 6],
}

wire_layout!(AnaHeader, 16, {
    0 change_count,
    8 descriptor_count,
});

/// Fixed part of an ANA group descriptor; `nsid_count` NSIDs (u32, ascending)
/// follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct AnaDescriptor {
    /// Group (AGID, bytes 0 to 3).
    pub group_id: U32,
    /// Number of NSIDs that follow (NNV, bytes 4 to 7).
    pub nsid_count: U32,
    /// Changes of this group so far (CHGC, bytes 8 to 15).
    pub change_count: U64,
    /// State in bits 3:0; see [`AnaState`] (ANAS, byte 16).
    pub state: u8,
    _reserved17: [u8; 15],
}

wire_layout!(AnaDescriptor, 32, {
    0 group_id,
    4 nsid_count,
    8 change_count,
    16 state,
});

#[cfg(test)]
mod tests {
    use super::AnaState;

    #[test]
    fn states_round_trip() {
        for value in 0..=u8::MAX {
            let known = matches!(value, 1..=4 | 15);
            let state = AnaState::from_value(value);
            assert_eq!(state.map(AnaState::value), known.then_some(value));
        }
    }
}
