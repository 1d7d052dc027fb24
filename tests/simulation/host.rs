//! A simulated host: sessions with a controller, random commands on its queues, and an end of every kind.

use super::{
    FAULTY, Random, SUBSYSTEM, World,
    oracle::{BLOCK, Ended, data_of},
    queue::{Queue, Who},
};
use nvme::{AdminOpcode, IoCommand, IoOpcode, Lba, Nsid, Sqe, property};
use reactor::Signal;
use std::{cell::Cell, rc::Rc, time::Duration};

/// Blocks of a namespace.
pub const BLOCKS: u64 = 128;

/// One host, from its first Connect to its last farewell.
pub async fn live(world: Rc<World>, number: u64, mut random: Random) {
    let host = format!("nqn.2026-12.io.weft:host{}", "x".repeat(number as usize));
    for _ in 0..=random.below(2) {
        let who = Who {
            subsystem: SUBSYSTEM,
            host: host.clone(),
            kato_ms: random.of(&[0, 1000, 5000]),
            controller: 0xffff,
        };
        if random.one_in(8) {
            discover(&world, who, &mut random).await;
        } else {
            session(&world, who, &mut random).await;
        }
        random.pause(&world, 2_000_000).await;
    }
}

fn set_cc(value: u32) -> Sqe {
    let set = property::PropertySet {
        offset: property::CC,
        size: property::PropertySize::Four,
        value: value.into(),
    };
    set.encode()
}

fn get_csts() -> Sqe {
    property::PropertyGet { offset: property::CSTS, size: property::PropertySize::Four }.encode()
}

async fn discover(world: &Rc<World>, who: Who, random: &mut Random) {
    let who = Who { subsystem: "nqn.2014-08.org.nvmexpress.discovery", ..who };
    let Some((admin, _)) = Queue::connect(world, &who, 0, 32, random.fork()).await else { return };
    admin.execute(set_cc(0x0046_0001), Vec::new(), 0).await;
    for _ in 0..random.below(5) {
        let mut log = Sqe::new(AdminOpcode::GetLogPage.code());
        log.set_cdw(10, 0x70 | 255 << 16);
        admin.execute(log, Vec::new(), 1024).await;
        random.pause(world, 100_000).await;
    }
    admin.close();
    admin.end().await;
}

async fn session(world: &Rc<World>, mut who: Who, random: &mut Random) {
    let Some((admin, controller)) = Queue::connect(world, &who, 0, 32, random.fork()).await else { return };
    who.controller = controller;
    if random.one_in(10) {
        return leave(&admin, &[]).await;
    }
    admin.execute(set_cc(0x0046_0001), Vec::new(), 0).await;
    let mut queues = Vec::new();
    for qid in 1..=1 + random.below(3) as u16 {
        let entries = random.of(&[2, 4, 16, 33]);
        if let Some((queue, _)) = Queue::connect(world, &who, qid, entries, random.fork()).await {
            queues.push(queue);
        }
    }
    let lanes = Lanes::start(&queues, random);
    for _ in 0..random.below(4) {
        // They wait for events until they are aborted or the queue ends.
        drop(admin.submit(Sqe::new(AdminOpcode::AsyncEventRequest.code()), Vec::new(), 0, false));
    }
    for _ in 0..random.below(40) {
        random.pause(world, 300_000).await;
        if admin_command(&admin, random).await.is_none() {
            break;
        }
    }
    end(&admin, &queues, &lanes, &who, random).await;
}

async fn admin_command(admin: &Queue, random: &mut Random) -> Option<()> {
    use AdminOpcode as A;
    let opcode =
        random.of(&[A::Identify, A::GetLogPage, A::Abort, A::GetFeatures, A::SetFeatures, A::KeepAlive]);
    let mut sqe = Sqe::new(opcode.code());
    let mut wanted = 0;
    match opcode {
        A::Identify => {
            sqe.set_nsid(Nsid(random.below(4) as u32));
            sqe.set_cdw(10, random.of(&[0, 1, 2, 3, 5, 6, 0x1c, 0x77]));
            wanted = 4096;
        }
        A::GetLogPage => {
            sqe.set_nsid(Nsid::ALL);
            sqe.set_cdw(10, random.of(&[0, 1, 2, 3, 4, 5, 12, 0x70]) | 127 << 16);
            wanted = 512;
        }
        A::Abort => sqe.set_cdw(10, random.below(4) as u32 | (random.below(64) as u32) << 16),
        A::GetFeatures => sqe.set_cdw(10, random.below(0x20) as u32),
        A::SetFeatures => {
            sqe.set_cdw(10, random.of(&[2, 4, 7, 8, 11]));
            sqe.set_cdw(11, random.of(&[0, 1, 0x0003_0003, 0x200]));
        }
        _ => {}
    }
    admin.execute(sqe, Vec::new(), wanted).await.map(drop)
}

