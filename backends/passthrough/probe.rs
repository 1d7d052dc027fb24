//! Finding out what a drive's namespace is: Identify from the drive, limits from the kernel's block layer.

use super::PassthroughError;
use nvme::{
    AdminOpcode,
    identify::{
        IDENTIFY_LEN, IdentifyController, IdentifyNamespace, IdentifyNvmController, cns, deallocate,
        nvm_commands, volatile_write_cache,
    },
};
use reactor::{DriveCommand, DriveQueue, drive_admin, drive_nsid, system};
use std::{fs, io, os::fd::OwnedFd, path::Path};

/// Data of one command when the kernel names no limit.
const DEFAULT_MAX_BYTES: usize = 128 << 10;
/// What one segment of a data buffer holds for certain: buffers are contiguous to us, not to the drive.
const SEGMENT: usize = 4096;

/// What a drive can do besides Read, Write and Flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// Compare.
    pub compare: bool,
    /// Write Zeroes.
    pub write_zeroes: bool,
    /// Dataset Management.
    pub dataset_management: bool,
}

/// What a namespace of a drive is, and how much one command may move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveNamespace {
    /// The kernel's name of its node, `ngXnY`.
    pub node: String,
    /// The kernel's name of its block device, often but not always `nvmeXnY`.
    pub block_device: String,
    /// Its identifier on the drive.
    pub nsid: u32,
    /// Bytes of a logical block.
    pub lba_size: u32,
    /// Logical blocks.
    pub lba_count: u64,
    /// Metadata bytes of a logical block.
    pub metadata_size: u16,
    /// Type of protection information; 0 for none.
    pub protection: u8,
    /// The I/O command set (CSI).
    pub command_set: u8,
    /// Bytes one command may move.
    pub max_bytes: usize,
    /// Blocks one Write Zeroes may cover; 0 for no limit but the field's.
    pub write_zeroes_blocks: u32,
    /// Blocks one range of Dataset Management may cover; 0 for no limit but the field's.
    pub deallocate_blocks: u32,
    /// The drive has a volatile write cache.
    pub volatile_write_cache: bool,
    /// Deallocated blocks read as zeroes, and Write Zeroes may deallocate.
    pub deallocated_reads_zeroes: bool,
    /// What else it can do.
    pub abilities: Abilities,
    /// It is reached by several controllers.
    pub multipath: bool,
    /// The drive's model number.
    pub model: String,
    /// The drive's serial number.
    pub serial: String,
    /// The drive's firmware revision.
    pub firmware: String,
}

/// How large a namespace is, and in which blocks.
pub(super) struct Size {
    pub(super) lba_size: u32,
    pub(super) lba_count: u64,
    pub(super) metadata_size: u16,
}

impl Size {
    fn of(namespace: &IdentifyNamespace) -> Size {
        let flbas = namespace.formatted_lba_size;
        let format = usize::from(flbas & 0xf) + usize::from(flbas >> 5 & 3) * 16;
        let format = &namespace.lba_formats[format];
        Size {
            lba_size: 1_u32.checked_shl(format.lba_data_size.into()).unwrap_or(0),
            lba_count: namespace.size.get(),
            metadata_size: format.metadata_size.get(),
        }
    }
}

impl DriveNamespace {
    /// Asks the drive behind an open node, and the kernel about its limits.
    pub fn probe(path: &Path, node: &OwnedFd) -> Result<DriveNamespace, PassthroughError> {
        let failed = |what: &'static str| move |error| PassthroughError::Identify(path.into(), what, error);
        let nsid = drive_nsid(node).map_err(failed("its namespace identifier"))?;
        let ask = |what, cns, nsid| {
            let mut page = vec![0; IDENTIFY_LEN];
            identify(node, cns, nsid, &mut page).map_err(failed(what)).map(|()| page)
        };
        let controller = ask("Identify Controller", cns::CONTROLLER, 0)?;
        let namespace = ask("Identify Namespace", cns::NAMESPACE, nsid)?;
        // Optional: a drive that has no limits of its own may not know it.
        let limits = ask("limits", cns::COMMAND_SET_CONTROLLER, 0).unwrap_or_else(|_| vec![0; IDENTIFY_LEN]);
        let short = || PassthroughError::Unusable(path.into(), "its Identify data is too short".into());
        let controller = IdentifyController::from_bytes(&controller).ok_or_else(short)?;
        let namespace = IdentifyNamespace::from_bytes(&namespace).ok_or_else(short)?;
        let limits = IdentifyNvmController::from_bytes(&limits).ok_or_else(short)?;
        let sysfs = Sysfs::of(path);
        Ok(Self::from_parts(nsid, &controller, &namespace, &limits, &sysfs))
    }

