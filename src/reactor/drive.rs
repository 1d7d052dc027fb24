//! Commands to an NVMe drive through its generic character device: on the ring with `IORING_OP_URING_CMD`, and as an
//! `ioctl` where a namespace is opened and nothing waits for speed.
//!
//! The kernel takes a command in a structure of its own, sends it to the drive as it is, and gives back the drive's
//! status. It does not split, does not retry and does not check that the buffer has the length the command transfers: who
//! builds the command answers for that.

use crate::{
    DataBuffer, Reactor,
    operation::{Brings, Keep, Operation},
};
use io_uring::{opcode, types};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    rc::Rc,
};

/// `NVME_URING_CMD_IO`: an I/O command.
const URING_CMD_IO: u32 = 0xc048_4e80;
/// `NVME_URING_CMD_ADMIN`: an admin command.
const URING_CMD_ADMIN: u32 = 0xc048_4e82;
/// `NVME_IOCTL_ID`: the NSID of a namespace's node.
const IOCTL_ID: libc::c_ulong = 0x4e40;
/// `NVME_IOCTL_ADMIN_CMD`: an admin command, waited for.
const IOCTL_ADMIN: libc::c_ulong = 0xc048_4e41;

/// Which of the drive's queues a command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriveQueue {
    /// An I/O queue.
    Io,
    /// The admin queue.
    Admin,
}

/// A command for a drive. The kernel chooses the command identifier and the data pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveCommand {
    /// Which queue it is for.
    pub queue: DriveQueue,
    /// The opcode (OPC).
    pub opcode: u8,
    /// The namespace (NSID) as the drive counts it.
    pub nsid: u32,
    /// Command dwords 2 and 3.
    pub cdw2: [u32; 2],
    /// Command dwords 10 to 15.
    pub cdw10: [u32; 6],
}

/// What a drive answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveAnswer {
    /// The status field without its phase tag: SC in bits 7:0, SCT 10:8, CRD 12:11, M 13, DNR 14. Zero is success.
    pub status: u16,
    /// Dwords 0 and 1 of the drive's completion.
    pub result: u64,
}

/// How a command ended: the drive's answer, or why the kernel did not get one. The buffer comes back in every case.
pub type Driven = (io::Result<DriveAnswer>, Option<DataBuffer>);

/// The kernel's `struct nvme_uring_cmd`, and `struct nvme_passthru_cmd`, which has a result in its last field.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Raw {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: [u32; 2],
    metadata: u64,
    address: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<Raw>() == 72);

impl Raw {
    fn new(command: &DriveCommand, address: *mut u8, len: usize) -> Raw {
        Raw {
            opcode: command.opcode,
            nsid: command.nsid,
            cdw2: command.cdw2,
            address: if len == 0 { 0 } else { address as u64 },
            data_len: len as u32,
            cdw10: command.cdw10,
            ..Raw::default()
        }
    }

    /// The 80 bytes of a large ring entry.
    fn bytes(&self) -> [u8; 80] {
        let mut bytes = [0; 80];
        // SAFETY: 72 initialised bytes without padding.
        let raw =
            unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast::<u8>(), size_of::<Raw>()) };
        bytes[..size_of::<Raw>()].copy_from_slice(raw);
        bytes
    }
}

impl Reactor {
    /// Sends a command to a drive, with `len` bytes of the buffer from `offset` as its data, and waits for the answer.
    ///
    /// When the future is dropped, the drive still owns the buffer until it answers: no drive takes a command back.
    ///
    /// # Panics
    /// When the data do not fit into the buffer.
    pub fn drive(
        &self,
        node: &Rc<OwnedFd>,
        command: &DriveCommand,
        buffer: Option<DataBuffer>,
        offset: usize,
        len: usize,
    ) -> impl Future<Output = Driven> + use<> {
        assert!(offset + len <= buffer.as_ref().map_or(0, DataBuffer::capacity));
        let request = match command.queue {
            DriveQueue::Io => URING_CMD_IO,
            DriveQueue::Admin => URING_CMD_ADMIN,
        };
        let (keep, mut raw) =
            (buffer.map_or(Keep::None, Keep::Buffer), Raw::new(command, std::ptr::null_mut(), 0));
        // SAFETY: the data lie in the buffer's block, as asserted; the operation keeps the buffer, whose block does not move.
        let operation = unsafe {
            Operation::start(&self.core, Some(node.clone()), Brings::Nothing, keep, |keep| {
                let mut index = None;
                if let (Keep::Buffer(buffer), true) = (&*keep, len > 0) {
                    raw.address = buffer.pointer().add(offset) as u64;
                    raw.data_len = len as u32;
                    index = buffer.fixed_index();
                }
                opcode::UringCmd80::new(types::Fd(node.as_raw_fd()), request)
                    .buf_index(index)
                    .cmd(raw.bytes())
                    .build()
            })
        };
        self.core.stats.drive_commands.add(1);
        async move {
            let outcome = operation.await;
            let buffer = match outcome.keep {
                Keep::Buffer(buffer) => Some(buffer),
                _ => None,
            };
            (
                outcome.result.map(|status| DriveAnswer { status: status as u16, result: outcome.extra }),
                buffer,
            )
        }
    }
}

/// Sends an admin command to a drive and waits for it on this thread: for opening and for looking, never on a reactor.
///
/// `data` is as long as what the command transfers.
pub fn drive_admin(node: &OwnedFd, command: &DriveCommand, data: &mut [u8]) -> io::Result<DriveAnswer> {
    let mut raw = Raw::new(command, data.as_mut_ptr(), data.len());
    // SAFETY: the structure is the kernel's, its address and length are those of `data`, which outlives the call.
    let status = unsafe { libc::ioctl(node.as_raw_fd(), IOCTL_ADMIN, &raw mut raw) };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(DriveAnswer { status: status as u16, result: raw.result.into() })
}

/// The NSID of the namespace behind a node.
pub fn drive_nsid(node: &OwnedFd) -> io::Result<u32> {
    // SAFETY: takes no argument.
    let nsid = unsafe { libc::ioctl(node.as_raw_fd(), IOCTL_ID) };
    if nsid < 0 { Err(io::Error::last_os_error()) } else { Ok(nsid as u32) }
}
