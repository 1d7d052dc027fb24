//! The order of checks of I/O commands: with several things wrong at once, the first in the list decides; and every command
//! offered takes what its checks let through, on every backend.

use crate::host::target::{ONE_NQN, TempDir, namespace, one_subsystem};
use crate::host::*;

const WRITE_PROTECTED: u16 = 0x020;
const SGL_TYPE: u16 = 0x011;
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const COMPARE: u8 = 0x05;
const WRITE_ZEROES: u8 = 0x08;
const DATASET_MANAGEMENT: u8 = 0x09;
const VERIFY: u8 = 0x0c;
const COPY: u8 = 0x19;

/// A deed that makes a command wrong.
type Fault = fn(Command) -> Command;

/// What can be wrong with a command that has a block range, in the order in which it has to be found out.
const IN_ORDER: [(&str, u16, Fault); 7] = [
    ("an unknown opcode", INVALID_OPCODE, |command| command.byte(0, 0xc1)),
    ("FUSE 11b", INVALID_FIELD, |command| {
        let flags = command.sqe[1] | 3;
        command.byte(1, flags)
    }),
    ("PSDT 00b", INVALID_FIELD, |command| {
        let flags = command.sqe[1] & 0x3f;
        command.byte(1, flags)
    }),
    ("NSID 0", INVALID_NAMESPACE, |command| command.nsid(0)),
    // Namespace 4 is the protected one; for commands that only read, nothing is wrong with it.
    ("a protected namespace", WRITE_PROTECTED, |command| {
        if u32_at(&command.sqe, 4) == 0 { command } else { command.nsid(4) }
    }),
    ("another length", SGL_LENGTH, |command| {
        let length = command.data.len().max(command.reads) as u32;
        command.claiming(length + 512)
    }),
    ("a range past the end", LBA_OUT_OF_RANGE, |command| command.dword(44, 0x8000_0000)),
];

fn target(directory: &TempDir) -> Target {
    let path = format!("path = \"{}\"", directory.join("blocks.img").display());
    let namespaces = [
        namespace(1, "memory", 512, "8 MiB", ""),
        namespace(2, "file", 4096, "8 MiB", &path),
        namespace(3, "null", 512, "8 MiB", ""),
        namespace(4, "memory", 512, "8 MiB", "read_only = true"),
    ];
    Target::configured(&one_subsystem(&namespaces.concat()))
}

async fn connected(target: &Target) -> Result<(Host, IoQueue), Failure> {
    let host = Host::connect(target, ONE_NQN, Options::default()).await?;
    let io = host.io_queue(1, 16).await?;
    Ok((host, io))
}

/// A correct command for two blocks, its data by R2T so that a wrong one moves none.
fn correct(io: &IoQueue, opcode: u8, nsid: u32) -> Command {
    let zeroes = vec![0; 2 * io.lba_size(nsid)];
    let command = Command::new(opcode).nsid(nsid).range(0, 2);
    match opcode {
        READ => command.reading(zeroes.len()),
        0x00 | VERIFY | WRITE_ZEROES => command,
        _ => command.writing(&zeroes).by_r2t(),
    }
}

fn is_read(opcode: u8) -> bool {
    [READ, COMPARE, VERIFY].contains(&opcode)
}

