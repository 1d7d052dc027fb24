//! Killed under load: what was acknowledged is there afterwards, whole, whatever was in flight.
//!
//! Every block carries its number and the generation of its write all over. Killing a process does not lose the page cache;
//! that Flush and FUA go down to the disk is tested in `devices`, by what the kernel counts.

use crate::host::target::{ONE_NQN, TempDir, one_subsystem};
use crate::host::*;

const BLOCK: usize = 4096;
const BLOCKS: usize = 512;
/// Blocks of one write.
const RUN: usize = 4;
/// Writes in flight, each in sixteen blocks of its own.
const WRITERS: usize = 32;

/// What the host knows of each block.
struct Ledger {
    generation: u64,
    submitted: Vec<u64>,
    acknowledged: Vec<u64>,
    /// Acknowledged and flushed, or written with FUA.
    stable: Vec<u64>,
}

fn stamped(block: usize, generation: u64) -> Vec<u8> {
    let stamp = [(block as u64).to_le_bytes(), generation.to_le_bytes()].concat();
    stamp.repeat(BLOCK / 16)
}

/// The generation of a block that is whole; a block never written is generation 0.
fn generation_of(block: usize, bytes: &[u8]) -> u64 {
    if bytes.iter().all(|byte| *byte == 0) {
        return 0;
    }
    let generation = u64_at(bytes, 8);
    assert!(bytes == stamped(block, generation), "block {block} is torn (generation {generation})");
    generation
}

/// Writes and flushes until the target is gone; `kill` is called in the middle of it.
async fn load(io: &IoQueue, ledger: &mut Ledger, kill: impl Fn()) -> Result<(), Failure> {
    for round in 0.. {
        let mut pending = Vec::new();
        for writer in 0..WRITERS {
            let first = writer * 16 + (round * 5 + writer) % 13;
            ledger.generation += 1;
            let generation = ledger.generation;
            ledger.submitted[first..first + RUN].fill(generation);
            let data: Vec<u8> = (first..first + RUN).flat_map(|block| stamped(block, generation)).collect();
            let command = io.writing(1, first as u64, &data);
            let fua = writer % 8 == 0;
            let command = if fua { command.force_unit_access() } else { command };
            pending.push((first, generation, fua, io.queue.submit(&command)));
        }
        for (index, (first, generation, fua, write)) in pending.into_iter().enumerate() {
            if round == 12 && index == 7 {
                kill();
            }
            assert!(write.done().await?.is_success());
            ledger.acknowledged[first..first + RUN].fill(generation);
            if fua {
                ledger.stable[first..first + RUN].fill(generation);
            }
        }
        let before = ledger.acknowledged.clone();
        io.flush(1).await?;
        ledger.stable = before;
    }
    Ok(())
}

fn check(ledger: &Ledger, found: &[u8]) {
    for (block, bytes) in found.chunks(BLOCK).enumerate() {
        let generation = generation_of(block, bytes);
        let (stable, acknowledged) = (ledger.stable[block], ledger.acknowledged[block]);
        assert!(generation >= stable, "block {block}: {stable} was stable, {generation} is there");
        assert!(
            generation >= acknowledged,
            "block {block}: {acknowledged} was acknowledged, {generation} is there"
        );
        assert!(generation <= ledger.submitted[block], "block {block}: {generation} was never written");
    }
}

fn killed_under_load(direct: bool) {
    let directory = TempDir::new();
    let path = directory.join("load.img");
    let rest = one_subsystem(&format!(
        "[[subsystem.namespace]]\nnsid = 1\nbackend = \"file\"\npath = \"{}\"\nsize = {}\nlba_size = {BLOCK}\n\
         direct = {direct}\n",
        path.display(),
        BLOCK * BLOCKS
    ));
    let empty = || vec![0; BLOCKS];
    let mut ledger = Ledger { generation: 0, submitted: empty(), acknowledged: empty(), stable: empty() };
    for _ in 0..3 {
        let mut target = Target::configured(&rest);
        run(async {
            let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
            let io = host.io_queue(1, 64).await?;
            let mut found = Vec::new();
            for lba in (0..BLOCKS as u64).step_by(64) {
                found.extend(io.read(1, lba, 64 * BLOCK).await?);
            }
            check(&ledger, &found);
            let ended = load(&io, &mut ledger, || target.signal("KILL")).await;
            assert!(matches!(ended, Err(Failure::Closed(_))), "{ended:?}");
            Ok(())
        });
        target.wait();
        assert!(ledger.stable.iter().any(|generation| *generation > 0), "something was flushed");
        check(&ledger, &std::fs::read(&path).expect("the file"));
    }
}

#[test]
fn a_file_behind_the_page_cache_keeps_what_was_acknowledged() {
    killed_under_load(false);
}

#[test]
fn a_file_past_the_page_cache_keeps_what_was_acknowledged() {
    killed_under_load(true);
}
