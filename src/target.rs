//! What exists: ports, subsystems, limits; where queue pairs are placed; how everything stops.
//!
//! The target is immutable once it serves, but for the counter of the discovery log. Its other counters are touched when connections come and go, never by commands.

use crate::{
    claims::Claims,
    config::{self, Config, Limits, Referral},
    discovery, local,
    namespace::{Namespace, NamespaceError},
    state::State,
    subsystem::{NewSubsystem, Subsystem, SubsystemKind},
};
use nvme::{Nqn, features::AsyncEvent};
use reactor::Mailbox;
use std::{
    fmt, io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

/// In the state: the generation counter of the discovery log.
const GENERATION: &str = "discovery.generation";
/// In the state: what the discovery log said under that number.
const CONTENT: &str = "discovery.content";

/// The firmware revision controllers report (FR) when none is configured: the version of this program.
pub const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

/// A port that is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPort {
    /// Its identifier (PORTID).
    pub id: u16,
    /// The transport spoken there.
    pub transport: config::TransportKind,
    /// Where it listens.
    pub address: SocketAddr,
    /// It offers the discovery service and nothing else.
    pub discovery: bool,
}

/// Why a target cannot be made of a configuration.
#[derive(Debug)]
pub enum TargetError {
    /// A namespace cannot be opened.
    Namespace(String, u32, NamespaceError),
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetError::Namespace(nqn, nsid, error) => write!(f, "namespace {nsid} of {nqn}: {error}"),
        }
    }
}

impl std::error::Error for TargetError {}

/// What exists.
pub struct Target {
    /// Limits, told to hosts when they connect.
    pub limits: Limits,
    /// Ports, bound.
    pub ports: Vec<BoundPort>,
    /// Subsystems with namespaces.
    pub subsystems: Vec<Arc<Subsystem>>,
    /// The discovery subsystem, on every port.
    pub discovery: Arc<Subsystem>,
    /// When it was made of its configuration.
    pub started: Instant,
    /// Other discovery services.
    pub referrals: Vec<Referral>,
    reactors: OnceLock<Vec<Mailbox>>,
    next_reactor: AtomicUsize,
    next_queue_pair: AtomicU64,
    connections: AtomicUsize,
    /// The queue pairs that controllers have and were granted, within `limits.connections`.
    pub claims: Arc<Claims>,
    stopping: AtomicBool,
    discovery_generation: AtomicU64,
    state: Mutex<State>,
}

impl Target {
    /// Opens everything a configuration names, for ports that are bound.
    pub fn open(config: &Config, ports: Vec<BoundPort>, state: State) -> Result<Target, TargetError> {
        let mut subsystems = Vec::new();
        for (index, wanted) in config.subsystems.iter().enumerate() {
            subsystems.push(Arc::new(Subsystem::new(index, open_subsystem(wanted, &state)?)));
        }
        let discovery = NewSubsystem {
            kind: SubsystemKind::Discovery,
            nqn: config.discovery.nqn.clone(),
            serial: "weft-discovery".into(),
            model: "weft discovery".into(),
            firmware: FIRMWARE.into(),
            controller_ids: config::ALL_CONTROLLER_IDS,
            hosts: config::AllowedHosts::Any,
            ports: ports.iter().map(|p| p.id).collect(),
            can_protect: false,
            namespaces: Vec::new(),
        };
        let target = Target {
            limits: config.limits.clone(),
            ports,
            discovery: Arc::new(Subsystem::new(subsystems.len(), discovery)),
            subsystems,
            started: Instant::now(),
            referrals: config.referrals.clone(),
            reactors: OnceLock::new(),
            next_reactor: AtomicUsize::new(0),
            next_queue_pair: AtomicU64::new(1),
            connections: AtomicUsize::new(0),
            claims: Claims::new(config.limits.connections),
            stopping: AtomicBool::new(false),
            discovery_generation: AtomicU64::new(0),
            state: Mutex::new(state),
        };
        target.begin_discovery();
        Ok(target)
    }

    /// The reactors that serve it, once they run.
    pub fn set_reactors(&self, reactors: Vec<Mailbox>) {
        // Set once by the start of the daemon; a second time would be a mistake without effect.
        let _ = self.reactors.set(reactors);
    }

    /// The subsystem of that name on that port.
    pub fn subsystem(&self, nqn: &Nqn, port_id: u16) -> Option<&Arc<Subsystem>> {
        if nqn.is_discovery() || *nqn == self.discovery.nqn {
            return Some(&self.discovery);
        }
        self.subsystems.iter().find(|s| s.nqn == *nqn && s.ports.contains(&port_id))
    }

    /// The reactor for the next queue pair: each in turn.
    pub fn place(&self) -> Option<Mailbox> {
        let reactors = self.reactors.get()?;
        let turn = self.next_reactor.fetch_add(1, Ordering::Relaxed);
        reactors.get(turn % reactors.len()).cloned()
    }

