//! A namespace in a file or on a block device.
//!
//! Through the page cache or past it (`open.rs` says when which). Writes are volatile until Flush or FUA wherever a cache
//! lies between, and the namespace says so. A medium that is full or fails gives a status that hosts understand
//! (`status.rs`); what was acknowledged before stays.

mod device;
mod error;
mod open;
mod status;

pub use device::{partitions_of, users_of};
pub use error::FileError;
pub use open::FileOptions;

use crate::{Backend, BackendQueue, Description, Extent, Geometry, compared};
use nvme::{Completion, IoCommand, IoOpcode, Lba, Status};
use reactor::{BufferClass, Data, DataBuffer, Reactor, Reserve};
use status::{completion_of, status_of};
use std::{
    fs,
    io::{self, Seek, SeekFrom},
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    rc::Rc,
    sync::Arc,
};

/// Bytes compared or written as zeroes at once.
const PIECE: usize = 64 << 10;

/// A namespace in a file or on a block device.
pub struct File {
    file: Arc<fs::File>,
    /// The kernel's name of a block device.
    device: Option<String>,
    geometry: Geometry,
    description: Description,
    /// The configured size: the namespace does not grow with the file.
    pinned: Option<u64>,
    direct: bool,
    note: Option<String>,
}

impl File {
    /// Whether it goes past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// The kernel's name of a block device.
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// What is not as somebody may expect, in one sentence.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }
}

/// Bytes of a block device. The offset that this moves is used by nobody.
fn device_size(mut file: &fs::File) -> io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

impl Backend for File {
    type Queue = FileQueue;

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn description(&self) -> Description {
        self.description
    }

    fn measure(&self) -> io::Result<Option<Extent>> {
        let (bytes, used) = if self.device.is_some() {
            let bytes = device_size(&self.file)?;
            (bytes, bytes)
        } else {
            let metadata = self.file.metadata()?;
            (metadata.len(), metadata.blocks() * 512)
        };
        Ok(Some(Extent { bytes: self.pinned.map_or(bytes, |size| size.min(bytes)), used }))
    }

    fn queue(&self, reactor: &Reactor) -> io::Result<FileQueue> {
        Ok(FileQueue {
            // A descriptor per reactor, so that operations count on the reactor's own counter.
            descriptor: Rc::new(self.file.try_clone()?.into()),
            reactor: reactor.clone(),
            geometry: self.geometry,
            deallocates: self.description.deallocated_reads_zeroes,
            reserve: reactor.reserve(PIECE)?,
        })
    }
}

/// One reactor's queue.
pub struct FileQueue {
    descriptor: Rc<OwnedFd>,
    reactor: Reactor,
    geometry: Geometry,
    /// Whether the medium makes holes that read as zeroes.
    deallocates: bool,
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
        if !self.deallocates {
            return Completion::OK;
        }
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
        let hole = hole && self.deallocates;
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
        fs::create_dir_all(&dir).unwrap();
        dir.join(name)
    }

    #[test]
    fn a_missing_file_is_made_sparse_and_found_again() {
        let path = scratch("new.img");
        let _ = fs::remove_file(&path);
        let options = FileOptions::default();
        assert!(matches!(File::open(&path, options), Err(FileError::Missing(_))));
        let sized = FileOptions { size: Some(64 << 20), lba_size: Some(512), ..options };
        let file = File::open(&path, sized).unwrap();
        assert_eq!(file.geometry().lba_count, (64 << 20) / 512);
        assert_eq!(fs::metadata(&path).unwrap().blocks(), 0, "no block is taken before it is written");
        let fixed = FileOptions { lba_size: Some(4096), read_only: true, ..options };
        let again = File::open(&path, fixed).unwrap();
        assert_eq!((again.geometry().lba_count, again.geometry().volatile_write_cache), (16384, false));
        let larger = FileOptions { size: Some(65 << 20), ..options };
        let Err(short) = File::open(&path, larger) else { panic!("short and accepted") };
        assert!(short.to_string().contains("truncate -s"), "{short}");
    }

    #[test]
    fn what_cannot_be_a_namespace_says_why() {
        let path = scratch("tiny.img");
        fs::write(&path, b"x").unwrap();
        let small = FileOptions { lba_size: Some(512), ..FileOptions::default() };
        assert!(matches!(File::open(&path, small), Err(FileError::Empty(_, 512))));
        for read_only in [false, true] {
            let options = FileOptions { read_only, ..FileOptions::default() };
            let said = |path: &str| File::open(path.as_ref(), options).map(drop).unwrap_err().to_string();
            assert!(said("/tmp").contains("neither a file nor a block device"), "{}", said("/tmp"));
            assert!(said("/dev/null").contains("character device"), "{}", said("/dev/null"));
        }
        let sized = FileOptions { size: Some(1 << 20), ..FileOptions::default() };
        let made = File::open("/dev/weft-is-no-device".as_ref(), sized).map(drop).unwrap_err();
        assert!(made.to_string().contains("no file is made where devices are"), "{made}");
    }

    #[test]
    fn a_file_that_changed_is_measured_and_a_configured_size_stays() {
        let path = scratch("measured.img");
        fs::write(&path, vec![1; 8192]).unwrap();
        let grows = File::open(&path, FileOptions::default()).unwrap();
        let pinned = File::open(&path, FileOptions { size: Some(4096), ..FileOptions::default() }).unwrap();
        let bytes = |file: &File| file.measure().unwrap().unwrap().bytes;
        assert_eq!((bytes(&grows), bytes(&pinned)), (8192, 4096));
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(2048).unwrap();
        assert_eq!((bytes(&grows), bytes(&pinned)), (2048, 2048));
    }
}
