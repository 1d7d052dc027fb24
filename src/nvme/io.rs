//! I/O commands: the checks every one passes first, and the block range.
//!
//! Namespace, access, SGL and range checks need state this package does not have;
//! it offers [`IoCommand::is_within`] and [`IoCommand::byte_len`] for them. Copy has a
//! file of its own; payload formats of reservations are read by their users.

mod copy;

pub use copy::{CopyCommand, CopyRange};

use crate::ids::{Lba, Nsid};
use crate::opcode::IoOpcode;
use crate::sqe::Sqe;
use crate::status::Status;

/// Force unit access (FUA), CDW12 bit 30.
const FUA: u32 = 1 << 30;

/// An I/O command with its block range decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoCommand<'a> {
    /// What to do (OPC).
    pub opcode: IoOpcode,
    /// The namespace (NSID). Not checked.
    pub nsid: Nsid,
    /// First block (SLBA), CDW10 and CDW11; 0 for commands without a range.
    pub lba: Lba,
    /// Number of blocks (NLB), CDW12 bits 15:0 plus one; 0 for commands without a
    /// range.
    pub blocks: u32,
    /// Force unit access (FUA), CDW12 bit 30: the data must be stable before the
    /// command completes. False for commands that do not have the bit.
    pub fua: bool,
    /// The whole entry, for fields only some commands have.
    pub raw: &'a Sqe,
}

impl<'a> IoCommand<'a> {
    /// Reads an I/O command.
    ///
    /// # Errors
    /// In this order: an unlisted opcode (Fabrics included) is `INVALID_OPCODE`;
    /// FUSE = 11b or PSDT other than 01b is `INVALID_FIELD`. All with DNR.
    pub fn parse(sqe: &'a Sqe) -> Result<Self, Status> {
        let opcode = IoOpcode::from_u8(sqe.opcode()).ok_or(Status::INVALID_OPCODE.dnr())?;
        if sqe.fuse() == 0b11 || !sqe.uses_sgl() {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let cdw12 = sqe.cdw(12);
        let (lba, blocks) =
            if has_range(opcode) { (Lba(sqe.u64_at(10)), (cdw12 & 0xffff) + 1) } else { (Lba(0), 0) };
        Ok(Self { opcode, nsid: sqe.nsid(), lba, blocks, fua: has_fua(opcode) && cdw12 & FUA != 0, raw: sqe })
    }

    /// The length of the block range in bytes, for blocks of `lba_size` bytes.
    #[must_use]
    pub const fn byte_len(&self, lba_size: u32) -> u64 {
        self.blocks as u64 * lba_size as u64
    }

    /// True when the block range ends within a namespace of `lba_count` blocks.
    /// A command without a range always does.
    #[must_use]
    pub const fn is_within(&self, lba_count: u64) -> bool {
        match self.lba.0.checked_add(self.blocks as u64) {
            Some(end) => end <= lba_count,
            None => false,
        }
    }
}

/// What Dataset Management (opcode 09h) asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatasetManagement {
    /// Number of ranges (NR), CDW10 bits 7:0 plus one; 1 to 256.
    pub ranges: u32,
    /// Deallocate (AD), CDW11 bit 2. The other attributes are hints.
    pub deallocate: bool,
}

impl DatasetManagement {
    /// Reads the command's own fields.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        Self { ranges: (sqe.cdw(10) & 0xff) + 1, deallocate: sqe.cdw(11) & 1 << 2 != 0 }
    }

    /// Bytes of all range descriptors. A host may send more.
    #[must_use]
    pub const fn data_len(self) -> usize {
        self.ranges as usize * DatasetRange::LEN
    }
}

/// A range of Dataset Management.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatasetRange {
    /// First block (SLBA), bytes 15:8.
    pub lba: Lba,
    /// Number of blocks (NLB), bytes 7:4; 1's based on the wire too, 0 for none.
    pub blocks: u32,
}

impl DatasetRange {
    /// Bytes of a range descriptor.
    pub const LEN: usize = 16;

    /// Reads a range descriptor. Its context attributes (bytes 3:0) are hints.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [_, _, _, _, n0, n1, n2, n3, l @ ..] = *bytes;
        Self { lba: Lba(u64::from_le_bytes(l)), blocks: u32::from_le_bytes([n0, n1, n2, n3]) }
    }

    /// Whether the range ends within a namespace of `lba_count` blocks.
    #[must_use]
    pub const fn is_within(self, lba_count: u64) -> bool {
        match self.lba.0.checked_add(self.blocks as u64) {
            Some(end) => end <= lba_count,
            None => false,
        }
    }
}

/// Deallocate (DEAC) of Write Zeroes, CDW12 bit 25.
const DEALLOCATE: u32 = 1 << 25;

impl IoCommand<'_> {
    /// Whether Write Zeroes asks to deallocate the blocks too.
    #[must_use]
    pub fn deallocates(&self) -> bool {
        self.opcode == IoOpcode::WriteZeroes && self.raw.cdw(12) & DEALLOCATE != 0
    }
}

/// Commands with SLBA in CDW10/11 and NLB in CDW12.
const fn has_range(opcode: IoOpcode) -> bool {
    matches!(
        opcode,
        IoOpcode::Read
            | IoOpcode::Write
            | IoOpcode::Compare
            | IoOpcode::Verify
            | IoOpcode::WriteZeroes
            | IoOpcode::WriteUncorrectable
            | IoOpcode::ZoneAppend
    )
}

