//! Get Log Page (opcode 02h): the command's fields and the pages it returns.
//!
//! Which pages a controller has, how they are filled, and what reading one
//! clears is the target's business. The discovery log (70h) is in
//! [`crate::discovery`].

mod ana;
mod effects;
mod health;
mod notification;
mod persistent_event;

pub use ana::{AnaDescriptor, AnaHeader, AnaState, RETURN_GROUPS_ONLY};
pub use effects::{EffectsLog, FeaturesLog, SupportedLogPages, effect, supported_page};
pub use health::{ErrorLogEntry, FirmwareSlotLog, NO_PARAMETER_ERROR, SmartLog, critical_warning};
pub use notification::{ReservationNotification, reservation_notification_type, write_changed_namespaces};
pub use persistent_event::{
    CONTEXT_OF_PORT, ControllerReset, EventPlace, PersistentEvent, PersistentEventHeader, TimestampChange,
    event_log_action, event_type, firmware_field,
};

use crate::{Nsid, Sqe};

/// Values of LID, log page identifier.
pub mod log_id {
    /// Supported log pages.
    pub const SUPPORTED_LOG_PAGES: u8 = 0x00;
    /// Error information.
    pub const ERROR_INFORMATION: u8 = 0x01;
    /// SMART / health information.
    pub const SMART: u8 = 0x02;
    /// Firmware slot information.
    pub const FIRMWARE_SLOT: u8 = 0x03;
    /// Changed attached namespace list.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands supported and effects.
    pub const EFFECTS: u8 = 0x05;
    /// Device self-test.
    pub const SELF_TEST: u8 = 0x06;
    /// Telemetry, host initiated.
    pub const TELEMETRY_HOST: u8 = 0x07;
    /// Telemetry, controller initiated.
    pub const TELEMETRY_CONTROLLER: u8 = 0x08;
    /// Endurance group information.
    pub const ENDURANCE_GROUP: u8 = 0x09;
    /// Asymmetric namespace access.
    pub const ANA: u8 = 0x0c;
    /// Persistent event log.
    pub const PERSISTENT_EVENT: u8 = 0x0d;
    /// Feature identifiers supported and effects.
    pub const FEATURES: u8 = 0x12;
    /// Management interface commands supported and effects.
    pub const MANAGEMENT_COMMANDS: u8 = 0x13;
    /// Rotational media information.
    pub const ROTATIONAL_MEDIA: u8 = 0x16;
    /// Discovery.
    pub const DISCOVERY: u8 = 0x70;
    /// Host discovery.
    pub const HOST_DISCOVERY: u8 = 0x71;
    /// Reservation notification.
    pub const RESERVATION_NOTIFICATION: u8 = 0x80;
    /// Sanitize status.
    pub const SANITIZE: u8 = 0x81;
    /// Changed zone list.
    pub const CHANGED_ZONES: u8 = 0xbf;
}

/// The fields of a Get Log Page command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetLogPage {
    /// Log page identifier (LID, CDW10 bits 7:0); see [`log_id`].
    pub id: u8,
    /// Log specific parameter (LSP, CDW10 bits 14:8).
    pub specific: u8,
    /// Retain the asynchronous event (RAE, CDW10 bit 15).
    pub retain_async_event: bool,
    /// Bytes wanted: (NUMD + 1) * 4, at most 2^34 (NUMDL CDW10 bits 31:16,
    /// NUMDU CDW11 bits 15:0).
    pub bytes: u64,
    /// Log specific identifier (LSI, CDW11 bits 31:16).
    pub specific_id: u16,
    /// Log page offset in bytes, or an index (LPO, CDW12 and CDW13).
    pub offset: u64,
    /// Whether `offset` is an index (OT, CDW14 bit 23).
    pub offset_is_index: bool,
    /// I/O command set (CSI, CDW14 bits 31:24).
    pub csi: u8,
    /// UUID index (UIDX, CDW14 bits 6:0).
    pub uuid_index: u8,
    /// Namespace (NSID, CDW1); 0 or FFFFFFFFh for the controller.
    pub nsid: Nsid,
}

impl GetLogPage {
    /// The fields in `sqe`, whose opcode the caller has checked.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let (cdw10, cdw11, cdw14) = (sqe.cdw(10), sqe.cdw(11), sqe.cdw(14));
        let dwords = u64::from(cdw11 & 0xffff) << 16 | u64::from(cdw10 >> 16);
        Self {
            id: cdw10 as u8,
            specific: (cdw10 >> 8 & 0x7f) as u8,
            retain_async_event: cdw10 & 1 << 15 != 0,
            bytes: (dwords + 1) * 4,
            specific_id: (cdw11 >> 16) as u16,
            offset: u64::from(sqe.cdw(13)) << 32 | u64::from(sqe.cdw(12)),
            offset_is_index: cdw14 & 1 << 23 != 0,
            csi: (cdw14 >> 24) as u8,
            uuid_index: (cdw14 & 0x7f) as u8,
            nsid: sqe.nsid(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_largest_length_does_not_overflow() {
        let mut sqe = Sqe::new(0x02);
        sqe.set_cdw(10, u32::MAX);
        sqe.set_cdw(11, u32::MAX);
        assert_eq!(GetLogPage::parse(&sqe).bytes, 1 << 34);
        assert_eq!(GetLogPage::parse(&Sqe::new(0x02)).bytes, 4);
    }

    proptest! {
        #[test]
        fn fields_come_back(
            (id, specific, retain) in (any::<u8>(), 0u8..128, any::<bool>()),
            (dwords, specific_id, offset) in (1u64..=1 << 32, any::<u16>(), any::<u64>()),
            (index, csi, uuid_index, nsid) in (any::<bool>(), any::<u8>(), 0u8..128, any::<u32>()),
        ) {
            let numd = (dwords - 1) as u32;
            let mut sqe = Sqe::new(0x02);
            sqe.set_nsid(Nsid(nsid));
            let low = u32::from(retain) << 15 | u32::from(specific) << 8 | u32::from(id);
            sqe.set_cdw(10, numd << 16 | low);
            sqe.set_cdw(11, u32::from(specific_id) << 16 | numd >> 16);
            sqe.set_cdw(12, offset as u32);
            sqe.set_cdw(13, (offset >> 32) as u32);
            let flags = u32::from(csi) << 24 | u32::from(index) << 23;
            sqe.set_cdw(14, flags | 0x007f_ff80 | u32::from(uuid_index));
            let expected = GetLogPage {
                id,
                specific,
                retain_async_event: retain,
                bytes: dwords * 4,
                specific_id,
                offset,
                offset_is_index: index,
                csi,
                uuid_index,
                nsid: Nsid(nsid),
            };
            prop_assert_eq!(GetLogPage::parse(&sqe), expected);
        }
    }
}
