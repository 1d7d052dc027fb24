//! Properties: the controller registers of fabrics, read and written by command.
//!
//! Holds the Property Get and Set commands and the layouts of CAP, CC, CSTS, VS
//! and CRTO. Which properties exist, and what a write to one does, is the
//! controller's business.

use crate::opcode::FabricsType;
use crate::sqe::Sqe;
use crate::status::Status;

/// Offset of Controller Capabilities (CAP), 8 bytes.
pub const CAP: u32 = 0x00;
/// Offset of Version (VS), 4 bytes.
pub const VS: u32 = 0x08;
/// Offset of Controller Configuration (CC), 4 bytes.
pub const CC: u32 = 0x14;
/// Offset of Controller Status (CSTS), 4 bytes.
pub const CSTS: u32 = 0x1c;
/// Offset of NVM Subsystem Reset (NSSR), 4 bytes.
pub const NSSR: u32 = 0x20;
/// Offset of Controller Ready Timeouts (CRTO), 4 bytes.
pub const CRTO: u32 = 0x68;

/// The value that, written to NSSR, resets the subsystem: "NVMe".
pub const NSSR_RESET: u32 = 0x4e56_4d65;
/// VS of NVMe 2.0: major 31:16, minor 15:8, tertiary 7:0.
pub const VERSION_2_0: u32 = 0x0002_0000;
/// VS of NVMe 2.1.
pub const VERSION_2_1: u32 = 0x0002_0100;

/// The size of a property access (ATTRIB), SQE byte 40 bits 2:0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PropertySize {
    /// Four bytes, encoded 0.
    Four,
    /// Eight bytes, encoded 1.
    Eight,
}

impl PropertySize {
    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    /// `value` cut to this size.
    #[must_use]
    pub const fn cut(self, value: u64) -> u64 {
        match self {
            Self::Four => value & 0xffff_ffff,
            Self::Eight => value,
        }
    }

    fn parse(sqe: &Sqe) -> Result<Self, Status> {
        match sqe.cdw(10) & 0b111 {
            0 => Ok(Self::Four),
            1 => Ok(Self::Eight),
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    const fn attrib(self) -> u32 {
        match self {
            Self::Four => 0,
            Self::Eight => 1,
        }
    }
}

/// A Property Get command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PropertyGet {
    /// Offset (OFST), bytes 47:44.
    pub offset: u32,
    /// Size (ATTRIB), byte 40 bits 2:0.
    pub size: PropertySize,
}

impl PropertyGet {
    /// Reads the fields of an SQE already known to be a Property Get.
    ///
    /// # Errors
    /// `INVALID_FIELD` with DNR when the size is neither 4 nor 8 bytes.
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        Ok(Self { offset: sqe.cdw(11), size: PropertySize::parse(sqe)? })
    }

    /// The SQE of this command, for hosts in tests and benchmarks.
    #[must_use]
    pub fn encode(&self) -> Sqe {
        let mut sqe = Sqe::new_fabrics(FabricsType::PropertyGet.code());
        sqe.set_cdw(10, self.size.attrib());
        sqe.set_cdw(11, self.offset);
        sqe
    }
}

/// A Property Set command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PropertySet {
    /// Offset (OFST), bytes 47:44.
    pub offset: u32,
    /// Size (ATTRIB), byte 40 bits 2:0.
    pub size: PropertySize,
    /// Value (VALUE), bytes 55:48; the high half is 0 for a 4-byte access.
    pub value: u64,
}

impl PropertySet {
    /// Reads the fields of an SQE already known to be a Property Set.
    ///
    /// # Errors
    /// `INVALID_FIELD` with DNR when the size is neither 4 nor 8 bytes.
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        let size = PropertySize::parse(sqe)?;
        Ok(Self { offset: sqe.cdw(11), size, value: size.cut(sqe.u64_at(12)) })
    }

    /// The SQE of this command, for hosts in tests and benchmarks.
    #[must_use]
    pub fn encode(&self) -> Sqe {
        let mut sqe = Sqe::new_fabrics(FabricsType::PropertySet.code());
        sqe.set_cdw(10, self.size.attrib());
        sqe.set_cdw(11, self.offset);
        sqe.set_u64_at(12, self.size.cut(self.value));
        sqe
    }
}

