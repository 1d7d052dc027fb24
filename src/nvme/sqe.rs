//! The submission queue entry: the 64 bytes every command starts with.
//!
//! Gives access to the fields common to all commands and to raw dwords. What the
//! command-specific dwords mean is in [`crate::io`], [`crate::connect`],
//! [`crate::property`] and the admin modules.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::ids::{Cid, Nsid};
use crate::opcode::FABRICS;
use crate::sgl::SglDescriptor;

/// A submission queue entry (SQE), 64 bytes, kept as the 16 little-endian dwords
/// it is made of. Has no alignment, so it can be viewed in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Sqe {
    dwords: [U32; 16],
}

/// Where the SGL descriptor stands: SQE bytes 39:24.
const SGL: core::ops::Range<usize> = 24..40;
/// PSDT value "SGL, metadata by address", the only one allowed on fabrics.
const PSDT_SGL: u8 = 0b01;

impl Sqe {
    /// Size of an SQE in bytes.
    pub const LEN: usize = 64;

    /// Reads an SQE. Every bit pattern is one.
    #[must_use]
    pub fn parse(bytes: &[u8; 64]) -> Self {
        zerocopy::transmute!(*bytes)
    }

    /// The entry as it stands on the wire.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 64] {
        zerocopy::transmute_ref!(self)
    }

    /// Opcode (OPC), byte 0.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.as_bytes()[0]
    }

    /// Fused operation (FUSE), byte 1 bits 1:0.
    #[must_use]
    pub fn fuse(&self) -> u8 {
        self.as_bytes()[1] & 0b11
    }

    /// PRP or SGL for data transfer (PSDT), byte 1 bits 7:6. 01b on fabrics.
    #[must_use]
    pub fn psdt(&self) -> u8 {
        self.as_bytes()[1] >> 6
    }

    /// True when PSDT says what every fabrics command must say: one SGL.
    #[must_use]
    pub fn uses_sgl(&self) -> bool {
        self.psdt() == PSDT_SGL
    }

    /// Command identifier (CID), bytes 3:2.
    #[must_use]
    pub fn cid(&self) -> Cid {
        let bytes = self.as_bytes();
        Cid(u16::from_le_bytes([bytes[2], bytes[3]]))
    }

    /// Namespace identifier (NSID), bytes 7:4. Meaningless in a fabrics command.
    #[must_use]
    pub fn nsid(&self) -> Nsid {
        Nsid(self.cdw(1))
    }

    /// Fabrics command type (FCTYPE), byte 4. Only meaningful when
    /// [`is_fabrics`](Self::is_fabrics).
    #[must_use]
    pub fn fabrics_type(&self) -> u8 {
        self.as_bytes()[4]
    }

    /// True for opcode 7Fh, whose real command is its
    /// [`fabrics_type`](Self::fabrics_type).
    #[must_use]
    pub fn is_fabrics(&self) -> bool {
        self.opcode() == FABRICS
    }

    /// The data descriptor (SGL1), bytes 39:24.
    #[must_use]
    pub fn sgl(&self) -> SglDescriptor {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&self.as_bytes()[SGL]);
        SglDescriptor::parse(&bytes)
    }

    /// Command dword `n` (CDWn), bytes 4n+3:4n.
    ///
    /// # Panics
    /// When `n` is not below 16: that is a mistake in the caller, never in the
    /// bytes.
    #[must_use]
    pub fn cdw(&self, n: usize) -> u32 {
        self.dwords[n].get()
    }

    /// The 64-bit value in command dwords `n` (low) and `n + 1` (high).
    ///
    /// # Panics
    /// When `n` is not below 15, as [`cdw`](Self::cdw).
    #[must_use]
    pub fn u64_at(&self, n: usize) -> u64 {
        u64::from(self.cdw(n)) | u64::from(self.cdw(n + 1)) << 32
    }
}

/// Building entries, for hosts in tests and benchmarks.
impl Sqe {
    /// An entry of zeroes but for the opcode and PSDT = 01b.
    #[must_use]
    pub fn new(opcode: u8) -> Self {
        let mut sqe = Self::parse(&[0; 64]);
        sqe.bytes_mut()[0] = opcode;
        sqe.set_psdt(PSDT_SGL);
        sqe
    }

    /// A fabrics command of type `fabrics_type`, with PSDT = 01b.
    #[must_use]
    pub fn new_fabrics(fabrics_type: u8) -> Self {
        let mut sqe = Self::new(FABRICS);
        sqe.bytes_mut()[4] = fabrics_type;
        sqe
    }

    /// Sets PSDT, byte 1 bits 7:6; higher bits of `psdt` are ignored.
    pub fn set_psdt(&mut self, psdt: u8) {
        let flags = &mut self.bytes_mut()[1];
        *flags = *flags & 0x3f | psdt << 6;
    }