/// The end of a session, one of many.
async fn end(admin: &Rc<Queue>, queues: &[Rc<Queue>], lanes: &Lanes, who: &Who, random: &mut Random) {
    let world = &admin.world;
    match random.below(7) {
        // In order: everything answered, then a shutdown.
        0 => {
            lanes.finish().await;
            admin.execute(set_cc(0x0046_4001), Vec::new(), 0).await;
            for _ in 0..1000 {
                let Some((cqe, _)) = admin.execute(get_csts(), Vec::new(), 0).await else { break };
                if cqe.result() >> 2 & 3 == 2 {
                    break;
                }
                random.pause(world, 10_000_000).await;
            }
        }
        // A controller reset in the midst of it, and on with the same controller.
        1 => {
            admin.execute(set_cc(0x0046_0000), Vec::new(), 0).await;
            for queue in queues {
                queue.end().await;
            }
            lanes.finish().await;
            admin.execute(set_cc(0x0046_0001), Vec::new(), 0).await;
            if let Some((again, _)) = Queue::connect(world, who, 1, 16, random.fork()).await {
                let lanes = Lanes::start(std::slice::from_ref(&again), random);
                lanes.finish().await;
                again.close();
                again.end().await;
            }
        }
        // Silence, until keep alive ends it.
        2 if who.kato_ms > 0 => {
            lanes.finish().await;
            admin.end().await;
        }
        // What no host may do.
        3 => {
            for queue in queues {
                queue.violate();
                queue.end().await;
            }
        }
        // Promised data that never comes.
        4 => {
            for queue in queues {
                let (nsid, lba) = (1, random.below(BLOCKS));
                let ticket = world.oracle.borrow_mut().begin(nsid, lba, 1, false);
                let sqe = IoCommand::encode(IoOpcode::Write, Nsid(nsid), Lba(lba), 1, false);
                drop(queue.submit(sqe, data_of(&ticket), 0, true));
                world.oracle.borrow_mut().end(ticket, Ended::Lost);
                queue.end().await;
            }
        }
        // The I/O queues go first, or everything at once.
        5 => queues.iter().for_each(|queue| queue.close()),
        _ => {}
    }
    leave(admin, queues).await;
    lanes.finish().await;
}

async fn leave(admin: &Queue, queues: &[Rc<Queue>]) {
    admin.close();
    for queue in queues {
        // Ended by the controller, which has lost its admin queue.
        queue.end().await;
    }
    admin.end().await;
}

/// The commands of a session's I/O queues: each lane has one in flight.
struct Lanes(Rc<(Cell<usize>, Signal)>);

impl Lanes {
    fn start(queues: &[Rc<Queue>], random: &mut Random) -> Lanes {
        let running = Rc::new((Cell::new(0), Signal::new()));
        for queue in queues {
            for _ in 0..1 + random.below(queue.depth.into()) {
                let (running, queue, mut random) = (running.clone(), queue.clone(), random.fork());
                running.0.set(running.0.get() + 1);
                queue.world.reactor.clone().spawn(async move {
                    for _ in 0..random.below(24) {
                        random.pause(&queue.world, 200_000).await;
                        if queue.has_ended() || io_command(&queue, &mut random).await.is_none() {
                            break;
                        }
                    }
                    running.0.set(running.0.get() - 1);
                    running.1.notify();
                });
            }
        }
        Lanes(running)
    }

    async fn finish(&self) {
        self.0.1.wait_for(|| (self.0.0.get() == 0).then_some(())).await;
    }
}

async fn io_command(queue: &Queue, random: &mut Random) -> Option<()> {
    let nsid = random.of(&[1, 1, 2, FAULTY]);
    let blocks = random.of(&[1, 1, 2, 8, 9, 32, 128]);
    let lba = random.below(BLOCKS + 1 - u64::from(blocks));
    match random.below(20) {
        0..7 => read(queue, nsid, lba, blocks).await,
        7..14 => write(queue, nsid, lba, blocks, random.one_in(8)).await,
        14 => zero(queue, nsid, lba, blocks).await,
        15 => deallocate(queue, nsid, lba, blocks).await,
        16 => compare(queue, nsid, lba, blocks).await,
        17 => {
            let mut sqe = Sqe::new(IoOpcode::Flush.code());
            sqe.set_nsid(Nsid(nsid));
            queue.execute(sqe, Vec::new(), 0).await.map(drop)
        }
        18 => must_fail(queue, IoCommand::encode(IoOpcode::Read, Nsid(nsid), Lba(BLOCKS), 1, false)).await,
        _ => must_fail(queue, IoCommand::encode(IoOpcode::Read, Nsid(77), Lba(0), 1, false)).await,
    }
}

