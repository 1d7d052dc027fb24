//! From a host's command to the drive's commands: numbers replaced, sizes split, what the drive lacks done by what it has.

use super::{
    answer,
    node::Drive,
    probe::{Abilities, DriveNamespace},
};
use crate::{BackendQueue, compared};
use nvme::{Completion, IoCommand, IoOpcode, Lba, Status};
use reactor::{Data, DataBuffer, DriveAnswer, DriveCommand, DriveQueue, Reactor, Reserve};
use std::{future::Future, io};

#[cfg(test)]
mod tests;

/// Bytes compared or written as zeroes at once where the drive cannot do it itself.
const PIECE: usize = 64 << 10;
/// Blocks one command can name (NLB is 16 bits and 0's based).
const MAX_BLOCKS: u64 = 1 << 16;
/// How often a command is sent again that the kernel had no room for, before the host is asked to.
const TRIES: u32 = 64;

/// Bits of CDW12 that go on to the drive: limited retry, force unit access and the block count. Protection information is
/// not among them (there is none), directives neither (weft offers none).
const LIMITED_RETRY: u32 = 1 << 31;
const FORCE_UNIT_ACCESS: u32 = 1 << 30;
const DEALLOCATE: u32 = 1 << 25;

/// One reactor's queue to a drive's namespace.
pub struct DriveQueuePair<D> {
    drive: D,
    nsid: u32,
    lba_size: u32,
    max_bytes: usize,
    write_zeroes_blocks: u64,
    write_zeroes_deallocates: bool,
    deallocate_blocks: u64,
    abilities: Abilities,
    /// For what the drive cannot do itself, and for the ranges of Dataset Management.
    reserve: Reserve,
}

impl<D: Drive> DriveQueuePair<D> {
    pub(super) fn new(drive: D, namespace: &DriveNamespace, reactor: &Reactor) -> io::Result<Self> {
        let lba_size = namespace.lba_size as usize;
        let zeroes = match namespace.write_zeroes_blocks {
            0 => MAX_BLOCKS,
            blocks => MAX_BLOCKS.min(blocks.into()),
        };
        Ok(DriveQueuePair {
            drive,
            nsid: namespace.nsid,
            lba_size: namespace.lba_size,
            max_bytes: namespace.max_bytes / lba_size * lba_size,
            write_zeroes_blocks: zeroes,
            write_zeroes_deallocates: namespace.deallocated_reads_zeroes,
            deallocate_blocks: match namespace.deallocate_blocks {
                0 => u32::MAX.into(),
                blocks => blocks.into(),
            },
            abilities: namespace.abilities,
            reserve: reactor.reserve(PIECE.max(lba_size))?,
        })
    }

    /// A command on a range of blocks. `control` are the bits of CDW12 above the block count.
    fn command(&self, opcode: IoOpcode, lba: u64, blocks: u64, control: u32, hints: u32) -> DriveCommand {
        let nlb = (blocks - 1) as u32;
        DriveCommand {
            queue: DriveQueue::Io,
            opcode: opcode.code(),
            nsid: self.nsid,
            cdw2: [0; 2],
            cdw10: [lba as u32, (lba >> 32) as u32, control | nlb, hints, 0, 0],
        }
    }

    fn status_of(&self, error: &io::Error) -> Status {
        answer::status_of(error, self.drive.is_multipath())
    }

    fn completion(&self, answered: io::Result<DriveAnswer>) -> Completion {
        match answered {
            Ok(answer) => answer::completion(answer),
            Err(error) => self.status_of(&error).into(),
        }
    }

