//! A TCP queue pair: its slots, how it closes, and the trait.
//!
//! Three kinds of futures share one `Inner`: the receive loop, the send loop, and the slots that the pipeline runs. All
//! live on one reactor, so plain cells do; nothing is locked.

use super::{
    connection::{Connection, Negotiated},
    pdu::{self, Digests, Fatal},
    receive, send,
    send::SendState,
    stall,
};
use crate::{
    Arrivals, Capsule, CloseReason, Described, Disconnected, FetchError, QueuePair, QueueParameters,
    SglSupport, Slot, described_without_keys,
};
use nvme::{Cid, Cqe, Sqe, Status};
use reactor::{Data, DataBuffer, Reactor, Reserve, Signal, system};
use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    io,
    os::fd::OwnedFd,
    rc::Rc,
    task::{Poll, Waker},
    time::Instant,
};

/// What is remembered of a command until it is answered.
pub struct Token {
    slot: Slot,
    cid: Cid,
}

/// Data on its way from the host for one slot.
pub(super) enum Fetch {
    /// None asked for.
    Idle,
    /// To be asked for once there is a buffer; or not at all, when it was aborted.
    Announced { cid: Cid, aborted: bool },
    /// Asked for with R2T.
    Active {
        cid: Cid,
        /// Out while bytes are received straight into it.
        buffer: Option<DataBuffer>,
        total: usize,
        received: usize,
        /// When the host last sent some of it.
        since: Instant,
        /// A data digest did not match, or the command was aborted; the rest is still taken.
        failed: Option<Status>,
    },
    /// Complete.
    Done(Result<DataBuffer, Status>),
    /// The other way: a piece of this buffer has been sent, and there is more in it.
    Returned(DataBuffer),
}

pub(super) struct SlotState {
    pub(super) capsule: Option<Capsule<Token>>,
    waker: Option<Waker>,
    pub(super) fetch: Fetch,
}

pub(super) struct Slots {
    pub(super) all: Box<[SlotState]>,
    pub(super) free: Vec<Slot>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Open,
    Draining,
    Closed(CloseReason),
}

pub(super) struct Inner {
    pub(super) reactor: Reactor,
    pub(super) socket: Rc<OwnedFd>,
    pub(super) parameters: QueueParameters,
    pub(super) digests: Digests,
    pub(super) host_alignment: usize,
    pub(super) max_host_data: usize,
    pub(super) reserve: Reserve,
    pub(super) slots: RefCell<Slots>,
    pub(super) send: SendState,
    /// The submission queue's head, as the last completion told it; Connect has taken the first entry.
    sq_head: Cell<u32>,
    arrivals: Arrivals,
    life: Cell<Life>,
    changed: Signal,
    receiving: Cell<bool>,
    /// Since when the host owes the rest of a PDU.
    pub(super) partial_since: Cell<Option<Instant>>,
    /// The stream waits for a data buffer: what the host sends lies unread, through no fault of its own.
    pub(super) starved: Cell<bool>,
}

/// A TCP queue pair in service.
#[derive(Clone)]
pub struct TcpQueuePair(Rc<Inner>);

impl TcpQueuePair {
    pub(super) fn install(
        connection: Connection,
        reactor: &Reactor,
        parameters: QueueParameters,
        connected: Cqe,
    ) -> io::Result<TcpQueuePair> {
        let (socket, negotiated) = connection.into_parts();
        let inner = Rc::new(Inner::new(socket, negotiated, reactor, parameters)?);
        send::push_response(&inner, &connected);
        reactor.spawn(send::run(inner.clone()));
        reactor.spawn(receive::run(inner.clone()));
        reactor.spawn(stall::watch(inner.clone()));
        Ok(TcpQueuePair(inner))
    }
}

impl Inner {
    pub(super) fn new(
        socket: OwnedFd,
        negotiated: Negotiated,
        reactor: &Reactor,
        parameters: QueueParameters,
    ) -> io::Result<Inner> {
        let slot = || SlotState { capsule: None, waker: None, fetch: Fetch::Idle };
        let count = parameters.slots as usize;
        let in_capsule = parameters.in_capsule.max(pdu::FABRICS_IN_CAPSULE);
        Ok(Inner {
            reactor: reactor.clone(),
            socket: Rc::new(socket),
            parameters,
            digests: negotiated.digests,
            host_alignment: negotiated.host_alignment,
            max_host_data: negotiated.max_host_data,
            reserve: reactor.reserve(in_capsule)?,
            slots: RefCell::new(Slots {
                all: (0..count).map(|_| slot()).collect(),
                free: Vec::with_capacity(count),
            }),
            send: SendState::new(count, negotiated.host_alignment),
            sq_head: Cell::new(1),
            arrivals: Arrivals::default(),
            life: Cell::new(Life::Open),
            changed: Signal::new(),
            receiving: Cell::new(true),
            partial_since: Cell::new(None),
            starved: Cell::new(false),
        })
    }

