//! The stream from the host: command capsules and data, cut anywhere.
//!
//! Headers and small payloads come through the reactor's shared receive buffers, which catch many capsules at once; what
//! is left of a large payload is received straight into its data buffer. The loop never holds a shared buffer while it
//! waits: when no data buffer is free, what follows is set aside.

#[doc(hidden)]
pub mod fuzzing;

use super::{
    header::HeaderReader,
    pdu::{self, Common, DIGEST, Fatal, HostData, kind},
    queue_pair::{Fetch, Inner},
};
use crate::{CloseReason, ProtocolError, Slot};
use futures::future::{Either, select};
use nvme::{Sqe, Status};
use reactor::{DataBuffer, system};
use std::{rc::Rc, time::Duration};

/// From this many bytes on, the rest of a payload is received straight into its buffer.
const DIRECT: usize = 16 << 10;
/// How long a host may take to read a C2HTermReq and close.
const LINGER: Duration = Duration::from_secs(2);

/// Where a payload goes.
enum Target {
    /// In-capsule data of a command.
    Capsule(Sqe),
    /// Data that was asked for.
    Slot(Slot),
}

struct Payload {
    target: Target,
    /// None until one is free.
    buffer: Option<DataBuffer>,
    /// Where in the buffer this PDU's data begins.
    start: usize,
    len: usize,
    have: usize,
    digest: [u8; DIGEST],
    digest_have: usize,
}

/// Why the receiver stopped before the end of what it was given.
enum Stop {
    Fatal(Fatal),
    /// H2CTermReq: the host ends the connection and says why.
    HostTerminated {
        status: u16,
        information: u32,
    },
}

impl From<Fatal> for Stop {
    fn from(fatal: Fatal) -> Stop {
        Stop::Fatal(fatal)
    }
}

struct Receiver<'a> {
    inner: &'a Inner,
    header: HeaderReader,
    payload: Option<Payload>,
    /// The header of the PDU under way, for a C2HTermReq.
    last_header: [u8; pdu::COMMAND_HEADER],
    last_header_len: usize,
}

/// The receive loop.
pub(super) async fn run(inner: Rc<Inner>) {
    let mut receiver = Receiver::new(&inner);
    match receiver.run().await {
        Ok(()) => inner.close(CloseReason::HostGone),
        Err(Stop::HostTerminated { status, information }) => {
            inner.close(CloseReason::HostTerminated {
                error: ProtocolError::from_status(status),
                information,
            });
        }
        Err(Stop::Fatal(fatal)) => {
            let offending = receiver.offending().to_vec();
            inner.end(CloseReason::Protocol(fatal.error(), fatal.describe()));
            inner.reactor.timeout(LINGER, terminate(&inner, fatal, &offending)).await;
            system::shut_down(&inner.socket);
        }
    }
    drop(receiver);
    inner.receive_ended();
}

/// Tells the host what it did wrong, and reads on until it closes: closing with bytes unread would lose the report.
async fn terminate(inner: &Inner, fatal: Fatal, offending: &[u8]) {
    inner.wait_for_send_end().await;
    let report = pdu::encode_term_req(fatal, offending).into_boxed_slice();
    if inner.reactor.send_all(&inner.socket, report).await.is_ok() {
        while inner.reactor.receive(&inner.socket).await.is_ok() {}
    }
}

