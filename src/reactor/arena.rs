//! Data buffers: one registered memory area per reactor, given out in size classes, first come first served.
//!
//! The arena is registered with the ring in chunks (a fixed buffer is at most 1 GiB) and will be an RDMA memory region
//! at once. A [`DataBuffer`] has one owner. Running out makes the asker wait, oldest first; a small reserve is kept for
//! admin queue pairs, so that Identify never waits behind a burst of writes.

use crate::{buddy::Buddy, device::DeviceMemory, shared::Mapping, stats::Stats};
use slab::Slab;
use std::{
    cell::RefCell,
    collections::VecDeque,
    future::Future,
    io,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
};

/// The smallest buffer.
pub const PAGE: usize = 4096;
/// Bytes per fixed buffer of the ring.
const CHUNK: usize = 256 << 20;
/// Pages kept for [`BufferClass::Admin`].
const ADMIN_RESERVE: usize = 16;

/// On whose behalf a buffer is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferClass {
    /// Commands of I/O queue pairs.
    Io,
    /// Commands of admin queue pairs: they may use the reserve.
    Admin,
}

/// How much of an arena is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaUse {
    /// Bytes of all buffers.
    pub total: usize,
    /// Bytes not given out.
    pub free: usize,
    /// Askers waiting.
    pub waiting: usize,
}

enum Waiter {
    Waiting { order: u8, class: BufferClass, waker: Waker },
    Granted { page: u32, order: u8 },
}

struct State {
    buddy: Buddy,
    waiters: Slab<Waiter>,
    queue: VecDeque<usize>,
}

impl State {
    fn take(&mut self, order: u8, class: BufferClass) -> Option<u32> {
        let reserve = if class == BufferClass::Io { ADMIN_RESERVE } else { 0 };
        if self.buddy.free_pages() < (1 << order) + reserve { None } else { self.buddy.take(order) }
    }

    /// Hands free blocks to who waits longest. An admin asker passes a blocked I/O asker, never the other way.
    fn grant(&mut self) {
        let mut at = 0;
        let mut io_blocked = false;
        while let Some(&key) = self.queue.get(at) {
            let Waiter::Waiting { order, class, .. } = self.waiters[key] else {
                unreachable!("granted and queued")
            };
            let page = if io_blocked && class == BufferClass::Io { None } else { self.take(order, class) };
            match page {
                Some(page) => {
                    self.queue.remove(at);
                    let granted = Waiter::Granted { page, order };
                    if let Waiter::Waiting { waker, .. } = std::mem::replace(&mut self.waiters[key], granted)
                    {
                        waker.wake();
                    }
                }
                None if class == BufferClass::Io => {
                    io_blocked = true;
                    at += 1;
                }
                None => break,
            }
        }
    }
}

/// A reactor's buffers.
pub(crate) struct Arena {
    mapping: Arc<Mapping>,
    max_order: u8,
    registered: bool,
    stats: Arc<Stats>,
    state: RefCell<State>,
}

impl Arena {
    /// Maps `bytes`, in blocks of at most `max_buffer` (both rounded to powers of two of pages where needed).
    pub(crate) fn new(bytes: usize, max_buffer: usize, stats: Arc<Stats>) -> io::Result<Arena> {
        let max_order = order_of(max_buffer.next_power_of_two().max(PAGE));
        let block = PAGE << max_order;
        let bytes = bytes.div_ceil(block).max(2) * block;
        Ok(Arena {
            mapping: Arc::new(Mapping::new(bytes, true)?),
            max_order,
            registered: false,
            stats,
            state: RefCell::new(State {
                buddy: Buddy::new(bytes / PAGE, max_order),
                waiters: Slab::with_capacity(64),
                queue: VecDeque::with_capacity(64),
            }),
        })
    }

    /// One block of its own that belongs to who asks, outside of the reactor's buffers and not registered.
    fn single(len: usize, stats: Arc<Stats>) -> io::Result<Arena> {
        let max_order = order_of(len.next_power_of_two().max(PAGE));
        Ok(Arena {
            mapping: Arc::new(Mapping::new(PAGE << max_order, false)?),
            max_order,
            registered: false,
            stats,
            state: RefCell::new(State {
                buddy: Buddy::new(1 << max_order, max_order),
                waiters: Slab::new(),
                queue: VecDeque::new(),
            }),
        })
    }

    /// The chunks to register as fixed buffers, in the order of their indices.
    pub(crate) fn chunks(&self) -> Vec<libc::iovec> {
        (0..self.mapping.len())
            .step_by(CHUNK)
            .map(|offset| libc::iovec {
                // SAFETY: offsets below the length of the mapping.
                iov_base: unsafe { self.mapping.base().add(offset) }.cast(),
                iov_len: CHUNK.min(self.mapping.len() - offset),
            })
            .collect()
    }

    /// Its memory, to be registered with a device.
    pub(crate) fn device_memory(&self) -> DeviceMemory {
        DeviceMemory::new(self.mapping.clone())
    }

    pub(crate) fn set_registered(&mut self) {
        self.registered = true;
    }

