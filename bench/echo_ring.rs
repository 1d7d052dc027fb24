//! The yardstick: the bare request/response work on a plain ring, with what weft's reactor uses and nothing else. A
//! single-shot receive into one buffer for each connection, and one gather send each turn.

use crate::bare::{self, Requests};
use crate::options::EchoOptions;
use crate::process;
use crate::ring::{Gather, Outcome, Ring};
use std::error::Error;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

const ACCEPT: u64 = u64::MAX;
/// The low bit of an operation's user data.
const RECEIVE: u64 = 0;
const SEND: u64 = 1;
const BUFFER: usize = 64 << 10;

struct Connection {
    stream: TcpStream,
    requests: Requests,
    buffer: Vec<u8>,
    gather: Gather,
    /// Response headers by CID; the generator's CIDs are small.
    headers: Vec<[u8; 24]>,
}

/// Serves until it is killed.
pub fn serve(options: &EchoOptions) -> Result<bool, Box<dyn Error>> {
    process::pin(options.cpu)?;
    let listener = TcpListener::bind(options.address)?;
    println!("listening on {}", listener.local_addr()?);
    let mut ring = Ring::new(256)?;
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut outcomes = Vec::new();
    ring.accept(listener.as_raw_fd(), ACCEPT);
    loop {
        match ring.enter(Duration::from_secs(3600)) {
            Err(error) if error.raw_os_error() != Some(libc::ETIME) => return Err(error.into()),
            _ => {}
        }
        ring.reap(&mut outcomes);
        for outcome in &outcomes {
            if outcome.user_data == ACCEPT {
                let connection = Connection::new(outcome.value()? as RawFd)?;
                let index = connections.iter().position(Option::is_none).unwrap_or(connections.len());
                if index == connections.len() {
                    connections.push(None);
                }
                connections[index].insert(connection).receive(&mut ring, index as u64);
                ring.accept(listener.as_raw_fd(), ACCEPT);
                continue;
            }
            let index = (outcome.user_data >> 1) as usize;
            let Some(connection) = connections[index].as_mut() else { continue };
            if connection.take(&mut ring, *outcome).is_err() {
                connections[index] = None;
            }
        }
        for (index, connection) in connections.iter_mut().enumerate() {
            if let Some(connection) = connection {
                let socket = connection.stream.as_raw_fd();
                connection.gather.flush(&mut ring, socket, (index as u64) << 1 | SEND);
            }
        }
    }
}

impl Connection {
    fn new(socket: RawFd) -> io::Result<Self> {
        #[allow(unsafe_code, reason = "a descriptor out of the ring becomes an owned one")]
        // SAFETY: accept just returned it, and nobody else knows it.
        let stream = TcpStream::from(unsafe { OwnedFd::from_raw_fd(socket) });
        stream.set_nodelay(true)?;
        let (requests, gather) = (Requests::default(), Gather::new());
        Ok(Self { stream, requests, buffer: vec![0; BUFFER], gather, headers: vec![[0; 24]; 1 << 16] })
    }

    fn receive(&mut self, ring: &mut Ring, index: u64) {
        ring.receive(self.stream.as_raw_fd(), &mut self.buffer, index << 1 | RECEIVE);
    }

    fn take(&mut self, ring: &mut Ring, outcome: Outcome) -> io::Result<()> {
        if outcome.user_data & 1 == SEND {
            return self.gather.finished(ring, self.stream.as_raw_fd(), outcome);
        }
        if outcome.interrupted() {
            self.receive(ring, outcome.user_data >> 1);
            return Ok(());
        }
        let length = outcome.value()?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Self { requests, buffer, gather, headers, .. } = self;
        requests.take(&buffer[..length], |request| {
            let header = &mut headers[usize::from(request.cid)];
            *header = bare::response(request);
            gather.push(header);
            if request.wants > 0 {
                gather.push(&bare::ZEROES[..request.wants]);
            }
        });
        self.receive(ring, outcome.user_data >> 1);
        Ok(())
    }
}
