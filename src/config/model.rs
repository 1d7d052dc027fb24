//! The checked model: what every other part of the target reads. No text and no positions in here.
//!
//! It is complete and in one order (see [`Config::sort`]), so that two configurations are equal exactly when they ask for
//! the same thing, however their files say it.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use backends::Faults;
use nvme::{ControllerId, Nqn, Uuid};

use super::identity;

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;
pub(super) const GIB: u64 = 1 << 30;

/// The highest namespace identifier a configuration may use; Identify reports it as NN and MNAN.
pub const MAX_NSID: u32 = 1024;

/// The highest ANA group a namespace may be in, as with the Linux kernel's target.
pub const MAX_ANA_GROUP: u32 = 128;
/// The ANA group of a namespace whose configuration names none.
pub const DEFAULT_ANA_GROUP: u32 = 1;

/// Every identifier a controller can have.
pub const ALL_CONTROLLER_IDS: RangeInclusive<u16> = 1..=ControllerId::MAX_USABLE.0;

pub(super) const DEFAULT_MODEL: &str = "weft";
/// The block size of a namespace whose configuration names none (a file's may follow what lies under it).
pub const DEFAULT_LBA_SIZE: u32 = 4096;
const DEFAULT_NQN: &str = "nqn.2026-12.io.weft:default";

/// Everything the target is told at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The log filter, when the file has one; the command line goes before it.
    pub log: Option<String>,
    /// The directory for what must outlive this process.
    pub state_dir: Option<PathBuf>,
    /// Where the metrics page is served.
    pub metrics: Metrics,
    /// How many reactors, and what each of them has.
    pub reactors: Reactors,
    /// Upper bounds, fixed when a host connects.
    pub limits: Limits,
    /// Where hosts connect, with different ids and addresses, by ascending id. Empty only when the file says so.
    pub ports: Vec<Port>,
    /// The discovery service.
    pub discovery: Discovery,
    /// Other discovery services that hosts are told of.
    pub referrals: Vec<Referral>,
    /// What is exported, with different NQNs, by ascending NQN. Empty only when the file says so.
    pub subsystems: Vec<Subsystem>,
}

/// `[metrics]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Where `/metrics` and `/healthz` are served.
    pub address: SocketAddr,
}

/// `[reactors]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reactors {
    /// How many; `None` is one for each CPU this process may run on.
    pub count: Option<NonZeroUsize>,
    /// How long a reactor polls after its last completion before it sleeps; zero is never.
    pub poll: Duration,
    /// The size of each reactor's buffer arena in bytes: a multiple of 4 KiB, at least four times the largest
    /// transfer.
    pub buffer_bytes: u64,
}

/// `[limits]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Host connections at once, over all ports.
    pub connections: usize,
    /// The most data one command may carry (MDTS): 4 KiB times a power of two.
    pub max_transfer_bytes: u32,
    /// I/O queues of one controller, the admin queue not counted.
    pub io_queues: u16,
    /// Entries of one queue (MQES + 1).
    pub queue_depth: u16,
    /// Data a command capsule may carry: a multiple of 4 KiB, not more than the largest transfer.
    pub in_capsule_bytes: u32,
    /// From the accepted connection to the answered Connect.
    pub handshake_timeout: Duration,
    /// How long a host may withhold data it promised, or not read what it is sent.
    pub data_timeout: Duration,
    /// How long running commands get to finish when the target is stopped.
    pub shutdown_timeout: Duration,
}

/// `[[port]]`: an address hosts connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The port identifier (PORTID of the discovery log).
    pub id: u16,
    /// The transport spoken there.
    pub transport: TransportKind,
    /// Where to listen; port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// It offers the discovery service and nothing else.
    pub discovery: bool,
    /// The states of ANA groups whose namespaces are not simply optimized here, by ascending id.
    pub ana_groups: Vec<AnaGroup>,
}

/// `[discovery]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovery {
    /// Its name besides the well-known one, or that.
    pub nqn: Nqn,
    /// Whether it is announced on the local network.
    pub mdns: bool,
}