    pub(crate) fn usage(&self) -> ArenaUse {
        let state = self.state.borrow();
        ArenaUse {
            total: state.buddy.pages() * PAGE,
            free: state.buddy.free_pages() * PAGE,
            waiting: state.queue.len(),
        }
    }

    /// The largest buffer there is.
    pub(crate) fn max_buffer(&self) -> usize {
        PAGE << self.max_order
    }

    /// A buffer at once or none; never passes those who wait.
    pub(crate) fn try_get(self: &Rc<Self>, len: usize, class: BufferClass) -> Option<DataBuffer> {
        let order = self.order_for(len);
        let mut state = self.state.borrow_mut();
        if class == BufferClass::Io && !state.queue.is_empty() {
            return None;
        }
        let page = state.take(order, class)?;
        Some(self.buffer(page, order))
    }

    /// A buffer of at least `len` bytes, waiting for one if need be.
    pub(crate) fn get(self: &Rc<Self>, len: usize, class: BufferClass) -> GetBuffer {
        GetBuffer { arena: self.clone(), order: self.order_for(len), class, key: None }
    }

    fn order_for(&self, len: usize) -> u8 {
        assert!(
            len <= self.max_buffer(),
            "a buffer of {len} bytes asked for, {} is the largest",
            self.max_buffer()
        );
        order_of(len.next_power_of_two().max(PAGE))
    }

    fn buffer(self: &Rc<Self>, page: u32, order: u8) -> DataBuffer {
        self.stats.buffer_bytes.add((PAGE << order) as u64);
        DataBuffer { arena: self.clone(), page, len: 0, order }
    }
}

fn order_of(bytes: usize) -> u8 {
    (bytes / PAGE).trailing_zeros() as u8
}

/// One buffer that always comes back to its owner: what a queue pair reads its stream with when all others are taken,
/// so that data waited for elsewhere is never stuck behind it. It takes memory only when first used.
pub struct Reserve(Rc<Arena>);

impl Reserve {
    pub(crate) fn new(len: usize, stats: Arc<Stats>) -> io::Result<Reserve> {
        Arena::single(len, stats).map(|arena| Reserve(Rc::new(arena)))
    }

    /// The buffer, if it is here.
    pub fn try_take(&self) -> Option<DataBuffer> {
        self.0.try_get(self.0.max_buffer(), BufferClass::Admin)
    }

    /// The buffer, once it is back.
    pub fn take(&self) -> GetBuffer {
        self.0.get(self.0.max_buffer(), BufferClass::Admin)
    }
}

/// Buffers beside the reactor's, in a mapping of their own: what a device receives into. They are not registered with the
/// ring, and are taken by who owns the pool only.
#[derive(Clone)]
pub struct BufferPool(Rc<Arena>);

impl BufferPool {
    pub(crate) fn new(bytes: usize, max_buffer: usize, stats: Arc<Stats>) -> io::Result<BufferPool> {
        Arena::new(bytes, max_buffer, stats).map(|arena| BufferPool(Rc::new(arena)))
    }

    /// A buffer at once or none.
    pub fn try_buffer(&self, len: usize) -> Option<DataBuffer> {
        self.0.try_get(len, BufferClass::Admin)
    }

    /// A buffer; waits its turn when none is free.
    pub fn buffer(&self, len: usize) -> GetBuffer {
        self.0.get(len, BufferClass::Admin)
    }

    /// Its memory, to be registered with a device.
    pub fn device_memory(&self) -> DeviceMemory {
        self.0.device_memory()
    }

    /// How much of it is in use.
    pub fn usage(&self) -> ArenaUse {
        self.0.usage()
    }
}

/// Waits for a buffer.
pub struct GetBuffer {
    arena: Rc<Arena>,
    order: u8,
    class: BufferClass,
    key: Option<usize>,
}

impl Future for GetBuffer {
    type Output = DataBuffer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<DataBuffer> {
        let (order, class) = (self.order, self.class);
        let arena = self.arena.clone();
        let mut state = arena.state.borrow_mut();
        if let Some(key) = self.key {
            match &mut state.waiters[key] {
                Waiter::Waiting { waker, .. } => {
                    waker.clone_from(cx.waker());
                    return Poll::Pending;
                }
                Waiter::Granted { page, order } => {
                    let (page, order) = (*page, *order);
                    state.waiters.remove(key);
                    self.key = None;
                    return Poll::Ready(arena.buffer(page, order));
                }
            }
        }
        if (state.queue.is_empty() || class == BufferClass::Admin)
            && let Some(page) = state.take(order, class)
        {
            return Poll::Ready(arena.buffer(page, order));
        }
        arena.stats.buffer_waits.add(1);
        let key = state.waiters.insert(Waiter::Waiting { order, class, waker: cx.waker().clone() });
        state.queue.push_back(key);
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for GetBuffer {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut state = self.arena.state.borrow_mut();
        match state.waiters.remove(key) {
            Waiter::Waiting { .. } => state.queue.retain(|k| *k != key),
            Waiter::Granted { page, order } => state.buddy.give(page, order),
        }
        // Who gave up may have been what stood before others.
        state.grant();
    }
}

/// A command's data: contiguous memory of the arena with one owner.
///
/// `len` bytes are filled; the memory beyond them may hold another host's old data and is never sent.
pub struct DataBuffer {
    arena: Rc<Arena>,
    page: u32,
    len: u32,
    order: u8,
}

impl DataBuffer {
    /// Bytes it can hold.
    pub fn capacity(&self) -> usize {
        PAGE << self.order
    }

