//! Verify and Copy: commands that move blocks without moving data over the fabric, emulated on every backend by reads and
//! writes of bounded pieces.
//!
//! NVM command set specification, "Verify command" and "Copy command".
//!
//! Buffers: a piece asks for one when nothing else is held (the descriptors are read out of theirs before), and its write
//! uses the buffer its read filled. So neither command can be part of a deadlock by buffers.
//!
//! Copy goes through its source ranges in order. Within a range the destination gets what the source held before, also where
//! they overlap; a later range sees what earlier ones wrote. Format 1 descriptors are for namespaces with 32-bit or 64-bit
//! guards: ours have none, so that they are recognised and refused as a wrong format (10Ah), not as an unknown field.

use super::{Failure, data_in};
use crate::{
    namespace::LocalNamespace,
    queue_pair::{self, QueuePair},
};
use backends::BackendQueue;
use nvme::{
    Completion, IoCommand, IoOpcode, Lba, Nsid, Status,
    io::{CopyCommand, CopyRange},
};
use reactor::{BufferClass, Data, DataBuffer};
use transports::QueuePair as TransportQueuePair;

/// Source ranges of a command (MSRC plus one).
pub const MAX_RANGES: u32 = 128;
/// Bytes one command may copy: what takes a drive well under a second.
const MAX_BYTES: u32 = 16 << 20;
/// Bytes read and written at once.
const PIECE: u32 = 128 << 10;
/// Bytes after which others get a turn, where nothing waits for a medium.
const TURN: u32 = 1 << 20;

/// Blocks one command may copy (MCL).
pub const fn max_blocks(lba_size: u32) -> u32 {
    MAX_BYTES / lba_size
}

/// Blocks of one source range (MSSRL).
pub const fn max_range_blocks(lba_size: u32) -> u16 {
    let blocks = max_blocks(lba_size);
    if blocks > u16::MAX as u32 { u16::MAX } else { blocks as u16 }
}

/// Executes Verify: every block can be read. There is no limit to its size (VSL is 0).
pub async fn verify<Q: TransportQueuePair>(
    pair: &QueuePair<Q>,
    command: &IoCommand<'_>,
    namespace: &LocalNamespace,
) -> Result<(Completion, Data), Failure> {
    let work = Work::new(pair, command, namespace);
    let (mut lba, mut left) = (command.lba.0, command.blocks);
    while left > 0 {
        let blocks = left.min(work.piece_blocks());
        if let Err(completion) = work.read(lba, blocks).await {
            return Ok((completion, Data::None));
        }
        lba += u64::from(blocks);
        left -= blocks;
        work.rest(command.blocks - left).await;
    }
    Ok((Completion::OK, Data::None))
}

/// Executes Copy.
pub async fn execute<Q: TransportQueuePair>(
    pair: &QueuePair<Q>,
    command: &IoCommand<'_>,
    namespace: &LocalNamespace,
    data: Option<DataBuffer>,
    token: &mut Q::Token,
) -> Result<(Completion, Data), Failure> {
    let wanted = CopyCommand::parse(command.raw);
    match wanted.format {
        0 => {}
        1 => return Err(Status::INVALID_FORMAT.dnr().into()),
        _ => return Err(Status::INVALID_FIELD.dnr().into()),
    }
    let len = wanted.ranges as usize * CopyRange::LEN;
    queue_pair::check_transfer(
        pair.transport.described(token, command.raw)?,
        len as u64,
        false,
        data.is_some(),
    )?;
    if wanted.ranges > MAX_RANGES {
        return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.dnr().into());
    }
    let data = data_in(pair, data, token, len).await?;
    let ranges: Vec<CopyRange> = data.filled().as_chunks().0.iter().map(CopyRange::parse).collect();
    drop(data);
    check(&ranges, wanted.destination, namespace)?;
    let work = Work::new(pair, command, namespace);
    let mut to = wanted.destination.0;
    for (index, range) in ranges.iter().enumerate() {
        if let Err(failed) = work.copy(range.lba.0, to, range.blocks).await {
            // DW0: the lowest range that was not copied completely.
            return Ok((Completion::new(failed.status, index as u64), Data::None));
        }
        to += u64::from(range.blocks);
    }
    Ok((Completion::OK, Data::None))
}

