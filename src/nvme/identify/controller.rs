//! Identify Controller (CNS 01h), also for discovery controllers.
//!
//! The values a target reports are its own choice; nothing is preset here.

use super::layout::{wire_layout, write_ascii};
use super::power::PowerState;
use crate::Nqn;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Identify Controller data structure (CNS 01h).
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IdentifyController {
    /// PCI vendor identifier (VID, bytes 0 to 1).
    pub pci_vendor_id: U16,
    /// PCI subsystem vendor identifier (SSVID, bytes 2 to 3).
    pub pci_subsystem_vendor_id: U16,
    /// Serial number, ASCII padded with spaces (SN, bytes 4 to 23).
    pub serial_number: [u8; 20],
    /// Model number, ASCII padded with spaces (MN, bytes 24 to 63).
    pub model_number: [u8; 40],
    /// Firmware revision, ASCII padded with spaces (FR, bytes 64 to 71).
    pub firmware_revision: [u8; 8],
    /// Recommended arbitration burst, 2^n commands (RAB, byte 72).
    pub arbitration_burst: u8,
    /// IEEE OUI, least significant byte first (IEEE, bytes 73 to 75).
    pub ieee_oui: [u8; 3],
    /// Multi-path I/O and sharing; bits in [`super::multipath`] (CMIC, byte 76).
    pub multipath: u8,
    /// Maximum data transfer size, 2^n * 4 KiB; 0 is no limit (MDTS, byte 77).
    pub max_data_transfer_size: u8,
    /// Controller identifier (CNTLID, bytes 78 to 79).
    pub controller_id: U16,
    /// NVMe version (VER, bytes 80 to 83).
    pub version: U32,
    /// Runtime D3 resume latency in microseconds (RTD3R, bytes 84 to 87).
    pub rtd3_resume_latency: U32,
    /// Runtime D3 entry latency in microseconds (RTD3E, bytes 88 to 91).
    pub rtd3_entry_latency: U32,
    /// Optional asynchronous events supported (OAES, bytes 92 to 95).
    pub optional_async_events: U32,
    /// Controller attributes; bits in [`super::attributes`] (CTRATT, bytes 96 to 99).
    pub attributes: U32,
    /// Read recovery levels supported (RRLS, bytes 100 to 101).
    pub read_recovery_levels: U16,
    /// Boot partition capabilities (BPCAP, byte 102).
    pub boot_partition_capabilities: u8,
    _reserved103: [u8; 1],
    /// NVM subsystem shutdown latency in microseconds (NSSL, bytes 104 to 107).
    pub shutdown_latency: U32,
    _reserved108: [u8; 2],
    /// Power loss signaling information (PLSI, byte 110).
    pub power_loss_signaling: u8,
    /// Controller type; values in [`super::controller_type`] (CNTRLTYPE, byte 111).
    pub controller_type: u8,
    /// FRU globally unique identifier (FGUID, bytes 112 to 127).
    pub fru_guid: [u8; 16],
    /// Command retry delay time 1 in 100 ms (CRDT1, bytes 128 to 129).
    pub command_retry_delay_1: U16,
    /// Command retry delay time 2 in 100 ms (CRDT2, bytes 130 to 131).
    pub command_retry_delay_2: U16,
    /// Command retry delay time 3 in 100 ms (CRDT3, bytes 132 to 133).
    pub command_retry_delay_3: U16,
    /// Controller reachability capabilities (CRCAP, byte 134).
    pub reachability_capabilities: u8,
    _reserved135: [u8; 118],
    /// NVM subsystem report (NVMSR, byte 253).
    pub subsystem_report: u8,
    /// VPD write cycle information (VWCI, byte 254).
    pub vpd_write_cycles: u8,
    /// Management endpoint capabilities (MEC, byte 255).
    pub management_endpoint_capabilities: u8,
    /// Optional admin commands; bits in [`super::admin_commands`] (OACS, bytes 256 to 257).
    pub optional_admin_commands: U16,
    /// Abort command limit, 0's based (ACL, byte 258).
    pub abort_limit: u8,
    /// Asynchronous event request limit, 0's based (AERL, byte 259).
    pub async_event_limit: u8,
    /// Firmware updates; bits in [`super::firmware_updates`] (FRMW, byte 260).
    pub firmware_updates: u8,
    /// Log page attributes; bits in [`super::log_attributes`] (LPA, byte 261).
    pub log_page_attributes: u8,
    /// Error log page entries, 0's based (ELPE, byte 262).
    pub error_log_entries: u8,
    /// Number of power states, 0's based (NPSS, byte 263).
    pub power_state_count: u8,
    /// Admin vendor specific command configuration (AVSCC, byte 264).
    pub admin_vendor_command_config: u8,
    /// Autonomous power state transition attributes (APSTA, byte 265).
    pub power_transition_attributes: u8,
    /// Warning composite temperature threshold in Kelvin (WCTEMP, bytes 266 to 267).
    pub warning_temperature: U16,
    /// Critical composite temperature threshold in Kelvin (CCTEMP, bytes 268 to 269).
    pub critical_temperature: U16,
    /// Maximum time for firmware activation in 100 ms (MTFA, bytes 270 to 271).
    pub max_firmware_activation_time: U16,
    /// Host memory buffer preferred size in 4 KiB (HMPRE, bytes 272 to 275).
    pub host_memory_preferred: U32,
    /// Host memory buffer minimum size in 4 KiB (HMMIN, bytes 276 to 279).
    pub host_memory_min: U32,
    /// Total NVM capacity in bytes, little-endian (TNVMCAP, bytes 280 to 295).
    pub total_capacity: [u8; 16],
    /// Unallocated NVM capacity in bytes, little-endian (UNVMCAP, bytes 296 to 311).
    pub unallocated_capacity: [u8; 16],
    /// Replay protected memory block support (RPMBS, bytes 312 to 315).
    pub replay_protected_memory: U32,
    /// Extended device self-test time in minutes (EDSTT, bytes 316 to 317).
    pub self_test_time: U16,
    /// Device self-test options (DSTO, byte 318).
    pub self_test_options: u8,
    /// Firmware update granularity in 4 KiB (FWUG, byte 319).
    pub firmware_granularity: u8,
    /// Keep alive granularity in 100 ms (KAS, bytes 320 to 321).
    pub keep_alive_support: U16,
    /// Host controlled thermal management attributes (HCTMA, bytes 322 to 323).
    pub thermal_management_attributes: U16,
    /// Minimum thermal management temperature in Kelvin (MNTMT, bytes 324 to 325).
    pub min_thermal_management_temperature: U16,
    /// Maximum thermal management temperature in Kelvin (MXTMT, bytes 326 to 327).
    pub max_thermal_management_temperature: U16,
    /// Sanitize capabilities (SANICAP, bytes 328 to 331).
    pub sanitize_capabilities: U32,
    /// Host memory buffer minimum descriptor entry size in 4 KiB (HMMINDS, bytes 332 to 335).
    pub host_memory_min_descriptor: U32,
    /// Host memory maximum descriptor entries (HMMAXD, bytes 336 to 337).
    pub host_memory_max_descriptors: U16,
    /// NVM set identifier maximum (NSETIDMAX, bytes 338 to 339).
    pub nvm_set_id_max: U16,
    /// Endurance group identifier maximum (ENDGIDMAX, bytes 340 to 341).
    pub endurance_group_id_max: U16,
    /// ANA transition time in seconds (ANATT, byte 342).
    pub ana_transition_time: u8,
    /// ANA capabilities; bits in [`super::ana_capabilities`] (ANACAP, byte 343).
    pub ana_capabilities: u8,
    /// ANA group identifier maximum (ANAGRPMAX, bytes 344 to 347).
    pub ana_group_id_max: U32,
    /// Number of ANA group identifiers (NANAGRPID, bytes 348 to 351).
    pub ana_group_count: U32,
    /// Persistent event log size in 64 KiB (PELS, bytes 352 to 355).
    pub persistent_event_log_size: U32,
    /// Domain identifier (DID, bytes 356 to 357).
    pub domain_id: U16,
    /// Key per I/O capabilities (KPIOC, byte 358).
    pub key_per_io_capabilities: u8,
    _reserved359: [u8; 1],
    /// Maximum processing time for firmware activation without reset in 100 ms (MPTFAWR, bytes 360 to 361).
    pub max_firmware_activation_without_reset: U16,
    _reserved362: [u8; 6],
    /// Maximum endurance group capacity in bytes, little-endian (MEGCAP, bytes 368 to 383).
    pub max_endurance_group_capacity: [u8; 16],
    /// Temperature threshold hysteresis attributes (TMPTHHA, byte 384).
    pub temperature_hysteresis: u8,
    _reserved385: [u8; 1],
    /// Command quiesce time in milliseconds (CQT, bytes 386 to 387).
    pub command_quiesce_time: U16,
    /// Configurable device personality attributes (CDPA, bytes 388 to 389).
    pub personality_attributes: U16,
    _reserved390: [u8; 122],
    /// SQ entry size, 2^n: required in bits 3:0, maximum in 7:4 (SQES, byte 512).
    pub sqe_size: u8,
    /// CQ entry size, 2^n: required in bits 3:0, maximum in 7:4 (CQES, byte 513).
    pub cqe_size: u8,
    /// Maximum outstanding commands of a queue (MAXCMD, bytes 514 to 515).
    pub max_outstanding_commands: U16,
    /// Number of namespaces: the highest NSID (NN, bytes 516 to 519).
    pub namespace_count: U32,
    /// Optional NVM commands; bits in [`super::nvm_commands`] (ONCS, bytes 520 to 521).
    pub optional_nvm_commands: U16,
    /// Fused operations; bits in [`super::fused_operations`] (FUSES, bytes 522 to 523).
    pub fused_operations: U16,
    /// Format NVM attributes (FNA, byte 524).
    pub format_attributes: u8,
    /// Volatile write cache; bits in [`super::volatile_write_cache`] (VWC, byte 525).
    pub volatile_write_cache: u8,
    /// Atomic write unit normal in logical blocks, 0's based (AWUN, bytes 526 to 527).
    pub atomic_write_unit: U16,
    /// Atomic write unit power fail in logical blocks, 0's based (AWUPF, bytes 528 to 529).
    pub atomic_write_unit_power_fail: U16,
    /// I/O command set vendor specific command configuration (ICSVSCC, byte 530).
    pub io_vendor_command_config: u8,
    /// Namespace write protection; bits in [`super::write_protection`] (NWPC, byte 531).
    pub write_protection: u8,
    /// Atomic compare and write unit in logical blocks, 0's based (ACWU, bytes 532 to 533).
    pub atomic_compare_write_unit: U16,
    /// Copy descriptor formats supported: bit n is format n (CDFS, bytes 534 to 535).
    pub copy_formats: U16,
    /// SGL support; bits in [`super::sgl_support`] (SGLS, bytes 536 to 539).
    pub sgl_support: U32,
    /// Maximum number of allowed namespaces (MNAN, bytes 540 to 543).
    pub max_namespaces: U32,
    /// Maximum domain namespace attachments, little-endian (MAXDNA, bytes 544 to 559).
    pub max_domain_attachments: [u8; 16],
    /// Maximum I/O controller namespace attachments (MAXCNA, bytes 560 to 563).
    pub max_controller_attachments: U32,
    _reserved564: [u8; 204],
    /// NVM subsystem NQN, UTF-8, padded with NUL (SUBNQN, bytes 768 to 1023).
    pub subsystem_nqn: [u8; 256],
    _reserved1024: [u8; 768],
    /// I/O queue command capsule size in 16 bytes (IOCCSZ, bytes 1792 to 1795).
    pub io_command_capsule_size: U32,
    /// I/O queue response capsule size in 16 bytes (IORCSZ, bytes 1796 to 1799).
    pub io_response_capsule_size: U32,
    /// In-capsule data offset in 16 bytes (ICDOFF, bytes 1800 to 1801).
    pub in_capsule_data_offset: U16,
    /// Fabrics controller attributes: bit 0 is the static controller model (FCATT, byte 1802).
    pub fabrics_attributes: u8,
    /// Maximum SGL data block descriptors; 0 is no limit (MSDBD, byte 1803).
    pub max_sgl_descriptors: u8,
    /// Optional fabrics commands: bit 0 is Disconnect (OFCS, bytes 1804 to 1805).
    pub optional_fabrics_commands: U16,
    /// Discovery controller type (DCTYPE, byte 1806).
    pub discovery_type: u8,
    /// Cross-controller reset limit (CCRL, byte 1807).
    pub cross_controller_reset_limit: u8,
    _reserved1808: [u8; 240],
    /// Power state descriptors 0 to 31 (PSD, bytes 2048 to 3071).
    pub power_states: [PowerState; 32],
    /// Vendor specific (VS, bytes 3072 to 4095).
    pub vendor_specific: [u8; 1024],
}

