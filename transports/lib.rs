//! How commands come in and completions go out: the traits every transport implements, and the transports.
//!
//! A transport knows PDUs, capsules and sockets. It does not know what a command means; that is the pipeline's business.
//!
//! # Contract
//!
//! * [`QueuePair::receive`] is called by each slot whenever it is free. The transport hands every command to one free
//!   slot; the slot's number is the tag it uses on the wire.
//! * A command's [`QueuePair::Token`] is used up by exactly one [`QueuePair::respond`].
//! * Completions carry the SQ head in the order of the calls. A transport in which responses overtake one another sets it
//!   anew, so that it only ever moves forward on the wire.
//! * Every command of an I/O queue is noted in [`QueuePair::arrivals`] in the order of arrival, before its slot can see it;
//!   when no more are taken, they end.
//! * [`QueuePair::fetch`] brings data that did not come with the command, into a buffer the caller got before.
//! * Once a queue pair is closing, every call ends soon with [`Disconnected`]; nothing hangs.
//! * Nothing a peer sends may panic, over-read, or make us allocate by what a length field says.

#![deny(unsafe_code)]

use nvme::{Cid, Cqe, Qid, SglKind, Sqe, Status};
use reactor::{BufferClass, Data, DataBuffer, Reactor};
use std::{fmt, future::Future, io, net::SocketAddr, rc::Rc, sync::Arc, time::Duration};

mod arrivals;
pub mod loopback;
pub mod rdma;
pub mod tcp;

pub use arrivals::{Arrivals, FUSED_FIRST, FUSED_SECOND};

/// The number of a command's slot in its queue pair.
pub type Slot = u16;

/// The queue pair is closing or gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnected;

/// Why data could not be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchError {
    /// This command fails; the queue pair lives.
    Status(Status),
    /// The queue pair is closing.
    Disconnected,
}

/// Why a queue pair is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The host closed the connection, or it broke.
    HostGone,
    /// The host broke the transport's protocol: how, and in words.
    Protocol(ProtocolError, &'static str),
    /// The host ended the connection because of what it takes for an error of ours (H2CTermReq).
    HostTerminated {
        /// What it says was wrong.
        error: ProtocolError,
        /// More about it, mostly where in the header (FEI).
        information: u32,
    },
    /// The host promised data and did not send it, or did not read what it was sent.
    Stalled,
    /// The controller ended: reset, keep alive expired, its admin queue pair lost.
    ControllerEnded,
    /// The target is stopping and what executed has been answered.
    Drained,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::HostGone => f.write_str("host closed the connection"),
            CloseReason::Protocol(_, what) => write!(f, "host broke the protocol: {what}"),
            CloseReason::HostTerminated { error, information } => {
                write!(f, "host ended the connection with H2CTermReq: {error}, FEI {information}")
            }
            CloseReason::Stalled => f.write_str("host withheld data or did not read"),
            CloseReason::ControllerEnded => f.write_str("controller ended"),
            CloseReason::Drained => f.write_str("target is stopping"),
        }
    }
}

/// The kinds of protocol error, as the Fatal Error Status (FES) of NVMe/TCP tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// FES 1.
    InvalidHeaderField,
    /// FES 2.
    PduSequence,
    /// FES 3.
    HeaderDigest,
    /// FES 4.
    DataOutOfRange,
    /// FES 5: more data than allowed from a host, more R2Ts than allowed from us.
    LimitExceeded,
    /// FES 6.
    UnsupportedParameter,
    /// Any other value.
    Unknown,
}

impl ProtocolError {
    /// Every kind, in the order of its index.
    pub const ALL: [ProtocolError; 7] = [
        ProtocolError::InvalidHeaderField,
        ProtocolError::PduSequence,
        ProtocolError::HeaderDigest,
        ProtocolError::DataOutOfRange,
        ProtocolError::LimitExceeded,
        ProtocolError::UnsupportedParameter,
        ProtocolError::Unknown,
    ];

    /// The kind that a Fatal Error Status names.
    pub fn from_status(status: u16) -> ProtocolError {
        let index = usize::from(status).wrapping_sub(1);
        ProtocolError::ALL.get(index).copied().unwrap_or(ProtocolError::Unknown)
    }

    /// Its label on the metrics page.
    pub const fn name(self) -> &'static str {
        match self {
            ProtocolError::InvalidHeaderField => "invalid_header_field",
            ProtocolError::PduSequence => "pdu_sequence",
            ProtocolError::HeaderDigest => "header_digest",
            ProtocolError::DataOutOfRange => "data_out_of_range",
            ProtocolError::LimitExceeded => "limit_exceeded",
            ProtocolError::UnsupportedParameter => "unsupported_parameter",
            ProtocolError::Unknown => "unknown",
        }
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProtocolError::InvalidHeaderField => "invalid PDU header field",
            ProtocolError::PduSequence => "PDU sequence error",
            ProtocolError::HeaderDigest => "header digest error",
            ProtocolError::DataOutOfRange => "data transfer out of range",
            ProtocolError::LimitExceeded => "limit on data or R2Ts exceeded",
            ProtocolError::UnsupportedParameter => "unsupported parameter",
            ProtocolError::Unknown => "unknown error",
        })
    }
}

