//! A queue pair: commands in flight on one connection, answered in any order. Everything the controller sends is held
//! against the rules: data in order and complete before a success, R2Ts contiguous, no completion for a command that
//! is not outstanding, SQHD inside the queue.

use super::command::Command;
use super::connection::Connection;
use super::pdu::{self, Pdu, Wire};
use super::{Completion, Failure, LIMIT, Options};
use futures::StreamExt;
use futures::channel::{mpsc, oneshot};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use tokio_uring::net::TcpStream;

/// A command that waits for its completion.
struct Outstanding {
    data: Vec<u8>,
    sent: usize,
    last_was_sent: bool,
    expects: usize,
    received: Vec<u8>,
    answer: oneshot::Sender<Result<Completion, Failure>>,
}

/// What a controller asked for and the host did not send yet.
struct Solicited {
    cid: u16,
    ttag: u16,
    offset: usize,
    length: usize,
}

struct Shared {
    qid: u16,
    wire: Wire,
    max_h2c_data: usize,
    outstanding: RefCell<HashMap<u16, Outstanding>>,
    held: RefCell<Option<Vec<Solicited>>>,
    to_send: mpsc::UnboundedSender<Vec<u8>>,
    fault: RefCell<Option<Failure>>,
    answered: Cell<u64>,
    submitted: Cell<u64>,
    head: Cell<u64>,
    /// Entries of the submission queue once Connect has told; 0 before that.
    entries: Cell<u64>,
    flow_control: Cell<bool>,
}

/// One submission and completion queue pair, from the host's side.
pub struct QueuePair {
    shared: Rc<Shared>,
    stream: Rc<TcpStream>,
    next_cid: Cell<u16>,
    /// How many bytes of data fit into a capsule.
    pub capsule_capacity: Cell<usize>,
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// A submitted command.
pub struct Pending {
    /// Its command identifier.
    pub cid: u16,
    answer: oneshot::Receiver<Result<Completion, Failure>>,
}

impl Pending {
    /// Waits for the completion; a status other than success is a failure.
    pub async fn done(self) -> Result<Completion, Failure> {
        match tokio::time::timeout(LIMIT, self.answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Failure::Closed("the queue pair ended".to_owned())),
            Err(_) => Err(Failure::Silence(format!("command {:04x}h was not answered", self.cid))),
        }
    }

    /// Whether there is an answer already.
    pub fn poll(&mut self) -> Option<Result<Completion, Failure>> {
        self.answer.try_recv().ok().flatten()
    }
}

impl QueuePair {
    /// TCP, ICReq and ICResp. The next command has to be Connect.
    pub async fn open(address: SocketAddr, options: &Options, qid: u16) -> Result<Self, Failure> {
        let mut connection = Connection::raw(address).await?;
        let welcome = connection.initialize(options.wire()).await?;
        let stream = connection.stream();
        let (to_send, outgoing) = mpsc::unbounded();
        let shared = Rc::new(Shared {
            qid,
            wire: connection.wire,
            max_h2c_data: options.h2c_chunk.unwrap_or(usize::MAX).min(welcome.max_h2c_data),
            outstanding: RefCell::default(),
            held: RefCell::default(),
            to_send,
            fault: RefCell::default(),
            answered: Cell::new(0),
            submitted: Cell::new(0),
            head: Cell::new(0),
            entries: Cell::new(0),
            flow_control: Cell::new(true),
        });
        tokio_uring::spawn(send_all(stream.clone(), outgoing));
        tokio_uring::spawn(dispatch(connection, shared.clone()));
        let capsule_capacity = Cell::new(8192);
        Ok(Self { shared, stream, next_cid: Cell::new(0x0fed), capsule_capacity })
    }

    /// Sends a Connect command. From its completion on, SQHD is held against the queue size.
    pub async fn connect(&self, connect: &super::Connect) -> Result<Completion, Failure> {
        self.shared.flow_control.set(true);
        let pending = self.submit(&connect.command());
        let completion = pending.done().await?;
        let disabled = connect.cattr & 4 != 0 && completion.sqhd == 0xffff;
        self.shared.flow_control.set(!disabled);
        self.shared.entries.set(u64::from(connect.sqsize) + 1);
        self.shared.head.set(1);
        if !disabled && completion.sqhd != 1 {
            return Err(Failure::Protocol(format!(
                "Connect took slot 0, yet its SQHD is {}",
                completion.sqhd
            )));
        }
        Ok(completion)
    }

    /// Submits a command and waits for it.
    pub async fn execute(&self, command: &Command) -> Result<Completion, Failure> {
        self.submit(command).done().await
    }