    /// Moves the data of Read, Write or Compare between the buffer and the drive, in as many commands as it takes. The first
    /// that fails ends it.
    fn transfer<'a>(
        &'a self,
        command: &'a IoCommand<'_>,
        buffer: DataBuffer,
        len: usize,
    ) -> impl Future<Output = (Completion, DataBuffer)> + 'a {
        // Not an `async fn`: that would hold its arguments twice, in the memory of every slot.
        let (mut buffer, mut done) = (buffer, 0);
        async move {
            loop {
                let piece = self.max_bytes.min(len - done);
                let driven =
                    self.drive.run(self.piece(command, done, piece), Some(buffer), done, piece).await;
                let (answered, Some(back)) = driven else { unreachable!("a drive gives the buffer back") };
                buffer = back;
                let completion = match answered {
                    Err(error) if is_shortage(&error) => {
                        // Boxed: rare, and every slot would have to hold it.
                        let again = Box::pin(self.again(command, done, piece, buffer));
                        let (completion, back) = again.await;
                        buffer = back;
                        completion
                    }
                    answered => self.completion(answered),
                };
                done += piece;
                if !completion.status.is_success() || done == len {
                    return (completion, buffer);
                }
            }
        }
    }

    /// The part of a host's command that covers `piece` bytes from `done`.
    fn piece(&self, command: &IoCommand<'_>, done: usize, piece: usize) -> DriveCommand {
        let size = u64::from(self.lba_size);
        let lba = command.lba.0 + done as u64 / size;
        let control = command.raw.cdw(12) & (LIMITED_RETRY | FORCE_UNIT_ACCESS);
        // The low byte of CDW13 are hints on how the data will be used.
        self.command(command.opcode, lba, piece as u64 / size, control, command.raw.cdw(13) & 0xff)
    }

    /// Sends a piece again and again that the kernel had no room for.
    async fn again(
        &self,
        command: &IoCommand<'_>,
        done: usize,
        piece: usize,
        mut buffer: DataBuffer,
    ) -> (Completion, DataBuffer) {
        for _ in 0..TRIES {
            self.drive.pause().await;
            let (answered, back) =
                self.drive.run(self.piece(command, done, piece), Some(buffer), done, piece).await;
            buffer = back.expect("a drive gives the buffer back");
            if !answered.as_ref().is_err_and(is_shortage) {
                return (self.completion(answered), buffer);
            }
        }
        (Status::COMMAND_INTERRUPTED.into(), buffer)
    }

    /// A command without data.
    async fn plain(&self, command: DriveCommand) -> Completion {
        for _ in 0..TRIES {
            let (answered, _) = self.drive.run(command, None, 0, 0).await;
            if !answered.as_ref().is_err_and(is_shortage) {
                return self.completion(answered);
            }
            self.drive.pause().await;
        }
        Status::COMMAND_INTERRUPTED.into()
    }

    async fn flush(&self) -> Completion {
        let flush = DriveCommand {
            queue: DriveQueue::Io,
            opcode: IoOpcode::Flush.code(),
            nsid: self.nsid,
            cdw2: [0; 2],
            cdw10: [0; 6],
        };
        self.plain(flush).await
    }

    /// Compares by reading, for a drive without Compare.
    async fn compare(&self, command: &IoCommand<'_>, data: &[u8]) -> Completion {
        let (size, mut done) = (self.lba_size as usize, 0);
        let most = (PIECE.min(self.max_bytes) / size).max(1) * size;
        while done < data.len() {
            let piece = most.min(data.len() - done);
            let lba = command.lba.0 + (done / size) as u64;
            let read = self.command(IoOpcode::Read, lba, (piece / size) as u64, 0, 0);
            let buffer = self.reserve.take().await;
            let (completion, mut buffer) = self.retried(read, buffer, piece).await;
            if !completion.status.is_success() {
                return completion;
            }
            buffer.set_len(piece);
            if buffer.filled() != &data[done..done + piece] {
                return compared(false);
            }
            done += piece;
        }
        compared(true)
    }

    /// A command with data that is small enough.
    async fn retried(
        &self,
        command: DriveCommand,
        buffer: DataBuffer,
        len: usize,
    ) -> (Completion, DataBuffer) {
        let mut buffer = buffer;
        for _ in 0..TRIES {
            let (answered, back) = self.drive.run(command, Some(buffer), 0, len).await;
            buffer = back.expect("a drive gives the buffer back");
            if !answered.as_ref().is_err_and(is_shortage) {
                return (self.completion(answered), buffer);
            }
            self.drive.pause().await;
        }
        (Status::COMMAND_INTERRUPTED.into(), buffer)
    }

    /// Makes a range zero: by the drive, or by writing where it has no Write Zeroes.
    async fn zero(&self, lba: u64, blocks: u64, durable: bool, deallocate: bool) -> Completion {
        let size = self.lba_size as usize;
        let by_drive = self.abilities.write_zeroes;
        let most = if by_drive {
            self.write_zeroes_blocks
        } else {
            (PIECE.min(self.max_bytes) / size).max(1) as u64
        };
        let durable = if durable { FORCE_UNIT_ACCESS } else { 0 };
        let control =
            if deallocate && self.write_zeroes_deallocates { durable | DEALLOCATE } else { durable };
        let mut done = 0;
        while done < blocks {
            let piece = most.min(blocks - done);
            let completion = if by_drive {
                self.plain(self.command(IoOpcode::WriteZeroes, lba + done, piece, control, 0)).await
            } else {
                let mut buffer = self.reserve.take().await;
                let len = piece as usize * size;
                buffer.as_mut_slice()[..len].fill(0);
                let write = self.command(IoOpcode::Write, lba + done, piece, durable, 0);
                self.retried(write, buffer, len).await.0
            };
            if !completion.status.is_success() {
                return completion;
            }
            done += piece;
        }
        Completion::OK
    }

    /// Dataset Management for one range.
    async fn deallocate_range(&self, lba: Lba, blocks: u64) -> Completion {
        if !self.abilities.dataset_management {
            // Deallocation is advice. A drive that promises zeroes afterwards has the command.
            return Completion::OK;
        }
        let (mut lba, mut left) = (lba.0, blocks);
        while left > 0 {
            let piece = left.min(self.deallocate_blocks);
            let mut buffer = self.reserve.take().await;
            let range = &mut buffer.as_mut_slice()[..16];
            range.fill(0);
            range[4..8].copy_from_slice(&(piece as u32).to_le_bytes());
            range[8..].copy_from_slice(&lba.to_le_bytes());
            let command = DriveCommand {
                queue: DriveQueue::Io,
                opcode: IoOpcode::DatasetManagement.code(),
                nsid: self.nsid,
                cdw2: [0; 2],
                // One range; attribute "deallocate".
                cdw10: [0, 1 << 2, 0, 0, 0, 0],
            };
            let (completion, _) = self.retried(command, buffer, 16).await;
            if !completion.status.is_success() {
                return completion;
            }
            lba += piece;
            left -= piece;
        }
        Completion::OK
    }
}

