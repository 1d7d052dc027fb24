//! Features whose value has parts: temperature threshold, timestamp, host
//! behavior, write protection; and what Get Features says of a feature itself.
//!
//! Which of them a controller has, and with what values, is the target's
//! business.

use crate::Status;
use crate::identify::layout::wire_layout;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bits of DW0 of Get Features with SEL = 3, supported capabilities.
pub mod capability {
    /// The value can be saved.
    pub const SAVEABLE: u32 = 1 << 0;
    /// The feature belongs to a namespace, not to the controller.
    pub const NAMESPACE_SPECIFIC: u32 = 1 << 1;
    /// The value can be changed.
    pub const CHANGEABLE: u32 = 1 << 2;
}

/// CDW11 of the Temperature Threshold feature (04h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemperatureThreshold {
    /// The threshold in Kelvin (TMPTH, bits 15:0).
    pub kelvin: u16,
    /// Which temperature (TMPSEL, bits 19:16): 0 is the composite one, 1 to 8
    /// are sensors, Fh is all of them.
    pub sensor: u8,
    /// Whether it is the threshold for too cold instead of too warm (THSEL,
    /// bits 21:20).
    pub under: bool,
}

impl TemperatureThreshold {
    /// The composite temperature (TMPSEL).
    pub const COMPOSITE: u8 = 0;
    /// All temperatures (TMPSEL); only to set.
    pub const ALL: u8 = 0xf;

    /// The fields in CDW11.
    ///
    /// # Errors
    /// Invalid Field for a reserved type of threshold.
    pub fn parse(cdw11: u32) -> Result<Self, Status> {
        let under = match cdw11 >> 20 & 0x3 {
            0 => false,
            1 => true,
            _ => return Err(Status::INVALID_FIELD.dnr()),
        };
        Ok(Self { kelvin: cdw11 as u16, sensor: (cdw11 >> 16 & 0xf) as u8, under })
    }
}

/// Data of the Timestamp feature (0Eh).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Timestamp {
    /// Milliseconds since 1970, or since the last reset, little-endian (bytes 0 to 5).
    pub milliseconds: [u8; 6],
    /// Bit 0: may have stopped counting; bits 3:1: where it comes from, see
    /// [`timestamp_origin`] (byte 6).
    pub attributes: u8,
    _reserved7: u8,
}

wire_layout!(Timestamp, 8, {
    0 milliseconds,
    6 attributes,
});

/// Values of the attributes of a [`Timestamp`] (field 3:1).
pub mod timestamp_origin {
    /// It counts from zero since a reset of the controller.
    pub const RESET: u8 = 0 << 1;
    /// The host has set it.
    pub const HOST: u8 = 1 << 1;
}

/// Bits a timestamp has.
const TIMESTAMP_MASK: u64 = (1 << 48) - 1;

impl Timestamp {
    /// A timestamp of so many milliseconds, with attributes.
    #[must_use]
    pub fn new(milliseconds: u64, attributes: u8) -> Self {
        let [a, b, c, d, e, f, ..] = milliseconds.to_le_bytes();
        Self { milliseconds: [a, b, c, d, e, f], attributes, _reserved7: 0 }
    }

    /// The milliseconds.
    #[must_use]
    pub fn value(&self) -> u64 {
        let [a, b, c, d, e, f] = self.milliseconds;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }

    /// Milliseconds cut to what a timestamp can hold.
    #[must_use]
    pub fn wrap(milliseconds: u128) -> u64 {
        milliseconds as u64 & TIMESTAMP_MASK
    }
}

/// Data of the Host Behavior Support feature (16h).
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct HostBehavior {
    /// The host waits as a completion's CRD asks: 0 or 1 (ACRE, byte 0).
    pub command_retry: u8,
    /// Extended telemetry data area 4: 0 or 1 (ETDAS, byte 1).
    pub telemetry_area_4: u8,
    /// Extended LBA formats: 0 or 1 (LBAFEE, byte 2).
    pub extended_lba_formats: u8,
    /// The host takes dispersed namespaces: 0 or 1 (HDISNS, byte 3).
    pub dispersed_namespaces: u8,
    /// Copy descriptor formats the host may use: bit n is format n, from 2 on
    /// (CDFE, bytes 4 to 5).
    pub copy_formats: U16,
    _reserved6: [u8; 506],
}

wire_layout!(HostBehavior, 512, {
    0 command_retry,
    1 telemetry_area_4,
    2 extended_lba_formats,
    3 dispersed_namespaces,
    4 copy_formats,
});

/// States of a namespace in the Namespace Write Protection Config feature (84h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum WriteProtection {
    /// It can be written.
    None = 0,
    /// It cannot, until a host says otherwise.
    Protected = 1,
    /// It cannot, until the next power cycle.
    UntilPowerCycle = 2,
    /// It cannot any more.
    Permanent = 3,
}

impl WriteProtection {
    /// The state in CDW11 (WPS, bits 2:0); `None` for a reserved one.
    #[must_use]
    pub fn parse(cdw11: u32) -> Option<Self> {
        [Self::None, Self::Protected, Self::UntilPowerCycle, Self::Permanent]
            .into_iter()
            .find(|state| u32::from(*state as u8) == cdw11 & 0x7)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn write_protection_states() {
        let known: Vec<_> = (0..16).map(|cdw11| WriteProtection::parse(cdw11).map(|s| s as u32)).collect();
        let states = [Some(0), Some(1), Some(2), Some(3), None, None, None, None];
        assert_eq!(known, [states, states].concat());
    }

    #[test]
    fn a_timestamp_is_48_bits() {
        assert_eq!(
            Timestamp::new(0x0102_0304_0506, timestamp_origin::HOST).as_bytes(),
            [6, 5, 4, 3, 2, 1, 2, 0]
        );
        assert_eq!(Timestamp::wrap(1 << 48 | 7), 7);
    }

    proptest! {
        #[test]
        fn timestamps_come_back(milliseconds in 0u64..1 << 48, attributes: u8) {
            let stamp = Timestamp::new(milliseconds, attributes);
            prop_assert_eq!(Timestamp::from_bytes(stamp.as_bytes()), Some(stamp));
            prop_assert_eq!(stamp.value(), milliseconds);
        }

        #[test]
        fn thresholds(cdw11: u32) {
            match TemperatureThreshold::parse(cdw11) {
                Ok(t) => prop_assert_eq!(
                    u32::from(t.kelvin) | u32::from(t.sensor) << 16 | u32::from(t.under) << 20,
                    cdw11 & 0x3f_ffff
                ),
                Err(status) => {
                    prop_assert_eq!(status, Status::INVALID_FIELD.dnr());
                    prop_assert!(cdw11 >> 21 & 1 == 1);
                }
            }
        }
    }
}
