//! What the transport asks of an RDMA adapter: the trait between it and the verbs.
//!
//! `verbs.rs` implements it over rdma-core, `software.rs` in memory for tests. Objects are owned: dropping one destroys it, and each
//! keeps alive what it was made of. Destruction and everything else marked *blocking* may take long: it is called on the
//! helper thread (`offload.rs`), never on a reactor.
//!
//! Nothing here is `unsafe` to call, because an adapter reaches only memory that was registered with it ([`Verbs::register`]),
//! which stays mapped as long as the region. That a buffer is not touched while it is posted is the transport's duty: it
//! keeps every posted [`DataBuffer`](reactor::DataBuffer) until its completion, or until its queue pair is destroyed.

use reactor::DeviceMemory;
use std::{io, net::SocketAddr, os::fd::OwnedFd};

/// The limits and abilities of a device, as it states them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Its name, for people.
    pub name: String,
    /// Work requests of a queue.
    pub max_work_requests: u32,
    /// Entries of a completion queue.
    pub max_completions: u32,
    /// Receives of a shared receive queue; zero where there are none.
    pub max_shared_receives: u32,
    /// Pieces of local memory per work request.
    pub max_pieces: u32,
    /// READs one queue pair may have outstanding as the one who asks.
    pub max_reads: u8,
    /// It says that it can send with invalidation.
    pub can_invalidate: bool,
}

/// A piece of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Piece {
    /// Its address.
    pub address: u64,
    /// Its length.
    pub len: u32,
    /// The key of its region.
    pub key: u32,
}

/// A receive to be posted: where the SQE goes, and where in-capsule data goes; unused pieces have no length.
#[derive(Clone, Copy, Debug)]
pub struct PostReceive {
    /// Its name.
    pub id: u64,
    /// Where it receives to.
    pub pieces: [Piece; 2],
}

/// What a work request of a send queue does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Brings host memory here.
    Read {
        /// The address at the host.
        address: u64,
        /// The key to it.
        key: u32,
    },
    /// Brings local memory to the host.
    Write {
        /// The address at the host.
        address: u64,
        /// The key to it.
        key: u32,
    },
    /// Sends a response, solicited.
    Send,
    /// Sends a response, solicited, that invalidates a key of the host.
    SendInvalidate {
        /// The key.
        key: u32,
    },
}

/// A work request of a send queue.
#[derive(Clone, Copy, Debug)]
pub struct PostSend {
    /// Its name.
    pub id: u64,
    /// What it does.
    pub operation: Operation,
    /// The local memory.
    pub piece: Piece,
    /// It completes even when it succeeds.
    pub tells: bool,
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkStatus {
    /// Well.
    Success,
    /// It was not done, because its queue pair had failed or is ending.
    Flushed,
    /// The adapter cannot do this kind of request.
    LocalOperation,
    /// The host's memory is not what the descriptor says: key, range, access.
    RemoteAccess,
    /// The host did not answer, or took nothing.
    RetryExceeded,
    /// Anything else, with the number the verbs have for it.
    Other(u32),
}

impl WorkStatus {
    /// All kinds, for counting.
    pub const NAMES: [&'static str; 6] =
        ["success", "flushed", "local_operation", "remote_access", "retry_exceeded", "other"];

    /// Its place in [`WorkStatus::NAMES`].
    pub fn index(self) -> usize {
        match self {
            WorkStatus::Success => 0,
            WorkStatus::Flushed => 1,
            WorkStatus::LocalOperation => 2,
            WorkStatus::RemoteAccess => 3,
            WorkStatus::RetryExceeded => 4,
            WorkStatus::Other(_) => 5,
        }
    }
}

/// A completion. When it failed, only `id`, `status` and `number` mean something.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// The work request's name.
    pub id: u64,
    /// How it ended.
    pub status: WorkStatus,
    /// Bytes received, for a receive.
    pub len: u32,
    /// The queue pair's number.
    pub number: u32,
}

impl Done {
    /// A place for one.
    pub const EMPTY: Done = Done { id: 0, status: WorkStatus::Success, len: 0, number: 0 };
}

/// The sizes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpSizes {
    /// Work requests of its send queue.
    pub sends: u32,
    /// Receives of its own; zero when it takes them from a shared queue.
    pub receives: u32,
}

/// A connection request.
pub struct Incoming<V: Verbs> {
    /// The new connection, not accepted yet.
    pub id: V::Id,
    /// What the host says of itself; the connection manager pads it.
    pub private_data: Vec<u8>,
    /// READs the host serves at once ("initiator depth", seen from here).
    pub host_serves: u8,
}

