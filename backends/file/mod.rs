//! A namespace in a file or on a block device, through the page cache.
//!
//! Writes are volatile until Flush or FUA, and the namespace says so. A file that is full gives a status that hosts
//! understand; what was acknowledged before stays.

mod error;
mod status;

pub use error::FileError;

use crate::{Backend, BackendQueue, Geometry, compared};
use nvme::{Completion, IoCommand, IoOpcode, Lba, Status};
use reactor::{BufferClass, Data, DataBuffer, Reactor, Reserve, system};
use status::{completion_of, status_of};
use std::{io, os::fd::OwnedFd, path::Path, rc::Rc, sync::Arc};

/// Bytes compared or written as zeroes at once.
const PIECE: usize = 64 << 10;

/// A namespace in a file.
pub struct File {
    descriptor: Arc<OwnedFd>,
    geometry: Geometry,
}

impl File {
    /// Opens `path`. With a size, a missing file is made, sparse; without an LBA size, the inode's block size decides, as
    /// in the Linux kernel's target.
    pub fn open(
        path: &Path,
        size: Option<u64>,
        lba_size: Option<u32>,
        read_only: bool,
    ) -> Result<File, FileError> {
        let file = system::open_file(path, size, read_only).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound if size.is_none() => FileError::Missing(path.into()),
            io::ErrorKind::InvalidInput => FileError::NotAFile(path.into()),
            _ => FileError::Open(path.into(), read_only, error),
        })?;
        let lba_size =
            lba_size.unwrap_or_else(|| file.block_size.next_power_of_two().clamp(512, 4096) as u32);
        if file.is_block_device && u64::from(lba_size) < file.block_size {
            return Err(FileError::LbaSize { path: path.into(), device: file.block_size, wanted: lba_size });
        }
        let bytes = size.unwrap_or(file.size);
        if bytes > file.size {
            return Err(FileError::Short { path: path.into(), have: file.size, wanted: bytes });
        }
        let lba_count = bytes / u64::from(lba_size);
        if lba_count == 0 {
            return Err(FileError::Empty(path.into(), lba_size));
        }
        let geometry = Geometry { lba_size, lba_count, volatile_write_cache: !read_only };
        Ok(File { descriptor: Arc::new(file.descriptor), geometry })
    }
}

impl Backend for File {
    type Queue = FileQueue;

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn queue(&self, reactor: &Reactor) -> io::Result<FileQueue> {
        Ok(FileQueue {
            // A descriptor per reactor, so that operations count on the reactor's own counter.
            descriptor: Rc::new(self.descriptor.try_clone()?),
            reactor: reactor.clone(),
            geometry: self.geometry,
            reserve: reactor.reserve(PIECE)?,
        })
    }
}

/// One reactor's queue.
pub struct FileQueue {
    descriptor: Rc<OwnedFd>,
    reactor: Reactor,
    geometry: Geometry,
    /// For what is compared or zeroed in pieces.
    reserve: Reserve,
}

