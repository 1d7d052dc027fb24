//! The operations of a reactor as `async` functions. Memory goes in by value and comes back with the result.

use crate::{
    DataBuffer, Gather, Reactor, Received,
    operation::{Brings, Keep, Operation},
    received,
};
use io_uring::{cqueue, opcode, squeue, types};
use std::{
    collections::VecDeque,
    future::poll_fn,
    io,
    os::fd::{AsRawFd, OwnedFd},
    rc::Rc,
};

fn fd(descriptor: &Rc<OwnedFd>) -> types::Fd {
    types::Fd(descriptor.as_raw_fd())
}

/// How a transfer to or from a data buffer ended; without an error, all of it was done. After an error the buffer's
/// contents mean nothing.
pub type Transferred = (io::Result<()>, DataBuffer);

/// How a send ended.
pub type Sent = (io::Result<()>, Box<Gather>);

impl Reactor {
    /// Receives what is there into a shared receive buffer. `UnexpectedEof` means that the peer has closed.
    pub async fn receive(&self, socket: &Rc<OwnedFd>) -> io::Result<Received> {
        loop {
            let entry = opcode::Recv::new(fd(socket), std::ptr::null_mut(), received::SIZE as u32)
                .buf_group(received::GROUP)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT);
            // SAFETY: the memory is the pool's, which outlives the ring.
            let operation = unsafe {
                Operation::start(&self.core, Some(socket.clone()), Brings::SharedBuffer, Keep::None, |_| {
                    entry
                })
            };
            let outcome = operation.await;
            match (outcome.result, cqueue::buffer_select(outcome.flags)) {
                (Ok(n), Some(id)) => return Ok(Received::new(&self.core.receive_pool, id, n)),
                // The end of the stream takes no buffer; an empty view of any will do.
                (Ok(_), None) => return Err(io::ErrorKind::UnexpectedEof.into()),
                (Err(error), _) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    // All are being looked at in this very turn; they are back in the next.
                    self.core.stats.receive_retries.add(1);
                    self.yield_now().await;
                }
                (Err(error), _) if interrupted(&error) => {}
                (Err(error), _) => return Err(error),
            }
        }
    }

    /// Receives exactly `len` bytes to `offset` of a data buffer.
    pub fn receive_into<'a>(
        &'a self,
        socket: &'a Rc<OwnedFd>,
        buffer: DataBuffer,
        offset: usize,
        len: usize,
    ) -> impl Future<Output = Transferred> + 'a {
        assert!(offset + len <= buffer.capacity());
        // SAFETY: what is named lies in the buffer's block, as asserted.
        unsafe {
            self.transfer(socket, buffer, len, io::ErrorKind::UnexpectedEof, move |buffer, done| {
                let to = buffer.pointer().add(offset + done);
                opcode::Recv::new(fd(socket), to, (len - done) as u32).flags(libc::MSG_WAITALL).build()
            })
        }
    }

    /// Receives exactly `bytes.len()` bytes.
    pub async fn receive_exact(&self, socket: &Rc<OwnedFd>, bytes: Box<[u8]>) -> io::Result<Box<[u8]>> {
        // SAFETY: what is named lies in the bytes.
        unsafe {
            self.transfer_bytes(socket, bytes, io::ErrorKind::UnexpectedEof, |rest| {
                let recv = opcode::Recv::new(fd(socket), rest.as_mut_ptr(), rest.len() as u32);
                recv.flags(libc::MSG_WAITALL).build()
            })
        }
        .await
    }

    /// Sends all of `bytes`.
    pub async fn send_all(&self, socket: &Rc<OwnedFd>, bytes: Box<[u8]>) -> io::Result<()> {
        // SAFETY: what is named lies in the bytes.
        unsafe {
            self.transfer_bytes(socket, bytes, io::ErrorKind::WriteZero, |rest| {
                let send = opcode::Send::new(fd(socket), rest.as_ptr(), rest.len() as u32);
                send.flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL).build()
            })
        }
        .await
        .map(drop)
    }

    /// Sends all of a gather and gives it back.
    pub async fn send(&self, socket: &Rc<OwnedFd>, gather: Box<Gather>) -> Sent {
        let mut gather = gather;
        while !gather.is_empty() {
            // SAFETY: the message and all it points to are kept by the boxed gather, which does not move.
            let operation = unsafe {
                Operation::start(
                    &self.core,
                    Some(socket.clone()),
                    Brings::Nothing,
                    Keep::Gather(gather),
                    |keep| {
                        let Keep::Gather(gather) = keep else { unreachable!() };
                        opcode::SendMsg::new(fd(socket), gather.message())
                            .flags((libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32)
                            .build()
                    },
                )
            };
            let outcome = operation.await;
            let Keep::Gather(back) = outcome.keep else { unreachable!("a send keeps its gather") };
            gather = back;
            match outcome.result {
                Ok(n) => gather.advance(n),
                Err(error) if interrupted(&error) => {}
                Err(error) => return (Err(error), gather),
            }
        }
        (Ok(()), gather)
    }

    /// Reads exactly `len` bytes of a file at `offset`. A file that is shorter is an error.
    pub fn read_at<'a>(
        &'a self,
        file: &'a Rc<OwnedFd>,
        mut buffer: DataBuffer,
        len: usize,
        offset: u64,
    ) -> impl Future<Output = Transferred> + 'a {
        assert!(len <= buffer.capacity());
        // What it holds counts only when all of it was read: see `Transferred`.
        buffer.set_len(len);
        // SAFETY: what is named lies in the buffer's block, as asserted.
        unsafe {
            self.transfer(file, buffer, len, io::ErrorKind::UnexpectedEof, move |buffer, done| {
                let (to, n, at) = (buffer.pointer().add(done), (len - done) as u32, offset + done as u64);
                match buffer.fixed_index() {
                    Some(index) => opcode::ReadFixed::new(fd(file), to, n, index).offset(at).build(),
                    None => opcode::Read::new(fd(file), to, n).offset(at).build(),
                }
            })
        }
    }

    /// Writes the filled bytes to a file at `offset`; with `durable`, they are on stable storage when it returns.
    pub fn write_at<'a>(
        &'a self,
        file: &'a Rc<OwnedFd>,
        buffer: DataBuffer,
        offset: u64,
        durable: bool,
    ) -> impl Future<Output = Transferred> + 'a {
        let (len, flags) = (buffer.len(), if durable { libc::RWF_DSYNC } else { 0 });
        self.core.stats.syncs.add(u64::from(durable));
        // SAFETY: what is named lies in the filled part of the buffer.
        unsafe {
            self.transfer(file, buffer, len, io::ErrorKind::WriteZero, move |buffer, done| {
                let (from, n, at) = (buffer.pointer().add(done), (len - done) as u32, offset + done as u64);
                match buffer.fixed_index() {
                    Some(i) => {
                        opcode::WriteFixed::new(fd(file), from, n, i).offset(at).rw_flags(flags).build()
                    }
                    None => opcode::Write::new(fd(file), from, n).offset(at).rw_flags(flags).build(),
                }
            })
        }
    }

    /// Brings a file's data to stable storage.
    pub async fn sync_data(&self, file: &Rc<OwnedFd>) -> io::Result<()> {
        self.core.stats.syncs.add(1);
        loop {
            let entry = opcode::Fsync::new(fd(file)).flags(types::FsyncFlags::DATASYNC).build();
            // SAFETY: no memory is named.
            let operation = unsafe {
                Operation::start(&self.core, Some(file.clone()), Brings::Nothing, Keep::None, |_| entry)
            };
            match operation.await.result {
                Err(error) if interrupted(&error) => {}
                result => return result.map(drop),
            }
        }
    }

    /// Makes a range of a file zero: as a hole, or keeping its space. Fails with `Unsupported` where the file system cannot.
    pub async fn zero_at(&self, file: &Rc<OwnedFd>, offset: u64, len: u64, hole: bool) -> io::Result<()> {
        let how = if hole { libc::FALLOC_FL_PUNCH_HOLE } else { libc::FALLOC_FL_ZERO_RANGE };
        loop {
            let mode = how | libc::FALLOC_FL_KEEP_SIZE;
            let entry = opcode::Fallocate::new(fd(file), len).offset(offset).mode(mode).build();
            // SAFETY: no memory is named.
            let operation = unsafe {
                Operation::start(&self.core, Some(file.clone()), Brings::Nothing, Keep::None, |_| entry)
            };
            match operation.await.result {
                Err(error) if interrupted(&error) => {}
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                    return Err(io::ErrorKind::Unsupported.into());
                }
                result => return result.map(drop),
            }
        }
    }

    /// Repeats an operation on a data buffer until `len` bytes are done; an operation that does none ends it with `end`.
    ///
    /// # Safety
    /// `build` (given how many bytes are done) may only name memory in the buffer's block, and `descriptor`.
    unsafe fn transfer<'a>(
        &'a self,
        descriptor: &'a Rc<OwnedFd>,
        mut buffer: DataBuffer,
        len: usize,
        end: io::ErrorKind,
        build: impl Fn(&DataBuffer, usize) -> squeue::Entry + 'a,
    ) -> impl Future<Output = Transferred> + 'a {
        // Not an `async fn`: that would hold its arguments twice, in the memory of every slot.
        let mut done = 0;
        async move {
            while done < len {
                let keep = Keep::Buffer(buffer);
                // SAFETY: the operation keeps the buffer, whose block does not move; the rest is the caller's promise.
                let operation = unsafe {
                    Operation::start(&self.core, Some(descriptor.clone()), Brings::Nothing, keep, |keep| {
                        let Keep::Buffer(buffer) = keep else { unreachable!("just put there") };
                        build(buffer, done)
                    })
                };
                let outcome = operation.await;
                let Keep::Buffer(back) = outcome.keep else { unreachable!("the operation keeps its buffer") };
                buffer = back;
                match outcome.result {
                    Ok(0) => return (Err(end.into()), buffer),
                    Ok(n) => done += n,
                    Err(error) if interrupted(&error) => {}
                    // Direct I/O that went up to an odd end of the file cannot go on from there.
                    Err(error) if done > 0 && error.kind() == io::ErrorKind::InvalidInput => {
                        return (Err(end.into()), buffer);
                    }
                    Err(error) => return (Err(error), buffer),
                }
            }
            (Ok(()), buffer)
        }
    }

    /// The same for bytes that are not a data buffer.
    ///
    /// # Safety
    /// `build` may only name memory in the slice it is given, and `descriptor`.
    async unsafe fn transfer_bytes(
        &self,
        descriptor: &Rc<OwnedFd>,
        mut bytes: Box<[u8]>,
        end: io::ErrorKind,
        build: impl Fn(&mut [u8]) -> squeue::Entry,
    ) -> io::Result<Box<[u8]>> {
        let mut done = 0;
        while done < bytes.len() {
            let keep = Keep::Bytes(bytes);
            // SAFETY: the operation keeps the box, whose contents do not move; the rest is the caller's promise.
            let operation = unsafe {
                Operation::start(&self.core, Some(descriptor.clone()), Brings::Nothing, keep, |keep| {
                    let Keep::Bytes(bytes) = keep else { unreachable!("just put there") };
                    build(&mut bytes[done..])
                })
            };
            let outcome = operation.await;
            let Keep::Bytes(back) = outcome.keep else { unreachable!("the operation keeps its bytes") };
            bytes = back;
            match outcome.result {
                Ok(0) => return Err(end.into()),
                Ok(n) => done += n,
                Err(error) if interrupted(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }

    /// Accepts connections, one operation for all of them.
    pub fn accept(&self, listener: &Rc<OwnedFd>) -> AcceptStream {
        let entry = opcode::AcceptMulti::new(fd(listener)).flags(libc::SOCK_CLOEXEC).build();
        let keep = Keep::Accepted(VecDeque::with_capacity(16));
        // SAFETY: no memory is named.
        let operation = unsafe {
            Operation::start(&self.core, Some(listener.clone()), Brings::Descriptor, keep, |_| entry)
        };
        AcceptStream { operation }
    }
}

impl Reactor {
    /// Watches a descriptor for something to read, one operation for all of it. The descriptor should not block.
    pub fn readable(&self, descriptor: &Rc<OwnedFd>) -> Readable {
        Readable {
            reactor: self.clone(),
            descriptor: descriptor.clone(),
            operation: self.poll_multi(descriptor),
        }
    }

    fn poll_multi(&self, descriptor: &Rc<OwnedFd>) -> Operation {
        let entry = opcode::PollAdd::new(fd(descriptor), libc::POLLIN as u32).multi(true).build();
        let keep = Keep::Fired(false);
        // SAFETY: no memory is named.
        unsafe { Operation::start(&self.core, Some(descriptor.clone()), Brings::Event, keep, |_| entry) }
    }
}

/// News of a descriptor that is watched.
pub struct Readable {
    reactor: Reactor,
    descriptor: Rc<OwnedFd>,
    operation: Operation,
}

impl Readable {
    /// Waits until there may be something to read. Who asks must then read until there is nothing more.
    pub async fn next(&mut self) -> io::Result<()> {
        loop {
            match poll_fn(|cx| self.operation.poll_fired(cx)).await {
                Ok(()) => return Ok(()),
                // The kernel may end a poll at any time; the next one looks at the descriptor as it begins.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {
                    self.operation = self.reactor.poll_multi(&self.descriptor);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// The kernel gave an operation up for a signal or for work of its own; nothing was done, and it is simply done again.
fn interrupted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}

/// Connections as they come in.
pub struct AcceptStream {
    operation: Operation,
}

impl AcceptStream {
    /// The next connection. After an error the stream has ended; start another.
    pub async fn next(&mut self) -> io::Result<OwnedFd> {
        poll_fn(|cx| self.operation.poll_accepted(cx)).await
    }
}
