//! I/O commands: parse, admit, data in, execute, respond.
//!
//! NVM command set specification; the order of checks is that of the fact sheet every peer can rely on: opcode, fused
//! operation, PSDT, namespace, write protection, data descriptor, range, size.

use crate::{
    fabrics,
    namespace::LocalNamespace,
    queue_pair::{self, QueuePair},
};
use backends::BackendQueue;
use nvme::{Completion, IoCommand, IoOpcode, Nsid, Sqe, Status};
use reactor::{BufferClass, Data, DataBuffer};
use std::rc::Rc;
use transports::{Capsule, FetchError, QueuePair as TransportQueuePair, Slot};

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
        let (completion, data) = match execute(&pair, &sqe, data, &mut token).await {
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

async fn execute<Q: TransportQueuePair>(
    pair: &QueuePair<Q>,
    sqe: &Sqe,
    data: Result<Option<DataBuffer>, Status>,
    token: &mut Q::Token,
) -> Result<(Completion, Data), Failure> {
    let data = data?;
    if sqe.is_fabrics() {
        return Err(fabrics::on_io_queue(sqe).into());
    }
    let command = IoCommand::parse(sqe)?;
    let namespace = admit(pair, &command)?;
    let len = transfer_len(&command, namespace);
    let to_host = command.opcode == IoOpcode::Read;
    queue_pair::check_transfer(sqe, len, to_host, data.is_some())?;
    check_range(pair, &command, namespace, len)?;
    let data = match data {
        None if len > 0 && !to_host => {
            let buffer = pair.local.reactor.buffer(len as usize, BufferClass::Io).await;
            Some(pair.transport.fetch(token, buffer, len as usize).await?)
        }
        data => data,
    };
    let (completion, data) = namespace.queue.execute(&command, data).await;
    if completion.status.is_success() {
        count(pair, &command, namespace, len);
    }
    Ok((completion, data))
}

/// Whether this command may be executed on its namespace.
fn admit<'a, Q: TransportQueuePair>(
    pair: &'a QueuePair<Q>,
    command: &IoCommand<'_>,
) -> Result<&'a LocalNamespace, Status> {
    let writes = match command.opcode {
        IoOpcode::Read => false,
        IoOpcode::Write | IoOpcode::Flush => true,
        _ => return Err(Status::INVALID_OPCODE.dnr()),
    };
    // All namespaces at once is for Flush only, and we say that we cannot (VWC bits 2:1).
    if command.nsid == Nsid::NONE || command.nsid == Nsid::ALL {
        return Err(Status::INVALID_NAMESPACE.dnr());
    }
    let namespace = pair.namespaces.get(command.nsid).ok_or(Status::INVALID_NAMESPACE.dnr())?;
    if writes && namespace.read_only && command.opcode != IoOpcode::Flush {
        return Err(Status::NAMESPACE_WRITE_PROTECTED.dnr());
    }
    Ok(namespace)
}

fn transfer_len(command: &IoCommand<'_>, namespace: &LocalNamespace) -> u64 {
    command.byte_len(namespace.geometry.lba_size)
}

fn check_range<Q: TransportQueuePair>(
    pair: &QueuePair<Q>,
    command: &IoCommand<'_>,
    namespace: &LocalNamespace,
    len: u64,
) -> Result<(), Status> {
    if !command.is_within(namespace.geometry.lba_count) {
        return Err(Status::LBA_OUT_OF_RANGE.dnr());
    }
    if len > u64::from(pair.local.target.limits.max_transfer_bytes) {
        return Err(Status::INVALID_FIELD.dnr());
    }
    Ok(())
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