impl IdentifyController {
    /// Writes the serial number (SN); cut at 20 characters.
    pub fn set_serial(&mut self, serial: &str) {
        write_ascii(&mut self.serial_number, serial);
    }

    /// Writes the model number (MN); cut at 40 characters.
    pub fn set_model(&mut self, model: &str) {
        write_ascii(&mut self.model_number, model);
    }

    /// Writes the firmware revision (FR); cut at 8 characters.
    pub fn set_firmware(&mut self, revision: &str) {
        write_ascii(&mut self.firmware_revision, revision);
    }

    /// Writes the subsystem NQN (SUBNQN).
    pub fn set_subsystem_nqn(&mut self, nqn: &Nqn) {
        nqn.write_field(&mut self.subsystem_nqn);
    }
}

wire_layout!(IdentifyController, 4096, {
    0 pci_vendor_id,
    2 pci_subsystem_vendor_id,
    4 serial_number,
    24 model_number,
    64 firmware_revision,
    72 arbitration_burst,
    73 ieee_oui,
    76 multipath,
    77 max_data_transfer_size,
    78 controller_id,
    80 version,
    84 rtd3_resume_latency,
    88 rtd3_entry_latency,
    92 optional_async_events,
    96 attributes,
    100 read_recovery_levels,
    102 boot_partition_capabilities,
    104 shutdown_latency,
    110 power_loss_signaling,
    111 controller_type,
    112 fru_guid,
    128 command_retry_delay_1,
    130 command_retry_delay_2,
    132 command_retry_delay_3,
    134 reachability_capabilities,
    253 subsystem_report,
    254 vpd_write_cycles,
    255 management_endpoint_capabilities,
    256 optional_admin_commands,
    258 abort_limit,
    259 async_event_limit,
    260 firmware_updates,
    261 log_page_attributes,
    262 error_log_entries,
    263 power_state_count,
    264 admin_vendor_command_config,
    265 power_transition_attributes,
    266 warning_temperature,
    268 critical_temperature,
    270 max_firmware_activation_time,
    272 host_memory_preferred,
    276 host_memory_min,
    280 total_capacity,
    296 unallocated_capacity,
    312 replay_protected_memory,
    316 self_test_time,
    318 self_test_options,
    319 firmware_granularity,
    320 keep_alive_support,
    322 thermal_management_attributes,
    324 min_thermal_management_temperature,
    326 max_thermal_management_temperature,
    328 sanitize_capabilities,
    332 host_memory_min_descriptor,
    336 host_memory_max_descriptors,
    338 nvm_set_id_max,
    340 endurance_group_id_max,
    342 ana_transition_time,
    343 ana_capabilities,
    344 ana_group_id_max,
    348 ana_group_count,
    352 persistent_event_log_size,
    356 domain_id,
    358 key_per_io_capabilities,
    360 max_firmware_activation_without_reset,
    368 max_endurance_group_capacity,
    384 temperature_hysteresis,
    386 command_quiesce_time,
    388 personality_attributes,
    512 sqe_size,
    513 cqe_size,
    514 max_outstanding_commands,
    516 namespace_count,
    520 optional_nvm_commands,
    522 fused_operations,
    524 format_attributes,
    525 volatile_write_cache,
    526 atomic_write_unit,
    528 atomic_write_unit_power_fail,
    530 io_vendor_command_config,
    531 write_protection,
    532 atomic_compare_write_unit,
    534 copy_formats,
    536 sgl_support,
    540 max_namespaces,
    544 max_domain_attachments,
    560 max_controller_attachments,
    768 subsystem_nqn,
    1792 io_command_capsule_size,
    1796 io_response_capsule_size,
    1800 in_capsule_data_offset,
    1802 fabrics_attributes,
    1803 max_sgl_descriptors,
    1804 optional_fabrics_commands,
    1806 discovery_type,
    1807 cross_controller_reset_limit,
    2048 power_states,
    3072 vendor_specific,
});

