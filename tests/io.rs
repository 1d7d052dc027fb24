//! Read, Write and Flush: data comes back as it was written, whatever the size, the backend and the order, and wrong
//! commands fail alone.

use crate::host::target::{ONE_NQN, namespace, one_memory, one_subsystem};
use crate::host::*;
use futures::future::join_all;

const SIZES: [usize; 9] = [512, 4096, 7680, 8192, 8704, 16 << 10, 65_024, 256 << 10, 1 << 20];

async fn connected(target: &Target, options: Options) -> Result<(Host, IoQueue), Failure> {
    let host = Host::connect(target, ONE_NQN, options).await?;
    let io = host.io_queue(1, 128).await?;
    Ok((host, io))
}

#[test]
fn data_of_any_size_comes_back() {
    let target = Target::with_three_backends();
    run(async {
        let (_host, io) = connected(&target, Options::default()).await?;
        for nsid in [1, 2] {
            for (index, size) in SIZES.into_iter().enumerate() {
                let size = size.next_multiple_of(io.lba_size(nsid));
                let lba = ((index << 20) / io.lba_size(nsid)) as u64;
                for by_r2t in [false, true] {
                    let data = pattern(size as u64 + u64::from(by_r2t), size);
                    let write = io.writing(nsid, lba, &data);
                    let write = if by_r2t { write.by_r2t() } else { write };
                    io.queue.execute(&write).await?;
                    assert!(io.read(nsid, lba, size).await? == data, "{size} bytes of namespace {nsid}");
                }
            }
            io.flush(nsid).await?;
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn host_data_may_come_in_many_pieces() {
    let target = Target::with_three_backends();
    run(async {
        for h2c_chunk in [4, 512, 4092, 4096, 100_000] {
            let options = Options { h2c_chunk: Some(h2c_chunk), ..Options::default() };
            let (_host, io) = connected(&target, options).await?;
            let size = if h2c_chunk < 512 { 16 << 10 } else { 512 << 10 };
            for nsid in [1, 2] {
                let data = pattern(h2c_chunk as u64, size);
                io.write(nsid, 24, &data).await?;
                assert!(io.read(nsid, 24, size).await? == data, "pieces of {h2c_chunk} bytes");
            }
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn a_namespace_reads_zeroes_until_it_is_written() {
    let target = Target::with_three_backends();
    run(async {
        let (_host, io) = connected(&target, Options::default()).await?;
        for nsid in [1, 2, 3] {
            let end = (64 << 20) / io.lba_size(nsid) as u64;
            let blocks = (32 << 10) / io.lba_size(nsid) as u64;
            for lba in [0, end / 2, end - blocks] {
                assert!(io.read(nsid, lba, 32 << 10).await?.iter().all(|byte| *byte == 0));
            }
        }
        // The null backend forgets.
        io.write(3, 0, &pattern(1, 8192)).await?;
        assert!(io.read(3, 0, 8192).await?.iter().all(|byte| *byte == 0));
        Ok(())
    });
    target.stop();
}

/// A queue as deep as it can be, sizes mixed, every command in flight at once.
#[test]
fn a_full_queue_of_writes_and_reads_keeps_the_data_apart() {
    let target = Target::with_three_backends();
    run(async {
        for flow_control in [false, true] {
            let options = Options { flow_control, ..Options::default() };
            let (_host, io) = connected(&target, options).await?;
            for (nsid, depth) in [(1, 127), (2, 127), (1, 1), (2, 32)] {
                let size = |index: usize| [4096, 8192, 20_480, 65_536][index % 4];
                let lba = |index: usize| (index * 65_536 / io.lba_size(nsid)) as u64;
                let data = |index: usize| pattern(index as u64 * 7 + depth as u64, size(index));
                let writes =
                    (0..depth).map(|index| io.queue.submit(&io.writing(nsid, lba(index), &data(index))));
                for done in join_all(writes.collect::<Vec<_>>().into_iter().map(Pending::done)).await {
                    done?;
                }
                let reads =
                    (0..depth).map(|index| io.queue.submit(&io.reading(nsid, lba(index), size(index))));
                let reads = join_all(reads.collect::<Vec<_>>().into_iter().map(Pending::done)).await;
                for (index, read) in reads.into_iter().enumerate() {
                    assert!(read?.data == data(index), "command {index} of {depth} on namespace {nsid}");
                }
            }
        }
        Ok(())
    });
    target.stop();
}

/// Commands overtake one that waits for its data, and the late data still lands where it belongs.
#[test]
fn commands_overtake_one_that_waits_for_its_data() {
    let target = Target::with_three_backends();
    run(async {
        let (host, io) = connected(&target, Options::default()).await?;
        for nsid in [1, 2] {
            let old = pattern(1, 256 << 10);
            io.write(nsid, 0, &old).await?;
            io.queue.hold_data();
            let new: Vec<_> = (0..4).map(|seed| pattern(10 + seed, 64 << 10)).collect();
            let blocks = ((64 << 10) / io.lba_size(nsid)) as u64;
            let writes: Vec<_> = (0..4_u64)
                .map(|index| io.queue.submit(&io.writing(nsid, index * blocks, &new[index as usize])))
                .collect();
            until("every write has asked for its data", || io.queue.held_r2ts() == 4).await?;
            for _ in 0..20 {
                assert!(io.read(nsid, 0, old.len()).await? == old, "nothing is written before its data came");
                io.write(nsid, 4096, &pattern(2, 4096)).await?;
                io.flush(nsid).await?;
                host.identify(0x01, 0).await?;
            }
            // The data comes in the opposite order of the commands.
            io.queue.release_data();
            for write in writes {
                write.done().await?;
            }
            assert!(io.read(nsid, 0, old.len()).await? == new.concat());
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn queue_pairs_and_hosts_see_the_same_namespace() {
    let target = Target::with_three_backends();
    run(async {
        let (host, first) = connected(&target, Options::default()).await?;
        let second = host.io_queue(2, 32).await?;
        let third = host.io_queue(3, 32).await?;
        let (_other_host, other) = connected(&target, Options::host("nqn.2026-12.io.weft:other")).await?;
        let queues = [&first, &second, &third, &other];
        for round in 0..24_usize {
            for nsid in [1, 2] {
                let data = pattern(round as u64, 12_288);
                queues[round % 4].write(nsid, 40, &data).await?;
                for reader in queues {
                    assert!(reader.read(nsid, 40, data.len()).await? == data, "round {round}");
                }
            }
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn force_unit_access_and_flush_succeed() {
    let target = Target::with_three_backends();
    run(async {
        let (host, io) = connected(&target, Options::default()).await?;
        for nsid in [1, 2, 3] {
            let data = pattern(u64::from(nsid), 16 << 10);
            io.queue.execute(&io.writing(nsid, 0, &data).force_unit_access()).await?;
            let read = io.queue.execute(&io.reading(nsid, 0, data.len()).force_unit_access()).await?;
            assert!(nsid == 3 || read.data == data);
            io.flush(nsid).await?;
        }
        let cache = host.identify(0x01, 0).await?[525];
        match cache >> 1 & 3 {
            3 => drop(io.flush(0xffff_ffff).await?),
            _ => drop(io.flush(0xffff_ffff).await.fails_with(INVALID_NAMESPACE, true)),
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn wrong_commands_fail_alone_and_move_nothing() {
    let target = Target::with_three_backends();
    run(async {
        let (_host, io) = connected(&target, Options::default()).await?;
        for nsid in [1, 2] {
            let block = io.lba_size(nsid);
            let end = ((64 << 20) / block) as u64;
            let keep = pattern(3, 2 * block);
            io.write(nsid, end - 2, &keep).await?;
            let data = pattern(4, 2 * block);
            for lba in [end - 1, end, u64::MAX - 1, u64::MAX, 1 << 62] {
                for by_r2t in [false, true] {
                    let write = io.writing(nsid, lba, &data);
                    let write = if by_r2t { write.by_r2t() } else { write };
                    io.queue.execute(&write).await.fails_with(LBA_OUT_OF_RANGE, true);
                }
                let read = io.queue.execute(&io.reading(nsid, lba, 2 * block)).await;
                read.fails_with(LBA_OUT_OF_RANGE, true);
            }
            // The descriptor promises another length than the command implies.
            let write = Command::write(nsid, end - 2, 1, &data);
            io.queue.execute(&write).await.fails_with(SGL_LENGTH, true);
            io.queue.execute(&write.clone().by_r2t()).await.fails_with(SGL_LENGTH, true);
            let write = Command::write(nsid, end - 2, 2, &data[..block]);
            io.queue.execute(&write).await.fails_with(SGL_LENGTH, true);
            for (blocks, bytes) in [(1, 2 * block), (2, block)] {
                let read = Command::read(nsid, 0, blocks, bytes);
                io.queue.execute(&read).await.fails_with(SGL_LENGTH, true);
            }
            assert!(io.read(nsid, end - 2, 2 * block).await? == keep, "what was there is still there");
        }
        for nsid in [0, 4, 1024, 0xffff_fffe, 0xffff_ffff] {
            io.queue.execute(&Command::read(nsid, 0, 1, 512)).await.fails_with(INVALID_NAMESPACE, true);
            let write = Command::write(nsid, 0, 1, &[1; 512]);
            io.queue.execute(&write).await.fails_with(INVALID_NAMESPACE, true);
            io.queue.execute(&write.by_r2t()).await.fails_with(INVALID_NAMESPACE, true);
        }
        io.flush(4).await.fails_with(INVALID_NAMESPACE, true);
        for opcode in [0x7b, 0xc1, 0xff] {
            io.queue.execute(&Command::new(opcode).nsid(1)).await.fails_with(INVALID_OPCODE, true);
            let with_data = Command::new(opcode).nsid(1).writing(&[7; 4096]);
            io.queue.execute(&with_data).await.fails_with(INVALID_OPCODE, true);
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn fields_no_fabrics_host_sets_are_refused() {
    let target = Target::configured(&one_memory());
    run(async {
        let (_host, io) = connected(&target, Options::default()).await?;
        let read = io.reading(1, 0, 512);
        for flags in [0x00, 0x80, 0xc0, 0x43, 0x83] {
            io.queue.execute(&read.clone().byte(1, flags)).await.fails_with(INVALID_FIELD, true);
        }
        // In-capsule descriptor for data that goes the other way.
        let mut backwards = read.clone().descriptor(512, 0x01);
        backwards.reads = 512;
        if let Err(Failure::Status(completion)) = io.queue.execute(&backwards).await {
            assert!(
                [INVALID_FIELD, 0x011].contains(&completion.code()) && completion.dnr(),
                "{completion:03x?}"
            );
        }
        Ok(())
    });
    run(async {
        // Descriptor types TCP does not have: a status, or the end of the queue pair (FES 6); never data.
        for kind in [0x00, 0x02, 0x0f, 0x20, 0x40, 0x4f, 0x5b] {
            let (_host, io) = connected(&target, Options::default()).await?;
            match io.queue.execute(&io.reading(1, 0, 512).descriptor(512, kind)).await {
                Err(Failure::Status(completion)) => {
                    assert!(
                        [INVALID_FIELD, 0x011].contains(&completion.code()),
                        "{kind:02x}h: {completion:03x?}"
                    );
                    assert!(completion.dnr());
                    io.read(1, 0, 512).await?;
                }
                Err(Failure::Closed(_)) => {}
                Err(Failure::Protocol(why)) if why.contains("type 03h") => {}
                other => panic!("descriptor type {kind:02x}h: {other:?}"),
            }
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn a_read_only_namespace_refuses_writes() {
    let namespaces = namespace(1, "memory", 512, "1 MiB", "read_only = true");
    let target = Target::configured(&one_subsystem(&namespaces));
    run(async {
        let (host, io) = connected(&target, Options::default()).await?;
        assert_eq!(host.identify(0x00, 1).await?[99] & 1, 1, "NSATTR: write protected");
        io.write(1, 0, &pattern(1, 512)).await.fails_with(0x020, true);
        let large = io.writing(1, 0, &pattern(1, 32 << 10));
        io.queue.execute(&large).await.fails_with(0x020, true);
        assert!(io.read(1, 0, 512).await?.iter().all(|byte| *byte == 0));
        Ok(())
    });
    target.stop();
}

/// Random commands on random ranges against a model of the namespace.
#[test]
fn random_commands_agree_with_a_model() {
    let target = Target::with_three_backends();
    run(async {
        let options =
            Options { h2c_chunk: Some(30_000), ..Options::with(Digests { header: true, data: true }) };
        let (_host, io) = connected(&target, options).await?;
        for nsid in [1, 2] {
            let block = io.lba_size(nsid);
            let blocks = (2 << 20) / block;
            let mut model = vec![0_u8; 2 << 20];
            let choices = pattern(99 + u64::from(nsid), 400 * 8);
            for choice in choices.chunks(8) {
                let choice = u64_at(choice, 0) as usize;
                let at = choice % blocks;
                let count = 1 + (choice >> 24) % (blocks - at).min(128);
                let range = at * block..(at + count) * block;
                if choice >> 60 & 1 == 0 {
                    let data = pattern(choice as u64, range.len());
                    let write = io.writing(nsid, at as u64, &data);
                    let write = if choice >> 61 & 1 == 0 { write } else { write.by_r2t() };
                    io.queue.execute(&write).await?;
                    model[range].copy_from_slice(&data);
                } else {
                    let data = io.read(nsid, at as u64, range.len()).await?;
                    assert!(data == model[range], "blocks {at} to {}", at + count);
                }
            }
        }
        Ok(())
    });
    target.stop();
}
