//! Fused Compare and Write: halves pair by arrival, both happen or neither, and nobody writes in between, whatever queue,
//! host or reactor it comes from.

use crate::host::target::{ONE_NQN, TempDir, namespace, one_memory, one_subsystem, three_backends};
use crate::host::*;
use futures::future::join_all;

const COMPARE: u8 = 0x05;
const WRITE_ZEROES: u8 = 0x08;
const DATASET_MANAGEMENT: u8 = 0x09;
const COPY: u8 = 0x19;
const FAILED_FUSED: u16 = 0x009;
const MISSING_FUSED: u16 = 0x00a;
const ATOMIC_UNIT_EXCEEDED: u16 = 0x014;
const WRITE_PROTECTED: u16 = 0x020;
const COMPARE_FAILURE: u16 = 0x285;

type Answer = Result<Completion, Failure>;

async fn connected(target: &Target) -> Result<(Host, IoQueue), Failure> {
    let host = Host::connect(target, ONE_NQN, Options::default()).await?;
    let io = host.io_queue(1, 128).await?;
    Ok((host, io))
}

/// The first half: PSDT 01b, FUSE 01b.
fn comparing(io: &IoQueue, nsid: u32, lba: u64, data: &[u8]) -> Command {
    let blocks = (data.len() / io.lba_size(nsid)) as u32;
    Command::new(COMPARE).nsid(nsid).range(lba, blocks).writing(data).byte(1, 0x41)
}

/// The second half: PSDT 01b, FUSE 10b.
fn then_writing(io: &IoQueue, nsid: u32, lba: u64, data: &[u8]) -> Command {
    io.writing(nsid, lba, data).byte(1, 0x42)
}

/// Submits commands one behind the other and waits for all.
async fn all(io: &IoQueue, commands: &[Command]) -> Vec<Answer> {
    let pending: Vec<_> = commands.iter().map(|command| io.queue.submit(command)).collect();
    join_all(pending.into_iter().map(Pending::done)).await
}

/// What became of a pair.
async fn pair(io: &IoQueue, first: Command, second: Command) -> (Answer, Answer) {
    let mut answers = all(io, &[first, second]).await;
    let second = answers.pop().expect("two answers");
    (answers.pop().expect("two answers"), second)
}

