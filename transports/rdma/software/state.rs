//! What the adapter knows: its objects, what waits in its queues, what shall go wrong.

use super::{
    Event,
    host::{HostRegion, HostState},
};
use crate::rdma::adapter::{
    DeviceLimits, Done, EndCause, Operation, PostReceive, PostSend, QpSizes, WorkStatus,
};
use reactor::DeviceMemory;
use std::{
    collections::{HashMap, VecDeque},
    io::{self, PipeReader, PipeWriter, Read, Write},
    net::{Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
};

/// Objects that exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Event channels.
    pub channels: usize,
    /// Identifiers of the connection manager.
    pub ids: usize,
    /// Protection domains.
    pub domains: usize,
    /// Memory regions.
    pub regions: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Shared receive queues.
    pub srqs: usize,
    /// Queue pairs.
    pub qps: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Channel,
    Id,
    Domain,
    Region,
    Cq,
    Srq,
    Qp,
}

/// What shall go wrong.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The device says that it can send with invalidation, and cannot.
    pub invalidate_fails: bool,
    /// "Established" is not told.
    pub hold_established: bool,
    /// Completions of sends are not told.
    pub hold_send_completions: bool,
    /// READs are not done.
    pub hold_reads: bool,
    /// Out of a thousand work requests so many fail.
    pub failing_per_mille: u32,
    /// No queue pair can be made.
    pub no_queue_pairs: bool,
}

/// A descriptor that is readable when there is news.
pub(super) struct Bell {
    reader: PipeReader,
    writer: PipeWriter,
    rung: bool,
}

impl Bell {
    fn new() -> io::Result<Bell> {
        let (reader, writer) = io::pipe()?;
        Ok(Bell { reader, writer, rung: false })
    }

    pub(super) fn ring(&mut self) {
        if !std::mem::replace(&mut self.rung, true) {
            self.writer.write_all(&[1]).expect("a pipe takes a byte");
        }
    }

    pub(super) fn silence(&mut self) {
        if std::mem::take(&mut self.rung) {
            self.reader.read_exact(&mut [0]).expect("the byte is there");
        }
    }

    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.reader.try_clone().map(OwnedFd::from)
    }
}

pub(super) struct ChannelState {
    pub(super) events: VecDeque<Event>,
    pub(super) bell: Bell,
}

impl ChannelState {
    pub(super) fn new() -> io::Result<ChannelState> {
        Ok(ChannelState { events: VecDeque::new(), bell: Bell::new()? })
    }
}

pub(super) struct CqState {
    pub(super) done: VecDeque<Done>,
    pub(super) armed: bool,
    pub(super) bell: Bell,
    pub(super) capacity: usize,
    /// The life of the device it belongs to.
    pub(super) device: u64,
}

impl CqState {
    pub(super) fn new(capacity: usize, device: u64) -> io::Result<CqState> {
        Ok(CqState { done: VecDeque::new(), armed: false, bell: Bell::new()?, capacity, device })
    }
}

pub(super) struct SrqState {
    pub(super) capacity: usize,
    pub(super) receives: VecDeque<PostReceive>,
}

pub(super) struct IdState {
    pub(super) listens: bool,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    pub(super) channel: u64,
    pub(super) private_data: Vec<u8>,
    pub(super) host_serves: u8,
    pub(super) qp: Option<u64>,
    /// The host's queue pair.
    pub(super) host: Option<u64>,
    pub(super) failed: bool,
}

impl IdState {
    pub(super) fn listening(local: SocketAddr, channel: u64) -> IdState {
        let peer = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        IdState {
            listens: true,
            local,
            peer,
            channel,
            private_data: Vec::new(),
            host_serves: 0,
            qp: None,
            host: None,
            failed: false,
        }
    }
}

