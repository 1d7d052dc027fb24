//! The transport over the adapter in memory, under a small pipeline of its own: every host's bytes are checked, and at the end
//! everything is counted to zero.

use super::{
    Local, Port, Rdma,
    adapter::EndCause,
    software::{Counts, HostMemory, HostQueue, Refused, Response, Software},
};
use crate::{Capsule, CloseReason, FetchError, HandshakeLimits, QueuePair, QueueParameters, Slot, Transport};
use nvme::{Completion, Cqe, Qid, SglDescriptor, SglKind, Sqe, Status};
use reactor::{BufferClass, Data, Mailbox, Options, Reactor, ReactorThread};
use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

const WRITE: u8 = 1;
const READ: u8 = 2;
const ZEROES: u8 = 8;
const HANG: u8 = 12;
const MEMORY: usize = 4 << 20;
const IN_CAPSULE: usize = 4096;

type Pair = <Rdma<Software> as Transport>::QueuePair;

/// What the small pipeline shares.
struct Shared {
    memory: RefCell<Vec<u8>>,
    reactor: Reactor,
    local: Rc<Local<Software>>,
    alive: Arc<AtomicUsize>,
    refuse: bool,
}

struct Target {
    adapter: Software,
    address: SocketAddr,
    thread: Option<ReactorThread>,
    mailbox: Mailbox,
    /// Queue pairs in service.
    alive: Arc<AtomicUsize>,
}

fn target_with(adapter: Software, refuse: bool) -> Target {
    let address = SocketAddr::from(([127, 0, 0, 1], 4420));
    let port = Port::listen(adapter.clone(), address).unwrap();
    let alive = Arc::<AtomicUsize>::default();
    let counter = alive.clone();
    let options = Options { buffers: 16 << 20, poll: Duration::ZERO, ..Options::default() };
    let thread = reactor::start(options, move |reactor| {
        let shared = Rc::new(Shared {
            memory: RefCell::new(vec![0; MEMORY]),
            reactor: reactor.clone(),
            local: Rc::new(Rdma::<Software>::local(reactor)),
            alive: counter,
            refuse,
        });
        reactor.spawn(accept(shared, port));
    })
    .unwrap();
    let mailbox = thread.mailbox.clone();
    Target { adapter, address, thread: Some(thread), mailbox, alive }
}

fn target(seed: u64) -> Target {
    target_with(Software::new(seed), false)
}

async fn accept(shared: Rc<Shared>, port: Port<Software>) {
    let mut incoming = Rdma::incoming(port, &shared.reactor);
    while let Ok(connection) = Rdma::accept(&mut incoming).await {
        shared.reactor.spawn(greet(shared.clone(), connection));
    }
}

async fn greet(shared: Rc<Shared>, mut connection: super::Connection<Software>) {
    let limits = HandshakeLimits {
        time: Duration::from_secs(20),
        max_host_data: 1 << 20,
        in_capsule: IN_CAPSULE,
        admin_entries: 128,
        io_entries: 128,
        io_queues: 64,
    };
    let (local, reactor) = (&shared.local, &shared.reactor);
    let Ok(first) = Rdma::handshake(&mut connection, local, reactor, limits).await else { return };
    let announced = first.announced.unwrap();
    let good = first.data.len() == 1024 && first.data.iter().all(|byte| *byte == 7);
    let status = if good && !shared.refuse { Status::SUCCESS } else { Status::CONNECT_INVALID_PARAMETER };
    let cqe = Cqe::new(status.into(), 1, announced.qid, first.sqe.cid());
    if !status.is_success() {
        return Rdma::refuse(connection, local, reactor, cqe).await;
    }
    let slots = announced.entries as u16 + 1;
    let parameters = QueueParameters {
        qid: announced.qid,
        slots,
        sq_entries: announced.entries,
        in_capsule: IN_CAPSULE,
        sq_flow_control: true,
        stall_time: Duration::from_secs(20),
    };
    let Ok(pair) = Rdma::install(connection, local, reactor, parameters, cqe) else { return };
    shared.alive.fetch_add(1, Ordering::SeqCst);
    let live = Rc::new(Cell::new(slots));
    reactor.spawn_slots((0..slots).map(|slot| serve(shared.clone(), pair.clone(), slot, live.clone())));
}

