//! A drive that is not there: what the queue sends it is recorded, what it answers is the test's choice.

use super::*;
use nvme::{Nsid, Sqe};
use reactor::{BufferClass, Driven, Options};
use std::{cell::RefCell, collections::VecDeque, rc::Rc, sync::Arc};

const BLOCK: usize = 512;
const BLOCKS: usize = 4096;

/// A drive in memory. Errors are given out in order, before anything is done.
struct Fake {
    reactor: Reactor,
    seen: RefCell<Vec<DriveCommand>>,
    medium: RefCell<Vec<u8>>,
    errors: RefCell<VecDeque<io::Result<u16>>>,
    pauses: RefCell<u32>,
}

type Queue = DriveQueuePair<Rc<Fake>>;

impl Drive for Rc<Fake> {
    async fn run(
        &self,
        command: DriveCommand,
        mut buffer: Option<DataBuffer>,
        offset: usize,
        len: usize,
    ) -> Driven {
        self.seen.borrow_mut().push(command);
        match self.errors.borrow_mut().pop_front() {
            Some(Err(error)) => return (Err(error), buffer),
            Some(Ok(status)) if status != 0 => return (Ok(DriveAnswer { status, result: 0 }), buffer),
            _ => {}
        }
        assert_eq!(command.nsid, 7, "the drive's own number");
        let lba = (u64::from(command.cdw10[1]) << 32 | u64::from(command.cdw10[0])) as usize;
        let bytes = lba * BLOCK..(lba + (command.cdw10[2] as usize & 0xffff) + 1) * BLOCK;
        let mut medium = self.medium.borrow_mut();
        let mut status = 0;
        let data = buffer.as_mut().map(|b| &mut b.as_mut_slice()[offset..offset + len]);
        match (IoOpcode::from_u8(command.opcode).unwrap(), data) {
            (IoOpcode::Read, Some(data)) => data.copy_from_slice(&medium[bytes]),
            (IoOpcode::Write, Some(data)) => medium[bytes].copy_from_slice(data),
            (IoOpcode::Compare, Some(data)) => status = if medium[bytes] == *data { 0 } else { 0x285 },
            (IoOpcode::WriteZeroes, None) => medium[bytes].fill(0),
            (IoOpcode::DatasetManagement, Some(range)) => {
                let word = |at: usize| u32::from_le_bytes(range[at..at + 4].try_into().unwrap()) as usize;
                medium[word(8) * BLOCK..(word(8) + word(4)) * BLOCK].fill(0);
            }
            (IoOpcode::Flush, None) => {}
            other => panic!("{:?} with {} bytes", other.0, len),
        }
        (Ok(DriveAnswer { status, result: 0 }), buffer)
    }

    async fn buffer(&self, len: usize) -> DataBuffer {
        self.reactor.buffer(len, BufferClass::Io).await
    }

    async fn pause(&self) {
        *self.pauses.borrow_mut() += 1;
        self.reactor.yield_now().await;
    }

    fn is_multipath(&self) -> bool {
        false
    }
}

fn namespace(abilities: Abilities) -> DriveNamespace {
    DriveNamespace {
        node: "ng0n1".into(),
        block_device: "nvme0n1".into(),
        nsid: 7,
        lba_size: BLOCK as u32,
        lba_count: BLOCKS as u64,
        metadata_size: 0,
        protection: 0,
        command_set: 0,
        max_bytes: 8 * BLOCK,
        write_zeroes_blocks: 16,
        deallocate_blocks: 10,
        volatile_write_cache: true,
        deallocated_reads_zeroes: true,
        abilities,
        multipath: false,
        model: String::new(),
        serial: String::new(),
        firmware: String::new(),
    }
}

const ALL: Abilities = Abilities { compare: true, write_zeroes: true, dataset_management: true };

