//! What a read may return: the data of a write that had begun and was not overwritten, before the read began, by one that was
//! acknowledged. Writes that failed, or were lost with their queue pair, may have happened or not.

use std::collections::BTreeMap;

/// Bytes of a block.
pub const BLOCK: usize = 512;

struct Write {
    value: u64,
    begun: u64,
    /// None while it may still happen: under way, or lost.
    ended: Option<u64>,
    acknowledged: bool,
}

/// A write under way.
#[derive(Clone, Copy)]
pub struct Ticket {
    pub nsid: u32,
    pub lba: u64,
    pub blocks: u32,
    /// What is written; zero for zeroes.
    pub value: u64,
    begun: u64,
}

/// How a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    Acknowledged,
    Failed,
    /// Its queue pair ended first.
    Lost,
}

/// All blocks of all namespaces.
#[derive(Default)]
pub struct Oracle {
    clock: u64,
    values: u64,
    blocks: BTreeMap<(u32, u64), Vec<Write>>,
}

impl Oracle {
    /// The order of events.
    pub fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A write of a value of its own begins, or one of zeroes.
    pub fn begin(&mut self, nsid: u32, lba: u64, blocks: u32, zeroes: bool) -> Ticket {
        self.values += 1;
        let value = if zeroes { 0 } else { self.values };
        let begun = self.tick();
        for block in lba..lba + u64::from(blocks) {
            self.writes(nsid, block).push(Write { value, begun, ended: None, acknowledged: false });
        }
        Ticket { nsid, lba, blocks, value, begun }
    }

    /// It has ended.
    pub fn end(&mut self, ticket: Ticket, how: Ended) {
        let now = self.tick();
        for block in ticket.lba..ticket.lba + u64::from(ticket.blocks) {
            let writes = self.writes(ticket.nsid, block).iter_mut();
            for write in writes.filter(|write| write.begun == ticket.begun) {
                write.ended = (how != Ended::Lost).then_some(now);
                write.acknowledged = how == Ended::Acknowledged;
            }
        }
    }

    fn writes(&mut self, nsid: u32, lba: u64) -> &mut Vec<Write> {
        let first = || vec![Write { value: 0, begun: 0, ended: Some(0), acknowledged: true }];
        self.blocks.entry((nsid, lba)).or_insert_with(first)
    }

    /// Whether a block may hold `value` for a read that began at `since` and ends now.
    fn may_hold(&mut self, nsid: u32, lba: u64, since: u64, value: u64) -> bool {
        let writes = self.writes(nsid, lba);
        let overwritten = |ended: u64| {
            writes.iter().any(|w| w.acknowledged && w.begun > ended && w.ended.is_some_and(|e| e < since))
        };
        writes.iter().any(|write| write.value == value && !write.ended.is_some_and(overwritten))
    }

    /// Checks what a read returned that began at `since`.
    ///
    /// # Panics
    /// When it cannot be.
    pub fn check(&mut self, nsid: u32, lba: u64, since: u64, data: &[u8]) {
        for (block, bytes) in (lba..).zip(data.chunks(BLOCK)) {
            let value = value_of(block, bytes)
                .unwrap_or_else(|| panic!("namespace {nsid} block {block}: torn or foreign: {bytes:02x?}"));
            let possible = self.may_hold(nsid, block, since, value);
            assert!(possible, "namespace {nsid} block {block} holds {value}, which it cannot");
        }
    }
}

/// The bytes of a write: each block names the write and itself, over and over.
pub fn data_of(ticket: &Ticket) -> Vec<u8> {
    let block = |lba: u64| {
        let words = if ticket.value == 0 { [0, 0] } else { [ticket.value, lba] };
        words.map(u64::to_le_bytes).concat().repeat(BLOCK / 16)
    };
    (ticket.lba..ticket.lba + u64::from(ticket.blocks)).flat_map(block).collect()
}

/// The write whose bytes these are, when all of them are its.
fn value_of(lba: u64, bytes: &[u8]) -> Option<u64> {
    let value = u64::from_le_bytes(*bytes.first_chunk()?);
    let whole = if value == 0 { [0, 0] } else { [value, lba] };
    let right = bytes.len() == BLOCK && bytes[..16] == *whole.map(u64::to_le_bytes).concat();
    (right && bytes[16..] == bytes[..BLOCK - 16]).then_some(value)
}

#[test]
fn the_oracle_tells_right_from_wrong() {
    let mut oracle = Oracle::default();
    let old = oracle.begin(1, 0, 1, false);
    let during = oracle.tick();
    oracle.check(1, 0, during, &[0; BLOCK]);
    oracle.check(1, 0, during, &data_of(&old));
    oracle.end(old, Ended::Acknowledged);
    let after = oracle.tick();
    assert!(!oracle.may_hold(1, 0, after, 0), "an acknowledged write is there");
    assert!(oracle.may_hold(1, 0, during, 0), "a read from before may miss it");
    let lost = oracle.begin(1, 0, 1, false);
    oracle.end(lost, Ended::Lost);
    let new = oracle.begin(1, 0, 1, false);
    oracle.end(new, Ended::Acknowledged);
    let after = oracle.tick();
    let may = |oracle: &mut Oracle, value| oracle.may_hold(1, 0, after, value);
    assert_eq!([old, lost, new].map(|w| may(&mut oracle, w.value)), [false, true, true]);
    assert!(!may(&mut oracle, 99), "nobody wrote that");
    assert_eq!(value_of(1, &data_of(&new)), None, "a block knows where it belongs");
}
