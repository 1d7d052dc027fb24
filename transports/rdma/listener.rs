//! Ports: listening, connection requests, and the events of the connection manager, which are read on the port's reactor and
//! passed on to the queue pairs they are about.

use super::{
    adapter::{CmEvent, EndCause, Verbs},
    connection::Connection,
    link::{self, Links},
    offload,
};
use futures::future::{Either, select};
use reactor::{Reactor, Readable, Signal};
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    io,
    net::SocketAddr,
    pin::pin,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

/// Requests that may wait in the connection manager.
const BACKLOG: u32 = 128;
/// Between attempts to listen again on an address whose device went away.
const AGAIN: Duration = Duration::from_secs(1);

/// A bound address.
pub struct Port<V: Verbs> {
    verbs: V,
    channel: V::Channel,
    id: V::Id,
}

impl<V: Verbs> Port<V> {
    /// Listens.
    pub fn listen(verbs: V, address: SocketAddr) -> io::Result<Port<V>> {
        let (channel, id) = verbs.listen(address, BACKLOG)?;
        Ok(Port { verbs, channel, id })
    }

    pub(super) fn local_address(&self) -> SocketAddr {
        V::local_address(&self.id)
    }
}

/// What the tasks of a port share.
struct Listening<V: Verbs> {
    verbs: V,
    address: SocketAddr,
    links: Arc<Links>,
    requests: RefCell<VecDeque<Connection<V>>>,
    changed: Signal,
    closed: Cell<bool>,
}

/// The connections of a port as they come in.
pub struct Incoming<V: Verbs>(Rc<Listening<V>>);

impl<V: Verbs> Incoming<V> {
    pub(super) fn new(port: Port<V>, reactor: &Reactor) -> Incoming<V> {
        let listening = Rc::new(Listening {
            address: port.local_address(),
            verbs: port.verbs,
            links: Arc::default(),
            requests: RefCell::default(),
            changed: Signal::new(),
            closed: Cell::new(false),
        });
        reactor.spawn(serve(listening.clone(), reactor.clone(), port.channel, port.id));
        Incoming(listening)
    }

    pub(super) async fn next(&mut self) -> io::Result<Connection<V>> {
        let listening = &self.0;
        Ok(listening.changed.wait_for(|| listening.requests.borrow_mut().pop_front()).await)
    }
}

impl<V: Verbs> Drop for Incoming<V> {
    fn drop(&mut self) {
        self.0.closed.set(true);
        // Dropping a request rejects it.
        let left = std::mem::take(&mut *self.0.requests.borrow_mut());
        drop(left);
        self.0.changed.notify();
    }
}

/// Serves a port through the lives of its device.
async fn serve<V: Verbs>(
    listening: Rc<Listening<V>>,
    reactor: Reactor,
    mut channel: V::Channel,
    mut id: V::Id,
) {
    loop {
        // The connections of a life outlast its listener: their events are read until the last has ended.
        let (key, ended) = (V::key(&id), Rc::new(Signal::new()));
        let lost = Rc::new(Cell::new(false));
        let events = watch(listening.clone(), reactor.clone(), channel, key, (lost.clone(), ended.clone()));
        reactor.spawn(events);
        let over = || listening.closed.get() || lost.get();
        {
            let lost = pin!(ended.wait_for(|| over().then_some(())));
            let closed = pin!(listening.changed.wait_for(|| over().then_some(())));
            select(lost, closed).await;
        }
        offload::dispose(id);
        if listening.closed.get() {
            return;
        }
        tracing::warn!(address = %listening.address, "the RDMA device of a port went away; waiting until it is back");
        (channel, id) = loop {
            reactor.sleep(AGAIN).await;
            if listening.closed.get() {
                return;
            }
            let (verbs, address) = (listening.verbs.clone(), listening.address);
            match offload::run(move || verbs.listen(address, BACKLOG)).await {
                Ok(again) => break again,
                Err(error) => tracing::debug!(address = %listening.address, %error, "cannot listen yet"),
            }
        };
        tracing::info!(address = %listening.address, "listening again");
    }
}

/// Reads the events of a channel until the port is closed, or its listener lost, and no connection is left.
async fn watch<V: Verbs>(
    listening: Rc<Listening<V>>,
    reactor: Reactor,
    channel: V::Channel,
    listener: u64,
    (lost, ended): (Rc<Cell<bool>>, Rc<Signal>),
) {
    let descriptor = match V::channel_descriptor(&channel) {
        Ok(descriptor) => Rc::new(descriptor),
        Err(error) => {
            tracing::error!(%error, "cannot watch the connection manager");
            return;
        }
    };
    let mut readable = reactor.readable(&descriptor);
    while !((listening.closed.get() || lost.get()) && listening.links.is_empty()) {
        if !wait(&mut readable, &listening).await {
            break;
        }
        loop {
            match V::next_event(&channel) {
                Ok(Some(CmEvent::DeviceRemoval(key))) if key == listener => {
                    lost.set(true);
                    ended.notify();
                }
                Ok(Some(event)) => handle(&listening, event),
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "cannot read an event of the connection manager");
                    break;
                }
            }
        }
    }
    drop(readable);
    offload::dispose(channel);
}

/// Waits for events; false when there will be none.
async fn wait<V: Verbs>(readable: &mut Readable, listening: &Listening<V>) -> bool {
    let was_closed = listening.closed.get();
    let news = pin!(readable.next());
    let closed = pin!(listening.changed.wait_for(|| (listening.closed.get() != was_closed).then_some(())));
    match select(news, closed).await {
        Either::Left((Err(error), _)) => {
            tracing::error!(%error, "cannot watch the connection manager");
            false
        }
        _ => true,
    }
}

fn handle<V: Verbs>(listening: &Listening<V>, event: CmEvent<V>) {
    let links = &listening.links;
    match event {
        CmEvent::Request(request) => {
            let connection = Connection::new(request, links);
            // A port that closes takes none: dropping it rejects it.
            if !listening.closed.get() {
                listening.requests.borrow_mut().push_back(connection);
                listening.changed.notify();
            }
        }
        CmEvent::Established(key) => links.mark(key, link::ESTABLISHED),
        CmEvent::Ended(key, cause) => {
            if cause != EndCause::Disconnected {
                tracing::info!(?cause, "a connection ended");
            }
            links.mark(key, link::ENDED);
        }
        CmEvent::DeviceRemoval(key) => links.mark(key, link::ENDED | link::REMOVED),
        CmEvent::Other => {}
    }
}
