//! A transport without a wire: hosts are code of the same process and pass whole capsules. For simulations, which need every
//! order of events to follow from a seed; it promises what every transport promises (see the package's contract).

use crate::{
    Arrivals, Capsule, CloseReason, Described, Disconnected, Endpoints, FetchError, FirstCapsule,
    HandshakeError, HandshakeLimits, ProtocolError, QueuePair, QueueParameters, SglSupport, Slot, Transport,
    described_without_keys,
};
use futures::{
    StreamExt,
    channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded},
    future::{Either, select},
};
use nvme::{Cqe, Sqe, Status};
use reactor::{Data, DataBuffer, Reactor, Reserve, Signal};
use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    io,
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
    rc::Rc,
    task::{Poll, Waker},
};

/// What a host sends.
#[derive(Debug)]
pub enum FromHost {
    /// A command, with its in-capsule data.
    Command(Sqe, Vec<u8>),
    /// The data a [`ToHost::Fetch`] asked for.
    Data(Slot, Vec<u8>),
}

/// What a host is sent.
#[derive(Debug)]
pub enum ToHost {
    /// The data of the command with this identifier is wanted: so many bytes, for this slot.
    Fetch(nvme::Cid, Slot, usize),
    /// A command is answered, with its data.
    Response(Cqe, Vec<u8>),
}

/// A host's end of a connection. Dropping it ends the connection.
pub struct HostEnd {
    /// To the controller.
    pub sender: UnboundedSender<FromHost>,
    /// From the controller; it ends when the controller closes.
    pub receiver: UnboundedReceiver<ToHost>,
}

/// Where hosts connect to a [`Port`].
#[derive(Clone)]
pub struct Connector(UnboundedSender<Connection>);

impl Connector {
    /// Connects a host.
    ///
    /// # Errors
    /// Nobody listens any more.
    pub fn connect(&self) -> io::Result<HostEnd> {
        let (sender, from_host) = unbounded();
        let (to_host, receiver) = unbounded();
        let connection = Connection { from_host, to_host };
        self.0.unbounded_send(connection).map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        Ok(HostEnd { sender, receiver })
    }
}

/// A port that hosts of this process reach through its [`Connector`].
pub struct Port {
    connector: Connector,
    incoming: UnboundedReceiver<Connection>,
}

impl Port {
    /// The way to this port.
    pub fn connector(&self) -> Connector {
        self.connector.clone()
    }
}

/// A connection before it is a queue pair.
pub struct Connection {
    from_host: UnboundedReceiver<FromHost>,
    to_host: UnboundedSender<ToHost>,
}

/// What any capsule may carry: the data of a Connect.
const CONNECT_DATA: usize = 1024;

/// The transport.
pub struct Loopback;

impl Transport for Loopback {
    const NAME: &'static str = "loopback";
    const PLACED_AT_ACCEPT: bool = false;
    type Local = ();
    type Port = Port;
    type Incoming = UnboundedReceiver<Connection>;
    type Connection = Connection;
    type QueuePair = LoopbackQueuePair;

    fn local(_: &Reactor) {}

    fn listen(_address: SocketAddr) -> io::Result<Port> {
        let (sender, incoming) = unbounded();
        Ok(Port { connector: Connector(sender), incoming })
    }

    fn local_address(_port: &Port) -> io::Result<SocketAddr> {
        Ok(nowhere())
    }

    fn incoming(port: Port, _reactor: &Reactor) -> Self::Incoming {
        port.incoming
    }

    async fn accept(incoming: &mut Self::Incoming) -> io::Result<Connection> {
        match incoming.next().await {
            Some(connection) => Ok(connection),
            // Nobody can connect any more: there is nothing to wait for.
            None => std::future::pending().await,
        }
    }

