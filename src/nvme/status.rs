//! Command statuses: the 15 bits of a CQE that say how a command ended.
//!
//! Knows every standard code with its name. Which status fits a failure, and
//! whether the host should retry (DNR), is decided where the failure is found.

use core::fmt;

/// A command status: status code type and code, and the retry bits.
///
/// Kept as the CQE status field without the phase tag: SC 7:0, SCT 10:8, CRD
/// 12:11, MORE 13, DNR 14. Equality covers all of them, so a status with DNR is
/// not equal to the same code without; compare [`code`](Self::code) to ignore it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u16);

/// SCT and SC within the stored value.
const CODE: u16 = 0x07ff;
/// Command retry delay (CRD).
const RETRY_DELAY: u16 = 3 << RETRY_DELAY_SHIFT;
const RETRY_DELAY_SHIFT: u32 = 11;
/// More (M): details are in the error log.
const MORE: u16 = 1 << 13;
/// Do not retry (DNR).
const DNR: u16 = 1 << 14;

impl Status {
    const fn from_code(code: u16) -> Self {
        Self(code & CODE)
    }

    /// Status code type and status code combined, `SCT << 8 | SC`: 182h and the
    /// like.
    #[must_use]
    pub const fn code(self) -> u16 {
        self.0 & CODE
    }

    /// Status code type (SCT): 0 generic, 1 command specific, 2 media, 3 path,
    /// 7 vendor.
    #[must_use]
    pub const fn sct(self) -> u8 {
        (self.code() >> 8) as u8
    }

    /// Status code (SC), to be read together with the type.
    #[must_use]
    pub const fn sc(self) -> u8 {
        self.code() as u8
    }

    /// This status with "do not retry" (DNR) set: repeating the command unchanged
    /// cannot help.
    #[must_use]
    pub const fn dnr(self) -> Self {
        Self(self.0 | DNR)
    }

    /// True when "do not retry" is set.
    #[must_use]
    pub const fn is_dnr(self) -> bool {
        self.0 & DNR != 0
    }

    /// This status with "more" (M) set: the error log has details.
    #[must_use]
    pub const fn more(self) -> Self {
        Self(self.0 | MORE)
    }

    /// True when "more" is set.
    #[must_use]
    pub const fn is_more(self) -> bool {
        self.0 & MORE != 0
    }

    /// This status with a command retry delay (CRD): 1 to 3 name one of the times
    /// in Identify Controller (CRDT1 to CRDT3), 0 none.
    #[must_use]
    pub const fn with_retry_delay(self, which: u8) -> Self {
        Self(self.0 & !RETRY_DELAY | (which as u16) << RETRY_DELAY_SHIFT & RETRY_DELAY)
    }

    /// The command retry delay (CRD).
    #[must_use]
    pub const fn retry_delay(self) -> u8 {
        ((self.0 & RETRY_DELAY) >> RETRY_DELAY_SHIFT) as u8
    }

    /// True for successful completion, whatever the retry bits.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.code() == 0
    }

    /// The CQE status field (bytes 15:14), with the phase tag 0.
    #[must_use]
    pub const fn wire(self) -> u16 {
        self.0 << 1
    }

    /// Reads a CQE status field; the phase tag is dropped.
    #[must_use]
    pub const fn from_wire(field: u16) -> Self {
        Self(field >> 1)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let retry = if self.is_dnr() { ", do not retry" } else { "" };
        write!(f, "{} ({:03X}h{retry})", self.title(), self.code())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dnr = if self.is_dnr() { " DNR" } else { "" };
        write!(f, "Status({:03X}h {}{dnr})", self.code(), self.name())
    }
}

impl core::error::Error for Status {}

