//! Verify and Copy: blocks are read, or moved, without data on the wire; wrong ranges touch nothing.

use crate::host::target::{ONE_NQN, TempDir, namespace, one_subsystem};
use crate::host::*;

const VERIFY: u8 = 0x0c;
const COPY: u8 = 0x19;
const INVALID_FORMAT: u16 = 0x10a;
const SIZE_LIMIT: u16 = 0x183;

async fn connected(target: &Target) -> Result<(Host, IoQueue), Failure> {
    let host = Host::connect(target, ONE_NQN, Options::default()).await?;
    let io = host.io_queue(1, 32).await?;
    Ok((host, io))
}

fn verify(nsid: u32, lba: u64, blocks: u32) -> Command {
    Command::new(VERIFY).nsid(nsid).range(lba, blocks)
}

/// Copy of ranges (first block, number of blocks) to `to`, with descriptors of format 0.
fn copy(nsid: u32, to: u64, ranges: &[(u64, u32)]) -> Command {
    let mut data = Vec::new();
    for (lba, blocks) in ranges {
        data.extend_from_slice(&[0; 8]);
        data.extend_from_slice(&lba.to_le_bytes());
        data.extend_from_slice(&(blocks - 1).to_le_bytes());
        data.extend_from_slice(&[0; 12]);
    }
    let command = Command::new(COPY).nsid(nsid).dword(40, to as u32).dword(44, (to >> 32) as u32);
    command.dword(48, ranges.len() as u32 - 1).writing(&data)
}

#[test]
fn copied_ranges_follow_one_another_at_the_destination() {
    let target = Target::with_three_backends();
    run(async {
        let (_host, io) = connected(&target).await?;
        for nsid in [1, 2] {
            let block = io.lba_size(nsid);
            let source = pattern(u64::from(nsid), 1 << 20);
            io.write(nsid, 0, &source).await?;
            let far = (32 << 20) / block as u64;
            for ranges in [
                &[(0, 1)][..],
                &[(5, 3), (0, 1), (5, 3)],
                &[(1, 130), (200, 7)],
                &[(0, 60); 4],
                &[(3, 1); 128],
            ] {
                let wanted: Vec<u8> = ranges
                    .iter()
                    .flat_map(|(lba, n)| &source[*lba as usize * block..][..*n as usize * block])
                    .copied()
                    .collect();
                io.write(nsid, far - 1, &pattern(77, wanted.len() + 2 * block)).await?;
                let beside = pattern(77, wanted.len() + 2 * block);
                for by_r2t in [false, true] {
                    let command = copy(nsid, far, ranges);
                    let command = if by_r2t { command.by_r2t() } else { command.force_unit_access() };
                    io.queue.execute(&command).await?;
                    let read = io.read(nsid, far - 1, beside.len()).await?;
                    assert!(read[block..block + wanted.len()] == wanted, "namespace {nsid}: {ranges:?}");
                    assert!(read[..block] == beside[..block], "the block before");
                    assert!(
                        read[block + wanted.len()..] == beside[block + wanted.len()..],
                        "the block behind"
                    );
                }
            }
            assert!(io.read(nsid, 0, source.len()).await? == source, "the source stays");
        }
        // The null backend copies nothing to nowhere.
        io.queue.execute(&copy(3, 100, &[(0, 8), (300, 1000)])).await?;
        Ok(())
    });
    target.stop();
}

