//! An RDMA queue pair: its slots, how it ends, and the trait. How work is posted and what completions do is in `work.rs`.
//!
//! Everything lives on one reactor, so plain cells do. A data buffer that was posted stays in this state until its completion, or
//! until the verbs' queue pair is destroyed: whatever future is dropped, the adapter never has memory that is given away.

use super::{
    adapter::{PostSend, QpSizes, Verbs},
    device::LocalDevice,
    flow::{Reads, SendQueue},
    keyed_sgl::{Keyed, Layout, max_descriptors},
    link::{self, Link, Links},
    offload,
    receives::Receives,
    work,
};
use crate::{
    Arrivals, Capsule, CloseReason, Described, Disconnected, FetchError, QueuePair, QueueParameters,
    SglSupport, Slot,
};
use futures::future::{Either, select};
use nvme::{Cqe, Qid, Sqe, Status};
use reactor::{BufferClass, Data, DataBuffer, Reactor, Signal};
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    pin::pin,
    rc::Rc,
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};

/// Responses have so long to leave before a queue pair ends in an orderly way, and work to be flushed afterwards.
const LAST_WORK: Duration = Duration::from_secs(5);

/// What is remembered of a command until it is answered: its slot knows the rest.
pub struct Token {
    pub(super) slot: Slot,
}

/// Data on its way from the host for one slot.
pub(super) enum Fetch {
    /// None asked for.
    Idle,
    /// READs are posted or wait.
    Active {
        /// Kept until the last READ has completed.
        buffer: DataBuffer,
        /// READs not completed.
        left: u16,
        /// Bytes asked for.
        len: usize,
    },
    /// Complete.
    Done(DataBuffer),
}

/// A slot and its command.
pub(super) struct SlotState {
    pub(super) capsule: Option<Capsule<Token>>,
    pub(super) waker: Option<Waker>,
    pub(super) layout: Result<Layout, Status>,
    /// Keyed memory of the host; keeps its room from command to command.
    pub(super) pieces: Vec<Keyed>,
    /// The receive that is posted again before the response leaves.
    pub(super) receive: Option<u16>,
    pub(super) fetch: Fetch,
}

impl SlotState {
    fn new() -> SlotState {
        SlotState {
            capsule: None,
            waker: None,
            layout: Ok(Layout::NONE),
            pieces: Vec::with_capacity(1),
            receive: None,
            fetch: Fetch::Idle,
        }
    }
}

/// A capsule that waits for a slot.
#[derive(Clone, Copy)]
pub(super) struct Arrived {
    pub(super) receive: u16,
    pub(super) len: u32,
}

/// A response on its way, in the order of posting.
pub(super) struct Leaving {
    pub(super) sequence: u16,
    /// Its place among the completion queue entries.
    pub(super) entry: u16,
    pub(super) tells: bool,
    pub(super) invalidates: bool,
    /// Held until its bytes are with the host.
    pub(super) _data: Option<DataBuffer>,
}

pub(super) struct State {
    pub(super) slots: Vec<SlotState>,
    pub(super) free: Vec<Slot>,
    pub(super) parked: VecDeque<Arrived>,
    /// Commands received and not answered.
    pub(super) held: u32,
    pub(super) send: SendQueue,
    pub(super) reads: Reads,
    pub(super) leaving: VecDeque<Leaving>,
    /// Completion queue entries on their way.
    pub(super) cqes: DataBuffer,
    pub(super) free_entries: Vec<u16>,
    /// Posted with the next flush.
    pub(super) pending: Vec<PostSend>,
    pub(super) is_dirty: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// No slots yet: the handshake is under way.
    Connecting,
    Open,
    Draining,
    Closed(CloseReason),
}

/// What a queue pair is made of, fresh from the helper thread.
pub(super) struct Made<V: Verbs> {
    pub(super) qp: V::Qp,
    pub(super) region: Option<V::Region>,
}

/// What is settled when a queue pair is made.
pub(super) struct Terms {
    pub(super) qid: Qid,
    pub(super) entries: u32,
    pub(super) in_capsule: usize,
    pub(super) reads: u8,
    pub(super) sizes: QpSizes,
    /// Its receives come from the shared queue.
    pub(super) shared: bool,
}

/// A queue pair. The verbs' objects come first: they are destroyed before the memory goes.
pub struct Inner<V: Verbs> {
    pub(super) qp: RefCell<Option<V::Qp>>,
    region: RefCell<Option<V::Region>>,
    id: RefCell<Option<V::Id>>,
    pub(super) own: Option<RefCell<Receives>>,
    pub(super) state: RefCell<State>,
    pub(super) device: Rc<LocalDevice<V>>,
    pub(super) owner: u32,
    number: u32,
    pub(super) terms: Terms,
    pub(super) arrivals: Arrivals,
    pub(super) life: Cell<Life>,
    pub(super) room: Signal,
    pub(super) changed: Signal,
    pub(super) established: Cell<bool>,
    destroyed: Cell<bool>,
}