#[test]
fn the_first_thing_wrong_decides() {
    let directory = TempDir::new();
    let target = target(&directory);
    run(async {
        let (_host, io) = connected(&target).await?;
        for opcode in [READ, WRITE, COMPARE, VERIFY, WRITE_ZEROES] {
            for (at, (what, wanted, _)) in IN_ORDER.iter().enumerate() {
                if *wanted == WRITE_PROTECTED && is_read(opcode) {
                    continue;
                }
                // This and everything that is looked at later is wrong.
                let mut command = correct(&io, opcode, 1);
                for (_, _, fault) in &IN_ORDER[at..] {
                    command = fault(command);
                }
                let answer = io.queue.execute(&command).await;
                let got = answer.fails_with(*wanted, true);
                assert_eq!(got.dw0, 0, "{what} of opcode {opcode:02x}h");
                // And alone.
                let alone = IN_ORDER[at].2(correct(&io, opcode, 1));
                io.queue.execute(&alone).await.fails_with(*wanted, true);
            }
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn every_command_names_a_namespace_that_exists() {
    let directory = TempDir::new();
    let target = target(&directory);
    run(async {
        let (_host, io) = connected(&target).await?;
        let opcodes = [0x00, READ, WRITE, COMPARE, VERIFY, WRITE_ZEROES, DATASET_MANAGEMENT, COPY];
        for nsid in [0, 5, 1024, 0xffff_fffe, 0xffff_ffff] {
            for opcode in opcodes {
                let command = correct(&io, opcode, 1).nsid(nsid);
                io.queue.execute(&command).await.fails_with(INVALID_NAMESPACE, true);
            }
        }
        // What may be done with a protected namespace, and what not.
        for opcode in opcodes {
            let answer = io.queue.execute(&correct(&io, opcode, 4)).await;
            match opcode {
                0x00 | READ | COMPARE | VERIFY => drop(answer?),
                _ => drop(answer.fails_with(WRITE_PROTECTED, true)),
            }
        }
        Ok(())
    });
    target.stop();
}

/// B07: lengths that disagree with the block count, in the capsule and by R2T; the queue lives on and nothing is written.
#[test]
fn lengths_that_disagree_are_refused() {
    let directory = TempDir::new();
    let target = target(&directory);
    run(async {
        let (_host, io) = connected(&target).await?;
        for nsid in [1, 2, 3] {
            let block = io.lba_size(nsid);
            for (blocks, bytes) in
                [(8, 512), (1, 2 * block), (1, 0), (1, block - 1), (1, block + 1), (2, 700)]
            {
                let data = vec![1; bytes];
                for opcode in [WRITE, COMPARE] {
                    let command = Command::new(opcode).nsid(nsid).range(0, blocks).writing(&data);
                    io.queue.execute(&command).await.fails_with(SGL_LENGTH, true);
                    if bytes > 0 {
                        io.queue.execute(&command.by_r2t()).await.fails_with(SGL_LENGTH, true);
                    }
                }
                let read = Command::read(nsid, 0, blocks, bytes);
                io.queue.execute(&read).await.fails_with(SGL_LENGTH, true);
                assert!(io.read(nsid, 0, 2 * block).await?.iter().all(|byte| *byte == 0));
            }
        }
        Ok(())
    });
    target.stop();
}

/// Fields that mean nothing without protection information or directives do not disturb: PRINFO, LR, DTYPE, DSPEC, hints,
/// tags.
#[test]
fn fields_without_meaning_here_are_passed_over() {
    let directory = TempDir::new();
    let target = target(&directory);
    run(async {
        let (_host, io) = connected(&target).await?;
        for nsid in [1, 2, 3] {
            for opcode in [READ, COMPARE, VERIFY, WRITE_ZEROES, WRITE] {
                for bits in [1 << 31, 0xf << 26, 1 << 20, 1 << 24, 0xbc10_0000_u32] {
                    let command = correct(&io, opcode, nsid).dword(48, 1 | bits).dword(8, 7).dword(12, 9);
                    let command = command.dword(52, 0xffff_00ff).dword(56, !0).dword(60, !0);
                    io.queue.execute(&command).await?;
                }
            }
        }
        Ok(())
    });
    target.stop();
}

/// B06: ranges as hosts send them, right and wrong.
#[test]
fn dataset_management_takes_what_hosts_send() {
    let directory = TempDir::new();
    let target = target(&directory);
    let dataset = |nsid: u32, ranges: &[(u64, u32)], attributes: u32, payload: usize| {
        let mut data = Vec::new();
        for (lba, blocks) in ranges {
            data.extend_from_slice(&0xdead_beef_u32.to_le_bytes());
            data.extend_from_slice(&blocks.to_le_bytes());
            data.extend_from_slice(&lba.to_le_bytes());
        }
        data.resize(data.len().max(payload), 0);
        let command = Command::new(DATASET_MANAGEMENT).nsid(nsid).dword(40, ranges.len() as u32 - 1);
        command.dword(44, attributes).writing(&data)
    };
    run(async {
        let (_host, io) = connected(&target).await?;
        for nsid in [1, 2] {
            let block = io.lba_size(nsid);
            let end = (8_u64 << 20) / block as u64;
            let old = pattern(8, 256 * block);
            io.write(nsid, 0, &old).await?;
            for (lba, blocks) in [
                (0, u32::MAX),
                (end, 1),
                (end - 1, 2),
                (u64::MAX, 1),
                (u64::MAX - 7, 8),
                (end + 1, 0),
                (1, !0),
            ] {
                let wrong = dataset(nsid, &[(0, 1), (lba, blocks)], 4, 4096);
                io.queue.execute(&wrong).await.fails_with(LBA_OUT_OF_RANGE, true);
            }
            // NR says more than the data holds; more data than NR says is what Linux sends.
            for nr in [1, 16, 255] {
                let short = dataset(nsid, &[(0, 1)], 4, 0).dword(40, nr);
                io.queue.execute(&short).await.fails_with(SGL_LENGTH, true);
            }
            io.queue.execute(&dataset(nsid, &[(0, 256)], 0, 0)).await?;
            io.queue.execute(&dataset(nsid, &[(0, 256)], 3, 4096)).await?;
            io.queue.execute(&dataset(nsid, &[(0, 0), (end, 0)], 4, 4096)).await?;
            assert!(io.read(nsid, 0, old.len()).await? == old, "nothing was touched so far");
            // Every second block, and overlapping ranges.
            let ranges: Vec<_> = (0..256).map(|n| (n / 2 * 2, 1)).collect();
            io.queue.execute(&dataset(nsid, &ranges, 4, 0)).await?;
            let read = io.read(nsid, 0, old.len()).await?;
            for (n, (now, before)) in read.chunks(block).zip(old.chunks(block)).enumerate() {
                let right = if n % 2 == 0 { now.iter().all(|byte| *byte == 0) } else { now == before };
                assert!(right, "block {n} of namespace {nsid}");
            }
            io.queue.execute(&dataset(nsid, &[(0, end as u32), (3, 200)], 7, 0).by_r2t()).await?;
            assert!(io.read(nsid, 0, old.len()).await?.iter().all(|byte| *byte == 0));
        }
        Ok(())
    });
    target.stop();
}

/// Descriptor types that no command without data takes either.
#[test]
fn commands_without_data_take_no_data() {
    let directory = TempDir::new();
    let target = target(&directory);
    run(async {
        let (_host, io) = connected(&target).await?;
        for opcode in [VERIFY, WRITE_ZEROES] {
            for data in [&[0; 512][..], &[0; 4096]] {
                let command = Command::new(opcode).nsid(1).range(0, 1).writing(data);
                io.queue.execute(&command).await.fails_with(SGL_LENGTH, true);
                io.queue.execute(&command.by_r2t()).await.fails_with(SGL_LENGTH, true);
            }
            let keyed = Command::new(opcode).nsid(1).range(0, 1).descriptor(0, 0x40);
            match io.queue.execute(&keyed).await {
                Err(Failure::Status(completion)) => assert_eq!(completion.code(), SGL_TYPE),
                other => panic!("a keyed descriptor over TCP: {other:?}"),
            }
        }
        Ok(())
    });
    target.stop();
}