async fn serve(shared: Rc<Shared>, pair: Pair, slot: Slot, live: Rc<Cell<u16>>) {
    while let Ok(capsule) = pair.receive(slot).await {
        let Some((token, sqe, result)) = execute(&shared, &pair, capsule).await else { break };
        let (completion, data) = match result {
            Ok(data) => (Completion::OK, data),
            Err(status) => (Completion::from(status), Data::None),
        };
        let cqe = Cqe::new(completion, 0, Qid(1), sqe.cid());
        if pair.respond(token, cqe, data).await.is_err() {
            break;
        }
    }
    live.set(live.get() - 1);
    if live.get() == 0 {
        pair.finish().await;
        shared.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

type Executed = Option<(<Pair as QueuePair>::Token, Sqe, Result<Data, Status>)>;

async fn execute(shared: &Shared, pair: &Pair, capsule: Capsule<<Pair as QueuePair>::Token>) -> Executed {
    let Capsule { sqe, data, mut token } = capsule;
    let described = match pair.described(&token, &sqe) {
        Ok(described) => described,
        Err(status) => return Some((token, sqe, Err(status))),
    };
    let (at, len) = (sqe.cdw(10) as usize, described.len as usize);
    let result = match sqe.opcode() {
        WRITE => {
            let buffer = match data.unwrap() {
                Some(buffer) => buffer,
                None => {
                    let buffer = shared.reactor.buffer(len, BufferClass::Io).await;
                    match pair.fetch(&mut token, buffer, len).await {
                        Ok(buffer) => buffer,
                        Err(FetchError::Status(status)) => return Some((token, sqe, Err(status))),
                        Err(FetchError::Disconnected) => return None,
                    }
                }
            };
            shared.memory.borrow_mut()[at..at + len].copy_from_slice(buffer.filled());
            Ok(Data::None)
        }
        READ => {
            let mut buffer = shared.reactor.buffer(len, BufferClass::Io).await;
            buffer.fill_from(&shared.memory.borrow()[at..at + len]);
            Ok(Data::Arena(buffer))
        }
        ZEROES => Ok(Data::Zeroes(len as u32)),
        HANG => {
            pair.closing().await;
            return None;
        }
        _ => Ok(Data::None),
    };
    Some((token, sqe, result))
}

impl Target {
    fn connect(&self, qid: u16, entries: u16) -> Result<Host<'_>, Refused> {
        let mut data = [0; 32];
        data[2..4].copy_from_slice(&qid.to_le_bytes());
        data[4..6].copy_from_slice(&entries.to_le_bytes());
        data[6..8].copy_from_slice(&(entries - 1).to_le_bytes());
        let queue = HostQueue::connect(&self.adapter, self.address, &data, 16)?;
        Ok(Host { target: self, queue, entries, next_cid: Cell::new(0) })
    }

    /// Connects, with the Connect command; none when something went wrong on the way.
    fn try_host(&self, qid: u16, entries: u16) -> Option<Host<'_>> {
        let host = self.connect(qid, entries).ok()?;
        assert_eq!(host.queue.reply[2..4], entries.to_le_bytes(), "CRQSIZE");
        host.queue.post_receives(entries.into());
        let connect = self.memory(&[7; 1024]);
        host.submit(0x7f, 0, keyed(&connect, 0, 1024, false), &[]);
        let connected = host.queue.receive()?;
        assert_eq!(status(&connected), Status::SUCCESS);
        host.queue.post_receives(1);
        Some(host)
    }

    fn host(&self, qid: u16, entries: u16) -> Host<'_> {
        self.try_host(qid, entries).expect("nothing goes wrong here")
    }

    fn memory(&self, bytes: &[u8]) -> HostMemory {
        HostMemory::new(&self.adapter, bytes, true)
    }

    /// Waits until no queue pair is in service and only what the port and the open device need is left.
    fn wait_for_idle(&self) {
        wait("queue pairs to end", || {
            let counts = self.adapter.counts();
            self.alive.load(Ordering::SeqCst) == 0 && counts.qps == 0 && counts.ids == 1
        });
    }

    /// Ends everything and counts it to zero.
    fn end(mut self) {
        self.wait_for_idle();
        let adapter = self.adapter.clone();
        self.stop();
        wait("objects to be destroyed", || adapter.counts() == Counts::default());
    }

    fn stop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.mailbox.send(|reactor| reactor.stop());
        thread.join().unwrap();
        assert_eq!(self.adapter.violations(), Vec::<String>::new());
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