/// What the connection manager reports.
pub enum CmEvent<V: Verbs> {
    /// A host wants to connect.
    Request(Incoming<V>),
    /// The host has what it needs of our acceptance.
    Established(u64),
    /// It is over: the host left, the address moved, or the connection could not be completed.
    Ended(u64, EndCause),
    /// The device goes away. For connections, and for a port that is bound to it.
    DeviceRemoval(u64),
    /// Nothing to act on.
    Other,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// The host disconnected.
    Disconnected,
    /// The address is no longer on this device.
    AddressChange,
    /// The connection was not completed: rejected, unreachable, an error.
    Failed,
}

/// An RDMA adapter's library.
pub trait Verbs: Clone + Send + Sync + 'static {
    /// A connection manager's event channel.
    type Channel: Send + 'static;
    /// An identifier of the connection manager: a port that listens, or a connection. Cheap to clone.
    type Id: Clone + Send + Sync + 'static;
    /// An opened device. Cheap to clone.
    type Device: Clone + Send + Sync + 'static;
    /// A protection domain. Cheap to clone.
    type Domain: Clone + Send + Sync + 'static;
    /// A memory region.
    type Region: Send + Sync + 'static;
    /// A completion queue with its completion channel. Cheap to clone.
    type Cq: Clone + Send + Sync + 'static;
    /// A shared receive queue. Cheap to clone.
    type Srq: Clone + Send + Sync + 'static;
    /// A queue pair.
    type Qp: Send + Sync + 'static;

    /// Loads the library, or says why there is none.
    fn load() -> io::Result<Self>;

    /// Listens on an address. Blocking.
    fn listen(&self, address: SocketAddr, backlog: u32) -> io::Result<(Self::Channel, Self::Id)>;
    /// A descriptor that is readable when the channel has events.
    fn channel_descriptor(channel: &Self::Channel) -> io::Result<OwnedFd>;
    /// The next event, if there is one. It is acknowledged before it is returned.
    fn next_event(channel: &Self::Channel) -> io::Result<Option<CmEvent<Self>>>;

    /// The number events name an identifier by.
    fn key(id: &Self::Id) -> u64;
    /// Our address.
    fn local_address(id: &Self::Id) -> SocketAddr;
    /// The host's.
    fn peer_address(id: &Self::Id) -> SocketAddr;
    /// The device of a connection.
    fn device(id: &Self::Id) -> io::Result<Self::Device>;
    /// Rejects a connection request. Blocking.
    fn reject(id: &Self::Id, private_data: &[u8]) -> io::Result<()>;
    /// Accepts one: `reads` is how many READs will be outstanding at most. Blocking.
    fn accept(id: &Self::Id, reads: u8, private_data: &[u8]) -> io::Result<()>;
    /// Ends a connection. Blocking.
    fn disconnect(id: &Self::Id) -> io::Result<()>;

    /// What tells devices apart; a device that comes back has another.
    fn device_key(device: &Self::Device) -> u64;
    /// What it can do. Blocking.
    fn limits(device: &Self::Device) -> io::Result<DeviceLimits>;
    /// Makes a protection domain. Blocking.
    fn domain(device: &Self::Device) -> io::Result<Self::Domain>;
    /// Makes a completion queue. Blocking.
    fn completion_queue(device: &Self::Device, entries: u32, vector: u32) -> io::Result<Self::Cq>;
    /// Registers memory for local access. Blocking.
    fn register(domain: &Self::Domain, memory: &DeviceMemory) -> io::Result<Self::Region>;
    /// The key to a region.
    fn region_key(region: &Self::Region) -> u32;
    /// Makes a shared receive queue. Blocking.
    fn shared_receives(domain: &Self::Domain, entries: u32) -> io::Result<Self::Srq>;
    /// Makes the queue pair of a connection. Blocking.
    fn queue_pair(
        id: &Self::Id,
        domain: &Self::Domain,
        cq: &Self::Cq,
        srq: Option<&Self::Srq>,
        sizes: QpSizes,
    ) -> io::Result<Self::Qp>;

    /// A queue pair's number.
    fn number(qp: &Self::Qp) -> u32;
    /// Posts receives, all or none known to be posted.
    fn post_receives(qp: &Self::Qp, receives: &[PostReceive]) -> io::Result<()>;
    /// Posts shared receives.
    fn post_shared(srq: &Self::Srq, receives: &[PostReceive]) -> io::Result<()>;
    /// Posts to a send queue, in one go.
    fn post_sends(qp: &Self::Qp, sends: &[PostSend]) -> io::Result<()>;

    /// A descriptor that is readable when an armed queue has got something.
    fn cq_descriptor(cq: &Self::Cq) -> io::Result<OwnedFd>;
    /// Takes completions; how many.
    fn poll(cq: &Self::Cq, into: &mut [Done]) -> usize;
    /// Asks to be told of the next completion.
    fn arm(cq: &Self::Cq) -> io::Result<()>;
    /// Takes and acknowledges what the descriptor told.
    fn acknowledge(cq: &Self::Cq);
    /// Makes room for more completions. Blocking.
    fn resize(cq: &Self::Cq, entries: u32) -> io::Result<()>;
}
