//! One TCP connection at the level of PDUs: for sending what no well-behaved host would send, and underneath
//! [`super::queue::QueuePair`]. A reader task owns the socket's receive side, so that giving up on a wait never loses
//! bytes that were already on their way.

use super::command::{Command, Connect};
use super::pdu::{self, Digests, Pdu, Wire};
use super::{Failure, LIMIT};
use futures::StreamExt;
use futures::channel::mpsc;
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use tokio_uring::net::TcpStream;

/// What ICResp said.
#[derive(Clone, Copy, Debug)]
pub struct Welcome {
    /// CPDA: alignment of data from the host.
    pub cpda: u8,
    /// DGST: the digests in use.
    pub dgst: u8,
    /// MAXH2CDATA: most bytes in one H2CData PDU.
    pub max_h2c_data: usize,
}

/// A connection to the target, wherever it stands in the protocol.
pub struct Connection {
    stream: Rc<TcpStream>,
    chunks: mpsc::UnboundedReceiver<Vec<u8>>,
    received: Vec<u8>,
    taken: usize,
    /// How PDUs look from now on.
    pub wire: Wire,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The reader task holds the socket until its read returns.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Connection {
    /// Opens a TCP connection and says nothing.
    pub async fn raw(address: SocketAddr) -> Result<Self, Failure> {
        let connecting = tokio::time::timeout(LIMIT, TcpStream::connect(address));
        let stream = connecting
            .await
            .map_err(|_| Failure::Silence("TCP connect".to_owned()))?
            .map_err(|error| Failure::Closed(format!("TCP connect to {address}: {error}")))?;
        let _ = stream.set_nodelay(true);
        let stream = Rc::new(stream);
        let (sender, chunks) = mpsc::unbounded();
        tokio_uring::spawn(read_all(stream.clone(), sender));
        Ok(Self { stream, chunks, received: Vec::new(), taken: 0, wire: Wire::default() })
    }

    /// Opens a connection and exchanges ICReq and ICResp without digests.
    pub async fn greeted(address: SocketAddr) -> Result<Self, Failure> {
        let mut connection = Self::raw(address).await?;
        connection.initialize(Wire::default()).await?;
        Ok(connection)
    }

    /// Opens an admin queue pair at the raw level: ICReq, then Connect, which must succeed.
    pub async fn admin(address: SocketAddr, subnqn: &str, digests: Digests) -> Result<(Self, u16), Failure> {
        let mut connection = Self::raw(address).await?;
        connection.initialize(Wire { digests, hpda: 0 }).await?;
        let options = super::Options::default();
        let connect = options.connect(subnqn, 0, 31);
        let cqe = connection.ask(&connect.command(), 1).await?;
        let status = pdu::u16_at(&cqe, 14) >> 1;
        assert_eq!(status, 0, "Connect failed: {cqe:02x?}");
        Ok((connection, pdu::u16_at(&cqe, 0)))
    }

    /// Opens an I/O queue pair of an existing controller at the raw level.
    pub async fn io(address: SocketAddr, connect: &Connect, digests: Digests) -> Result<Self, Failure> {
        let mut connection = Self::raw(address).await?;
        connection.initialize(Wire { digests, hpda: 0 }).await?;
        let cqe = connection.ask(&connect.command(), 1).await?;
        assert_eq!(pdu::u16_at(&cqe, 14) >> 1, 0, "Connect failed: {cqe:02x?}");
        Ok(connection)
    }

    /// The socket, for a task that only sends.
    pub fn stream(&self) -> Rc<TcpStream> {
        self.stream.clone()
    }

    /// Sends bytes as they are. A target that closed already is no failure here: the next receive shows it.
    pub async fn send(&self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes.to_vec()).await.0;
    }