    /// Bytes filled.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether nothing is filled.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Says how many bytes are filled.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity());
        self.len = len as u32;
    }

    /// The filled bytes.
    pub fn filled(&self) -> &[u8] {
        // SAFETY: the block is this buffer's alone; `len` is within it; mapped memory is initialised.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.len()) }
    }

    /// All bytes, filled or not.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.capacity()) }
    }

    /// Fills it with a copy of `bytes`.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn fill_from(&mut self, bytes: &[u8]) {
        self.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        self.len = bytes.len() as u32;
    }

    /// Its address, as a device that the memory is registered with knows it.
    pub fn address(&self) -> u64 {
        self.pointer().expose_provenance() as u64
    }

    /// A copy of `N` bytes at `offset`, of memory whose other bytes a device may be writing: no reference to them is made.
    ///
    /// # Panics
    /// When they do not lie inside.
    pub fn copy_out<const N: usize>(&self, offset: usize) -> [u8; N] {
        assert!(offset + N <= self.capacity(), "bytes outside of the buffer");
        // SAFETY: inside the block, as asserted; byte arrays have no alignment.
        unsafe { self.pointer().add(offset).cast::<[u8; N]>().read() }
    }

    /// Puts `bytes` to `offset` of memory whose other bytes a device may be reading: no reference to them is made.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn copy_in<const N: usize>(&mut self, offset: usize, bytes: [u8; N]) {
        assert!(offset + N <= self.capacity(), "bytes outside of the buffer");
        // SAFETY: inside the block, as asserted; byte arrays have no alignment.
        unsafe { self.pointer().add(offset).cast::<[u8; N]>().write(bytes) };
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        // SAFETY: pages of the mapping.
        unsafe { self.arena.mapping.base().add(self.page as usize * PAGE) }
    }

    /// The index of the fixed buffer it lies in, when the arena could be registered.
    pub(crate) fn fixed_index(&self) -> Option<u16> {
        self.arena.registered.then_some((self.page as usize * PAGE / CHUNK) as u16)
    }
}

impl Drop for DataBuffer {
    fn drop(&mut self) {
        self.arena.stats.buffer_bytes.sub(self.capacity() as u64);
        let mut state = self.arena.state.borrow_mut();
        state.buddy.give(self.page, self.order);
        if !state.queue.is_empty() {
            state.grant();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt, task::noop_waker};

    fn arena() -> Rc<Arena> {
        Rc::new(Arena::new(2 << 20, 1 << 20, Arc::default()).unwrap())
    }

    #[test]
    fn who_asked_first_is_served_first_and_the_reserve_is_admins() {
        let arena = arena();
        let mut held: Vec<DataBuffer> = std::iter::from_fn(|| arena.try_get(PAGE, BufferClass::Io)).collect();
        assert_eq!(held.len(), 512 - ADMIN_RESERVE);
        let waker = noop_waker();
        let mut cx = Context::from_waker(&waker);
        let (mut large, mut small) = (arena.get(2 * PAGE, BufferClass::Io), arena.get(PAGE, BufferClass::Io));
        assert!(large.poll_unpin(&mut cx).is_pending() && small.poll_unpin(&mut cx).is_pending());
        assert!(arena.try_get(PAGE, BufferClass::Admin).is_some(), "the reserve serves an admin queue pair");
        held.pop();
        assert!(small.poll_unpin(&mut cx).is_pending(), "the small one may not pass the large one");
        held.truncate(held.len() - 8);
        assert!(large.poll_unpin(&mut cx).is_ready() && small.poll_unpin(&mut cx).is_ready());
    }

    #[test]
    fn a_dropped_wait_gives_back_what_it_was_granted() {
        let arena = arena();
        let held: Vec<DataBuffer> = std::iter::from_fn(|| arena.try_get(PAGE, BufferClass::Io)).collect();
        let waker = noop_waker();
        let mut cx = Context::from_waker(&waker);
        let (mut first, mut second) = (arena.get(PAGE, BufferClass::Io), arena.get(PAGE, BufferClass::Io));
        assert!(first.poll_unpin(&mut cx).is_pending() && second.poll_unpin(&mut cx).is_pending());
        drop(held);
        drop((first, second));
        assert_eq!(arena.usage(), ArenaUse { total: 2 << 20, free: 2 << 20, waiting: 0 });
    }

    #[test]
    fn a_buffer_keeps_to_what_was_filled() {
        let arena = arena();
        let mut buffer = arena.try_get(5000, BufferClass::Io).unwrap();
        assert_eq!((buffer.capacity(), buffer.len()), (8192, 0));
        buffer.fill_from(&[9; 5000]);
        assert_eq!(buffer.filled(), &[9; 5000]);
    }
}
