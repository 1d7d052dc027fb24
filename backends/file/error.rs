//! Why a file or device cannot be a namespace, in words that say what to do.

use std::{fmt, io, path::PathBuf};

/// Why a file cannot be a namespace.
#[derive(Debug)]
pub enum FileError {
    /// It is not there and no size says how large to make it.
    Missing(PathBuf),
    /// It cannot be opened or made.
    Open(PathBuf, bool, io::Error),
    /// It is something else.
    NotAFile(PathBuf),
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
    /// The device's blocks are larger than the configured LBA size.
    LbaSize {
        /// The device.
        path: PathBuf,
        /// Its logical block size.
        device: u64,
        /// The LBA size configured.
        wanted: u32,
    },
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::Missing(path) => {
                write!(f, "{} does not exist: create it, or set `size` to have it made", path.display())
            }
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
