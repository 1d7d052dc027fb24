//! NVMe/RDMA through the whole pipeline, over an adapter in memory: there is no RDMA where these tests run. The host's side is written
//! by hand, byte by byte.

use crate::host::pattern;
use crate::host::target::ONE_NQN;
use std::{
    cell::Cell,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use transports::rdma::{
    Port, Rdma,
    software::{Counts, HostMemory, HostQueue, Response, Software},
};
use weft::{
    config::{Config, TransportKind},
    daemon::Daemon,
    local, queue_pair,
    target::BoundPort,
};

const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:7e57ab1e-0000-4000-8000-000000000001";
const IN_CAPSULE: usize = 4096;

struct Target {
    daemon: Daemon,
    adapter: Software,
    address: SocketAddr,
    file: std::path::PathBuf,
}

impl Target {
    fn start(limits: &str) -> Target {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let file = std::env::temp_dir().join(format!("weft-rdma-{}-{number}", std::process::id()));
        let text = format!(
            "[reactors]\ncount = 2\n[limits]\nin_capsule = \"4 KiB\"\n{limits}\n[[port]]\nid = 1\ntransport = \"tcp\"\naddress = \
             \"127.0.0.1:0\"\n[[subsystem]]\nnqn = \"{ONE_NQN}\"\nallow_any_host = true\n[[subsystem.namespace]]\nnsid = 1\nbackend = \
             \"memory\"\nsize = \"16 MiB\"\nlba_size = 4096\n[[subsystem.namespace]]\nnsid = 2\nbackend = \"file\"\nsize = \"16 \
             MiB\"\nlba_size = 4096\npath = \"{}\"\n",
            file.display()
        );
        let loaded = Config::parse(&text, "test").unwrap_or_else(|error| panic!("{error}"));
        let daemon = Daemon::start(&loaded.config).unwrap_or_else(|error| panic!("{error}"));
        let (adapter, address) = (Software::new(number.into()), SocketAddr::from(([127, 0, 0, 1], 4420)));
        let listening = Port::listen(adapter.clone(), address).expect("the address is free");
        let port = Arc::new(BoundPort { id: 1, transport: TransportKind::Rdma, address, discovery: false });
        daemon.threads[0].mailbox.send(move |reactor| {
            let local = local::current().expect("the reactor serves");
            reactor.spawn(queue_pair::serve_port::<Rdma<Software>>(local, port, listening));
        });
        Target { daemon, adapter, address, file }
    }

    fn copied(&self) -> u64 {
        self.daemon.threads.iter().map(|thread| thread.stats.copied_bytes.get()).sum()
    }

    fn memory(&self, bytes: &[u8]) -> HostMemory {
        HostMemory::new(&self.adapter, bytes, true)
    }

    /// Stops and counts to zero.
    fn stop(self) {
        self.daemon.target.stop();
        self.daemon.join().expect("it ends");
        let _ = std::fs::remove_file(&self.file);
        wait("all objects to be destroyed", || self.adapter.counts() == Counts::default());
        assert_eq!(self.adapter.violations(), Vec::<String>::new());
    }

    fn open(&self, qid: u16, entries: u16) -> Result<Queue<'_>, Vec<u8>> {
        let mut request = [0; 32];
        request[2..4].copy_from_slice(&qid.to_le_bytes());
        request[4..6].copy_from_slice(&entries.to_le_bytes());
        request[6..8].copy_from_slice(&(entries - 1).to_le_bytes());
        let queue = HostQueue::connect(&self.adapter, self.address, &request, 16).map_err(|r| r.0)?;
        queue.post_receives(entries.into());
        Ok(Queue { target: self, queue, next: Cell::new(0) })
    }

    /// An admin queue of an enabled controller, and its identifier.
    fn admin(&self, keep_alive_ms: u32) -> (Queue<'_>, u16) {
        let admin = self.open(0, 32).expect("a connection");
        let connected = admin.connect(0, 32, 0xffff, keep_alive_ms);
        assert_eq!(connected.status, 0);
        // CC: enabled, entry sizes 64 and 16.
        let mut set = fabrics(0);
        set[44..48].copy_from_slice(&0x14u32.to_le_bytes());
        set[48..52].copy_from_slice(&0x0046_0001u32.to_le_bytes());
        assert_eq!(admin.execute(set, &[]).status, 0);
        (admin, connected.dw0 as u16)
    }

    fn io(&self, qid: u16, controller: u16) -> Queue<'_> {
        let io = self.open(qid, 64).expect("a connection");
        assert_eq!(io.connect(qid, 64, controller, 0).status, 0);
        io
    }
}

