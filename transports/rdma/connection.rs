//! From a connection request to the first capsule: private data, the queue pair, accept, Connect.

use super::{
    adapter::{self, QpSizes, Verbs},
    device::{Local, LocalDevice},
    link::{self, Link, Links},
    offload,
    private_data::{self, QueueLimits, Reject, Request},
    queue_pair::{Fetch, Inner, Life, Made, RdmaQueuePair, Terms, live},
    receives::Receives,
    work,
};
use crate::{
    Announced, CloseReason, Endpoints, FirstCapsule, HandshakeError, HandshakeLimits, ProtocolError,
    QueueParameters,
};
use nvme::{Cqe, connect::ConnectData};
use reactor::{BufferClass, Data, DataBuffer, Reactor};
use std::{cell::Cell, io, rc::Rc, sync::Arc, time::Duration};

/// How long a host may take to read a refusal and disconnect.
const LINGER: Duration = Duration::from_secs(2);
/// Work requests of a send queue beyond two per command: room for one response in many pieces.
const EXTRA_SENDS: u32 = 24;
/// Responses that may be on their way beyond one per command.
const EXTRA_RESPONSES: usize = 16;

/// A connection: a request first, later a queue pair on its reactor.
pub struct Connection<V: Verbs> {
    request: Option<adapter::Incoming<V>>,
    endpoints: Endpoints,
    link: Arc<Link>,
    links: Arc<Links>,
    /// Its place on the device of its reactor.
    place: Option<(u64, u32)>,
    installed: bool,
}

impl<V: Verbs> Connection<V> {
    pub(super) fn new(request: adapter::Incoming<V>, links: &Arc<Links>) -> Connection<V> {
        let key = V::key(&request.id);
        let endpoints =
            Endpoints { local: V::local_address(&request.id), peer: V::peer_address(&request.id) };
        let link = links.add(key);
        Connection {
            request: Some(request),
            endpoints,
            link,
            links: links.clone(),
            place: None,
            installed: false,
        }
    }

    pub(super) fn endpoints(&self) -> Endpoints {
        self.endpoints
    }

    pub(super) async fn handshake(
        &mut self,
        local: &Local<V>,
        reactor: &Reactor,
        limits: HandshakeLimits,
    ) -> Result<FirstCapsule, HandshakeError> {
        reactor
            .timeout(limits.time, self.establish(local, reactor, limits))
            .await
            .unwrap_or(Err(HandshakeError::Timeout))
    }

    async fn establish(
        &mut self,
        local: &Local<V>,
        reactor: &Reactor,
        limits: HandshakeLimits,
    ) -> Result<FirstCapsule, HandshakeError> {
        let (asked, reads, device) = match self.examine(local, &limits).await {
            Ok(fine) => fine,
            Err(why) => return Err(self.reject(local, why)),
        };
        let inner = match self.queue_pair(&device, reactor, &asked, reads, &limits).await {
            Ok(inner) => inner,
            Err(error) => {
                tracing::warn!(peer = %self.endpoints.peer, %error, "no queue pair for a connection");
                return Err(self.reject(local, Reject::Resources));
            }
        };
        // Receives are posted before the host hears that it may send.
        inner.flush();
        let Some(request) = self.request.take() else { return Err(gone()) };
        let reply = private_data::encode_reply(asked.entries);
        offload::run(move || V::accept(&request.id, reads, &reply)).await?;
        let ready = || {
            let arrived = inner.established.get() && !inner.state.borrow().parked.is_empty();
            (arrived || inner.is_closed()).then_some(())
        };
        inner.changed.wait_for(ready).await;
        first(&inner, Announced { qid: asked.qid, entries: asked.entries }).await
    }

    /// What the host asks for, and the device to serve it with.
    async fn examine(
        &mut self,
        local: &Local<V>,
        limits: &HandshakeLimits,
    ) -> Result<(Request, u8, Rc<LocalDevice<V>>), Reject> {
        let HandshakeLimits { admin_entries, io_entries, io_queues, .. } = *limits;
        let request = self.request.as_ref().ok_or(Reject::Resources)?;
        let asked =
            Request::parse(&request.private_data, &QueueLimits { admin_entries, io_entries, io_queues })?;
        let host_serves = request.host_serves;
        let device = match V::device(&request.id) {
            Ok(device) => local.device(device, limits.in_capsule).await,
            Err(error) => Err(error),
        };
        let device = device.map_err(|error| {
            tracing::warn!(peer = %self.endpoints.peer, %error, "the RDMA device of a connection cannot be used");
            Reject::Resources
        })?;
        let reads = private_data::read_depth(host_serves, device.limits.max_reads)?;
        Ok((asked, reads, device))
    }

