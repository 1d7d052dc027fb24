//! What a process asks of the system once: processors, limits, sockets and files. No hot path runs here.

use std::{
    fs, io, mem,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

/// The processors this process may run on (its cpuset), in order.
pub fn processors() -> Vec<usize> {
    // SAFETY: all-zero is a valid `cpu_set_t`; the call fills it.
    let set = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) != 0 {
            return vec![0];
        }
        set
    };
    // SAFETY: indices below the size of the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// Pins the calling thread.
pub fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: a zeroed set with one processor in it; `cpu` is below CPU_SETSIZE or ignored by `CPU_SET`.
    let result = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Raises the limit for open files to what is allowed; the limit now.
pub fn raise_open_files() -> io::Result<u64> {
    // SAFETY: plain system calls on a local value.
    unsafe {
        let mut limit: libc::rlimit = mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return Err(io::Error::last_os_error());
        }
        let wanted = libc::rlimit { rlim_cur: limit.rlim_max, rlim_max: limit.rlim_max };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const wanted) == 0 {
            Ok(wanted.rlim_cur)
        } else {
            Ok(limit.rlim_cur)
        }
    }
}

/// Binds and listens with the system's largest backlog.
pub fn listen(address: SocketAddr) -> io::Result<OwnedFd> {
    let listener = TcpListener::bind(address)?;
    // SAFETY: plain system call on a socket that lives here. A second `listen` only changes the backlog.
    if unsafe { libc::listen(listener.as_raw_fd(), 4096) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(listener.into())
}

/// The local and the peer's address of a connection, made ready for use: no delay, keep-alive probes as a backstop.
pub fn prepare_connection(socket: OwnedFd) -> io::Result<(OwnedFd, SocketAddr, SocketAddr)> {
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    let on: libc::c_int = 1;
    // SAFETY: plain system call with a live value of the size told.
    unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_KEEPALIVE,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    let (local, peer) = (stream.local_addr()?, stream.peer_addr()?);
    Ok((stream.into(), local, peer))
}

/// Ends both directions of a connection, whoever still holds it.
pub fn shut_down(socket: &OwnedFd) {
    // SAFETY: plain system call; a socket that is closed already gives an error that says nothing new.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Bytes of a connection that the peer has not acknowledged yet: it changes while the peer reads.
pub fn unacknowledged(socket: &OwnedFd) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (TIOCOUTQ) stores one `int`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { bytes as usize } else { 0 }
}

/// What the kernel says of direct I/O (O_DIRECT) on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectIo {
    /// It works for memory and offsets that are multiples of these.
    Aligned {
        /// Of the memory's address.
        memory: u32,
        /// Of the offset in the file, and of the length.
        offset: u32,
    },
    /// It does not work there.
    Impossible,
    /// Nothing: this kernel or file system does not tell.
    Unknown,
}

/// Opens a character device of a drive.
pub fn open_node(path: &Path, read_only: bool) -> io::Result<OwnedFd> {
    Ok(fs::OpenOptions::new().read(true).write(!read_only).open(path)?.into())
}

/// Asks the kernel what direct I/O on a file needs.
pub fn direct_io(file: &fs::File) -> DirectIo {
    // SAFETY: all-zero is a valid `statx`; the call fills it; the path is empty and ends with a zero.
    let (result, stat) = unsafe {
        let mut stat: libc::statx = mem::zeroed();
        let (fd, path) = (file.as_raw_fd(), c"".as_ptr());
        let result = libc::statx(fd, path, libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &raw mut stat);
        (result, stat)
    };
    let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
    match result {
        0 if stat.stx_mask & libc::STATX_DIOALIGN == 0 => DirectIo::Unknown,
        0 if offset == 0 => DirectIo::Impossible,
        0 => DirectIo::Aligned { memory, offset },
        _ => DirectIo::Unknown,
    }
}

/// The logical block size of a block device.
pub fn logical_block_size(device: &fs::File) -> io::Result<u32> {
    let mut size: libc::c_int = 0;
    // SAFETY: BLKSSZGET stores one `int`.
    if unsafe { libc::ioctl(device.as_raw_fd(), libc::BLKSSZGET, &raw mut size) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(size as u32)
}

/// Makes a descriptor one that does not block.
pub fn set_nonblocking(descriptor: &OwnedFd) -> io::Result<()> {
    let fd = descriptor.as_raw_fd();
    // SAFETY: plain system calls on a descriptor that lives.
    let set = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) == 0
    };
    if set { Ok(()) } else { Err(io::Error::last_os_error()) }
}