async fn must_fail(queue: &Queue, sqe: Sqe) -> Option<()> {
    let (cqe, data) = queue.execute(sqe, Vec::new(), BLOCK).await?;
    assert!(!cqe.status().is_success() && data.is_empty(), "{sqe:?}: {cqe:?}");
    Some(())
}

async fn read(queue: &Queue, nsid: u32, lba: u64, blocks: u32) -> Option<()> {
    let since = queue.world.oracle.borrow_mut().tick();
    let sqe = IoCommand::encode(IoOpcode::Read, Nsid(nsid), Lba(lba), blocks, false);
    let (cqe, data) = queue.execute(sqe, Vec::new(), blocks as usize * BLOCK).await?;
    if succeeded(nsid, &cqe) {
        queue.world.oracle.borrow_mut().check(nsid, lba, since, &data);
    }
    Some(())
}

/// Only a faulty namespace may fail a right command.
fn succeeded(nsid: u32, cqe: &nvme::Cqe) -> bool {
    assert!(cqe.status().is_success() || nsid == FAULTY, "namespace {nsid}: {cqe:?}");
    cqe.status().is_success()
}

async fn write(queue: &Queue, nsid: u32, lba: u64, blocks: u32, fua: bool) -> Option<()> {
    let ticket = queue.world.oracle.borrow_mut().begin(nsid, lba, blocks, false);
    let sqe = IoCommand::encode(IoOpcode::Write, Nsid(nsid), Lba(lba), blocks, fua);
    ended(queue, ticket, queue.execute(sqe, data_of(&ticket), 0).await)
}

async fn zero(queue: &Queue, nsid: u32, lba: u64, blocks: u32) -> Option<()> {
    let ticket = queue.world.oracle.borrow_mut().begin(nsid, lba, blocks, true);
    let sqe = IoCommand::encode(IoOpcode::WriteZeroes, Nsid(nsid), Lba(lba), blocks, false);
    ended(queue, ticket, queue.execute(sqe, Vec::new(), 0).await)
}

async fn deallocate(queue: &Queue, nsid: u32, lba: u64, blocks: u32) -> Option<()> {
    let ticket = queue.world.oracle.borrow_mut().begin(nsid, lba, blocks, true);
    let mut sqe = Sqe::new(IoOpcode::DatasetManagement.code());
    sqe.set_nsid(Nsid(nsid));
    sqe.set_cdw(11, 1 << 2);
    let mut range = vec![0; 16];
    range[4..8].copy_from_slice(&blocks.to_le_bytes());
    range[8..].copy_from_slice(&lba.to_le_bytes());
    ended(queue, ticket, queue.execute(sqe, range, 0).await)
}

fn ended(queue: &Queue, ticket: super::oracle::Ticket, answer: Option<super::queue::Answer>) -> Option<()> {
    let how = match &answer {
        None => Ended::Lost,
        Some((cqe, _)) if succeeded(ticket.nsid, cqe) => Ended::Acknowledged,
        Some(_) => Ended::Failed,
    };
    queue.world.oracle.borrow_mut().end(ticket, how);
    answer.map(drop)
}

/// Compare with zeroes: equal means what a read of zeroes means.
async fn compare(queue: &Queue, nsid: u32, lba: u64, blocks: u32) -> Option<()> {
    let since = queue.world.oracle.borrow_mut().tick();
    let zeroes = vec![0; blocks as usize * BLOCK];
    let sqe = IoCommand::encode(IoOpcode::Compare, Nsid(nsid), Lba(lba), blocks, false);
    let (cqe, _) = queue.execute(sqe, zeroes.clone(), 0).await?;
    if cqe.status().is_success() {
        queue.world.oracle.borrow_mut().check(nsid, lba, since, &zeroes);
    }
    Some(())
}

/// Reads everything once more: what was acknowledged is there, when nobody writes any more.
pub async fn look_back(world: &Rc<World>, mut random: Random) {
    let who =
        Who { subsystem: SUBSYSTEM, host: "nqn.2026-12.io.weft:last".into(), kato_ms: 0, controller: 0xffff };
    let (admin, controller) =
        Queue::connect(world, &who, 0, 32, random.fork()).await.expect("a free target admits a host");
    admin.execute(set_cc(0x0046_0001), Vec::new(), 0).await.expect("an enabled controller");
    let who = Who { controller, ..who };
    let (queue, _) = Queue::connect(world, &who, 1, 16, random.fork()).await.expect("an I/O queue");
    for nsid in [1, 2] {
        for lba in 0..BLOCKS {
            read(&queue, nsid, lba, 1).await.expect("an answer");
        }
    }
    leave(&admin, &[queue]).await;
    world.reactor.sleep(Duration::from_millis(1)).await;
}
