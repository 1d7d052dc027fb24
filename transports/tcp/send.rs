//! The stream to the host: responses are gathered while a send is under way or a turn runs, and leave in one.

use super::{
    pdu::{self, DIGEST, Piece, SHORT_HEADER},
    queue_pair::Inner,
};
use crate::{CloseReason, Disconnected, Slot};
use nvme::{Cid, Completion, Cqe};
use reactor::{BufferClass, Data, Gather, Signal};
use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    rc::Rc,
    task::{Poll, Waker},
};

/// Responses gathered at most for one send.
const MAX_GATHERED: usize = 64;
/// The most data in one C2HData PDU. A command has one under way at a time, so that a read of a megabyte does not hold up
/// what is answered after it for its whole length.
pub(super) const MAX_PIECE: usize = 256 << 10;
/// From this many bytes on, a gather takes no more pieces of a size that counts: what is small still fits.
const FULL: usize = 1 << 20;
/// What is small.
const SMALL: usize = 16 << 10;

/// Two gathers take turns: one is filled while the other is sent.
pub(super) struct SendState {
    filling: RefCell<Box<Gather>>,
    spare: RefCell<Option<Box<Gather>>>,
    /// Headers of one response in the worst case.
    header_bytes: usize,
    /// Counts gathers: that which is being filled, and the last that was sent.
    filling_number: Cell<u64>,
    sent_number: Cell<u64>,
    waker: Cell<Option<Waker>>,
    room: Signal,
    finishing: Cell<bool>,
    in_flight: Cell<bool>,
    ended: Cell<bool>,
}

impl SendState {
    pub(super) fn new(slots: usize, host_alignment: usize) -> SendState {
        let data_header = (SHORT_HEADER + DIGEST).next_multiple_of(host_alignment);
        let header_bytes = data_header + DIGEST + SHORT_HEADER + DIGEST;
        let gather = || Box::new(Gather::new(slots.clamp(2, MAX_GATHERED), header_bytes));
        SendState {
            filling: RefCell::new(gather()),
            spare: RefCell::new(Some(gather())),
            header_bytes,
            filling_number: Cell::new(1),
            sent_number: Cell::new(0),
            waker: Cell::new(None),
            room: Signal::new(),
            finishing: Cell::new(false),
            in_flight: Cell::new(false),
            ended: Cell::new(false),
        }
    }