/// The kernel had no room for a command: nothing was sent.
fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory | io::ErrorKind::ResourceBusy
    )
}

impl<D: Drive> BackendQueue for DriveQueuePair<D> {
    #[allow(
        clippy::manual_async_fn,
        reason = "an `async fn` holds its arguments twice, in the memory of every slot"
    )]
    fn execute(
        &self,
        command: &IoCommand<'_>,
        data: Option<DataBuffer>,
    ) -> impl Future<Output = (Completion, Data)> {
        async move {
            let len = command.byte_len(self.lba_size) as usize;
            match (command.opcode, data) {
                (IoOpcode::Read, _) => {
                    let buffer = self.drive.buffer(len).await;
                    let (completion, mut buffer) = self.transfer(command, buffer, len).await;
                    if !completion.status.is_success() {
                        return (completion, Data::None);
                    }
                    buffer.set_len(len);
                    (completion, Data::Arena(buffer))
                }
                (IoOpcode::Write, Some(data)) => (self.transfer(command, data, len).await.0, Data::None),
                (IoOpcode::Compare, Some(data)) if self.abilities.compare => {
                    (self.transfer(command, data, len).await.0, Data::None)
                }
                // Boxed from here: these are rare, and every slot would have to hold the largest of them.
                (IoOpcode::Compare, Some(data)) => {
                    (Box::pin(self.compare(command, data.filled())).await, Data::None)
                }
                (IoOpcode::Flush, _) => (Box::pin(self.flush()).await, Data::None),
                (IoOpcode::WriteZeroes, _) => {
                    let zero =
                        self.zero(command.lba.0, command.blocks.into(), command.fua, command.deallocates());
                    (Box::pin(zero).await, Data::None)
                }
                _ => (Status::INTERNAL_ERROR.into(), Data::None),
            }
        }
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Completion {
        Box::pin(self.deallocate_range(lba, blocks)).await
    }
}
