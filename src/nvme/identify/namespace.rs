//! Identify Namespace of the NVM command set (CNS 00h).
//!
//! The structures that are independent of, or specific to, a command set are
//! in `namespace_more`; identifiers and lists in `descriptors`.

use super::layout::wire_layout;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Identify Namespace data structure of the NVM command set (CNS 00h).
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// Namespace size in logical blocks (NSZE, bytes 0 to 7).
    pub size: U64,
    /// Namespace capacity in logical blocks (NCAP, bytes 8 to 15).
    pub capacity: U64,
    /// Namespace utilization in logical blocks (NUSE, bytes 16 to 23).
    pub utilization: U64,
    /// Features; bits in [`super::namespace_features`] (NSFEAT, byte 24).
    pub features: u8,
    /// Number of LBA formats, 0's based (NLBAF, byte 25).
    pub lba_format_count: u8,
    /// Formatted LBA size: index 3:0 and 6:5, bit 4 extended LBA (FLBAS, byte 26).
    pub formatted_lba_size: u8,
    /// Metadata capabilities: bit 0 extended, bit 1 separate (MC, byte 27).
    pub metadata_capabilities: u8,
    /// Protection information capabilities (DPC, byte 28).
    pub protection_capabilities: u8,
    /// Protection type 2:0, bit 3: in the first bytes (DPS, byte 29).
    pub protection_settings: u8,
    /// Sharing; bits in [`super::namespace_sharing`] (NMIC, byte 30).
    pub sharing: u8,
    /// Reservations; bits in [`super::reservation_capabilities`] (RESCAP, byte 31).
    pub reservation_capabilities: u8,
    /// Format progress indicator (FPI, byte 32).
    pub format_progress: u8,
    /// Deallocation; bits in [`super::deallocate`] (DLFEAT, byte 33).
    pub deallocate_features: u8,
    /// Atomic write unit normal, 0's based (NAWUN, bytes 34 to 35).
    pub atomic_write_unit: U16,
    /// Atomic write unit power fail, 0's based (NAWUPF, bytes 36 to 37).
    pub atomic_write_unit_power_fail: U16,
    /// Atomic compare and write unit, 0's based (NACWU, bytes 38 to 39).
    pub atomic_compare_write_unit: U16,
    /// Atomic boundary size normal, 0's based; 0 is none (NABSN, bytes 40 to 41).
    pub atomic_boundary_size: U16,
    /// Atomic boundary offset in logical blocks (NABO, bytes 42 to 43).
    pub atomic_boundary_offset: U16,
    /// Atomic boundary size power fail, 0's based (NABSPF, bytes 44 to 45).
    pub atomic_boundary_size_power_fail: U16,
    /// Optimal I/O boundary in logical blocks (NOIOB, bytes 46 to 47).
    pub optimal_io_boundary: U16,
    /// NVM capacity in bytes, little-endian (NVMCAP, bytes 48 to 63).
    pub nvm_capacity: [u8; 16],
    /// Preferred write granularity, 0's based (NPWG, bytes 64 to 65).
    pub preferred_write_granularity: U16,
    /// Preferred write alignment, 0's based (NPWA, bytes 66 to 67).
    pub preferred_write_alignment: U16,
    /// Preferred deallocate granularity, 0's based (NPDG, bytes 68 to 69).
    pub preferred_deallocate_granularity: U16,
    /// Preferred deallocate alignment, 0's based (NPDA, bytes 70 to 71).
    pub preferred_deallocate_alignment: U16,
    /// Optimal write size, 0's based (NOWS, bytes 72 to 73).
    pub optimal_write_size: U16,
    /// Copy: maximum blocks of a source range (MSSRL, bytes 74 to 75).
    pub max_copy_range_length: U16,
    /// Copy: maximum blocks of a command (MCL, bytes 76 to 79).
    pub max_copy_length: U32,
    /// Copy: maximum source ranges, 0's based (MSRC, byte 80).
    pub max_copy_ranges: u8,
    /// Key per I/O status (KPIOS, byte 81).
    pub key_per_io_status: u8,
    /// Number of unique attribute LBA formats (NULBAF, byte 82).
    pub unique_lba_format_count: u8,
    _reserved83: [u8; 9],
    /// ANA group (ANAGRPID, bytes 92 to 95).
    pub ana_group_id: U32,
    _reserved96: [u8; 3],
    /// Attributes; bits in [`super::namespace_attributes`] (NSATTR, byte 99).
    pub attributes: u8,
    /// NVM set (NVMSETID, bytes 100 to 101).
    pub nvm_set_id: U16,
    /// Endurance group (ENDGID, bytes 102 to 103).
    pub endurance_group_id: U16,
    /// Namespace globally unique identifier, big-endian (NGUID, bytes 104 to 119).
    pub nguid: [u8; 16],
    /// IEEE extended unique identifier, big-endian (EUI64, bytes 120 to 127).
    pub eui64: [u8; 8],
    /// LBA formats 0 to 63 (LBAF, bytes 128 to 383).
    pub lba_formats: [LbaFormat; 64],
    /// Vendor specific (VS, bytes 384 to 4095).
    pub vendor_specific: [u8; 3712],
}

/// One LBA format of Identify Namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct LbaFormat {
    /// Metadata bytes of a logical block (MS, bytes 0 to 1).
    pub metadata_size: U16,
    /// Data bytes of a logical block, 2^n, at least 9 (LBADS, byte 2).
    pub lba_data_size: u8,
    /// Relative performance, 0 is best (RP, byte 3 bits 1:0).
    pub relative_performance: u8,
}

wire_layout!(LbaFormat, 4, {
    0 metadata_size,
    2 lba_data_size,
    3 relative_performance,
});

wire_layout!(IdentifyNamespace, 4096, {
    0 size,
    8 capacity,
    16 utilization,
    24 features,
    25 lba_format_count,
    26 formatted_lba_size,
    27 metadata_capabilities,
    28 protection_capabilities,
    29 protection_settings,
    30 sharing,
    31 reservation_capabilities,
    32 format_progress,
    33 deallocate_features,
    34 atomic_write_unit,
    36 atomic_write_unit_power_fail,
    38 atomic_compare_write_unit,
    40 atomic_boundary_size,
    42 atomic_boundary_offset,
    44 atomic_boundary_size_power_fail,
    46 optimal_io_boundary,
    48 nvm_capacity,
    64 preferred_write_granularity,
    66 preferred_write_alignment,
    68 preferred_deallocate_granularity,
    70 preferred_deallocate_alignment,
    72 optimal_write_size,
    74 max_copy_range_length,
    76 max_copy_length,
    80 max_copy_ranges,
    81 key_per_io_status,
    82 unique_lba_format_count,
    92 ana_group_id,
    99 attributes,
    100 nvm_set_id,
    102 endurance_group_id,
    104 nguid,
    120 eui64,
    128 lba_formats,
    384 vendor_specific,
});

#[cfg(test)]
mod tests {
    use super::{IdentifyNamespace, LbaFormat};

    #[test]
    fn formats_and_ids_land_at_their_offsets() {
        let mut id = IdentifyNamespace::new_zeroed();
        id.size = 0x0102_0304_0506_0708.into();
        id.eui64 = [1, 2, 3, 4, 5, 6, 7, 8];
        id.lba_formats[63] =
            LbaFormat { metadata_size: 8.into(), lba_data_size: 12, relative_performance: 1 };
        let bytes = id.as_bytes();
        assert_eq!(bytes[..8], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes[120..128], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[380..384], [8, 0, 12, 1]);
        assert_eq!(IdentifyNamespace::from_bytes(bytes), Some(id));
    }
}