    /// Lets the send loop look again.
    pub(super) fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
        self.room.notify();
    }

    /// Sends what there is, then ends.
    pub(super) fn finish(&self) {
        self.finishing.set(true);
        self.wake();
    }

    /// Whether a send is under way.
    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight.get()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.get()
    }

    fn has_room(&self, data: usize) -> bool {
        let filling = self.filling.borrow();
        // Room for zeroes, whether it is zeroes or not.
        filling.has_room(self.header_bytes, data) && (data <= SMALL || filling.bytes() < FULL)
    }

    fn kick(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// The send loop: one send under way at a time.
pub(super) async fn run(inner: Rc<Inner>) {
    let state = &inner.send;
    while let Some(gather) = next(&inner).await {
        state.in_flight.set(true);
        let number = state.filling_number.get();
        state.filling_number.set(number + 1);
        let (result, mut gather) = inner.reactor.send(&inner.socket, gather).await;
        state.in_flight.set(false);
        gather.give_back(|slot, buffer| inner.returned(slot, buffer));
        state.sent_number.set(number);
        *state.spare.borrow_mut() = Some(gather);
        state.room.notify();
        if result.is_err() {
            inner.close(CloseReason::HostGone);
        }
    }
    state.ended.set(true);
    inner.send_ended();
}

/// The next gather to send; none at the end.
async fn next(inner: &Inner) -> Option<Box<Gather>> {
    let state = &inner.send;
    poll_fn(|cx| {
        if inner.is_closed() {
            return Poll::Ready(None);
        }
        let mut filling = state.filling.borrow_mut();
        if !filling.is_empty() {
            let spare = state.spare.borrow_mut().take();
            return Poll::Ready(spare.map(|spare| std::mem::replace(&mut *filling, spare)));
        }
        if state.finishing.get() {
            return Poll::Ready(None);
        }
        state.waker.set(Some(cx.waker().clone()));
        Poll::Pending
    })
    .await
}

/// Waits until one more response fits.
pub(super) async fn wait_for_room(inner: &Inner, data: usize) -> Result<(), Disconnected> {
    if !inner.is_closed() && inner.send.has_room(data) {
        return Ok(());
    }
    let state = &inner.send;
    state
        .room
        .wait_for(|| {
            if inner.is_closed() {
                return Some(Err(Disconnected));
            }
            state.has_room(data).then_some(Ok(()))
        })
        .await
}

/// Appends a response without data; the caller made sure of room.
pub(super) fn push_response(inner: &Inner, cqe: &Cqe) {
    inner.send.filling.borrow_mut().push_header(pdu::encode_response(cqe, inner.digests).as_bytes());
    inner.send.kick();
}

/// Appends an R2T; the caller made sure of room.
pub(super) fn push_r2t(inner: &Inner, cid: Cid, tag: u16, len: usize) {
    inner.send.filling.borrow_mut().push_header(pdu::encode_r2t(cid, tag, len, inner.digests).as_bytes());
    inner.send.kick();
}

/// Answers a command: data first, then its completion, unless the data can stand for it.
///
/// Much data goes in pieces, one at a time, so that others get their turn in between: see [`MAX_PIECE`].
pub(super) async fn respond(
    inner: &Inner,
    slot: Slot,
    cid: Cid,
    cqe: Cqe,
    data: Data,
) -> Result<(), Disconnected> {
    let mut data = match data {
        // The memory can change under a digest that was computed before it leaves; so it leaves as a copy.
        Data::Namespace(bytes) if inner.digests.data => {
            let mut buffer = inner.reactor.buffer(bytes.len(), BufferClass::Io).await;
            bytes.copy_to(&mut buffer.as_mut_slice()[..bytes.len()]);
            buffer.set_len(bytes.len());
            inner.reactor.stats().copied_bytes.add(bytes.len() as u64);
            Data::Arena(buffer)
        }
        data => data,
    };
    let mut offset = 0;
    let total = data.len();
    while total - offset > MAX_PIECE {
        wait_for_room(inner, MAX_PIECE).await?;
        let number = push_piece(inner, slot, cid, offset, &mut data);
        offset += MAX_PIECE;
        wait_until_sent(inner, slot, number, &mut data).await?;
    }
    wait_for_room(inner, total - offset).await?;
    let mut success = false;
    if total > 0 {
        success = !inner.parameters.sq_flow_control
            && Completion { status: cqe.status(), result: cqe.result() } == Completion::OK;
        push_last_piece(inner, cid, Piece { offset, len: total - offset, last: true, success }, data);
    }
    if !success {
        // Smaller responses may have passed this one: the head is that of its place.
        let mut cqe = cqe;
        cqe.set_sq_head(inner.next_sq_head());
        inner.send.filling.borrow_mut().push_header(pdu::encode_response(&cqe, inner.digests).as_bytes());
    }
    inner.send.kick();
    Ok(())
}

/// Appends a piece that is not the last; the number of the gather it leaves with. A data buffer is lent to the gather.
fn push_piece(inner: &Inner, slot: Slot, cid: Cid, offset: usize, data: &mut Data) -> u64 {
    let mut gather = inner.send.filling.borrow_mut();
    let piece = Piece { offset, len: MAX_PIECE, last: false, success: false };
    gather.push_header(pdu::encode_data(cid, piece, inner.host_alignment, inner.digests).as_bytes());
    let sum = digest_of(inner, data, offset, MAX_PIECE);
    match std::mem::replace(data, Data::None) {
        Data::None => {}
        Data::Arena(buffer) => gather.push_lent(slot, buffer, offset, MAX_PIECE),
        Data::Namespace(bytes) => {
            gather.push_shared(bytes.part(offset, MAX_PIECE));
            *data = Data::Namespace(bytes);
        }
        Data::Zeroes(len) => {
            gather.push_zeroes(MAX_PIECE);
            *data = Data::Zeroes(len);
        }
    }
    if let Some(sum) = sum {
        gather.push_header(&sum);
    }
    drop(gather);
    inner.send.kick();
    inner.send.filling_number.get()
}

/// Waits until a piece has left, and gets the buffer back that it was lent from.
async fn wait_until_sent(
    inner: &Inner,
    slot: Slot,
    number: u64,
    data: &mut Data,
) -> Result<(), Disconnected> {
    let state = &inner.send;
    state
        .room
        .wait_for(|| {
            if inner.is_closed() {
                return Some(Err(Disconnected));
            }
            (state.sent_number.get() >= number).then_some(Ok(()))
        })
        .await?;
    if let Some(buffer) = inner.take_returned(slot) {
        *data = Data::Arena(buffer);
    }
    Ok(())
}

fn push_last_piece(inner: &Inner, cid: Cid, piece: Piece, data: Data) {
    let mut gather = inner.send.filling.borrow_mut();
    gather.push_header(pdu::encode_data(cid, piece, inner.host_alignment, inner.digests).as_bytes());
    let sum = digest_of(inner, &data, piece.offset, piece.len);
    match data {
        Data::None => {}
        Data::Arena(buffer) => gather.push_buffer(buffer, piece.offset),
        Data::Namespace(bytes) => gather.push_shared(bytes.part(piece.offset, piece.len)),
        Data::Zeroes(_) => gather.push_zeroes(piece.len),
    }
    if let Some(sum) = sum {
        gather.push_header(&sum);
    }
}

/// The digest of a piece, where there are any. Of a memory namespace there is none: it was copied before.
fn digest_of(inner: &Inner, data: &Data, offset: usize, len: usize) -> Option<[u8; DIGEST]> {
    match data {
        Data::Arena(buffer) if inner.digests.data => {
            Some(pdu::digest(&buffer.filled()[offset..offset + len]))
        }
        Data::Zeroes(_) if inner.digests.data => Some(pdu::digest_of_zeroes(len)),
        _ => None,
    }
}
