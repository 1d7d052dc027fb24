//! Single-writer cells of one reactor: the reactor's thread writes, any thread may read.
//!
//! A cell costs a load and a store; there is no locked instruction on the data path.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread writes and any thread reads.
#[derive(Debug, Default)]
pub struct Cell(AtomicU64);

impl Cell {
    /// Adds, on the one thread that writes this cell.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Subtracts, on the one thread that writes this cell.
    pub fn sub(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(n), Ordering::Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a reactor counts about itself.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Stats {
    /// Turns of the loop.
    pub turns: Cell,
    /// System calls made to submit and reap.
    pub enters: Cell,
    /// Operations given to the kernel.
    pub operations: Cell,
    /// Completions reaped.
    pub completions: Cell,
    /// Nanoseconds spent asleep in the kernel.
    pub asleep_ns: Cell,
    /// Nanoseconds spent polling without finding work.
    pub polling_ns: Cell,
    /// Messages taken from the mailbox.
    pub messages: Cell,
    /// Bytes of data buffers in use.
    pub buffer_bytes: Cell,
    /// Commands that had to wait for a data buffer.
    pub buffer_waits: Cell,
    /// Times a receive stream had to wait for a data buffer.
    pub receive_stalls: Cell,
    /// Payload bytes the processor copied on their way.
    pub copied_bytes: Cell,
    /// Commands sent to NVMe drives as they are.
    pub drive_commands: Cell,
    /// Operations whose future was dropped and which the kernel still holds.
    pub orphans: Cell,
    /// Times data was brought to stable storage: syncs, and writes that are durable when they return.
    pub syncs: Cell,
    /// Receives that found no shared buffer and were repeated.
    pub receive_retries: Cell,
}
