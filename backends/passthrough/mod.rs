//! A namespace that is a namespace of an NVMe drive: each command goes on to the drive as it is.
//!
//! The way is the namespace's generic character device (`/dev/ngXnY`) and `IORING_OP_URING_CMD` on the reactor's own ring: no
//! block layer, no page cache, the drive's own status back. Commands larger than the drive or the kernel takes are split;
//! those that the drive lacks are done with reads and writes. What cannot be given on truthfully (metadata, zones) is refused when
//! the namespace is opened, with the reason.

mod answer;
mod node;
mod probe;
mod queue;

pub use probe::{Abilities, DriveNamespace};

use crate::{Backend, Description, Extent, Geometry, users_of};
use node::{Node, Shared};
use queue::DriveQueuePair;
use reactor::Reactor;
use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Why a drive's namespace cannot be exported.
#[derive(Debug)]
pub enum PassthroughError {
    /// The node cannot be opened.
    Open(PathBuf, bool, io::Error),
    /// It is no node for commands.
    NotADrive(PathBuf, String),
    /// The drive does not say what it is.
    Identify(PathBuf, &'static str, io::Error),
    /// It has what weft cannot give on.
    Unusable(PathBuf, String),
    /// Others on this machine use it.
    InUse(PathBuf, Vec<String>),
}

impl fmt::Display for PassthroughError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PassthroughError::Open(path, read_only, error) => {
                let path = path.display();
                match error.kind() {
                    io::ErrorKind::NotFound => {
                        write!(f, "{path} does not exist: `weft drives` lists the drives of this machine")
                    }
                    io::ErrorKind::PermissionDenied => write!(
                        f,
                        "cannot open {path}{}: {error}; run weft as root or with CAP_SYS_ADMIN, or give its user the device \
                         (a udev rule with GROUP and MODE=\"0660\")",
                        if *read_only { "" } else { " for writing" }
                    ),
                    _ => write!(f, "cannot open {path}: {error}"),
                }
            }
            PassthroughError::NotADrive(path, why) => write!(f, "{} {why}", path.display()),
            PassthroughError::Identify(path, what, error) => write!(
                f,
                "{}: cannot ask the drive for {what}: {error} (commands to a drive need CAP_SYS_ADMIN, or Linux 6.2 and \
                 read and write access to the device)",
                path.display()
            ),
            PassthroughError::Unusable(path, why) => write!(f, "{}: {why}", path.display()),
            PassthroughError::InUse(path, users) => write!(
                f,
                "{} is in use on this machine: {}; end that first, or set `force = true` if you know that nothing is written",
                path.display(),
                users.join(", ")
            ),
        }
    }
}

impl std::error::Error for PassthroughError {}

/// A namespace of a drive.
pub struct Passthrough {
    drive: DriveNamespace,
    shared: Arc<Shared>,
    read_only: bool,
}

impl Passthrough {
    /// Opens the namespace behind `path` (`/dev/ngXnY`); with `force`, even if others on this machine use it.
    pub fn open(path: &Path, read_only: bool, force: bool) -> Result<Passthrough, PassthroughError> {
        check_name(path)?;
        let node = probe::open(path, read_only)?;
        let drive = DriveNamespace::probe(path, &node)?;
        if let Some(why) = drive.obstacle() {
            return Err(PassthroughError::Unusable(path.into(), why));
        }
        let users = users_of(&drive.block_device);
        if !users.is_empty() && !force {
            return Err(PassthroughError::InUse(path.into(), users));
        }
        let shared = Arc::new(Shared::new(node, drive.multipath));
        Ok(Passthrough { drive, shared, read_only })
    }

    /// What the drive behind `path` says of itself, without taking it into use.
    pub fn look(path: &Path) -> Result<DriveNamespace, PassthroughError> {
        check_name(path)?;
        DriveNamespace::probe(path, &probe::open(path, true)?)
    }

    /// The drive by its serial number and namespace, wherever it is now.
    fn find_again(&self) -> Option<probe::Size> {
        let nodes = std::fs::read_dir("/sys/class/nvme-generic").ok()?;
        for name in nodes.flatten().map(|entry| entry.file_name()) {
            let path = Path::new("/dev").join(name);
            let Ok(found) = Passthrough::look(&path) else { continue };
            if (&found.serial, &found.model, found.nsid)
                != (&self.drive.serial, &self.drive.model, self.drive.nsid)
            {
                continue;
            }
            let node = probe::open(&path, self.read_only).ok()?;
            let size = DriveNamespace::size(&node, found.nsid).ok()?;
            self.shared.replace(node);
            tracing::info!("drive {} ({}) is back as {}", found.serial, found.model, path.display());
            return Some(size);
        }
        None
    }

    /// What the drive says of it.
    pub fn drive(&self) -> &DriveNamespace {
        &self.drive
    }
}

/// The nodes of a drive look alike; only one of them takes commands on the ring.
fn check_name(path: &Path) -> Result<(), PassthroughError> {
    let real = path.canonicalize().map_err(|error| PassthroughError::Open(path.into(), true, error))?;
    let name = real.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let wrong = |why: String| Err(PassthroughError::NotADrive(path.into(), why));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let namespace_of = |text: &str| text.split_once('n').is_some_and(|(x, y)| digits(x) && digits(y));
    if name.strip_prefix("ng").is_some_and(namespace_of) {
        return Ok(());
    }
    match name.strip_prefix("nvme") {
        Some(rest) if namespace_of(rest) => wrong(format!(
            "is the drive's block device: name its character device /dev/ng{rest}, or use backend \"file\" for the block device"
        )),
        Some(rest) if rest.contains('p') => wrong(
            "is a partition: commands go to whole namespaces; use backend \"file\" for a partition".into(),
        ),
        Some(rest) if digits(rest) => {
            wrong(format!("is a controller: name one of its namespaces, such as /dev/ng{rest}n1"))
        }
        _ => wrong(
            "is not the character device of an NVMe namespace: name /dev/ngXnY (`weft drives` lists them)"
                .into(),
        ),
    }
}

