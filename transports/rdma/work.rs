//! Posting work and what completions do: capsules to slots, READs in order, WRITEs and their response in one post.

use super::{
    adapter::{Done, Operation, Piece, PostSend, Verbs, WorkStatus},
    device::ZEROES,
    flow::{Read, Work, WorkId},
    keyed_sgl::{Layout, Place, parts},
    queue_pair::{Arrived, Fetch, Inner, Leaving, Life, State, Token},
    receives::Receives,
};
use crate::{Capsule, CloseReason, Disconnected, FetchError, ProtocolError, Slot};
use nvme::{Cqe, Sqe, Status};
use reactor::{Data, DataBuffer};
use std::cell::RefCell;

/// Commands without an answer yet, beyond those a host may have: it sends more than it may.
fn exceeds<V: Verbs>(inner: &Inner<V>, state: &State) -> bool {
    state.held > inner.terms.entries
}

impl<V: Verbs> Inner<V> {
    fn receives(&self) -> Option<&RefCell<Receives>> {
        self.own.as_ref().or_else(|| self.device.shared())
    }

    /// A completion. Of a failed one only the name and the status mean something.
    pub(super) fn complete(&self, work: WorkId, done: &Done) {
        let success = done.status == WorkStatus::Success;
        match work.work {
            Work::Receive if success => self.received(Arrived { receive: work.index, len: done.len }),
            Work::Receive => self.give_back(work.index),
            Work::Read => self.read_done(work, success),
            Work::Respond => self.response_done(work, done.status),
        }
        if !success {
            self.failed(done.status);
        }
        self.room.notify();
    }

    fn failed(&self, status: WorkStatus) {
        if self.is_closed() {
            return;
        }
        if status != WorkStatus::Flushed {
            tracing::info!(qid = self.terms.qid.0, ?status, "a work request failed: the queue pair ends");
        }
        self.close(match status {
            WorkStatus::RemoteAccess => CloseReason::Protocol(
                ProtocolError::DataOutOfRange,
                "its memory is not what a descriptor says: key, range or access",
            ),
            _ => CloseReason::HostGone,
        });
    }

    fn give_back(&self, receive: u16) {
        if let Some(receives) = self.receives() {
            receives.borrow_mut().give_back(receive);
            let mut state = self.state.borrow_mut();
            self.mark_dirty(&mut state);
        }
    }

    /// A capsule has arrived. It may come before the connection is known to be established: then it waits.
    fn received(&self, arrived: Arrived) {
        if !matches!(self.life.get(), Life::Open | Life::Connecting) {
            return self.give_back(arrived.receive);
        }
        let mut state = self.state.borrow_mut();
        state.held += 1;
        if (arrived.len as usize) < Sqe::LEN || exceeds(self, &state) {
            drop(state);
            self.give_back(arrived.receive);
            let short = (arrived.len as usize) < Sqe::LEN;
            return self.close(if short {
                CloseReason::Protocol(ProtocolError::InvalidHeaderField, "a capsule shorter than 64 bytes")
            } else {
                CloseReason::Protocol(ProtocolError::LimitExceeded, "more commands than the queue holds")
            });
        }
        match state.free.pop() {
            Some(slot) => {
                let capsule = capsule(self, &mut state, slot, arrived);
                let slot = &mut state.slots[slot as usize];
                slot.capsule = Some(capsule);
                if let Some(waker) = &slot.waker {
                    waker.wake_by_ref();
                }
            }
            None => {
                if self.life.get() == Life::Open {
                    self.device.counters.parked.add(1);
                }
                state.parked.push_back(arrived);
                drop(state);
                self.changed.notify();
            }
        }
    }

    fn read_done(&self, work: WorkId, success: bool) {
        let mut state = self.state.borrow_mut();
        state.send.complete(work.sequence);
        state.reads.end();
        if success && let Some(slot) = state.slots.get_mut(work.index as usize) {
            let fetch = std::mem::replace(&mut slot.fetch, Fetch::Idle);
            slot.fetch = match fetch {
                Fetch::Active { mut buffer, left: 1, len } => {
                    buffer.set_len(len);
                    if let Some(waker) = &slot.waker {
                        waker.wake_by_ref();
                    }
                    Fetch::Done(buffer)
                }
                Fetch::Active { buffer, left, len } => Fetch::Active { buffer, left: left - 1, len },
                other => other,
            };
        }
        self.post_reads(&mut state);
    }

    fn response_done(&self, work: WorkId, status: WorkStatus) {
        let mut state = self.state.borrow_mut();
        state.send.complete(work.sequence);
        let mut invalidated = false;
        while let Some(leaving) = state.leaving.front() {
            // Those that did not tell have left before this one.
            if (work.sequence.wrapping_sub(leaving.sequence) as i16) < 0 {
                break;
            }
            let Some(leaving) = state.leaving.pop_front() else { break };
            state.free_entries.push(leaving.entry);
            invalidated = leaving.invalidates;
        }
        self.post_reads(&mut state);
        drop(state);
        if status == WorkStatus::LocalOperation && invalidated && self.device.can_invalidate.replace(false) {
            tracing::warn!(
                device = self.device.limits.name,
                "the device says that it can send with invalidation and cannot: hosts invalidate their keys themselves from now on"
            );
        }
    }

