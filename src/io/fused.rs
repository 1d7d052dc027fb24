//! Fused Compare and Write: both or neither, and nobody writes in between.
//!
//! NVM command set specification, "Compare and Write". The halves pair by their arrival on the queue (`transports::Arrivals`),
//! not by whose data is there first. Each is served by its own slot: the second brings its entry and its data to the first,
//! which checks the pair, executes it and tells the second how it ended. Atomicity is [`super::range_lock`]'s.
//!
//! | What is wrong | First | Second |
//! |---|---|---|
//! | no other half next to it | 0Ah | 0Ah |
//! | first is no Compare, second no Write | 01h for the wrong one, 0Ah for the other | |
//! | namespaces or ranges differ | 02h | 09h |
//! | larger than ACWU | 14h | 09h |
//! | a half that could not be executed alone | its status, 09h for the other | |
//! | the data differs | 285h | 09h |
//! | the write fails | success | its status |
//!
//! Buffers: data that did not come in the capsules goes into the reactor's buffers where some are free at once, else into two
//! kept for this, taken in this order. A pair waits for no other buffer and locks its range when it has all its data, so that
//! pairs can neither block each other nor anything else for ever.
//!
//! A first half whose second does not come is not kept for ever either: hosts submit both at once, so after the time a host
//! may withhold data it counts as alone.

use super::{Failure, admit, check_size, count};
use crate::{
    namespace::LocalNamespace,
    queue_pair::{self, QueuePair},
};
use backends::BackendQueue;
use nvme::{Completion, IoCommand, IoOpcode, Sqe, Status};
use reactor::{BufferClass, Data, DataBuffer, Reserve, Signal};
use std::{cell::RefCell, rc::Rc};
use transports::{Described, FUSED_FIRST, FUSED_SECOND, FetchError, QueuePair as TransportQueuePair, Slot};

/// Blocks of a pair at most (ACWU plus one).
pub const MAX_BLOCKS: u32 = 16;
/// Bytes of these, in the largest blocks there are.
pub const MAX_BYTES: usize = MAX_BLOCKS as usize * 4096;

const FAILED: Status = Status::ABORTED_FAILED_FUSED;
const MISSING: Status = Status::ABORTED_MISSING_FUSED;

/// Data of a half as it came with the command.
type Came = Result<Option<DataBuffer>, Status>;

/// A half as it arrived: its entry, its data, and what its data descriptor describes.
struct Half<'a> {
    sqe: &'a Sqe,
    data: Came,
    described: Result<Described, Status>,
}

/// Where the halves of a queue pair meet, by the slot of the first.
#[derive(Default)]
pub struct Meetings(RefCell<Vec<(Slot, Rc<Meeting>)>>);

impl Meetings {
    /// The same for both halves, whoever comes first.
    fn meet(&self, first: Slot) -> Rc<Meeting> {
        let mut all = self.0.borrow_mut();
        if let Some(at) = all.iter().position(|(slot, _)| *slot == first) {
            return all.swap_remove(at).1;
        }
        let meeting = Rc::new(Meeting::default());
        all.push((first, meeting.clone()));
        meeting
    }
}

/// What the second half brings.
#[derive(Default)]
enum Brought {
    #[default]
    Nothing,
    Command(Box<Sqe>, Came, Result<Described, Status>),
    Data(Result<DataBuffer, Status>),
    /// Its queue pair ended.
    Gone,
}

/// What the first half tells the second.
#[derive(Default)]
enum Told {
    #[default]
    Nothing,
    Fetch(DataBuffer, usize),
    End(Completion),
    /// Its queue pair ended.
    Gone,
}

#[derive(Default)]
struct Meeting {
    brought: RefCell<Brought>,
    told: RefCell<Told>,
    changed: Signal,
}

impl Meeting {
    fn bring(&self, brought: Brought) {
        *self.brought.borrow_mut() = brought;
        self.changed.notify();
    }

    fn tell(&self, told: Told) {
        *self.told.borrow_mut() = told;
        self.changed.notify();
    }

    async fn brought(&self) -> Brought {
        let take = || match std::mem::take(&mut *self.brought.borrow_mut()) {
            Brought::Nothing => None,
            brought => Some(brought),
        };
        self.changed.wait_for(take).await
    }