    /// Submits a command. Keeping to the queue size is the caller's business.
    pub fn submit(&self, command: &Command) -> Pending {
        let cid = self.fresh_cid();
        let (sqe, in_capsule) = command.encode(cid, self.capsule_capacity.get());
        let (answer, receiver) = oneshot::channel();
        if let Some(fault) = self.shared.fault.borrow().clone() {
            let _ = answer.send(Err(fault));
            return Pending { cid, answer: receiver };
        }
        let (inside, by_r2t) =
            if in_capsule { (&command.data[..], Vec::new()) } else { (&[][..], command.data.clone()) };
        let capsule = pdu::capsule(self.shared.wire.digests, &sqe, inside);
        let outstanding = Outstanding {
            data: by_r2t,
            sent: 0,
            last_was_sent: false,
            expects: command.reads,
            received: Vec::with_capacity(command.reads),
            answer,
        };
        self.shared.outstanding.borrow_mut().insert(cid, outstanding);
        self.shared.submitted.set(self.shared.submitted.get() + 1);
        let _ = self.shared.to_send.unbounded_send(capsule);
        Pending { cid, answer: receiver }
    }

    /// Identifiers look random to the controller, which has to treat them as opaque.
    fn fresh_cid(&self) -> u16 {
        loop {
            let cid = self.next_cid.get().wrapping_add(0x9e37);
            self.next_cid.set(cid);
            if !self.shared.outstanding.borrow().contains_key(&cid) {
                return cid;
            }
        }
    }

    /// From now on R2Ts stay unanswered, until [`Self::release_data`].
    pub fn hold_data(&self) {
        self.shared.held.borrow_mut().get_or_insert_default();
    }

    /// How many R2Ts are being held back.
    pub fn held_r2ts(&self) -> usize {
        self.shared.held.borrow().as_ref().map_or(0, Vec::len)
    }

    /// Answers the R2Ts that were held back, the latest first.
    pub fn release_data(&self) {
        let held = self.shared.held.borrow_mut().take().unwrap_or_default();
        for solicited in held.into_iter().rev() {
            self.shared.send_data(&solicited);
        }
    }

    /// Ends the connection without a word, as a host that died.
    pub fn break_off(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Whether the connection still stands and nothing wrong came over it.
    pub fn is_alive(&self) -> bool {
        self.shared.fault.borrow().is_none()
    }

    /// Waits until the controller has ended the connection.
    pub async fn ended(&self) -> Result<(), Failure> {
        super::until("the controller ends the queue pair", || !self.is_alive()).await?;
        match self.shared.fault.borrow().clone() {
            Some(Failure::Closed(_)) => Ok(()),
            Some(other) => Err(other),
            None => Ok(()),
        }
    }
}

async fn send_all(stream: Rc<TcpStream>, mut outgoing: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(bytes) = outgoing.next().await {
        if stream.write_all(bytes).await.0.is_err() {
            return;
        }
    }
}

/// Takes PDUs until the connection ends or something is wrong; then every outstanding command fails with the reason.
async fn dispatch(mut connection: Connection, shared: Rc<Shared>) {
    let fault = loop {
        match connection.next_unlimited().await {
            Ok(pdu) => {
                if let Err(complaint) = shared.take(pdu) {
                    break Failure::Protocol(complaint);
                }
            }
            Err(failure) => break failure,
        }
    };
    *shared.fault.borrow_mut() = Some(fault.clone());
    let outstanding: Vec<_> = shared.outstanding.borrow_mut().drain().collect();
    for (_, command) in outstanding {
        let _ = command.answer.send(Err(fault.clone()));
    }
}

impl Shared {
    fn take(&self, pdu: Pdu) -> Result<(), String> {
        match pdu.kind {
            pdu::C2H_DATA => self.take_data(pdu),
            pdu::R2T => self.take_r2t(&pdu),
            pdu::CAPSULE_RESP => self.take_response(&pdu.header[8..24]),
            other => Err(format!("PDU type {other:02x}h on a connected queue pair: {pdu:02x?}")),
        }
    }

    fn take_data(&self, pdu: Pdu) -> Result<(), String> {
        let cid = pdu::u16_at(&pdu.header, 8);
        let offset = pdu::u32_at(&pdu.header, 12) as usize;
        let last = pdu.flags & pdu::LAST_PDU != 0;
        let mut all = self.outstanding.borrow_mut();
        let command =
            all.get_mut(&cid).ok_or(format!("C2HData for CID {cid:04x}h, which is not outstanding"))?;
        if offset != command.received.len() || command.last_was_sent {
            return Err(format!(
                "C2HData at {offset} after {} bytes of CID {cid:04x}h",
                command.received.len()
            ));
        }
        command.received.extend_from_slice(&pdu.data);
        command.last_was_sent = last;
        let (have, want) = (command.received.len(), command.expects);
        if have > want || last != (have == want) {
            return Err(format!("C2HData of CID {cid:04x}h: {have} of {want} bytes, LAST_PDU {last}"));
        }
        drop(all);
        if pdu.flags & pdu::SUCCESS == 0 {
            return Ok(());
        }
        if self.flow_control.get() {
            return Err("SUCCESS flag although SQ flow control is in use".to_owned());
        }
        self.finish(cid, Completion { cid, ..Completion::default() })
    }

