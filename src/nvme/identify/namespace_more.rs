//! The further Identify structures: independent of the command set (CNS 08h)
//! and specific to the NVM command set (CNS 05h and 06h with CSI 0).

use super::layout::wire_layout;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Identify Namespace data structure independent of the command set (CNS 08h).
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IdentifyNamespaceIndependent {
    /// Features; bits in [`super::independent_features`] (NSFEAT, byte 0).
    pub features: u8,
    /// Sharing; bits in [`super::namespace_sharing`] (NMIC, byte 1).
    pub sharing: u8,
    /// Reservations; bits in [`super::reservation_capabilities`] (RESCAP, byte 2).
    pub reservation_capabilities: u8,
    /// Format progress indicator (FPI, byte 3).
    pub format_progress: u8,
    /// ANA group (ANAGRPID, bytes 4 to 7).
    pub ana_group_id: U32,
    /// Attributes; bits in [`super::namespace_attributes`] (NSATTR, byte 8).
    pub attributes: u8,
    _reserved9: u8,
    /// NVM set (NVMSETID, bytes 10 to 11).
    pub nvm_set_id: U16,
    /// Endurance group (ENDGID, bytes 12 to 13).
    pub endurance_group_id: U16,
    /// Status; bits in [`super::namespace_status`] (NSTAT, byte 14).
    pub status: u8,
    /// Key per I/O status (KPIOS, byte 15).
    pub key_per_io_status: u8,
    /// Maximum key tag (MAXKT, bytes 16 to 17).
    pub max_key_tag: U16,
    _reserved18: [u8; 2],
    /// Reachability group (RGRPID, bytes 20 to 23).
    pub reachability_group_id: U32,
    _reserved24: [u8; 4072],
}

wire_layout!(IdentifyNamespaceIndependent, 4096, {
    0 features,
    1 sharing,
    2 reservation_capabilities,
    3 format_progress,
    4 ana_group_id,
    8 attributes,
    10 nvm_set_id,
    12 endurance_group_id,
    14 status,
    15 key_per_io_status,
    16 max_key_tag,
    20 reachability_group_id,
});

/// Identify Namespace data structure specific to the NVM command set
/// (CNS 05h, CSI 0).
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IdentifyNvmNamespace {
    /// Logical block storage tag mask (LBSTM, bytes 0 to 7).
    pub storage_tag_mask: U64,
    /// Protection information capabilities (PIC, byte 8).
    pub protection_capabilities: u8,
    /// Protection information format attribute (PIFA, byte 9).
    pub protection_format_attribute: u8,
    _reserved10: [u8; 2],
    /// Extended LBA formats 0 to 63 (ELBAF, bytes 12 to 267).
    pub extended_lba_formats: [ExtendedLbaFormat; 64],
    _reserved268: [u8; 3828],
}

wire_layout!(IdentifyNvmNamespace, 4096, {
    0 storage_tag_mask,
    8 protection_capabilities,
    9 protection_format_attribute,
    12 extended_lba_formats,
});

/// One extended LBA format (ELBAF) of [`IdentifyNvmNamespace`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ExtendedLbaFormat {
    /// Storage tag size (STS) 6:0, protection information format (PIF) 8:7,
    /// qualified format (QPIF) 12:9 (bytes 0 to 3).
    pub bits: U32,
}

wire_layout!(ExtendedLbaFormat, 4, { 0 bits });

/// Identify Controller data structure specific to the NVM command set
/// (CNS 06h, CSI 0). All zero is valid: no limits are reported.
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IdentifyNvmController {
    /// Verify size limit, 2^n * 4 KiB; 0 is none (VSL, byte 0).
    pub verify_size_limit: u8,
    /// Write Zeroes size limit, 2^n * 4 KiB; 0 is none (WZSL, byte 1).
    pub write_zeroes_size_limit: u8,
    /// Write Uncorrectable size limit, 2^n * 4 KiB; 0 is none (WUSL, byte 2).
    pub write_uncorrectable_size_limit: u8,
    /// Dataset Management ranges limit; 0 is none (DMRL, byte 3).
    pub dataset_ranges_limit: u8,
    /// Dataset Management limit of blocks in a range (DMRSL, bytes 4 to 7).
    pub dataset_range_size_limit: U32,
    /// Dataset Management limit of blocks in a command (DMSL, bytes 8 to 15).
    pub dataset_size_limit: U64,
    _reserved16: [u8; 4080],
}

wire_layout!(IdentifyNvmController, 4096, {
    0 verify_size_limit,
    1 write_zeroes_size_limit,
    2 write_uncorrectable_size_limit,
    3 dataset_ranges_limit,
    4 dataset_range_size_limit,
    8 dataset_size_limit,
});

#[cfg(test)]
mod tests {
    use super::{IdentifyNamespaceIndependent, IdentifyNvmController, IdentifyNvmNamespace};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_round_trip(bytes in prop::collection::vec(any::<u8>(), 0..4200)) {
            macro_rules! check {
                ($($name:ident),*) => {$(
                    match $name::from_bytes(&bytes) {
                        Some(value) => prop_assert_eq!(value.as_bytes(), &bytes[..4096]),
                        None => prop_assert!(bytes.len() < 4096),
                    }
                )*};
            }
            check!(IdentifyNamespaceIndependent, IdentifyNvmNamespace, IdentifyNvmController);
        }
    }
}
