//! A namespace in this process's memory. Reads leave from where the data lies; nothing survives the process.

use crate::{Backend, BackendQueue, Geometry, compared};
use nvme::{Completion, IoCommand, IoOpcode, Lba};
use reactor::{Data, DataBuffer, LocalMemory, Reactor, SharedBytes, SharedMemory};
use std::{io, rc::Rc, sync::Arc};

/// Bytes made zero at once.
const PIECE: usize = 2 << 20;

/// A namespace in memory.
pub struct Memory {
    memory: Arc<SharedMemory>,
    geometry: Geometry,
}

impl Memory {
    /// One of `bytes` in blocks of `lba_size`. Memory is taken as it is written.
    pub fn new(bytes: u64, lba_size: u32) -> io::Result<Memory> {
        let len = usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Memory {
            memory: Arc::new(SharedMemory::new(len)?),
            geometry: Geometry {
                lba_size,
                lba_count: bytes / u64::from(lba_size),
                volatile_write_cache: false,
            },
        })
    }
}

impl Backend for Memory {
    type Queue = MemoryQueue;

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn queue(&self, reactor: &Reactor) -> io::Result<MemoryQueue> {
        Ok(MemoryQueue {
            memory: Rc::new(self.memory.clone()),
            geometry: self.geometry,
            reactor: reactor.clone(),
        })
    }
}

/// One reactor's queue.
pub struct MemoryQueue {
    memory: LocalMemory,
    geometry: Geometry,
    reactor: Reactor,
}

impl BackendQueue for MemoryQueue {
    async fn execute(&self, command: &IoCommand<'_>, data: Option<DataBuffer>) -> (Completion, Data) {
        let offset = self.geometry.offset(command.lba) as usize;
        match (command.opcode, data) {
            (IoOpcode::Read, _) => {
                let len = command.byte_len(self.geometry.lba_size) as u32;
                (Completion::OK, Data::Namespace(SharedBytes::new(&self.memory, offset, len)))
            }
            (IoOpcode::Write, Some(data)) => {
                self.memory.write(offset, data.filled());
                (Completion::OK, Data::None)
            }
            (IoOpcode::Compare, Some(data)) => {
                (compared(self.memory.equals(offset, data.filled())), Data::None)
            }
            (IoOpcode::WriteZeroes, _) => {
                (self.deallocate(command.lba, command.blocks.into()).await, Data::None)
            }
            _ => (Completion::OK, Data::None),
        }
    }

    /// Nothing long runs on a reactor: a large range goes in pieces, with others in between.
    async fn deallocate(&self, lba: Lba, blocks: u64) -> Completion {
        let mut offset = self.geometry.offset(lba) as usize;
        let end = offset + (blocks * u64::from(self.geometry.lba_size)) as usize;
        while offset < end {
            let piece = PIECE.min(end - offset);
            self.memory.zero(offset, piece);
            offset += piece;
            if offset < end {
                self.reactor.yield_now().await;
            }
        }
        Completion::OK
    }
}