fn wait(what: &str, done: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < until, "waited for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

struct Queue<'a> {
    target: &'a Target,
    queue: HostQueue,
    next: Cell<u16>,
}

/// What a completion says.
struct Completed {
    status: u16,
    dw0: u32,
    invalidated: Option<u32>,
}

fn fabrics(kind: u8) -> [u8; 64] {
    let mut sqe = [0; 64];
    (sqe[0], sqe[1], sqe[4], sqe[39]) = (0x7f, 0x40, kind, 0x40);
    sqe
}

fn command(opcode: u8, nsid: u32) -> [u8; 64] {
    let mut sqe = [0; 64];
    (sqe[0], sqe[1], sqe[39]) = (opcode, 0x40, 0x40);
    sqe[4..8].copy_from_slice(&nsid.to_le_bytes());
    sqe
}

/// Puts a keyed descriptor into a command.
fn with_memory(mut sqe: [u8; 64], memory: &HostMemory, invalidate: bool) -> [u8; 64] {
    sqe[24..32].copy_from_slice(&memory.address.to_le_bytes());
    sqe[32..35].copy_from_slice(&(memory.len as u32).to_le_bytes()[..3]);
    sqe[35..39].copy_from_slice(&memory.key.to_le_bytes());
    sqe[39] = if invalidate { 0x4f } else { 0x40 };
    sqe
}

fn blocks(mut sqe: [u8; 64], lba: u64, bytes: usize) -> [u8; 64] {
    sqe[40..48].copy_from_slice(&lba.to_le_bytes());
    sqe[48..50].copy_from_slice(&((bytes / 4096 - 1) as u16).to_le_bytes());
    sqe
}

impl Queue<'_> {
    fn submit(&self, mut sqe: [u8; 64], in_capsule: &[u8]) {
        let cid = self.next.get();
        self.next.set(cid.wrapping_add(1));
        sqe[2..4].copy_from_slice(&cid.to_le_bytes());
        self.queue.send(&[&sqe[..], in_capsule].concat());
    }

    fn completed(&self) -> Completed {
        let Response { bytes, invalidated } = self.queue.receive().expect("the queue pair lives");
        self.queue.post_receives(1);
        let status = u16::from_le_bytes([bytes[14], bytes[15]]) >> 1 & 0x7ff;
        let dw0 = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Completed { status, dw0, invalidated }
    }

    fn execute(&self, sqe: [u8; 64], in_capsule: &[u8]) -> Completed {
        self.submit(sqe, in_capsule);
        self.completed()
    }

    fn connect(&self, qid: u16, entries: u16, controller: u16, keep_alive_ms: u32) -> Completed {
        let mut data = [0; 1024];
        data[..16].fill(9);
        data[16..18].copy_from_slice(&controller.to_le_bytes());
        data[256..256 + ONE_NQN.len()].copy_from_slice(ONE_NQN.as_bytes());
        data[512..512 + HOST_NQN.len()].copy_from_slice(HOST_NQN.as_bytes());
        let memory = self.target.memory(&data);
        let mut sqe = with_memory(fabrics(1), &memory, true);
        sqe[42..44].copy_from_slice(&qid.to_le_bytes());
        sqe[44..46].copy_from_slice(&(entries - 1).to_le_bytes());
        sqe[48..52].copy_from_slice(&keep_alive_ms.to_le_bytes());
        self.execute(sqe, &[])
    }

    fn identify(&self, cns: u8) -> Vec<u8> {
        let memory = self.target.memory(&[0xee; 4096]);
        let mut sqe = with_memory(command(6, 0), &memory, true);
        sqe[40] = cns;
        let completed = self.execute(sqe, &[]);
        assert_eq!((completed.status, completed.invalidated), (0, Some(memory.key)));
        memory.bytes()
    }

    fn read(&self, nsid: u32, lba: u64, len: usize) -> Vec<u8> {
        let memory = self.target.memory(&vec![0; len]);
        let sqe = with_memory(blocks(command(2, nsid), lba, len), &memory, true);
        assert_eq!(self.execute(sqe, &[]).status, 0);
        memory.bytes()
    }

    fn write(&self, nsid: u32, lba: u64, bytes: &[u8]) {
        let memory = self.target.memory(bytes);
        let sqe = with_memory(blocks(command(1, nsid), lba, bytes.len()), &memory, true);
        assert_eq!(self.execute(sqe, &[]).status, 0);
    }
}

