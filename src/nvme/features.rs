//! Get and Set Features (opcodes 0Ah and 09h) and the asynchronous events
//! that one of the features configures.
//!
//! Values, defaults and which features exist belong to the target.

mod values;

pub use values::{
    HostBehavior, TemperatureThreshold, Timestamp, WriteProtection, capability, timestamp_origin,
};

use crate::log_page::{critical_warning, log_id};
use crate::{Nsid, Sqe, Status};

/// Values of FID, feature identifier.
pub mod feature {
    /// Arbitration.
    pub const ARBITRATION: u8 = 0x01;
    /// Power Management.
    pub const POWER_MANAGEMENT: u8 = 0x02;
    /// Temperature Threshold.
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    /// Error Recovery.
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// Volatile Write Cache.
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// Number of Queues; see [`super::NumberOfQueues`].
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    /// Interrupt Coalescing.
    pub const INTERRUPT_COALESCING: u8 = 0x08;
    /// Interrupt Vector Configuration.
    pub const INTERRUPT_VECTOR: u8 = 0x09;
    /// Write Atomicity Normal.
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    /// Asynchronous Event Configuration; see [`super::async_event_configuration`].
    pub const ASYNC_EVENT_CONFIGURATION: u8 = 0x0b;
    /// Timestamp.
    pub const TIMESTAMP: u8 = 0x0e;
    /// Keep Alive Timer, in milliseconds.
    pub const KEEP_ALIVE_TIMER: u8 = 0x0f;
    /// Host Controlled Thermal Management.
    pub const THERMAL_MANAGEMENT: u8 = 0x10;
    /// Host Behavior Support.
    pub const HOST_BEHAVIOR: u8 = 0x16;
    /// I/O Command Set Profile.
    pub const COMMAND_SET_PROFILE: u8 = 0x19;
    /// Software Progress Marker.
    pub const SOFTWARE_PROGRESS: u8 = 0x80;
    /// Host Identifier.
    pub const HOST_IDENTIFIER: u8 = 0x81;
    /// Reservation Notification Mask.
    pub const RESERVATION_NOTIFICATION_MASK: u8 = 0x82;
    /// Reservation Persistence.
    pub const RESERVATION_PERSISTENCE: u8 = 0x83;
    /// Namespace Write Protection Config.
    pub const NAMESPACE_WRITE_PROTECTION: u8 = 0x84;
}

/// Values of SEL, select, in Get Features.
pub mod select {
    /// The value in force.
    pub const CURRENT: u8 = 0;
    /// The default value.
    pub const DEFAULT: u8 = 1;
    /// The saved value.
    pub const SAVED: u8 = 2;
    /// What can be done with the feature.
    pub const CAPABILITIES: u8 = 3;
}

/// The fields of a Get Features command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetFeatures {
    /// Feature identifier (FID, CDW10 bits 7:0); see [`feature`].
    pub id: u8,
    /// Which value (SEL, CDW10 bits 10:8); see [`select`].
    pub select: u8,
    /// Namespace (NSID, CDW1).
    pub nsid: Nsid,
    /// Parameter of the feature (CDW11).
    pub cdw11: u32,
}

impl GetFeatures {
    /// The fields in `sqe`, whose opcode the caller has checked.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw(10);
        Self { id: cdw10 as u8, select: (cdw10 >> 8 & 0x7) as u8, nsid: sqe.nsid(), cdw11: sqe.cdw(11) }
    }
}

/// The fields of a Set Features command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetFeatures {
    /// Feature identifier (FID, CDW10 bits 7:0); see [`feature`].
    pub id: u8,
    /// Save the value (SV, CDW10 bit 31).
    pub save: bool,
    /// Namespace (NSID, CDW1).
    pub nsid: Nsid,
    /// The value, for nearly all features (CDW11).
    pub cdw11: u32,
    /// More of the value (CDW12).
    pub cdw12: u32,
    /// More of the value (CDW13).
    pub cdw13: u32,
    /// UUID index in bits 6:0 (CDW14).
    pub cdw14: u32,
    /// More of the value (CDW15).
    pub cdw15: u32,
}

impl SetFeatures {
    /// The fields in `sqe`, whose opcode the caller has checked.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw(10);
        Self {
            id: cdw10 as u8,
            save: cdw10 & 1 << 31 != 0,
            nsid: sqe.nsid(),
            cdw11: sqe.cdw(11),
            cdw12: sqe.cdw(12),
            cdw13: sqe.cdw(13),
            cdw14: sqe.cdw(14),
            cdw15: sqe.cdw(15),
        }
    }
}

/// Number of I/O queues asked for or granted (feature 07h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberOfQueues {
    /// I/O submission queues (NSQR or NSQA, bits 15:0), 1's based here.
    pub submission: u32,
    /// I/O completion queues (NCQR or NCQA, bits 31:16), 1's based here.
    pub completion: u32,
}

impl NumberOfQueues {
    /// The numbers asked for in CDW11.
    ///
    /// # Errors
    /// Invalid Field if either field is FFFFh.
    pub fn parse(cdw11: u32) -> Result<Self, Status> {
        let (submission, completion) = (cdw11 & 0xffff, cdw11 >> 16);
        if submission == 0xffff || completion == 0xffff {
            return Err(Status::INVALID_FIELD.dnr());
        }
        Ok(Self { submission: submission + 1, completion: completion + 1 })
    }

