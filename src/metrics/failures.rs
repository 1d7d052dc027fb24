//! Failed commands by opcode and status.
//!
//! There are 64 opcodes and some thousand statuses; of their product a target sees a few dozen pairs in its
//! life. A small open-addressed table of atomics holds those. Its owner is the only writer; entries are
//! added, never moved or removed, so the control thread can read it at any time. When it is full, the rest is
//! counted without a name.

use std::sync::atomic::{AtomicU32, Ordering};

use super::Counter;

const ENTRIES: usize = 256;
/// How far an entry may lie from its own place. Keeps a full table cheap: a host that provokes all sorts of
/// errors must not make them slower for others.
const LONGEST_PROBE: usize = 16;

/// Counts of failed commands. One thread writes, all may read.
#[derive(Debug)]
pub struct FailureTable {
    entries: [Entry; ENTRIES],
    other: Counter,
}

#[derive(Debug)]
struct Entry {
    /// 0 when free, else opcode and status (see [`key`]).
    key: AtomicU32,
    count: Counter,
}

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Failure {
    /// The index of the opcode in [`super::Labels::opcodes`].
    pub opcode: u8,
    /// The status code type and code: [`nvme::Status::code`].
    pub status: u16,
    /// How many commands with this opcode ended with this status.
    pub count: u64,
}

impl FailureTable {
    /// An empty table.
    #[must_use]
    pub const fn new() -> Self {
        let entries = [const { Entry { key: AtomicU32::new(0), count: Counter::new() } }; ENTRIES];
        Self { entries, other: Counter::new() }
    }

    /// Counts one failed command. Only the owning reactor may call this.
    pub fn add(&self, opcode: u8, status: u16) {
        let key = key(opcode, status);
        for entry in self.places(key) {
            match entry.key.load(Ordering::Relaxed) {
                0 => {
                    entry.count.add(1);
                    // Released after the count, so that a reader who sees the key sees at least this failure.
                    entry.key.store(key, Ordering::Release);
                    return;
                }
                found if found == key => return entry.count.add(1),
                _ => {}
            }
        }
        self.other.add(1);
    }

    /// Every pair that has occurred, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = Failure> {
        self.entries.iter().filter_map(|entry| {
            let [used, opcode, high, low] = entry.key.load(Ordering::Acquire).to_be_bytes();
            let status = u16::from_be_bytes([high, low]);
            (used != 0).then(|| Failure { opcode, status, count: entry.count.get() })
        })
    }

    /// Failures for which there was no room.
    #[must_use]
    pub fn other(&self) -> u64 {
        self.other.get()
    }

    fn places(&self, key: u32) -> impl Iterator<Item = &Entry> {
        let first = (key.wrapping_mul(0x9e37_79b1) >> 24) as usize;
        (first..first + LONGEST_PROBE).map(|place| &self.entries[place % ENTRIES])
    }
}

impl Default for FailureTable {
    fn default() -> Self {
        Self::new()
    }
}

/// Opcode and status in one word that is never zero.
const fn key(opcode: u8, status: u16) -> u32 {
    1 << 24 | (opcode as u32) << 16 | status as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_by_pair() {
        let table = FailureTable::new();
        for (opcode, status) in [(0, 0), (1, 0x80), (1, 0x80), (2, 0x80), (63, 0x7ff)] {
            table.add(opcode, status);
        }
        let mut found: Vec<Failure> = table.iter().collect();
        found.sort_unstable();
        let failure = |opcode, status, count| Failure { opcode, status, count };
        assert_eq!(
            found,
            [failure(0, 0, 1), failure(1, 0x80, 2), failure(2, 0x80, 1), failure(63, 0x7ff, 1)]
        );
        assert_eq!(table.other(), 0);
    }

    #[test]
    fn no_failure_is_lost_when_the_table_is_full() {
        let table = FailureTable::new();
        for round in 1..=2 {
            for status in 0..1000 {
                table.add(7, status);
            }
            let named: u64 = table.iter().map(|failure| failure.count).sum();
            assert_eq!(named + table.other(), round * 1000);
        }
        assert!(table.iter().count() > ENTRIES / 2, "{}", table.iter().count());
        assert!(table.iter().all(|failure| failure.count == 2));
    }
}
