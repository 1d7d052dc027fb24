//! One queue pair of the load generator: a slot for each command in flight (its index is the CID), the bytes going out,
//! and a parser that skips read data without looking at it.

use crate::command::Command;
use crate::handshake::Controller;
use crate::options::{LoadOptions, Operation};
use crate::pdu::{self, Digests};
use crate::ring::{Gather, Outcome, Ring};
use crate::statistics::Histogram;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// What all queue pairs share.
pub struct Work {
    digests: Digests,
    operation: Operation,
    bytes: usize,
    blocks_each: u64,
    positions: u64,
    in_capsule: usize,
    max_h2c_data: usize,
    payload: Vec<u8>,
    payload_digest: [u8; 4],
    nsid: u32,
    random: u64,
    turn: bool,
    /// How many commands may still be submitted.
    pub budget: u64,
    /// Counted commands.
    pub tally: Tally,
}

/// What happened since it was last cleared.
#[derive(Clone)]
pub struct Tally {
    /// Commands answered with success.
    pub done: u64,
    /// Commands answered with another status.
    pub errors: u64,
    /// Their latencies.
    pub latencies: Histogram,
}

impl Tally {
    /// Nothing yet.
    pub fn new() -> Self {
        Self { done: 0, errors: 0, latencies: Histogram::new() }
    }
}

impl Work {
    /// What `options` asks for, in the terms of this controller.
    pub fn new(options: &LoadOptions, controller: &Controller) -> io::Result<Self> {
        let blocks_each = u64::from(options.bs / controller.block);
        let positions = controller.blocks.checked_div(blocks_each).unwrap_or(0);
        if positions == 0 || !options.bs.is_multiple_of(controller.block) {
            let what = format!("--bs {} does not fit blocks of {}", options.bs, controller.block);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let payload: Vec<u8> = (0..options.bs).map(|index| (index * 7 % 251) as u8).collect();
        Ok(Self {
            digests: Digests { header: options.header_digest, data: options.data_digest },
            operation: options.op,
            bytes: options.bs as usize,
            blocks_each,
            positions,
            in_capsule: controller.in_capsule,
            max_h2c_data: controller.max_h2c_data,
            payload_digest: pdu::crc32c(&payload).to_le_bytes(),
            payload,
            nsid: options.nsid,
            random: 0x2545_f491_4f6c_dd1d,
            turn: false,
            budget: options.count.unwrap_or(u64::MAX),
            tally: Tally::new(),
        })
    }

    fn position(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % self.positions * self.blocks_each
    }

    fn writes_next(&mut self) -> bool {
        self.turn = !self.turn;
        match self.operation {
            Operation::Read => false,
            Operation::Write => true,
            Operation::Mix => self.turn,
        }
    }
}

/// The capsules of one slot, ready but for the address.
struct Slot {
    read: Vec<u8>,
    write: Vec<u8>,
    /// Headers of solicited data and their digests; they stay until the slot is used again.
    solicited: Vec<(Vec<u8>, [u8; 4])>,
    started_ns: u64,
}

impl Slot {
    fn new(cid: u16, work: &Work) -> Self {
        let blocks = work.blocks_each as u32;
        let read = Command::read(work.nsid, 0, blocks, work.bytes);
        let write = Command::write(work.nsid, 0, blocks, &work.payload);
        let header = |command: &Command| {
            let (sqe, in_capsule) = command.encode(cid, work.in_capsule);
            let data = if in_capsule { &command.data[..] } else { &[] };
            let mut pdu = pdu::capsule(work.digests, &sqe, data);
            pdu.truncate(72 + if work.digests.header { 4 } else { 0 });
            pdu
        };
        Self { read: header(&read), write: header(&write), solicited: Vec::new(), started_ns: 0 }
    }
}

/// A queue pair under load.
pub struct Queue {
    stream: TcpStream,
    slots: Vec<Slot>,
    gather: Gather,
    buffer: Vec<u8>,
    header: [u8; 28],
    header_length: usize,
    have: usize,
    skip: usize,
    /// The command that is done once the data was skipped.
    done_after: Option<u16>,
    /// How many commands are in flight.
    pub in_flight: usize,
}

/// The low bit of an operation's user data.
const SEND: u64 = 1;

impl Queue {
    /// A queue pair of `depth` slots on a connected socket.
    pub fn new(stream: TcpStream, depth: u16, work: &Work) -> Self {
        let slots = (0..depth).map(|cid| Slot::new(cid, work)).collect();
        let size = (work.bytes * 2).clamp(64 << 10, 512 << 10);
        Self {
            stream,
            slots,
            gather: Gather::new(),
            buffer: vec![0; size],
            header: [0; 28],
            header_length: if work.digests.header { 28 } else { 24 },
            have: 0,
            skip: 0,
            done_after: None,
            in_flight: 0,
        }
    }

