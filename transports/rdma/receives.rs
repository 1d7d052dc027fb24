//! Receives: where capsules land. Each has a place for the SQE and a data buffer of its own for in-capsule data, which goes to the
//! backend as it is, without a copy.

use super::{
    adapter::{Piece, PostReceive},
    flow::{Work, WorkId},
};
use nvme::Sqe;
use reactor::{BufferPool, DataBuffer, DeviceMemory, PAGE, Reactor};
use std::io;

/// The owner of receives that are shared: nobody, before a completion says whose they are.
pub const SHARED: u32 = super::flow::MAX_OWNERS - 1;

/// The receives of one queue.
pub struct Receives {
    pool: BufferPool,
    owner: u32,
    key: u32,
    sqes: DataBuffer,
    /// The in-capsule buffers of receives that are posted or being looked at.
    pages: Vec<Option<DataBuffer>>,
    in_capsule: usize,
    /// To be posted with the next flush.
    due: Vec<PostReceive>,
    /// Without a buffer: posted again as soon as one comes back.
    short: Vec<u16>,
}

/// Bytes of memory for `count` receives.
pub fn memory_for(count: usize, in_capsule: usize) -> usize {
    let largest = page_len(in_capsule).max(sqes_len(count));
    (sqes_len(count) + count * page_len(in_capsule)).next_multiple_of(largest) + largest
}

fn page_len(in_capsule: usize) -> usize {
    if in_capsule == 0 { 0 } else { in_capsule.next_power_of_two().max(PAGE) }
}

fn sqes_len(count: usize) -> usize {
    (count * Sqe::LEN).next_power_of_two().max(PAGE)
}

impl Receives {
    /// Memory for `count` receives of capsules with up to `in_capsule` bytes of data.
    pub fn new(reactor: &Reactor, owner: u32, count: usize, in_capsule: usize) -> io::Result<Receives> {
        let page = page_len(in_capsule);
        let pool = reactor.buffer_pool(memory_for(count, in_capsule), page.max(sqes_len(count)))?;
        let none = || io::Error::other("the memory for receives is too small");
        let sqes = pool.try_buffer(sqes_len(count)).ok_or_else(none)?;
        let mut pages = Vec::with_capacity(count);
        for _ in 0..count {
            pages.push(if page > 0 { Some(pool.try_buffer(page).ok_or_else(none)?) } else { None });
        }
        let due = Vec::with_capacity(count);
        Ok(Receives { pool, owner, key: 0, sqes, pages, in_capsule, due, short: Vec::with_capacity(count) })
    }

    /// The memory to register.
    pub fn device_memory(&self) -> DeviceMemory {
        self.pool.device_memory()
    }

    /// Makes all of them due, once their memory is registered under `key`.
    pub fn start(&mut self, key: u32) {
        self.key = key;
        for index in 0..self.pages.len() {
            self.give_back(index as u16);
        }
    }

    /// The SQE that landed in a receive.
    pub fn sqe(&self, index: u16) -> Sqe {
        Sqe::parse(&self.sqes.copy_out(index as usize * Sqe::LEN))
    }

    /// The first `len` bytes of the in-capsule data that landed in a receive.
    pub fn in_capsule(&mut self, index: u16, len: usize) -> &[u8] {
        match &mut self.pages[index as usize] {
            Some(page) => {
                page.set_len(len.min(self.in_capsule));
                page.filled()
            }
            None => &[],
        }
    }

    /// Takes the in-capsule data of a receive away: `len` bytes from `offset`. Bytes that had to be moved for it are the second.
    pub fn take(&mut self, index: u16, offset: usize, len: usize) -> Option<(DataBuffer, usize)> {
        let mut page = self.pages[index as usize].take()?;
        let mut moved = 0;
        if offset > 0 {
            page.as_mut_slice().copy_within(offset..offset + len, 0);
            moved = len;
        }
        page.set_len(len);
        Some((page, moved))
    }

    /// A receive is used up and can be posted again.
    pub fn give_back(&mut self, index: u16) {
        let page_len = page_len(self.in_capsule);
        let page = &mut self.pages[index as usize];
        if page.is_none() && page_len > 0 {
            *page = self.pool.try_buffer(page_len);
            if page.is_none() {
                self.short.push(index);
                return;
            }
        }
        let sqe = Piece {
            address: self.sqes.address() + u64::from(index) * Sqe::LEN as u64,
            len: Sqe::LEN as u32,
            key: self.key,
        };
        let data = page.as_ref().map_or(Piece::default(), |page| Piece {
            address: page.address(),
            len: self.in_capsule as u32,
            key: self.key,
        });
        let id = WorkId { work: Work::Receive, owner: self.owner, index, sequence: 0 };
        self.due.push(PostReceive { id: id.encode(), pieces: [sqe, data] });
    }

    /// What is to be posted now.
    pub fn due(&mut self) -> &mut Vec<PostReceive> {
        // Buffers come back when a backend is done with them, which nobody tells.
        for _ in 0..self.short.len() {
            if let Some(index) = self.short.pop() {
                self.give_back(index);
            }
        }
        &mut self.due
    }

    /// Whether [`Receives::due`] has something to do.
    pub fn is_due(&self) -> bool {
        !self.due.is_empty() || !self.short.is_empty()
    }
}
