//! The other end: a host's queue pairs and its memory, for tests to drive from a thread of their own.

use super::{Event, Software, state::IdState};
use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

/// How long a host waits for anything: only a test that fails waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// What arrived at a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The key that was invalidated with it.
    pub invalidated: Option<u32>,
}

/// A connection was rejected, with this private data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub Vec<u8>);

pub(super) struct HostState {
    pub(super) id: u64,
    pub(super) answer: Option<Result<Vec<u8>, Vec<u8>>>,
    pub(super) receives: usize,
    pub(super) outbound: VecDeque<Vec<u8>>,
    pub(super) responses: VecDeque<Response>,
    pub(super) ended: bool,
    pub(super) vanished: bool,
}

pub(super) struct HostRegion {
    pub(super) address: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) writable: bool,
    pub(super) valid: bool,
}

/// Registered memory of a host.
pub struct HostMemory {
    adapter: Software,
    /// The key to it.
    pub key: u32,
    /// Its address.
    pub address: u64,
    /// Its length.
    pub len: usize,
}

impl HostMemory {
    /// Registers a copy of `bytes`; the target may write to it when it is `writable`.
    pub fn new(adapter: &Software, bytes: &[u8], writable: bool) -> HostMemory {
        let mut state = adapter.fabric.lock();
        let key = state.new_key() as u32;
        let address = 0x7f00_0000_0000 + u64::from(key) * 0x1000_0000 + 8;
        let region = HostRegion { address, bytes: bytes.to_vec(), writable, valid: true };
        state.host_memory.insert(key, region);
        HostMemory { adapter: adapter.clone(), key, address, len: bytes.len() }
    }

    /// What is there now.
    pub fn bytes(&self) -> Vec<u8> {
        self.adapter.fabric.lock().host_memory[&self.key].bytes.clone()
    }

    /// Whether its key still works.
    pub fn is_valid(&self) -> bool {
        self.adapter.fabric.lock().host_memory[&self.key].valid
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        self.adapter.fabric.lock().host_memory.remove(&self.key);
    }
}

/// A host's queue pair.
pub struct HostQueue {
    adapter: Software,
    key: u64,
    /// The private data of the reply.
    pub reply: Vec<u8>,
}

impl HostQueue {
    /// Connects.
    pub fn connect(
        adapter: &Software,
        address: SocketAddr,
        private_data: &[u8],
        host_serves: u8,
    ) -> Result<HostQueue, Refused> {
        let fabric = &adapter.fabric;
        let mut state = fabric.lock();
        let port = state.ids.values().find(|id| id.listens && id.local == address && !id.failed);
        let Some(channel) = port.map(|id| id.channel) else { return Err(Refused(Vec::new())) };
        let (id, key) = (state.new_key(), state.new_key());
        let peer = SocketAddr::from(([127, 0, 0, 2], 1024 + (key % 60_000) as u16));
        let host = HostState {
            id,
            answer: None,
            receives: 0,
            outbound: VecDeque::new(),
            responses: VecDeque::new(),
            ended: false,
            vanished: false,
        };
        state.hosts.insert(key, host);
        let request = IdState {
            listens: false,
            peer,
            private_data: private_data.to_vec(),
            host_serves,
            host: Some(key),
            ..IdState::listening(address, channel)
        };
        state.ids.insert(id, request);
        state.tell(channel, Event::Request(id));
        fabric.changed.notify_all();
        drop(state);
        let mut queue = HostQueue { adapter: adapter.clone(), key, reply: Vec::new() };
        queue.reply = queue.wait_for(|host| host.answer.clone()).map_err(Refused)?;
        Ok(queue)
    }

    fn wait_for<T>(&self, mut find: impl FnMut(&mut HostState) -> Option<T>) -> T {
        let fabric = &self.adapter.fabric;
        let until = Instant::now() + PATIENCE;
        let mut state = fabric.lock();
        loop {
            let host = state.hosts.get_mut(&self.key).expect("a queue lives as long as its handle");
            if let Some(found) = find(host) {
                return found;
            }
            assert!(Instant::now() < until, "a host waited for {PATIENCE:?}: {:?}", state.violations);
            state = fabric
                .changed
                .wait_timeout(state, Duration::from_secs(1))
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .0;
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut HostState) -> T) -> T {
        let mut state = self.adapter.fabric.lock();
        let result = act(state.hosts.get_mut(&self.key).expect("a queue lives as long as its handle"));
        drop(state);
        self.adapter.fabric.changed.notify_all();
        result
    }

    /// Posts receives.
    pub fn post_receives(&self, count: usize) {
        self.with(|host| host.receives += count);
    }

    /// Sends a capsule.
    pub fn send(&self, bytes: &[u8]) {
        self.with(|host| host.outbound.push_back(bytes.to_vec()));
    }

    /// The next response; none when the connection has ended.
    pub fn receive(&self) -> Option<Response> {
        self.wait_for(|host| match host.responses.pop_front() {
            Some(response) => Some(Some(response)),
            None => host.ended.then_some(None),
        })
    }

    /// A response that is here already.
    pub fn try_receive(&self) -> Option<Response> {
        self.with(|host| host.responses.pop_front())
    }

    /// Capsules that the target has not taken.
    pub fn unsent(&self) -> usize {
        self.with(|host| host.outbound.len())
    }

    /// Waits until the target has ended the connection.
    pub fn wait_for_end(&self) {
        self.wait_for(|host| host.ended.then_some(()));
    }

    /// Whether the connection has ended.
    pub fn has_ended(&self) -> bool {
        self.with(|host| host.ended)
    }

    /// Is never heard of again, and answers nothing.
    pub fn vanish(&self) {
        self.with(|host| {
            host.vanished = true;
            host.outbound.clear();
        });
    }

    /// Disconnects.
    pub fn disconnect(&self) {
        let mut state = self.adapter.fabric.lock();
        let Some(host) = state.hosts.get_mut(&self.key) else { return };
        let (id, told) = (host.id, host.ended || host.vanished);
        host.ended = true;
        host.outbound.clear();
        if !told {
            state.host_left(id);
        }
        drop(state);
        self.adapter.fabric.changed.notify_all();
    }
}

impl Drop for HostQueue {
    fn drop(&mut self) {
        self.disconnect();
        self.adapter.fabric.lock().hosts.remove(&self.key);
    }
}
