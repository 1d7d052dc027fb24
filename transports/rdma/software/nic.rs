//! The adapter at work: one thing at a time, picked at random from all that can be done.

use super::{Event, Fabric, host::Response, state::State};
use crate::rdma::adapter::{Done, Operation, PostReceive, PostSend, WorkStatus};

/// What can be done next.
#[derive(Clone, Copy)]
enum Action {
    /// The first work request of a queue pair.
    Send(u64),
    /// The first capsule of a host.
    Deliver(u64),
    /// The first completion of a queue pair's send queue goes to its completion queue.
    SendDone(u64),
    /// Likewise of its receives.
    ReceiveDone(u64),
    /// A connection is established.
    Establish(u64),
}

pub(super) fn run(fabric: &Fabric) {
    let mut state = fabric.lock();
    while !state.stopping {
        let actions = state.actions();
        if actions.is_empty() {
            state = fabric.wait(state);
            continue;
        }
        let action = actions[state.random(actions.len())];
        state.act(action);
        drop(state);
        fabric.changed.notify_all();
        state = fabric.lock();
    }
}

impl State {
    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (key, qp) in &self.qps {
            if let Some(send) = qp.sends.front()
                && self.can_do(qp.id, send)
            {
                actions.push(Action::Send(*key));
            }
            if !qp.send_done.is_empty() && (!self.faults.hold_send_completions || qp.failed) {
                actions.push(Action::SendDone(*key));
            }
            if !qp.receive_done.is_empty() {
                actions.push(Action::ReceiveDone(*key));
            }
        }
        for (key, host) in &self.hosts {
            let qp = self.ids.get(&host.id).and_then(|id| id.qp).and_then(|qp| self.qps.get(&qp));
            let ready = qp.is_some_and(|qp| {
                let shared = qp.srq.and_then(|srq| self.srqs.get(&srq));
                !qp.failed && !shared.map_or(&qp.receives, |srq| &srq.receives).is_empty()
            });
            if !host.ended && !host.outbound.is_empty() && ready {
                actions.push(Action::Deliver(*key));
            }
        }
        if !self.faults.hold_established {
            actions.extend(self.establishing.iter().map(|id| Action::Establish(*id)));
        }
        actions
    }

    fn can_do(&self, id: u64, send: &PostSend) -> bool {
        let Some(host) = self.ids.get(&id).and_then(|id| id.host).and_then(|host| self.hosts.get(&host))
        else {
            // There is nobody: the request will fail.
            return true;
        };
        match send.operation {
            _ if host.vanished => false,
            _ if host.ended => true,
            Operation::Read { .. } => !self.faults.hold_reads,
            Operation::Write { .. } => true,
            // Receiver not ready: it is tried again for ever.
            Operation::Send | Operation::SendInvalidate { .. } => host.receives > 0,
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send(qp) => self.do_send(qp),
            Action::Deliver(host) => self.deliver(host),
            Action::SendDone(qp) => {
                let done = self.qps.get_mut(&qp).and_then(|qp| qp.send_done.pop_front());
                self.complete(qp, done);
            }
            Action::ReceiveDone(qp) => {
                let done = self.qps.get_mut(&qp).and_then(|qp| qp.receive_done.pop_front());
                self.complete(qp, done);
            }
            Action::Establish(id) => {
                self.establishing.retain(|other| *other != id);
                if let Some(channel) = self.ids.get(&id).filter(|id| !id.failed).map(|id| id.channel) {
                    self.tell(channel, Event::Established(id));
                }
            }
        }
    }

    fn complete(&mut self, qp: u64, done: Option<Done>) {
        let Some((done, cq)) = done.zip(self.qps.get(&qp).map(|qp| qp.cq)) else { return };
        let done = match done.status {
            WorkStatus::Success => Done { number: qp as u32, ..done },
            // What a failed one says beyond this is garbage.
            _ => Done { number: qp as u32, len: 0xdead_beef, ..done },
        };
        let Some(cq) = self.cqs.get_mut(&cq) else { return };
        cq.done.push_back(done);
        let overflow = cq.done.len() > cq.capacity;
        if std::mem::take(&mut cq.armed) {
            cq.bell.ring();
        }
        if overflow {
            self.violation("a completion queue overflows");
        }
    }

    fn do_send(&mut self, key: u64) {
        let Some(send) = self.qps.get_mut(&key).and_then(|qp| qp.sends.pop_front()) else { return };
        let id = self.qps[&key].id;
        let host = self.ids.get(&id).and_then(|id| id.host);
        let unlucky = self.random(1000) < self.faults.failing_per_mille as usize;
        let present = host.and_then(|host| self.hosts.get(&host)).is_some_and(|host| !host.ended);
        let status = if unlucky || !present {
            WorkStatus::RetryExceeded
        } else {
            self.transfer(host.unwrap_or_default(), &send)
        };
        let Some(qp) = self.qps.get_mut(&key) else { return };
        let success = status == WorkStatus::Success;
        if send.tells || !success {
            qp.send_done.push_back(Done { id: send.id, status, ..Done::EMPTY });
        }
        if !success {
            qp.fail();
            if let Some(host) = host.and_then(|host| self.hosts.get_mut(&host)) {
                host.ended = true;
            }
            self.host_left(id);
        }
    }

    /// Moves the bytes of a work request.
    fn transfer(&mut self, host: u64, send: &PostSend) -> WorkStatus {
        let Some(memory) = self.regions.get(&send.piece.key).cloned().or_else(|| {
            self.violation("a region was deregistered under a work request");
            None
        }) else {
            return WorkStatus::LocalOperation;
        };
        let mut bytes = vec![0; send.piece.len as usize];
        match send.operation {
            Operation::Read { address, key } => {
                let Some(from) = self.host_range(key, address, bytes.len(), false) else {
                    return WorkStatus::RemoteAccess;
                };
                bytes.copy_from_slice(from);
                memory.write(send.piece.address, &bytes);
            }
            Operation::Write { address, key } => {
                memory.read(send.piece.address, &mut bytes);
                let Some(to) = self.host_range(key, address, bytes.len(), true) else {
                    return WorkStatus::RemoteAccess;
                };
                to.copy_from_slice(&bytes);
            }
            Operation::Send | Operation::SendInvalidate { .. } => {
                let mut invalidated = None;
                if let Operation::SendInvalidate { key } = send.operation {
                    if self.faults.invalidate_fails {
                        return WorkStatus::LocalOperation;
                    }
                    match self.host_memory.get_mut(&key) {
                        Some(region) if region.valid => region.valid = false,
                        _ => self.violation(format!("a key was invalidated that is not valid: {key}")),
                    }
                    invalidated = Some(key);
                }
                memory.read(send.piece.address, &mut bytes);
                let Some(host) = self.hosts.get_mut(&host) else { return WorkStatus::RetryExceeded };
                host.receives -= 1;
                host.responses.push_back(Response { bytes, invalidated });
            }
        }
        WorkStatus::Success
    }

    fn host_range(&mut self, key: u32, address: u64, len: usize, write: bool) -> Option<&mut [u8]> {
        let region = self.host_memory.get_mut(&key)?;
        let from = usize::try_from(address.checked_sub(region.address)?).ok()?;
        if !region.valid || (write && !region.writable) {
            return None;
        }
        region.bytes.get_mut(from..from.checked_add(len)?)
    }

    /// A host's SEND arrives in a receive.
    fn deliver(&mut self, host: u64) {
        let Some(state) = self.hosts.get_mut(&host) else { return };
        let Some(bytes) = state.outbound.pop_front() else { return };
        let id = state.id;
        let Some(key) = self.ids.get(&id).and_then(|id| id.qp) else { return };
        let Some(qp) = self.qps.get_mut(&key) else { return };
        let receive = match qp.srq {
            Some(srq) => self.srqs.get_mut(&srq).and_then(|srq| srq.receives.pop_front()),
            None => qp.receives.pop_front(),
        };
        let Some(receive) = receive else { return };
        let status = self.scatter(&receive, &bytes);
        let Some(qp) = self.qps.get_mut(&key) else { return };
        let len = bytes.len() as u32;
        qp.receive_done.push_back(Done { id: receive.id, status, len, number: 0 });
        if status != WorkStatus::Success {
            qp.fail();
        }
    }

    fn scatter(&mut self, receive: &PostReceive, bytes: &[u8]) -> WorkStatus {
        let mut rest = bytes;
        for piece in receive.pieces.iter().filter(|piece| piece.len > 0) {
            let (part, after) = rest.split_at(rest.len().min(piece.len as usize));
            let region = self.regions.get(&piece.key).filter(|r| r.contains(piece.address, part.len()));
            match region {
                Some(memory) => memory.write(piece.address, part),
                None => {
                    self.violation("a receive names memory that is not registered");
                    return WorkStatus::LocalOperation;
                }
            }
            rest = after;
        }
        // Too long for the receive: a local length error.
        if rest.is_empty() { WorkStatus::Success } else { WorkStatus::Other(1) }
    }
}
