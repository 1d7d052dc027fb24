//! A namespace: its identity, its storage, and what one reactor keeps of it.

use crate::{
    config,
    io::{
        fused,
        range_lock::{LocalLocks, Mark, RangeLocks},
    },
};
use backends::{
    Backend, Description, Faulty, File, FileError, FileOptions, Geometry, Memory, Null, Passthrough,
    PassthroughError, Storage, StorageQueue,
};
use nvme::{Nsid, Status, Uuid};
use reactor::{Reactor, Reserve};
use std::{
    cell::Cell,
    fmt, io,
    path::Path,
    rc::Rc,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
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
    /// Its configuration says that hosts may not write, and no host can change that.
    pub read_only: bool,
    /// What holds its blocks, for people.
    pub medium: String,
    storage: Storage,
    size: Size,
    protected: Arc<AtomicBool>,
    locks: Arc<RangeLocks>,
    cells: Mutex<Vec<Arc<IoCells>>>,
}

/// How large a namespace is, in logical blocks. It never shrinks.
struct Size {
    /// What hosts are told.
    advertised: AtomicU64,
    /// What commands may name: as much, or soon.
    admitted: AtomicU64,
    /// What the medium has of it.
    present: AtomicU64,
    /// What takes space.
    used: AtomicU64,
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
        let storage = match &config.faults {
            Some(faults) => {
                tracing::warn!(nsid = config.nsid, "this namespace misbehaves on purpose: it has `faults`");
                Storage::Faulty(Faulty::new(storage, faults.clone()))
            }
            None => storage,
        };
        let blocks = storage.geometry().lba_count;
        let medium = match &config.backend {
            B::File { path, .. } => path.display().to_string(),
            B::Memory { .. } => "memory".to_owned(),
            B::Null { .. } => "null".to_owned(),
            B::Passthrough { device, .. } => device.display().to_string(),
        };
        let namespace = Namespace {
            nsid: Nsid(config.nsid),
            uuid: config.uuid,
            nguid: config.nguid.unwrap_or_default(),
            read_only: config.read_only,
            medium,
            storage,
            size: Size {
                advertised: AtomicU64::new(blocks),
                admitted: AtomicU64::new(blocks),
                present: AtomicU64::new(blocks),
                used: AtomicU64::new(blocks),
            },
            protected: Arc::new(AtomicBool::new(config.read_only)),
            locks: Arc::default(),
            cells: Mutex::default(),
        };
        // For the space it takes; what else there may be to see of its size is seen soon enough.
        let _ = namespace.measure();
        Ok(namespace)
    }

    /// Its shape, as hosts are told.
    pub fn geometry(&self) -> Geometry {
        Geometry { lba_count: self.size.advertised.load(Ordering::Acquire), ..self.storage.geometry() }
    }

    /// Whether hosts may not write, for whatever reason.
    pub fn is_protected(&self) -> bool {
        self.protected.load(Ordering::Acquire)
    }

    /// Write protects it or no longer does. For what is in flight see [`crate::features`].
    pub fn protect(&self, protected: bool) {
        self.protected.store(protected, Ordering::Release);
    }

    /// Blocks that take space.
    pub fn used_blocks(&self) -> u64 {
        let all = self.geometry().lba_count;
        if self.description().thin { self.size.used.load(Ordering::Relaxed).min(all) } else { all }
    }

    /// Whether its medium can become larger or smaller.
    pub fn can_change(&self) -> bool {
        !matches!(self.storage.measure(), Ok(None))
    }

    /// Blocks its medium has now. It may take its time: not for a reactor.
    pub fn measure(&self) -> io::Result<u64> {
        let geometry = self.storage.geometry();
        let lba_size = u64::from(geometry.lba_size);
        let Some(extent) = self.storage.measure()? else { return Ok(geometry.lba_count) };
        self.size.used.store(extent.used.div_ceil(lba_size), Ordering::Relaxed);
        Ok(extent.bytes / lba_size)
    }

    /// Its medium has so many blocks: the reactors that open it from now on go by that. The blocks commands may name.
    pub fn admit(&self, present: u64) -> u64 {
        self.size.present.store(present, Ordering::Release);
        self.size.admitted.fetch_max(present, Ordering::AcqRel).max(present)
    }

    /// Hosts are told of so many blocks from now on.
    pub fn advertise(&self, lba_count: u64) {
        self.size.advertised.store(lba_count, Ordering::Release);
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
    present: Cell<u64>,
    protected: Arc<AtomicBool>,
    /// The way to its storage.
    pub queue: StorageQueue,
    /// Who may write where while fused pairs are at work.
    pub locks: Rc<LocalLocks>,
    /// Counted here.
    pub cells: Arc<IoCells>,
}

impl LocalNamespace {
    /// Its shape now, at hand for every command. The size of a block never changes, the number of blocks may.
    pub fn geometry(&self) -> Geometry {
        self.geometry.get()
    }

    /// Fails when hosts may not write.
    pub fn check_writable(&self) -> Result<(), Status> {
        // Relaxed: who changes it has all writes wait meanwhile, and that orders them.
        if self.protected.load(Ordering::Relaxed) {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.dnr());
        }
        Ok(())
    }

    /// A write that was admitted and is counted in now: it may have been write protected meanwhile.
    pub fn confirm(&self, mark: Mark) -> Result<Mark, Status> {
        self.check_writable().inspect_err(|_| self.locks.leave(mark))?;
        Ok(mark)
    }

    /// Counts a write in, at once or when fused pairs before it are done; unless it may not be done any more.
    pub async fn enter(&self, first: u64, blocks: u64) -> Result<Mark, Status> {
        self.confirm(self.locks.entered(first, blocks).await)
    }

    /// Its size has changed: see [`crate::watch`].
    pub fn resize(&self, lba_count: u64, present: u64) {
        self.geometry.set(Geometry { lba_count, ..self.geometry.get() });
        self.present.set(present);
    }

    /// Checks a range: `is_within` says whether it ends within so many blocks. It has to lie in the namespace, and in what is
    /// left of its medium: nothing is made up for the rest, and no file is made longer by a write.
    pub fn check_range(&self, reads: bool, is_within: impl Fn(u64) -> bool) -> Result<(), Status> {
        if !is_within(self.geometry.get().lba_count) {
            return Err(Status::LBA_OUT_OF_RANGE.dnr());
        }
        match self.present.get() {
            present if is_within(present) => Ok(()),
            0 => Err(Status::INTERNAL_PATH_ERROR),
            _ if reads => Err(Status::UNRECOVERED_READ_ERROR.dnr()),
            _ => Err(Status::WRITE_FAULT.dnr()),
        }
    }
}

/// The namespaces of a subsystem as one reactor sees them: by NSID, without a search.
pub struct NamespaceTable {
    by_nsid: Box<[Option<Rc<LocalNamespace>>]>,
    /// Buffers for the halves of fused pairs when all others are taken.
    pub fused: [Reserve; 2],
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
                geometry: Cell::new(Geometry {
                    lba_count: namespace.size.admitted.load(Ordering::Acquire),
                    ..namespace.geometry()
                }),
                present: Cell::new(namespace.size.present.load(Ordering::Acquire)),
                protected: namespace.protected.clone(),
                queue: namespace.storage.queue(reactor)?,
                locks: namespace.locks.local(reactor),
                cells,
            }));
        }
        let fused = [reactor.reserve(fused::MAX_BYTES)?, reactor.reserve(fused::MAX_BYTES)?];
        Ok(NamespaceTable { by_nsid, fused })
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