    /// What the drive says of a namespace's size now.
    pub(super) fn size(node: &OwnedFd, nsid: u32) -> io::Result<Size> {
        let mut page = vec![0; IDENTIFY_LEN];
        identify(node, cns::NAMESPACE, nsid, &mut page)?;
        let short = || io::Error::other("its Identify data is too short");
        Ok(Size::of(&IdentifyNamespace::from_bytes(&page).ok_or_else(short)?))
    }

    fn from_parts(
        nsid: u32,
        controller: &IdentifyController,
        namespace: &IdentifyNamespace,
        limits: &IdentifyNvmController,
        sysfs: &Sysfs,
    ) -> DriveNamespace {
        let Size { lba_size, lba_count, metadata_size } = Size::of(namespace);
        let commands = controller.optional_nvm_commands.get();
        let has = |bit| commands & bit != 0;
        let reads_zeroes = namespace.deallocate_features & 7 == deallocate::READS_ZEROS;
        // WZSL counts in units of the smallest page, 4 KiB.
        let zeroes = match (limits.write_zeroes_size_limit, lba_size) {
            (0, _) | (_, 0) => 0,
            (n @ 1..=31, size) => u32::try_from((SEGMENT as u64) << n).unwrap_or(u32::MAX) / size,
            _ => 0,
        };
        DriveNamespace {
            node: sysfs.node.clone(),
            block_device: sysfs.block.clone(),
            nsid,
            lba_size,
            lba_count,
            metadata_size,
            protection: namespace.protection_settings & 7,
            command_set: sysfs.command_set,
            max_bytes: sysfs.max_bytes(controller.max_data_transfer_size),
            write_zeroes_blocks: zeroes,
            deallocate_blocks: limits.dataset_range_size_limit.get(),
            volatile_write_cache: controller.volatile_write_cache & volatile_write_cache::PRESENT != 0,
            deallocated_reads_zeroes: reads_zeroes
                && namespace.deallocate_features & deallocate::WRITE_ZEROES != 0,
            abilities: Abilities {
                compare: has(nvm_commands::COMPARE),
                write_zeroes: has(nvm_commands::WRITE_ZEROES),
                dataset_management: has(nvm_commands::DATASET_MANAGEMENT),
            },
            multipath: sysfs.multipath,
            model: text(&controller.model_number),
            serial: text(&controller.serial_number),
            firmware: text(&controller.firmware_revision),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_matches([' ', '\0']).to_owned()
}

/// Identify, by `ioctl`. A drive that refuses it is an error like one that cannot be reached.
fn identify(node: &OwnedFd, cns: u8, nsid: u32, page: &mut [u8]) -> io::Result<()> {
    let command = DriveCommand {
        queue: DriveQueue::Admin,
        opcode: AdminOpcode::Identify.code(),
        nsid,
        cdw2: [0; 2],
        cdw10: [cns.into(), 0, 0, 0, 0, 0],
    };
    match drive_admin(node, &command, page)?.status & 0x7ff {
        0 => Ok(()),
        status => Err(io::Error::other(format!("the drive answers with status {status:03x}h"))),
    }
}

/// What the kernel says of a namespace.
#[derive(Debug, Default)]
struct Sysfs {
    node: String,
    block: String,
    multipath: bool,
    command_set: u8,
    max_hw_bytes: Option<usize>,
    max_segments: Option<usize>,
}

impl Sysfs {
    fn of(path: &Path) -> Sysfs {
        let name = path.canonicalize().ok().and_then(|p| Some(p.file_name()?.to_str()?.to_owned()));
        let node = name.unwrap_or_default();
        // The folder a namespace is in: of the subsystem when it has several paths, else of the controller.
        let link = Path::new("/sys/class/nvme-generic").join(&node).join("device");
        let Ok(folder) = fs::canonicalize(link) else { return Sysfs { node, ..Sysfs::default() } };
        let names = fs::read_dir(&folder).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let block = names.into_iter().find(|name| is_block_device_of(name, &node)).unwrap_or_default();
        let device = folder.join(&block);
        let number =
            |file: &str| -> Option<usize> { fs::read_to_string(device.join(file)).ok()?.trim().parse().ok() };
        let parent = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        Sysfs {
            node,
            block,
            multipath: parent.starts_with("nvme-subsys"),
            command_set: number("csi").unwrap_or(0) as u8,
            max_hw_bytes: number("queue/max_hw_sectors_kb").map(|kb| kb << 10),
            max_segments: number("queue/max_segments"),
        }
    }

    /// The most bytes of one command: the drive's MDTS, the driver's limit, and as many segments as the queue takes.
    fn max_bytes(&self, mdts: u8) -> usize {
        let drive =
            if mdts == 0 { usize::MAX } else { SEGMENT.checked_shl(mdts.into()).unwrap_or(usize::MAX) };
        let segments = self.max_segments.map(|n| n.saturating_mul(SEGMENT));
        let kernel = match (self.max_hw_bytes, segments) {
            (Some(bytes), Some(segments)) => bytes.min(segments),
            (Some(bytes), None) | (None, Some(bytes)) => bytes,
            (None, None) => DEFAULT_MAX_BYTES,
        };
        (drive.min(kernel) / SEGMENT).max(1) * SEGMENT
    }
}

/// Whether, in one folder, `block` is the block device of the namespace whose character device is `node`. Both end with
/// the same number; the first one differs after a drive came back while its old node was still open. The device of a single
/// path (`nvmeXcZnY`) is not it.
fn is_block_device_of(block: &str, node: &str) -> bool {
    let number = |text: &str| -> Option<(u32, u32)> {
        let (x, y) = text.split_once('n')?;
        Some((x.parse().ok()?, y.parse().ok()?))
    };
    let block = block.strip_prefix("nvme").and_then(number);
    let node = node.strip_prefix("ng").and_then(number);
    matches!((block, node), (Some((_, a)), Some((_, b))) if a == b)
}

/// Opens a node for commands.
pub(super) fn open(path: &Path, read_only: bool) -> Result<OwnedFd, PassthroughError> {
    system::open_node(path, read_only).map_err(|error| PassthroughError::Open(path.into(), read_only, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_device_is_found_by_its_last_number() {
        assert!(is_block_device_of("nvme0n1", "ng0n1") && is_block_device_of("nvme0n2", "ng5n2"));
        assert!(!is_block_device_of("nvme0n1", "ng0n2") && !is_block_device_of("nvme0c0n1", "ng0n1"));
        assert!(!is_block_device_of("hwmon2", "ng0n1") && !is_block_device_of("ng0n1", "ng0n1"));
    }

    #[test]
    fn limits_are_the_least_of_drive_driver_and_segments() {
        let sysfs = Sysfs { max_hw_bytes: Some(512 << 10), max_segments: Some(127), ..Sysfs::default() };
        assert_eq!(sysfs.max_bytes(0), 127 * SEGMENT);
        assert_eq!(sysfs.max_bytes(5), 128 << 10);
        assert_eq!(Sysfs::default().max_bytes(0), DEFAULT_MAX_BYTES);
        assert_eq!(Sysfs::default().max_bytes(255), DEFAULT_MAX_BYTES, "nonsense of a drive is no limit");
        let tiny = Sysfs { max_segments: Some(0), ..Sysfs::default() };
        assert_eq!(tiny.max_bytes(0), SEGMENT);
    }

    #[test]
    fn a_namespace_is_read_from_what_the_drive_says() {
        let mut controller = IdentifyController::new_zeroed();
        controller.set_serial("S1");
        controller.set_model("Drive");
        controller.optional_nvm_commands = (nvm_commands::COMPARE | nvm_commands::DATASET_MANAGEMENT).into();
        controller.volatile_write_cache = volatile_write_cache::PRESENT;
        let mut namespace = IdentifyNamespace::new_zeroed();
        namespace.size = 1000.into();
        // Format 17: index bits 3:0 = 1, bits 6:5 = 1.
        namespace.formatted_lba_size = 1 | 1 << 5;
        namespace.lba_formats[17].lba_data_size = 12;
        namespace.lba_formats[17].metadata_size = 8.into();
        let mut limits = IdentifyNvmController::new_zeroed();
        limits.write_zeroes_size_limit = 4;
        let found = DriveNamespace::from_parts(3, &controller, &namespace, &limits, &Sysfs::default());
        assert_eq!((found.nsid, found.lba_size, found.lba_count, found.metadata_size), (3, 4096, 1000, 8));
        assert_eq!((found.serial.as_str(), found.model.as_str()), ("S1", "Drive"));
        assert!(found.volatile_write_cache && found.abilities.compare && !found.abilities.write_zeroes);
        assert_eq!(found.write_zeroes_blocks, 16);
    }
}
