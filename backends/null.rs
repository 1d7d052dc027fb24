//! A namespace without a medium, for measuring everything else: reads are zeroes, writes are forgotten.

use crate::{Backend, BackendQueue, Geometry, compared};
use nvme::{Completion, IoCommand, IoOpcode, Lba};
use reactor::{Data, DataBuffer, Reactor};
use std::io;

/// A namespace without a medium.
pub struct Null {
    geometry: Geometry,
}

impl Null {
    /// One of `bytes` in blocks of `lba_size`.
    pub fn new(bytes: u64, lba_size: u32) -> Null {
        Null {
            geometry: Geometry {
                lba_size,
                lba_count: bytes / u64::from(lba_size),
                volatile_write_cache: false,
            },
        }
    }
}

impl Backend for Null {
    type Queue = NullQueue;

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn queue(&self, _reactor: &Reactor) -> io::Result<NullQueue> {
        Ok(NullQueue { lba_size: self.geometry.lba_size })
    }
}

/// One reactor's queue.
pub struct NullQueue {
    lba_size: u32,
}

impl BackendQueue for NullQueue {
    async fn execute(&self, command: &IoCommand<'_>, data: Option<DataBuffer>) -> (Completion, Data) {
        match command.opcode {
            IoOpcode::Read => (Completion::OK, Data::Zeroes(command.byte_len(self.lba_size) as u32)),
            IoOpcode::Compare => {
                (compared(data.is_none_or(|data| data.filled().iter().all(|byte| *byte == 0))), Data::None)
            }
            _ => (Completion::OK, Data::None),
        }
    }

    async fn deallocate(&self, _lba: Lba, _blocks: u64) -> Completion {
        Completion::OK
    }
}