fn wait(what: &str, done: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < until, "waited for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

struct Host<'a> {
    target: &'a Target,
    queue: HostQueue,
    entries: u16,
    next_cid: Cell<u16>,
}

fn keyed(memory: &HostMemory, at: u64, len: u32, invalidate: bool) -> [u8; 16] {
    let kind = SglKind::Keyed { key: memory.key, invalidate };
    SglDescriptor { address: memory.address + at, length: len, kind }.encode()
}

fn none() -> [u8; 16] {
    SglDescriptor { address: 0, length: 0, kind: SglKind::Keyed { key: 0, invalidate: false } }.encode()
}

fn status(response: &Response) -> Status {
    Cqe::parse(response.bytes.as_slice().try_into().unwrap()).status()
}

fn cid(response: &Response) -> u16 {
    Cqe::parse(response.bytes.as_slice().try_into().unwrap()).cid().0
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ at >> 8 ^ seed.wrapping_mul(97)) as u8).collect()
}

impl Host<'_> {
    fn submit(&self, opcode: u8, at: u32, sgl: [u8; 16], in_capsule: &[u8]) -> u16 {
        let cid = self.next_cid.get();
        self.next_cid.set(cid.wrapping_add(1));
        let mut capsule = vec![0; 64];
        capsule[0] = opcode;
        capsule[1] = 0x40;
        capsule[2..4].copy_from_slice(&cid.to_le_bytes());
        capsule[24..40].copy_from_slice(&sgl);
        capsule[40..44].copy_from_slice(&at.to_le_bytes());
        capsule.extend_from_slice(in_capsule);
        self.queue.send(&capsule);
        cid
    }

    /// One command, answered; the status and the key that was invalidated.
    fn command(&self, opcode: u8, at: u32, sgl: [u8; 16], in_capsule: &[u8]) -> (Status, Option<u32>) {
        let wanted = self.submit(opcode, at, sgl, in_capsule);
        let response = self.queue.receive().expect("the queue pair lives");
        assert_eq!(cid(&response), wanted);
        self.queue.post_receives(1);
        (status(&response), response.invalidated)
    }

    fn write(&self, at: u32, bytes: &[u8]) -> Status {
        let memory = self.target.memory(bytes);
        self.command(WRITE, at, keyed(&memory, 0, bytes.len() as u32, false), &[]).0
    }

    fn read(&self, at: u32, len: usize) -> Vec<u8> {
        let memory = self.target.memory(&vec![0xee; len]);
        let (status, _) = self.command(READ, at, keyed(&memory, 0, len as u32, false), &[]);
        assert_eq!(status, Status::SUCCESS);
        memory.bytes()
    }
}