    /// Fills every slot and starts to receive.
    pub fn start(&mut self, ring: &mut Ring, index: u64, work: &mut Work, now_ns: u64) {
        for cid in 0..self.slots.len() as u16 {
            self.submit(cid, work, now_ns);
        }
        ring.receive(self.stream.as_raw_fd(), &mut self.buffer, index << 1);
    }

    fn submit(&mut self, cid: u16, work: &mut Work, now_ns: u64) {
        if work.budget == 0 {
            return;
        }
        work.budget -= 1;
        self.in_flight += 1;
        let (lba, writes) = (work.position(), work.writes_next());
        let slot = &mut self.slots[usize::from(cid)];
        slot.started_ns = now_ns;
        let capsule = if writes { &mut slot.write } else { &mut slot.read };
        capsule[48..56].copy_from_slice(&lba.to_le_bytes());
        if work.digests.header {
            let digest = pdu::crc32c(&capsule[..72]);
            capsule[72..].copy_from_slice(&digest.to_le_bytes());
        }
        self.gather.push(capsule);
        if writes && work.bytes <= work.in_capsule {
            self.gather.push(&work.payload);
            if work.digests.data {
                self.gather.push(&work.payload_digest);
            }
        }
    }

    /// Sends what has gathered.
    pub fn flush(&mut self, ring: &mut Ring, index: u64) {
        self.gather.flush(ring, self.stream.as_raw_fd(), index << 1 | SEND);
    }

    /// Takes a finished operation; answered slots are used again at once.
    pub fn take(
        &mut self,
        ring: &mut Ring,
        outcome: Outcome,
        work: &mut Work,
        now_ns: u64,
    ) -> io::Result<()> {
        if outcome.user_data & SEND != 0 {
            return self.gather.finished(ring, self.stream.as_raw_fd(), outcome);
        }
        if outcome.interrupted() {
            ring.receive(self.stream.as_raw_fd(), &mut self.buffer, outcome.user_data);
            return Ok(());
        }
        let length = outcome.value()?;
        if length == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the target ended the connection"));
        }
        let buffer = std::mem::take(&mut self.buffer);
        let taken = self.parse(&buffer[..length], work, now_ns);
        self.buffer = buffer;
        taken?;
        ring.receive(self.stream.as_raw_fd(), &mut self.buffer, outcome.user_data);
        Ok(())
    }