/// A queue pair of the transport.
pub(super) struct QpState {
    pub(super) id: u64,
    pub(super) cq: u64,
    pub(super) srq: Option<u64>,
    pub(super) sizes: QpSizes,
    pub(super) reads: u8,
    pub(super) receives: VecDeque<PostReceive>,
    pub(super) sends: VecDeque<PostSend>,
    pub(super) receive_done: VecDeque<Done>,
    pub(super) send_done: VecDeque<Done>,
    pub(super) failed: bool,
}

impl QpState {
    pub(super) fn new(id: u64, cq: u64, srq: Option<u64>, sizes: QpSizes) -> QpState {
        QpState {
            id,
            cq,
            srq,
            sizes,
            reads: 0,
            receives: VecDeque::new(),
            sends: VecDeque::new(),
            receive_done: VecDeque::new(),
            send_done: VecDeque::new(),
            failed: false,
        }
    }

    /// All that waits is flushed.
    pub(super) fn fail(&mut self) {
        self.failed = true;
        let flushed = |id| Done { id, status: WorkStatus::Flushed, ..Done::EMPTY };
        self.send_done.extend(self.sends.drain(..).map(|send| flushed(send.id)));
        self.receive_done.extend(self.receives.drain(..).map(|receive| flushed(receive.id)));
    }
}

pub(super) struct State {
    next: u64,
    random: u64,
    pub(super) stopping: bool,
    pub(super) device: u64,
    pub(super) limits: DeviceLimits,
    pub(super) faults: Faults,
    pub(super) violations: Vec<String>,
    pub(super) receiver_not_ready: u64,
    pub(super) most_reads: usize,
    counts: Counts,
    pub(super) channels: HashMap<u64, ChannelState>,
    pub(super) ids: HashMap<u64, IdState>,
    pub(super) cqs: HashMap<u64, CqState>,
    pub(super) srqs: HashMap<u64, SrqState>,
    pub(super) qps: HashMap<u64, QpState>,
    pub(super) regions: HashMap<u32, DeviceMemory>,
    pub(super) hosts: HashMap<u64, HostState>,
    pub(super) host_memory: HashMap<u32, HostRegion>,
    /// "Established" not told yet.
    pub(super) establishing: Vec<u64>,
}

impl State {
    pub(super) fn new(seed: u64) -> State {
        let limits = DeviceLimits {
            name: "software".into(),
            max_work_requests: 4096,
            max_completions: 32_767,
            max_shared_receives: 4096,
            max_pieces: 4,
            max_reads: 16,
            can_invalidate: true,
        };
        State {
            next: 0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            stopping: false,
            device: 1,
            limits,
            faults: Faults::default(),
            violations: Vec::new(),
            receiver_not_ready: 0,
            most_reads: 0,
            counts: Counts::default(),
            channels: HashMap::new(),
            ids: HashMap::new(),
            cqs: HashMap::new(),
            srqs: HashMap::new(),
            qps: HashMap::new(),
            regions: HashMap::new(),
            hosts: HashMap::new(),
            host_memory: HashMap::new(),
            establishing: Vec::new(),
        }
    }

