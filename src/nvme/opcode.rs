//! Opcodes: what a command is, which way its data goes, and its metric label.
//!
//! Being listed here means the code has a name in the standard, not that this
//! target carries the command out; the executors decide that.

use crate::sqe::Sqe;

/// Opcode of every fabrics command, on admin and I/O queues alike. Its
/// [`FabricsType`] says which command it is.
pub const FABRICS: u8 = 0x7f;

/// Declares an opcode enum with its conversions and names.
macro_rules! opcodes {
    ($(#[$doc:meta])* $type:ident {
        $($(#[$variant_doc:meta])* $variant:ident = $code:literal, $name:literal;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum $type {
            $($(#[$variant_doc])* $variant = $code,)*
        }

        impl $type {
            /// Every listed code, in ascending order.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The entry for `code`, when it is listed.
            #[must_use]
            pub const fn from_u8(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The code on the wire.
            #[must_use]
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// The name in lower snake case, usable as a metric label.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

opcodes! {
    /// Opcodes of the admin queue (OPC), without [`FABRICS`].
    AdminOpcode {
        /// Delete I/O Submission Queue; not allowed on fabrics.
        DeleteIoSq = 0x00, "delete_io_sq";
        /// Create I/O Submission Queue; not allowed on fabrics.
        CreateIoSq = 0x01, "create_io_sq";
        /// Get Log Page.
        GetLogPage = 0x02, "get_log_page";
        /// Delete I/O Completion Queue; not allowed on fabrics.
        DeleteIoCq = 0x04, "delete_io_cq";
        /// Create I/O Completion Queue; not allowed on fabrics.
        CreateIoCq = 0x05, "create_io_cq";
        /// Identify.
        Identify = 0x06, "identify";
        /// Abort.
        Abort = 0x08, "abort";
        /// Set Features.
        SetFeatures = 0x09, "set_features";
        /// Get Features.
        GetFeatures = 0x0a, "get_features";
        /// Asynchronous Event Request.
        AsyncEventRequest = 0x0c, "async_event_request";
        /// Namespace Management.
        NamespaceManagement = 0x0d, "namespace_management";
        /// Firmware Commit.
        FirmwareCommit = 0x10, "firmware_commit";
        /// Firmware Image Download.
        FirmwareDownload = 0x11, "firmware_download";
        /// Device Self-test.
        DeviceSelfTest = 0x14, "device_self_test";
        /// Namespace Attachment.
        NamespaceAttachment = 0x15, "namespace_attachment";
        /// Keep Alive.
        KeepAlive = 0x18, "keep_alive";
        /// Directive Send.
        DirectiveSend = 0x19, "directive_send";
        /// Directive Receive.
        DirectiveReceive = 0x1a, "directive_receive";
        /// Format NVM.
        FormatNvm = 0x80, "format_nvm";
        /// Security Send.
        SecuritySend = 0x81, "security_send";
        /// Security Receive.
        SecurityReceive = 0x82, "security_receive";
        /// Sanitize.
        Sanitize = 0x84, "sanitize";
    }
}

opcodes! {
    /// Opcodes of I/O queues (OPC): the NVM and zoned command sets, without
    /// [`FABRICS`].
    IoOpcode {
        /// Flush.
        Flush = 0x00, "flush";
        /// Write.
        Write = 0x01, "write";
        /// Read.
        Read = 0x02, "read";
        /// Write Uncorrectable.
        WriteUncorrectable = 0x04, "write_uncorrectable";
        /// Compare.
        Compare = 0x05, "compare";
        /// Write Zeroes.
        WriteZeroes = 0x08, "write_zeroes";
        /// Dataset Management.
        DatasetManagement = 0x09, "dataset_management";
        /// Verify.
        Verify = 0x0c, "verify";
        /// Reservation Register.
        ReservationRegister = 0x0d, "reservation_register";
        /// Reservation Report.
        ReservationReport = 0x0e, "reservation_report";
        /// Reservation Acquire.
        ReservationAcquire = 0x11, "reservation_acquire";
        /// I/O Management Receive.
        IoManagementReceive = 0x12, "io_management_receive";
        /// Reservation Release.
        ReservationRelease = 0x15, "reservation_release";
        /// Cancel.
        Cancel = 0x18, "cancel";
        /// Copy.
        Copy = 0x19, "copy";
        /// I/O Management Send.
        IoManagementSend = 0x1d, "io_management_send";
        /// Zone Management Send.
        ZoneManagementSend = 0x79, "zone_management_send";
        /// Zone Management Receive.
        ZoneManagementReceive = 0x7a, "zone_management_receive";
        /// Zone Append.
        ZoneAppend = 0x7d, "zone_append";
    }
}

opcodes! {
    /// Fabrics command types (FCTYPE), SQE byte 4 of a [`FABRICS`] command.
    FabricsType {
        /// Property Set; admin queue only.
        PropertySet = 0x00, "property_set";
        /// Connect.
        Connect = 0x01, "connect";
        /// Property Get; admin queue only.
        PropertyGet = 0x04, "property_get";
        /// Authentication Send.
        AuthenticationSend = 0x05, "authentication_send";
        /// Authentication Receive.
        AuthenticationReceive = 0x06, "authentication_receive";
        /// Disconnect; I/O queues only.
        Disconnect = 0x08, "disconnect";
    }
}

/// Which way a command's data goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DataDirection {
    /// The command has no data.
    None,
    /// The host sends data: writes.
    HostToController,
    /// The host receives data: reads.
    ControllerToHost,
    /// Both; no command uses it.
    Bidirectional,
}

impl DataDirection {
    const fn of_low_bits(code: u8) -> Self {
        match code & 0b11 {
            0b00 => Self::None,
            0b01 => Self::HostToController,
            0b10 => Self::ControllerToHost,
            _ => Self::Bidirectional,
        }
    }

    /// The direction of an opcode other than [`FABRICS`]: its bits 1:0.
    #[must_use]
    pub const fn of_opcode(opcode: u8) -> Self {
        Self::of_low_bits(opcode)
    }

    /// The direction of a fabrics command: bits 1:0 of its type, not its opcode.
    #[must_use]
    pub const fn of_fabrics_type(fabrics_type: u8) -> Self {
        Self::of_low_bits(fabrics_type)
    }

    /// The direction of any command. The code may call for data where the command
    /// at hand has none; its SGL length then is 0.
    #[must_use]
    pub fn of(sqe: &Sqe) -> Self {
        if sqe.is_fabrics() {
            Self::of_fabrics_type(sqe.fabrics_type())
        } else {
            Self::of_opcode(sqe.opcode())
        }
    }
}

const ADMIN_COUNT: usize = AdminOpcode::ALL.len();
const IO_COUNT: usize = IoOpcode::ALL.len();
const FABRICS_COUNT: usize = FabricsType::ALL.len();
/// Where the label "unknown" stands: after all others.
const UNKNOWN: usize = ADMIN_COUNT + IO_COUNT + FABRICS_COUNT;

/// The labels of all commands, admin, then I/O, then fabrics, then "unknown".
/// Counters kept in an array of this length are found by [`metric_index`].
pub const METRIC_OPCODES: &[&str] = &metric_names();

const fn metric_names() -> [&'static str; UNKNOWN + 1] {
    let mut names = ["unknown"; UNKNOWN + 1];
    let mut at = 0;
    while at < UNKNOWN {
        names[at] = if at < ADMIN_COUNT {
            AdminOpcode::ALL[at].name()
        } else if at < ADMIN_COUNT + IO_COUNT {
            IoOpcode::ALL[at - ADMIN_COUNT].name()
        } else {
            FabricsType::ALL[at - ADMIN_COUNT - IO_COUNT].name()
        };
        at += 1;
    }
    names
}

/// Fills a table from code to index for one enum.
macro_rules! index_table {
    ($type:ident, $first:expr) => {{
        let mut table = [UNKNOWN as u8; 256];
        let mut at = 0;
        while at < $type::ALL.len() {
            table[$type::ALL[at] as usize] = ($first + at) as u8;
            at += 1;
        }
        table
    }};
}

static ADMIN_INDEX: [u8; 256] = index_table!(AdminOpcode, 0);
static IO_INDEX: [u8; 256] = index_table!(IoOpcode, ADMIN_COUNT);
static FABRICS_INDEX: [u8; 256] = index_table!(FabricsType, ADMIN_COUNT + IO_COUNT);

/// The index of a command's label in [`METRIC_OPCODES`]: two array accesses, for
/// use on every command. `admin` says which queue the command came from.
#[must_use]
pub fn metric_index(admin: bool, sqe: &Sqe) -> usize {
    let index = if sqe.is_fabrics() {
        FABRICS_INDEX[usize::from(sqe.fabrics_type())]
    } else if admin {
        ADMIN_INDEX[usize::from(sqe.opcode())]
    } else {
        IO_INDEX[usize::from(sqe.opcode())]
    };
    usize::from(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_come_back() {
        for code in 0..=u8::MAX {
            assert!(AdminOpcode::from_u8(code).is_none_or(|op| op.code() == code));
            assert!(IoOpcode::from_u8(code).is_none_or(|op| op.code() == code));
            assert!(FabricsType::from_u8(code).is_none_or(|op| op.code() == code));
        }
        assert_eq!(AdminOpcode::from_u8(FABRICS), None);
        assert_eq!(IoOpcode::from_u8(FABRICS), None);
    }

    #[test]
    fn directions() {
        use DataDirection as D;
        assert_eq!(D::of(&Sqe::new(0x00)), D::None);
        assert_eq!(D::of(&Sqe::new(0x01)), D::HostToController);
        assert_eq!(D::of(&Sqe::new(0x02)), D::ControllerToHost);
        // By its low bits opcode 7Fh would be bidirectional.
        assert_eq!(D::of(&Sqe::new_fabrics(0x00)), D::None);
        assert_eq!(D::of(&Sqe::new_fabrics(0x01)), D::HostToController);
        assert_eq!(D::of(&Sqe::new_fabrics(0x06)), D::ControllerToHost);
    }

    #[test]
    fn metric_labels_are_unique_and_few() {
        let names: std::collections::HashSet<_> = METRIC_OPCODES.iter().collect();
        assert_eq!(names.len(), METRIC_OPCODES.len());
        assert!(METRIC_OPCODES.len() <= 64);
        assert_eq!(METRIC_OPCODES.last(), Some(&"unknown"));
    }

    #[test]
    fn metric_index_agrees_with_the_names() {
        for code in 0..=u8::MAX {
            let label = |admin, sqe| METRIC_OPCODES[metric_index(admin, &sqe)];
            let fabrics = FabricsType::from_u8(code).map_or("unknown", FabricsType::name);
            assert_eq!(label(true, Sqe::new_fabrics(code)), fabrics);
            assert_eq!(label(false, Sqe::new_fabrics(code)), fabrics);
            if code == FABRICS {
                continue;
            }
            let admin = AdminOpcode::from_u8(code).map_or("unknown", AdminOpcode::name);
            let io = IoOpcode::from_u8(code).map_or("unknown", IoOpcode::name);
            assert_eq!(label(true, Sqe::new(code)), admin);
            assert_eq!(label(false, Sqe::new(code)), io);
        }
    }
}