/// Status and DNR; success is (0, false).
fn status(answer: &Answer) -> (u16, bool) {
    match answer {
        Ok(_) => (0, false),
        Err(Failure::Status(completion)) => (completion.code(), completion.dnr()),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn equal_data_is_replaced_and_other_data_is_not() {
    let target = Target::with_three_backends();
    run(async {
        let (host, io) = connected(&target).await?;
        let controller = host.identify(0x01, 0).await?;
        assert_eq!(u16_at(&controller, 522), 1, "FUSES: Compare and Write");
        let most = usize::from(u16_at(&controller, 532)) + 1;
        for nsid in [1, 2, 3] {
            let block = io.lba_size(nsid);
            for size in [block, most * block] {
                // The null backend holds zeroes whatever is written.
                let old = if nsid == 3 { vec![0; size] } else { pattern(1, size) };
                let new = pattern(2, size);
                for (first_late, second_late) in [(false, false), (true, false), (false, true), (true, true)]
                {
                    let place = |command: Command, late| if late { command.by_r2t() } else { command };
                    let first = |data: &[u8]| place(comparing(&io, nsid, 40, data), first_late);
                    let second = place(then_writing(&io, nsid, 40, &new), second_late);
                    io.write(nsid, 40, &old).await?;
                    for at in [0, size / 2, size - 1] {
                        let mut other = old.clone();
                        other[at] ^= 1;
                        let (compared, written) = pair(&io, first(&other), second.clone()).await;
                        compared.fails_with(COMPARE_FAILURE, true);
                        written.fails_with(FAILED_FUSED, false);
                        assert!(io.read(nsid, 40, size).await? == old, "nothing is written");
                    }
                    let (compared, written) = pair(&io, first(&old), second.force_unit_access()).await;
                    compared?;
                    written?;
                    assert!(nsid == 3 || io.read(nsid, 40, size).await? == new);
                }
            }
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn broken_pairs_fail_half_by_half() {
    let target = Target::with_three_backends();
    run(async {
        let (_host, io) = connected(&target).await?;
        for nsid in [1, 2] {
            let block = io.lba_size(nsid);
            let end = (64_u64 << 20) / block as u64;
            let old = pattern(3, 32 * block);
            io.write(nsid, 0, &old).await?;
            let (one, two, large) = (&old[..block], &old[..2 * block], &old[..17 * block]);
            let first = |lba, data: &[u8]| comparing(&io, nsid, lba, data);
            let second = |lba, data: &[u8]| then_writing(&io, nsid, lba, data);
            let new = pattern(4, 17 * block);
            let rows = [
                (
                    "first is a Write",
                    second(0, &new[..block]).byte(1, 0x41),
                    second(0, &new[..block]),
                    0x001,
                    0x00a,
                ),
                ("second is a Compare", first(0, one), first(0, one).byte(1, 0x42), 0x00a, 0x001),
                ("neither is right", second(0, one).byte(1, 0x41), first(0, one).byte(1, 0x42), 0x001, 0x001),
                ("an unknown opcode", first(0, one).byte(0, 0xc1), second(0, &new[..block]), 0x001, 0x00a),
                ("other blocks", first(0, one), second(1, &new[..block]), 0x002, 0x009),
                ("more blocks", first(0, one), second(0, &new[..2 * block]), 0x002, 0x009),
                ("fewer blocks", first(0, two), second(0, &new[..block]), 0x002, 0x009),
                ("another namespace", first(0, one), second(0, &new[..block]).nsid(3), 0x002, 0x009),
                ("no namespace", first(0, one).nsid(77), second(0, &new[..block]).nsid(77), 0x00b, 0x009),
                ("all namespaces", first(0, one).nsid(!0), second(0, &new[..block]).nsid(!0), 0x00b, 0x009),
                ("past the end", first(end, one), second(end, &new[..block]), 0x080, 0x009),
                ("past all ends", first(u64::MAX, two), second(u64::MAX, &new[..2 * block]), 0x080, 0x009),
                ("too large", first(0, large), second(0, &new), 0x014, 0x009),
                ("first: PRP", first(0, one).byte(1, 0x01), second(0, &new[..block]), 0x002, 0x009),
                ("second: PRP", first(0, one), second(0, &new[..block]).byte(1, 0x02), 0x009, 0x002),
                ("first: length", first(0, two).range(0, 1), second(0, &new[..block]), 0x00f, 0x009),
                ("second: length", first(0, one), second(0, &new[..2 * block]).range(0, 1), 0x009, 0x00f),
                ("no data", first(0, one).writing(&[]), second(0, &new[..block]), 0x00f, 0x009),
            ];
            for (what, first, second, wanted_first, wanted_second) in rows {
                let (a, b) = pair(&io, first, second).await;
                let dnr = |code| ![FAILED_FUSED, MISSING_FUSED].contains(&code);
                let wanted = ((wanted_first, dnr(wanted_first)), (wanted_second, dnr(wanted_second)));
                assert_eq!((status(&a), status(&b)), wanted, "{what} on namespace {nsid}");
            }
            assert_eq!((0x001, 0x014), (INVALID_OPCODE, ATOMIC_UNIT_EXCEEDED));
            assert!(io.read(nsid, 0, old.len()).await? == old, "nothing was written");
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn a_half_without_its_neighbour_fails_alone() {
    let target = Target::with_three_backends();
    run(async {
        let (_host, io) = connected(&target).await?;
        let zeroes = [0; 512];
        let first = comparing(&io, 1, 0, &zeroes);
        let second = then_writing(&io, 1, 0, &zeroes);
        let (read, other) = (io.reading(1, 8, 512), io.writing(1, 16, &pattern(1, 512)));
        for by_r2t in [false, true] {
            let place = |command: &Command| if by_r2t { command.clone().by_r2t() } else { command.clone() };
            let (first, second) = (place(&first), place(&second));
            let both = first.clone().byte(1, 0x43);
            let f = || first.clone();
            let s = || second.clone();
            let rows: [(&[Command], &[u16]); 9] = [
                (&[s()], &[MISSING_FUSED]),
                (&[f(), read.clone()], &[MISSING_FUSED, 0]),
                (&[f(), read.clone(), s()], &[MISSING_FUSED, 0, MISSING_FUSED]),
                (&[f(), f(), s()], &[MISSING_FUSED, 0, 0]),
                (&[f(), s(), s()], &[0, 0, MISSING_FUSED]),
                (&[f(), both, s()], &[MISSING_FUSED, INVALID_FIELD, MISSING_FUSED]),
                (&[f(), Command::flush(1)], &[MISSING_FUSED, 0]),
                (&[f(), Command::property_get(0, 8), s()], &[MISSING_FUSED, 0xffff, MISSING_FUSED]),
                (&[other.clone(), f(), s(), read.clone(), f(), s()], &[0; 6]),
            ];
            for (commands, wanted) in rows {
                let answers = all(&io, commands).await;
                for (index, (answer, wanted)) in answers.iter().zip(wanted).enumerate() {
                    let got = status(answer).0;
                    // Whatever becomes of a Fabrics command on an I/O queue.
                    assert!(
                        *wanted == 0xffff || got == *wanted,
                        "command {index} of {wanted:03x?}: {got:03x}"
                    );
                }
            }
        }
        Ok(())
    });
    target.stop();
}

/// A first half is not kept for ever, and its buffers neither.
#[test]
fn a_first_half_whose_second_never_comes_is_answered() {
    let limits = "[limits]\ndata_timeout_ms = 400\n";
    let target = Target::configured(&format!("{limits}{}", one_memory()));
    run(async {
        let (_host, io) = connected(&target).await?;
        let (first, second) = (comparing(&io, 1, 0, &[0; 512]), then_writing(&io, 1, 0, &[1; 512]));
        io.queue.execute(&first).await.fails_with(MISSING_FUSED, false);
        io.queue.execute(&second).await.fails_with(MISSING_FUSED, false);
        assert!(io.read(1, 0, 512).await? == [0; 512]);
        let (compared, written) = pair(&io, first, second).await;
        compared?;
        written?;
        Ok(())
    });
    target.stop();
}

/// Data may come late and in any order: neighbours stay neighbours.
#[test]
fn pairing_follows_arrival_and_not_readiness() {
    let target = Target::with_three_backends();
    run(async {
        let (_host, io) = connected(&target).await?;
        for nsid in [1, 2] {
            let block = io.lba_size(nsid);
            let (old, new) = (pattern(5, block), pattern(6, block));
            for (first_late, second_late) in [(true, false), (false, true), (true, true)] {
                for lba in [0, 50] {
                    io.write(nsid, lba, &old).await?;
                }
                let place = |command: Command, late| if late { command.by_r2t() } else { command };
                let before = io.queue.submit(&io.reading(3, 0, 512));
                io.queue.hold_data();
                let late = [
                    place(comparing(&io, nsid, 0, &old), first_late),
                    place(then_writing(&io, nsid, 0, &new), second_late),
                ]
                .map(|command| io.queue.submit(&command));
                let between = io.queue.submit(&io.writing(3, 0, &[7; 512]));
                let (compared, written) =
                    pair(&io, comparing(&io, nsid, 50, &old), then_writing(&io, nsid, 50, &new)).await;
                compared?;
                written?;
                between.done().await?;
                before.done().await?;
                let expected = usize::from(first_late) + usize::from(second_late);
                until("the data is asked for", || io.queue.held_r2ts() == expected).await?;
                assert!(io.read(nsid, 0, block).await? == old, "not before all data is there");
                io.queue.release_data();
                for half in late {
                    half.done().await?;
                }
                for lba in [0, 50] {
                    assert!(io.read(nsid, lba, block).await? == new);
                }
            }
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn a_protected_namespace_is_not_written() {
    let protected = namespace(1, "memory", 512, "1 MiB", "read_only = true");
    let target = Target::configured(&one_subsystem(&protected));
    run(async {
        let (_host, io) = connected(&target).await?;
        let (compared, written) =
            pair(&io, comparing(&io, 1, 0, &[0; 512]), then_writing(&io, 1, 0, &[1; 512])).await;
        compared.fails_with(FAILED_FUSED, false);
        written.fails_with(WRITE_PROTECTED, true);
        Ok(())
    });
    target.stop();
}

/// Adds one to the counter in a block until it has done so `times` times.
async fn count_up(io: &IoQueue, nsid: u32, lba: u64, times: u64) -> Result<(), Failure> {
    let block = io.lba_size(nsid);
    let mut done = 0;
    while done < times {
        let old = io.read(nsid, lba, block).await?;
        let mut new = old.clone();
        new[..8].copy_from_slice(&(u64_at(&old, 0) + 1).to_le_bytes());
        let (first, second) = (comparing(io, nsid, lba, &old), then_writing(io, nsid, lba, &new));
        let (first, second) = if done % 3 == 0 { (first.by_r2t(), second) } else { (first, second.by_r2t()) };
        let (compared, written) = pair(io, first, second).await;
        match (status(&compared).0, status(&written).0) {
            (0, 0) => done += 1,
            (COMPARE_FAILURE, FAILED_FUSED) => {}
            other => panic!("{other:03x?}"),
        }
    }
    Ok(())
}

#[test]
fn no_increment_is_lost() {
    let target = Target::with_three_backends();
    run(async {
        let (first_host, first) = connected(&target).await?;
        let (second_host, second) = connected(&target).await?;
        let queues = [
            &first,
            &first_host.io_queue(2, 16).await?,
            &first_host.io_queue(3, 16).await?,
            &second,
            &second_host.io_queue(2, 16).await?,
        ];
        for nsid in [1, 2] {
            // Two counters beside each other: pairs of different ranges do not wait for one another, and do not mix.
            let work = queues.iter().enumerate().map(|(n, io)| count_up(io, nsid, 7 + n as u64 % 2, 40));
            for done in join_all(work).await {
                done?;
            }
            let block = first.lba_size(nsid);
            let counters = first.read(nsid, 7, 2 * block).await?;
            assert_eq!((u64_at(&counters, 0), u64_at(&counters, block)), (120, 80), "namespace {nsid}");
        }
        Ok(())
    });
    target.stop();
}

/// The ways to change block `lba` of `nsid`: into what block 1000 holds, or into zeroes.
fn changing(io: &IoQueue, nsid: u32, lba: u64, kind: usize) -> Command {
    let block = io.lba_size(nsid);
    match kind {
        0 => io.writing(nsid, lba, &pattern(3, block)),
        1 => {
            let mut source = vec![0; 32];
            source[8..16].copy_from_slice(&1000_u64.to_le_bytes());
            Command::new(COPY).nsid(nsid).range(lba, 1).writing(&source)
        }
        2 => Command::new(WRITE_ZEROES).nsid(nsid).range(lba, 1),
        _ => {
            let mut range = vec![0; 16];
            range[4] = 1;
            range[8..16].copy_from_slice(&lba.to_le_bytes());
            Command::new(DATASET_MANAGEMENT).nsid(nsid).dword(44, 4).writing(&range)
        }
    }
}

/// A pair turns 16 blocks from A to B while other queues change each of them to C. In whatever order these happen, C is what
/// remains of all: where B remains, its change came between compare and write.
#[test]
fn no_change_slips_between_compare_and_write() {
    let target = Target::with_three_backends();
    run(async {
        let (host, io) = connected(&target).await?;
        let others = [host.io_queue(2, 32).await?, host.io_queue(3, 32).await?];
        let mut before = 0;
        for round in 0..400_usize {
            let nsid = 1 + (round % 2) as u32;
            let (kind, block) = (round / 2 % 4, io.lba_size(nsid));
            let [a, b] = [1, 2].map(|seed| pattern(seed, 16 * block));
            io.write(nsid, 1000, &pattern(3, block)).await?;
            io.write(nsid, 64, &a).await?;
            let fused = [comparing(&io, nsid, 64, &a), then_writing(&io, nsid, 64, &b)]
                .map(|command| io.queue.submit(&command));
            // The changes begin at another moment of the pair each time.
            for _ in 0..round / 8 % 10 {
                others[1].flush(3).await?;
            }
            let changes: Vec<_> = (0..16_usize)
                .map(|n| others[n % 2].queue.submit(&changing(&io, nsid, 64 + n as u64, kind)))
                .collect();
            for change in changes {
                change.done().await?;
            }
            let [first, second] = fused;
            let ended = (status(&first.done().await).0, status(&second.done().await).0);
            assert!([(0, 0), (COMPARE_FAILURE, FAILED_FUSED)].contains(&ended), "{ended:03x?}");
            before += usize::from(ended == (0, 0));
            let changed = if kind < 2 { pattern(3, block) } else { vec![0; block] };
            let read = io.read(nsid, 64, 16 * block).await?;
            let remains = read.chunks(block).all(|block| block == changed);
            assert!(remains, "namespace {nsid}, round {round}: a change was overwritten");
        }
        println!("{before} of 400 pairs came before all changes");
        Ok(())
    });
    target.stop();
}

/// Queue pairs that end between the halves, or before the data of either, leave nothing locked and nothing behind.
#[test]
fn abandoned_pairs_leave_nothing_behind() {
    let directory = TempDir::new();
    let rest = three_backends(&directory);
    let target = Target::configured_in(directory, &rest);
    run(async {
        for nsid in [1, 2] {
            let (_host, io) = connected(&target).await?;
            let data = vec![0; io.lba_size(nsid)];
            for round in 0..12 {
                let (_leaving, left) = connected(&target).await?;
                left.queue.hold_data();
                let first = comparing(&left, nsid, 0, &data);
                let second = then_writing(&left, nsid, 0, &data);
                let commands = match round % 4 {
                    0 => vec![first],
                    1 => vec![first.by_r2t(), second],
                    2 => vec![first, second.by_r2t()],
                    _ => vec![first.clone().by_r2t(), second.by_r2t(), first],
                };
                let r2ts = [0, 1, 1, 2][round % 4];
                let pending: Vec<_> = commands.iter().map(|command| left.queue.submit(command)).collect();
                until("data is asked for", || left.queue.held_r2ts() == r2ts).await?;
                drop((left, pending));
                let (compared, written) =
                    pair(&io, comparing(&io, nsid, 0, &data), then_writing(&io, nsid, 0, &data)).await;
                compared?;
                written?;
                io.write(nsid, 0, &data).await?;
            }
        }
        target.metric_becomes("weft_connections_open", &[], 0.0).await
    });
    target.stop();
}

/// More data in flight than there are buffers: pairs wait for each other, and all end.
#[test]
fn pairs_without_buffers_wait_and_do_not_block() {
    let small = "[limits]\nmax_transfer = \"64 KiB\"\n[reactors]\ncount = 1\nbuffers = \"1 MiB\"\n";
    let memory = namespace(1, "memory", 4096, "16 MiB", "");
    let target = Target::configured(&format!("{small}{}", one_subsystem(&memory)));
    run(async {
        let (host, first) = connected(&target).await?;
        let second = host.io_queue(2, 128).await?;
        let data = vec![0; 16 * 4096];
        for io in [&first, &second] {
            io.queue.hold_data();
        }
        let mut pending = Vec::new();
        for index in 0..60 {
            for io in [&first, &second] {
                let lba = index % 7 * 3;
                pending.push(io.queue.submit(&comparing(io, 1, lba, &data).by_r2t()));
                pending.push(io.queue.submit(&then_writing(io, 1, lba, &data).by_r2t()));
            }
        }
        until("data is asked for", || first.queue.held_r2ts() + second.queue.held_r2ts() > 8).await?;
        for io in [&first, &second] {
            io.queue.release_data();
        }
        for half in pending {
            half.done().await?;
        }
        Ok(())
    });
    target.stop();
}