    async fn told(&self) -> Told {
        let take = || match std::mem::take(&mut *self.told.borrow_mut()) {
            Told::Nothing => None,
            told => Some(told),
        };
        self.changed.wait_for(take).await
    }
}

/// Tells the other half when this one ends without a result.
struct Leaving<'a, F: Fn(&Meeting)>(&'a Meeting, F);

impl<F: Fn(&Meeting)> Drop for Leaving<'_, F> {
    fn drop(&mut self) {
        (self.1)(self.0);
    }
}

/// Executes a command with a FUSE field other than zero.
pub async fn execute<Q: TransportQueuePair>(
    pair: &QueuePair<Q>,
    slot: Slot,
    sqe: &Sqe,
    data: Came,
    token: &mut Q::Token,
) -> Result<(Completion, Data), Failure> {
    let arrivals = pair.transport.arrivals();
    let completion = match sqe.fuse() {
        FUSED_FIRST => {
            let time = pair.local.target.limits.data_timeout;
            let partner = pair.local.reactor.timeout(time, arrivals.partner(slot)).await;
            if partner.is_none() {
                arrivals.give_up(slot);
            }
            match partner.flatten() {
                Some(_) => first(pair, slot, sqe, data, token).await?,
                None if sqe.opcode() != IoOpcode::Compare.code() => Status::INVALID_OPCODE.dnr().into(),
                None => MISSING.into(),
            }
        }
        FUSED_SECOND => match arrivals.partner(slot).await {
            Some(first) => second(pair, first, sqe, data, token).await?,
            None => MISSING.into(),
        },
        _ => {
            IoCommand::parse(sqe)?;
            Status::INVALID_FIELD.dnr().into()
        }
    };
    Ok((completion, Data::None))
}

/// The second half's slot: brings what the first asks for, and waits for the end.
async fn second<Q: TransportQueuePair>(
    pair: &QueuePair<Q>,
    first: Slot,
    sqe: &Sqe,
    data: Came,
    token: &mut Q::Token,
) -> Result<Completion, Failure> {
    let meeting = pair.fused.meet(first);
    let _leaving = Leaving(&meeting, |meeting| meeting.bring(Brought::Gone));
    meeting.bring(Brought::Command(Box::new(*sqe), data, pair.transport.described(token, sqe)));
    loop {
        match meeting.told().await {
            Told::Fetch(buffer, len) => {
                let fetched = match pair.transport.fetch(token, buffer, len).await {
                    Ok(data) => Ok(data),
                    Err(FetchError::Status(status)) => Err(status),
                    Err(FetchError::Disconnected) => return Err(Failure::Disconnected),
                };
                meeting.bring(Brought::Data(fetched));
            }
            Told::End(completion) => return Ok(completion),
            Told::Nothing | Told::Gone => return Err(Failure::Disconnected),
        }
    }
}

/// The first half's slot: executes both.
async fn first<Q: TransportQueuePair>(
    pair: &QueuePair<Q>,
    slot: Slot,
    sqe: &Sqe,
    data: Came,
    token: &mut Q::Token,
) -> Result<Completion, Failure> {
    let meeting = pair.fused.meet(slot);
    let leaving = Leaving(&meeting, |meeting| meeting.tell(Told::Gone));
    let Brought::Command(other, other_data, other_described) = meeting.brought().await else {
        return Err(Failure::Disconnected);
    };
    let mine = Half { sqe, data, described: pair.transport.described(token, sqe) };
    let its = Half { sqe: &other, data: other_data, described: other_described };
    let (mine, its) = match check(pair, mine, its) {
        Ok(fused) => execute_both(pair, &meeting, fused, token).await?,
        Err((mine, its)) => (mine.into(), its.into()),
    };
    std::mem::forget(leaving);
    meeting.tell(Told::End(its));
    Ok(mine)
}

/// A pair that may be executed.
struct Fused<'a> {
    namespace: &'a LocalNamespace,
    compare: IoCommand<'a>,
    write: IoCommand<'a>,
    len: usize,
    compare_data: Option<DataBuffer>,
    write_data: Option<DataBuffer>,
}