/// A command as it arrived.
pub struct Capsule<T> {
    /// The submission queue entry.
    pub sqe: Sqe,
    /// The in-capsule data, or why it cannot be used.
    pub data: Result<Option<DataBuffer>, Status>,
    /// What the transport remembers until the command is answered.
    pub token: T,
}

/// What a transport needs to know of a queue pair that it takes into service.
#[derive(Clone, Copy, Debug)]
pub struct QueueParameters {
    /// The queue's number.
    pub qid: Qid,
    /// Commands it can hold at once.
    pub slots: u16,
    /// Entries of the submission queue.
    pub sq_entries: u32,
    /// Bytes of data a capsule may carry.
    pub in_capsule: usize,
    /// The host wants SQ flow control: completions must report the head.
    pub sq_flow_control: bool,
    /// How long the host may withhold data it promised, or not read what it is sent.
    pub stall_time: Duration,
}

impl QueueParameters {
    /// On whose behalf its buffers are.
    pub fn buffer_class(&self) -> BufferClass {
        if self.qid.is_admin() { BufferClass::Admin } else { BufferClass::Io }
    }
}

/// The first command of a connection, which decides where it belongs.
pub struct FirstCapsule {
    /// The submission queue entry; a Connect if the host is right.
    pub sqe: Sqe,
    /// Its data; empty when it does not say in a way this transport knows where that is.
    pub data: Box<[u8]>,
    /// What the host said of the queue before.
    pub announced: Option<Announced>,
}

/// A queue as the host describes it while the connection is made; Connect must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announced {
    /// Its number.
    pub qid: Qid,
    /// Commands it can hold at once: what there are receives for.
    pub entries: u32,
}

/// What the data descriptor of a command describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described {
    /// Bytes.
    pub len: u64,
    /// They come with the command.
    pub in_capsule: bool,
}

/// The data descriptors a transport takes, for Identify Controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SglSupport {
    /// Keyed data blocks (SGLS bit 2).
    pub keyed: bool,
    /// Data block descriptors per command (MSDBD).
    pub max_descriptors: u8,
}

/// Where a connection comes from and where it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// Our address.
    pub local: SocketAddr,
    /// The host's.
    pub peer: SocketAddr,
}

/// Limits on connections before they are queue pairs.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeLimits {
    /// Time for the whole handshake, first command included.
    pub time: Duration,
    /// The largest amount of data in one transfer, told to the host.
    pub max_host_data: u32,
    /// Bytes of data a capsule may carry.
    pub in_capsule: usize,
    /// Entries of an admin queue at most.
    pub admin_entries: u32,
    /// Entries of an I/O queue at most.
    pub io_entries: u32,
    /// I/O queues of a controller at most.
    pub io_queues: u16,
}

/// Why a handshake failed. The peer was told what it can be told.
#[derive(Debug)]
pub enum HandshakeError {
    /// The connection broke or ended.
    Io(io::Error),
    /// It took too long.
    Timeout,
    /// What came first is not of this protocol: a port scanner, or a host of something else.
    Stranger(ProtocolError, &'static str),
    /// The peer speaks the protocol and broke it; how, and in words.
    Protocol(ProtocolError, &'static str),
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeError::Io(error) => write!(f, "connection ended during the handshake: {error}"),
            HandshakeError::Timeout => f.write_str("handshake took too long"),
            HandshakeError::Stranger(_, what) => write!(f, "not a host of this protocol: {what}"),
            HandshakeError::Protocol(_, what) => write!(f, "protocol error in the handshake: {what}"),
        }
    }
}

impl std::error::Error for HandshakeError {}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        HandshakeError::Io(error)
    }
}

/// What a command's data descriptor describes, where there is no remote memory to name: in the capsule, or asked for.
fn described_without_keys(sqe: &Sqe) -> Result<Described, Status> {
    let sgl = sqe.sgl();
    let in_capsule = match sgl.kind {
        SglKind::InCapsule if sgl.address != 0 => return Err(Status::SGL_OFFSET_INVALID.dnr()),
        SglKind::InCapsule => true,
        SglKind::Transport => false,
        SglKind::Keyed { .. } | SglKind::Other(_) => {
            return Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr());
        }
    };
    Ok(Described { len: sgl.length.into(), in_capsule })
}

