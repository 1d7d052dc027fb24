//! Bit values of the capability fields in the Identify structures.
//!
//! One module a field, named after it. The bits of Optional Asynchronous
//! Events (OAES) are those of the feature that enables the events and are in
//! [`crate::features::async_event_configuration`].

/// Bits of CMIC, controller multi-path I/O and namespace sharing.
pub mod multipath {
    /// The subsystem may have more than one port.
    pub const MULTIPLE_PORTS: u8 = 1 << 0;
    /// The subsystem may have more than one controller.
    pub const MULTIPLE_CONTROLLERS: u8 = 1 << 1;
    /// The controller is an SR-IOV virtual function.
    pub const VIRTUAL_FUNCTION: u8 = 1 << 2;
    /// Asymmetric namespace access reporting is supported.
    pub const ANA_REPORTING: u8 = 1 << 3;
}

/// Bits of CTRATT, controller attributes.
pub mod attributes {
    /// 128-bit host identifiers (HIDS).
    pub const HOST_ID_128: u32 = 1 << 0;
    /// Non-operational power state permissive mode (NOPSPM).
    pub const NON_OPERATIONAL_PERMISSIVE: u32 = 1 << 1;
    /// NVM sets.
    pub const NVM_SETS: u32 = 1 << 2;
    /// Read recovery levels (RRLVLS).
    pub const READ_RECOVERY_LEVELS: u32 = 1 << 3;
    /// Endurance groups (EGS).
    pub const ENDURANCE_GROUPS: u32 = 1 << 4;
    /// Predictable latency mode (PLM).
    pub const PREDICTABLE_LATENCY: u32 = 1 << 5;
    /// Traffic based keep alive (TBKAS).
    pub const TRAFFIC_KEEP_ALIVE: u32 = 1 << 6;
    /// Namespace granularity (NG).
    pub const NAMESPACE_GRANULARITY: u32 = 1 << 7;
    /// SQ associations (SQA).
    pub const SQ_ASSOCIATIONS: u32 = 1 << 8;
    /// UUID list (ULIST).
    pub const UUID_LIST: u32 = 1 << 9;
    /// Multi-domain subsystem (MDS).
    pub const MULTI_DOMAIN: u32 = 1 << 10;
    /// Extended LBA formats (ELBAS).
    pub const EXTENDED_LBA_FORMATS: u32 = 1 << 15;
}

/// Bits of OACS, optional admin commands.
pub mod admin_commands {
    /// Security Send and Receive.
    pub const SECURITY: u16 = 1 << 0;
    /// Format NVM.
    pub const FORMAT: u16 = 1 << 1;
    /// Firmware Commit and Image Download.
    pub const FIRMWARE: u16 = 1 << 2;
    /// Namespace Management and Attachment.
    pub const NAMESPACE_MANAGEMENT: u16 = 1 << 3;
    /// Device Self-test.
    pub const SELF_TEST: u16 = 1 << 4;
    /// Directives.
    pub const DIRECTIVES: u16 = 1 << 5;
}

/// Bits of LPA, log page attributes.
pub mod log_attributes {
    /// SMART log per namespace (SMARTS).
    pub const SMART_PER_NAMESPACE: u8 = 1 << 0;
    /// Commands supported and effects log, 05h (CSES).
    pub const EFFECTS: u8 = 1 << 1;
    /// Extended data: NUMDU and log page offset (LPEDS).
    pub const EXTENDED_DATA: u8 = 1 << 2;
    /// Telemetry logs (TS).
    pub const TELEMETRY: u8 = 1 << 3;
    /// Persistent event log (PES).
    pub const PERSISTENT_EVENT: u8 = 1 << 4;
    /// Logs 00h, 05h, 12h and 13h for every command set (MLPS).
    pub const SUPPORTED_PAGES: u8 = 1 << 5;
}

/// Bits of FRMW, firmware updates.
pub mod firmware_updates {
    /// Slot 1 is read only.
    pub const SLOT_1_READ_ONLY: u8 = 1 << 0;
    /// One slot, in the field at bits 3:1.
    pub const ONE_SLOT: u8 = 1 << 1;
}

/// Bits of ANACAP, asymmetric namespace access capabilities.
pub mod ana_capabilities {
    /// Reports the optimized state.
    pub const OPTIMIZED: u8 = 1 << 0;
    /// Reports the non-optimized state.
    pub const NON_OPTIMIZED: u8 = 1 << 1;
    /// Reports the inaccessible state.
    pub const INACCESSIBLE: u8 = 1 << 2;
    /// Reports the persistent loss state.
    pub const PERSISTENT_LOSS: u8 = 1 << 3;
    /// Reports the change state.
    pub const CHANGE: u8 = 1 << 4;
    /// The group of a namespace does not change while it is attached.
    pub const FIXED_GROUPS: u8 = 1 << 6;
    /// Namespace Management takes a group other than zero.
    pub const GROUP_IN_MANAGEMENT: u8 = 1 << 7;
}

/// Bits of ONCS, optional NVM commands.
pub mod nvm_commands {
    /// Compare.
    pub const COMPARE: u16 = 1 << 0;
    /// Write Uncorrectable.
    pub const WRITE_UNCORRECTABLE: u16 = 1 << 1;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u16 = 1 << 3;
    /// Save in Set Features, select in Get Features.
    pub const SAVE_SELECT: u16 = 1 << 4;
    /// Reservations.
    pub const RESERVATIONS: u16 = 1 << 5;
    /// Timestamp feature.
    pub const TIMESTAMP: u16 = 1 << 6;
    /// Verify.
    pub const VERIFY: u16 = 1 << 7;
    /// Copy.
    pub const COPY: u16 = 1 << 8;
}