/// All checks of both halves, in the order of the table above and of those for every command; or how both end.
fn check<'a, Q: TransportQueuePair>(
    pair: &'a QueuePair<Q>,
    first: Half<'a>,
    second: Half<'a>,
) -> Result<Fused<'a>, (Status, Status)> {
    let unknown = Status::INVALID_OPCODE.dnr();
    match (first.sqe.opcode() == IoOpcode::Compare.code(), second.sqe.opcode() == IoOpcode::Write.code()) {
        (true, true) => {}
        (true, false) => return Err((MISSING, unknown)),
        (false, true) => return Err((unknown, MISSING)),
        (false, false) => return Err((unknown, unknown)),
    }
    let first_fails = |status: Status| (status, FAILED);
    let second_fails = |status: Status| (FAILED, status);
    let compare_data = first.data.map_err(first_fails)?;
    let write_data = second.data.map_err(second_fails)?;
    let compare = IoCommand::parse(first.sqe).map_err(first_fails)?;
    let write = IoCommand::parse(second.sqe).map_err(second_fails)?;
    if (compare.nsid, compare.lba, compare.blocks) != (write.nsid, write.lba, write.blocks) {
        return Err(first_fails(Status::INVALID_FIELD.dnr()));
    }
    let namespace = admit(pair, &compare).map_err(first_fails)?;
    admit(pair, &write).map_err(second_fails)?;
    let len = compare.byte_len(namespace.geometry().lba_size);
    let fits = |described, arrived| queue_pair::check_transfer(described, len, false, arrived);
    first.described.and_then(|d| fits(d, compare_data.is_some())).map_err(first_fails)?;
    second.described.and_then(|d| fits(d, write_data.is_some())).map_err(second_fails)?;
    namespace.check_range(true, |blocks| compare.is_within(blocks)).map_err(first_fails)?;
    check_size(pair, len).map_err(first_fails)?;
    if compare.blocks > MAX_BLOCKS {
        return Err(first_fails(Status::ATOMIC_WRITE_UNIT_EXCEEDED.dnr()));
    }
    Ok(Fused { namespace, compare, write, len: len as usize, compare_data, write_data })
}

/// Data in for both, then compare and write with the range locked; how both end.
async fn execute_both<Q: TransportQueuePair>(
    pair: &QueuePair<Q>,
    meeting: &Meeting,
    fused: Fused<'_>,
    token: &mut Q::Token,
) -> Result<(Completion, Completion), Failure> {
    let Fused { namespace, compare, write, len, compare_data, write_data } = fused;
    let [for_compare, for_write] = &pair.namespaces.fused;
    let to_compare = if compare_data.is_none() { Some(buffer(pair, len, for_compare).await) } else { None };
    let fetches = write_data.is_none();
    if fetches {
        meeting.tell(Told::Fetch(buffer(pair, len, for_write).await, len));
    }
    let compare_data = match (compare_data, to_compare) {
        (Some(data), _) => data,
        (None, None) => return Err(Status::INTERNAL_ERROR.into()),
        (None, Some(buffer)) => match pair.transport.fetch(token, buffer, len).await {
            Ok(data) => data,
            Err(FetchError::Status(status)) => return Ok((status.into(), FAILED.into())),
            Err(FetchError::Disconnected) => return Err(Failure::Disconnected),
        },
    };
    let write_data = match write_data {
        Some(data) => data,
        None => match meeting.brought().await {
            Brought::Data(Ok(data)) => data,
            Brought::Data(Err(status)) => return Ok((FAILED.into(), status.into())),
            _ => return Err(Failure::Disconnected),
        },
    };
    let lock = namespace.locks.lock(compare.lba.0, compare.blocks.into()).await;
    if let Err(status) = namespace.check_writable() {
        return Ok((FAILED.into(), status.into()));
    }
    let (compared, _) = namespace.queue.execute(&compare, Some(compare_data)).await;
    if !compared.status.is_success() {
        return Ok((compared, FAILED.into()));
    }
    let (written, _) = namespace.queue.execute(&write, Some(write_data)).await;
    drop(lock);
    if written.status.is_success() {
        count(pair, &write, namespace, len as u64);
    }
    Ok((compared, written))
}

/// A buffer of the reactor's if one is free at once, else the one kept for this.
async fn buffer<Q: TransportQueuePair>(pair: &QueuePair<Q>, len: usize, kept: &Reserve) -> DataBuffer {
    match pair.local.reactor.try_buffer(len, BufferClass::Io) {
        Some(buffer) => buffer,
        None => kept.take().await,
    }
}