/// Runs `test` with a queue to a drive whose block n is full of the byte n.
fn with_drive<F: Future<Output = ()> + 'static>(
    abilities: Abilities,
    test: impl FnOnce(Queue, Rc<Fake>) -> F + 'static,
) {
    let options = Options { buffers: 4 << 20, max_buffer: 1 << 20, ..Options::default() };
    let (reactor, _) = Reactor::new(&options, Arc::default()).expect("a ring");
    let medium = (0..BLOCKS).flat_map(|n| [n as u8; BLOCK]).collect();
    let fake = Rc::new(Fake {
        reactor: reactor.clone(),
        seen: RefCell::default(),
        medium: RefCell::new(medium),
        errors: RefCell::default(),
        pauses: RefCell::default(),
    });
    let queue = DriveQueuePair::new(fake.clone(), &namespace(abilities), &reactor).unwrap();
    reactor.block_on(test(queue, fake));
}

fn sqe(opcode: IoOpcode, lba: u64, blocks: u32) -> Sqe {
    IoCommand::encode(opcode, Nsid(1), Lba(lba), blocks, false)
}

async fn run(queue: &Queue, sqe: &Sqe, data: Option<DataBuffer>) -> (Completion, Data) {
    queue.execute(&IoCommand::parse(sqe).unwrap(), data).await
}

async fn filled(fake: &Rc<Fake>, byte: u8, len: usize) -> DataBuffer {
    let mut buffer = fake.buffer(len).await;
    buffer.as_mut_slice()[..len].fill(byte);
    buffer.set_len(len);
    buffer
}

/// What was sent, as (opcode, first block, blocks).
fn sent(fake: &Rc<Fake>) -> Vec<(u8, u32, u32)> {
    fake.seen.take().iter().map(|c| (c.opcode, c.cdw10[0], (c.cdw10[2] & 0xffff) + 1)).collect()
}

#[test]
fn a_large_command_is_split_and_joined() {
    with_drive(ALL, |queue, fake| async move {
        let (completion, data) = run(&queue, &sqe(IoOpcode::Read, 100, 20), None).await;
        assert!(completion.status.is_success());
        let Data::Arena(data) = data else { panic!("no data") };
        let want: Vec<u8> = (100..120).flat_map(|n| [n as u8; BLOCK]).collect();
        assert_eq!(data.filled(), &want);
        assert_eq!(sent(&fake), [(2, 100, 8), (2, 108, 8), (2, 116, 4)]);
        let data = filled(&fake, 9, 17 * BLOCK).await;
        run(&queue, &sqe(IoOpcode::Write, 4, 17), Some(data)).await;
        assert_eq!(sent(&fake), [(1, 4, 8), (1, 12, 8), (1, 20, 1)]);
        assert_eq!(fake.medium.borrow()[4 * BLOCK..22 * BLOCK][..17 * BLOCK], [9; 17 * BLOCK]);
    });
}

#[test]
fn the_bits_a_drive_may_see_go_on_and_no_others() {
    with_drive(ALL, |queue, fake| async move {
        let mut write = sqe(IoOpcode::Write, 1 << 20, 1);
        write.set_cdw(12, write.cdw(12) | 0xfff0_0000);
        write.set_cdw(13, 0xffff_ff45);
        write.set_cdw(14, 5);
        write.set_cdw(2, 6);
        fake.errors.borrow_mut().push_back(Ok(0x281));
        let data = filled(&fake, 1, BLOCK).await;
        let (completion, _) = run(&queue, &write, Some(data)).await;
        assert_eq!(completion.status, Status::UNRECOVERED_READ_ERROR);
        let seen = fake.seen.take()[0];
        assert_eq!(seen.cdw10, [1 << 20, 0, LIMITED_RETRY | FORCE_UNIT_ACCESS, 0x45, 0, 0]);
        assert_eq!(seen.cdw2, [0; 2]);
    });
}

#[test]
fn the_first_failure_ends_a_split_command() {
    with_drive(ALL, |queue, fake| async move {
        fake.errors.borrow_mut().extend([Ok(0), Ok(0x281)]);
        let (completion, data) = run(&queue, &sqe(IoOpcode::Read, 0, 24), None).await;
        assert_eq!(completion.status, Status::UNRECOVERED_READ_ERROR);
        assert!(matches!(data, Data::None), "no byte of a failed read leaves");
        assert_eq!(sent(&fake).len(), 2);
    });
}

