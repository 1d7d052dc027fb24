//! Once a queue pair is warm, a command allocates nothing; and an idle queue pair takes little memory.
//!
//! The target runs in this process for once, so that the allocator can count what its reactor's thread does. The host runs
//! on another thread, whose allocations do not matter.

use crate::host::target::ONE_NQN;
use crate::host::{Command, Host, IoQueue, Options, pattern, run};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::mpsc,
};
use weft::{config::Config, daemon::Daemon};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
}

/// Counts what each thread allocates.
struct Counting;

#[allow(unsafe_code, reason = "the allocator trait is unsafe; every call is passed on unchanged")]
// SAFETY: all calls go to the system's allocator as they came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no cells any more; nobody asks for its count.
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        let _ = LIVE_BYTES.try_with(|n| n.set(n.get() + layout.size() as i64));
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let _ = LIVE_BYTES.try_with(|n| n.set(n.get() - layout.size() as i64));
        // SAFETY: passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn start() -> Daemon {
    let text = format!(
        "[reactors]\ncount = 1\n[[port]]\nid = 1\ntransport = \"tcp\"\naddress = \"127.0.0.1:0\"\n[[subsystem]]\nnqn = \
         \"{ONE_NQN}\"\nallow_any_host = true\n[[subsystem.namespace]]\nnsid = 1\nbackend = \"memory\"\nsize = \"16 MiB\"\n\
         lba_size = 4096\n[[subsystem.namespace]]\nnsid = 2\nbackend = \"null\"\nsize = \"16 MiB\"\nlba_size = 4096\n"
    );
    let loaded = Config::parse(&text, "test").unwrap_or_else(|error| panic!("{error}"));
    Daemon::start(&loaded.config).unwrap_or_else(|error| panic!("{error}"))
}

/// Allocations and live bytes of the reactor's thread.
fn count(daemon: &Daemon) -> (u64, i64) {
    let (sender, receiver) = mpsc::channel();
    daemon.threads[0].mailbox.send(move |_| {
        let _ = sender.send((ALLOCATIONS.get(), LIVE_BYTES.get()));
    });
    receiver.recv().expect("the reactor answers")
}

/// The count for asking itself: the message and the queue it lay in.
fn cost_of_counting(daemon: &Daemon) -> u64 {
    let first = count(daemon).0;
    count(daemon).0 - first
}

/// Reads, in-capsule writes, writes by R2T and flushes, several in flight.
async fn work(io: &IoQueue, rounds: u64) -> Result<(), crate::host::Failure> {
    let (small, large) = (pattern(1, 4096), pattern(2, 32 << 10));
    for round in 0..rounds {
        let lba = round % 1000;
        let nsid = 1 + (round % 2) as u32;
        let pending: Vec<_> = [
            io.writing(nsid, lba, &small),
            io.reading(nsid, lba, 4096),
            io.writing(nsid, lba + 8, &large),
            io.reading(nsid, lba, 32 << 10),
            Command::flush(nsid),
        ]
        .iter()
        .map(|command| io.queue.submit(command))
        .collect();
        for command in pending {
            assert!(command.done().await?.is_success());
        }
    }
    Ok(())
}

#[test]
fn a_warm_command_allocates_nothing() {
    let daemon = start();
    let address = daemon.target.ports[0].address;
    run(async {
        let host = Host::attach(address, ONE_NQN, Options::default()).await?;
        host.enable().await?;
        let io = host.io_queue(1, 64).await?;
        work(&io, 500).await?;
        let counting = cost_of_counting(&daemon);
        let before = count(&daemon).0;
        work(&io, 4000).await?;
        let after = count(&daemon).0;
        assert_eq!(after - before - counting, 0, "allocations in 20000 commands");
        Ok(())
    });
    daemon.target.stop();
    daemon.join().expect("it ends");
}

#[test]
fn an_idle_queue_pair_of_depth_128_takes_less_than_128_kib() {
    let daemon = start();
    let address = daemon.target.ports[0].address;
    run(async {
        let host = Host::attach(address, ONE_NQN, Options::default()).await?;
        host.enable().await?;
        let first = host.io_queue(1, 128).await?;
        let before = count(&daemon).1;
        let second = host.io_queue(2, 128).await?;
        let taken = count(&daemon).1 - before;
        println!("an idle queue pair of depth 128 takes {taken} bytes");
        assert!((0..128 << 10).contains(&taken), "{taken} bytes");
        drop((first, second));
        Ok(())
    });
    daemon.target.stop();
    daemon.join().expect("it ends");
}

fn size_of_future<Q: transports::QueuePair, F>(
    _: fn(std::rc::Rc<weft::queue_pair::QueuePair<Q>>, u16) -> F,
) -> usize {
    size_of::<F>()
}

#[test]
fn a_slot_stays_small() {
    use transports::{rdma, tcp::TcpQueuePair};
    let tcp = size_of_future::<TcpQueuePair, _>(weft::io::serve);
    let rdma = size_of_future::<rdma::RdmaQueuePair<rdma::RdmaCore>, _>(weft::io::serve);
    println!("a slot of an I/O queue takes {tcp} bytes over TCP, {rdma} over RDMA");
    assert!(tcp.max(rdma) <= 640, "a slot takes {tcp} or {rdma} bytes: what is held across which await?");
}
