//! Where a namespace's data lives: the traits every backend implements, and the backends.
//!
//! A backend knows its medium and nothing of hosts, controllers or transports. The pipeline has checked a command before a
//! backend sees it: the opcode is one of those below, the range lies inside the namespace, the data has its length.
//!
//! # Contract
//!
//! * [`BackendQueue::execute`] never blocks the reactor's thread.
//! * Data for a write comes in a [`DataBuffer`] of exactly the command's length; a read returns exactly that many bytes or a
//!   status and no data.
//! * What was answered after a Flush or with FUA is on stable storage. A backend whose writes are volatile until then says so in
//!   its [`Geometry`].
//! * A command that needs a buffer asks for it before it holds anything else, so that buffers cannot deadlock.

#![forbid(unsafe_code)]

mod faulty;
mod file;
mod memory;
mod null;
mod passthrough;

pub use faulty::{Faults, Faulty};
pub use file::{File, FileError, FileOptions, partitions_of, users_of};
pub use memory::Memory;
pub use null::Null;
pub use passthrough::{Abilities, DriveNamespace, Passthrough, PassthroughError, PassthroughQueue};

use nvme::{Completion, IoCommand, Lba, Status};
use reactor::{Data, DataBuffer, Reactor};
use std::{future::Future, io};

/// The shape of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a logical block, a power of two.
    pub lba_size: u32,
    /// Logical blocks.
    pub lba_count: u64,
    /// Writes are volatile until flushed.
    pub volatile_write_cache: bool,
}

impl Geometry {
    /// The byte at which a logical block begins.
    pub fn offset(&self, lba: Lba) -> u64 {
        lba.0 * u64::from(self.lba_size)
    }
}

/// What else is true of a medium, for hosts that ask. It does not change while the medium is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// What its accesses should look like, where it says so.
    pub topology: Option<Topology>,
    /// Deallocated blocks read as zeroes. Where they do not, nothing is deallocated at all: it would be a surprise and no
    /// gain.
    pub deallocated_reads_zeroes: bool,
    /// Blocks take space only once they are written, so that space can run out.
    pub thin: bool,
    /// Its media rotate.
    pub rotational: bool,
}

impl Default for Description {
    fn default() -> Description {
        Description { topology: None, deallocated_reads_zeroes: true, thin: false, rotational: false }
    }
}

/// The accesses a medium likes, in logical blocks: each at least one, and aligned to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Smaller writes cost more than their share.
    pub write_granularity: u32,
    /// Writes of this size are the fastest; a multiple of the granularity.
    pub optimal_write: u32,
    /// Smaller ranges are not deallocated.
    pub deallocate_granularity: u32,
    /// Aligned writes of this size happen whole or not at all, whatever becomes of the power.
    pub atomic_write: u32,
}

/// How much of a medium there is just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes that can be read and written.
    pub bytes: u64,
    /// Bytes that take space.
    pub used: u64,
}

/// A medium, shared by all reactors.
pub trait Backend: Send + Sync + 'static {
    /// What one reactor uses of it.
    type Queue: BackendQueue;

    /// Its shape when it was opened.
    fn geometry(&self) -> Geometry;
    /// What else is true of it.
    fn description(&self) -> Description {
        Description::default()
    }
    /// How much of it there is now; nothing for a medium whose size cannot change. It may take its time: not for a reactor.
    fn measure(&self) -> io::Result<Option<Extent>> {
        Ok(None)
    }
    /// A queue for one reactor.
    fn queue(&self, reactor: &Reactor) -> io::Result<Self::Queue>;
}

/// What a Compare answers.
fn compared(equal: bool) -> Completion {
    if equal { Completion::OK } else { Status::COMPARE_FAILURE.dnr().into() }
}