/// Controller Capabilities (CAP), 64 bits. Bits without a field are 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Entries of the largest I/O queue (MQES), bits 15:0 plus one; 2 to 65536.
    pub max_queue_entries: u32,
    /// Contiguous queues required (CQR), bit 16.
    pub contiguous: bool,
    /// Timeout of enabling and disabling (TO), bits 31:24, in units of 500 ms.
    pub timeout_500ms: u8,
    /// NVM subsystem reset supported (NSSRS), bit 36.
    pub subsystem_reset: bool,
    /// NVM command set supported (CSS bit 0), bit 37.
    pub nvm_command_set: bool,
    /// I/O command sets chosen by CSI (CSS bit 6), bit 43.
    pub multiple_command_sets: bool,
    /// No I/O command set (CSS bit 7), bit 44: an administrative controller.
    pub admin_only: bool,
    /// Memory page size minimum (MPSMIN), bits 51:48; pages of 2^(12+x) bytes.
    pub min_page_size: u8,
    /// Memory page size maximum (MPSMAX), bits 55:52; pages of 2^(12+x) bytes.
    pub max_page_size: u8,
    /// Ready with media supported (CRWMS), bit 59; then CRTO exists.
    pub ready_with_media: bool,
    /// Ready independent of media supported (CRIMS), bit 60; then CRTO exists.
    pub ready_independent_of_media: bool,
}

impl Default for Capabilities {
    /// An I/O controller of the NVM command set with 4 KiB pages, queues of 128
    /// entries and 7.5 s to become ready.
    fn default() -> Self {
        Self {
            max_queue_entries: 128,
            contiguous: true,
            timeout_500ms: 15,
            subsystem_reset: false,
            nvm_command_set: true,
            multiple_command_sets: false,
            admin_only: false,
            min_page_size: 0,
            max_page_size: 0,
            ready_with_media: false,
            ready_independent_of_media: false,
        }
    }
}

impl Capabilities {
    /// The property's value. A queue size out of range is brought to the nearest
    /// one in it, page sizes are cut to four bits.
    #[must_use]
    pub fn encode(&self) -> u64 {
        let flag = |set: bool, bit: u32| u64::from(set) << bit;
        u64::from(self.max_queue_entries.clamp(2, 0x1_0000) - 1)
            | flag(self.contiguous, 16)
            | u64::from(self.timeout_500ms) << 24
            | flag(self.subsystem_reset, 36)
            | flag(self.nvm_command_set, 37)
            | flag(self.multiple_command_sets, 43)
            | flag(self.admin_only, 44)
            | u64::from(self.min_page_size & 0xf) << 48
            | u64::from(self.max_page_size & 0xf) << 52
            | flag(self.ready_with_media, 59)
            | flag(self.ready_independent_of_media, 60)
    }

    /// Reads the property's value; bits without a field are dropped.
    #[must_use]
    pub const fn parse(value: u64) -> Self {
        Self {
            max_queue_entries: (value & 0xffff) as u32 + 1,
            contiguous: value >> 16 & 1 != 0,
            timeout_500ms: (value >> 24) as u8,
            subsystem_reset: value >> 36 & 1 != 0,
            nvm_command_set: value >> 37 & 1 != 0,
            multiple_command_sets: value >> 43 & 1 != 0,
            admin_only: value >> 44 & 1 != 0,
            min_page_size: (value >> 48 & 0xf) as u8,
            max_page_size: (value >> 52 & 0xf) as u8,
            ready_with_media: value >> 59 & 1 != 0,
            ready_independent_of_media: value >> 60 & 1 != 0,
        }
    }
}

/// Controller Configuration (CC), 32 bits, as the host wrote it. Field values are
/// raw; which of them are acceptable is the controller's business.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Configuration(pub u32);

impl Configuration {
    /// What an ordinary host writes to enable an I/O controller: NVM command set,
    /// 4 KiB pages, 64-byte SQEs, 16-byte CQEs.
    pub const ENABLE_NVM: Self = Self(0x0046_0001);