    pub(super) fn new_key(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A number below `bound`.
    pub(super) fn random(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % bound.max(1) as u64) as usize
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn count(&mut self, kind: Kind) -> &mut usize {
        let counts = &mut self.counts;
        match kind {
            Kind::Channel => &mut counts.channels,
            Kind::Id => &mut counts.ids,
            Kind::Domain => &mut counts.domains,
            Kind::Region => &mut counts.regions,
            Kind::Cq => &mut counts.cqs,
            Kind::Srq => &mut counts.srqs,
            Kind::Qp => &mut counts.qps,
        }
    }

    pub(super) fn violation(&mut self, what: impl Into<String>) {
        self.violations.push(what.into());
    }

    pub(super) fn destroy(&mut self, kind: Kind, key: u64) {
        match kind {
            Kind::Channel => drop(self.channels.remove(&key)),
            Kind::Domain => {}
            Kind::Id => {
                self.fail_id(key);
                self.ids.remove(&key);
                self.establishing.retain(|id| *id != key);
            }
            Kind::Region => drop(self.regions.remove(&(key as u32))),
            Kind::Cq => {
                if self.qps.values().any(|qp| qp.cq == key) {
                    self.violation("a completion queue was destroyed before its queue pairs");
                }
                self.cqs.remove(&key);
            }
            Kind::Srq => drop(self.srqs.remove(&key)),
            Kind::Qp => {
                self.qps.remove(&key);
            }
        }
    }

    /// Puts an event into a channel.
    pub(super) fn tell(&mut self, channel: u64, event: Event) {
        if let Some(channel) = self.channels.get_mut(&channel) {
            channel.events.push_back(event);
            channel.bell.ring();
        }
    }

    /// Ends a connection from this side: its queue pair fails, its host is told; a host that is not answered yet is refused.
    pub(super) fn fail_id(&mut self, key: u64) {
        let Some(id) = self.ids.get_mut(&key) else { return };
        id.failed = true;
        if let Some(qp) = id.qp.and_then(|qp| self.qps.get_mut(&qp)) {
            qp.fail();
        }
        if let Some(host) = id.host.and_then(|host| self.hosts.get_mut(&host)) {
            host.answer.get_or_insert(Err(Vec::new()));
            host.ended = true;
        }
    }

    pub(super) fn answer(&mut self, key: u64, answer: Result<Vec<u8>, Vec<u8>>) -> io::Result<()> {
        let host = self.ids.get(&key).and_then(|id| id.host).and_then(|host| self.hosts.get_mut(&host));
        let host = host.filter(|host| host.answer.is_none()).ok_or(io::ErrorKind::NotConnected)?;
        host.answer = Some(answer);
        Ok(())
    }

    pub(super) fn accept(&mut self, key: u64, reads: u8, private_data: &[u8]) -> io::Result<()> {
        let id = self.ids.get(&key).filter(|id| !id.failed).ok_or(io::ErrorKind::NotConnected)?;
        let (Some(qp), host_serves) = (id.qp, id.host_serves) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        if reads > host_serves || reads > self.limits.max_reads {
            self.violation(format!("{reads} READs at once, the host serves {host_serves}"));
        }
        let own = self.qps.get_mut(&qp).ok_or(io::ErrorKind::NotConnected)?;
        own.reads = reads;
        if own.receives.is_empty() && own.srq.is_none() {
            self.violation("accepted before a receive was posted");
        }
        self.answer(key, Ok(private_data.to_vec()))?;
        self.establishing.push(key);
        Ok(())
    }

    pub(super) fn post_sends(&mut self, key: u64, sends: &[PostSend]) -> io::Result<()> {
        for send in sends.iter().filter(|send| send.piece.len > 0) {
            let region = self.regions.get(&send.piece.key);
            if !region.is_some_and(|memory| memory.contains(send.piece.address, send.piece.len as usize)) {
                self.violation("a send names memory that is not registered");
            }
        }
        let own = self.qps.get_mut(&key).ok_or(io::ErrorKind::NotConnected)?;
        if own.failed {
            let flushed = sends.iter().map(|s| Done { id: s.id, status: WorkStatus::Flushed, ..Done::EMPTY });
            own.send_done.extend(flushed);
            return Ok(());
        }
        if own.sends.len() + own.send_done.len() + sends.len() > own.sizes.sends as usize {
            self.violation("the send queue overflows");
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        own.sends.extend(sends);
        let reads = own.sends.iter().filter(|s| matches!(s.operation, Operation::Read { .. })).count();
        let allowed = own.reads;
        self.most_reads = self.most_reads.max(reads);
        if reads > allowed.into() {
            self.violation(format!("{reads} READs outstanding, {allowed} are allowed"));
        }
        Ok(())
    }

    /// Tells the transport that a host left.
    pub(super) fn host_left(&mut self, id: u64) {
        if let Some(channel) = self.ids.get(&id).map(|id| id.channel) {
            self.tell(channel, Event::Ended(id, EndCause::Disconnected));
        }
    }
}
