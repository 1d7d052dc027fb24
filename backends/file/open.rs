//! Opening a file or block device: what it is, how it can be used, and what of it is true for hosts.

use super::{
    File, FileError,
    device::{self, Device},
};
use crate::{Description, Geometry, Topology};
use reactor::{PAGE, system, system::DirectIo};
use std::{
    fs, io,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    },
    path::Path,
    sync::Arc,
};

/// How a namespace wants its file.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileOptions {
    /// Bytes of the namespace; a missing file is made of that size. Without, the namespace is as large as the file.
    pub size: Option<u64>,
    /// Bytes of a logical block; without, what lies under it decides.
    pub lba_size: Option<u32>,
    /// Nothing is written.
    pub read_only: bool,
    /// Past the page cache (O_DIRECT) or through it; without, block devices past and files through it.
    ///
    /// A device behind the page cache would be cached twice (hosts have one) and its write errors would show only at the
    /// next Flush. With a file the page cache pays: it saves the file system's work for small and repeated I/O, and not
    /// every file system takes direct I/O.
    pub direct: Option<bool>,
    /// Take a block device that others use.
    pub force: bool,
}

impl File {
    /// Opens `path`.
    pub fn open(path: &Path, options: FileOptions) -> Result<File, FileError> {
        // Looked at before it is opened: opening a pipe would wait for its other end.
        match fs::metadata(path) {
            Ok(found) if found.is_file() => open_file(path, options),
            Ok(found) if found.file_type().is_block_device() => {
                open_device(path, &Device::of(found.rdev()), options)
            }
            Ok(found) if found.file_type().is_char_device() => {
                let beside = device::block_device_beside(path).unwrap_or_default();
                Err(FileError::Character(path.into(), beside))
            }
            Ok(_) => Err(FileError::NotAFile(path.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => match options.size {
                _ if path.starts_with("/dev") && !path.starts_with("/dev/shm") => {
                    Err(FileError::NoDevice(path.into()))
                }
                Some(size) if !options.read_only => {
                    create(path, size).map_err(|error| FileError::Open(path.into(), false, error))?;
                    open_file(path, options)
                }
                Some(_) => Err(FileError::Open(path.into(), true, error)),
                None => Err(FileError::Missing(path.into())),
            },
            Err(error) => Err(FileError::Open(path.into(), options.read_only, error)),
        }
    }
}

/// Makes a sparse file.
fn create(path: &Path, size: u64) -> io::Result<()> {
    let file = fs::OpenOptions::new().write(true).create_new(true).open(path)?;
    file.set_len(size)
}

fn open(path: &Path, read_only: bool, flags: i32) -> io::Result<fs::File> {
    fs::OpenOptions::new().read(true).write(!read_only).custom_flags(flags).open(path)
}

fn open_file(path: &Path, options: FileOptions) -> Result<File, FileError> {
    let failed = |error| FileError::Open(path.into(), options.read_only, error);
    let mut file = open(path, options.read_only, 0).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let block = metadata.blksize().next_power_of_two().clamp(512, PAGE as u64);
    let lba_size = options.lba_size.unwrap_or(block as u32);
    let mut note = None;
    let mut direct = false;
    if options.direct == Some(true) {
        match open_direct(&file, options.read_only, lba_size) {
            Ok(opened) => (file, direct) = (opened, true),
            Err(why) => note = Some(format!("{} goes through the page cache: {why}", path.display())),
        }
    }
    let granularity = metadata.blksize();
    let topology =
        Topology::new(lba_size, Bytes { write: granularity, deallocate: granularity, optimal: 0, atomic: 0 });
    let geometry = geometry(path, metadata.len(), lba_size, options, true)?;
    Ok(File {
        file: Arc::new(file),
        device: None,
        geometry,
        description: Description { topology: Some(topology), thin: true, ..Description::default() },
        pinned: options.size,
        direct,
        note,
    })
}

/// The same file for direct I/O in blocks of `lba_size`, or why that cannot be.
fn open_direct(file: &fs::File, read_only: bool, lba_size: u32) -> Result<fs::File, String> {
    // Through the open file and not by its path: it must be the same one.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let cannot = |error: io::Error| format!("direct I/O is not possible on its file system ({error})");
    let direct = open(Path::new(&path), read_only, libc::O_DIRECT).map_err(cannot)?;
    match system::direct_io(&direct) {
        DirectIo::Aligned { memory, offset } if offset <= lba_size && memory as usize <= PAGE => Ok(direct),
        DirectIo::Aligned { offset, .. } => Err(format!(
            "direct I/O on its file system needs blocks of {offset} bytes, those of the namespace have {lba_size}"
        )),
        DirectIo::Impossible => Err("direct I/O is not possible on its file system".to_owned()),
        DirectIo::Unknown => {
            let mut memory = vec![0; PAGE + lba_size as usize];
            let aligned = memory.as_ptr().align_offset(PAGE);
            let block = &mut memory[aligned..aligned + lba_size as usize];
            direct.read_at(block, lba_size.into()).map_err(cannot)?;
            Ok(direct)
        }
    }
}

fn open_device(path: &Path, device: &Device, options: FileOptions) -> Result<File, FileError> {
    let direct = options.direct.unwrap_or(true);
    // For itself alone (O_EXCL): file systems, swap and other devices ask for the same, so two of them exclude each other.
    let flags = if direct { libc::O_DIRECT } else { 0 } | if options.force { 0 } else { libc::O_EXCL };
    let file = open(path, options.read_only, flags).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => FileError::Busy(path.into(), device.users()),
        Some(libc::EACCES | libc::EROFS) if device.is_read_only() => FileError::ReadOnly(path.into()),
        _ => FileError::Open(path.into(), options.read_only, error),
    })?;
    // Some devices can be opened for writing all the same.
    if device.is_read_only() && !options.read_only {
        return Err(FileError::ReadOnly(path.into()));
    }
    let failed = |error| FileError::Open(path.into(), options.read_only, error);
    let logical = system::logical_block_size(&file).map_err(failed)?;
    let lba_size = options.lba_size.unwrap_or(logical.clamp(512, PAGE as u32));
    if lba_size < logical {
        return Err(FileError::LbaSize { path: path.into(), device: logical, wanted: lba_size });
    }
    let bytes = super::device_size(&file).map_err(failed)?;
    let topology = Bytes {
        write: device.write_granularity(),
        deallocate: device.deallocate_granularity(),
        optimal: device.optimal_write(),
        // Through the page cache a host could see half of a write.
        atomic: if direct { device.physical_block_size() } else { 0 },
    };
    let users = if options.force { device.users() } else { Vec::new() };
    let note = (!users.is_empty())
        .then(|| format!("{} is used though {} (`force = true`)", path.display(), users.join(", ")));
    let cached = !direct || device.has_volatile_cache();
    Ok(File {
        geometry: geometry(path, bytes, lba_size, options, cached)?,
        description: Description {
            topology: Some(Topology::new(lba_size, topology)),
            deallocated_reads_zeroes: device.writes_zeroes(),
            rotational: device.is_rotational(),
            thin: false,
        },
        file: Arc::new(file),
        device: Some(match device.disk() {
            Some(disk) => format!("{}, a partition of {disk}", device.name),
            None => device.name.clone(),
        }),
        pinned: options.size,
        direct,
        note,
    })
}