    /// Sets FUSE, byte 1 bits 1:0; higher bits of `fuse` are ignored.
    pub fn set_fuse(&mut self, fuse: u8) {
        let flags = &mut self.bytes_mut()[1];
        *flags = *flags & 0xfc | fuse & 0b11;
    }

    /// Sets the command identifier.
    pub fn set_cid(&mut self, cid: Cid) {
        self.bytes_mut()[2..4].copy_from_slice(&cid.0.to_le_bytes());
    }

    /// Sets the namespace identifier.
    pub fn set_nsid(&mut self, nsid: Nsid) {
        self.set_cdw(1, nsid.0);
    }

    /// Sets the data descriptor.
    pub fn set_sgl(&mut self, sgl: SglDescriptor) {
        self.bytes_mut()[SGL].copy_from_slice(&sgl.encode());
    }

    /// Sets command dword `n`.
    ///
    /// # Panics
    /// As [`cdw`](Self::cdw).
    pub fn set_cdw(&mut self, n: usize, value: u32) {
        self.dwords[n].set(value);
    }

    /// Sets command dwords `n` (low) and `n + 1` (high).
    ///
    /// # Panics
    /// As [`u64_at`](Self::u64_at).
    pub fn set_u64_at(&mut self, n: usize, value: u64) {
        self.set_cdw(n, value as u32);
        self.set_cdw(n + 1, (value >> 32) as u32);
    }

    fn bytes_mut(&mut self) -> &mut [u8; 64] {
        zerocopy::transmute_mut!(self)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_bytes() -> impl Strategy<Value = [u8; 64]> {
        any::<([u8; 32], [u8; 32])>().prop_map(|(low, high)| {
            let mut bytes = [0; 64];
            bytes[..32].copy_from_slice(&low);
            bytes[32..].copy_from_slice(&high);
            bytes
        })
    }

    /// An entry of arbitrary bytes, for the tests of every command parser.
    pub(crate) fn any_sqe() -> impl Strategy<Value = Sqe> {
        any_bytes().prop_map(|bytes| Sqe::parse(&bytes))
    }

    #[test]
    fn fields_stand_where_the_table_says() {
        let mut sqe = Sqe::new(0x02);
        assert_eq!(sqe.as_bytes()[..4], [0x02, 0x40, 0, 0]);
        assert!(sqe.uses_sgl());
        sqe.set_cid(Cid(0x1234));
        sqe.set_nsid(Nsid(0x0a0b_0c0d));
        sqe.set_sgl(SglDescriptor::transport(0x200));
        sqe.set_fuse(2);
        sqe.set_u64_at(10, 0x1122_3344_5566_7788);
        let bytes = sqe.as_bytes();
        assert_eq!(bytes[..8], [0x02, 0x42, 0x34, 0x12, 0x0d, 0x0c, 0x0b, 0x0a]);
        assert_eq!((bytes[33], bytes[39]), (2, 0x5a));
        assert_eq!((bytes[40], bytes[47]), (0x88, 0x11));
        assert_eq!(sqe.cdw(11), 0x1122_3344);
    }

    proptest! {
        #[test]
        fn parse_keeps_every_byte(bytes in any_bytes()) {
            prop_assert_eq!(*Sqe::parse(&bytes).as_bytes(), bytes);
        }

        #[test]
        fn accessors_take_any_bytes(bytes in any_bytes()) {
            let sqe = Sqe::parse(&bytes);
            prop_assert_eq!(sqe.opcode(), bytes[0]);
            prop_assert!(sqe.fuse() < 4 && sqe.psdt() < 4);
            prop_assert_eq!(sqe.fabrics_type(), sqe.nsid().0 as u8);
            let _ = (sqe.sgl(), sqe.cid(), sqe.cdw(15), sqe.u64_at(14));
        }

        #[test]
        fn set_then_get(cid: u16, nsid: u32, n in 1_usize..15, value: u64, psdt in 0_u8..4, fuse in 0_u8..4) {
            let mut sqe = Sqe::new(0x01);
            sqe.set_cid(Cid(cid));
            sqe.set_nsid(Nsid(nsid));
            sqe.set_psdt(psdt);
            sqe.set_fuse(fuse);
            prop_assert_eq!((sqe.cid(), sqe.nsid()), (Cid(cid), Nsid(nsid)));
            prop_assert_eq!((sqe.psdt(), sqe.fuse(), sqe.opcode()), (psdt, fuse, 1));
            sqe.set_u64_at(n, value);
            prop_assert_eq!(sqe.u64_at(n), value);
        }
    }
}