/// One line per code: constant, combined code, metric label, standard name.
macro_rules! codes {
    ($($constant:ident $code:literal $name:literal $title:literal;)*) => {
        impl Status {
            $(
                #[doc = concat!($title, ", ", stringify!($code), ".")]
                pub const $constant: Self = Self::from_code($code);
            )*

            /// The code's name in lower snake case, usable as a metric label.
            /// Codes that mean one thing for Connect and another for an I/O
            /// command get the Connect name; see [`io_name`](Self::io_name).
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self.code() {
                    $($code => $name,)*
                    _ => self.unlisted_name(),
                }
            }

            /// The code's name as the standard writes it.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self.code() {
                    $($code => $title,)*
                    _ => "Unlisted Status",
                }
            }

            #[cfg(test)]
            const LISTED: &[(Self, &str)] = &[$((Self::$constant, $name)),*];
        }
    };
}

codes! {
    SUCCESS 0x000 "success" "Successful Completion";
    INVALID_OPCODE 0x001 "invalid_opcode" "Invalid Command Opcode";
    INVALID_FIELD 0x002 "invalid_field" "Invalid Field in Command";
    COMMAND_ID_CONFLICT 0x003 "command_id_conflict" "Command ID Conflict";
    DATA_TRANSFER_ERROR 0x004 "data_transfer_error" "Data Transfer Error";
    ABORTED_POWER_LOSS 0x005 "aborted_power_loss" "Commands Aborted due to Power Loss Notification";
    INTERNAL_ERROR 0x006 "internal_error" "Internal Error";
    ABORT_REQUESTED 0x007 "abort_requested" "Command Abort Requested";
    ABORTED_SQ_DELETION 0x008 "aborted_sq_deletion" "Command Aborted due to SQ Deletion";
    ABORTED_FAILED_FUSED 0x009 "aborted_failed_fused" "Command Aborted due to Failed Fused Command";
    ABORTED_MISSING_FUSED 0x00a "aborted_missing_fused" "Command Aborted due to Missing Fused Command";
    INVALID_NAMESPACE 0x00b "invalid_namespace" "Invalid Namespace or Format";
    COMMAND_SEQUENCE_ERROR 0x00c "command_sequence_error" "Command Sequence Error";
    SGL_LAST_SEGMENT_INVALID 0x00d "sgl_last_segment_invalid" "Invalid SGL Segment Descriptor";
    SGL_COUNT_INVALID 0x00e "sgl_count_invalid" "Invalid Number of SGL Descriptors";
    DATA_SGL_LENGTH_INVALID 0x00f "data_sgl_length_invalid" "Data SGL Length Invalid";
    METADATA_SGL_LENGTH_INVALID 0x010 "metadata_sgl_length_invalid" "Metadata SGL Length Invalid";
    SGL_DESCRIPTOR_TYPE_INVALID 0x011 "sgl_descriptor_type_invalid" "SGL Descriptor Type Invalid";
    CMB_INVALID 0x012 "cmb_invalid" "Invalid Use of Controller Memory Buffer";
    PRP_OFFSET_INVALID 0x013 "prp_offset_invalid" "PRP Offset Invalid";
    ATOMIC_WRITE_UNIT_EXCEEDED 0x014 "atomic_write_unit_exceeded" "Atomic Write Unit Exceeded";
    OPERATION_DENIED 0x015 "operation_denied" "Operation Denied";
    SGL_OFFSET_INVALID 0x016 "sgl_offset_invalid" "SGL Offset Invalid";
    HOST_ID_INCONSISTENT_FORMAT 0x018 "host_id_inconsistent_format" "Host Identifier Inconsistent Format";
    KEEP_ALIVE_TIMEOUT_EXPIRED 0x019 "keep_alive_timeout_expired" "Keep Alive Timer Expired";
    KEEP_ALIVE_TIMEOUT_INVALID 0x01a "keep_alive_timeout_invalid" "Keep Alive Timeout Invalid";
    ABORTED_PREEMPT_AND_ABORT 0x01b "aborted_preempt_and_abort" "Command Aborted due to Preempt and Abort";
    SANITIZE_FAILED 0x01c "sanitize_failed" "Sanitize Failed";
    SANITIZE_IN_PROGRESS 0x01d "sanitize_in_progress" "Sanitize In Progress";
    SGL_DATA_BLOCK_GRANULARITY_INVALID 0x01e "sgl_data_block_granularity_invalid" "SGL Data Block Granularity Invalid";
    COMMAND_NOT_SUPPORTED_IN_CMB 0x01f "command_not_supported_in_cmb" "Command Not Supported for Queue in CMB";
    NAMESPACE_WRITE_PROTECTED 0x020 "namespace_write_protected" "Namespace is Write Protected";
    COMMAND_INTERRUPTED 0x021 "command_interrupted" "Command Interrupted";
    TRANSIENT_TRANSPORT_ERROR 0x022 "transient_transport_error" "Transient Transport Error";
    PROHIBITED_BY_LOCKDOWN 0x023 "prohibited_by_lockdown" "Command Prohibited by Command and Feature Lockdown";
    ADMIN_COMMAND_MEDIA_NOT_READY 0x024 "admin_command_media_not_ready" "Admin Command Media Not Ready";
    INVALID_KEY_TAG 0x025 "invalid_key_tag" "Invalid Key Tag";
    DISPERSED_NAMESPACE_NOT_ENABLED 0x026 "dispersed_namespace_not_enabled" "Host Dispersed Namespace Support Not Enabled";
    HOST_ID_NOT_INITIALIZED 0x027 "host_id_not_initialized" "Host Identifier Not Initialized";
    INCORRECT_KEY 0x028 "incorrect_key" "Incorrect Key";
    FDP_DISABLED 0x029 "fdp_disabled" "FDP Disabled";
    INVALID_PLACEMENT_HANDLE_LIST 0x02a "invalid_placement_handle_list" "Invalid Placement Handle List";
    LBA_OUT_OF_RANGE 0x080 "lba_out_of_range" "LBA Out of Range";
    CAPACITY_EXCEEDED 0x081 "capacity_exceeded" "Capacity Exceeded";
    NAMESPACE_NOT_READY 0x082 "namespace_not_ready" "Namespace Not Ready";
    RESERVATION_CONFLICT 0x083 "reservation_conflict" "Reservation Conflict";
    FORMAT_IN_PROGRESS 0x084 "format_in_progress" "Format In Progress";
    INVALID_COMPLETION_QUEUE 0x100 "invalid_completion_queue" "Completion Queue Invalid";
    INVALID_QUEUE_ID 0x101 "invalid_queue_id" "Invalid Queue Identifier";
    INVALID_QUEUE_SIZE 0x102 "invalid_queue_size" "Invalid Queue Size";
    ABORT_LIMIT_EXCEEDED 0x103 "abort_limit_exceeded" "Abort Command Limit Exceeded";
    AER_LIMIT_EXCEEDED 0x105 "aer_limit_exceeded" "Asynchronous Event Request Limit Exceeded";
    INVALID_FIRMWARE_SLOT 0x106 "invalid_firmware_slot" "Invalid Firmware Slot";
    INVALID_FIRMWARE_IMAGE 0x107 "invalid_firmware_image" "Invalid Firmware Image";
    INVALID_INTERRUPT_VECTOR 0x108 "invalid_interrupt_vector" "Invalid Interrupt Vector";
    INVALID_LOG_PAGE 0x109 "invalid_log_page" "Invalid Log Page";
    INVALID_FORMAT 0x10a "invalid_format" "Invalid Format";
    FIRMWARE_NEEDS_CONVENTIONAL_RESET 0x10b "firmware_needs_conventional_reset" "Firmware Activation Requires Conventional Reset";
    INVALID_QUEUE_DELETION 0x10c "invalid_queue_deletion" "Invalid Queue Deletion";
    FEATURE_NOT_SAVEABLE 0x10d "feature_not_saveable" "Feature Identifier Not Saveable";
    FEATURE_NOT_CHANGEABLE 0x10e "feature_not_changeable" "Feature Not Changeable";
    FEATURE_NOT_NAMESPACE_SPECIFIC 0x10f "feature_not_namespace_specific" "Feature Not Namespace Specific";
    FIRMWARE_NEEDS_SUBSYSTEM_RESET 0x110 "firmware_needs_subsystem_reset" "Firmware Activation Requires NVM Subsystem Reset";
    FIRMWARE_NEEDS_CONTROLLER_RESET 0x111 "firmware_needs_controller_reset" "Firmware Activation Requires Controller Level Reset";
    FIRMWARE_NEEDS_MAXIMUM_TIME 0x112 "firmware_needs_maximum_time" "Firmware Activation Requires Maximum Time Violation";
    FIRMWARE_ACTIVATION_PROHIBITED 0x113 "firmware_activation_prohibited" "Firmware Activation Prohibited";
    OVERLAPPING_RANGE 0x114 "overlapping_range" "Overlapping Range";
    INSUFFICIENT_CAPACITY 0x115 "insufficient_capacity" "Namespace Insufficient Capacity";
    NSID_UNAVAILABLE 0x116 "nsid_unavailable" "Namespace Identifier Unavailable";
    NAMESPACE_ALREADY_ATTACHED 0x118 "namespace_already_attached" "Namespace Already Attached";
    NAMESPACE_PRIVATE 0x119 "namespace_private" "Namespace Is Private";
    NAMESPACE_NOT_ATTACHED 0x11a "namespace_not_attached" "Namespace Not Attached";
    THIN_PROVISIONING_UNSUPPORTED 0x11b "thin_provisioning_unsupported" "Thin Provisioning Not Supported";
    CONTROLLER_LIST_INVALID 0x11c "controller_list_invalid" "Controller List Invalid";
    SELF_TEST_IN_PROGRESS 0x11d "self_test_in_progress" "Device Self-test In Progress";
    BOOT_PARTITION_WRITE_PROHIBITED 0x11e "boot_partition_write_prohibited" "Boot Partition Write Prohibited";
    INVALID_CONTROLLER_ID 0x11f "invalid_controller_id" "Invalid Controller Identifier";
    ANA_GROUP_ID_INVALID 0x124 "ana_group_id_invalid" "ANA Group Identifier Invalid";
    ANA_ATTACH_FAILED 0x125 "ana_attach_failed" "ANA Attach Failed";
    IO_COMMAND_SET_UNSUPPORTED 0x129 "io_command_set_unsupported" "I/O Command Set Not Supported";
    IO_COMMAND_SET_NOT_ENABLED 0x12a "io_command_set_not_enabled" "I/O Command Set Not Enabled";
    IO_COMMAND_SET_COMBINATION_REJECTED 0x12b "io_command_set_combination_rejected" "I/O Command Set Combination Rejected";
    IO_COMMAND_SET_INVALID 0x12c "io_command_set_invalid" "Invalid I/O Command Set";
    INVALID_DISCOVERY_INFORMATION 0x12f "invalid_discovery_information" "Invalid Discovery Information";
    ZONING_STRUCTURE_LOCKED 0x130 "zoning_structure_locked" "Zoning Data Structure Locked";
    ZONING_STRUCTURE_NOT_FOUND 0x131 "zoning_structure_not_found" "Zoning Data Structure Not Found";
    INSUFFICIENT_DISCOVERY_RESOURCES 0x132 "insufficient_discovery_resources" "Insufficient Discovery Resources";
    ZONING_FUNCTION_DISABLED 0x133 "zoning_function_disabled" "Requested Function Disabled";
    ZONEGROUP_ORIGINATOR_INVALID 0x134 "zonegroup_originator_invalid" "ZoneGroup Originator Invalid";
    CONNECT_INCOMPATIBLE_FORMAT 0x180 "connect_incompatible_format" "Connect Incompatible Format";
    CONNECT_CONTROLLER_BUSY 0x181 "connect_controller_busy" "Connect Controller Busy";
    CONNECT_INVALID_PARAMETER 0x182 "connect_invalid_parameter" "Connect Invalid Parameters";
    CONNECT_RESTART_DISCOVERY 0x183 "connect_restart_discovery" "Connect Restart Discovery";
    CONNECT_INVALID_HOST 0x184 "connect_invalid_host" "Connect Invalid Host";
    INVALID_QUEUE_TYPE 0x185 "invalid_queue_type" "Invalid Queue Type";
    FAST_COPY_IMPOSSIBLE 0x186 "fast_copy_impossible" "Fast Copy Not Possible";
    OVERLAPPING_IO_RANGE 0x187 "overlapping_io_range" "Overlapping I/O Range";
    INSUFFICIENT_RESOURCES 0x189 "insufficient_resources" "Insufficient Resources";
    DISCOVERY_RESTART 0x190 "discovery_restart" "Discover Restart";
    AUTHENTICATION_REQUIRED 0x191 "authentication_required" "Authentication Required";
    ZONE_INVALID_OPERATION_REQUEST 0x1b6 "zone_invalid_operation_request" "Invalid Zone Operation Request";
    ZONE_RESOURCES_UNAVAILABLE 0x1b7 "zone_resources_unavailable" "ZRWA Resources Unavailable";
    ZONE_BOUNDARY_ERROR 0x1b8 "zone_boundary_error" "Zone Boundary Error";
    ZONE_IS_FULL 0x1b9 "zone_is_full" "Zone Is Full";
    ZONE_IS_READ_ONLY 0x1ba "zone_is_read_only" "Zone Is Read Only";
    ZONE_IS_OFFLINE 0x1bb "zone_is_offline" "Zone Is Offline";
    ZONE_INVALID_WRITE 0x1bc "zone_invalid_write" "Zone Invalid Write";
    TOO_MANY_ACTIVE_ZONES 0x1bd "too_many_active_zones" "Too Many Active Zones";
    TOO_MANY_OPEN_ZONES 0x1be "too_many_open_zones" "Too Many Open Zones";
    INVALID_ZONE_STATE_TRANSITION 0x1bf "invalid_zone_state_transition" "Invalid Zone State Transition";
    WRITE_FAULT 0x280 "write_fault" "Write Fault";
    UNRECOVERED_READ_ERROR 0x281 "unrecovered_read_error" "Unrecovered Read Error";
    GUARD_CHECK_ERROR 0x282 "guard_check_error" "End-to-end Guard Check Error";
    APPLICATION_TAG_CHECK_ERROR 0x283 "application_tag_check_error" "End-to-end Application Tag Check Error";
    REFERENCE_TAG_CHECK_ERROR 0x284 "reference_tag_check_error" "End-to-end Reference Tag Check Error";
    COMPARE_FAILURE 0x285 "compare_failure" "Compare Failure";
    ACCESS_DENIED 0x286 "access_denied" "Access Denied";
    DEALLOCATED_BLOCK 0x287 "deallocated_block" "Deallocated or Unwritten Logical Block";
    STORAGE_TAG_CHECK_ERROR 0x288 "storage_tag_check_error" "End-to-end Storage Tag Check Error";
    INTERNAL_PATH_ERROR 0x300 "internal_path_error" "Internal Path Error";
    ANA_PERSISTENT_LOSS 0x301 "ana_persistent_loss" "Asymmetric Access Persistent Loss";
    ANA_INACCESSIBLE 0x302 "ana_inaccessible" "Asymmetric Access Inaccessible";
    ANA_TRANSITION 0x303 "ana_transition" "Asymmetric Access Transition";
    CONTROLLER_PATHING_ERROR 0x360 "controller_pathing_error" "Controller Pathing Error";
    HOST_PATHING_ERROR 0x370 "host_pathing_error" "Host Pathing Error";
    ABORTED_BY_HOST 0x371 "aborted_by_host" "Command Aborted By Host";
}