/// One kind of fabric.
///
/// A socket's operations ride the reactor's ring, so that TCP has nothing to poll or flush. A transport with completion
/// queues of its own (RDMA) keeps them in [`Transport::Local`] and has the reactor look at them every turn.
pub trait Transport: Sized + 'static {
    /// Its name in metrics and logs.
    const NAME: &'static str;
    /// The reactor of a queue pair is chosen before its handshake, because what it is made of belongs to that reactor.
    const PLACED_AT_ACCEPT: bool;
    /// What one reactor keeps for all queue pairs of this transport.
    type Local: 'static;
    /// Bound and listening.
    type Port: Send + 'static;
    /// The connections of a port as they come in.
    type Incoming: 'static;
    /// Past its handshake, not yet owned by a reactor.
    type Connection: Send + 'static;
    /// In service on its reactor.
    type QueuePair: QueuePair;

    /// What a reactor keeps, made when it is first needed.
    fn local(reactor: &Reactor) -> Self::Local;
    /// What this transport counts on its own.
    fn counters(_: &Self::Local) -> Option<&Arc<rdma::Counters>> {
        None
    }
    /// Binds an address.
    fn listen(address: SocketAddr) -> io::Result<Self::Port>;
    /// Where a port is bound.
    fn local_address(port: &Self::Port) -> io::Result<SocketAddr>;
    /// Starts to accept.
    fn incoming(port: Self::Port, reactor: &Reactor) -> Self::Incoming;
    /// The next connection, not greeted yet.
    fn accept(incoming: &mut Self::Incoming) -> impl Future<Output = io::Result<Self::Connection>>;
    /// Greets the peer and reads its first command.
    fn handshake(
        connection: &mut Self::Connection,
        local: &Rc<Self::Local>,
        reactor: &Reactor,
        limits: HandshakeLimits,
    ) -> impl Future<Output = Result<FirstCapsule, HandshakeError>>;
    /// Both ends of a connection.
    fn endpoints(connection: &Self::Connection) -> Endpoints;
    /// Answers the first command with an error and closes.
    fn refuse(
        connection: Self::Connection,
        local: &Rc<Self::Local>,
        reactor: &Reactor,
        cqe: Cqe,
    ) -> impl Future<Output = ()>;
    /// Takes a connection into service: it sends the answer to Connect and goes on with the next command.
    fn install(
        connection: Self::Connection,
        local: &Rc<Self::Local>,
        reactor: &Reactor,
        parameters: QueueParameters,
        connected: Cqe,
    ) -> io::Result<Self::QueuePair>;
}

/// A queue pair in service. Cheap to clone.
pub trait QueuePair: Clone + 'static {
    /// What is remembered of a command until it is answered.
    type Token: 'static;

    /// The data descriptors it takes when capsules may carry `in_capsule` bytes.
    fn sgl_support(in_capsule: usize) -> SglSupport;
    /// What a command's data descriptor describes, or what is wrong with it.
    fn described(&self, token: &Self::Token, sqe: &Sqe) -> Result<Described, Status>;
    /// The next command for a free slot.
    fn receive(&self, slot: Slot) -> impl Future<Output = Result<Capsule<Self::Token>, Disconnected>>;
    /// Which fused command follows which.
    fn arrivals(&self) -> &Arrivals;
    /// Fetches `len` bytes of a command's data from the host into `into`.
    fn fetch(
        &self,
        token: &mut Self::Token,
        into: DataBuffer,
        len: usize,
    ) -> impl Future<Output = Result<DataBuffer, FetchError>>;
    /// Says that a command's data will be fetched as soon as there is a buffer for it: until it has come, [`Self::abort`] finds
    /// the command.
    fn announce_fetch(&self, token: &Self::Token) {
        let _ = token;
    }
    /// Aborts a command that waits for data from its host: it is not executed, and its fetch fails as soon as its data phase
    /// is over. False for every other command: it ends by itself.
    fn abort(&self, cid: Cid) -> bool {
        let _ = cid;
        false
    }
    /// Answers a command.
    fn respond(
        &self,
        token: Self::Token,
        cqe: Cqe,
        data: Data,
    ) -> impl Future<Output = Result<(), Disconnected>>;
    /// Ends it at once.
    fn close(&self, reason: CloseReason);
    /// Takes no more commands; those it has are still answered.
    fn drain(&self);
    /// Whether it is draining or closed.
    fn is_closing(&self) -> bool;
    /// Waits until it drains or is closed.
    fn closing(&self) -> impl Future<Output = ()>;
    /// After the last slot has ended: sends what is left, closes, and waits until nothing runs any more.
    fn finish(&self) -> impl Future<Output = CloseReason>;
}