    /// Bytes of in-capsule data that `sqe` may carry.
    pub(super) fn in_capsule_limit(&self, sqe: &Sqe) -> usize {
        if self.parameters.qid.is_admin() || sqe.opcode() == nvme::opcode::FABRICS {
            self.parameters.in_capsule.max(pdu::FABRICS_IN_CAPSULE)
        } else {
            self.parameters.in_capsule
        }
    }

    /// The submission queue's head after one more completion; zero when the host does without.
    pub(super) fn next_sq_head(&self) -> u16 {
        if !self.parameters.sq_flow_control {
            return 0;
        }
        self.sq_head.set((self.sq_head.get() + 1) % self.parameters.sq_entries);
        self.sq_head.get() as u16
    }

    /// Hands a command to a free slot.
    pub(super) fn deliver(&self, sqe: Sqe, data: Result<Option<DataBuffer>, Status>) -> Result<(), Fatal> {
        if self.life.get() != Life::Open {
            return Ok(());
        }
        let mut slots = self.slots.borrow_mut();
        // One slot per command the host may have outstanding; none free means that it sends more than it may.
        let slot = slots.free.pop().ok_or(Fatal::QueueOverrun)?;
        if !self.parameters.qid.is_admin() {
            self.arrivals.note(slot, sqe.fuse());
        }
        let state = &mut slots.all[slot as usize];
        let token = Token { slot, cid: sqe.cid() };
        state.capsule = Some(Capsule { sqe, data, token });
        if let Some(waker) = &state.waker {
            waker.wake_by_ref();
        }
        Ok(())
    }

    /// Data of a slot is complete.
    pub(super) fn fetched(state: &mut SlotState, result: Result<DataBuffer, Status>) {
        state.fetch = Fetch::Done(result);
        if let Some(waker) = &state.waker {
            waker.wake_by_ref();
        }
    }

    /// A buffer comes back from the send loop.
    pub(super) fn returned(&self, slot: Slot, buffer: DataBuffer) {
        if !self.is_closed() {
            self.slots.borrow_mut().all[slot as usize].fetch = Fetch::Returned(buffer);
        }
    }

    /// The buffer that came back for a slot.
    pub(super) fn take_returned(&self, slot: Slot) -> Option<DataBuffer> {
        let fetch = &mut self.slots.borrow_mut().all[slot as usize].fetch;
        match std::mem::replace(fetch, Fetch::Idle) {
            Fetch::Returned(buffer) => Some(buffer),
            _ => None,
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.life.get(), Life::Closed(_))
    }

    /// Ends everything that waits. The socket stays open where the receive loop still has something to tell the host.
    pub(super) fn end(&self, reason: CloseReason) {
        if self.is_closed() {
            return;
        }
        self.life.set(Life::Closed(reason));
        self.wake_all();
    }

    pub(super) fn close(&self, reason: CloseReason) {
        self.end(reason);
        system::shut_down(&self.socket);
    }

    fn wake_all(&self) {
        self.arrivals.end();
        for slot in &self.slots.borrow().all {
            if let Some(waker) = &slot.waker {
                waker.wake_by_ref();
            }
        }
        self.send.wake();
        self.changed.notify();
    }

    /// The receive loop has ended.
    pub(super) fn receive_ended(&self) {
        self.receiving.set(false);
        self.changed.notify();
    }

    /// The send loop has ended.
    pub(super) fn send_ended(&self) {
        self.changed.notify();
    }

    pub(super) async fn wait_for_close(&self) {
        self.changed.wait_for(|| self.is_closed().then_some(())).await;
    }

    pub(super) async fn wait_for_send_end(&self) {
        self.changed.wait_for(|| self.send.has_ended().then_some(())).await;
    }
}

impl QueuePair for TcpQueuePair {
    type Token = Token;

