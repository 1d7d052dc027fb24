//! Write Zeroes, Dataset Management and Compare: ranges become zero and nothing beside them changes; what is equal is
//! equal, and what is not says so.

use crate::host::target::{ONE_NQN, TempDir, namespace, one_subsystem, three_backends};
use crate::host::*;
use std::os::unix::fs::MetadataExt;

const COMPARE: u8 = 0x05;
const WRITE_ZEROES: u8 = 0x08;
const DATASET_MANAGEMENT: u8 = 0x09;
const COMPARE_FAILURE: u16 = 0x285;
/// CDW12 bit 25.
const DEAC: u32 = 1 << 25;
/// CDW11 bit 2.
const DEALLOCATE: u32 = 1 << 2;

async fn connected(target: &Target) -> Result<(Host, IoQueue), Failure> {
    let host = Host::connect(target, ONE_NQN, Options::default()).await?;
    let io = host.io_queue(1, 64).await?;
    Ok((host, io))
}

fn write_zeroes(nsid: u32, lba: u64, blocks: u32, flags: u32) -> Command {
    Command::new(WRITE_ZEROES).nsid(nsid).range(lba, blocks).dword(48, (blocks - 1) | flags)
}

/// Dataset Management of ranges (first block, number of blocks), with a payload of at least `payload` bytes.
fn dataset(nsid: u32, ranges: &[(u64, u32)], attributes: u32, payload: usize) -> Command {
    let mut data = Vec::new();
    for (lba, blocks) in ranges {
        data.extend_from_slice(&[0; 4]);
        data.extend_from_slice(&blocks.to_le_bytes());
        data.extend_from_slice(&lba.to_le_bytes());
    }
    data.resize(data.len().max(payload), 0);
    let command = Command::new(DATASET_MANAGEMENT).nsid(nsid).dword(40, ranges.len() as u32 - 1);
    command.dword(44, attributes).writing(&data)
}

/// Fills the first MiB, lets `change` make a part of it zero (by byte offset and length), and looks at all of it.
async fn becomes_zero(
    io: &IoQueue,
    nsid: u32,
    (offset, len): (usize, usize),
    change: Command,
) -> Result<(), Failure> {
    let mut all = pattern(offset as u64, 1 << 20);
    io.write(nsid, 0, &all).await?;
    io.queue.execute(&change).await?;
    all[offset..offset + len].fill(0);
    assert!(io.read(nsid, 0, 1 << 20).await? == all, "namespace {nsid}, {len} bytes at {offset}");
    Ok(())
}

#[test]
fn ranges_become_zero_and_nothing_beside_them() {
    let target = Target::with_three_backends();
    run(async {
        let (_host, io) = connected(&target).await?;
        for nsid in [1, 2] {
            let block = io.lba_size(nsid);
            for (lba, blocks) in [(0, 1), (3, 5), (7, 100), (0, (1 << 20) / block as u32)] {
                let bytes = (lba as usize * block, blocks as usize * block);
                for flags in [0, DEAC, 1 << 30] {
                    becomes_zero(&io, nsid, bytes, write_zeroes(nsid, lba, blocks, flags)).await?;
                }
                for payload in [0, 4096] {
                    let change = dataset(nsid, &[(lba, blocks)], DEALLOCATE, payload);
                    becomes_zero(&io, nsid, bytes, change).await?;
                }
            }
            // Several ranges, one of them empty, by R2T; and hints from which nothing follows.
            let two = dataset(nsid, &[(1, 1), (5, 0), (2, 1)], DEALLOCATE, 0).by_r2t();
            becomes_zero(&io, nsid, (block, 2 * block), two).await?;
            becomes_zero(&io, nsid, (0, 0), dataset(nsid, &[(0, 8)], 3, 0)).await?;
            // Far beyond the largest transfer: there is no data to transfer.
            io.write(nsid, 0, &pattern(9, 1 << 20)).await?;
            let blocks = (16 << 20) / block as u32;
            io.queue.execute(&write_zeroes(nsid, 0, blocks, 0)).await?;
            assert!(io.read(nsid, 0, 1 << 20).await?.iter().all(|byte| *byte == 0));
        }
        io.queue.execute(&write_zeroes(3, 0, 8, 0)).await?;
        io.queue.execute(&dataset(3, &[(0, 8)], DEALLOCATE, 0)).await?;
        Ok(())
    });
    target.stop();
}

#[test]
fn equal_data_compares_and_a_flipped_bit_does_not() {
    let target = Target::with_three_backends();
    run(async {
        let (_host, io) = connected(&target).await?;
        for nsid in [1, 2] {
            let block = io.lba_size(nsid);
            for size in [block, 8 << 10, 200 << 10, 1 << 20] {
                let data = pattern(size as u64, size);
                io.write(nsid, 16, &data).await?;
                let compare = |data: &[u8]| {
                    let blocks = (data.len() / block) as u32;
                    Command::new(COMPARE).nsid(nsid).range(16, blocks).writing(data)
                };
                io.queue.execute(&compare(&data)).await?;
                for at in [0, size / 2, size - 1] {
                    let mut other = data.clone();
                    other[at] ^= 0x10;
                    io.queue.execute(&compare(&other)).await.fails_with(COMPARE_FAILURE, true);
                }
                assert!(io.read(nsid, 16, size).await? == data, "Compare changes nothing");
            }
        }
        let zeroes = Command::new(COMPARE).nsid(3).range(0, 8).writing(&[0; 4096]);
        io.queue.execute(&zeroes).await?;
        Ok(())
    });
    target.stop();
}

