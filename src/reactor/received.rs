//! The shared receive buffers of a reactor.
//!
//! A receive names no buffer; the kernel picks one when bytes arrive. So a thousand idle queue pairs hold none, and the
//! buffers in use stay few enough for the cache.

use crate::shared::Mapping;
use io_uring::types::BufRingEntry;
use std::{
    cell::Cell,
    io,
    ops::Deref,
    rc::Rc,
    sync::atomic::{AtomicU16, Ordering},
};

/// Buffers in the group, a power of two.
pub(crate) const COUNT: u16 = 16;
/// Bytes in each.
pub(crate) const SIZE: usize = 64 << 10;
/// The group's number in the ring.
pub(crate) const GROUP: u16 = 0;

/// The ring of free buffers that the kernel takes from.
pub(crate) struct ReceivePool {
    ring: Mapping,
    memory: Mapping,
    tail: Cell<u16>,
}

impl ReceivePool {
    pub(crate) fn new() -> io::Result<ReceivePool> {
        let ring = Mapping::new(COUNT as usize * size_of::<BufRingEntry>(), false)?;
        let memory = Mapping::new(COUNT as usize * SIZE, false)?;
        Ok(ReceivePool { ring, memory, tail: Cell::new(0) })
    }

    /// Where the ring lies, for its registration.
    pub(crate) fn ring_address(&self) -> u64 {
        self.ring.base() as u64
    }

    /// Hands all buffers to the kernel, after the registration.
    pub(crate) fn fill(&self) {
        (0..COUNT).for_each(|id| self.give(id));
    }

    fn address(&self, id: u16) -> *mut u8 {
        // SAFETY: ids are below COUNT: they come from `fill` or back from the kernel.
        unsafe { self.memory.base().add(id as usize * SIZE) }
    }

    /// Gives a buffer to the kernel.
    pub(crate) fn give(&self, id: u16) {
        let entries = self.ring.base().cast::<BufRingEntry>();
        let tail = self.tail.get();
        // SAFETY: the entry lies in the ring's mapping, which is page aligned and zeroed; the kernel does not read it
        // before the tail passes it.
        let entry = unsafe { &mut *entries.add((tail & (COUNT - 1)) as usize) };
        entry.set_addr(self.address(id) as u64);
        entry.set_len(SIZE as u32);
        entry.set_bid(id);
        self.tail.set(tail.wrapping_add(1));
        // SAFETY: `entries` is the ring's base; its tail is a 16-bit field shared with the kernel.
        let shared_tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(entries).cast_mut()) };
        shared_tail.store(self.tail.get(), Ordering::Release);
    }
}

/// Bytes that arrived, in a shared receive buffer. Give it back soon: there are few.
pub struct Received {
    pool: Rc<ReceivePool>,
    id: u16,
    len: usize,
}

impl Received {
    pub(crate) fn new(pool: &Rc<ReceivePool>, id: u16, len: usize) -> Received {
        debug_assert!(len <= SIZE);
        Received { pool: pool.clone(), id, len: len.min(SIZE) }
    }
}

impl Deref for Received {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the kernel gave this buffer to us with `len` bytes filled, and takes it back only by `give`.
        unsafe { std::slice::from_raw_parts(self.pool.address(self.id), self.len) }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.pool.give(self.id);
    }
}
