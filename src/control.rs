//! The control thread: signals, the metrics page and the health check.
//!
//! A current-thread tokio runtime on a thread of its own. It shares nothing with the reactors but the cells
//! they count in, so a stuck drive never stops a scrape, and a slow scrape never delays a command. Every
//! connection has limits: the size of its header, its time, and how many there are at once.
//!
//! The first SIGTERM or SIGINT asks for an orderly end, the second ends the process at once.

mod health;
mod http;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures::channel::oneshot;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time;

use crate::exporter::Exporter;
use crate::metrics::Registry;
use health::Health;

const MAX_CONNECTIONS: usize = 64;
const CONNECTION_TIME: Duration = Duration::from_secs(10);

/// Why the control thread did not start.
#[derive(Debug)]
pub enum ControlError {
    /// The address cannot be listened on.
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused something else: a thread, a signal handler, the runtime's descriptors.
    Start {
        /// What was refused.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind { address, source } => write!(
                f,
                "cannot serve metrics on {address}: {source} (choose another with metrics.address in the \
                 configuration or --metrics)"
            ),
            Self::Start { what, source } => write!(f, "cannot start the control thread: {what}: {source}"),
        }
    }
}

// No `source()`: the texts above hold the system's already.
impl std::error::Error for ControlError {}

/// The running control thread. Dropping it stops it as well.
#[derive(Debug)]
pub struct ControlThread {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ControlThread {
    /// Where the metrics page is served, with the port that the kernel chose if that was 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends open connections and the thread, and waits for it.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for ControlThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control thread had panicked");
        }
    }
}

/// Starts the control thread. `shutdown` is called on it at the first SIGTERM or SIGINT and should only pass
/// the word on.
///
/// Everything that can fail does so before this returns: the address is bound and the signals are caught.
///
/// # Errors
///
/// The address cannot be bound, or the system refused a thread or a signal handler.
pub fn start(
    address: SocketAddr,
    registry: Arc<Registry>,
    shutdown: Box<dyn FnOnce() + Send>,
) -> Result<ControlThread, ControlError> {
    let bind = |source| ControlError::Bind { address, source };
    let start = |what| move |source| ControlError::Start { what, source };

    let listener = StdListener::bind(address).map_err(bind)?;
    listener.set_nonblocking(true).map_err(bind)?;
    let bound = listener.local_addr().map_err(bind)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(start("runtime"))?;
    let (signals, listener) = {
        // Both register with the runtime they will be awaited on.
        let _inside = runtime.enter();
        let signals = Signals {
            terminate: signal(SignalKind::terminate()).map_err(start("SIGTERM"))?,
            interrupt: signal(SignalKind::interrupt()).map_err(start("SIGINT"))?,
        };
        (signals, TcpListener::from_std(listener).map_err(bind)?)
    };
    let (stop, stopped) = oneshot::channel();
    let server = Server {
        listener,
        page: Arc::new(Page {
            exporter: Exporter::new(Arc::clone(&registry)),
            health: Health::new(registry),
        }),
    };
    let run = move || runtime.block_on(run(server, signals, shutdown, stopped));
    let thread =
        thread::Builder::new().name("weft-control".to_owned()).spawn(run).map_err(start("thread"))?;
    Ok(ControlThread { address: bound, stop: Some(stop), thread: Some(thread) })
}

/// What the pages are made from.
pub(crate) struct Page {
    exporter: Exporter,
    health: Health,
}

struct Server {
    listener: TcpListener,
    page: Arc<Page>,
}

/// The signals that end the process.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Waits for the next one and gives its name.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

async fn run(
    server: Server,
    mut signals: Signals,
    shutdown: Box<dyn FnOnce() + Send>,
    stopped: oneshot::Receiver<()>,
) {
    let mut shutdown = Some(shutdown);
    let serving = serve(&server);
    tokio::pin!(serving, stopped);
    loop {
        tokio::select! {
            // The sender is dropped, never used: either way it is time to go.
            _ = &mut stopped => return,
            () = &mut serving => return,
            name = signals.next() => match shutdown.take() {
                Some(shutdown) => {
                    tracing::info!("{name}: stopping; a second signal ends the process at once");
                    shutdown();
                }
                None => {
                    tracing::warn!("{name} again: ending at once, running commands are lost");
                    std::process::exit(1);
                }
            },
        }
    }
}

/// Accepts connections for ever.
async fn serve(server: &Server) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            // Collect those that have ended; their number is the limit below.
            Some(_) = connections.join_next() => {}
            accepted = server.listener.accept() => match accepted {
                Ok((stream, _)) if connections.len() < MAX_CONNECTIONS => {
                    connections.spawn(answer(stream, Arc::clone(&server.page)));
                }
                // Closed without a word: whoever fills all the places would not read it.
                Ok((stream, _)) => drop(stream),
                Err(error) => {
                    tracing::warn!("cannot accept a connection to the metrics page: {error}");
                    // Out of descriptors: the connection stays queued, so the next accept would fail at once.
                    time::sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
}

/// One connection from its first byte to its last, within its time.
async fn answer(stream: TcpStream, page: Arc<Page>) {
    match time::timeout(CONNECTION_TIME, converse(stream, &page)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("a connection to the metrics page ended early: {error}"),
        Err(_) => tracing::debug!("a connection to the metrics page took too long"),
    }
}

async fn converse(mut stream: TcpStream, page: &Page) -> io::Result<()> {
    let Some(request) = http::receive(&mut stream).await? else { return Ok(()) };
    match request {
        Ok(request) => http::send(stream, &page.get(&request.path).await, request.with_body).await,
        Err(status) => http::send(stream, &http::Resource::error(status), true).await,
    }
}

impl Page {
    /// The resource at `path`.
    async fn get(&self, path: &str) -> http::Resource {
        let plain = |status, body| http::Resource { status, content_type: http::PLAIN, body };
        match path {
            "/metrics" => http::Resource {
                status: http::Status::Ok,
                content_type: crate::exporter::CONTENT_TYPE,
                body: self.exporter.render(),
            },
            "/healthz" => match self.health.complaints().await {
                complaints if complaints.is_empty() => plain(http::Status::Ok, "ok\n".to_owned()),
                complaints => plain(http::Status::ServiceUnavailable, complaints),
            },
            _ => http::Resource::error(http::Status::NotFound),
        }
    }
}

#[cfg(test)]
mod tests;
