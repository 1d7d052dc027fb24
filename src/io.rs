//! I/O commands: parse, admit, data in, execute, respond.
//!
//! NVM command set specification; the order of checks is that of the fact sheet every peer can rely on: opcode, fused
//! operation, PSDT, namespace, write protection, data descriptor, range, size.

pub mod copy;
mod dataset;
pub mod fused;
pub mod range_lock;

use crate::{
    fabrics,
    io::range_lock::Mark,
    namespace::LocalNamespace,
    queue_pair::{self, QueuePair},
};
use backends::BackendQueue;
use futures::future::Either;
use nvme::{Completion, IoCommand, IoOpcode, Nsid, Sqe, Status};
use reactor::{BufferClass, Data, DataBuffer};
use std::rc::Rc;
use transports::{Capsule, FetchError, QueuePair as TransportQueuePair, Slot};

/// The I/O commands namespaces support: what ONCS and the effects log report.
pub const SUPPORTED: &[IoOpcode] = &[
    IoOpcode::Flush,
    IoOpcode::Write,
    IoOpcode::Read,
    IoOpcode::Compare,
    IoOpcode::WriteZeroes,
    IoOpcode::DatasetManagement,
    IoOpcode::Verify,
    IoOpcode::Copy,
];

/// Why a command has no completion, or a failed one.
pub enum Failure {
    /// It fails.
    Status(Status),
    /// There is nobody left to answer.
    Disconnected,
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure::Status(status)
    }
}

impl From<FetchError> for Failure {
    fn from(error: FetchError) -> Failure {
        match error {
            FetchError::Status(status) => Failure::Status(status),
            FetchError::Disconnected => Failure::Disconnected,
        }
    }
}

/// One slot of an I/O queue: serves one command after the other until the queue pair ends.
pub async fn serve<Q: TransportQueuePair>(pair: Rc<QueuePair<Q>>, slot: Slot) {
    loop {
        // Taken apart at once: what stays in one piece is held twice in the slot's memory.
        let Ok(Capsule { sqe, data, mut token }) = pair.transport.receive(slot).await else { break };
        let begun = pair.begin();
        // Chosen outside of this future, which would hold the data once for each choice.
        let work = if sqe.fuse() == 0 {
            Either::Left(execute(&pair, &sqe, data, &mut token))
        } else {
            Either::Right(Box::pin(fused::execute(&pair, slot, &sqe, data, &mut token)))
        };
        let (completion, data) = match work.await {
            Ok(done) => done,
            Err(Failure::Status(status)) => (status.into(), Data::None),
            Err(Failure::Disconnected) => break,
        };
        if pair.respond(token, &sqe, begun, completion, data).await.is_err() {
            break;
        }
    }
    pair.slot_ended();
}

/// Executes a command that is not fused.
#[allow(
    clippy::manual_async_fn,
    reason = "an `async fn` holds its arguments twice, in the memory of every slot"
)]
fn execute<'a, Q: TransportQueuePair>(
    pair: &'a QueuePair<Q>,
    sqe: &'a Sqe,
    data: Result<Option<DataBuffer>, Status>,
    token: &'a mut Q::Token,
) -> impl Future<Output = Result<(Completion, Data), Failure>> + 'a {
    async move {
        let data = data?;
        if sqe.is_fabrics() {
            return Err(fabrics::on_io_queue(sqe).into());
        }
        let command = IoCommand::parse(sqe)?;
        let namespace = admit(pair, &command)?;
        // Boxed, here and below: what is rare must not take memory in every slot.
        match command.opcode {
            IoOpcode::DatasetManagement => {
                return Box::pin(dataset::execute(pair, &command, namespace, data, token)).await;
            }
            IoOpcode::Copy => return Box::pin(copy::execute(pair, &command, namespace, data, token)).await,
            _ => {}
        }
        let len = transfer_len(&command, namespace);
        let to_host = command.opcode == IoOpcode::Read;
        queue_pair::check_transfer(pair.transport.described(token, sqe)?, len, to_host, data.is_some())?;
        let reads = matches!(command.opcode, IoOpcode::Read | IoOpcode::Compare | IoOpcode::Verify);
        namespace.check_range(reads, |blocks| command.is_within(blocks))?;
        check_size(pair, len)?;
        if command.opcode == IoOpcode::Verify {
            return Box::pin(copy::verify(pair, &command, namespace)).await;
        }
        let data =
            if len > 0 && !to_host { Some(data_in(pair, data, token, len as usize).await?) } else { None };
        // See the head of `range_lock`: this is all that fused pairs cost other writes.
        let mark = if changes(command.opcode) {
            let (first, blocks) = (command.lba.0, command.blocks.into());
            let mark = match namespace.locks.enter(first, blocks) {
                Some(mark) => mark,
                None => Box::pin(namespace.locks.wait(first, blocks)).await,
            };
            namespace.confirm(mark)?
        } else {
            Mark::None
        };
        let (completion, data) = namespace.queue.execute(&command, data).await;
        namespace.locks.leave(mark);
        if completion.status.is_success() {
            count(pair, &command, namespace, len);
        }
        Ok((completion, data))
    }
}