    fn mark_dirty(&self, state: &mut State) {
        if !std::mem::replace(&mut state.is_dirty, true) {
            self.device.mark_dirty(self.owner);
        }
    }

    /// Prepares READs, as many as may be outstanding.
    fn post_reads(&self, state: &mut State) {
        if self.is_closed() {
            return state.reads.clear();
        }
        while let Some(read) = state.reads.begin(state.send.room()) {
            let slot = &state.slots[read.slot as usize];
            let Fetch::Active { buffer, len, .. } = &slot.fetch else {
                state.reads.end();
                continue;
            };
            let Some((start, part)) = parts(&slot.pieces, *len).nth(read.piece.into()) else {
                state.reads.end();
                continue;
            };
            let address = buffer.address() + start as u64;
            let piece = Piece { address, len: part.len, key: self.device.arena_key };
            let operation = Operation::Read { address: part.address, key: part.key };
            let (sequence, tells) = state.send.post(true);
            let id = WorkId { work: Work::Read, owner: self.owner, index: read.slot, sequence };
            state.pending.push(PostSend { id: id.encode(), operation, piece, tells });
            self.device.counters.reads.add(1);
            self.mark_dirty(state);
        }
    }

    /// Posts what was prepared: receives first, then everything for the send queue in one go.
    pub(super) fn flush(&self) {
        let mut state = self.state.borrow_mut();
        state.is_dirty = false;
        let qp = self.qp.borrow();
        let Some(qp) = qp.as_ref() else { return };
        let mut failed = None;
        if let Some(own) = &self.own {
            let mut own = own.borrow_mut();
            let due = own.due();
            if !due.is_empty() && !self.is_closed() {
                self.device.counters.receives.add(due.len() as u64);
                failed = V::post_receives(qp, due).err();
            }
            due.clear();
            if own.is_due() && !self.is_closed() {
                // A buffer is still with a backend: looked for again in the next turn.
                self.mark_dirty(&mut state);
            }
        }
        if self.is_closed() {
            let is_read = |send: &&PostSend| matches!(send.operation, Operation::Read { .. });
            (0..state.pending.iter().filter(is_read).count()).for_each(|_| state.reads.end());
        } else if !state.pending.is_empty() {
            self.device.counters.doorbells.add(1);
            failed = V::post_sends(qp, &state.pending).err().or(failed);
        }
        state.pending.clear();
        drop(state);
        if self.life.get() != Life::Open {
            // Who waits for the last work looks again.
            self.room.notify();
        }
        if let Some(error) = failed {
            tracing::warn!(qid = self.terms.qid.0, %error, "cannot post work: the queue pair ends");
            self.close(CloseReason::HostGone);
        }
    }
}

/// A capsule for a slot. Its receive is posted again at once, unless its in-capsule data goes with the command.
pub(super) fn capsule<V: Verbs>(
    inner: &Inner<V>,
    state: &mut State,
    slot: Slot,
    arrived: Arrived,
) -> Capsule<Token> {
    let token = Token { slot };
    let Some(receives) = inner.receives() else {
        // A queue pair has receives of one kind or the other.
        return Capsule { sqe: Sqe::parse(&[0; Sqe::LEN]), data: Ok(None), token };
    };
    let mut receives = receives.borrow_mut();
    let sqe = receives.sqe(arrived.receive);
    // Slots are given in the order of arrival: one that is free takes what is parked first.
    if !inner.terms.qid.is_admin() && inner.life.get() == Life::Open {
        inner.arrivals.note(slot, sqe.fuse());
    }
    let own = &mut state.slots[slot as usize];
    let in_capsule = receives.in_capsule(arrived.receive, arrived.len as usize - Sqe::LEN);
    own.layout = Layout::parse(&sqe, in_capsule, inner.terms.in_capsule, &mut own.pieces);
    let mut data = None;
    match own.layout {
        Ok(Layout { place: Place::InCapsule { offset, len }, .. }) if len > 0 => {
            if let Some((buffer, moved)) = receives.take(arrived.receive, offset, len) {
                inner.device.reactor.stats().copied_bytes.add(moved as u64);
                data = Some(buffer);
            }
            own.receive = Some(arrived.receive);
        }
        _ => {
            receives.give_back(arrived.receive);
            drop(receives);
            inner.mark_dirty(state);
        }
    }
    Capsule { sqe, data: Ok(data), token }
}

/// Puts the READs of a command into the queue.
pub(super) fn start_fetch<V: Verbs>(
    inner: &Inner<V>,
    slot: Slot,
    into: DataBuffer,
    len: usize,
) -> Result<(), FetchError> {
    if inner.is_closed() {
        return Err(FetchError::Disconnected);
    }
    let mut state = inner.state.borrow_mut();
    let own = &mut state.slots[slot as usize];
    let count = parts(&own.pieces, len).count();
    let described: usize = parts(&own.pieces, len).map(|(_, part)| part.len as usize).sum();
    if described != len || len > into.capacity() || count == 0 {
        return Err(FetchError::Status(Status::DATA_SGL_LENGTH_INVALID.dnr()));
    }
    own.fetch = Fetch::Active { buffer: into, left: count as u16, len };
    (0..count as u16).for_each(|piece| state.reads.push(Read { slot, piece }));
    inner.post_reads(&mut state);
    if state.reads.waiting() > 0 {
        inner.device.counters.read_waits.add(1);
    }
    Ok(())
}

