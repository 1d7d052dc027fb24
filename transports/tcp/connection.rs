//! From listening to the first capsule: ICReq, ICResp, and the command that says which queue this is.
//!
//! Everything is read in exact sizes, so that no byte of a later PDU is taken: the connection moves to the reactor of its
//! queue pair with nothing in hand.

use super::pdu::{
    self, COMMON_HEADER, CONNECTION_PDU, Common, DIGEST, Digests, FABRICS_IN_CAPSULE, Fatal, IcReq, kind,
};
use crate::{Endpoints, FirstCapsule, HandshakeError, HandshakeLimits};
use nvme::{Cqe, Qid, Status};
use reactor::{AcceptStream, Reactor, system};
use std::{
    io,
    net::{SocketAddr, TcpListener},
    os::fd::OwnedFd,
    rc::Rc,
    time::Duration,
};

/// How long a peer may take to read a refusal and close.
const LINGER: Duration = Duration::from_secs(2);

/// A bound address.
pub struct Port(OwnedFd);

impl Port {
    pub(super) fn listen(address: SocketAddr) -> io::Result<Port> {
        system::listen(address).map(Port)
    }

    pub(super) fn local_address(&self) -> io::Result<SocketAddr> {
        TcpListener::from(self.0.try_clone()?).local_addr()
    }
}

/// Connections of a port as they come in.
pub struct Incoming {
    reactor: Reactor,
    listener: Rc<OwnedFd>,
    stream: AcceptStream,
}

impl Incoming {
    pub(super) fn new(port: Port, reactor: &Reactor) -> Incoming {
        let listener = Rc::new(port.0);
        Incoming { reactor: reactor.clone(), stream: reactor.accept(&listener), listener }
    }

    pub(super) async fn next(&mut self) -> io::Result<Connection> {
        let socket = match self.stream.next().await {
            Ok(socket) => socket,
            Err(error) => {
                // One operation accepts many; after an error it has ended.
                self.stream = self.reactor.accept(&self.listener);
                return Err(error);
            }
        };
        let (socket, local, peer) = system::prepare_connection(socket)?;
        Ok(Connection { socket, endpoints: Endpoints { local, peer }, negotiated: Negotiated::default() })
    }
}

/// What ICReq and ICResp settled.
#[derive(Clone, Copy)]
pub(super) struct Negotiated {
    pub(super) digests: Digests,
    pub(super) host_alignment: usize,
    pub(super) max_host_data: usize,
}

impl Default for Negotiated {
    fn default() -> Negotiated {
        Negotiated { digests: Digests::default(), host_alignment: 4, max_host_data: 0 }
    }
}

/// An accepted connection.
pub struct Connection {
    socket: OwnedFd,
    endpoints: Endpoints,
    negotiated: Negotiated,
}

impl Connection {
    pub(super) fn endpoints(&self) -> Endpoints {
        self.endpoints
    }

    pub(super) fn into_parts(self) -> (OwnedFd, Negotiated) {
        (self.socket, self.negotiated)
    }

    pub(super) async fn handshake(
        &mut self,
        reactor: &Reactor,
        limits: HandshakeLimits,
    ) -> Result<FirstCapsule, HandshakeError> {
        let socket = Rc::new(self.socket.try_clone()?);
        let result = reactor.timeout(limits.time, self.greet(reactor, &socket, limits)).await;
        match result {
            None => Err(HandshakeError::Timeout),
            Some(Ok(capsule)) => Ok(capsule),
            Some(Err(Failure::Io(error))) => Err(HandshakeError::Io(error)),
            Some(Err(Failure::Fatal { fatal, offending, greeted })) => {
                let report = pdu::encode_term_req(fatal, &offending).into_boxed_slice();
                reactor.timeout(LINGER, send_and_discard(reactor, &socket, report)).await;
                let (error, what) = (fatal.error(), fatal.describe());
                Err(if greeted {
                    HandshakeError::Protocol(error, what)
                } else {
                    HandshakeError::Stranger(error, what)
                })
            }
            Some(Err(Failure::DataDigest(cqe))) => {
                let response = pdu::encode_response(&cqe, self.negotiated.digests);
                let bytes = response.as_bytes().into();
                reactor.timeout(LINGER, send_and_discard(reactor, &socket, bytes)).await;
                let what = "data digest of Connect is wrong";
                Err(HandshakeError::Io(io::Error::new(io::ErrorKind::InvalidData, what)))
            }
        }
    }

