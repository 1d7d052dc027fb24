//! Admin commands: which are known, what state they need, and who answers them.
//!
//! Base specification, "Admin Command Set". Each of Identify, Get Log Page and the features has its own file.

use crate::{
    discovery, events, fabrics, features, identify,
    io::Failure,
    local, log_page,
    queue_pair::{self, QueuePair},
};
use futures::channel::oneshot;
use nvme::{AdminOpcode, Cid, Completion, DataDirection, Qid, Sqe, Status};
use reactor::{BufferClass, Data, DataBuffer};
use std::rc::Rc;
use transports::{Capsule, QueuePair as TransportQueuePair, Slot};

/// Abort commands a controller takes at once (ACL, 1's based).
pub const MAX_ABORTS: u8 = 4;

/// The admin commands an I/O controller supports: what the effects log reports.
pub const SUPPORTED: &[AdminOpcode] = &[
    AdminOpcode::GetLogPage,
    AdminOpcode::Identify,
    AdminOpcode::Abort,
    AdminOpcode::SetFeatures,
    AdminOpcode::GetFeatures,
    AdminOpcode::AsyncEventRequest,
    AdminOpcode::KeepAlive,
];

/// The answer to an admin command; bytes go to the host in the size it asked for.
pub enum Answer {
    /// A completion without data.
    Completion(Completion),
    /// Data: the bytes, of which the host gets `len` from `offset`, zeroes beyond the end.
    Bytes {
        /// All there is.
        bytes: Vec<u8>,
        /// Where the host's part begins.
        offset: u64,
        /// How much the host wants.
        len: usize,
    },
}

impl Answer {
    /// All of `bytes`.
    pub fn whole(bytes: &[u8]) -> Answer {
        Answer::Bytes { bytes: bytes.to_vec(), offset: 0, len: bytes.len() }
    }
}

impl From<Completion> for Answer {
    fn from(completion: Completion) -> Answer {
        Answer::Completion(completion)
    }
}

/// One slot of the admin queue.
pub async fn serve<Q: TransportQueuePair>(pair: Rc<QueuePair<Q>>, slot: Slot) {
    while let Ok(Capsule { sqe, data, mut token }) = pair.transport.receive(slot).await {
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
    pair: &Rc<QueuePair<Q>>,
    sqe: &Sqe,
    data: Result<Option<DataBuffer>, Status>,
    token: &mut Q::Token,
) -> Result<(Completion, Data), Failure> {
    // No other command has use for data; what came with one is given back at once.
    let data = data?.filter(|_| sqe.opcode() == AdminOpcode::SetFeatures.code());
    if sqe.fuse() != 0 || !sqe.uses_sgl() {
        return Err(Status::INVALID_FIELD.dnr().into());
    }
    if sqe.is_fabrics() {
        let completion = fabrics::on_admin_queue(pair, sqe)?;
        return Ok((completion, Data::None));
    }
    let opcode = AdminOpcode::from_u8(sqe.opcode()).ok_or(Status::INVALID_OPCODE.dnr())?;
    let discovery = pair.controller.is_discovery();
    if !(if discovery { discovery::SUPPORTED } else { SUPPORTED }).contains(&opcode) {
        return Err(Status::INVALID_OPCODE.dnr().into());
    }
    if !pair.controller.status().ready {
        return Err(Status::COMMAND_SEQUENCE_ERROR.dnr().into());
    }
    if DataDirection::of(sqe) == DataDirection::None && sqe.sgl().length != 0 {
        return Err(Status::DATA_SGL_LENGTH_INVALID.dnr().into());
    }
    let answer = match opcode {
        AdminOpcode::AsyncEventRequest => return Ok((events::wait(pair, sqe.cid()).await?, Data::None)),
        AdminOpcode::KeepAlive if pair.controller.keep_alive_ms() == 0 && !discovery => {
            return Err(Status::KEEP_ALIVE_TIMEOUT_INVALID.dnr().into());
        }
        AdminOpcode::KeepAlive => Completion::OK.into(),
        AdminOpcode::Abort => abort(pair, sqe).await?.into(),
        AdminOpcode::Identify if discovery => discovery::identify(pair, sqe)?,
        AdminOpcode::Identify => identify::execute(pair, sqe)?,
        AdminOpcode::GetLogPage if discovery => discovery::log_page(pair, token, sqe)?,
        AdminOpcode::GetLogPage => log_page::execute(pair, token, sqe)?,
        AdminOpcode::GetFeatures => features::get(pair, sqe)?,
        AdminOpcode::SetFeatures => Box::pin(features::set(pair, sqe, data, token)).await?,
        _ => return Err(Status::INVALID_OPCODE.dnr().into()),
    };
    deliver(pair, token, sqe, answer).await
}

/// Puts an answer's bytes into a data buffer of the length the host asked for.
async fn deliver<Q: TransportQueuePair>(
    pair: &QueuePair<Q>,
    token: &Q::Token,
    sqe: &Sqe,
    answer: Answer,
) -> Result<(Completion, Data), Failure> {
    let (bytes, offset, len) = match answer {
        Answer::Completion(completion) => return Ok((completion, Data::None)),
        Answer::Bytes { bytes, offset, len } => (bytes, offset, len),
    };
    queue_pair::check_transfer(pair.transport.described(token, sqe)?, len as u64, true, false)?;
    if len > pair.local.target.limits.max_transfer_bytes as usize {
        return Err(Status::INVALID_FIELD.dnr().into());
    }
    let mut buffer = pair.local.reactor.buffer(len, BufferClass::Admin).await;
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    let part = &bytes[from..bytes.len().min(from.saturating_add(len))];
    let to = &mut buffer.as_mut_slice()[..len];
    to[..part.len()].copy_from_slice(part);
    to[part.len()..].fill(0);
    buffer.set_len(len);
    Ok((Completion::OK, Data::Arena(buffer)))
}

/// Abort. What waits for an event, or for data of its host, is aborted. Everything else executes and ends by itself, and is
/// said to be not aborted (bit 0 of DW0).
async fn abort<Q: TransportQueuePair>(pair: &QueuePair<Q>, sqe: &Sqe) -> Result<Completion, Status> {
    if pair.aborts.get() >= MAX_ABORTS {
        return Err(Status::ABORT_LIMIT_EXCEEDED);
    }
    let [sq_low, sq_high, cid_low, cid_high] = sqe.cdw(10).to_le_bytes();
    let qid = Qid(u16::from_le_bytes([sq_low, sq_high]));
    let cid = Cid(u16::from_le_bytes([cid_low, cid_high]));
    pair.aborts.set(pair.aborts.get() + 1);
    let aborted =
        if qid.is_admin() { pair.event_requests.abort(cid) } else { abort_io(pair, qid, cid).await };
    pair.aborts.set(pair.aborts.get() - 1);
    Ok(Completion::success(u64::from(!aborted)))
}

/// Asks the reactor of an I/O queue.
async fn abort_io<Q: TransportQueuePair>(pair: &QueuePair<Q>, qid: Qid, cid: Cid) -> bool {
    let Some((id, mailbox)) = pair.controller.find(qid) else { return false };
    let (answer, answered) = oneshot::channel();
    mailbox.send(move |_| {
        // The asker may be gone meanwhile.
        let _ = answer.send(local::abort(id, cid));
    });
    // A reactor that has ended drops the question.
    answered.await.unwrap_or(false)
}