/// `[[referral]]`: another discovery service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referral {
    /// The transport spoken there.
    pub transport: TransportKind,
    /// Where it listens; no wildcard.
    pub address: SocketAddr,
    /// Its name.
    pub nqn: Nqn,
    /// Its port identifier (PORTID).
    pub port_id: u16,
}

/// `[[port.ana_group]]`: how a port reaches the namespaces of an ANA group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnaGroup {
    /// The group: 1 to [`MAX_ANA_GROUP`].
    pub id: u32,
    /// Its state on this port.
    pub state: AnaState,
}

/// What a path to an ANA group is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnaState {
    /// The path to use.
    Optimized,
    /// A slower path.
    NonOptimized,
    /// No path now.
    Inaccessible,
    /// No path ever again.
    PersistentLoss,
    /// About to be another state.
    Change,
}

/// The transports a port can speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TransportKind {
    /// NVMe/TCP.
    Tcp,
    /// NVMe/RDMA.
    Rdma,
}

/// `[[subsystem]]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subsystem {
    /// Its NVMe Qualified Name; not that of the discovery service.
    pub nqn: Nqn,
    /// The serial number: 1 to 20 printable ASCII characters.
    pub serial: String,
    /// The model number: 1 to 40 printable ASCII characters.
    pub model: String,
    /// The firmware revision: 1 to 8 printable ASCII characters; `None` is weft's version.
    pub firmware: Option<String>,
    /// The identifiers its controllers get: other targets that offer the same subsystem need others.
    pub controller_ids: RangeInclusive<u16>,
    /// Who may connect.
    pub hosts: AllowedHosts,
    /// The ids of the ports that offer it, ascending; each of them exists. Empty only when the file says so.
    pub ports: Vec<u16>,
    /// Its namespaces, with different NSIDs, by ascending NSID.
    pub namespaces: Vec<Namespace>,
}

/// Which hosts may connect to a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedHosts {
    /// Whoever reaches the port.
    Any,
    /// The hosts with these NQNs, ascending; nobody when the list is empty.
    Listed(Vec<Nqn>),
}

impl AllowedHosts {
    /// Whether the host with this NQN may connect.
    #[must_use]
    pub fn admits(&self, host_nqn: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Listed(nqns) => nqns.iter().any(|nqn| nqn.as_str() == host_nqn),
        }
    }
}

/// `[[subsystem.namespace]]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// The namespace identifier: 1 to [`MAX_NSID`].
    pub nsid: u32,
    /// Where its blocks are.
    pub backend: NamespaceBackend,
    /// The block size in bytes, when the configuration names it: a power of two from 512 to 4096.
    pub lba_size: Option<u32>,
    /// Its UUID, never zero.
    pub uuid: Uuid,
    /// Its NGUID, never zero; `None` reports none.
    pub nguid: Option<[u8; 16]>,
    /// Whether hosts may only read.
    pub read_only: bool,
    /// Whether it is exported; one that is not keeps its identity and its NSID.
    pub enabled: bool,
    /// Its ANA group: 1 to [`MAX_ANA_GROUP`].
    pub ana_group: u32,
    /// What goes wrong on purpose: for tests.
    pub faults: Option<Faults>,
}

/// What holds the blocks of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceBackend {
    /// This process's memory, lost when it ends.
    Memory {
        /// A multiple of the block size.
        size_bytes: u64,
    },
    /// A file or block device.
    File {
        /// Where it is.
        path: PathBuf,
        /// A multiple of the block size. A file that does not exist is created sparse with this size; without
        /// it the file must exist.
        size_bytes: Option<u64>,
        /// Past the page cache or through it; without, block devices past and files through it.
        direct: Option<bool>,
        /// Whether a block device is taken that others use.
        force: bool,
    },
    /// A namespace of an NVMe drive, by its generic character device.
    Passthrough {
        /// The device, `/dev/ngXnY`.
        device: PathBuf,
        /// Export it even if others on this machine use it.
        force: bool,
    },
    /// Nothing: writes vanish and reads are zeroes. For measuring everything else.
    Null {
        /// A multiple of the block size.
        size_bytes: u64,
    },
}

