//! The stream to the host: responses are gathered while a send is under way or a turn runs, and leave in one.

use super::{
    pdu::{self, DIGEST, SHORT_HEADER},
    queue_pair::Inner,
};
use crate::{CloseReason, Disconnected};
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

/// Two gathers take turns: one is filled while the other is sent.
pub(super) struct SendState {
    filling: RefCell<Box<Gather>>,
    spare: RefCell<Option<Box<Gather>>>,
    /// Headers of one response in the worst case.
    header_bytes: usize,
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

    fn has_room(&self, zeroes: usize) -> bool {
        self.filling.borrow().has_room(self.header_bytes, zeroes)
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
        let (result, mut gather) = inner.reactor.send(&inner.socket, gather).await;
        state.in_flight.set(false);
        gather.clear();
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
pub(super) async fn wait_for_room(inner: &Inner, zeroes: usize) -> Result<(), Disconnected> {
    if !inner.is_closed() && inner.send.has_room(zeroes) {
        return Ok(());
    }
    let state = &inner.send;
    state
        .room
        .wait_for(|| {
            if inner.is_closed() {
                return Some(Err(Disconnected));
            }
            state.has_room(zeroes).then_some(Ok(()))
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
pub(super) async fn respond(inner: &Inner, cid: Cid, cqe: Cqe, data: Data) -> Result<(), Disconnected> {
    let data = match data {
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
    let zeroes = if let Data::Zeroes(len) = data { len as usize } else { 0 };
    wait_for_room(inner, zeroes).await?;
    let mut success = false;
    if !data.is_empty() {
        success = !inner.parameters.sq_flow_control
            && Completion { status: cqe.status(), result: cqe.result() } == Completion::OK;
        push_data(inner, cid, success, data);
    }
    if !success {
        inner.send.filling.borrow_mut().push_header(pdu::encode_response(&cqe, inner.digests).as_bytes());
    }
    inner.send.kick();
    Ok(())
}

fn push_data(inner: &Inner, cid: Cid, success: bool, data: Data) {
    let mut gather = inner.send.filling.borrow_mut();
    let header = pdu::encode_data(cid, data.len(), success, inner.host_alignment, inner.digests);
    gather.push_header(header.as_bytes());
    let mut sum = None;
    match data {
        Data::None => {}
        Data::Arena(buffer) => {
            sum = inner.digests.data.then(|| pdu::digest(buffer.filled()));
            gather.push_buffer(buffer);
        }
        Data::Namespace(bytes) => gather.push_shared(bytes),
        Data::Zeroes(len) => {
            sum = inner.digests.data.then(|| pdu::digest_of_zeroes(len as usize));
            gather.push_zeroes(len as usize);
        }
    }
    if let Some(sum) = sum {
        gather.push_header(&sum);
    }
}