    fn reject(&mut self, local: &Local<V>, why: Reject) -> HandshakeError {
        local.counters.rejects.add(1);
        if let Some(request) = self.request.take() {
            reject(request, why, self.links.clone());
        }
        match why {
            Reject::Resources => {
                HandshakeError::Io(io::Error::new(io::ErrorKind::OutOfMemory, why.describe()))
            }
            _ => HandshakeError::Protocol(ProtocolError::UnsupportedParameter, why.describe()),
        }
    }

    /// Makes the queue pair and gives it its place. What was taken for it is given back when that fails.
    async fn queue_pair(
        &mut self,
        device: &Rc<LocalDevice<V>>,
        reactor: &Reactor,
        asked: &Request,
        reads: u8,
        limits: &HandshakeLimits,
    ) -> io::Result<Rc<Inner<V>>> {
        let id =
            self.request.as_ref().map(|request| request.id.clone()).ok_or(io::ErrorKind::NotConnected)?;
        let entries = asked.entries;
        let most = device.limits.max_work_requests;
        let sends = (2 * entries + EXTRA_SENDS).min(most).min((1 << 15) - 1);
        if sends < entries || sends < EXTRA_SENDS || entries > most {
            return Err(io::Error::other("the device's queues are too small"));
        }
        // Admin queues keep their own receives: Keep Alive never waits behind data.
        let srq = if asked.qid.is_admin() { None } else { device.take_shared(entries) };
        let shared = srq.is_some();
        let sizes = QpSizes { sends, receives: if shared { 0 } else { entries } };
        let terms = Terms { qid: asked.qid, entries, in_capsule: limits.in_capsule, reads, sizes, shared };
        let owner = device.place();
        let claim = Claim { device, owner, entries, shared, completions: Cell::new(0) };
        device.reserve(sends + entries).await?;
        claim.completions.set(sends + entries);
        let (made, own, cqes) = make(device, reactor, &id, owner, srq, &terms).await?;
        claim.keep();
        let inner = Inner::new(device, owner, id, made, terms, own, cqes);
        self.place = Some((device.key, owner));
        reactor.spawn(live(inner.clone(), self.link.clone(), self.links.clone()));
        Ok(inner)
    }

    fn inner(&self, local: &Local<V>) -> Option<Rc<Inner<V>>> {
        let (device, owner) = self.place?;
        local.pair(device, owner)
    }

    pub(super) async fn refuse(self, local: &Local<V>, reactor: &Reactor, cqe: Cqe) {
        let Some(inner) = self.inner(local) else { return };
        if inner.life.get() == Life::Connecting {
            inner.life.set(Life::Draining);
        }
        work::post_response(&inner, 0, cqe, Data::None);
        inner.quiet().await;
        // The host reads it and leaves; if not, it is left.
        reactor.timeout(LINGER, inner.changed.wait_for(|| inner.is_closed().then_some(()))).await;
        inner.close(CloseReason::Drained);
        inner.end().await;
    }

    pub(super) fn install(
        mut self,
        local: &Local<V>,
        parameters: QueueParameters,
        connected: Cqe,
    ) -> io::Result<RdmaQueuePair<V>> {
        let inner = self.inner(local).ok_or_else(gone_error)?;
        self.installed = true;
        Ok(RdmaQueuePair::install(inner, parameters, connected))
    }
}

impl<V: Verbs> Drop for Connection<V> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            reject(request, Reject::Resources, self.links.clone());
        }
        if !self.installed {
            self.link.mark(link::ABANDONED);
        }
    }
}

/// Rejects a request, on the helper thread.
fn reject<V: Verbs>(request: adapter::Incoming<V>, why: Reject, links: Arc<Links>) {
    links.remove(V::key(&request.id));
    offload::dispose(Rejection { request, why });
}