    /// Stops sending; the target sees end of stream.
    pub fn shut_down_sending(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// ICReq and ICResp.
    pub async fn initialize(&mut self, wire: Wire) -> Result<Welcome, Failure> {
        self.send(&pdu::icreq(wire)).await;
        let response = self.expect(pdu::ICRESP).await?;
        let welcome = Welcome {
            cpda: response.header[10],
            dgst: response.header[11],
            max_h2c_data: pdu::u32_at(&response.header, 12) as usize,
        };
        let complaint = format!("{welcome:?}");
        let good = pdu::u16_at(&response.header, 8) == 0
            && welcome.cpda == 0
            && welcome.dgst == wire.digests.dgst()
            && welcome.max_h2c_data >= 4096
            && welcome.max_h2c_data.is_multiple_of(4);
        if !good {
            return Err(Failure::Protocol(format!("no Linux host would accept this ICResp: {complaint}")));
        }
        self.wire = wire;
        Ok(welcome)
    }

    /// Sends a command with its data in the capsule (if any) and returns the 16 bytes of its completion. Data that the
    /// controller sends first is dropped.
    pub async fn ask(&mut self, command: &Command, cid: u16) -> Result<Vec<u8>, Failure> {
        let (sqe, in_capsule) = command.encode(cid, 8192);
        let data = if in_capsule { &command.data[..] } else { &[] };
        self.send(&pdu::capsule(self.wire.digests, &sqe, data)).await;
        loop {
            let pdu = self.next().await?;
            match pdu.kind {
                pdu::C2H_DATA => {}
                pdu::CAPSULE_RESP => return Ok(pdu.header[8..24].to_vec()),
                other => {
                    return Err(Failure::Protocol(format!("PDU type {other:02x}h instead of a response")));
                }
            }
        }
    }

    /// The next PDU.
    pub async fn next(&mut self) -> Result<Pdu, Failure> {
        match tokio::time::timeout(LIMIT, self.next_unlimited()).await {
            Ok(result) => result,
            Err(_) => Err(Failure::Silence("waiting for a PDU".to_owned())),
        }
    }

    /// The next PDU, however long it takes. Dropping this future loses nothing.
    pub async fn next_unlimited(&mut self) -> Result<Pdu, Failure> {
        loop {
            let parsed = pdu::parse(&self.received[self.taken..], self.wire).map_err(Failure::Protocol)?;
            if let Some((pdu, length)) = parsed {
                self.taken += length;
                return Ok(pdu);
            }
            match self.chunks.next().await {
                Some(chunk) => self.keep(&chunk),
                None if self.received.len() == self.taken => {
                    return Err(Failure::Closed("end of stream".to_owned()));
                }
                None => {
                    let rest = self.received.len() - self.taken;
                    return Err(Failure::Closed(format!("end of stream after {rest} bytes of a PDU")));
                }
            }
        }
    }

    /// Takes whatever comes without looking at it; fails at the end of the stream.
    pub async fn next_raw(&mut self) -> Result<(), Failure> {
        match tokio::time::timeout(LIMIT, self.chunks.next()).await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(Failure::Closed("end of stream".to_owned())),
            Err(_) => Err(Failure::Silence("waiting for the end of the stream".to_owned())),
        }
    }

    fn keep(&mut self, chunk: &[u8]) {
        if self.taken > 0 && self.taken * 2 >= self.received.len() {
            self.received.drain(..self.taken);
            self.taken = 0;
        }
        self.received.extend_from_slice(chunk);
    }

    /// The next PDU, which must be of this type.
    pub async fn expect(&mut self, kind: u8) -> Result<Pdu, Failure> {
        let pdu = self.next().await?;
        if pdu.kind == kind {
            Ok(pdu)
        } else {
            Err(Failure::Protocol(format!("PDU type {:02x}h instead of {kind:02x}h: {pdu:02x?}", pdu.kind)))
        }
    }

    /// The target ends the connection and sends nothing before that.
    pub async fn expect_closed(&mut self) -> Result<(), Failure> {
        match self.next().await {
            Err(Failure::Closed(_)) => Ok(()),
            Err(other) => Err(other),
            Ok(pdu) => Err(Failure::Protocol(format!("{pdu:02x?} instead of the end of the stream"))),
        }
    }

    /// What a host does after C2HTermReq: it closes; nothing more may come.
    pub async fn leave_after_termination(&mut self) -> Result<(), Failure> {
        self.shut_down_sending();
        self.expect_closed().await
    }

    /// The target sends C2HTermReq with one of these FES values and then ends the connection. Returns FES and FEI.
    pub async fn expect_terminated(&mut self, fes: &[u16]) -> Result<(u16, u32), Failure> {
        let pdu = self.expect(pdu::C2H_TERM).await?;
        let got = (pdu::u16_at(&pdu.header, 8), pdu::u32_at(&pdu.header, 10));
        if !fes.contains(&got.0) {
            return Err(Failure::Protocol(format!(
                "C2HTermReq with FES {} FEI {}, not {fes:?}",
                got.0, got.1
            )));
        }
        self.leave_after_termination().await?;
        Ok(got)
    }
}

/// Moves everything the target sends into the channel, until the end of the stream.
async fn read_all(stream: Rc<TcpStream>, chunks: mpsc::UnboundedSender<Vec<u8>>) {
    let mut buffer = vec![0_u8; 256 << 10];
    loop {
        let (result, returned) = stream.read(buffer).await;
        buffer = returned;
        match result {
            Ok(0) | Err(_) => return,
            Ok(length) => {
                if chunks.unbounded_send(buffer[..length].to_vec()).is_err() {
                    return;
                }
            }
        }
    }
}