/// WRITEs a response of `len` bytes takes at most, whatever it carries.
fn writes(state: &State, slot: Slot, len: usize) -> usize {
    parts(&state.slots[slot as usize].pieces, len).map(|(_, part)| (part.len as usize).div_ceil(ZEROES)).sum()
}

/// Waits until a response fits into the send queue.
pub(super) async fn wait_for_room<V: Verbs>(
    inner: &Inner<V>,
    slot: Slot,
    len: usize,
) -> Result<(), Disconnected> {
    let fits = || {
        if inner.is_closed() {
            return Some(Err(Disconnected));
        }
        let state = inner.state.borrow();
        let needed = writes(&state, slot, len) as u32 + 1;
        let fits = state.send.room() >= needed && !state.free_entries.is_empty();
        fits.then_some(Ok(()))
    };
    if let Some(result) = fits() {
        return result;
    }
    inner.device.counters.send_waits.add(1);
    inner.room.wait_for(fits).await
}

/// Prepares a response: WRITEs of the data, then the SEND, which tells when something waits for it. The caller made sure of room.
pub(super) fn post_response<V: Verbs>(inner: &Inner<V>, slot: Slot, cqe: Cqe, data: Data) {
    if inner.is_closed() {
        return;
    }
    let mut state = inner.state.borrow_mut();
    let Some(entry) = state.free_entries.pop() else { return };
    let state = &mut *state;
    if let Some(receive) = state.slots[slot as usize].receive.take()
        && let Some(receives) = inner.receives()
    {
        receives.borrow_mut().give_back(receive);
    }
    let carries = !data.is_empty();
    let data = post_data(inner, state, slot, entry, data);
    let counters = &inner.device.counters;
    let own = &mut state.slots[slot as usize];
    let wanted = match own.layout {
        Ok(Layout { place: Place::Keyed { invalidate }, .. }) => invalidate,
        _ => None,
    };
    let operation = match wanted {
        Some(key) if inner.device.can_invalidate.get() => {
            counters.invalidations.add(1);
            Operation::SendInvalidate { key }
        }
        Some(_) => {
            counters.invalidations_left.add(1);
            Operation::Send
        }
        None => Operation::Send,
    };
    own.layout = Ok(Layout::NONE);
    own.pieces.clear();
    state.held = state.held.saturating_sub(1);
    let at = usize::from(entry) * Cqe::LEN;
    state.cqes.copy_in(at, *cqe.as_bytes());
    let must_tell = carries
        || operation != Operation::Send
        || inner.life.get() != Life::Open
        || state.free_entries.len() < state.cqes.capacity() / Cqe::LEN / 4;
    let (sequence, tells) = state.send.post(must_tell);
    let id = WorkId { work: Work::Respond, owner: inner.owner, index: entry, sequence }.encode();
    let address = state.cqes.address() + at as u64;
    let piece = Piece { address, len: Cqe::LEN as u32, key: inner.device.small_key };
    state.pending.push(PostSend { id, operation, piece, tells });
    let invalidates = operation != Operation::Send;
    state.leaving.push_back(Leaving { sequence, entry, tells, invalidates, _data: data });
    counters.sends.add(1);
    inner.mark_dirty(state);
}

/// Prepares the WRITEs of a response; the buffer that must be kept for them.
fn post_data<V: Verbs>(
    inner: &Inner<V>,
    state: &mut State,
    slot: Slot,
    entry: u16,
    data: Data,
) -> Option<DataBuffer> {
    let State { slots, send, pending, .. } = state;
    let mut write = |from: u64, len: u32, local_key: u32, address: u64, key: u32| {
        let sequence = send.post_silent();
        let id = WorkId { work: Work::Respond, owner: inner.owner, index: entry, sequence }.encode();
        let piece = Piece { address: from, len, key: local_key };
        pending.push(PostSend { id, operation: Operation::Write { address, key }, piece, tells: false });
        inner.device.counters.writes.add(1);
    };
    let pieces = &slots[slot as usize].pieces;
    match data {
        Data::Arena(buffer) => {
            for (start, part) in parts(pieces, buffer.len()) {
                let from = buffer.address() + start as u64;
                write(from, part.len, inner.device.arena_key, part.address, part.key);
            }
            Some(buffer)
        }
        Data::Zeroes(len) => {
            let (from, key) = (inner.device.zeroes.address(), inner.device.small_key);
            for (_, part) in parts(pieces, len as usize) {
                for at in (0..part.len).step_by(ZEROES) {
                    let len = (part.len - at).min(ZEROES as u32);
                    write(from, len, key, part.address + u64::from(at), part.key);
                }
            }
            None
        }
        // Copied by the caller, or nothing at all.
        Data::None | Data::Namespace(_) => None,
    }
}