/// The meanings codes 180h to 185h have for NVM commands. On the wire they are
/// the Connect codes of the same number.
impl Status {
    /// Conflicting Attributes, 0x180 for NVM commands.
    pub const CONFLICTING_ATTRIBUTES: Self = Self::from_code(0x180);
    /// Invalid Protection Information, 0x181 for NVM commands.
    pub const INVALID_PROTECTION_INFORMATION: Self = Self::from_code(0x181);
    /// Attempted Write to Read Only Range, 0x182 for NVM commands.
    pub const WRITE_TO_READ_ONLY_RANGE: Self = Self::from_code(0x182);
    /// Command Size Limit Exceeded, 0x183 for NVM commands.
    pub const COMMAND_SIZE_LIMIT_EXCEEDED: Self = Self::from_code(0x183);
    /// Incompatible Namespace or Format, 0x185 for NVM commands.
    pub const INCOMPATIBLE_NAMESPACE: Self = Self::from_code(0x185);

    /// As [`name`](Self::name), but for a status of an I/O command: the codes
    /// shared with Connect get their NVM meaning.
    #[must_use]
    pub const fn io_name(self) -> &'static str {
        match self.code() {
            0x180 => "conflicting_attributes",
            0x181 => "invalid_protection_information",
            0x182 => "write_to_read_only_range",
            0x183 => "command_size_limit_exceeded",
            0x185 => "incompatible_namespace",
            _ => self.name(),
        }
    }

    /// Names the kind of a code that has no entry of its own, so that foreign
    /// codes stay tellable apart without unbounded labels.
    const fn unlisted_name(self) -> &'static str {
        match self.sct() {
            0 => "unlisted_generic",
            1 => "unlisted_command_specific",
            2 => "unlisted_media",
            3 => "unlisted_path",
            7 => "unlisted_vendor",
            _ => "unlisted_reserved",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wire_form() {
        assert_eq!(Status::SUCCESS.wire(), 0);
        assert_eq!(Status::CONNECT_INVALID_PARAMETER.wire(), 0x0304);
        assert_eq!(Status::INVALID_FIELD.dnr().wire(), 0x8004);
        assert_eq!(Status::UNRECOVERED_READ_ERROR.more().wire(), 0x4502);
        assert_eq!(Status::COMMAND_INTERRUPTED.with_retry_delay(2).wire(), 0x2042);
        assert_eq!(Status::COMMAND_INTERRUPTED.with_retry_delay(3).with_retry_delay(1).retry_delay(), 1);
        assert_eq!(Status::ANA_TRANSITION.code(), 0x303);
        assert_eq!((Status::AUTHENTICATION_REQUIRED.sct(), Status::AUTHENTICATION_REQUIRED.sc()), (1, 0x91));
        assert!(Status::SUCCESS.dnr().is_success());
    }

    #[test]
    fn text_forms() {
        let status = Status::LBA_OUT_OF_RANGE.dnr();
        assert_eq!(status.to_string(), "LBA Out of Range (080h, do not retry)");
        assert_eq!(format!("{status:?}"), "Status(080h lba_out_of_range DNR)");
        assert_eq!(Status::from_wire(0x0e00).name(), "unlisted_vendor");
        let size = Status::COMMAND_SIZE_LIMIT_EXCEEDED;
        assert_eq!(size.io_name(), "command_size_limit_exceeded");
        assert_eq!(size.name(), "connect_restart_discovery");
    }

    #[test]
    fn listed_codes_are_labels_and_distinct() {
        let mut names = std::collections::HashSet::new();
        for (status, name) in Status::LISTED {
            assert!(names.insert(name), "{name} twice");
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'));
            assert_eq!(status.name(), *name);
            assert_ne!(status.title(), "Unlisted Status");
            assert_eq!(status.io_name() == *name, !matches!(status.code(), 0x180..=0x183 | 0x185));
        }
    }

    proptest! {
        #[test]
        fn wire_round_trip(field: u16) {
            let status = Status::from_wire(field);
            prop_assert_eq!(status.wire(), field & !1);
            prop_assert_eq!(status.is_dnr(), field & 0x8000 != 0);
            prop_assert_eq!(status.code(), field >> 1 & 0x7ff);
            let _ = (status.to_string(), format!("{status:?}"), status.io_name());
        }
    }
}