#[test]
fn data_moves_in_every_way_there_is() {
    let target = target(1);
    for qid in [0, 1] {
        let host = target.host(qid, 32);
        for (round, len) in [512, 4096, 5000, 128 << 10, 1 << 20].into_iter().enumerate() {
            let bytes = pattern(round + qid as usize, len);
            assert_eq!(host.write(0, &bytes), Status::SUCCESS);
            assert!(host.read(0, len) == bytes, "{len} bytes");
        }
        let small = pattern(9, 3000);
        let whole = SglDescriptor::in_capsule(3000).encode();
        assert_eq!(host.command(WRITE, 64, whole, &small).0, Status::SUCCESS);
        assert!(host.read(64, 3000) == small);
        let behind = SglDescriptor { address: 1000, ..SglDescriptor::in_capsule(2000) }.encode();
        assert_eq!(host.command(WRITE, 64, behind, &small).0, Status::SUCCESS);
        assert!(host.read(64, 2000) == small[1000..]);
        let zeroes = target.memory(&[1; 200_000]);
        let sgl = keyed(&zeroes, 5, 190_000, false);
        assert_eq!(host.command(ZEROES, 0, sgl, &[]).0, Status::SUCCESS);
        let bytes = zeroes.bytes();
        assert!(bytes[5..190_005].iter().all(|b| *b == 0) && bytes[4] == 1 && bytes[190_005] == 1);
    }
    target.end();
}

#[test]
fn several_descriptors_make_one_transfer() {
    let target = target(2);
    let host = target.host(1, 32);
    let parts: Vec<_> = (1..=16).map(|part| target.memory(&pattern(part, part * 100))).collect();
    let list: Vec<u8> = parts.iter().flat_map(|memory| keyed(memory, 0, memory.len as u32, false)).collect();
    let sgl = SglDescriptor { address: 0, length: list.len() as u32, kind: SglKind::Other(0x31) }.encode();
    assert_eq!(host.command(WRITE, 0, sgl, &list).0, Status::SUCCESS);
    let whole: Vec<u8> = (1..=16).flat_map(|part| pattern(part, part * 100)).collect();
    assert!(host.read(0, whole.len()) == whole);
    assert_eq!(host.write(0, &pattern(99, whole.len())), Status::SUCCESS);
    assert_eq!(host.command(READ, 0, sgl, &list).0, Status::SUCCESS);
    let back: Vec<u8> = parts.iter().flat_map(HostMemory::bytes).collect();
    assert!(back == pattern(99, whole.len()));
    drop(host);
    target.end();
}

#[test]
fn keys_are_invalidated_when_asked_and_only_then() {
    let target = target(3);
    let host = target.host(1, 32);
    let memory = target.memory(&[5; 4096]);
    assert_eq!(host.command(WRITE, 0, keyed(&memory, 0, 4096, false), &[]), (Status::SUCCESS, None));
    assert!(memory.is_valid());
    let asked = host.command(READ, 0, keyed(&memory, 0, 4096, true), &[]);
    assert_eq!(asked, (Status::SUCCESS, Some(memory.key)));
    assert!(!memory.is_valid() && memory.bytes() == [5; 4096]);
    assert_eq!(host.command(0x55, 0, none(), &[]), (Status::SUCCESS, None));
    drop(host);
    target.end();
}

#[test]
fn a_device_that_cannot_invalidate_is_found_out_once() {
    let target = target(4);
    target.adapter.faults(|faults| faults.invalidate_fails = true);
    let memory = target.memory(&[5; 4096]);
    let sgl = keyed(&memory, 0, 4096, true);
    let first = target.host(1, 32);
    first.submit(READ, 0, sgl, &[]);
    assert_eq!(first.queue.receive(), None, "the queue pair ends");
    drop(first);
    // The host may know of the end before the target does: until then another queue pair can be lost in the same way.
    let answered = |host: &Host<'_>| {
        host.submit(READ, 0, sgl, &[]);
        host.queue.receive().map(|response| (status(&response), response.invalidated))
    };
    let found = (0..100).find_map(|_| answered(&target.host(1, 32)));
    assert_eq!(found, Some((Status::SUCCESS, None)), "it is found out");
    let last = target.host(1, 32);
    assert_eq!(answered(&last), Some((Status::SUCCESS, None)), "and stays so");
    drop(last);
    target.end();
}

