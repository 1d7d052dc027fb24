//! The SGL descriptor: how a command says where its data is.
//!
//! Only the single 16-byte descriptor in SQE bytes 39:24 exists on fabrics. Which
//! kinds a transport accepts, and for which direction, is the transport's rule.

/// Byte 15 of a descriptor whose data is in the command capsule.
const ID_IN_CAPSULE: u8 = 0x01;
/// Byte 15 of a keyed descriptor.
const ID_KEYED: u8 = 0x40;
/// Byte 15 of a keyed descriptor with remote invalidation.
const ID_KEYED_INVALIDATE: u8 = 0x4f;
/// Byte 15 of a descriptor whose data moves through the transport.
const ID_TRANSPORT: u8 = 0x5a;

/// An SGL descriptor (SGL1), SQE bytes 39:24.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SglDescriptor {
    /// Address, or offset into the in-capsule data; bytes 7:0.
    pub address: u64,
    /// Length in bytes; bytes 11:8, or bytes 10:8 of a keyed descriptor.
    pub length: u32,
    /// Type and subtype, byte 15, with what belongs to it.
    pub kind: SglKind,
}

/// The descriptor's type and subtype (SGL identifier, byte 15).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SglKind {
    /// Data block with an offset (01h): the data follows the SQE in its capsule.
    InCapsule,
    /// Transport data block (5Ah): the data moves by the transport's own means.
    Transport,
    /// Keyed data block (40h, 4Fh): host memory reached by RDMA.
    Keyed {
        /// Remote key (KEY), bytes 14:11.
        key: u32,
        /// True for 4Fh: the target invalidates the key with its response.
        invalidate: bool,
    },
    /// Any other identifier; its length is read as 32 bits.
    Other(u8),
}

impl SglDescriptor {
    /// The longest length a keyed descriptor can state (24 bits).
    pub const MAX_KEYED_LENGTH: u32 = 0x00ff_ffff;

    /// What hosts put into a command without data.
    pub const NONE: Self = Self::transport(0);

    /// A descriptor of `length` bytes moved by the transport.
    #[must_use]
    pub const fn transport(length: u32) -> Self {
        Self { address: 0, length, kind: SglKind::Transport }
    }

    /// A descriptor of `length` bytes at the start of the in-capsule data.
    #[must_use]
    pub const fn in_capsule(length: u32) -> Self {
        Self { address: 0, length, kind: SglKind::InCapsule }
    }

    /// Reads a descriptor. Every bit pattern is a descriptor.
    #[must_use]
    pub fn parse(bytes: &[u8; 16]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, b11, b12, b13, b14, id] = *bytes;
        let keyed = |invalidate| SglKind::Keyed { key: u32::from_le_bytes([b11, b12, b13, b14]), invalidate };
        let kind = match id {
            ID_IN_CAPSULE => SglKind::InCapsule,
            ID_TRANSPORT => SglKind::Transport,
            ID_KEYED => keyed(false),
            ID_KEYED_INVALIDATE => keyed(true),
            other => SglKind::Other(other),
        };
        // In the keyed form byte 11 is already part of the key.
        let l3 = match kind {
            SglKind::Keyed { .. } => 0,
            _ => b11,
        };
        Self {
            address: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            length: u32::from_le_bytes([l0, l1, l2, l3]),
            kind,
        }
    }

    /// Writes a descriptor. A keyed one keeps only the low 24 bits of the length,
    /// see [`MAX_KEYED_LENGTH`](Self::MAX_KEYED_LENGTH).
    #[must_use]
    pub fn encode(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[0..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[15] = match self.kind {
            SglKind::InCapsule => ID_IN_CAPSULE,
            SglKind::Transport => ID_TRANSPORT,
            SglKind::Keyed { key, invalidate } => {
                bytes[11..15].copy_from_slice(&key.to_le_bytes());
                if invalidate { ID_KEYED_INVALIDATE } else { ID_KEYED }
            }
            SglKind::Other(id) => id,
        };
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_descriptors() {
        let mut bytes = [0; 16];
        bytes[8..12].copy_from_slice(&0x1000_u32.to_le_bytes());
        bytes[15] = 0x5a;
        assert_eq!(SglDescriptor::parse(&bytes), SglDescriptor::transport(0x1000));
        bytes[15] = 0x01;
        assert_eq!(SglDescriptor::parse(&bytes), SglDescriptor::in_capsule(0x1000));
        bytes[11..16].copy_from_slice(&[0xdd, 0xcc, 0xbb, 0xaa, 0x4f]);
        let keyed = SglDescriptor::parse(&bytes);
        assert_eq!(keyed.length, 0x1000);
        let kind = SglKind::Keyed { key: 0xaabb_ccdd, invalidate: true };
        assert_eq!(keyed.kind, kind);
    }

    proptest! {
        #[test]
        fn parse_encode_parse(bytes: [u8; 16], id in prop::sample::select(&[1, 0x40, 0x4f, 0x5a, 0, 0x31])) {
            let mut bytes = bytes;
            bytes[15] = id;
            let descriptor = SglDescriptor::parse(&bytes);
            prop_assert_eq!(SglDescriptor::parse(&descriptor.encode()), descriptor);
        }

        #[test]
        fn keyed_keeps_every_byte(bytes: [u8; 16], invalidate: bool) {
            let mut bytes = bytes;
            bytes[15] = if invalidate { 0x4f } else { 0x40 };
            prop_assert_eq!(SglDescriptor::parse(&bytes).encode(), bytes);
        }

        #[test]
        fn any_bytes(bytes: [u8; 16]) {
            prop_assert_eq!(SglDescriptor::parse(&bytes).encode()[15], bytes[15]);
        }
    }
}