#[test]
fn a_controller_says_what_rdma_can() {
    let target = Target::start("");
    let (admin, _) = target.admin(0);
    let page = admin.identify(1);
    let word = |at: usize| u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]]);
    assert_eq!(word(536), 1 | 1 << 2 | 1 << 20, "SGLS: any alignment, keyed, offsets in the capsule");
    assert_eq!(word(1792), (64 + IN_CAPSULE as u32) / 16, "IOCCSZ");
    assert_eq!((word(1796), page[1800], page[1801], page[1803]), (1, 0, 0, 16), "IORCSZ, ICDOFF, MSDBD");
    drop(admin);
    target.stop();
}

#[test]
fn data_is_written_read_and_compared_without_a_copy_where_there_need_be_none() {
    let target = Target::start("");
    let (admin, controller) = target.admin(0);
    let io = target.io(1, controller);
    for nsid in [1, 2] {
        let before = target.copied();
        for (round, len) in [4096, 64 << 10, 1 << 20].into_iter().enumerate() {
            let bytes = pattern(round as u64 + 1, len);
            io.write(nsid, 16, &bytes);
            assert!(io.read(nsid, 16, len) == bytes, "{len} bytes of namespace {nsid}");
        }
        let small = pattern(77, 4096);
        let mut sqe = blocks(command(1, nsid), 3, 4096);
        sqe[32..36].copy_from_slice(&4096u32.to_le_bytes());
        sqe[39] = 0x01;
        assert_eq!(io.execute(sqe, &small).status, 0);
        assert!(io.read(nsid, 3, 4096) == small);
        let copied = target.copied() - before;
        // A file's bytes go from the buffer that the kernel filled to the adapter as they are; a memory namespace is not registered.
        let read = (4096 + (64 << 10) + (1 << 20) + 4096) as u64;
        assert_eq!(copied, if nsid == 1 { read } else { 0 }, "bytes copied for namespace {nsid}");
    }
    drop((admin, io));
    target.stop();
}

#[test]
fn many_commands_at_once_on_many_queues() {
    let target = Target::start("");
    let (admin, controller) = target.admin(0);
    std::thread::scope(|scope| {
        for qid in 1..=4u16 {
            let target = &target;
            scope.spawn(move || {
                let io = target.io(qid, controller);
                for round in 0..5u64 {
                    let written: Vec<_> =
                        (0..48).map(|n| pattern(round * 100 + n + u64::from(qid), 8192)).collect();
                    let memories: Vec<_> = written.iter().map(|bytes| target.memory(bytes)).collect();
                    let lba = |n: usize| u64::from(qid) * 256 + n as u64 * 2;
                    for (n, memory) in memories.iter().enumerate() {
                        io.submit(with_memory(blocks(command(1, 1), lba(n), 8192), memory, n % 2 == 0), &[]);
                    }
                    memories.iter().for_each(|_| assert_eq!(io.completed().status, 0));
                    for (n, bytes) in written.iter().enumerate() {
                        assert!(
                            io.read(1, lba(n), 8192) == *bytes,
                            "queue {qid}, round {round}, command {n}"
                        );
                    }
                }
            });
        }
    });
    drop(admin);
    target.stop();
}

#[test]
fn connect_must_name_the_queue_that_was_announced() {
    let target = Target::start("");
    let (admin, controller) = target.admin(0);
    for (announced, qid, entries, at) in [(2, 3, 64, 42), (2, 2, 128, 44), (0, 1, 32, 42)] {
        let queue = target.open(announced, 64).expect("a connection");
        let refused = queue.connect(qid, entries, controller, 0);
        assert_eq!((refused.status, refused.dw0), (0x182, at), "announced {announced}, Connect says {qid}");
        drop(queue);
    }
    drop(admin);
    target.stop();
}