#[test]
fn connect_may_come_before_the_connection_is_established() {
    let target = target(5);
    target.adapter.faults(|faults| faults.hold_established = true);
    let host = target.connect(0, 32).unwrap();
    host.queue.post_receives(32);
    let connect = target.memory(&[7; 1024]);
    host.submit(0x7f, 0, keyed(&connect, 0, 1024, true), &[]);
    wait("the capsule to arrive", || host.queue.unsent() == 0);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(host.queue.try_receive(), None, "not before it is established");
    target.adapter.faults(|faults| faults.hold_established = false);
    assert_eq!(status(&host.queue.receive().unwrap()), Status::SUCCESS);
    drop(host);
    target.end();
}

#[test]
fn every_rejection_names_its_cause_and_leaves_nothing() {
    let target = target(6);
    let request = |qid: u16, receives: u16, sends: u16| {
        let words = [0, qid, receives, sends].map(u16::to_le_bytes).concat();
        [words, vec![0; 24]].concat()
    };
    let mut format = request(1, 32, 31);
    format[0] = 3;
    for (data, serves, reason) in [
        (vec![], 16, 1),
        (request(1, 32, 31)[..20].to_vec(), 16, 1),
        (format, 16, 2),
        (request(65, 32, 31), 16, 3),
        (request(1, 1, 0), 16, 4),
        (request(1, 300, 299), 16, 4),
        (request(1, 31, 31), 16, 5),
        (request(1, 32, 31), 0, 7),
    ] {
        let refused = HostQueue::connect(&target.adapter, target.address, &data, serves).err();
        assert_eq!(refused, Some(Refused(vec![0, 0, reason, 0])));
    }
    target.adapter.faults(|faults| faults.no_queue_pairs = true);
    assert_eq!(target.connect(1, 32).err(), Some(Refused(vec![0, 0, 6, 0])));
    target.adapter.faults(|faults| faults.no_queue_pairs = false);
    drop(target.host(1, 32));
    target.end();
}

#[test]
fn a_connect_that_is_refused_is_answered_before_the_end() {
    let target = target_with(Software::new(7), true);
    let host = target.connect(1, 32).unwrap();
    host.queue.post_receives(32);
    let connect = target.memory(&[7; 1024]);
    host.submit(0x7f, 0, keyed(&connect, 0, 1024, false), &[]);
    assert_eq!(status(&host.queue.receive().unwrap()), Status::CONNECT_INVALID_PARAMETER);
    drop(host);
    target.end();
}

#[test]
fn reads_beyond_what_the_host_serves_wait_and_finish() {
    let adapter = Software::new(8);
    adapter.limits(|limits| limits.max_reads = 3);
    let target = target_with(adapter, false);
    let host = target.host(1, 64);
    let memories: Vec<_> = (0..63).map(|n| target.memory(&pattern(n, 8192))).collect();
    for (index, memory) in memories.iter().enumerate() {
        host.submit(WRITE, index as u32 * 8192, keyed(memory, 0, 8192, false), &[]);
    }
    for _ in &memories {
        assert_eq!(status(&host.queue.receive().unwrap()), Status::SUCCESS);
        host.queue.post_receives(1);
    }
    for index in 0..memories.len() {
        assert!(host.read(index as u32 * 8192, 8192) == pattern(index, 8192));
    }
    assert_eq!(target.adapter.most_reads(), 3, "as many as allowed, and no more");
    drop(host);
    target.end();
}

#[test]
fn a_host_at_full_depth_may_send_the_next_command_before_our_completion_is_reaped() {
    for shared in [true, false] {
        let adapter = Software::new(9);
        adapter.limits(|limits| limits.max_shared_receives = if shared { 4096 } else { 0 });
        let target = target_with(adapter, false);
        let host = target.host(1, 4);
        target.adapter.faults(|faults| faults.hold_send_completions = true);
        let memory = target.memory(&[0; 512]);
        let submit = || host.submit(READ, 0, keyed(&memory, 0, 512, false), &[]);
        for _ in 0..4 {
            submit();
        }
        for _ in 0..8 {
            assert_eq!(status(&host.queue.receive().unwrap()), Status::SUCCESS);
            host.queue.post_receives(1);
            submit();
        }
        target.adapter.faults(|faults| faults.hold_send_completions = false);
        for _ in 0..4 {
            assert_eq!(status(&host.queue.receive().unwrap()), Status::SUCCESS);
            host.queue.post_receives(1);
        }
        assert_eq!(target.adapter.receiver_not_ready(), 0);
        drop(host);
        target.end();
    }
}