#[test]
fn wrong_ranges_fail_alone_and_touch_nothing() {
    let target = Target::with_three_backends();
    run(async {
        let (_host, io) = connected(&target).await?;
        for nsid in [1, 2] {
            let end = (64_u64 << 20) / io.lba_size(nsid) as u64;
            let data = pattern(5, 1 << 20);
            io.write(nsid, 0, &data).await?;
            for (lba, blocks) in [(end - 1, 2), (end, 1), (u64::MAX, 1), (u64::MAX - 1, 2)] {
                let zeroes = io.queue.execute(&write_zeroes(nsid, lba, blocks, 0)).await;
                zeroes.fails_with(LBA_OUT_OF_RANGE, true);
                // The first range is right; it is not touched either.
                let ranges = dataset(nsid, &[(0, 8), (lba, blocks)], DEALLOCATE, 0);
                io.queue.execute(&ranges).await.fails_with(LBA_OUT_OF_RANGE, true);
            }
            let with_data = write_zeroes(nsid, 0, 1, 0).writing(&data[..4096]);
            io.queue.execute(&with_data).await.fails_with(SGL_LENGTH, true);
            let short = dataset(nsid, &[(0, 8)], DEALLOCATE, 0).dword(40, 1);
            io.queue.execute(&short).await.fails_with(SGL_LENGTH, true);
            let half = Command::new(COMPARE).nsid(nsid).range(0, 64).writing(&data[..4096]);
            io.queue.execute(&half).await.fails_with(SGL_LENGTH, true);
            assert!(io.read(nsid, 0, 1 << 20).await? == data);
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn a_protected_namespace_compares_and_refuses_to_be_zeroed() {
    let directory = TempDir::new();
    let path = directory.join("fixed.img");
    std::fs::write(&path, pattern(1, 1 << 20)).expect("a file");
    let extra = format!("path = \"{}\"\nread_only = true", path.display());
    let target = Target::configured(&one_subsystem(&namespace(1, "file", 4096, "1 MiB", &extra)));
    run(async {
        let (_host, io) = connected(&target).await?;
        io.queue.execute(&write_zeroes(1, 0, 1, 0)).await.fails_with(0x020, true);
        io.queue.execute(&dataset(1, &[(0, 1)], DEALLOCATE, 0)).await.fails_with(0x020, true);
        let compare = Command::new(COMPARE).nsid(1).range(0, 1).writing(&pattern(1, 1 << 20)[..4096]);
        io.queue.execute(&compare).await?;
        Ok(())
    });
    target.stop();
}

#[test]
fn deallocated_blocks_of_a_file_take_no_space() {
    let directory = TempDir::new();
    let path = directory.join("namespace.img");
    let rest = three_backends(&directory);
    let target = Target::configured_in(directory, &rest);
    run(async {
        let (_host, io) = connected(&target).await?;
        let blocks = || std::fs::metadata(&path).expect("the file").blocks();
        io.write(2, 0, &pattern(1, 1 << 20)).await?;
        io.flush(2).await?;
        let full = blocks();
        io.queue.execute(&dataset(2, &[(0, 256)], DEALLOCATE, 0)).await?;
        io.flush(2).await?;
        assert!(blocks() + 1024 < full, "{full} blocks before, {} after", blocks());
        Ok(())
    });
    target.stop();
}

#[test]
fn what_is_offered_is_what_works() {
    let target = Target::with_three_backends();
    run(async {
        let (host, _io) = connected(&target).await?;
        let controller = host.identify(0x01, 0).await?;
        let offered = u16_at(&controller, 520);
        // Compare, Dataset Management, Write Zeroes, save and select, timestamp, Verify, Copy.
        assert_eq!(offered, 0b1_1101_1101, "ONCS");
        assert_eq!(u16_at(&controller, 534), 0b11, "copy descriptor formats 0 and 1");
        for nsid in [1, 2, 3] {
            assert_eq!(host.identify(0x00, nsid).await?[33], 0b1001, "DLFEAT: reads zeroes, DEAC");
        }
        let effects = host.log(0x05, 4096, 0).await?;
        let supported: Vec<usize> = (0..256).filter(|op| effects[1024 + op * 4] & 1 != 0).collect();
        assert_eq!(supported, [0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0c, 0x19]);
        let changing: Vec<usize> = (0..256).filter(|op| effects[1024 + op * 4] & 2 != 0).collect();
        assert_eq!(changing, [0x01, 0x08, 0x09, 0x19]);
        Ok(())
    });
    target.stop();
}