/// All limits and ranges, before anything is copied: the lowest range not copied is the first then (DW0 = 0).
fn check(ranges: &[CopyRange], destination: Lba, namespace: &LocalNamespace) -> Result<(), Status> {
    let geometry = namespace.geometry();
    let total: u64 = ranges.iter().map(|range| u64::from(range.blocks)).sum();
    let longest = u32::from(max_range_blocks(geometry.lba_size));
    if ranges.iter().any(|range| range.blocks > longest) || total > max_blocks(geometry.lba_size).into() {
        return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.dnr());
    }
    namespace
        .check_range(false, |blocks| destination.0.checked_add(total).is_some_and(|end| end <= blocks))?;
    ranges.iter().try_for_each(|range| namespace.check_range(true, |blocks| range.is_within(blocks)))
}

/// A command in pieces.
struct Work<'a, Q> {
    pair: &'a QueuePair<Q>,
    namespace: &'a LocalNamespace,
    nsid: Nsid,
    fua: bool,
}

impl<'a, Q: TransportQueuePair> Work<'a, Q> {
    fn new(pair: &'a QueuePair<Q>, command: &IoCommand<'_>, namespace: &'a LocalNamespace) -> Self {
        Work { pair, namespace, nsid: command.nsid, fua: command.fua }
    }

    fn piece_blocks(&self) -> u32 {
        PIECE.min(self.pair.local.target.limits.max_transfer_bytes) / self.namespace.geometry().lba_size
    }

    /// Lets others run when `done` blocks are a round number of turns.
    async fn rest(&self, done: u32) {
        if done.is_multiple_of(TURN / self.namespace.geometry().lba_size) {
            self.pair.local.reactor.yield_now().await;
        }
    }

    /// Copies a range; where the destination lies in the source's way, from the end to the beginning.
    async fn copy(&self, from: u64, to: u64, blocks: u32) -> Result<(), Completion> {
        let backwards = (from..from + u64::from(blocks)).contains(&to) && from != to;
        let mut done = 0;
        while done < blocks {
            let piece = (blocks - done).min(self.piece_blocks());
            let at = u64::from(if backwards { blocks - done - piece } else { done });
            let data = self.read(from + at, piece).await?;
            let buffer = self.buffer(data).await;
            self.write(to + at, piece, buffer).await?;
            done += piece;
            self.rest(done).await;
        }
        Ok(())
    }

    async fn read(&self, lba: u64, blocks: u32) -> Result<Data, Completion> {
        let sqe = IoCommand::encode(IoOpcode::Read, self.nsid, Lba(lba), blocks, false);
        let command = IoCommand::parse(&sqe)?;
        let (completion, data) = self.namespace.queue.execute(&command, None).await;
        if completion.status.is_success() { Ok(data) } else { Err(completion) }
    }

    async fn write(&self, lba: u64, blocks: u32, data: DataBuffer) -> Result<(), Completion> {
        let sqe = IoCommand::encode(IoOpcode::Write, self.nsid, Lba(lba), blocks, self.fua);
        let command = IoCommand::parse(&sqe)?;
        let mark = self.namespace.enter(lba, blocks.into()).await?;
        let (completion, _) = self.namespace.queue.execute(&command, Some(data)).await;
        self.namespace.locks.leave(mark);
        if completion.status.is_success() { Ok(()) } else { Err(completion) }
    }

    /// What was read in a buffer of its own, which is what a write takes.
    async fn buffer(&self, data: Data) -> DataBuffer {
        let len = data.len();
        if let Data::Arena(buffer) = data {
            return buffer;
        }
        let mut buffer = self.pair.local.reactor.buffer(len, BufferClass::Io).await;
        match &data {
            Data::Namespace(bytes) => bytes.copy_to(&mut buffer.as_mut_slice()[..len]),
            _ => buffer.as_mut_slice()[..len].fill(0),
        }
        buffer.set_len(len);
        buffer
    }
}