/// The namespace's shape on a medium of `have` bytes.
fn geometry(
    path: &Path,
    have: u64,
    lba_size: u32,
    options: FileOptions,
    cached: bool,
) -> Result<Geometry, FileError> {
    let bytes = options.size.unwrap_or(have);
    if bytes > have {
        return Err(FileError::Short { path: path.into(), have, wanted: bytes });
    }
    let lba_count = bytes / u64::from(lba_size);
    if lba_count == 0 {
        return Err(FileError::Empty(path.into(), lba_size));
    }
    Ok(Geometry { lba_size, lba_count, volatile_write_cache: cached && !options.read_only })
}

/// Granularities of a medium in bytes; 0 where it does not say.
#[derive(Clone, Copy)]
struct Bytes {
    write: u64,
    deallocate: u64,
    optimal: u64,
    atomic: u64,
}

impl Topology {
    fn new(lba_size: u32, bytes: Bytes) -> Topology {
        // Whole blocks that 16 bits can tell; anything else is as good as not known.
        let blocks = |bytes: u64| {
            let blocks = bytes / u64::from(lba_size);
            if (1..=1 << 16).contains(&blocks) { blocks as u32 } else { 1 }
        };
        let write = blocks(bytes.write);
        // A multiple of the granularity, as it has to be.
        let optimal = blocks(bytes.optimal);
        Topology {
            write_granularity: write,
            optimal_write: if optimal.is_multiple_of(write) { optimal } else { write },
            deallocate_granularity: blocks(bytes.deallocate),
            atomic_write: blocks(bytes.atomic),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topology_is_in_blocks_and_consistent() {
        let of = |lba_size, write, optimal| {
            let bytes = Bytes { write, optimal, deallocate: 4096, atomic: 512 };
            Topology::new(lba_size, bytes)
        };
        assert_eq!(
            of(512, 4096, 1 << 20),
            Topology {
                write_granularity: 8,
                optimal_write: 2048,
                deallocate_granularity: 8,
                atomic_write: 1
            }
        );
        assert_eq!(of(4096, 4096, 0).optimal_write, 1);
        assert_eq!(of(512, 4096, 0).optimal_write, 8, "without its own it is the granularity");
        assert_eq!(of(512, 4096, 12 * 512).optimal_write, 8, "12 is no multiple of 8");
        assert_eq!(of(512, 0, 0).write_granularity, 1);
        assert_eq!(of(512, 0, 1 << 30).optimal_write, 1, "more than the field can hold");
    }

    #[test]
    fn direct_io_is_used_where_it_works_and_explained_where_not() {
        let path = std::env::temp_dir().join(format!("weft-direct-{}.img", std::process::id()));
        let _ = fs::remove_file(&path);
        let options = FileOptions { size: Some(1 << 20), direct: Some(true), ..FileOptions::default() };
        for lba_size in [512, 4096] {
            let file = File::open(&path, FileOptions { lba_size: Some(lba_size), ..options }).unwrap();
            assert_eq!(file.note().is_none(), file.is_direct(), "{:?}", file.note());
            assert!(file.geometry.volatile_write_cache, "file system and disk have caches in either case");
        }
        assert!(!File::open(&path, FileOptions { direct: None, ..options }).unwrap().is_direct());
        fs::remove_file(&path).unwrap();
    }
}