impl<V: Verbs> Inner<V> {
    /// A queue pair in its place, not accepted yet; `own` are its receives when they are not shared.
    pub(super) fn new(
        device: &Rc<LocalDevice<V>>,
        owner: u32,
        id: V::Id,
        made: Made<V>,
        terms: Terms,
        own: Option<Receives>,
        cqes: DataBuffer,
    ) -> Rc<Inner<V>> {
        let Made { qp, region } = made;
        let number = V::number(&qp);
        let entries = terms.entries as usize;
        let responses = cqes.capacity() / Cqe::LEN;
        let inner = Rc::new(Inner {
            number,
            qp: RefCell::new(Some(qp)),
            region: RefCell::new(region),
            id: RefCell::new(Some(id)),
            own: own.map(RefCell::new),
            state: RefCell::new(State {
                slots: vec![SlotState::new()],
                free: Vec::with_capacity(entries + 1),
                parked: VecDeque::with_capacity(entries),
                held: 0,
                send: SendQueue::new(terms.sizes.sends),
                reads: Reads::new(terms.reads.into(), entries),
                leaving: VecDeque::with_capacity(responses),
                cqes,
                free_entries: (0..responses as u16).rev().collect(),
                pending: Vec::with_capacity(terms.sizes.sends as usize),
                is_dirty: false,
            }),
            device: device.clone(),
            owner,
            terms,
            arrivals: Arrivals::default(),
            life: Cell::new(Life::Connecting),
            room: Signal::new(),
            changed: Signal::new(),
            established: Cell::new(false),
            destroyed: Cell::new(false),
        });
        device.add(owner, number, inner.clone());
        inner
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.life.get(), Life::Closed(_))
    }

    /// Ends it: everything that waits ends, the rest is done by [`live`].
    pub(super) fn close(&self, reason: CloseReason) {
        if !self.is_closed() {
            self.life.set(Life::Closed(reason));
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        self.arrivals.end();
        for slot in &self.state.borrow().slots {
            if let Some(waker) = &slot.waker {
                waker.wake_by_ref();
            }
        }
        self.room.notify();
        self.changed.notify();
    }

    /// Whether nothing is with the adapter that it will tell of.
    fn is_quiet(&self) -> bool {
        let state = self.state.borrow();
        state.pending.is_empty() && state.reads.outstanding() == 0 && !state.leaving.iter().any(|l| l.tells)
    }

    /// Waits, for a while, until what was posted has completed.
    pub(super) async fn quiet(&self) {
        let done = || (self.is_quiet() || self.is_closed()).then_some(());
        self.device.reactor.timeout(LAST_WORK, self.room.wait_for(done)).await;
    }

    /// Waits until it is no more.
    pub(super) async fn end(&self) {
        self.changed.wait_for(|| self.destroyed.get().then_some(())).await;
    }

    pub(super) fn close_reason(&self) -> CloseReason {
        match self.life.get() {
            Life::Closed(reason) => reason,
            _ => CloseReason::Drained,
        }
    }
}

/// Follows a connection from its beginning, and takes everything apart at its end.
pub(super) async fn live<V: Verbs>(inner: Rc<Inner<V>>, link: Arc<Link>, links: Arc<Links>) {
    let mut marks = 0;
    while !inner.is_closed() {
        let news = pin!(link.beyond(marks));
        let closed = pin!(inner.changed.wait_for(|| inner.is_closed().then_some(())));
        let Either::Left((now, _)) = select(news, closed).await else { break };
        marks = now;
        if marks & link::REMOVED != 0 {
            inner.device.is_gone();
        }
        if marks & (link::ENDED | link::ABANDONED) != 0 {
            inner.close(CloseReason::HostGone);
        } else if marks & link::ESTABLISHED != 0 {
            inner.established.set(true);
            inner.changed.notify();
        }
    }
    let Some(id) = inner.id.borrow_mut().take() else { return };
    // The adapter flushes all work; adapters are known that do not tell so (and nothing depends on it).
    let for_disconnect = id.clone();
    let failed = offload::run(move || V::disconnect(&for_disconnect)).await;
    if let Err(error) = failed {
        tracing::debug!(%error, "disconnect");
    }
    let flushed = || (inner.state.borrow().reads.outstanding() == 0).then_some(());
    inner.device.reactor.timeout(LAST_WORK, inner.room.wait_for(flushed)).await;
    links.remove(V::key(&id));
    let (qp, region) = (inner.qp.borrow_mut().take(), inner.region.borrow_mut().take());
    // In this order; afterwards the adapter touches no memory on its behalf.
    let destroyed = offload::run(move || {
        drop(qp);
        drop(region);
        drop(id);
        Ok(())
    });
    if let Err(error) = destroyed.await {
        tracing::error!(%error, "a queue pair was not destroyed");
    }
    inner.forget();
}

