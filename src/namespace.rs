//! A namespace: its identity, its storage, and what one reactor keeps of it.

use crate::config;
use backends::{
    Backend, Description, File, FileError, FileOptions, Geometry, Memory, Null, Passthrough,
    PassthroughError, Storage, StorageQueue,
};
use nvme::{Nsid, Uuid};
use reactor::Reactor;
use std::{
    cell::Cell,
    fmt, io,
    path::Path,
    rc::Rc,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// What was read and written, counted by one reactor.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct IoCells {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
}

/// What was read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoTotals {
    /// Read commands.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write commands.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

impl IoCells {
    fn add(cell: &AtomicU64, n: u64) {
        // One writer: a load and a store instead of a locked addition.
        cell.store(cell.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    /// Counts a read.
    pub fn read(&self, bytes: u64) {
        Self::add(&self.reads, 1);
        Self::add(&self.read_bytes, bytes);
    }

    /// Counts a write.
    pub fn write(&self, bytes: u64) {
        Self::add(&self.writes, 1);
        Self::add(&self.written_bytes, bytes);
    }
}

/// Why a namespace could not be opened.
#[derive(Debug)]
pub enum NamespaceError {
    /// Its memory could not be mapped.
    Memory(io::Error),
    /// Its file cannot serve.
    File(FileError),
    /// Its drive cannot serve.
    Drive(PassthroughError),
}

impl fmt::Display for NamespaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NamespaceError::Memory(error) => {
                write!(f, "its memory cannot be mapped: {error}; make `size` smaller")
            }
            NamespaceError::File(error) => error.fmt(f),
            NamespaceError::Drive(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NamespaceError {}

/// A namespace of a subsystem, shared by all reactors.
pub struct Namespace {
    /// Its identifier in the subsystem.
    pub nsid: Nsid,
    /// Its UUID, the same on every path and after every restart.
    pub uuid: Uuid,
    /// Its NGUID, likewise; zero is none.
    pub nguid: [u8; 16],
    /// Hosts may not write.
    pub read_only: bool,
    storage: Storage,
    cells: Mutex<Vec<Arc<IoCells>>>,
}

impl Namespace {
    /// Opens the storage of a configured namespace.
    pub fn open(config: &config::Namespace) -> Result<Namespace, NamespaceError> {
        use config::NamespaceBackend as B;
        let lba_size = config.lba_size.unwrap_or(config::DEFAULT_LBA_SIZE);
        let storage = match &config.backend {
            B::Memory { size_bytes } => {
                Storage::Memory(Memory::new(*size_bytes, lba_size).map_err(NamespaceError::Memory)?)
            }
            B::Passthrough { device, force } => Storage::Passthrough(
                Passthrough::open(device, config.read_only, *force).map_err(NamespaceError::Drive)?,
            ),
            B::Null { size_bytes } => Storage::Null(Null::new(*size_bytes, lba_size)),
            B::File { path, size_bytes, direct, force } => {
                let options = FileOptions {
                    size: *size_bytes,
                    lba_size: config.lba_size,
                    read_only: config.read_only,
                    direct: *direct,
                    force: *force,
                };
                let file = File::open(path, options).map_err(NamespaceError::File)?;
                say_what(config.nsid, path, &file);
                Storage::File(file)
            }
        };
        Ok(Namespace {
            nsid: Nsid(config.nsid),
            uuid: config.uuid,
            nguid: config.nguid.unwrap_or_default(),
            read_only: config.read_only,
            storage,
            cells: Mutex::default(),
        })
    }

    /// Its shape.
    pub fn geometry(&self) -> Geometry {
        self.storage.geometry()
    }

    /// What else is true of its medium.
    pub fn description(&self) -> Description {
        self.storage.description()
    }

    /// What was read and written on all reactors.
    pub fn totals(&self) -> IoTotals {
        let cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        cells.iter().fold(IoTotals::default(), |sum, cells| IoTotals {
            reads: sum.reads + cells.reads.load(Ordering::Relaxed),
            read_bytes: sum.read_bytes + cells.read_bytes.load(Ordering::Relaxed),
            writes: sum.writes + cells.writes.load(Ordering::Relaxed),
            written_bytes: sum.written_bytes + cells.written_bytes.load(Ordering::Relaxed),
        })
    }
}

/// Says what a path turned out to be: for a block device it is worth a second look.
fn say_what(nsid: u32, path: &Path, file: &File) {
    let geometry = file.geometry();
    let (path, how) = (path.display(), if file.is_direct() { "direct I/O" } else { "page cache" });
    let blocks = format!("{} blocks of {} bytes", geometry.lba_count, geometry.lba_size);
    let cache =
        if geometry.volatile_write_cache { "volatile write cache" } else { "no volatile write cache" };
    match file.device() {
        Some(device) => tracing::info!(nsid, "{path} is {device}: {blocks}, {how}, {cache}"),
        None => tracing::info!(nsid, "{path} is a file: {blocks}, {how}, {cache}"),
    }
    if let Some(note) = file.note() {
        tracing::warn!(nsid, "{note}");
    }
}

/// What one reactor keeps of a namespace.
pub struct LocalNamespace {
    geometry: Cell<Geometry>,
    /// Hosts may not write.
    pub read_only: bool,
    /// The way to its storage.
    pub queue: StorageQueue,
    /// Counted here.
    pub cells: Arc<IoCells>,
}

impl LocalNamespace {
    /// Its shape now, at hand for every command. The size of a block never changes, the number of blocks may.
    pub fn geometry(&self) -> Geometry {
        self.geometry.get()
    }
}

/// The namespaces of a subsystem as one reactor sees them: by NSID, without a search.
pub struct NamespaceTable {
    by_nsid: Box<[Option<Rc<LocalNamespace>>]>,
}

impl NamespaceTable {
    /// Opens a queue to each namespace.
    pub fn open(namespaces: &[Arc<Namespace>], reactor: &Reactor) -> io::Result<NamespaceTable> {
        let highest = namespaces.iter().map(|n| n.nsid.0).max().unwrap_or(0);
        let mut by_nsid: Box<[_]> = (0..=highest).map(|_| None).collect();
        for namespace in namespaces {
            let cells = Arc::new(IoCells::default());
            namespace.cells.lock().unwrap_or_else(PoisonError::into_inner).push(cells.clone());
            by_nsid[namespace.nsid.0 as usize] = Some(Rc::new(LocalNamespace {
                geometry: Cell::new(namespace.geometry()),
                read_only: namespace.read_only,
                queue: namespace.storage.queue(reactor)?,
                cells,
            }));
        }
        Ok(NamespaceTable { by_nsid })
    }

    /// A namespace by its identifier.
    pub fn get(&self, nsid: Nsid) -> Option<&Rc<LocalNamespace>> {
        self.by_nsid.get(nsid.0 as usize)?.as_ref()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Rc<LocalNamespace>> {
        self.by_nsid.iter().flatten()
    }
}