/// The data of a command: what came with it, or fetched from the host.
#[allow(
    clippy::manual_async_fn,
    reason = "an `async fn` holds its arguments twice, in the memory of every slot"
)]
fn data_in<'a, Q: TransportQueuePair>(
    pair: &'a QueuePair<Q>,
    data: Option<DataBuffer>,
    token: &'a mut Q::Token,
    len: usize,
) -> impl Future<Output = Result<DataBuffer, Failure>> + 'a {
    async move {
        if let Some(data) = data {
            return Ok(data);
        }
        pair.transport.announce_fetch(token);
        let buffer = pair.local.reactor.buffer(len, BufferClass::Io).await;
        Ok(pair.transport.fetch(token, buffer, len).await?)
    }
}

/// Whether this command may be executed on its namespace.
fn admit<'a, Q: TransportQueuePair>(
    pair: &'a QueuePair<Q>,
    command: &IoCommand<'_>,
) -> Result<&'a LocalNamespace, Status> {
    if !SUPPORTED.contains(&command.opcode) {
        return Err(Status::INVALID_OPCODE.dnr());
    }
    // All namespaces at once is for Flush only, and we say that we cannot (VWC bits 2:1).
    if command.nsid == Nsid::NONE || command.nsid == Nsid::ALL {
        return Err(Status::INVALID_NAMESPACE.dnr());
    }
    let namespace = pair.namespaces.get(command.nsid).ok_or(Status::INVALID_NAMESPACE.dnr())?;
    let reads =
        matches!(command.opcode, IoOpcode::Read | IoOpcode::Compare | IoOpcode::Verify | IoOpcode::Flush);
    if !reads {
        namespace.check_writable()?;
    }
    Ok(namespace)
}

/// Whether an admitted command changes the blocks of its range.
fn changes(opcode: IoOpcode) -> bool {
    matches!(opcode, IoOpcode::Write | IoOpcode::WriteZeroes)
}

/// Bytes that travel with a command; Write Zeroes and Verify have a range but no data.
fn transfer_len(command: &IoCommand<'_>, namespace: &LocalNamespace) -> u64 {
    match command.opcode {
        IoOpcode::WriteZeroes | IoOpcode::Verify => 0,
        _ => command.byte_len(namespace.geometry().lba_size),
    }
}

fn check_size<Q: TransportQueuePair>(pair: &QueuePair<Q>, len: u64) -> Result<(), Status> {
    let fits = len <= u64::from(pair.local.target.limits.max_transfer_bytes);
    if fits { Ok(()) } else { Err(Status::INVALID_FIELD.dnr()) }
}

fn count<Q: TransportQueuePair>(
    pair: &QueuePair<Q>,
    command: &IoCommand<'_>,
    namespace: &LocalNamespace,
    len: u64,
) {
    match command.opcode {
        IoOpcode::Read => {
            pair.local.metrics.read_bytes.add(len);
            namespace.cells.read(len);
        }
        IoOpcode::Write => {
            pair.local.metrics.written_bytes.add(len);
            namespace.cells.write(len);
        }
        _ => {}
    }
}