#[test]
fn wrong_descriptors_cost_the_command_and_not_the_queue_pair() {
    let target = Target::start("");
    let (admin, controller) = target.admin(0);
    let io = target.io(1, controller);
    let (short, long, none) = (target.memory(&[0; 512]), target.memory(&[0; 8192]), target.memory(&[]));
    for memory in [&short, &long, &none] {
        for opcode in [1, 2] {
            let refused = io.execute(with_memory(blocks(command(opcode, 1), 0, 4096), memory, false), &[]);
            assert_eq!(refused.status, 0x00f, "opcode {opcode}, {} bytes", memory.len);
        }
    }
    let mut transport = blocks(command(1, 1), 0, 4096);
    transport[32..36].copy_from_slice(&4096u32.to_le_bytes());
    transport[39] = 0x5a;
    assert_eq!(io.execute(transport, &[]).status, 0x011);
    let mut in_capsule = blocks(command(2, 1), 0, 4096);
    in_capsule[32..36].copy_from_slice(&4096u32.to_le_bytes());
    in_capsule[39] = 0x01;
    assert_eq!(io.execute(in_capsule, &[0; 4096]).status, 0x002, "a Read cannot bring data to the capsule");
    in_capsule[0] = 1;
    in_capsule[24] = 1;
    assert_eq!(io.execute(in_capsule, &[0; 4096]).status, 0x016, "beyond a capsule");
    io.write(1, 0, &[1; 4096]);
    drop((admin, io));
    target.stop();
}

#[test]
fn too_many_connections_are_rejected_and_not_ignored() {
    let target = Target::start("connections = 2");
    // Those that only knock are let in up to twice as many as may stay.
    let mut open: Vec<_> = (0..4).map(|_| target.open(0, 32).expect("room")).collect();
    assert_eq!(target.open(0, 32).err(), Some(vec![0, 0, 6, 0]), "STS 6: no resources");
    open.clear();
    wait("room for another", || target.open(0, 32).is_ok());
    target.stop();
}

#[test]
fn a_host_that_vanishes_is_reaped_by_the_keep_alive() {
    let target = Target::start("");
    let (admin, controller) = target.admin(1000);
    let io = target.io(1, controller);
    assert_eq!(target.adapter.counts().qps, 2);
    admin.queue.vanish();
    io.queue.vanish();
    wait("the keep alive to expire", || target.adapter.counts().qps == 0);
    drop((admin, io));
    let (admin, _) = target.admin(0);
    drop(admin);
    target.stop();
}

#[test]
fn a_target_that_stops_answers_what_it_has() {
    let target = Target::start("");
    let (admin, controller) = target.admin(0);
    let io = target.io(1, controller);
    io.write(2, 0, &pattern(5, 1 << 20));
    drop(admin);
    io.queue.wait_for_end();
    drop(io);
    let (admin, controller) = target.admin(0);
    let io = target.io(1, controller);
    assert!(io.read(2, 0, 1 << 20) == pattern(5, 1 << 20));
    target.daemon.target.stop();
    io.queue.wait_for_end();
    admin.queue.wait_for_end();
    drop((admin, io));
    target.stop();
}

#[test]
fn what_rdma_does_is_counted() {
    let target = Target::start("");
    let (admin, controller) = target.admin(0);
    let io = target.io(1, controller);
    let value = |name: &str| {
        let page = weft::exporter::Exporter::new(target.daemon.registry.clone()).render();
        let line = page.lines().find_map(|line| line.strip_prefix(name)).expect("it is there");
        line.trim().parse::<u64>().expect("a number")
    };
    let (reads, writes) =
        ("weft_rdma_work_requests_total{kind=\"read\"} ", "weft_rdma_work_requests_total{kind=\"write\"} ");
    let before = (value(reads), value(writes), value("weft_rdma_invalidations_total{by=\"target\"} "));
    io.write(1, 0, &[1; 8192]);
    io.read(1, 0, 8192);
    let after = (value(reads), value(writes), value("weft_rdma_invalidations_total{by=\"target\"} "));
    assert_eq!((after.0 - before.0, after.1 - before.1, after.2 - before.2), (1, 1, 2));
    assert_eq!(value("weft_rdma_queue_pairs "), 2);
    drop((admin, io));
    target.stop();
}