    async fn handshake(
        connection: &mut Connection,
        _: &Rc<()>,
        reactor: &Reactor,
        limits: HandshakeLimits,
    ) -> Result<FirstCapsule, HandshakeError> {
        match reactor.timeout(limits.time, connection.from_host.next()).await {
            None => Err(HandshakeError::Timeout),
            Some(Some(FromHost::Command(sqe, data))) => {
                Ok(FirstCapsule { sqe, data: data.into(), announced: None })
            }
            Some(Some(FromHost::Data(..))) => {
                Err(HandshakeError::Protocol(ProtocolError::PduSequence, "data before a command"))
            }
            Some(None) => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }

    fn endpoints(_connection: &Connection) -> Endpoints {
        Endpoints { local: nowhere(), peer: nowhere() }
    }

    async fn refuse(connection: Connection, _: &Rc<()>, _: &Reactor, cqe: Cqe) {
        // A host that has gone need not be told.
        let _ = connection.to_host.unbounded_send(ToHost::Response(cqe, Vec::new()));
    }

    fn install(
        connection: Connection,
        _: &Rc<()>,
        reactor: &Reactor,
        parameters: QueueParameters,
        connected: Cqe,
    ) -> io::Result<LoopbackQueuePair> {
        let slot = || SlotState { capsule: None, waker: None, fetch: Fetch::Idle };
        let inner = Rc::new(Inner {
            reactor: reactor.clone(),
            parameters,
            reserve: reactor.reserve(parameters.in_capsule.max(CONNECT_DATA))?,
            to_host: RefCell::new(Some(connection.to_host)),
            slots: RefCell::new((0..parameters.slots).map(|_| slot()).collect()),
            free: RefCell::default(),
            arrivals: Arrivals::default(),
            life: Cell::new(Life::Open),
            receiving: Cell::new(true),
            changed: Signal::new(),
        });
        inner.send(ToHost::Response(connected, Vec::new()));
        reactor.spawn(receive(inner.clone(), connection.from_host));
        Ok(LoopbackQueuePair(inner))
    }
}

fn nowhere() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

/// What is remembered of a command until it is answered.
pub struct Token {
    slot: Slot,
    cid: nvme::Cid,
}

enum Fetch {
    Idle,
    Active(DataBuffer, usize),
    Done(DataBuffer),
}

struct SlotState {
    capsule: Option<Capsule<Token>>,
    waker: Option<Waker>,
    fetch: Fetch,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Open,
    Draining,
    Closed(CloseReason),
}

struct Inner {
    reactor: Reactor,
    parameters: QueueParameters,
    reserve: Reserve,
    to_host: RefCell<Option<UnboundedSender<ToHost>>>,
    slots: RefCell<Box<[SlotState]>>,
    free: RefCell<Vec<Slot>>,
    arrivals: Arrivals,
    life: Cell<Life>,
    receiving: Cell<bool>,
    changed: Signal,
}

/// A queue pair in service.
#[derive(Clone)]
pub struct LoopbackQueuePair(Rc<Inner>);

/// The stream from the host.
async fn receive(inner: Rc<Inner>, mut from_host: UnboundedReceiver<FromHost>) {
    // A host of the same thread can be faster than the slots are to take their places.
    inner.reactor.yield_now().await;
    let reason = loop {
        let next = {
            let closed = pin!(inner.wait_for_close());
            match select(from_host.next(), closed).await {
                Either::Left((next, _)) => next,
                Either::Right(_) => break CloseReason::Drained,
            }
        };
        let taken = match next {
            None => break CloseReason::HostGone,
            Some(FromHost::Command(sqe, data)) => inner.take_command(sqe, data).await,
            Some(FromHost::Data(slot, data)) => inner.take_data(slot, &data),
        };
        if let Err(Wrong(error, what)) = taken {
            break CloseReason::Protocol(error, what);
        }
    };
    inner.close(reason);
    inner.receiving.set(false);
    inner.changed.notify();
}

/// The host sent what it may not send.
struct Wrong(ProtocolError, &'static str);

const UNASKED: Wrong = Wrong(ProtocolError::DataOutOfRange, "data nobody asked for");

impl Inner {
    fn send(&self, message: ToHost) -> bool {
        self.to_host.borrow().as_ref().is_some_and(|to_host| to_host.unbounded_send(message).is_ok())
    }

    fn is_closed(&self) -> bool {
        matches!(self.life.get(), Life::Closed(_))
    }

    async fn wait_for_close(&self) {
        self.changed.wait_for(|| self.is_closed().then_some(())).await;
    }

    async fn take_command(&self, sqe: Sqe, bytes: Vec<u8>) -> Result<(), Wrong> {
        if bytes.len() > self.parameters.in_capsule.max(CONNECT_DATA) {
            return Err(Wrong(ProtocolError::LimitExceeded, "more data than a capsule may carry"));
        }
        let mut data = None;
        if !bytes.is_empty() {
            // The queue pair's own buffer when all others are taken: data they wait for may come behind this command.
            let shared = self.reactor.buffer(bytes.len(), self.parameters.buffer_class());
            let (Either::Left((mut buffer, _)) | Either::Right((mut buffer, _))) =
                select(shared, self.reserve.take()).await;
            buffer.fill_from(&bytes);
            data = Some(buffer);
        }
        if self.life.get() != Life::Open {
            return Ok(());
        }
        let slot = self.free.borrow_mut().pop();
        let slot = slot.ok_or(Wrong(ProtocolError::LimitExceeded, "more commands than the queue holds"))?;
        if !self.parameters.qid.is_admin() {
            self.arrivals.note(slot, sqe.fuse());
        }
        let state = &mut self.slots.borrow_mut()[slot as usize];
        state.capsule = Some(Capsule { sqe, data: Ok(data), token: Token { slot, cid: sqe.cid() } });
        wake(state);
        Ok(())
    }

    fn take_data(&self, slot: Slot, bytes: &[u8]) -> Result<(), Wrong> {
        let mut slots = self.slots.borrow_mut();
        let state = slots.get_mut(slot as usize).ok_or(UNASKED)?;
        match std::mem::replace(&mut state.fetch, Fetch::Idle) {
            Fetch::Active(mut buffer, len) if len == bytes.len() => {
                buffer.fill_from(bytes);
                state.fetch = Fetch::Done(buffer);
                wake(state);
                Ok(())
            }
            _ => Err(UNASKED),
        }
    }

    fn close(&self, reason: CloseReason) {
        if !self.is_closed() {
            self.life.set(Life::Closed(reason));
            self.to_host.borrow_mut().take();
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        self.arrivals.end();
        self.slots.borrow().iter().for_each(wake);
        self.changed.notify();
    }
}

fn wake(state: &SlotState) {
    if let Some(waker) = &state.waker {
        waker.wake_by_ref();
    }
}

impl QueuePair for LoopbackQueuePair {
    type Token = Token;

    fn arrivals(&self) -> &Arrivals {
        &self.0.arrivals
    }

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
            let state = &mut inner.slots.borrow_mut()[slot as usize];
            if let Some(capsule) = state.capsule.take() {
                return Poll::Ready(Ok(capsule));
            }
            if inner.life.get() != Life::Open {
                return Poll::Ready(Err(Disconnected));
            }
            if !std::mem::replace(&mut listed, true) {
                state.waker = Some(cx.waker().clone());
                inner.free.borrow_mut().push(slot);
            }
            Poll::Pending
        })
        .await
    }

