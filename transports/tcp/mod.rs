//! NVMe/TCP.
//!
//! | File | Holds |
//! |---|---|
//! | `pdu.rs` | PDU layouts, checks, digests: bytes to meaning and back |
//! | `header.rs` | collects one PDU header out of a stream |
//! | `connection.rs` | listening, accepting, ICReq, ICResp, the first capsule |
//! | `queue_pair.rs` | the queue pair: slots, closing, the trait |
//! | `receive.rs` | the stream from the host: capsules and data |
//! | `stall.rs` | the time limits on a host that owes something |
//! | `send.rs` | the stream to the host: responses gathered per turn |

mod connection;
mod header;
mod pdu;
mod queue_pair;
mod receive;
mod send;
mod stall;
#[cfg(test)]
mod tests;

pub use connection::{Connection, Incoming, Port};
pub use queue_pair::{TcpQueuePair, Token};
#[doc(hidden)]
pub use receive::fuzzing;

use crate::{Endpoints, FirstCapsule, HandshakeError, HandshakeLimits, QueueParameters, Transport};
use nvme::Cqe;
use reactor::Reactor;
use std::{io, net::SocketAddr, rc::Rc};

/// The TCP transport.
pub struct Tcp;

impl Transport for Tcp {
    const NAME: &'static str = "tcp";
    const PLACED_AT_ACCEPT: bool = false;
    type Local = ();
    type Port = Port;
    type Incoming = Incoming;
    type Connection = Connection;
    type QueuePair = TcpQueuePair;

    fn local(_: &Reactor) {}

    fn listen(address: SocketAddr) -> io::Result<Port> {
        Port::listen(address)
    }

    fn local_address(port: &Port) -> io::Result<SocketAddr> {
        port.local_address()
    }

    fn incoming(port: Port, reactor: &Reactor) -> Incoming {
        Incoming::new(port, reactor)
    }

    async fn accept(incoming: &mut Incoming) -> io::Result<Connection> {
        incoming.next().await
    }

    async fn handshake(
        connection: &mut Connection,
        _: &Rc<()>,
        reactor: &Reactor,
        limits: HandshakeLimits,
    ) -> Result<FirstCapsule, HandshakeError> {
        connection.handshake(reactor, limits).await
    }

    fn endpoints(connection: &Connection) -> Endpoints {
        connection.endpoints()
    }

    async fn refuse(connection: Connection, _: &Rc<()>, reactor: &Reactor, cqe: Cqe) {
        connection.refuse(reactor, cqe).await;
    }

    fn install(
        connection: Connection,
        _: &Rc<()>,
        reactor: &Reactor,
        parameters: QueueParameters,
        connected: Cqe,
    ) -> io::Result<TcpQueuePair> {
        TcpQueuePair::install(connection, reactor, parameters, connected)
    }
}