/// One reactor's way to a medium.
pub trait BackendQueue: 'static {
    /// Executes Read, Write, Flush, Compare or Write Zeroes.
    fn execute(
        &self,
        command: &IoCommand<'_>,
        data: Option<DataBuffer>,
    ) -> impl Future<Output = (Completion, Data)>;
    /// Deallocates a range (Dataset Management): it takes no space any more and reads as the medium's [`Description`] says.
    fn deallocate(&self, lba: Lba, blocks: u64) -> impl Future<Output = Completion>;
}

/// Any backend. An enum and not a trait object: the choice is made once per command.
pub enum Storage {
    /// Memory of this process.
    Memory(Memory),
    /// A file or block device.
    File(File),
    /// Nothing: reads zeroes, forgets writes.
    Null(Null),
    /// A namespace of a drive.
    Passthrough(Passthrough),
    /// One of the others, misbehaving on purpose: for tests.
    Faulty(Faulty),
}

impl Backend for Storage {
    type Queue = StorageQueue;

    fn geometry(&self) -> Geometry {
        match self {
            Storage::Memory(backend) => backend.geometry(),
            Storage::File(backend) => backend.geometry(),
            Storage::Null(backend) => backend.geometry(),
            Storage::Passthrough(backend) => backend.geometry(),
            Storage::Faulty(backend) => backend.geometry(),
        }
    }

    fn description(&self) -> Description {
        match self {
            Storage::Memory(backend) => backend.description(),
            Storage::Passthrough(backend) => backend.description(),
            Storage::File(backend) => backend.description(),
            Storage::Null(backend) => backend.description(),
            Storage::Faulty(backend) => backend.description(),
        }
    }

    fn measure(&self) -> io::Result<Option<Extent>> {
        match self {
            Storage::Memory(backend) => backend.measure(),
            Storage::Passthrough(backend) => backend.measure(),
            Storage::File(backend) => backend.measure(),
            Storage::Null(backend) => backend.measure(),
            Storage::Faulty(backend) => backend.measure(),
        }
    }

    fn queue(&self, reactor: &Reactor) -> io::Result<StorageQueue> {
        Ok(match self {
            Storage::Memory(backend) => StorageQueue::Memory(backend.queue(reactor)?),
            Storage::File(backend) => StorageQueue::File(backend.queue(reactor)?),
            Storage::Null(backend) => StorageQueue::Null(backend.queue(reactor)?),
            Storage::Passthrough(backend) => StorageQueue::Passthrough(backend.queue(reactor)?),
            Storage::Faulty(backend) => StorageQueue::Faulty(backend.queue(reactor)?),
        })
    }
}

/// A queue of any backend.
pub enum StorageQueue {
    /// See [`Memory`].
    Memory(memory::MemoryQueue),
    /// See [`File`].
    File(file::FileQueue),
    /// See [`Null`].
    Null(null::NullQueue),
    /// See [`Passthrough`].
    Passthrough(PassthroughQueue),
    /// See [`Faulty`].
    Faulty(faulty::FaultyQueue),
}

impl BackendQueue for StorageQueue {
    async fn execute(&self, command: &IoCommand<'_>, data: Option<DataBuffer>) -> (Completion, Data) {
        match self {
            StorageQueue::Memory(queue) => queue.execute(command, data).await,
            StorageQueue::File(queue) => queue.execute(command, data).await,
            StorageQueue::Null(queue) => queue.execute(command, data).await,
            StorageQueue::Passthrough(queue) => queue.execute(command, data).await,
            StorageQueue::Faulty(queue) => queue.execute(command, data).await,
        }
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Completion {
        match self {
            StorageQueue::Memory(queue) => queue.deallocate(lba, blocks).await,
            StorageQueue::File(queue) => queue.deallocate(lba, blocks).await,
            StorageQueue::Null(queue) => queue.deallocate(lba, blocks).await,
            StorageQueue::Passthrough(queue) => queue.deallocate(lba, blocks).await,
            StorageQueue::Faulty(queue) => queue.deallocate(lba, blocks).await,
        }
    }
}