impl DriveNamespace {
    /// Why weft cannot export it as it is.
    pub fn obstacle(&self) -> Option<String> {
        let drive = self;
        if drive.command_set != 0 {
            return Some(format!(
                "its I/O command set is {:02x}h (zoned namespaces are 02h); only the NVM command set can be exported",
                drive.command_set
            ));
        }
        if drive.metadata_size != 0 {
            return Some(format!(
                "it is formatted with {} bytes of metadata in each block, which Linux hosts cannot use over TCP; format it without \
             (`nvme format --lbaf=...`)",
                drive.metadata_size
            ));
        }
        if !(512..=65536).contains(&drive.lba_size)
            || !drive.lba_size.is_power_of_two()
            || drive.lba_count == 0
        {
            return Some(format!(
                "{} blocks of {} bytes are no size to export",
                drive.lba_count, drive.lba_size
            ));
        }
        if drive.max_bytes < drive.lba_size as usize {
            return Some("the kernel takes no command as large as one of its blocks".into());
        }
        None
    }

    /// What weft makes of it, in a line.
    pub fn summary(&self) -> String {
        let Abilities { compare, write_zeroes, dataset_management } = self.abilities;
        let lacking: Vec<&str> = [
            (compare, "Compare"),
            (write_zeroes, "Write Zeroes"),
            (dataset_management, "Dataset Management"),
        ]
        .into_iter()
        .filter_map(|(has, name)| (!has).then_some(name))
        .collect();
        format!(
            "can be exported; {} KiB in one command{}{}",
            self.max_bytes >> 10,
            if self.volatile_write_cache { ", volatile write cache" } else { "" },
            if lacking.is_empty() {
                String::new()
            } else {
                format!("; done by weft: {}", lacking.join(", "))
            }
        )
    }
}

impl Backend for Passthrough {
    type Queue = PassthroughQueue;

    fn geometry(&self) -> Geometry {
        Geometry {
            lba_size: self.drive.lba_size,
            lba_count: self.drive.lba_count,
            volatile_write_cache: self.drive.volatile_write_cache && !self.read_only,
        }
    }

    fn description(&self) -> Description {
        Description {
            topology: None,
            deallocated_reads_zeroes: self.drive.deallocated_reads_zeroes,
            thin: false,
            rotational: false,
        }
    }

    /// Asks the drive again. One that went is looked for among the drives of this machine, under whatever name it came back,
    /// and taken up again; one that was formatted to other blocks under us is no use to hosts that know the old ones.
    fn measure(&self) -> io::Result<Option<Extent>> {
        let now = match DriveNamespace::size(&self.shared.current(), self.drive.nsid) {
            Ok(now) => now,
            Err(error) => self.find_again().ok_or(error)?,
        };
        let same = now.lba_size == self.drive.lba_size && now.metadata_size == 0;
        let bytes = if same { now.lba_count.saturating_mul(now.lba_size.into()) } else { 0 };
        Ok(Some(Extent { bytes, used: bytes }))
    }

    fn queue(&self, reactor: &Reactor) -> io::Result<PassthroughQueue> {
        DriveQueuePair::new(Node::new(&self.shared, reactor)?, &self.drive, reactor)
    }
}

/// One reactor's way to a drive.
pub type PassthroughQueue = DriveQueuePair<Node>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_node_is_answered_with_the_right_one() {
        let dir = std::env::temp_dir().join(format!("weft-nodes-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let said = |name: &str| {
            let path = dir.join(name);
            std::fs::write(&path, b"").unwrap();
            check_name(&path).map_err(|e| e.to_string())
        };
        assert!(said("ng0n1").is_ok());
        assert!(said("nvme3n12").unwrap_err().contains("/dev/ng3n12"));
        assert!(said("nvme0n1p2").unwrap_err().contains("partition"));
        assert!(said("nvme7").unwrap_err().contains("/dev/ng7n1"));
        assert!(said("sda").unwrap_err().contains("weft drives"));
        assert!(said("ngxn1").is_err() && said("ng0").is_err() && said("ng0n1p1").is_err());
        let missing = check_name(&dir.join("ng9n9")).unwrap_err().to_string();
        assert!(missing.contains("does not exist"), "{missing}");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_cannot_be_given_on_is_refused_with_the_reason() {
        let good = DriveNamespace {
            node: "ng0n1".into(),
            block_device: "nvme0n1".into(),
            nsid: 1,
            lba_size: 4096,
            lba_count: 1000,
            metadata_size: 0,
            protection: 0,
            command_set: 0,
            max_bytes: 128 << 10,
            write_zeroes_blocks: 0,
            deallocate_blocks: 0,
            volatile_write_cache: true,
            deallocated_reads_zeroes: true,
            abilities: Abilities::default(),
            multipath: false,
            model: String::new(),
            serial: String::new(),
            firmware: String::new(),
        };
        assert_eq!(good.obstacle(), None);
        assert!(DriveNamespace { command_set: 2, ..good.clone() }.obstacle().unwrap().contains("zoned"));
        assert!(DriveNamespace { metadata_size: 8, ..good.clone() }.obstacle().unwrap().contains("metadata"));
        assert!(DriveNamespace { lba_count: 0, ..good.clone() }.obstacle().is_some());
        assert!(DriveNamespace { lba_size: 0, ..good }.obstacle().is_some());
    }
}