    /// Enable (EN), bit 0.
    #[must_use]
    pub const fn enabled(self) -> bool {
        self.0 & 1 != 0
    }

    /// I/O command set selected (CSS), bits 6:4: 0 NVM, 6 all supported, 7 none.
    #[must_use]
    pub const fn command_set(self) -> u8 {
        (self.0 >> 4 & 0b111) as u8
    }

    /// Memory page size (MPS), bits 10:7; pages of 2^(12+x) bytes.
    #[must_use]
    pub const fn memory_page_size(self) -> u8 {
        (self.0 >> 7 & 0xf) as u8
    }

    /// Arbitration mechanism selected (AMS), bits 13:11.
    #[must_use]
    pub const fn arbitration(self) -> u8 {
        (self.0 >> 11 & 0b111) as u8
    }

    /// Shutdown notification (SHN), bits 15:14: 0 none, 1 normal, 2 abrupt.
    #[must_use]
    pub const fn shutdown(self) -> u8 {
        (self.0 >> 14 & 0b11) as u8
    }

    /// I/O submission queue entry size (IOSQES), bits 19:16; entries of 2^x bytes.
    #[must_use]
    pub const fn io_sq_entry_size(self) -> u8 {
        (self.0 >> 16 & 0xf) as u8
    }

    /// I/O completion queue entry size (IOCQES), bits 23:20; entries of 2^x bytes.
    #[must_use]
    pub const fn io_cq_entry_size(self) -> u8 {
        (self.0 >> 20 & 0xf) as u8
    }

    /// Ready independent of media enable (CRIME), bit 24.
    #[must_use]
    pub const fn ready_independent_of_media(self) -> bool {
        self.0 >> 24 & 1 != 0
    }
}

/// Shutdown status (SHST), CSTS bits 3:2.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ShutdownStatus {
    /// No shutdown was requested, encoded 0.
    #[default]
    Normal,
    /// Shutdown processing is occurring, encoded 1.
    Occurring,
    /// Shutdown processing is complete, encoded 2.
    Complete,
}

/// Controller Status (CSTS), 32 bits. The default is a controller just created.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ControllerStatus {
    /// Ready (RDY), bit 0.
    pub ready: bool,
    /// Controller fatal status (CFS), bit 1.
    pub fatal: bool,
    /// Shutdown status (SHST), bits 3:2.
    pub shutdown: ShutdownStatus,
}

impl ControllerStatus {
    /// The property's value.
    #[must_use]
    pub const fn encode(self) -> u32 {
        let shutdown = match self.shutdown {
            ShutdownStatus::Normal => 0,
            ShutdownStatus::Occurring => 1,
            ShutdownStatus::Complete => 2,
        };
        self.ready as u32 | (self.fatal as u32) << 1 | shutdown << 2
    }

    /// Reads the property's value. The reserved SHST value 3 reads as complete, so
    /// that a waiting host does not wait for ever.
    #[must_use]
    pub const fn parse(value: u32) -> Self {
        Self {
            ready: value & 1 != 0,
            fatal: value >> 1 & 1 != 0,
            shutdown: match value >> 2 & 0b11 {
                0 => ShutdownStatus::Normal,
                1 => ShutdownStatus::Occurring,
                _ => ShutdownStatus::Complete,
            },
        }
    }
}

/// Controller Ready Timeouts (CRTO), 32 bits, in units of 500 ms.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ReadyTimeouts {
    /// Ready with media timeout (CRWMT), bits 15:0; at least CAP.TO.
    pub with_media_500ms: u16,
    /// Ready independent of media timeout (CRIMT), bits 31:16.
    pub independent_of_media_500ms: u16,
}

impl ReadyTimeouts {
    /// The property's value.
    #[must_use]
    pub const fn encode(self) -> u32 {
        self.with_media_500ms as u32 | (self.independent_of_media_500ms as u32) << 16
    }

    /// Reads the property's value.
    #[must_use]
    pub const fn parse(value: u32) -> Self {
        Self { with_media_500ms: value as u16, independent_of_media_500ms: (value >> 16) as u16 }
    }
}

#[cfg(test)]
mod tests;