    fn sgl_support(_: usize) -> SglSupport {
        SglSupport { keyed: false, max_descriptors: 1 }
    }

    fn described(&self, _: &Token, sqe: &Sqe) -> Result<Described, Status> {
        described_without_keys(sqe)
    }

    async fn receive(&self, slot: Slot) -> Result<Capsule<Token>, Disconnected> {
        let inner = &self.0;
        let mut listed = false;
        poll_fn(|cx| {
            let mut slots = inner.slots.borrow_mut();
            let state = &mut slots.all[slot as usize];
            if let Some(capsule) = state.capsule.take() {
                return Poll::Ready(Ok(capsule));
            }
            if inner.life.get() != Life::Open {
                return Poll::Ready(Err(Disconnected));
            }
            if !std::mem::replace(&mut listed, true) {
                state.waker = Some(cx.waker().clone());
                slots.free.push(slot);
            }
            Poll::Pending
        })
        .await
    }

    fn arrivals(&self) -> &Arrivals {
        &self.0.arrivals
    }

    async fn fetch(&self, token: &mut Token, into: DataBuffer, len: usize) -> Result<DataBuffer, FetchError> {
        let inner = &self.0;
        send::wait_for_room(inner, 0).await.map_err(|Disconnected| FetchError::Disconnected)?;
        if matches!(
            inner.slots.borrow().all[token.slot as usize].fetch,
            Fetch::Announced { aborted: true, .. }
        ) {
            inner.slots.borrow_mut().all[token.slot as usize].fetch = Fetch::Idle;
            return Err(FetchError::Status(Status::ABORT_REQUESTED));
        }
        inner.slots.borrow_mut().all[token.slot as usize].fetch = Fetch::Active {
            cid: token.cid,
            buffer: Some(into),
            total: len,
            received: 0,
            since: inner.reactor.now(),
            failed: None,
        };
        send::push_r2t(inner, token.cid, token.slot, len);
        poll_fn(|cx| {
            let mut slots = inner.slots.borrow_mut();
            let state = &mut slots.all[token.slot as usize];
            if matches!(state.fetch, Fetch::Done(_)) {
                let Fetch::Done(result) = std::mem::replace(&mut state.fetch, Fetch::Idle) else {
                    unreachable!()
                };
                return Poll::Ready(result.map_err(FetchError::Status));
            }
            if inner.is_closed() {
                state.fetch = Fetch::Idle;
                return Poll::Ready(Err(FetchError::Disconnected));
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn announce_fetch(&self, token: &Token) {
        let announced = Fetch::Announced { cid: token.cid, aborted: false };
        self.0.slots.borrow_mut().all[token.slot as usize].fetch = announced;
    }

    fn abort(&self, cid: Cid) -> bool {
        let mut slots = self.0.slots.borrow_mut();
        for slot in &mut slots.all {
            match &mut slot.fetch {
                Fetch::Announced { cid: waiting, aborted } if *waiting == cid => {
                    *aborted = true;
                    return true;
                }
                // The host was asked and will send: the command ends when it has.
                Fetch::Active { cid: waiting, failed, .. } if *waiting == cid => {
                    *failed = Some(Status::ABORT_REQUESTED);
                    return true;
                }
                _ => {}
            }
        }
        false
    }

    fn respond(&self, token: Token, cqe: Cqe, data: Data) -> impl Future<Output = Result<(), Disconnected>> {
        send::respond(&self.0, token.slot, token.cid, cqe, data)
    }

    fn close(&self, reason: CloseReason) {
        self.0.close(reason);
    }

    fn drain(&self) {
        if self.0.life.get() == Life::Open {
            self.0.life.set(Life::Draining);
            self.0.wake_all();
        }
    }

    fn is_closing(&self) -> bool {
        self.0.life.get() != Life::Open
    }

    async fn closing(&self) {
        self.0.changed.wait_for(|| self.is_closing().then_some(())).await;
    }

    async fn finish(&self) -> CloseReason {
        let inner = &self.0;
        if !inner.is_closed() {
            inner.send.finish();
            inner.wait_for_send_end().await;
            inner.close(CloseReason::Drained);
        }
        inner.changed.wait_for(|| (inner.send.has_ended() && !inner.receiving.get()).then_some(())).await;
        match inner.life.get() {
            Life::Closed(reason) => reason,
            Life::Open | Life::Draining => CloseReason::Drained,
        }
    }
}
