//! Why a file or device cannot be a namespace, in words that say what to do.

use std::{fmt, io, path::PathBuf};

/// Why a file cannot be a namespace.
#[derive(Debug)]
pub enum FileError {
    /// It is not there and no size says how large to make it.
    Missing(PathBuf),
    /// It is not there, and where devices are no file is made.
    NoDevice(PathBuf),
    /// It cannot be opened or made.
    Open(PathBuf, bool, io::Error),
    /// It is something else.
    NotAFile(PathBuf),
    /// It is a character device; a block device that was probably meant.
    Character(PathBuf, Option<String>),
    /// It is a device that cannot be written.
    ReadOnly(PathBuf),
    /// Others use the device: who.
    Busy(PathBuf, Vec<String>),
    /// It is shorter than the configuration says.
    Short {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        have: u64,
        /// The bytes configured.
        wanted: u64,
    },
    /// It has not one logical block.
    Empty(PathBuf, u32),
    /// The device's blocks are larger than the LBA size.
    LbaSize {
        /// The device.
        path: PathBuf,
        /// Its logical block size.
        device: u32,
        /// The LBA size.
        wanted: u32,
    },
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::Missing(path) => {
                write!(f, "{} does not exist: create it, or set `size` to have it made", path.display())
            }
            FileError::NoDevice(path) => write!(
                f,
                "{} does not exist, and no file is made where devices are: correct `path` (see `lsblk`)",
                path.display()
            ),
            FileError::Open(path, read_only, error) => {
                let (how, hint) = if *read_only {
                    ("", "")
                } else {
                    (" for writing", ", or set `read_only = true` for the namespace")
                };
                write!(f, "cannot open {}{how}: {error}; make it accessible{hint}", path.display())
            }
            FileError::NotAFile(path) => {
                write!(f, "{} is neither a file nor a block device: name one of them", path.display())
            }
            FileError::Character(path, Some(block)) => write!(
                f,
                "{} is a character device, neither a file nor a block device: name the block device, such as {block}",
                path.display()
            ),
            FileError::Character(path, None) => write!(
                f,
                "{} is a character device, neither a file nor a block device: name one of them",
                path.display()
            ),
            FileError::ReadOnly(path) => write!(
                f,
                "the device {} cannot be written: set `read_only = true` for the namespace, or make the device writable \
                 (`blockdev --setrw`)",
                path.display()
            ),
            FileError::Busy(path, users) => {
                let who = if users.is_empty() {
                    "another program, or another namespace, has it for itself".to_owned()
                } else {
                    users.join(", ")
                };
                write!(
                    f,
                    "{} is in use: {who}; end that use, or set `force = true` for the namespace if it is meant",
                    path.display()
                )
            }
            FileError::Short { path, have, wanted } => write!(
                f,
                "{} has {have} bytes, `size` says {wanted}: enlarge it (`truncate -s {wanted}`) or correct `size`",
                path.display()
            ),
            FileError::Empty(path, lba_size) => {
                write!(f, "{} is smaller than one logical block of {lba_size} bytes", path.display())
            }
            FileError::LbaSize { path, device, wanted } => write!(
                f,
                "{} has logical blocks of {device} bytes: `lba_size` {wanted} is too small",
                path.display()
            ),
        }
    }
}

impl std::error::Error for FileError {}