impl Default for Metrics {
    fn default() -> Self {
        Self { address: SocketAddr::from((Ipv4Addr::LOCALHOST, 9464)) }
    }
}

impl Default for Discovery {
    fn default() -> Self {
        Self { nqn: Nqn::discovery(), mdns: false }
    }
}

impl Default for Reactors {
    fn default() -> Self {
        Self { count: None, poll: Duration::from_micros(50), buffer_bytes: 64 * MIB }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            max_transfer_bytes: 1 << 20,
            io_queues: 64,
            queue_depth: 128,
            in_capsule_bytes: 8 << 10,
            handshake_timeout: Duration::from_secs(5),
            data_timeout: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(10),
        }
    }
}

impl TransportKind {
    /// Every transport, in the order of [`TransportKind::index`].
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Rdma];

    /// The name in configuration files and metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }

    /// A small index for tables by transport.
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Tcp => 0,
            Self::Rdma => 1,
        }
    }
}

impl AnaState {
    /// Every state, from best to worst.
    pub const ALL: [Self; 5] =
        [Self::Optimized, Self::NonOptimized, Self::Inaccessible, Self::PersistentLoss, Self::Change];

    /// The name in configuration files, as the Linux kernel's target has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Optimized => "optimized",
            Self::NonOptimized => "non-optimized",
            Self::Inaccessible => "inaccessible",
            Self::PersistentLoss => "persistent-loss",
            Self::Change => "change",
        }
    }
}

impl Namespace {
    /// A writable memory namespace whose identity is derived from the subsystem's NQN and the NSID.
    #[must_use]
    pub fn memory(subsystem_nqn: &Nqn, nsid: u32, size_bytes: u64) -> Self {
        let uuid = identity::derived_uuid(subsystem_nqn.as_str(), nsid);
        Self {
            nsid,
            backend: NamespaceBackend::Memory { size_bytes },
            lba_size: None,
            uuid,
            nguid: Some(uuid.0),
            read_only: false,
            enabled: true,
            ana_group: DEFAULT_ANA_GROUP,
            faults: None,
        }
    }
}

impl Config {
    /// Puts everything into the order the model promises, so that equal configurations compare equal.
    pub fn sort(&mut self) {
        self.ports.sort_by_key(|port| port.id);
        self.referrals.sort_by_key(|referral| (referral.transport, referral.address));
        for port in &mut self.ports {
            port.ana_groups.sort_by_key(|group| group.id);
        }
        self.subsystems.sort_by(|left, right| left.nqn.cmp(&right.nqn));
        for subsystem in &mut self.subsystems {
            subsystem.ports.sort_unstable();
            subsystem.namespaces.sort_by_key(|namespace| namespace.nsid);
            if let AllowedHosts::Listed(hosts) = &mut subsystem.hosts {
                hosts.sort_unstable();
                hosts.dedup();
            }
        }
    }

    /// What `weft serve` exports without a configuration file: one gibibyte of memory, on this machine only,
    /// for any host.
    #[must_use]
    pub fn default_target() -> Self {
        let nqn = default_nqn();
        Self {
            log: None,
            state_dir: None,
            metrics: Metrics::default(),
            reactors: Reactors::default(),
            limits: Limits::default(),
            ports: vec![Port {
                id: 1,
                transport: TransportKind::Tcp,
                address: SocketAddr::from((Ipv4Addr::LOCALHOST, 4420)),
                ana_groups: Vec::new(),
                discovery: false,
            }],
            discovery: Discovery::default(),
            referrals: Vec::new(),
            subsystems: vec![Subsystem {
                serial: identity::derived_serial(nqn.as_str()),
                model: DEFAULT_MODEL.to_owned(),
                firmware: None,
                controller_ids: ALL_CONTROLLER_IDS,
                hosts: AllowedHosts::Any,
                ports: vec![1],
                namespaces: vec![Namespace::memory(&nqn, 1, GIB)],
                nqn,
            }],
        }
    }
}

fn default_nqn() -> Nqn {
    DEFAULT_NQN.parse().unwrap_or_else(|error| unreachable!("the name is a constant: {error}"))
}