/// Bits of FUSES, fused operations.
pub mod fused_operations {
    /// Compare and Write.
    pub const COMPARE_AND_WRITE: u16 = 1 << 0;
}

/// Bits of VWC, volatile write cache.
pub mod volatile_write_cache {
    /// A volatile write cache is present.
    pub const PRESENT: u8 = 1 << 0;
    /// Flush with the broadcast NSID is not supported (field 2:1 = 2).
    pub const FLUSH_BROADCAST_UNSUPPORTED: u8 = 2 << 1;
    /// Flush with the broadcast NSID is supported (field 2:1 = 3).
    pub const FLUSH_BROADCAST_SUPPORTED: u8 = 3 << 1;
}

/// Bits of NWPC, namespace write protection capabilities.
pub mod write_protection {
    /// The namespace write protect feature, without the states below.
    pub const SUPPORTED: u8 = 1 << 0;
    /// Write protect until power cycle.
    pub const UNTIL_POWER_CYCLE: u8 = 1 << 1;
    /// Permanent write protect.
    pub const PERMANENT: u8 = 1 << 2;
}

/// Bits of SGLS, SGL support.
pub mod sgl_support {
    /// SGLs without alignment requirement (field 1:0 = 1).
    pub const BYTE_ALIGNED: u32 = 1;
    /// SGLs aligned to dwords (field 1:0 = 2).
    pub const DWORD_ALIGNED: u32 = 2;
    /// Keyed SGL data block descriptors.
    pub const KEYED: u32 = 1 << 2;
    /// Bit bucket descriptors.
    pub const BIT_BUCKET: u32 = 1 << 16;
    /// SGLs longer than the data.
    pub const OVERSIZE: u32 = 1 << 18;
    /// The address may be an offset: in-capsule data.
    pub const OFFSET: u32 = 1 << 20;
    /// Transport SGL data block descriptors.
    pub const TRANSPORT_DATA_BLOCK: u32 = 1 << 21;
}

/// Values of CNTRLTYPE, controller type.
pub mod controller_type {
    /// I/O controller.
    pub const IO: u8 = 1;
    /// Discovery controller.
    pub const DISCOVERY: u8 = 2;
    /// Administrative controller.
    pub const ADMINISTRATIVE: u8 = 3;
}

/// Bits of NSFEAT, namespace features (CNS 00h).
pub mod namespace_features {
    /// Thin provisioning: NCAP may be less than NSZE (THINP).
    pub const THIN: u8 = 1 << 0;
    /// NAWUN, NAWUPF and NACWU hold for this namespace (NSABP).
    pub const ATOMICS: u8 = 1 << 1;
    /// Error on reading deallocated blocks (DAE).
    pub const DEALLOCATED_ERROR: u8 = 1 << 2;
    /// NGUID and EUI64 are never reused (UIDREUSE).
    pub const IDS_NOT_REUSED: u8 = 1 << 3;
    /// NPWG, NPWA, NPDG, NPDA and NOWS are set (OPTPERF, field 5:4 = 1).
    pub const OPTIMAL_PERFORMANCE: u8 = 1 << 4;
}

/// Bits of NSFEAT in the independent structure (CNS 08h).
pub mod independent_features {
    /// The media rotates.
    pub const ROTATIONAL: u8 = 1 << 4;
    /// No volatile write cache is present for this namespace (VWCNP).
    pub const NO_WRITE_CACHE: u8 = 1 << 5;
}

/// Bits of NMIC, namespace multi-path I/O and sharing.
pub mod namespace_sharing {
    /// May be attached to more than one controller at a time.
    pub const SHARED: u8 = 1 << 0;
    /// Dispersed namespace.
    pub const DISPERSED: u8 = 1 << 1;
}

/// Bits of RESCAP, reservation capabilities.
pub mod reservation_capabilities {
    /// Persist through power loss.
    pub const PERSIST: u8 = 1 << 0;
    /// Write exclusive.
    pub const WRITE_EXCLUSIVE: u8 = 1 << 1;
    /// Exclusive access.
    pub const EXCLUSIVE_ACCESS: u8 = 1 << 2;
    /// Write exclusive, registrants only.
    pub const WRITE_EXCLUSIVE_REGISTRANTS: u8 = 1 << 3;
    /// Exclusive access, registrants only.
    pub const EXCLUSIVE_ACCESS_REGISTRANTS: u8 = 1 << 4;
    /// Write exclusive, all registrants.
    pub const WRITE_EXCLUSIVE_ALL: u8 = 1 << 5;
    /// Exclusive access, all registrants.
    pub const EXCLUSIVE_ACCESS_ALL: u8 = 1 << 6;
    /// IEKEY as defined by 1.3 and later.
    pub const IGNORE_KEY_1_3: u8 = 1 << 7;
}

/// Bits of DLFEAT, deallocate logical block features.
pub mod deallocate {
    /// Deallocated blocks read as zeros (field 2:0 = 1).
    pub const READS_ZEROS: u8 = 1;
    /// Deallocated blocks read as FFh (field 2:0 = 2).
    pub const READS_ONES: u8 = 2;
    /// Write Zeroes heeds the deallocate bit.
    pub const WRITE_ZEROES: u8 = 1 << 3;
    /// The guard field of a deallocated block is the CRC of its data.
    pub const GUARD_CRC: u8 = 1 << 4;
}

/// Bits of NSATTR, namespace attributes.
pub mod namespace_attributes {
    /// Write protected by its current state.
    pub const WRITE_PROTECTED: u8 = 1 << 0;
}

/// Bits of NSTAT, namespace status.
pub mod namespace_status {
    /// Ready.
    pub const READY: u8 = 1 << 0;
}
