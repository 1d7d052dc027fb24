//! The way to a drive: its open node, shared by all reactors, and what one reactor keeps of it.

use reactor::{BufferClass, DataBuffer, DriveCommand, Driven, Reactor};
use std::{
    cell::{Cell, RefCell},
    future::Future,
    io,
    os::fd::OwnedFd,
    rc::Rc,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// What takes commands for a drive: the ring, or in tests something that stands in for it.
pub trait Drive: 'static {
    /// Sends a command with `len` bytes of the buffer from `offset`.
    fn run(
        &self,
        command: DriveCommand,
        buffer: Option<DataBuffer>,
        offset: usize,
        len: usize,
    ) -> impl Future<Output = Driven>;
    /// A buffer for data of a command.
    fn buffer(&self, len: usize) -> impl Future<Output = DataBuffer>;
    /// A short while, before what failed for want of something is tried again.
    fn pause(&self) -> impl Future<Output = ()>;
    /// Whether "invalid" means that no path to the drive can be used.
    fn is_multipath(&self) -> bool;
}

/// A drive's node as all reactors share it.
pub(super) struct Shared {
    node: Mutex<Arc<OwnedFd>>,
    /// Counts how often the node was opened anew.
    epoch: AtomicU64,
    multipath: bool,
}

impl Shared {
    pub(super) fn new(node: OwnedFd, multipath: bool) -> Shared {
        Shared { node: Mutex::new(Arc::new(node)), epoch: AtomicU64::new(0), multipath }
    }

    /// The node commands go to.
    pub(super) fn current(&self) -> Arc<OwnedFd> {
        self.node().clone()
    }

    /// From now on commands go to this node; each reactor notices with its next one.
    pub(super) fn replace(&self, node: OwnedFd) {
        *self.node() = Arc::new(node);
        self.epoch.fetch_add(1, Ordering::Release);
    }

    fn node(&self) -> MutexGuard<'_, Arc<OwnedFd>> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long to wait before a command that the kernel had no room for is sent again.
const PAUSE: Duration = Duration::from_millis(1);

/// One reactor's way to a drive.
pub struct Node {
    shared: Arc<Shared>,
    reactor: Reactor,
    descriptor: RefCell<Rc<OwnedFd>>,
    epoch: Cell<u64>,
}

impl Node {
    pub(super) fn new(shared: &Arc<Shared>, reactor: &Reactor) -> io::Result<Node> {
        let epoch = shared.epoch.load(Ordering::Acquire);
        // A descriptor per reactor, so that operations count on the reactor's own counter.
        let descriptor = shared.node().try_clone()?;
        Ok(Node {
            shared: shared.clone(),
            reactor: reactor.clone(),
            descriptor: RefCell::new(Rc::new(descriptor)),
            epoch: Cell::new(epoch),
        })
    }

    /// The descriptor; another one after the drive came back.
    fn descriptor(&self) -> Rc<OwnedFd> {
        let epoch = self.shared.epoch.load(Ordering::Acquire);
        if epoch != self.epoch.get()
            && let Ok(new) = self.shared.node().try_clone()
        {
            *self.descriptor.borrow_mut() = Rc::new(new);
            self.epoch.set(epoch);
        }
        self.descriptor.borrow().clone()
    }
}

impl Drive for Node {
    fn run(
        &self,
        command: DriveCommand,
        buffer: Option<DataBuffer>,
        offset: usize,
        len: usize,
    ) -> impl Future<Output = Driven> {
        self.reactor.drive(&self.descriptor(), &command, buffer, offset, len)
    }

    fn buffer(&self, len: usize) -> impl Future<Output = DataBuffer> {
        self.reactor.buffer(len, BufferClass::Io)
    }

    fn pause(&self) -> impl Future<Output = ()> {
        self.reactor.sleep(PAUSE)
    }

    fn is_multipath(&self) -> bool {
        self.shared.multipath
    }
}
