//! Bookkeeping of work requests: their names, room in the send queue, READs outstanding, what may go without a completion.
//!
//! No adapter and no memory here: numbers only, so that every rule can be tested on its own.

use std::collections::VecDeque;

/// What a work request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// A receive; `index` is the receive's.
    Receive,
    /// A READ of host memory; `index` is the command's slot.
    Read,
    /// A response, with the WRITEs before it; `index` is the response's.
    Respond,
}

/// The name of a work request (`wr_id`): all that is certain of a failed one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkId {
    /// What it is.
    pub work: Work,
    /// Whose it is; a receive of a shared queue is nobody's before it completes.
    pub owner: u32,
    /// Which one.
    pub index: u16,
    /// Its place in its send queue, modulo 2^16.
    pub sequence: u16,
}

const OWNER_BITS: u32 = 30;
/// Owners that have names.
pub const MAX_OWNERS: u32 = 1 << OWNER_BITS;

impl WorkId {
    /// As the adapter keeps it.
    pub fn encode(self) -> u64 {
        let work = match self.work {
            Work::Receive => 0,
            Work::Read => 1,
            Work::Respond => 2,
        };
        work << 62
            | u64::from(self.owner & (MAX_OWNERS - 1)) << 32
            | u64::from(self.sequence) << 16
            | u64::from(self.index)
    }

    /// As it comes back. An adapter that makes names up has none.
    pub fn parse(id: u64) -> Option<WorkId> {
        let work = match id >> 62 {
            0 => Work::Receive,
            1 => Work::Read,
            2 => Work::Respond,
            _ => return None,
        };
        let owner = (id >> 32) as u32 & (MAX_OWNERS - 1);
        Some(WorkId { work, owner, index: id as u16, sequence: (id >> 16) as u16 })
    }
}

/// Room in a send queue, whose entries come free in order: a completion frees all that was posted before it.
#[derive(Debug)]
pub struct SendQueue {
    capacity: u32,
    posted: u32,
    freed: u32,
    /// Work requests since the last one that will complete.
    silent: u32,
}

impl SendQueue {
    /// A queue of `capacity` entries: below 2^15, so that sequence numbers tell.
    pub fn new(capacity: u32) -> SendQueue {
        assert!((1..1 << 15).contains(&capacity), "a send queue of {capacity} entries");
        SendQueue { capacity, posted: 0, freed: 0, silent: 0 }
    }

    /// Entries free.
    pub fn room(&self) -> u32 {
        self.capacity - self.used()
    }

    /// Entries whose memory the adapter may still use, or that nothing is known of.
    pub fn used(&self) -> u32 {
        self.posted.wrapping_sub(self.freed)
    }

    /// Takes one entry. `must_tell` asks for a completion; without it there is one now and then, so that the queue never
    /// fills with silent ones. The entry's sequence number, and whether it will complete.
    ///
    /// # Panics
    /// When there is no room.
    pub fn post(&mut self, must_tell: bool) -> (u16, bool) {
        assert!(self.room() > 0, "the send queue is full");
        let sequence = self.posted as u16;
        self.posted = self.posted.wrapping_add(1);
        let tells = must_tell || self.silent + 1 >= self.most_silent();
        self.silent = if tells { 0 } else { self.silent + 1 };
        (sequence, tells)
    }

    /// Takes one entry that is followed at once by another that tells.
    pub fn post_silent(&mut self) -> u16 {
        assert!(self.room() > 1, "nothing may follow");
        let sequence = self.posted as u16;
        self.posted = self.posted.wrapping_add(1);
        sequence
    }

    fn most_silent(&self) -> u32 {
        (self.capacity / 4).clamp(1, 16)
    }

    /// A completion, of whatever status.
    pub fn complete(&mut self, sequence: u16) {
        let done = sequence.wrapping_sub(self.freed as u16).wrapping_add(1);
        if u32::from(done) <= self.used() {
            self.freed = self.freed.wrapping_add(done.into());
        }
    }
}

/// READs: so many at once, the others wait in order.
#[derive(Debug)]
pub struct Reads {
    limit: u32,
    outstanding: u32,
    waiting: VecDeque<Read>,
}

/// A READ to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// For which command.
    pub slot: u16,
    /// Which of its pieces.
    pub piece: u16,
}

impl Reads {
    /// At most `limit` at once, with room for `expected` to wait.
    pub fn new(limit: u32, expected: usize) -> Reads {
        Reads { limit: limit.max(1), outstanding: 0, waiting: VecDeque::with_capacity(expected) }
    }

    /// Puts one at the end of the queue.
    pub fn push(&mut self, read: Read) {
        self.waiting.push_back(read);
    }

    /// The next that may begin, if there is room for it in the send queue as well.
    pub fn begin(&mut self, room: u32) -> Option<Read> {
        if self.outstanding >= self.limit || room == 0 {
            return None;
        }
        let read = self.waiting.pop_front()?;
        self.outstanding += 1;
        Some(read)
    }

    /// One has completed, of whatever status.
    pub fn end(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// How many are under way.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Forgets those that wait.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }
}

/// Queue pair numbers to owners, without hashing or allocation per look-up: completions of a shared receive queue name nothing else.
#[derive(Debug)]
pub struct Numbers {
    /// Open addressing; a power of two of places, at most half of them taken.
    places: Vec<Option<(u32, u32)>>,
    len: usize,
}

impl Numbers {
    /// None.
    pub fn new() -> Numbers {
        Numbers { places: vec![None; 64], len: 0 }
    }

