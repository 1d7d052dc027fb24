//! A queue pair as a simulated host sees it: commands in flight, each answered exactly once or lost with the queue pair.

use super::{Random, World};
use futures::{StreamExt, channel::oneshot};
use nvme::{Cid, ControllerId, Cqe, HostId, Qid, SglDescriptor, Sqe, connect};
use reactor::Signal;
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    time::Duration,
};
use transports::loopback::{FromHost, HostEnd, ToHost};

/// Longer than anything that hangs, in made-up time.
pub const LIMIT: Duration = Duration::from_secs(300);
/// What a capsule may carry.
const IN_CAPSULE: usize = 4096;

/// An answer: the entry, and data.
pub type Answer = (Cqe, Vec<u8>);

struct Pending {
    data: Vec<u8>,
    /// Data that is asked for never comes.
    withholds: bool,
    answer: oneshot::Sender<Answer>,
}

/// A connected queue pair.
pub struct Queue {
    pub world: Rc<World>,
    pub qid: u16,
    /// Commands it may have in flight.
    pub depth: u16,
    sender: futures::channel::mpsc::UnboundedSender<FromHost>,
    pending: RefCell<BTreeMap<u16, Pending>>,
    next_cid: Cell<u16>,
    ended: Cell<bool>,
    changed: Signal,
    random: RefCell<Random>,
}

/// Who connects to what.
#[derive(Clone)]
pub struct Who {
    pub subsystem: &'static str,
    pub host: String,
    pub kato_ms: u32,
    pub controller: u16,
}

impl Queue {
    /// Connects; the queue and the controller's identifier, or nothing when the target refuses or goes.
    pub async fn connect(
        world: &Rc<World>,
        who: &Who,
        qid: u16,
        entries: u16,
        random: Random,
    ) -> Option<(Rc<Queue>, u16)> {
        let HostEnd { sender, mut receiver } = world.connector.connect().ok()?;
        let kato_ms = if qid == 0 { who.kato_ms } else { 0 };
        let mut sqe = connect::ConnectCommand::new(Qid(qid), entries.into(), kato_ms).encode();
        sqe.set_cid(Cid(0xabcd));
        let host_id = HostId([who.host.len() as u8; 16]);
        let names = (who.subsystem.parse().expect("an NQN"), who.host.parse().expect("an NQN"));
        let data = connect::ConnectData::new(host_id, ControllerId(who.controller), names.0, names.1);
        sender.unbounded_send(FromHost::Command(sqe, data.encode().to_vec())).ok()?;
        let answer =
            world.reactor.timeout(LIMIT, receiver.next()).await.expect("an answer to Connect, or an end");
        let Some(ToHost::Response(cqe, _)) = answer else {
            assert!(answer.is_none(), "{answer:?}");
            return None;
        };
        world.trace(&[1, qid.into(), cqe.status().code().into(), cqe.result()]);
        assert_eq!(cqe.cid(), Cid(0xabcd));
        if !cqe.status().is_success() {
            return None;
        }
        let queue = Rc::new(Queue {
            world: world.clone(),
            qid,
            depth: entries - 1,
            sender,
            pending: RefCell::default(),
            next_cid: Cell::new(0),
            ended: Cell::new(false),
            changed: Signal::new(),
            random: RefCell::new(random),
        });
        let pumped = queue.clone();
        world.reactor.spawn(async move {
            while let Some(message) = receiver.next().await {
                pumped.take(message);
            }
            pumped.world.trace(&[2, pumped.qid.into()]);
            pumped.ended.set(true);
            // Whoever waits for an answer learns that there will be none.
            pumped.pending.borrow_mut().clear();
            pumped.changed.notify();
        });
        Some((queue, cqe.result() as u16))
    }

    fn take(self: &Rc<Self>, message: ToHost) {
        match message {
            ToHost::Response(cqe, data) => {
                let fields =
                    [3, self.qid.into(), cqe.cid().0.into(), cqe.status().code().into(), data.len() as u64];
                self.world.trace(&fields);
                assert_eq!(cqe.qid(), Qid(self.qid));
                let pending = self.pending.borrow_mut().remove(&cqe.cid().0);
                let pending = pending.unwrap_or_else(|| panic!("{cqe:?}: answered twice, or never asked"));
                // Who asked may be gone.
                let _ = pending.answer.send((cqe, data));
            }
            ToHost::Fetch(cid, slot, len) => {
                self.world.trace(&[4, self.qid.into(), cid.0.into(), slot.into(), len as u64]);
                let mut all = self.pending.borrow_mut();
                let pending = all.get_mut(&cid.0).expect("data is asked for by commands in flight");
                if pending.withholds {
                    return;
                }
                let data = std::mem::take(&mut pending.data);
                assert_eq!(data.len(), len, "all data is asked for, once");
                let delay = Duration::from_nanos(self.random.borrow_mut().below(200_000));
                let queue = self.clone();
                self.world.reactor.spawn(async move {
                    queue.world.reactor.sleep(delay).await;
                    let _ = queue.sender.unbounded_send(FromHost::Data(slot, data));
                });
            }
        }
    }

    /// Sends a command that carries `data` or wants `wanted` bytes. The answer comes, or the queue pair ends.
    pub fn submit(
        &self,
        mut sqe: Sqe,
        data: Vec<u8>,
        wanted: usize,
        withholds: bool,
    ) -> oneshot::Receiver<Answer> {
        let (answer, receiver) = oneshot::channel();
        if self.ended.get() {
            return receiver;
        }
        let mut cid = self.next_cid.get();
        while self.pending.borrow().contains_key(&cid) {
            cid = cid.wrapping_add(1);
        }
        self.next_cid.set(cid.wrapping_add(1));
        sqe.set_cid(Cid(cid));
        let travels = !data.is_empty()
            && data.len() <= IN_CAPSULE
            && !withholds
            && self.random.borrow_mut().below(4) > 0;
        sqe.set_sgl(match travels {
            true => SglDescriptor::in_capsule(data.len() as u32),
            false => SglDescriptor::transport(data.len().max(wanted) as u32),
        });
        self.world.trace(&[5, self.qid.into(), cid.into(), sqe.opcode().into(), travels.into()]);
        let (capsule, data) = if travels { (data, Vec::new()) } else { (Vec::new(), data) };
        self.pending.borrow_mut().insert(cid, Pending { data, withholds, answer });
        let _ = self.sender.unbounded_send(FromHost::Command(sqe, capsule));
        receiver
    }

    /// Sends a command and waits; nothing when the queue pair has ended.
    pub async fn execute(&self, sqe: Sqe, data: Vec<u8>, wanted: usize) -> Option<Answer> {
        let answer = self.submit(sqe, data, wanted, false);
        let answer = self.world.reactor.timeout(LIMIT, answer).await;
        let answer =
            answer.unwrap_or_else(|| panic!("queue {}: {sqe:?} is never answered", self.qid)).ok()?;
        if answer.0.status().is_success() {
            assert_eq!(answer.1.len(), wanted, "{sqe:?}");
        }
        Some(answer)
    }

    /// Sends what no host may send.
    pub fn violate(&self) {
        let _ = self.sender.unbounded_send(FromHost::Data(self.depth + 7, vec![1; 5]));
    }

    /// Ends the connection from this side.
    pub fn close(&self) {
        self.sender.close_channel();
    }

    pub fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// Waits for the end.
    pub async fn end(&self) {
        let ended = self.changed.wait_for(|| self.ended.get().then_some(()));
        let in_time = self.world.reactor.timeout(LIMIT, ended).await;
        assert!(in_time.is_some(), "queue {} does not end", self.qid);
    }
}
