//! Starting and ending a target: ports bound, namespaces opened, reactors running.
//!
//! This is where a configured transport becomes a concrete one.

use crate::{
    config::{Config, TransportKind},
    local::{self, Local},
    metrics::{Labels, Registry},
    queue_pair,
    state::{self, State, StateError},
    target::{BoundPort, Target, TargetError},
    watch::Watch,
};
use reactor::{Options, ReactorThread, SetupError, system};
use std::{fmt, io, net::SocketAddr, sync::Arc};
use transports::{
    Transport,
    rdma::{Rdma, RdmaCore},
    tcp::Tcp,
};

/// Why a target did not start.
#[derive(Debug)]
pub enum StartError {
    /// An address cannot be listened on.
    Listen {
        /// The port's identifier.
        port: u16,
        /// The address.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// There is no port but for RDMA, and no RDMA.
    NoRdma {
        /// The port's identifier.
        port: u16,
        /// Why.
        error: io::Error,
    },
    /// The state directory cannot be used.
    State(StateError),
    /// What the configuration names cannot be opened.
    Target(TargetError),
    /// A reactor cannot be set up.
    Reactor(usize, SetupError),
    /// The thread that watches sizes cannot be started.
    Watch(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Listen { port, address, error } => write!(
                f,
                "port {port}: cannot listen on {address}: {error} (choose another with port.address in the configuration \
                 or --listen)"
            ),
            StartError::NoRdma { port, error } => write!(
                f,
                "port {port}: there is no RDMA here: {error} (`rdma link` shows the devices; `transport = \"tcp\"` needs none)"
            ),
            StartError::State(error) => error.fmt(f),
            StartError::Target(error) => error.fmt(f),
            StartError::Reactor(index, error) => write!(f, "reactor {index}: {error}"),
            StartError::Watch(error) => write!(f, "cannot start the thread that watches sizes: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// A running target.
pub struct Daemon {
    /// What exists.
    pub target: Arc<Target>,
    /// What is counted.
    pub registry: Arc<Registry>,
    /// Its reactors.
    pub threads: Vec<ReactorThread>,
    _watch: Watch,
}

impl Daemon {
    /// Opens what the configuration names and serves it.
    pub fn start(config: &Config) -> Result<Daemon, StartError> {
        let (listeners, ports) = bind(config)?;
        let state = open_state(config)?;
        let target = Arc::new(Target::open(config, ports, state).map_err(StartError::Target)?);
        let processors = system::processors();
        let count = config.reactors.count.map_or(processors.len(), usize::from);
        let registry =
            Registry::new(count, Labels::nvme(env!("CARGO_PKG_VERSION"), config.limits.connections));
        let threads = start_reactors(config, &processors, &target, &registry)?;
        target.set_reactors(threads.iter().map(|t| t.mailbox.clone()).collect());
        for (turn, (listener, port)) in listeners.into_iter().zip(&target.ports).enumerate() {
            let port = Arc::new(port.clone());
            threads[turn % threads.len()].mailbox.send(move |reactor| {
                let Some(local) = local::current() else { return };
                match listener {
                    Listener::Tcp(listener) => {
                        reactor.spawn(queue_pair::serve_port::<Tcp>(local, port, listener));
                    }
                    Listener::Rdma(listener) => {
                        reactor.spawn(queue_pair::serve_port::<Rdma<RdmaCore>>(local, port, listener));
                    }
                }
            });
        }
        let watch = Watch::start(&target).map_err(StartError::Watch);
        let watch = match watch {
            Ok(watch) => watch,
            Err(error) => {
                target.stop();
                threads.into_iter().for_each(|thread| drop(thread.join()));
                return Err(error);
            }
        };
        Ok(Daemon { target, registry, threads, _watch: watch })
    }

    /// Waits until all reactors have ended, after [`Target::stop`].
    pub fn join(self) -> io::Result<()> {
        self.threads.into_iter().try_for_each(ReactorThread::join)
    }
}

fn open_state(config: &Config) -> Result<State, StartError> {
    match &config.state_dir {
        Some(directory) => State::open(directory).map_err(StartError::State),
        None => {
            tracing::info!(
                "no state_dir: nothing is remembered after the end; hosts that watch the discovery log read it anew after a \
                 restart, changed or not"
            );
            Ok(State::none(state::now_ms()))
        }
    }
}

/// A bound port, of one transport or the other.
enum Listener {
    Tcp(<Tcp as Transport>::Port),
    Rdma(<Rdma<RdmaCore> as Transport>::Port),
}

type Bound = (Vec<Listener>, Vec<BoundPort>);

/// Binds every port. Where there is no RDMA, ports for it are left out and that is said, as long as others remain.
fn bind(config: &Config) -> Result<Bound, StartError> {
    let (mut listeners, mut ports) = (Vec::new(), Vec::new());
    let mut left_out = None;
    for port in &config.ports {
        let failed = |error| StartError::Listen { port: port.id, address: port.address, error };
        let (listener, address) = match port.transport {
            TransportKind::Tcp => {
                let listener = Tcp::listen(port.address).map_err(failed)?;
                let address = Tcp::local_address(&listener).map_err(failed)?;
                (Listener::Tcp(listener), address)
            }
            TransportKind::Rdma => match Rdma::<RdmaCore>::listen(port.address) {
                Ok(listener) => {
                    let address = Rdma::<RdmaCore>::local_address(&listener).map_err(failed)?;
                    (Listener::Rdma(listener), address)
                }
                Err(error) if is_no_rdma(&error) => {
                    left_out.get_or_insert((port.id, error));
                    continue;
                }
                Err(error) => return Err(failed(error)),
            },
        };
        let (id, transport, discovery) = (port.id, port.transport, port.discovery);
        ports.push(BoundPort { id, transport, address, discovery });
        listeners.push(listener);
    }
    match left_out {
        Some((port, error)) if ports.is_empty() => Err(StartError::NoRdma { port, error }),
        left_out => {
            if let Some((port, error)) = left_out {
                tracing::warn!(port, "there is no RDMA here, serving without: {error}");
            }
            Ok((listeners, ports))
        }
    }
}

/// The library is missing, or no device has the address.
fn is_no_rdma(error: &io::Error) -> bool {
    const NO_SUCH_DEVICE: i32 = 19;
    error.kind() == io::ErrorKind::Unsupported || error.raw_os_error() == Some(NO_SUCH_DEVICE)
}

fn start_reactors(
    config: &Config,
    processors: &[usize],
    target: &Arc<Target>,
    registry: &Arc<Registry>,
) -> Result<Vec<ReactorThread>, StartError> {
    let mut threads: Vec<ReactorThread> = Vec::new();
    for (index, metrics) in registry.reactors().iter().enumerate() {
        let options = Options {
            name: format!("weft-{index}"),
            // More reactors than processors share them unpinned: the scheduler knows better then.
            cpu: processors.get(index).copied().filter(|_| registry.reactors().len() <= processors.len()),
            buffers: config.reactors.buffer_bytes as usize,
            max_buffer: config.limits.max_transfer_bytes as usize,
            poll: config.reactors.poll,
            made_up_time: false,
        };
        let (for_reactor, metrics) = (target.clone(), metrics.clone());
        let started =
            reactor::start(options, move |reactor| drop(Local::install(reactor, for_reactor, metrics)));
        let thread = match started {
            Ok(thread) => thread,
            Err(error) => {
                target.set_reactors(threads.iter().map(|t| t.mailbox.clone()).collect());
                target.stop();
                // What matters is why the start failed.
                threads.into_iter().for_each(|thread| drop(thread.join()));
                return Err(StartError::Reactor(index, error));
            }
        };
        if let Some(warning) = &thread.warning {
            tracing::warn!(reactor = index, "{warning}");
        }
        registry.attach(index, thread.stats.clone(), thread.mailbox.clone());
        threads.push(thread);
    }
    Ok(threads)
}
