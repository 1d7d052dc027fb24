//! What comes before the first read: ICReq, Connect, enabling the controller, the namespace's geometry, I/O queue pairs.
//! All of it blocking and simple; the sockets then go to the ring.

use crate::command::{Command, Connect};
use crate::options::LoadOptions;
use crate::pdu::{self, Digests, Pdu, Wire};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A controller that is ready for load.
pub struct Controller {
    /// One socket for each I/O queue pair.
    pub queues: Vec<TcpStream>,
    /// Bytes in a block of the namespace.
    pub block: u32,
    /// Blocks of the namespace.
    pub blocks: u64,
    /// Data that fits into a capsule.
    pub in_capsule: usize,
    /// MAXH2CDATA.
    pub max_h2c_data: usize,
    /// The admin queue: the controller ends with it.
    pub _admin: Option<Socket>,
}

/// A connection before it goes to the ring.
pub struct Socket {
    stream: TcpStream,
    wire: Wire,
    max_h2c_data: usize,
    received: Vec<u8>,
}

const KATO_OFF: u32 = 0;
const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:7e57ab1e-0000-4000-8000-00000000beef";

impl Controller {
    /// Connects to a yardstick: nothing to agree on.
    pub fn bare(options: &LoadOptions) -> io::Result<Self> {
        let queues =
            (0..options.queue_pairs).map(|_| connect_tcp(options.address)).collect::<Result<_, _>>()?;
        let (block, blocks) = (512, 1 << 17);
        Ok(Self { queues, block, blocks, in_capsule: usize::MAX, max_h2c_data: 0, _admin: None })
    }

    /// Connects to a target.
    pub fn connect(options: &LoadOptions) -> io::Result<Self> {
        let mut admin = Socket::open(options)?;
        let mut connect = Connect {
            qid: 0,
            sqsize: 31,
            cattr: 4,
            kato_ms: KATO_OFF,
            hostid: *b"weft-bench-host!",
            cntlid: 0xffff,
            subnqn: options.nqn.clone(),
            hostnqn: HOST_NQN.to_owned(),
        };
        let cqe = admin.execute(&connect.command())?.0;
        connect.cntlid = pdu::u16_at(&cqe, 0);
        admin.execute(&Command::property_set(0x14, 0x0046_0000))?;
        admin.execute(&Command::property_set(0x14, 0x0046_0001))?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while pdu::u32_at(&admin.execute(&Command::property_get(0x1c, 4))?.0, 0) & 1 == 0 {
            if Instant::now() > deadline {
                return Err(io::Error::other("the controller does not become ready"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let controller = admin.execute(&Command::identify(0x01, 0))?.1;
        let in_capsule = (pdu::u32_at(&controller, 1792) as usize * 16).saturating_sub(64);
        let namespace = admin.execute(&Command::identify(0x00, options.nsid))?.1;
        let blocks = pdu::u64_at(&namespace, 0);
        let block = 1 << namespace[128 + 4 * usize::from(namespace[26] & 0xf) + 2];
        if blocks == 0 {
            return Err(io::Error::other(format!("there is no namespace {}", options.nsid)));
        }
        let mut queues = Vec::new();
        let mut max_h2c_data = 0;
        for qid in 1..=options.queue_pairs {
            let mut socket = Socket::open(options)?;
            // With flow control disabled as many commands may be outstanding as the queue has entries.
            let connect = Connect { qid, sqsize: (options.depth - 1).max(1), ..connect.clone() };
            socket.execute(&connect.command())?;
            max_h2c_data = socket.max_h2c_data;
            queues.push(socket.stream);
        }
        Ok(Self { queues, block, blocks, in_capsule, max_h2c_data, _admin: Some(admin) })
    }
}

fn connect_tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)
        .map_err(|error| io::Error::new(error.kind(), format!("connect to {address}: {error}")))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Socket {
    fn open(options: &LoadOptions) -> io::Result<Self> {
        let digests = Digests { header: options.header_digest, data: options.data_digest };
        let wire = Wire { digests, hpda: 0 };
        let stream = connect_tcp(options.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut socket = Self { stream, wire: Wire::default(), max_h2c_data: 0, received: Vec::new() };
        socket.stream.write_all(&pdu::icreq(wire))?;
        let response = socket.next()?;
        if response.kind != pdu::ICRESP || response.header[11] != digests.dgst() {
            return Err(io::Error::other(format!("ICReq was answered with {response:02x?}")));
        }
        socket.wire = wire;
        socket.max_h2c_data = pdu::u32_at(&response.header, 12) as usize;
        Ok(socket)
    }

    fn next(&mut self) -> io::Result<Pdu> {
        loop {
            if let Some((pdu, length)) = pdu::parse(&self.received, self.wire).map_err(io::Error::other)? {
                self.received.drain(..length);
                return Ok(pdu);
            }
            let mut chunk = [0; 16 << 10];
            let length = self.stream.read(&mut chunk)?;
            if length == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the target ended the connection"));
            }
            self.received.extend_from_slice(&chunk[..length]);
        }
    }

    /// The 16 bytes of the completion, and the data.
    fn execute(&mut self, command: &Command) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let (sqe, in_capsule) = command.encode(1, 8192);
        let data = if in_capsule { &command.data[..] } else { &[] };
        self.stream.write_all(&pdu::capsule(self.wire.digests, &sqe, data))?;
        let mut read = Vec::new();
        loop {
            let pdu = self.next()?;
            match pdu.kind {
                pdu::C2H_DATA => {
                    read.extend_from_slice(&pdu.data);
                    if pdu.flags & pdu::SUCCESS != 0 {
                        return Ok((vec![0; 16], read));
                    }
                }
                pdu::CAPSULE_RESP => {
                    let cqe = pdu.header[8..24].to_vec();
                    let status = pdu::u16_at(&cqe, 14) >> 1 & 0x7ff;
                    if status != 0 {
                        let what = format!("command {:02x}h {:02x}h: status {status:03x}h", sqe[0], sqe[4]);
                        return Err(io::Error::other(what));
                    }
                    return Ok((cqe, read));
                }
                other => return Err(io::Error::other(format!("PDU type {other:02x}h"))),
            }
        }
    }
}