    fn take_r2t(&self, pdu: &Pdu) -> Result<(), String> {
        let solicited = Solicited {
            cid: pdu::u16_at(&pdu.header, 8),
            ttag: pdu::u16_at(&pdu.header, 10),
            offset: pdu::u32_at(&pdu.header, 12) as usize,
            length: pdu::u32_at(&pdu.header, 16) as usize,
        };
        let cid = solicited.cid;
        let end = solicited.offset + solicited.length;
        {
            let mut all = self.outstanding.borrow_mut();
            let command =
                all.get_mut(&cid).ok_or(format!("R2T for CID {cid:04x}h, which is not outstanding"))?;
            if solicited.length == 0 || solicited.offset != command.sent || end > command.data.len() {
                let (sent, total) = (command.sent, command.data.len());
                return Err(format!("R2T for {}..{end} with {sent} of {total} bytes sent", solicited.offset));
            }
            command.sent = end;
        }
        let mut held = self.held.borrow_mut();
        let Some(held) = held.as_mut() else {
            self.send_data(&solicited);
            return Ok(());
        };
        if held.iter().any(|other| other.cid == cid) {
            return Err(format!("a second R2T for CID {cid:04x}h, but MAXR2T is 0"));
        }
        held.push(solicited);
        Ok(())
    }

    fn send_data(&self, solicited: &Solicited) {
        let all = self.outstanding.borrow();
        let Some(command) = all.get(&solicited.cid) else { return };
        let end = solicited.offset + solicited.length;
        let mut at = solicited.offset;
        while at < end {
            let next = end.min(at.saturating_add(self.max_h2c_data));
            let data = &command.data[at..next];
            let (cid, ttag) = (solicited.cid, solicited.ttag);
            let pdu = pdu::h2c_data(self.wire.digests, cid, ttag, at, data, next == end);
            let _ = self.to_send.unbounded_send(pdu);
            at = next;
        }
    }

    fn take_response(&self, cqe: &[u8]) -> Result<(), String> {
        let completion = Completion {
            dw0: pdu::u32_at(cqe, 0),
            dw1: pdu::u32_at(cqe, 4),
            sqhd: pdu::u16_at(cqe, 8),
            sqid: pdu::u16_at(cqe, 10),
            cid: pdu::u16_at(cqe, 12),
            status: pdu::u16_at(cqe, 14),
            ..Completion::default()
        };
        if completion.status & 1 != 0 {
            return Err(format!("the phase bit is not used on fabrics: {cqe:02x?}"));
        }
        // Controllers in use report the queue's identifier or nothing.
        if ![0, self.qid].contains(&completion.sqid) {
            return Err(format!("SQID {} on queue {}", completion.sqid, self.qid));
        }
        self.check_head(completion.sqhd)?;
        self.finish(completion.cid, completion)
    }

    /// With flow control SQHD only moves forward, and never past what was submitted.
    fn check_head(&self, sqhd: u16) -> Result<(), String> {
        let entries = self.entries.get();
        if entries == 0 {
            return Ok(());
        }
        if !self.flow_control.get() {
            return if sqhd == 0 { Ok(()) } else { Err(format!("SQHD {sqhd} although flow control is off")) };
        }
        if u64::from(sqhd) >= entries {
            return Err(format!("SQHD {sqhd} in a queue of {entries} entries"));
        }
        let head = self.head.get();
        let moved = (u64::from(sqhd) + entries - head % entries) % entries;
        if head + moved > self.submitted.get() {
            return Err(format!(
                "SQHD {sqhd}: head {head} moved by {moved}, {} submitted",
                self.submitted.get()
            ));
        }
        self.head.set(head + moved);
        Ok(())
    }

    fn finish(&self, cid: u16, mut completion: Completion) -> Result<(), String> {
        let gone = || format!("completion for CID {cid:04x}h, which is not outstanding: {completion:?}");
        let command = self.outstanding.borrow_mut().remove(&cid).ok_or_else(gone)?;
        if completion.is_success()
            && (command.received.len(), command.sent) != (command.expects, command.data.len())
        {
            let (have, want) = (command.received.len(), command.expects);
            let (sent, total) = (command.sent, command.data.len());
            let complaint = format!(
                "success of CID {cid:04x}h: {have} of {want} bytes read, {sent} of {total} asked for"
            );
            let _ = command.answer.send(Err(Failure::Protocol(complaint.clone())));
            return Err(complaint);
        }
        completion.data = command.received;
        completion.order = self.answered.get();
        self.answered.set(completion.order + 1);
        let success = completion.is_success();
        let _ = command.answer.send(if success { Ok(completion) } else { Err(Failure::Status(completion)) });
        Ok(())
    }
}