#[test]
fn a_host_that_exceeds_its_depth_loses_its_queue_pair() {
    let target = target(10);
    let (bad, good) = (target.host(1, 4), target.host(2, 4));
    for _ in 0..6 {
        bad.submit(HANG, 0, none(), &[]);
    }
    assert_eq!(bad.queue.receive(), None);
    assert_eq!(good.write(0, &[1; 100]), Status::SUCCESS);
    drop((bad, good));
    target.end();
}

#[test]
fn bad_keys_ranges_and_capsules_end_one_queue_pair_and_no_other() {
    let target = target(11);
    let good = target.host(1, 32);
    let memory = HostMemory::new(&target.adapter, &[3; 4096], false);
    let kind = SglKind::Keyed { key: 0xdead, invalidate: false };
    let wrong = SglDescriptor { address: memory.address, length: 8, kind }.encode();
    for (opcode, sgl) in [
        (WRITE, wrong),
        (READ, wrong),
        (WRITE, keyed(&memory, 4000, 97, false)),
        // Not writable.
        (READ, keyed(&memory, 0, 96, false)),
    ] {
        let host = target.host(2, 32);
        host.submit(opcode, 0, sgl, &[]);
        assert_eq!(host.queue.receive(), None, "{opcode} {sgl:x?}");
        assert_eq!(good.write(0, &[1; 100]), Status::SUCCESS);
    }
    for capsule in [&[][..], &[0; 63]] {
        let host = target.host(2, 32);
        host.queue.send(capsule);
        host.queue.wait_for_end();
    }
    // What a descriptor gets wrong by itself costs the command, not the queue pair.
    for id in [0x5a, 0x00, 0x31, 0x41, 0xff] {
        let sgl = SglDescriptor { address: 0, length: 512, kind: SglKind::Other(id) }.encode();
        let (status, _) = good.command(WRITE, 0, sgl, &[]);
        assert!(!status.is_success(), "{id:#x}");
    }
    let absent = SglDescriptor::in_capsule(512).encode();
    assert_eq!(good.command(WRITE, 0, absent, &[]).0, Status::DATA_SGL_LENGTH_INVALID.dnr());
    drop(good);
    target.end();
}

#[test]
fn hosts_that_leave_with_work_under_way_leave_nothing_behind() {
    for seed in 0..4 {
        let target = target(100 + seed);
        for round in 0..6 {
            let host = target.host(1, 64);
            target.adapter.faults(|faults| faults.hold_reads = round % 2 == 0);
            let memory = target.memory(&[4; 65_536]);
            for index in 0..48u32 {
                let opcode = [WRITE, READ, HANG][index as usize % 3];
                host.submit(opcode, index * 4096, keyed(&memory, 0, 65_536, false), &[]);
            }
            match round % 3 {
                0 => host.queue.disconnect(),
                1 => drop(host),
                // The host's end is not told by anybody but the address that moves away.
                _ => {
                    host.queue.vanish();
                    target.adapter.end_all(EndCause::AddressChange);
                    wait("its end", || target.alive.load(Ordering::SeqCst) == 0);
                }
            }
            target.adapter.faults(|faults| faults.hold_reads = false);
            target.wait_for_idle();
        }
        target.end();
    }
}

#[test]
fn a_thousand_connects_leave_nothing() {
    let target = target(12);
    std::thread::scope(|scope| {
        for thread in 0..4u16 {
            let target = &target;
            scope.spawn(move || {
                for round in 0..250u16 {
                    let host = target.host(if round % 5 == 0 { 0 } else { 1 + thread }, 16);
                    if round % 10 == 0 {
                        assert_eq!(host.write(thread as u32 * 4096, &[thread as u8; 600]), Status::SUCCESS);
                    }
                }
            });
        }
    });
    target.end();
}