    async fn fetch(&self, token: &mut Token, into: DataBuffer, len: usize) -> Result<DataBuffer, FetchError> {
        let inner = &self.0;
        inner.slots.borrow_mut()[token.slot as usize].fetch = Fetch::Active(into, len);
        let done = poll_fn(|cx| {
            let state = &mut inner.slots.borrow_mut()[token.slot as usize];
            match std::mem::replace(&mut state.fetch, Fetch::Idle) {
                Fetch::Done(buffer) => return Poll::Ready(Ok(buffer)),
                _ if inner.is_closed() => return Poll::Ready(Err(FetchError::Disconnected)),
                waiting => state.fetch = waiting,
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        });
        inner.send(ToHost::Fetch(token.cid, token.slot, len));
        match inner.reactor.timeout(inner.parameters.stall_time, done).await {
            Some(result) => result,
            None => {
                inner.slots.borrow_mut()[token.slot as usize].fetch = Fetch::Idle;
                inner.close(CloseReason::Stalled);
                Err(FetchError::Disconnected)
            }
        }
    }

    async fn respond(&self, _token: Token, cqe: Cqe, data: Data) -> Result<(), Disconnected> {
        let bytes = match data {
            Data::None => Vec::new(),
            Data::Arena(buffer) => buffer.filled().to_vec(),
            Data::Namespace(bytes) => {
                let mut copy = vec![0; bytes.len()];
                bytes.copy_to(&mut copy);
                copy
            }
            Data::Zeroes(len) => vec![0; len as usize],
        };
        if self.0.send(ToHost::Response(cqe, bytes)) { Ok(()) } else { Err(Disconnected) }
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
        inner.close(CloseReason::Drained);
        inner.changed.wait_for(|| (!inner.receiving.get()).then_some(())).await;
        match inner.life.get() {
            Life::Closed(reason) => reason,
            Life::Open | Life::Draining => CloseReason::Drained,
        }
    }
}