#[cfg(test)]
mod tests {
    use super::IdentifyController;
    use crate::Nqn;

    #[test]
    fn text_fields_land_at_their_offsets() {
        let mut id = IdentifyController::new_zeroed();
        id.set_serial("S1");
        id.set_model("model that is much longer than forty characters are");
        id.set_firmware("1.0");
        let nqn = Nqn::discovery();
        id.set_subsystem_nqn(&nqn);
        let bytes = id.as_bytes();
        assert_eq!(&bytes[4..24], b"S1                  ");
        assert_eq!(&bytes[24..64], b"model that is much longer than forty cha");
        assert_eq!(&bytes[64..72], b"1.0     ");
        assert!(bytes[72..768].iter().all(|&b| b == 0));
        let end = 768 + nqn.as_str().len();
        assert_eq!(&bytes[768..end], nqn.as_str().as_bytes());
        assert!(bytes[end..].iter().all(|&b| b == 0));
    }

    #[test]
    fn numbers_are_little_endian() {
        let mut id = IdentifyController::new_zeroed();
        id.controller_id = 0x1234.into();
        id.sgl_support = 0x0010_0005.into();
        id.power_states[0].max_power = 0x09c4.into();
        let bytes = id.as_bytes();
        assert_eq!(bytes[78..80], [0x34, 0x12]);
        assert_eq!(bytes[536..540], [5, 0, 0x10, 0]);
        assert_eq!(bytes[2048..2050], [0xc4, 0x09]);
        assert_eq!(IdentifyController::from_bytes(bytes), Some(id));
    }
}
