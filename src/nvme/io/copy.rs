//! Copy (opcode 19h): its own fields and the source ranges of descriptor format 0.
//!
//! Format 1 is for namespaces with 32-bit or 64-bit guards, formats 2 and 3 name another namespace; who has such
//! namespaces reads them.

use crate::ids::Lba;
use crate::sqe::Sqe;

/// What Copy asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyCommand {
    /// First block of the destination (SDLBA), CDW10 and CDW11.
    pub destination: Lba,
    /// Number of source ranges (NR), CDW12 bits 7:0 plus one; 1 to 256.
    pub ranges: u32,
    /// Descriptor format (DESFMT), CDW12 bits 11:8.
    pub format: u8,
}

impl CopyCommand {
    /// Reads the command's own fields. FUA is read with those of every I/O command.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let cdw12 = sqe.cdw(12);
        Self {
            destination: Lba(sqe.u64_at(10)),
            ranges: (cdw12 & 0xff) + 1,
            format: (cdw12 >> 8) as u8 & 0xf,
        }
    }
}

/// A source range of Copy, descriptor format 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyRange {
    /// First block (SLBA), bytes 15:8.
    pub lba: Lba,
    /// Number of blocks (NLB), bytes 17:16 plus one.
    pub blocks: u32,
}

impl CopyRange {
    /// Bytes of a range descriptor.
    pub const LEN: usize = 32;

    /// Reads a range descriptor. What it says of protection information (bytes 31:24) is for namespaces that have it.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [_, _, _, _, _, _, _, _, l0, l1, l2, l3, l4, l5, l6, l7, n0, n1, ..] = *bytes;
        Self {
            lba: Lba(u64::from_le_bytes([l0, l1, l2, l3, l4, l5, l6, l7])),
            blocks: u32::from(u16::from_le_bytes([n0, n1])) + 1,
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_stand_where_the_table_says() {
        let mut sqe = Sqe::new(0x19);
        sqe.set_u64_at(10, 0x1122_3344_5566_7788);
        sqe.set_cdw(12, 0x4000_017f);
        let copy = CopyCommand::parse(&sqe);
        assert_eq!(copy, CopyCommand { destination: Lba(0x1122_3344_5566_7788), ranges: 128, format: 1 });
        let mut bytes = [0xff; 32];
        bytes[8..18].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0x80, 7, 0]);
        assert_eq!(CopyRange::parse(&bytes), CopyRange { lba: Lba(0x8000_0000_0000_0001), blocks: 8 });
    }

    proptest! {
        #[test]
        fn any_range(bytes: [u8; 32], count: u64) {
            let range = CopyRange::parse(&bytes);
            let end = u128::from(range.lba.0) + u128::from(range.blocks);
            prop_assert_eq!(range.is_within(count), end <= u128::from(count));
        }
    }
}