    /// The numbers granted, for DW0 of the completion. The fields cannot
    /// hold fewer than 1 or more than 65536 queues; such numbers are clamped.
    #[must_use]
    pub fn encode(self) -> u32 {
        let field = |count: u32| count.clamp(1, 0x1_0000) - 1;
        field(self.completion) << 16 | field(self.submission)
    }
}

/// Bits of the Asynchronous Event Configuration feature (0Bh). Bits 8 and up
/// are also those of Optional Asynchronous Events (OAES) in Identify Controller.
pub mod async_event_configuration {
    /// One bit a critical warning of the SMART log, as there.
    pub const CRITICAL_WARNINGS: u32 = 0xff;
    /// Namespace attribute changed.
    pub const NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
    /// Firmware activation starting.
    pub const FIRMWARE_ACTIVATION: u32 = 1 << 9;
    /// Telemetry log changed.
    pub const TELEMETRY: u32 = 1 << 10;
    /// ANA change.
    pub const ANA_CHANGE: u32 = 1 << 11;
    /// Predictable latency event aggregate log changed.
    pub const PREDICTABLE_LATENCY: u32 = 1 << 12;
    /// LBA status information.
    pub const LBA_STATUS: u32 = 1 << 13;
    /// Endurance group event aggregate log changed.
    pub const ENDURANCE_GROUP: u32 = 1 << 14;
    /// Normal NVM subsystem shutdown.
    pub const NORMAL_SHUTDOWN: u32 = 1 << 15;
    /// Zone descriptor changed.
    pub const ZONE_DESCRIPTOR: u32 = 1 << 27;
    /// Discovery log page changed.
    pub const DISCOVERY_LOG: u32 = 1 << 31;
}

/// An asynchronous event to be reported to a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AsyncEvent {
    /// A persistent internal error; the host resets the controller.
    PersistentInternalError,
    /// The spare fell below its threshold.
    SmartSpare,
    /// A temperature passed its threshold.
    SmartTemperature,
    /// Reliability is degraded.
    SmartReliability,
    /// All media became read only.
    SmartReadOnly,
    /// The backup of volatile memory failed.
    SmartBackup,
    /// Namespaces were added, removed or changed.
    NamespaceAttribute,
    /// Firmware activation starts.
    FirmwareActivation,
    /// The telemetry log changed.
    Telemetry,
    /// An ANA group changed its state.
    AnaChange,
    /// The discovery log changed.
    DiscoveryLog,
    /// A zone descriptor changed.
    ZoneDescriptor,
    /// A reservation notification is available. Feature 82h may mask it.
    ReservationLog,
}

/// Event type (DW0 bits 2:0): error.
const ERROR: u32 = 0;
/// Event type: SMART / health.
const HEALTH: u32 = 1;
/// Event type: notice.
const NOTICE: u32 = 2;
/// Event type: specific to the I/O command set.
const COMMAND_SET: u32 = 6;

impl AsyncEvent {
    /// Type (bits 2:0), information (15:8) and log page (23:16) of the event.
    fn parts(self) -> (u32, u32, u8) {
        match self {
            Self::PersistentInternalError => (ERROR, 0x03, log_id::ERROR_INFORMATION),
            Self::SmartReliability | Self::SmartReadOnly | Self::SmartBackup => (HEALTH, 0x00, log_id::SMART),
            Self::SmartTemperature => (HEALTH, 0x01, log_id::SMART),
            Self::SmartSpare => (HEALTH, 0x02, log_id::SMART),
            Self::NamespaceAttribute => (NOTICE, 0x00, log_id::CHANGED_NAMESPACES),
            Self::FirmwareActivation => (NOTICE, 0x01, log_id::FIRMWARE_SLOT),
            Self::Telemetry => (NOTICE, 0x02, log_id::TELEMETRY_CONTROLLER),
            Self::AnaChange => (NOTICE, 0x03, log_id::ANA),
            Self::ZoneDescriptor => (NOTICE, 0xef, log_id::CHANGED_ZONES),
            Self::DiscoveryLog => (NOTICE, 0xf0, log_id::DISCOVERY),
            Self::ReservationLog => (COMMAND_SET, 0x00, log_id::RESERVATION_NOTIFICATION),
        }
    }

    /// DW0 of the completion that reports the event.
    #[must_use]
    pub fn dw0(self) -> u32 {
        let (kind, information, log) = self.parts();
        u32::from(log) << 16 | information << 8 | kind
    }

    /// The log page whose reading makes the event possible again (LID).
    #[must_use]
    pub fn log_id(self) -> u8 {
        self.parts().2
    }

