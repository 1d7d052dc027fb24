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

mod file;
pub mod in_use;
mod memory;
mod null;
mod passthrough;

pub use file::{File, FileError};
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

/// A medium, shared by all reactors.
pub trait Backend: Send + Sync + 'static {
    /// What one reactor uses of it.
    type Queue: BackendQueue;

    /// Its shape.
    fn geometry(&self) -> Geometry;
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
    /// Deallocates a range (Dataset Management): it takes no space any more and reads as zeroes.
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
}

impl Backend for Storage {
    type Queue = StorageQueue;

    fn geometry(&self) -> Geometry {
        match self {
            Storage::Memory(backend) => backend.geometry(),
            Storage::File(backend) => backend.geometry(),
            Storage::Null(backend) => backend.geometry(),
            Storage::Passthrough(backend) => backend.geometry(),
        }
    }

    fn queue(&self, reactor: &Reactor) -> io::Result<StorageQueue> {
        Ok(match self {
            Storage::Memory(backend) => StorageQueue::Memory(backend.queue(reactor)?),
            Storage::File(backend) => StorageQueue::File(backend.queue(reactor)?),
            Storage::Null(backend) => StorageQueue::Null(backend.queue(reactor)?),
            Storage::Passthrough(backend) => StorageQueue::Passthrough(backend.queue(reactor)?),
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
}

impl BackendQueue for StorageQueue {
    async fn execute(&self, command: &IoCommand<'_>, data: Option<DataBuffer>) -> (Completion, Data) {
        match self {
            StorageQueue::Memory(queue) => queue.execute(command, data).await,
            StorageQueue::File(queue) => queue.execute(command, data).await,
            StorageQueue::Null(queue) => queue.execute(command, data).await,
            StorageQueue::Passthrough(queue) => queue.execute(command, data).await,
        }
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Completion {
        match self {
            StorageQueue::Memory(queue) => queue.deallocate(lba, blocks).await,
            StorageQueue::File(queue) => queue.deallocate(lba, blocks).await,
            StorageQueue::Null(queue) => queue.deallocate(lba, blocks).await,
            StorageQueue::Passthrough(queue) => queue.deallocate(lba, blocks).await,
        }
    }
}