#[test]
fn what_the_kernel_had_no_room_for_is_sent_again() {
    with_drive(ALL, |queue, fake| async move {
        let busy = || Err(io::Error::from_raw_os_error(11));
        fake.errors.borrow_mut().extend([busy(), busy(), Ok(0), busy()]);
        let (completion, _) = run(&queue, &sqe(IoOpcode::Read, 0, 16), None).await;
        assert!(completion.status.is_success());
        assert_eq!((sent(&fake).len(), fake.pauses.take()), (5, 3));
        fake.errors.borrow_mut().extend((0..=TRIES).map(|_| busy()));
        let (completion, _) = run(&queue, &sqe(IoOpcode::Read, 0, 1), None).await;
        assert_eq!(completion.status, Status::COMMAND_INTERRUPTED);
        fake.errors.borrow_mut().extend([busy(), Ok(0)]);
        assert!(run(&queue, &sqe(IoOpcode::Flush, 0, 1), None).await.0.status.is_success());
        fake.errors.borrow_mut().push_back(Err(io::Error::from_raw_os_error(19)));
        let (completion, _) = run(&queue, &sqe(IoOpcode::Flush, 0, 1), None).await;
        assert_eq!(completion.status, Status::INTERNAL_PATH_ERROR);
    });
}

#[test]
fn compare_is_the_drives_or_done_by_reading() {
    for compare in [true, false] {
        with_drive(Abilities { compare, ..ALL }, move |queue, fake| async move {
            let mut data = fake.buffer(20 * BLOCK).await;
            for n in 0..20 {
                data.as_mut_slice()[n * BLOCK..(n + 1) * BLOCK].fill(n as u8);
            }
            data.set_len(20 * BLOCK);
            let (completion, _) = run(&queue, &sqe(IoOpcode::Compare, 0, 20), Some(data)).await;
            assert!(completion.status.is_success());
            let opcode = if compare { 5 } else { 2 };
            assert_eq!(sent(&fake), [(opcode, 0, 8), (opcode, 8, 8), (opcode, 16, 4)]);
            let data = filled(&fake, 3, BLOCK).await;
            let (completion, _) = run(&queue, &sqe(IoOpcode::Compare, 4, 1), Some(data)).await;
            assert_eq!(completion.status.code(), Status::COMPARE_FAILURE.code());
        });
    }
}

#[test]
fn zeroes_are_the_drives_or_written() {
    for write_zeroes in [true, false] {
        with_drive(Abilities { write_zeroes, ..ALL }, move |queue, fake| async move {
            let mut zero = sqe(IoOpcode::WriteZeroes, 1, 33);
            zero.set_cdw(12, zero.cdw(12) | DEALLOCATE | FORCE_UNIT_ACCESS);
            assert!(run(&queue, &zero, None).await.0.status.is_success());
            let medium = fake.medium.borrow();
            assert!(medium[BLOCK..34 * BLOCK].iter().all(|b| *b == 0) && medium[34 * BLOCK] == 34);
            let seen = fake.seen.take();
            let control = FORCE_UNIT_ACCESS | if write_zeroes { DEALLOCATE } else { 0 };
            assert!(seen.iter().all(|c| c.cdw10[2] & 0xffff_0000 == control));
            assert_eq!(seen.len(), if write_zeroes { 3 } else { 5 });
        });
    }
}

#[test]
fn deallocation_keeps_to_the_drives_ranges_and_is_advice_without_them() {
    with_drive(ALL, |queue, fake| async move {
        assert!(queue.deallocate(Lba(3), 25).await.status.is_success());
        let medium = fake.medium.borrow();
        assert!(medium[3 * BLOCK..28 * BLOCK].iter().all(|b| *b == 0) && medium[28 * BLOCK] == 28);
        let seen = fake.seen.take();
        assert_eq!(seen.len(), 3);
        assert!(seen.iter().all(|c| c.opcode == 9 && c.cdw10[..2] == [0, 4]));
    });
    with_drive(Abilities::default(), |queue, fake| async move {
        assert!(queue.deallocate(Lba(3), 25).await.status.is_success());
        assert!(fake.seen.borrow().is_empty());
    });
}