    /// A number no other queue pair of this process has.
    pub fn next_queue_pair(&self) -> u64 {
        self.next_queue_pair.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes in a connection, unless there are too many. As many as may be queue pairs may be in their handshake besides, so
    /// that who only knocks is not in the way of a host that was granted its queues; [`Target::claims`] is the limit that
    /// counts.
    pub fn admit_connection(&self) -> bool {
        let most = self.limits.connections.saturating_mul(2);
        let admitted = self.connections.fetch_add(1, Ordering::Relaxed) < most;
        if !admitted {
            self.connections.fetch_sub(1, Ordering::Relaxed);
        }
        admitted
    }

    /// A connection has ended.
    pub fn release_connection(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps whether a namespace is write protected. It takes its time: not for a reactor.
    pub fn keep_protection(&self, subsystem: &Nqn, namespace: &Namespace, protected: bool) -> io::Result<()> {
        self.state().change(&protection_key(subsystem, namespace), protected.then_some(1))
    }

    /// Where the generation counter of the discovery log begins: where it was if the log says the same as before the
    /// restart, else further on.
    fn begin_discovery(&self) {
        let state = self.state();
        let content = discovery::fingerprint(self);
        let generation = match (state.number(GENERATION), state.number(CONTENT)) {
            (Some(last), Some(before)) if before == content => last,
            (Some(last), _) => last.wrapping_add(1),
            (None, _) => state.first(),
        };
        state.set(&[(GENERATION, generation), (CONTENT, content)]);
        self.discovery_generation.store(generation, Ordering::Release);
    }

    /// The generation counter of the discovery log (GENCTR).
    pub fn discovery_generation(&self) -> u64 {
        self.discovery_generation.load(Ordering::Acquire)
    }

    /// The discovery log says something else to some host from now on: counts, and tells who listens. To be called after
    /// the change.
    pub fn discovery_changed(&self) {
        {
            let state = self.state();
            let next = self.discovery_generation().wrapping_add(1);
            // Kept first: a number that a host has seen is never used again.
            state.set(&[(GENERATION, next), (CONTENT, discovery::fingerprint(self))]);
            self.discovery_generation.store(next, Ordering::Release);
        }
        self.discovery.raise(AsyncEvent::DiscoveryLog);
    }

    /// Whether it is stopping.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Has every reactor do something and waits until all have: what hosts are told afterwards is true on each of them. Not
    /// to be called on a reactor.
    pub fn on_every_reactor(&self, act: impl Fn() + Clone + Send + 'static) {
        let (done, all_done) = mpsc::channel();
        for mailbox in self.reactors.get().into_iter().flatten() {
            let (act, done) = (act.clone(), done.clone());
            mailbox.send(move |_| {
                act();
                let _ = done.send(());
            });
        }
        drop(done);
        loop {
            match all_done.recv_timeout(Duration::from_millis(100)) {
                Ok(()) => {}
                // Reactors that end do nothing any more, and tell hosts nothing.
                Err(mpsc::RecvTimeoutError::Timeout) if self.is_stopping() => return,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Stops: no new connections or commands, what executes is answered, then every reactor ends.
    pub fn stop(&self) {
        if self.stopping.swap(true, Ordering::Relaxed) {
            return;
        }
        let time = self.limits.shutdown_timeout;
        for mailbox in self.reactors.get().into_iter().flatten() {
            mailbox.send(move |_| local::stop(time));
        }
    }
}

/// In the state: whether a namespace is write protected. It goes by its identity, whatever its NSID becomes.
fn protection_key(subsystem: &Nqn, namespace: &Namespace) -> String {
    // A name may have any character, a key has no blanks.
    let name = subsystem.as_str().escape_default().to_string().replace(' ', "\\x20");
    format!("protected.{}.{name}", namespace.uuid)
}

fn open_subsystem(wanted: &config::Subsystem, state: &State) -> Result<NewSubsystem, TargetError> {
    let mut namespaces = Vec::new();
    for namespace in wanted.namespaces.iter().filter(|namespace| namespace.enabled) {
        let opened = Namespace::open(namespace)
            .map_err(|error| TargetError::Namespace(wanted.nqn.to_string(), namespace.nsid, error))?;
        if state.number(&protection_key(&wanted.nqn, &opened)) == Some(1) {
            tracing::info!(nsid = namespace.nsid, subsystem = %wanted.nqn, "write protected by a host, before the restart");
            opened.protect(true);
        }
        namespaces.push(Arc::new(opened));
    }
    Ok(NewSubsystem {
        kind: SubsystemKind::Nvm,
        nqn: wanted.nqn.clone(),
        serial: wanted.serial.clone(),
        model: wanted.model.clone(),
        firmware: wanted.firmware.clone().unwrap_or_else(|| FIRMWARE.into()),
        controller_ids: wanted.controller_ids.clone(),
        hosts: wanted.hosts.clone(),
        ports: wanted.ports.clone(),
        can_protect: state.is_kept(),
        namespaces,
    })
}
