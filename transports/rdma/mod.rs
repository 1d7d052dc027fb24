//! NVMe/RDMA.
//!
//! | File | Holds |
//! |---|---|
//! | `private_data.rs`, `keyed_sgl.rs`, `flow.rs` | what hosts send, read; bookkeeping of work: no adapter, no memory |
//! | `adapter.rs` | the trait between the transport and the verbs |
//! | `verbs.rs`, `bindings/` | rdma-core, loaded when first needed; the only `unsafe` here |
//! | `software/` | an adapter in memory, for tests |
//! | `listener.rs`, `link.rs` | ports, and the connection manager's events on their way to queue pairs |
//! | `connection.rs` | from a connection request to the first capsule |
//! | `device.rs`, `receives.rs` | what a reactor keeps of a device: regions, completion queue, receives |
//! | `queue_pair.rs`, `work.rs` | the queue pair: slots, its end, the trait; posting and completing work |
//! | `offload.rs` | the helper thread for everything that may block |
//! | `counters.rs` | what is counted |

pub mod adapter;
mod bindings;
mod connection;
mod counters;
mod device;
mod flow;
mod keyed_sgl;
#[cfg(test)]
mod layouts;
mod link;
mod listener;
mod offload;
mod private_data;
mod queue_pair;
mod receives;
#[cfg(any(test, feature = "software-rdma"))]
pub mod software;
#[cfg(test)]
mod tests;
mod verbs;
mod work;

pub use connection::Connection;
pub use counters::Counters;
pub use device::Local;
pub use listener::{Incoming, Port};
pub use queue_pair::{RdmaQueuePair, Token};
pub use verbs::RdmaCore;

use crate::{Endpoints, FirstCapsule, HandshakeError, HandshakeLimits, QueueParameters, Transport};
use adapter::Verbs;
use nvme::Cqe;
use reactor::Reactor;
use std::{io, marker::PhantomData, net::SocketAddr, rc::Rc, sync::Arc};

/// The RDMA transport over some adapter.
pub struct Rdma<V: Verbs>(PhantomData<V>);

impl<V: Verbs> Transport for Rdma<V> {
    const NAME: &'static str = "rdma";
    const PLACED_AT_ACCEPT: bool = true;
    type Local = Local<V>;
    type Port = Port<V>;
    type Incoming = Incoming<V>;
    type Connection = Connection<V>;
    type QueuePair = RdmaQueuePair<V>;

    fn local(reactor: &Reactor) -> Local<V> {
        Local::new(reactor)
    }

    fn counters(local: &Local<V>) -> Option<&Arc<Counters>> {
        Some(&local.counters)
    }

    fn listen(address: SocketAddr) -> io::Result<Port<V>> {
        Port::listen(V::load()?, address)
    }

    fn local_address(port: &Port<V>) -> io::Result<SocketAddr> {
        Ok(port.local_address())
    }

    fn incoming(port: Port<V>, reactor: &Reactor) -> Incoming<V> {
        Incoming::new(port, reactor)
    }

    async fn accept(incoming: &mut Incoming<V>) -> io::Result<Connection<V>> {
        incoming.next().await
    }

    async fn handshake(
        connection: &mut Connection<V>,
        local: &Rc<Local<V>>,
        reactor: &Reactor,
        limits: HandshakeLimits,
    ) -> Result<FirstCapsule, HandshakeError> {
        connection.handshake(local, reactor, limits).await
    }

    fn endpoints(connection: &Connection<V>) -> Endpoints {
        connection.endpoints()
    }

    async fn refuse(connection: Connection<V>, local: &Rc<Local<V>>, reactor: &Reactor, cqe: Cqe) {
        connection.refuse(local, reactor, cqe).await;
    }

    fn install(
        connection: Connection<V>,
        local: &Rc<Local<V>>,
        _: &Reactor,
        parameters: QueueParameters,
        connected: Cqe,
    ) -> io::Result<RdmaQueuePair<V>> {
        connection.install(local, parameters, connected)
    }
}