impl<'a> Receiver<'a> {
    fn new(inner: &'a Inner) -> Receiver<'a> {
        Receiver {
            inner,
            header: HeaderReader::new(inner.digests),
            payload: None,
            last_header: [0; pdu::COMMAND_HEADER],
            last_header_len: 0,
        }
    }

    async fn run(&mut self) -> Result<(), Stop> {
        let inner = self.inner;
        loop {
            if let Some(direct) = self.direct() {
                let (at, len) = direct;
                let Some(buffer) = self.payload.as_mut().and_then(|p| p.buffer.take()) else { return Ok(()) };
                let (result, buffer) = inner.reactor.receive_into(&inner.socket, buffer, at, len).await;
                if result.is_err() || inner.is_closed() {
                    return Ok(());
                }
                if let Some(payload) = &mut self.payload {
                    payload.buffer = Some(buffer);
                    payload.have = payload.len;
                }
                inner.partial_since.set(None);
                self.finish_payload_if_complete()?;
                continue;
            }
            let Ok(bytes) = inner.reactor.receive(&inner.socket).await else { return Ok(()) };
            let used = self.consume(&bytes)?;
            if used < bytes.len() {
                let rest = bytes[used..].to_vec();
                drop(bytes);
                self.consume_slowly(&rest).await?;
            }
            if inner.is_closed() {
                return Ok(());
            }
            let owed = self.payload.is_some() || !self.header.collected().is_empty();
            inner.partial_since.set(owed.then(|| inner.reactor.now()));
        }
    }

    /// No data buffer was free: waits for one, or for this queue pair's own reserve.
    async fn consume_slowly(&mut self, mut rest: &[u8]) -> Result<(), Stop> {
        let inner = self.inner;
        inner.reactor.stats().receive_stalls.add(1);
        while !rest.is_empty() {
            if let Some(payload) = self.payload.as_mut().filter(|p| p.buffer.is_none()) {
                let wanted = inner.reactor.buffer(payload.len, inner.parameters.buffer_class());
                let either = select(wanted, inner.reserve.take());
                inner.starved.set(true);
                payload.buffer = Some(match either.await {
                    Either::Left((buffer, _)) | Either::Right((buffer, _)) => buffer,
                });
                inner.starved.set(false);
            }
            if inner.is_closed() {
                return Ok(());
            }
            let used = self.consume(rest)?;
            rest = &rest[used..];
        }
        Ok(())
    }

    /// The offset and length of what may be received straight into a data buffer.
    fn direct(&self) -> Option<(usize, usize)> {
        let payload = self.payload.as_ref()?;
        payload.buffer.as_ref()?;
        let rest = payload.len - payload.have;
        (rest >= DIRECT).then_some((payload.start + payload.have, rest))
    }

    /// Takes in bytes; fewer than all when a data buffer is needed and none is free.
    fn consume(&mut self, bytes: &[u8]) -> Result<usize, Stop> {
        let mut at = 0;
        while at < bytes.len() {
            if self.payload.is_some() {
                let used = self.take_payload(&bytes[at..])?;
                if used == 0 {
                    return Ok(at);
                }
                at += used;
                continue;
            }
            let Some(complete) = self.header.take(&bytes[at..])? else { return Ok(bytes.len()) };
            at += complete.used;
            let n = complete.common.header_len;
            // Only the meaningful part is copied out, so that the reader is free again.
            self.last_header[..n].copy_from_slice(&complete.bytes[..n]);
            self.last_header_len = n;
            let common = complete.common;
            self.take_header(&common)?;
        }
        Ok(at)
    }

    fn take_header(&mut self, common: &Common) -> Result<(), Stop> {
        let header = &self.last_header;
        match common.kind {
            kind::CAPSULE_CMD => {
                let sqe = pdu::command(header);
                self.take_command(sqe, common.data_len)?;
            }
            kind::H2C_DATA => {
                let data = HostData::parse(header);
                self.take_host_data(data, common.data_len)?;
            }
            _ => {
                let status = u16::from_le_bytes([header[8], header[9]]);
                let information = u32::from_le_bytes([header[10], header[11], header[12], header[13]]);
                return Err(Stop::HostTerminated { status, information });
            }
        }
        Ok(())
    }

    fn take_command(&mut self, sqe: Sqe, data_len: usize) -> Result<(), Fatal> {
        pdu::check_in_capsule(&sqe, data_len, self.inner.in_capsule_limit(&sqe))?;
        if data_len == 0 {
            return self.inner.deliver(sqe, Ok(None));
        }
        let class = self.inner.parameters.buffer_class();
        let buffer = self.inner.reactor.try_buffer(data_len, class).or_else(|| self.inner.reserve.try_take());
        self.payload = Some(Payload::new(Target::Capsule(sqe), buffer, 0, data_len));
        Ok(())
    }

    fn take_host_data(&mut self, data: HostData, data_len: usize) -> Result<(), Fatal> {
        if data.len != data_len {
            return Err(Fatal::InvalidField(pdu::field::LENGTH));
        }
        if data_len == 0 {
            return Err(Fatal::InvalidField(pdu::field::DATA_LENGTH));
        }
        if data_len > self.inner.max_host_data {
            return Err(Fatal::LimitExceeded);
        }
        let mut slots = self.inner.slots.borrow_mut();
        let state =
            slots.all.get_mut(data.tag as usize).ok_or(Fatal::InvalidField(pdu::field::TRANSFER_TAG))?;
        let Fetch::Active { cid, buffer, total, received, .. } = &mut state.fetch else {
            return Err(Fatal::InvalidField(pdu::field::TRANSFER_TAG));
        };
        if *cid != data.cid {
            return Err(Fatal::InvalidField(pdu::field::COMMAND_ID));
        }
        if data.offset != *received || data_len > *total - *received {
            return Err(Fatal::OutOfRange);
        }
        if data.last != (*received + data_len == *total) {
            return Err(Fatal::InvalidField(pdu::field::FLAGS));
        }
        self.payload = Some(Payload::new(Target::Slot(data.tag), buffer.take(), data.offset, data_len));
        Ok(())
    }

    /// Takes payload and its digest from the front of `bytes`; none when there is no buffer.
    fn take_payload(&mut self, bytes: &[u8]) -> Result<usize, Fatal> {
        let wanted_digest = self.inner.digests.data_len();
        let Some(payload) = &mut self.payload else { return Ok(0) };
        let Some(buffer) = &mut payload.buffer else { return Ok(0) };
        let n = (payload.len - payload.have).min(bytes.len());
        let to = payload.start + payload.have;
        buffer.as_mut_slice()[to..to + n].copy_from_slice(&bytes[..n]);
        self.inner.reactor.stats().copied_bytes.add(n as u64);
        payload.have += n;
        let d = (wanted_digest - payload.digest_have).min(bytes.len() - n);
        payload.digest[payload.digest_have..payload.digest_have + d].copy_from_slice(&bytes[n..n + d]);
        payload.digest_have += d;
        self.finish_payload_if_complete()?;
        Ok(n + d)
    }

    fn finish_payload_if_complete(&mut self) -> Result<(), Fatal> {
        let digests = self.inner.digests;
        let complete =
            |p: &mut Payload| p.buffer.is_some() && p.have == p.len && p.digest_have == digests.data_len();
        let Some(payload) = self.payload.take_if(complete) else { return Ok(()) };
        let Payload { target, buffer: Some(mut buffer), start, len, digest, .. } = payload else {
            return Ok(());
        };
        let intact = !digests.data || pdu::digest(&buffer.as_mut_slice()[start..start + len]) == digest;
        match target {
            Target::Capsule(sqe) => {
                buffer.set_len(len);
                let data = if intact { Ok(Some(buffer)) } else { Err(Status::TRANSIENT_TRANSPORT_ERROR) };
                self.inner.deliver(sqe, data)
            }
            Target::Slot(slot) => {
                self.put_back(slot, buffer, len, intact);
                Ok(())
            }
        }
    }

    /// Gives the buffer back to the fetch it belongs to, which may have ended meanwhile.
    fn put_back(&self, slot: Slot, back: DataBuffer, len: usize, intact: bool) {
        let mut slots = self.inner.slots.borrow_mut();
        let state = &mut slots.all[slot as usize];
        let Fetch::Active { buffer, total, received, failed, since, .. } = &mut state.fetch else { return };
        *since = self.inner.reactor.now();
        *received += len;
        if !intact && failed.is_none() {
            *failed = Some(Status::TRANSIENT_TRANSPORT_ERROR);
        }
        if received < total {
            *buffer = Some(back);
            return;
        }
        let (total, failed) = (*total, *failed);
        let mut back = back;
        back.set_len(total);
        Inner::fetched(state, failed.map_or(Ok(back), Err));
    }

    /// The header that C2HTermReq shows to the host.
    fn offending(&self) -> &[u8] {
        let collected = self.header.collected();
        if collected.is_empty() { &self.last_header[..self.last_header_len] } else { collected }
    }
}

impl Payload {
    fn new(target: Target, buffer: Option<DataBuffer>, start: usize, len: usize) -> Payload {
        Payload { target, buffer, start, len, have: 0, digest: [0; DIGEST], digest_have: 0 }
    }
}