    /// The bit of [`async_event_configuration`] that enables the event;
    /// `None` if it is always enabled.
    #[must_use]
    pub fn configuration_bit(self) -> Option<u32> {
        use async_event_configuration as bits;
        match self {
            Self::PersistentInternalError | Self::ReservationLog => None,
            Self::SmartSpare => Some(u32::from(critical_warning::SPARE)),
            Self::SmartTemperature => Some(u32::from(critical_warning::TEMPERATURE)),
            Self::SmartReliability => Some(u32::from(critical_warning::RELIABILITY)),
            Self::SmartReadOnly => Some(u32::from(critical_warning::READ_ONLY)),
            Self::SmartBackup => Some(u32::from(critical_warning::BACKUP)),
            Self::NamespaceAttribute => Some(bits::NAMESPACE_ATTRIBUTE),
            Self::FirmwareActivation => Some(bits::FIRMWARE_ACTIVATION),
            Self::Telemetry => Some(bits::TELEMETRY),
            Self::AnaChange => Some(bits::ANA_CHANGE),
            Self::ZoneDescriptor => Some(bits::ZONE_DESCRIPTOR),
            Self::DiscoveryLog => Some(bits::DISCOVERY_LOG),
        }
    }

    /// Whether a controller configured with `configuration` reports the event.
    #[must_use]
    pub fn is_enabled(self, configuration: u32) -> bool {
        self.configuration_bit().is_none_or(|bit| configuration & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn events_have_the_known_dw0() {
        for (event, dw0, bit) in [
            (AsyncEvent::NamespaceAttribute, 0x0004_0002, Some(8)),
            (AsyncEvent::FirmwareActivation, 0x0003_0102, Some(9)),
            (AsyncEvent::Telemetry, 0x0008_0202, Some(10)),
            (AsyncEvent::AnaChange, 0x000c_0302, Some(11)),
            (AsyncEvent::DiscoveryLog, 0x0070_f002, Some(31)),
            (AsyncEvent::ReservationLog, 0x0080_0006, None),
            (AsyncEvent::ZoneDescriptor, 0x00bf_ef02, Some(27)),
            (AsyncEvent::SmartSpare, 0x0002_0201, Some(0)),
            (AsyncEvent::SmartTemperature, 0x0002_0101, Some(1)),
            (AsyncEvent::SmartReliability, 0x0002_0001, Some(2)),
            (AsyncEvent::SmartReadOnly, 0x0002_0001, Some(3)),
            (AsyncEvent::SmartBackup, 0x0002_0001, Some(4)),
            (AsyncEvent::PersistentInternalError, 0x0001_0300, None),
        ] {
            assert_eq!(event.dw0(), dw0, "{event:?}");
            assert_eq!(event.configuration_bit(), bit.map(|n| 1u32 << n), "{event:?}");
            assert!(event.is_enabled(u32::MAX));
            assert_eq!(event.is_enabled(0), bit.is_none(), "{event:?}");
        }
    }

    #[test]
    fn ffff_queues_are_refused() {
        for cdw11 in [0xffff, 0xffff_0000, 0xffff_ffff] {
            assert_eq!(NumberOfQueues::parse(cdw11), Err(Status::INVALID_FIELD.dnr()));
        }
    }

    proptest! {
        #[test]
        fn get_features_fields_come_back(id: u8, select in 0u8..8, nsid: u32, cdw11: u32) {
            let mut sqe = Sqe::new(0x0a);
            sqe.set_nsid(Nsid(nsid));
            sqe.set_cdw(10, u32::from(id) | u32::from(select) << 8 | 0xffff_f800);
            sqe.set_cdw(11, cdw11);
            let expected = GetFeatures { id, select, nsid: Nsid(nsid), cdw11 };
            prop_assert_eq!(GetFeatures::parse(&sqe), expected);
        }

        #[test]
        fn set_features_fields_come_back(id: u8, save: bool, nsid: u32, value: [u32; 5]) {
            let mut sqe = Sqe::new(0x09);
            sqe.set_nsid(Nsid(nsid));
            sqe.set_cdw(10, u32::from(id) | u32::from(save) << 31 | 0x7fff_ff00);
            for (n, dword) in (11..).zip(value) {
                sqe.set_cdw(n, dword);
            }
            let [cdw11, cdw12, cdw13, cdw14, cdw15] = value;
            let nsid = Nsid(nsid);
            let expected = SetFeatures { id, save, nsid, cdw11, cdw12, cdw13, cdw14, cdw15 };
            prop_assert_eq!(SetFeatures::parse(&sqe), expected);
        }

        #[test]
        fn arbitrary_commands_never_panic(bytes: [[u8; 32]; 2]) {
            let mut sqe = [0; 64];
            sqe.copy_from_slice(bytes.as_flattened());
            let sqe = Sqe::parse(&sqe);
            let _ = GetFeatures::parse(&sqe);
            let _ = NumberOfQueues::parse(SetFeatures::parse(&sqe).cdw11);
        }

        #[test]
        fn number_of_queues_round_trips(cdw11: u32) {
            if let Ok(number) = NumberOfQueues::parse(cdw11) {
                prop_assert!(number.submission >= 1 && number.completion >= 1);
                prop_assert_eq!(number.encode(), cdw11);
            }
        }

        #[test]
        fn any_number_of_queues_encodes(submission: u32, completion: u32) {
            let _ = NumberOfQueues { submission, completion }.encode();
        }
    }
}