    fn parse(&mut self, mut bytes: &[u8], work: &mut Work, now_ns: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let length = self.skip.min(bytes.len());
                self.skip -= length;
                bytes = &bytes[length..];
                if self.skip == 0 {
                    self.data_ended(work, now_ns)?;
                }
                continue;
            }
            let length = (self.header_length - self.have).min(bytes.len());
            self.header[self.have..self.have + length].copy_from_slice(&bytes[..length]);
            self.have += length;
            bytes = &bytes[length..];
            if self.have == self.header_length {
                self.have = 0;
                self.take_header(work, now_ns)?;
            }
        }
        Ok(())
    }

    fn take_header(&mut self, work: &mut Work, now_ns: u64) -> io::Result<()> {
        let header = self.header;
        match header[0] {
            pdu::C2H_DATA => {
                self.skip = (pdu::u32_at(&header, 4) as usize).saturating_sub(self.header_length);
                self.done_after = (header[1] & pdu::SUCCESS != 0).then(|| pdu::u16_at(&header, 8));
                if self.skip == 0 { self.data_ended(work, now_ns) } else { Ok(()) }
            }
            pdu::CAPSULE_RESP => {
                let success = pdu::u16_at(&header, 22) >> 1 == 0;
                self.done(pdu::u16_at(&header, 20), success, work, now_ns)
            }
            pdu::R2T => self.send_data(&header, work),
            other => Err(io::Error::other(format!("PDU type {other:02x}h: {header:02x?}"))),
        }
    }

    fn data_ended(&mut self, work: &mut Work, now_ns: u64) -> io::Result<()> {
        match self.done_after.take() {
            Some(cid) => self.done(cid, true, work, now_ns),
            None => Ok(()),
        }
    }

    fn done(&mut self, cid: u16, success: bool, work: &mut Work, now_ns: u64) -> io::Result<()> {
        let Some(slot) = self.slots.get(usize::from(cid)) else {
            return Err(io::Error::other(format!("completion for CID {cid}, which was never used")));
        };
        if success {
            work.tally.done += 1;
            work.tally.latencies.add(now_ns - slot.started_ns);
        } else {
            work.tally.errors += 1;
        }
        self.in_flight -= 1;
        self.submit(cid, work, now_ns);
        Ok(())
    }

    /// Answers an R2T.
    fn send_data(&mut self, r2t: &[u8], work: &Work) -> io::Result<()> {
        let (cid, ttag) = (pdu::u16_at(r2t, 8), pdu::u16_at(r2t, 10));
        let (from, length) = (pdu::u32_at(r2t, 12) as usize, pdu::u32_at(r2t, 16) as usize);
        let end = from + length;
        let slot = self.slots.get_mut(usize::from(cid));
        let Some(slot) = slot.filter(|_| length > 0 && end <= work.payload.len()) else {
            return Err(io::Error::other(format!("R2T {r2t:02x?}")));
        };
        if from == 0 {
            slot.solicited.clear();
        }
        let first = slot.solicited.len();
        let mut pieces = Vec::new();
        let mut at = from;
        while at < end {
            let next = end.min(at + work.max_h2c_data);
            let data = &work.payload[at..next];
            let digest = match (work.digests.data, data.len() == work.payload.len()) {
                (false, _) => [0; 4],
                (true, true) => work.payload_digest,
                (true, false) => pdu::crc32c(data).to_le_bytes(),
            };
            let mut header = h2c_header(work.digests, cid, ttag, at, data.len(), next == end);
            header.shrink_to_fit();
            slot.solicited.push((header, digest));
            pieces.push(data);
            at = next;
        }
        for ((header, digest), data) in slot.solicited[first..].iter().zip(pieces) {
            self.gather.push(header);
            self.gather.push(data);
            if work.digests.data {
                self.gather.push(digest);
            }
        }
        Ok(())
    }
}

/// The header of H2CData without its data.
fn h2c_header(digests: Digests, cid: u16, ttag: u16, at: usize, length: usize, last: bool) -> Vec<u8> {
    let header_length = if digests.header { 28 } else { 24 };
    let plen = header_length + length + if digests.data { 4 } else { 0 };
    let mut header = vec![0; 24];
    let flags = u8::from(digests.header) | u8::from(digests.data) << 1 | if last { pdu::LAST_PDU } else { 0 };
    header[..4].copy_from_slice(&[pdu::H2C_DATA, flags, 24, header_length as u8]);
    header[4..8].copy_from_slice(&(plen as u32).to_le_bytes());
    header[8..10].copy_from_slice(&cid.to_le_bytes());
    header[10..12].copy_from_slice(&ttag.to_le_bytes());
    header[12..16].copy_from_slice(&(at as u32).to_le_bytes());
    header[16..20].copy_from_slice(&(length as u32).to_le_bytes());
    if digests.header {
        let digest = pdu::crc32c(&header);
        header.extend_from_slice(&digest.to_le_bytes());
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_the_test_host() {
        for digests in Digests::ALL {
            let data = [9; 700];
            let whole = pdu::h2c_data(digests, 5, 6, 4096, &data, true);
            let header = h2c_header(digests, 5, 6, 4096, data.len(), true);
            assert_eq!(whole[..header.len()], header);
        }
    }
}
