//! A plain ring with the features weft's reactor uses: 128-byte entries, 32-byte completions, one issuer, deferred task
//! work. The few operations the yardstick and the generator need, and nothing around them.
#![allow(unsafe_code, reason = "this file talks to the kernel about raw memory")]

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// One finished operation.
#[derive(Clone, Copy)]
pub struct Outcome {
    /// What was given when it was submitted.
    pub user_data: u64,
    /// Bytes, a file descriptor, or a negative error number.
    pub result: i32,
}

impl Outcome {
    /// Whether the kernel gave the operation up for a signal: nothing was done, it is to be started again.
    pub fn interrupted(self) -> bool {
        self.result == -libc::EINTR
    }

    /// The result as a byte count or file descriptor.
    pub fn value(self) -> io::Result<usize> {
        usize::try_from(self.result).map_err(|_| io::Error::from_raw_os_error(-self.result))
    }
}

/// The ring of one thread.
pub struct Ring {
    ring: IoUring<squeue::Entry128, cqueue::Entry32>,
}

impl Ring {
    /// A ring for `entries` operations at once.
    pub fn new(entries: u32) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_cqsize(entries * 2)
            .build(entries)?;
        Ok(Self { ring })
    }

    fn push(&mut self, entry: squeue::Entry, user_data: u64) {
        let entry = squeue::Entry128::from(entry.user_data(user_data));
        // SAFETY: the callers below hand over memory that outlives the operation (their contracts).
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            let _ = self.ring.submit();
        }
    }

    /// Accepts one connection.
    pub fn accept(&mut self, listener: RawFd, user_data: u64) {
        let entry = opcode::Accept::new(Fd(listener), std::ptr::null_mut(), std::ptr::null_mut()).build();
        self.push(entry, user_data);
    }

    /// Receives into `buffer[from..]`, which must stay where it is until the outcome has come.
    pub fn receive(&mut self, socket: RawFd, buffer: &mut [u8], user_data: u64) {
        let entry = opcode::Recv::new(Fd(socket), buffer.as_mut_ptr(), buffer.len() as u32).build();
        self.push(entry, user_data);
    }

    /// Sends what `message` points to, all of it; it must stay where it is until the outcome has come.
    pub fn send(&mut self, socket: RawFd, message: &libc::msghdr, user_data: u64) {
        let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
        let entry = opcode::SendMsg::new(Fd(socket), std::ptr::from_ref(message)).flags(flags).build();
        self.push(entry, user_data);
    }

    /// Submits everything and waits for at least one outcome, at most `patience`.
    pub fn enter(&mut self, patience: Duration) -> io::Result<()> {
        let timespec = Timespec::from(patience);
        let arguments = SubmitArgs::new().timespec(&timespec);
        match self.ring.submitter().submit_with_args(1, &arguments) {
            Ok(_) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes what has finished.
    pub fn reap(&mut self, into: &mut Vec<Outcome>) {
        into.clear();
        let outcomes = self.ring.completion();
        into.extend(outcomes.map(|cqe| Outcome { user_data: cqe.user_data(), result: cqe.result() }));
    }
}

/// Byte ranges on their way out in one gather send, in order. They are raw: whoever adds one keeps its memory.
pub struct Gather {
    ranges: Vec<libc::iovec>,
    sending: Vec<libc::iovec>,
    message: Box<libc::msghdr>,
    sent: usize,
    busy: bool,
}

/// The most ranges the kernel takes in one send.
const MOST_RANGES: usize = 1024;

impl Gather {
    /// Nothing to send.
    pub fn new() -> Self {
        // SAFETY: all zeroes is a valid, empty msghdr.
        let message = Box::new(unsafe { std::mem::zeroed() });
        let capacity = MOST_RANGES;
        let (ranges, sending) = (Vec::with_capacity(capacity), Vec::with_capacity(capacity));
        Self { ranges, sending, message, sent: 0, busy: false }
    }

    /// Adds a range; it has to stay unchanged until it was sent.
    pub fn push(&mut self, bytes: &[u8]) {
        let iov_base = bytes.as_ptr().cast_mut().cast();
        self.ranges.push(libc::iovec { iov_base, iov_len: bytes.len() });
    }

    /// Starts a send of what has gathered, unless one is on its way.
    pub fn flush(&mut self, ring: &mut Ring, socket: RawFd, user_data: u64) {
        if self.busy || self.ranges.is_empty() {
            return;
        }
        if self.ranges.len() <= MOST_RANGES {
            std::mem::swap(&mut self.ranges, &mut self.sending);
        } else {
            self.sending.extend(self.ranges.drain(..MOST_RANGES));
        }
        self.sent = 0;
        self.start(ring, socket, user_data);
    }

    fn start(&mut self, ring: &mut Ring, socket: RawFd, user_data: u64) {
        self.message.msg_iov = self.sending[self.sent..].as_mut_ptr();
        self.message.msg_iovlen = self.sending.len() - self.sent;
        self.busy = true;
        ring.send(socket, &self.message, user_data);
    }

    /// Takes note of a finished send, and sends the rest if the kernel stopped early.
    pub fn finished(&mut self, ring: &mut Ring, socket: RawFd, outcome: Outcome) -> io::Result<()> {
        self.busy = false;
        let mut length = if outcome.interrupted() { 0 } else { outcome.value()? };
        while let Some(range) = self.sending.get_mut(self.sent) {
            if length < range.iov_len {
                // SAFETY: the new start lies inside the same range.
                range.iov_base = unsafe { range.iov_base.cast::<u8>().add(length) }.cast();
                range.iov_len -= length;
                self.start(ring, socket, outcome.user_data);
                return Ok(());
            }
            length -= range.iov_len;
            self.sent += 1;
        }
        self.sending.clear();
        Ok(())
    }
}