impl<V: Verbs> Inner<V> {
    /// The adapter has nothing any more: what it had is free.
    fn forget(&self) {
        let (fetches, leaving) = {
            let mut state = self.state.borrow_mut();
            state.pending.clear();
            let parked = std::mem::take(&mut state.parked);
            let held = state.slots.iter_mut().filter_map(|slot| slot.receive.take());
            let receives: Vec<_> = held.chain(parked.iter().map(|arrived| arrived.receive)).collect();
            if let Some(shared) = self.device.shared().filter(|_| self.terms.shared) {
                receives.into_iter().for_each(|index| shared.borrow_mut().give_back(index));
            }
            let fetches: Vec<_> =
                state.slots.iter_mut().map(|s| std::mem::replace(&mut s.fetch, Fetch::Idle)).collect();
            (fetches, std::mem::take(&mut state.leaving))
        };
        drop((fetches, leaving));
        let device = &self.device;
        device.release(self.terms.sizes.sends + self.terms.entries);
        if self.terms.shared {
            device.give_shared(self.terms.entries);
        }
        self.destroyed.set(true);
        self.wake_all();
        device.remove(self.owner, Some(self.number));
    }
}

/// An RDMA queue pair in service.
pub struct RdmaQueuePair<V: Verbs>(pub(super) Rc<Inner<V>>);

impl<V: Verbs> Clone for RdmaQueuePair<V> {
    fn clone(&self) -> Self {
        RdmaQueuePair(self.0.clone())
    }
}

impl<V: Verbs> RdmaQueuePair<V> {
    /// Takes a queue pair into service: its first command is answered.
    pub(super) fn install(
        inner: Rc<Inner<V>>,
        parameters: QueueParameters,
        connected: Cqe,
    ) -> RdmaQueuePair<V> {
        {
            let mut state = inner.state.borrow_mut();
            let count = usize::from(parameters.slots);
            state.slots.resize_with(count, SlotState::new);
            state.free = Vec::with_capacity(count);
        }
        if inner.life.get() == Life::Connecting {
            inner.life.set(Life::Open);
        }
        work::post_response(&inner, 0, connected, Data::None);
        RdmaQueuePair(inner)
    }

    fn reactor(&self) -> &Reactor {
        &self.0.device.reactor
    }
}

impl<V: Verbs> QueuePair for RdmaQueuePair<V> {
    type Token = Token;

    fn sgl_support(in_capsule: usize) -> SglSupport {
        SglSupport { keyed: true, max_descriptors: max_descriptors(in_capsule) as u8 }
    }

    fn described(&self, token: &Token, _: &Sqe) -> Result<Described, Status> {
        self.0.state.borrow().slots[token.slot as usize].layout.map(|layout| layout.described())
    }

    async fn receive(&self, slot: Slot) -> Result<Capsule<Token>, Disconnected> {
        let inner = &self.0;
        let mut listed = false;
        poll_fn(|cx| {
            let mut state = inner.state.borrow_mut();
            if let Some(capsule) = state.slots[slot as usize].capsule.take() {
                return Poll::Ready(Ok(capsule));
            }
            if inner.life.get() != Life::Open {
                return Poll::Ready(Err(Disconnected));
            }
            if !std::mem::replace(&mut listed, true) {
                // What waits longest goes first.
                if let Some(arrived) = state.parked.pop_front() {
                    return Poll::Ready(Ok(work::capsule(inner, &mut state, slot, arrived)));
                }
                state.slots[slot as usize].waker = Some(cx.waker().clone());
                state.free.push(slot);
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
        work::start_fetch(inner, token.slot, into, len)?;
        poll_fn(|cx| {
            let mut state = inner.state.borrow_mut();
            let slot = &mut state.slots[token.slot as usize];
            if let Fetch::Done(_) = slot.fetch
                && let Fetch::Done(buffer) = std::mem::replace(&mut slot.fetch, Fetch::Idle)
            {
                return Poll::Ready(Ok(buffer));
            }
            if inner.is_closed() {
                // The buffer stays with the slot: the adapter may still write to it.
                return Poll::Ready(Err(FetchError::Disconnected));
            }
            slot.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    #[allow(
        clippy::manual_async_fn,
        reason = "an `async fn` holds its arguments twice, in the memory of every slot"
    )]
    fn respond(&self, token: Token, cqe: Cqe, data: Data) -> impl Future<Output = Result<(), Disconnected>> {
        async move {
            let inner = &self.0;
            let data = match data {
                // Not registered with the adapter: it leaves as a copy, and is counted as one.
                Data::Namespace(bytes) => {
                    let mut buffer = self.reactor().buffer(bytes.len(), BufferClass::Io).await;
                    bytes.copy_to(&mut buffer.as_mut_slice()[..bytes.len()]);
                    buffer.set_len(bytes.len());
                    self.reactor().stats().copied_bytes.add(bytes.len() as u64);
                    Data::Arena(buffer)
                }
                data => data,
            };
            work::wait_for_room(inner, token.slot, data.len()).await?;
            work::post_response(inner, token.slot, cqe, data);
            Ok(())
        }
    }

    fn close(&self, reason: CloseReason) {
        self.0.close(reason);
    }

    fn drain(&self) {
        if matches!(self.0.life.get(), Life::Open | Life::Connecting) {
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
        inner.quiet().await;
        inner.close(CloseReason::Drained);
        inner.end().await;
        inner.close_reason()
    }
}