    /// Adds one.
    pub fn insert(&mut self, number: u32, owner: u32) {
        if (self.len + 1) * 2 > self.places.len() {
            let old = std::mem::take(&mut self.places);
            self.places = vec![None; old.len() * 2];
            old.into_iter().flatten().for_each(|pair| self.put(pair));
        }
        self.len += 1;
        self.put((number, owner));
    }

    fn put(&mut self, pair: (u32, u32)) {
        let mask = self.places.len() - 1;
        let mut at = pair.0 as usize & mask;
        while self.places[at].is_some() {
            at = (at + 1) & mask;
        }
        self.places[at] = Some(pair);
    }

    /// The owner of a number.
    pub fn get(&self, number: u32) -> Option<u32> {
        let mask = self.places.len() - 1;
        let mut at = number as usize & mask;
        while let Some((found, owner)) = self.places[at] {
            if found == number {
                return Some(owner);
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// Removes one.
    pub fn remove(&mut self, number: u32) {
        let old: Vec<_> = self.places.iter().flatten().copied().filter(|pair| pair.0 != number).collect();
        self.places.fill(None);
        self.len = old.len();
        old.into_iter().for_each(|pair| self.put(pair));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, hash_map::Entry};

    #[test]
    fn a_completion_frees_all_that_was_posted_before_it() {
        let mut queue = SendQueue::new(8);
        let first = queue.post(true);
        let silent = queue.post_silent();
        let second = queue.post(true);
        assert_eq!((first, silent, second), ((0, true), 1, (2, true)));
        assert_eq!((queue.room(), queue.used()), (5, 3));
        queue.complete(0);
        assert_eq!(queue.used(), 2);
        queue.complete(2);
        assert_eq!(queue.used(), 0);
        queue.complete(2);
        assert_eq!(queue.used(), 0, "the same completion twice frees nothing twice");
    }

    #[test]
    fn a_queue_of_silent_requests_never_fills() {
        for capacity in 1..100 {
            let mut queue = SendQueue::new(capacity);
            let mut last_told = None;
            for _ in 0..100_000 {
                if queue.room() == 0 {
                    // Nothing more can be posted: something that will complete must be among them.
                    let told: u16 = last_told.take().expect("a completion is due");
                    queue.complete(told);
                    assert!(queue.room() > 0);
                }
                if let (sequence, true) = queue.post(false) {
                    last_told = Some(sequence);
                }
            }
        }
    }

    #[test]
    fn reads_beyond_the_limit_wait_in_order() {
        let mut reads = Reads::new(2, 8);
        let read = |slot| Read { slot, piece: 0 };
        (0..5).for_each(|slot| reads.push(read(slot)));
        assert_eq!([reads.begin(9), reads.begin(9), reads.begin(9)], [Some(read(0)), Some(read(1)), None]);
        reads.end();
        assert_eq!(reads.begin(0), None, "no room in the send queue");
        assert_eq!(reads.begin(1), Some(read(2)));
        assert_eq!((reads.outstanding(), reads.waiting()), (2, 2));
    }

    proptest! {
        #[test]
        fn names_survive(kind in 0..3u8, owner in 0..MAX_OWNERS, index: u16, sequence: u16) {
            let work = [Work::Receive, Work::Read, Work::Respond][kind as usize];
            let id = WorkId { work, owner, index, sequence };
            prop_assert_eq!(WorkId::parse(id.encode()), Some(id));
        }

        #[test]
        fn any_name_is_judged(id: u64) {
            if let Some(name) = WorkId::parse(id) {
                prop_assert_eq!(name.encode(), id);
            }
        }

        #[test]
        fn room_is_exact_over_any_history(capacity in 2..64u32, steps in prop::collection::vec(any::<(bool, u8)>(), 0..400)) {
            let mut queue = SendQueue::new(capacity);
            let mut outstanding: VecDeque<u16> = VecDeque::new();
            for (post, pick) in steps {
                if post && queue.room() > 0 {
                    outstanding.push_back(queue.post(true).0);
                } else if !outstanding.is_empty() {
                    let done = pick as usize % outstanding.len();
                    let sequence = outstanding[done];
                    outstanding.drain(..=done);
                    queue.complete(sequence);
                }
                prop_assert_eq!(queue.used() as usize, outstanding.len());
            }
        }

        #[test]
        fn numbers_find_their_owners(steps in prop::collection::vec((any::<bool>(), 0..40u32), 0..300)) {
            let (mut numbers, mut model) = (Numbers::new(), HashMap::new());
            for (index, (insert, number)) in steps.into_iter().enumerate() {
                let number = number * 64;
                if !insert {
                    numbers.remove(number);
                    model.remove(&number);
                } else if let Entry::Vacant(place) = model.entry(number) {
                    numbers.insert(number, index as u32);
                    place.insert(index as u32);
                }
                for probe in 0..40 {
                    prop_assert_eq!(numbers.get(probe * 64), model.get(&(probe * 64)).copied());
                }
            }
        }
    }
}