/// Commands with FUA in CDW12.
const fn has_fua(opcode: IoOpcode) -> bool {
    match opcode {
        IoOpcode::Copy => true,
        IoOpcode::WriteUncorrectable => false,
        _ => has_range(opcode),
    }
}

/// Building entries, for hosts in tests and benchmarks.
impl<'a> IoCommand<'a> {
    /// The entry of a command with a block range. `blocks` must be 1 to 65536;
    /// other values are brought to the nearest of these.
    #[must_use]
    pub fn encode(opcode: IoOpcode, nsid: Nsid, lba: Lba, blocks: u32, fua: bool) -> Sqe {
        let mut sqe = Sqe::new(opcode.code());
        sqe.set_nsid(nsid);
        sqe.set_u64_at(10, lba.0);
        let nlb = blocks.clamp(1, 0x1_0000) - 1;
        sqe.set_cdw(12, nlb | if fua { FUA } else { 0 });
        sqe
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqe::tests::any_sqe;
    use proptest::prelude::*;

    #[test]
    fn checks_come_in_order() {
        let mut sqe = Sqe::new(0x03);
        sqe.set_fuse(3);
        sqe.set_psdt(0);
        assert_eq!(IoCommand::parse(&sqe), Err(Status::INVALID_OPCODE.dnr()));
        let mut sqe = Sqe::new(0x02);
        sqe.set_fuse(3);
        assert_eq!(IoCommand::parse(&sqe), Err(Status::INVALID_FIELD.dnr()));
        sqe.set_fuse(2);
        sqe.set_psdt(0);
        assert_eq!(IoCommand::parse(&sqe), Err(Status::INVALID_FIELD.dnr()));
        sqe.set_psdt(1);
        assert!(IoCommand::parse(&sqe).is_ok());
        assert_eq!(IoCommand::parse(&Sqe::new_fabrics(1)), Err(Status::INVALID_OPCODE.dnr()));
    }

    #[test]
    fn only_range_commands_have_a_range() {
        let mut sqe = IoCommand::encode(IoOpcode::Flush, Nsid(1), Lba(9), 5, true);
        let flush = IoCommand::parse(&sqe).unwrap();
        assert_eq!((flush.lba, flush.blocks, flush.fua), (Lba(0), 0, false));
        assert!(flush.is_within(0));
        assert_eq!(flush.byte_len(4096), 0);
        sqe = IoCommand::encode(IoOpcode::Write, Nsid(1), Lba(9), 0x1_0000, true);
        let write = IoCommand::parse(&sqe).unwrap();
        assert_eq!((write.lba, write.blocks), (Lba(9), 0x1_0000));
        assert!(write.fua);
        assert_eq!(write.byte_len(u32::MAX), 0x1_0000 * u64::from(u32::MAX));
    }

    #[test]
    fn range_ends() {
        let is_within = |lba, blocks, count| {
            let sqe = IoCommand::encode(IoOpcode::Read, Nsid(1), Lba(lba), blocks, false);
            IoCommand::parse(&sqe).unwrap().is_within(count)
        };
        assert!(is_within(90, 10, 100));
        assert!(!is_within(90, 11, 100));
        assert!(!is_within(100, 1, 100));
        assert!(!is_within(u64::MAX, 1, u64::MAX));
        assert!(is_within(u64::MAX - 1, 1, u64::MAX));
    }

    proptest! {
        #[test]
        fn dataset_ranges(bytes: [u8; 16], count: u64) {
            let range = DatasetRange::parse(&bytes);
            prop_assert_eq!(&bytes[4..8], &range.blocks.to_le_bytes());
            prop_assert_eq!(&bytes[8..], &range.lba.0.to_le_bytes());
            let end = u128::from(range.lba.0) + u128::from(range.blocks);
            prop_assert_eq!(range.is_within(count), end <= u128::from(count));
        }

        #[test]
        fn round_trip(nsid: u32, lba: u64, blocks in 1_u32..=0x1_0000, fua: bool, count: u64) {
            let sqe = IoCommand::encode(IoOpcode::Read, Nsid(nsid), Lba(lba), blocks, fua);
            let command = IoCommand::parse(&sqe).unwrap();
            prop_assert_eq!((command.nsid, command.lba), (Nsid(nsid), Lba(lba)));
            prop_assert_eq!((command.blocks, command.fua), (blocks, fua));
            let end = u128::from(lba) + u128::from(blocks);
            prop_assert_eq!(command.is_within(count), end <= u128::from(count));
        }

        #[test]
        fn any_entry(
            sqe in any_sqe(),
            opcode in prop::sample::select(IoOpcode::ALL),
            lba_size: u32,
            count: u64,
        ) {
            let _ = IoCommand::parse(&sqe);
            // With a listed opcode and no reason to refuse, any fields are read.
            let mut sqe = sqe;
            sqe.set_cdw(0, u32::from(opcode.code()) | 0x4000);
            let command = IoCommand::parse(&sqe).unwrap();
            let _ = (command.byte_len(lba_size), command.is_within(count));
        }
    }
}