#[test]
fn a_device_that_goes_away_takes_its_connections_and_the_port_comes_back() {
    let target = target(13);
    let hosts: Vec<_> = (1..5).map(|qid| target.host(qid, 32)).collect();
    target.adapter.remove_device();
    hosts.iter().for_each(|host| host.queue.wait_for_end());
    drop(hosts);
    wait("everything on the device to be destroyed", || {
        let Counts { domains, regions, cqs, srqs, qps, .. } = target.adapter.counts();
        (domains, regions, cqs, srqs, qps) == (0, 0, 0, 0, 0)
    });
    wait("the port to listen again", || target.connect(1, 32).is_ok());
    let host = target.host(1, 32);
    assert_eq!(host.write(0, &[1; 5000]), Status::SUCCESS);
    assert_eq!(host.read(0, 5000), [1; 5000]);
    drop(host);
    target.end();
}

#[test]
fn random_work_under_random_faults_is_right_or_ends() {
    for seed in 0..8u64 {
        let target = target(1000 + seed);
        let faulty = seed % 2 == 1;
        target.adapter.faults(|faults| faults.failing_per_mille = if faulty { 3 } else { 0 });
        std::thread::scope(|scope| {
            for thread in 0..3usize {
                let target = &target;
                scope.spawn(move || {
                    let mut lives = 0;
                    for round in 0..6 {
                        let Some(host) = target.try_host(thread as u16 + 1, 16) else { continue };
                        lives += usize::from(random_work(&host, thread, round).is_some());
                    }
                    assert!(faulty || lives == 6);
                });
            }
        });
        target.adapter.faults(|faults| faults.failing_per_mille = 0);
        target.end();
    }
}

/// Writes at depth in every form, reads back and compares; none when the queue pair ended on the way.
fn random_work(host: &Host<'_>, thread: usize, round: usize) -> Option<()> {
    let depth = usize::from(host.entries) - 1;
    let base = thread << 20;
    let lens: Vec<usize> = (0..depth).map(|n| 1 + (n * 7919 + round * 104_729) % 20_000).collect();
    let place = |n: usize| (base + n * 20_000) as u32;
    let written: Vec<_> = (0..depth).map(|n| pattern(n * 100 + round, lens[n])).collect();
    let memories: Vec<_> = written.iter().map(|bytes| host.target.memory(bytes)).collect();
    for n in 0..depth {
        let len = lens[n];
        if len <= IN_CAPSULE && n % 2 == 0 {
            host.submit(WRITE, place(n), SglDescriptor::in_capsule(len as u32).encode(), &written[n]);
        } else {
            host.submit(WRITE, place(n), keyed(&memories[n], 0, len as u32, n % 3 == 0), &[]);
        }
    }
    for _ in 0..depth {
        assert_eq!(status(&host.queue.receive()?), Status::SUCCESS);
        host.queue.post_receives(1);
    }
    let back: Vec<_> = lens.iter().map(|len| host.target.memory(&vec![0; *len])).collect();
    for n in 0..depth {
        host.submit(READ, place(n), keyed(&back[n], 0, lens[n] as u32, n % 2 == 0), &[]);
    }
    for _ in 0..depth {
        assert_eq!(status(&host.queue.receive()?), Status::SUCCESS);
        host.queue.post_receives(1);
    }
    for n in 0..depth {
        assert!(back[n].bytes() == written[n], "thread {thread}, round {round}, command {n}");
    }
    Some(())
}

#[test]
fn a_queue_pair_that_is_closed_here_ends_even_when_its_host_is_silent() {
    let mut target = target(14);
    let host = target.host(1, 8);
    host.queue.vanish();
    // As the keep alive does it: nothing on the queue pair notices that its host is gone.
    target.mailbox.send(|reactor| reactor.stop());
    target.thread.take().unwrap().join().unwrap();
    wait("its end", || target.adapter.counts().qps == 0);
    assert_eq!(CloseReason::Drained.to_string(), "target is stopping");
}