    async fn greet(
        &mut self,
        reactor: &Reactor,
        socket: &Rc<OwnedFd>,
        limits: HandshakeLimits,
    ) -> Result<FirstCapsule, Failure> {
        let mut request = [0; CONNECTION_PDU];
        read(reactor, socket, &mut request[..COMMON_HEADER]).await?;
        let common = request.first_chunk().copied().unwrap_or_default();
        IcReq::check_common(&common).map_err(|fatal| Failure::fatal(fatal, &common, false))?;
        read(reactor, socket, &mut request[COMMON_HEADER..]).await?;
        let ic_req = IcReq::parse(&request).map_err(|fatal| Failure::fatal(fatal, &request, false))?;
        self.negotiated = Negotiated {
            digests: ic_req.digests,
            host_alignment: ic_req.host_alignment,
            max_host_data: limits.max_host_data as usize,
        };
        let response = pdu::encode_ic_resp(ic_req.digests, limits.max_host_data);
        reactor.send_all(socket, Box::new(response)).await?;
        self.first_capsule(reactor, socket).await
    }

    async fn first_capsule(&self, reactor: &Reactor, socket: &Rc<OwnedFd>) -> Result<FirstCapsule, Failure> {
        let digests = self.negotiated.digests;
        let mut header = [0; pdu::MAX_DATA_OFFSET];
        read(reactor, socket, &mut header[..COMMON_HEADER]).await?;
        let first = header.first_chunk().copied().unwrap_or_default();
        let failed = |fatal: Fatal, header: &[u8]| Failure::fatal(fatal, header, true);
        let common = Common::parse(&first, digests).map_err(|f| failed(f, &first))?;
        if common.kind != kind::CAPSULE_CMD {
            return Err(failed(Fatal::Sequence, &first));
        }
        read(reactor, socket, &mut header[COMMON_HEADER..common.before_data]).await?;
        let command = &header[..common.header_len];
        if digests.header {
            pdu::check_header_digest(&header, common.header_len).map_err(|f| failed(f, command))?;
        }
        let sqe = pdu::command(command);
        pdu::check_in_capsule(&sqe, common.data_len, FABRICS_IN_CAPSULE).map_err(|f| failed(f, command))?;
        let mut data = vec![0; common.data_len].into_boxed_slice();
        if common.data_len > 0 {
            data = reactor.receive_exact(socket, data).await?;
            let mut sum = [0; DIGEST];
            read(reactor, socket, &mut sum[..digests.data_len()]).await?;
            if digests.data && sum != pdu::digest(&data) {
                let status = Status::TRANSIENT_TRANSPORT_ERROR;
                return Err(Failure::DataDigest(Cqe::new(status.into(), 1, Qid::ADMIN, sqe.cid())));
            }
        }
        Ok(FirstCapsule { sqe, data, announced: None })
    }

    pub(super) async fn refuse(self, reactor: &Reactor, cqe: Cqe) {
        let response = pdu::encode_response(&cqe, self.negotiated.digests);
        let bytes = response.as_bytes().into();
        let socket = Rc::new(self.socket);
        reactor.timeout(LINGER, send_and_discard(reactor, &socket, bytes)).await;
    }
}

/// Sends a last word and reads on until the peer closes, so that it is not lost.
async fn send_and_discard(reactor: &Reactor, socket: &Rc<OwnedFd>, bytes: Box<[u8]>) {
    if reactor.send_all(socket, bytes).await.is_ok() {
        while reactor.receive(socket).await.is_ok() {}
    }
    system::shut_down(socket);
}

async fn read(reactor: &Reactor, socket: &Rc<OwnedFd>, into: &mut [u8]) -> io::Result<()> {
    if into.is_empty() {
        return Ok(());
    }
    let bytes = reactor.receive_exact(socket, vec![0; into.len()].into_boxed_slice()).await?;
    into.copy_from_slice(&bytes);
    Ok(())
}

enum Failure {
    Io(io::Error),
    /// A breach of the protocol, the header that shows it, and whether an ICReq came before.
    Fatal {
        fatal: Fatal,
        offending: Vec<u8>,
        greeted: bool,
    },
    /// The data of the first command is damaged; what it is answered.
    DataDigest(Cqe),
}

impl Failure {
    fn fatal(fatal: Fatal, offending: &[u8], greeted: bool) -> Failure {
        Failure::Fatal { fatal, offending: offending.to_vec(), greeted }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}