/// Its end rejects and destroys a request.
struct Rejection<V: Verbs> {
    request: adapter::Incoming<V>,
    why: Reject,
}

impl<V: Verbs> Drop for Rejection<V> {
    fn drop(&mut self) {
        if let Err(error) = V::reject(&self.request.id, &self.why.encode()) {
            tracing::debug!(%error, "reject");
        }
    }
}

/// What is taken of a device for a queue pair that does not exist yet.
struct Claim<'a, V: Verbs> {
    device: &'a LocalDevice<V>,
    owner: u32,
    entries: u32,
    shared: bool,
    completions: Cell<u32>,
}

impl<V: Verbs> Claim<'_, V> {
    /// The queue pair exists and gives back what is its at its end.
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl<V: Verbs> Drop for Claim<'_, V> {
    fn drop(&mut self) {
        self.device.release(self.completions.get());
        if self.shared {
            self.device.give_shared(self.entries);
        }
        self.device.remove(self.owner, None);
    }
}

/// Makes what a queue pair is made of, and its memory.
async fn make<V: Verbs>(
    device: &LocalDevice<V>,
    reactor: &Reactor,
    id: &V::Id,
    owner: u32,
    srq: Option<V::Srq>,
    terms: &Terms,
) -> io::Result<(Made<V>, Option<Receives>, DataBuffer)> {
    let entries = terms.entries as usize;
    let cqes = (entries + EXTRA_RESPONSES) * Cqe::LEN;
    let cqes = device.small.try_buffer(cqes).ok_or_else(|| io::Error::other("too many queue pairs"))?;
    let mut own = match terms.shared {
        true => None,
        false => Some(Receives::new(reactor, owner, entries, terms.in_capsule)?),
    };
    let memory = own.as_ref().map(Receives::device_memory);
    let (id, domain, cq, sizes) = (id.clone(), device.domain.clone(), device.cq.clone(), terms.sizes);
    let made = offload::run(move || {
        let region = memory.map(|memory| V::register(&domain, &memory)).transpose()?;
        Ok(Made { qp: V::queue_pair(&id, &domain, &cq, srq.as_ref(), sizes)?, region })
    });
    let made: Made<V> = made.await?;
    if let (Some(own), Some(region)) = (&mut own, &made.region) {
        own.start(V::region_key(region));
    }
    Ok((made, own, cqes))
}

/// Takes the first capsule, with its data.
async fn first<V: Verbs>(inner: &Rc<Inner<V>>, announced: Announced) -> Result<FirstCapsule, HandshakeError> {
    let (sqe, in_capsule, len) = {
        let mut state = inner.state.borrow_mut();
        let arrived = state.parked.pop_front().filter(|_| !inner.is_closed()).ok_or_else(gone_error)?;
        let capsule = work::capsule(inner, &mut state, 0, arrived);
        let len = state.slots[0].layout.map_or(0, |layout| layout.len);
        (capsule.sqe, capsule.data.ok().flatten(), len)
    };
    let none = FirstCapsule { sqe, data: Box::default(), announced: Some(announced) };
    if let Some(data) = in_capsule {
        return Ok(FirstCapsule { data: data.filled().into(), ..none });
    }
    // Nothing but Connect's data is fetched for a host that is not known yet.
    if len != ConnectData::LEN as u64 {
        return Ok(none);
    }
    let buffer = inner.device.reactor.buffer(ConnectData::LEN, BufferClass::Admin).await;
    if work::start_fetch(inner, 0, buffer, ConnectData::LEN).is_err() {
        return Err(gone());
    }
    let fetched = inner.room.wait_for(|| {
        let mut state = inner.state.borrow_mut();
        if let Fetch::Done(_) = &state.slots[0].fetch
            && let Fetch::Done(buffer) = std::mem::replace(&mut state.slots[0].fetch, Fetch::Idle)
        {
            return Some(Ok(buffer));
        }
        inner.is_closed().then(|| Err(gone()))
    });
    let buffer = fetched.await?;
    Ok(FirstCapsule { data: buffer.filled().into(), ..none })
}

fn gone_error() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the host left")
}

fn gone() -> HandshakeError {
    HandshakeError::Io(gone_error())
}