/// A destination that overlaps its source gets what the source held, whichever lies first; later ranges see earlier copies.
#[test]
fn overlapping_copies_are_in_order() {
    let target = Target::with_three_backends();
    run(async {
        let (_host, io) = connected(&target).await?;
        for nsid in [1, 2] {
            let block = io.lba_size(nsid);
            let blocks = (1 << 20) / block;
            for (to, ranges) in [
                (1, &[(0, blocks as u32 / 2)][..]),
                (0, &[(1, blocks as u32 / 2)]),
                (7, &[(7, 9)]),
                (blocks as u64 / 4, &[(3, blocks as u32 / 2)]),
                (2, &[(0, 2), (2, 2), (1, 4)]),
            ] {
                let mut model = pattern(to + 1, 1 << 20);
                io.write(nsid, 0, &model).await?;
                io.queue.execute(&copy(nsid, to, ranges)).await?;
                let mut at = to as usize * block;
                for (lba, n) in ranges {
                    let (from, len) = (*lba as usize * block, *n as usize * block);
                    model.copy_within(from..from + len, at);
                    at += len;
                }
                assert!(
                    io.read(nsid, 0, model.len()).await? == model,
                    "namespace {nsid}: {ranges:?} to {to}"
                );
            }
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn wrong_copies_fail_with_their_status_and_copy_nothing() {
    let target = Target::with_three_backends();
    run(async {
        let (host, io) = connected(&target).await?;
        for nsid in [1, 2] {
            let id = host.identify(0x00, nsid).await?;
            let (longest, most) = (u32::from(u16_at(&id, 74)), u32_at(&id, 76));
            assert!(longest > 0 && most >= longest && id[80] == 127, "MSSRL {longest}, MCL {most}");
            let end = u64_at(&id, 0);
            let data = pattern(9, 1 << 20);
            io.write(nsid, 0, &data).await?;
            let good = copy(nsid, 8, &[(0, 4), (100, 1)]);
            for format in 1..16 {
                let wrong = good.clone().dword(48, 1 | format << 8);
                let status = if format == 1 { INVALID_FORMAT } else { INVALID_FIELD };
                io.queue.execute(&wrong).await.fails_with(status, true);
            }
            for (ranges, status) in [(0, SGL_LENGTH), (2, SGL_LENGTH), (127, SGL_LENGTH), (255, SGL_LENGTH)] {
                io.queue.execute(&good.clone().dword(48, ranges)).await.fails_with(status, true);
            }
            let many = [(0, 1); 129];
            io.queue.execute(&copy(nsid, 8, &many)).await.fails_with(SIZE_LIMIT, true);
            let long = copy(nsid, 8, &[(0, 1), (0, longest + 1)]);
            io.queue.execute(&long).await.fails_with(SIZE_LIMIT, true);
            let sum: Vec<_> = (0..most / longest).map(|_| (0, longest)).chain([(0, 1)]).collect();
            io.queue.execute(&copy(nsid, 8, &sum)).await.fails_with(SIZE_LIMIT, true);
            for lba in [end, end - 1, u64::MAX, u64::MAX - 1, 1 << 63] {
                let source = copy(nsid, 8, &[(0, 4), (lba, 2)]);
                let failed = io.queue.execute(&source).await.fails_with(LBA_OUT_OF_RANGE, true);
                assert_eq!(failed.dw0, 0, "nothing was copied");
                let destination = copy(nsid, lba, &[(0, 1), (0, 1)]);
                io.queue.execute(&destination).await.fails_with(LBA_OUT_OF_RANGE, true);
            }
            assert!(io.read(nsid, 0, data.len()).await? == data, "nothing was copied");
            // What the limits allow works.
            io.queue.execute(&copy(nsid, end - u64::from(longest), &[(0, longest)])).await?;
            let tail = io.read(nsid, end - u64::from(longest), 1 << 20).await?;
            assert!(tail == data, "the longest range");
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn verify_reads_without_data() {
    let directory = TempDir::new();
    let path = directory.join("cut.img");
    let in_file = namespace(2, "file", 512, "8 MiB", &format!("path = \"{}\"", path.display()));
    let namespaces =
        [namespace(1, "memory", 4096, "8 MiB", ""), in_file, namespace(3, "null", 512, "8 MiB", "")];
    let target = Target::configured(&one_subsystem(&namespaces.concat()));
    run(async {
        let (_host, io) = connected(&target).await?;
        for nsid in [1, 2, 3] {
            let end = (8_u64 << 20) / io.lba_size(nsid) as u64;
            for (lba, blocks) in [(0, 1), (end - 1, 1), (3, 77), (0, end as u32)] {
                io.queue.execute(&verify(nsid, lba, blocks)).await?;
            }
            for (lba, blocks) in [(end, 1), (end - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 2), (0, 65_536)] {
                io.queue.execute(&verify(nsid, lba, blocks)).await.fails_with(LBA_OUT_OF_RANGE, true);
            }
            let with_data = verify(nsid, 0, 1).writing(&[0; 512]);
            io.queue.execute(&with_data).await.fails_with(SGL_LENGTH, true);
            io.queue.execute(&with_data.by_r2t()).await.fails_with(SGL_LENGTH, true);
        }
        // Blocks that are gone are found, wherever they are in the range; the others are still good.
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
        file.set_len(4 << 20).expect("made shorter");
        io.queue.execute(&verify(2, 0, 8192)).await?;
        for (lba, blocks) in [(0, 8193), (0, 16_384), (16_383, 1)] {
            io.queue.execute(&verify(2, lba, blocks)).await.fails_with(0x281, true);
        }
        // A copy says how far it came.
        let half = copy(2, 0, &[(10, 1), (20, 2), (8190, 4)]);
        let failed = io.queue.execute(&half).await.fails_with(0x281, true);
        assert_eq!(failed.dw0, 2, "the lowest range not copied completely");
        Ok(())
    });
    target.stop();
}

#[test]
fn a_protected_namespace_is_verified_and_not_copied_to() {
    let target =
        Target::configured(&one_subsystem(&namespace(1, "memory", 512, "1 MiB", "read_only = true")));
    run(async {
        let (_host, io) = connected(&target).await?;
        io.queue.execute(&verify(1, 0, 2048)).await?;
        io.queue.execute(&copy(1, 8, &[(0, 1)])).await.fails_with(0x020, true);
        Ok(())
    });
    target.stop();
}