impl BackendQueue for FileQueue {
    async fn execute(&self, command: &IoCommand<'_>, data: Option<DataBuffer>) -> (Completion, Data) {
        let offset = self.geometry.offset(command.lba);
        // Matched one after the other: a pair of both would be held across every await below.
        match command.opcode {
            IoOpcode::Read => {
                let len = command.byte_len(self.geometry.lba_size) as usize;
                let buffer = self.reactor.buffer(len, BufferClass::Io).await;
                match self.reactor.read_at(&self.descriptor, buffer, len, offset).await {
                    (Ok(()), buffer) => (Completion::OK, Data::Arena(buffer)),
                    (Err(error), _) => (status_of(&error, Status::UNRECOVERED_READ_ERROR).into(), Data::None),
                }
            }
            IoOpcode::Write => {
                let Some(data) = data else { return (Status::INTERNAL_ERROR.into(), Data::None) };
                let (result, _) = self.reactor.write_at(&self.descriptor, data, offset, command.fua).await;
                (completion_of(result), Data::None)
            }
            IoOpcode::Flush => (completion_of(self.reactor.sync_data(&self.descriptor).await), Data::None),
            IoOpcode::Compare => {
                let Some(data) = data else { return (Status::INTERNAL_ERROR.into(), Data::None) };
                (self.compare(offset, data.filled()).await, Data::None)
            }
            IoOpcode::WriteZeroes => {
                let len = command.byte_len(self.geometry.lba_size);
                let result = match self.zero(offset, len, command.deallocates()).await {
                    Ok(()) if command.fua => self.reactor.sync_data(&self.descriptor).await,
                    result => result,
                };
                (completion_of(result), Data::None)
            }
            _ => (Status::INTERNAL_ERROR.into(), Data::None),
        }
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Completion {
        let len = blocks * u64::from(self.geometry.lba_size);
        completion_of(self.zero(self.geometry.offset(lba), len, true).await)
    }
}

impl FileQueue {
    /// Makes a range zero in the way asked for, in the other one where the file system has not that, and by writing zeroes
    /// where it has neither.
    async fn zero(&self, offset: u64, len: u64, hole: bool) -> io::Result<()> {
        let unsupported = |result: &io::Result<()>| {
            result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::Unsupported)
        };
        for hole in [hole, !hole] {
            let result = self.reactor.zero_at(&self.descriptor, offset, len, hole).await;
            if !unsupported(&result) {
                return result;
            }
        }
        // Boxed: few file systems come here, and every slot would have to hold it.
        Box::pin(self.write_zeroes(offset, len)).await
    }

    async fn write_zeroes(&self, mut offset: u64, len: u64) -> io::Result<()> {
        let end = offset + len;
        while offset < end {
            let mut buffer = self.reserve.take().await;
            let piece = (end - offset).min(PIECE as u64) as usize;
            buffer.as_mut_slice()[..piece].fill(0);
            buffer.set_len(piece);
            self.reactor.write_at(&self.descriptor, buffer, offset, false).await.0?;
            offset += piece as u64;
        }
        Ok(())
    }

    /// Compares piece by piece through the queue's own buffer: a command that holds data must not wait for more buffers.
    async fn compare(&self, offset: u64, data: &[u8]) -> Completion {
        let mut done = 0;
        while done < data.len() {
            let len = PIECE.min(data.len() - done);
            let buffer = self.reserve.take().await;
            match self.reactor.read_at(&self.descriptor, buffer, len, offset + done as u64).await {
                (Ok(()), buffer) if buffer.filled() == &data[done..done + len] => done += len,
                (Ok(()), _) => return compared(false),
                (Err(error), _) => return status_of(&error, Status::UNRECOVERED_READ_ERROR).into(),
            }
        }
        compared(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("weft-file-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir.join(name)
    }

    #[test]
    fn a_missing_file_is_made_sparse_and_found_again() {
        let path = scratch("new.img");
        let _ = std::fs::remove_file(&path);
        assert!(matches!(File::open(&path, None, None, false), Err(FileError::Missing(_))));
        let file = File::open(&path, Some(64 << 20), Some(512), false).unwrap();
        assert_eq!(file.geometry().lba_count, (64 << 20) / 512);
        use std::os::unix::fs::MetadataExt;
        assert_eq!(std::fs::metadata(&path).unwrap().blocks(), 0, "no block is taken before it is written");
        let again = File::open(&path, None, Some(4096), true).unwrap();
        assert_eq!((again.geometry().lba_count, again.geometry().volatile_write_cache), (16384, false));
        let Err(short) = File::open(&path, Some(65 << 20), None, false) else { panic!("short and accepted") };
        assert!(short.to_string().contains("truncate -s"), "{short}");
    }

    #[test]
    fn what_cannot_be_a_namespace_says_why() {
        let path = scratch("tiny.img");
        std::fs::write(&path, b"x").unwrap();
        assert!(matches!(File::open(&path, None, Some(512), false), Err(FileError::Empty(_, 512))));
        for read_only in [false, true] {
            let directory = File::open(&std::env::temp_dir(), None, None, read_only).map(drop).unwrap_err();
            assert!(directory.to_string().contains("neither a file nor a block device"), "{directory}");
        }
    }
}
