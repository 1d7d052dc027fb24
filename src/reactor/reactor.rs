//! The turn of the loop.

use crate::{
    Mailbox, Stats,
    arena::{Arena, ArenaUse, BufferClass, BufferPool, DataBuffer, GetBuffer, Reserve},
    device::{DeviceMemory, HookGuard, TurnHook},
    executor::{Executor, SlotRef},
    operation::Operations,
    received::{self, ReceivePool},
    ring::{self, Ring, SetupError},
    system,
    timer::{Sleep, Timers},
};
use futures::future::{Either, select};
use io_uring::{opcode, squeue, types};
use std::{
    cell::{Cell, RefCell, UnsafeCell},
    future::{Future, poll_fn},
    io,
    pin::pin,
    rc::Rc,
    sync::{Arc, mpsc},
    task::{Poll, Waker},
    thread,
    time::{Duration, Instant},
};

/// The completion of a cancel: nobody waits for it.
pub(crate) const CANCEL: u64 = u64::MAX;
/// The read of the mailbox's eventfd.
const MAILBOX: u64 = u64::MAX - 1;

/// How a reactor is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// The thread's name.
    pub name: String,
    /// The processor it is pinned to.
    pub cpu: Option<usize>,
    /// Bytes of data buffers.
    pub buffers: usize,
    /// The largest data buffer.
    pub max_buffer: usize,
    /// How long it polls after the last completion before it sleeps; zero for never.
    pub poll: Duration,
    /// For simulations: time stands still while there is something to do, then jumps to the next timer.
    pub made_up_time: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            name: "reactor".into(),
            cpu: None,
            buffers: 64 << 20,
            max_buffer: 1 << 20,
            poll: Duration::from_micros(50),
            made_up_time: false,
        }
    }
}

/// What one reactor is made of. The ring comes first: it is closed before the memory it knows goes.
pub(crate) struct Core {
    ring: RefCell<Ring>,
    pub(crate) operations: Operations,
    pub(crate) receive_pool: Rc<ReceivePool>,
    arena: Rc<Arena>,
    executor: Rc<Executor>,
    timers: Rc<Timers>,
    mailbox: Mailbox,
    mailbox_count: Box<UnsafeCell<u64>>,
    mailbox_armed: Cell<bool>,
    mailbox_due: Cell<bool>,
    pub(crate) stats: Arc<Stats>,
    poll: Duration,
    now: Cell<Instant>,
    now_uses: Cell<u32>,
    last_completion: Cell<Instant>,
    stopping: Cell<bool>,
    failed: RefCell<Option<io::Error>>,
    /// Woken when the ring has been entered once more.
    deferred: RefCell<Vec<Waker>>,
    /// Looked at once per turn.
    pub(crate) hooks: RefCell<Vec<Rc<dyn TurnHook>>>,
    /// What hooks found while the reactor waited.
    hook_completions: Cell<usize>,
}

impl Core {
    pub(crate) fn push(&self, entry: squeue::Entry128) {
        let mut ring = self.ring.borrow_mut();
        loop {
            // SAFETY: `Operation::start` and the mailbox keep what the entry points to.
            if unsafe { ring.submission().push(&entry) }.is_ok() {
                return;
            }
            self.stats.enters.add(1);
            if let Err(error) = ring.submit() {
                if !transient(&error) {
                    *self.failed.borrow_mut() = Some(error);
                    return;
                }
                // The completion queue is full: nothing more is taken before it is reaped.
                drop(ring);
                self.reap();
                ring = self.ring.borrow_mut();
            }
        }
    }

    /// Takes all completions; the number of them.
    fn reap(&self) -> usize {
        let mut count = 0;
        let mut ring = self.ring.borrow_mut();
        let mut completions = ring.completion();
        for outcome in &mut completions {
            count += 1;
            match outcome.user_data() {
                CANCEL => {}
                MAILBOX => {
                    self.mailbox_armed.set(false);
                    self.mailbox_due.set(true);
                }
                key => {
                    let (result, flags) = (outcome.result(), outcome.flags());
                    let extra = outcome.big_cqe()[0];
                    let orphan_ended = || self.stats.orphans.sub(1);
                    let unwanted = self.operations.complete(key as usize, result, flags, extra, orphan_ended);
                    if let Some(id) = unwanted {
                        self.receive_pool.give(id);
                    }
                }
            }
        }
        self.stats.completions.add(count as u64);
        count
    }

    fn enter(&self, wait: Option<Duration>, sleep: bool) {
        let ring = self.ring.borrow_mut();
        let pending = {
            // SAFETY: no other submission queue of this ring is alive: `ring` is borrowed mutably here.
            unsafe { ring.submission_shared() }.len()
        };
        self.stats.enters.add(1);
        let submitter = ring.submitter();
        let result = match (sleep, wait) {
            (true, Some(wait)) => {
                let timespec = types::Timespec::from(wait);
                submitter.submit_with_args(1, &types::SubmitArgs::new().timespec(&timespec))
            }
            (true, None) => submitter.submit_and_wait(1),
            (false, _) => {
                const GETEVENTS: u32 = 1;
                // SAFETY: plain submit and reap without arguments.
                unsafe { submitter.enter::<libc::sigset_t>(pending as u32, 0, GETEVENTS, None) }
            }
        };
        if let Err(error) = result
            && !transient(&error)
        {
            *self.failed.borrow_mut() = Some(error);
        }
    }

    fn arm_mailbox(&self) {
        if !self.mailbox_armed.replace(true) {
            let to = self.mailbox_count.get().cast::<u8>();
            self.push(
                opcode::Read::new(types::Fd(self.mailbox.event_fd()), to, 8)
                    .build()
                    .user_data(MAILBOX)
                    .into(),
            );
        }
    }

    /// Whether the ring has something for us, or we for it.
    fn ring_has_work(&self) -> bool {
        let mut ring = self.ring.borrow_mut();
        let submission = ring.submission();
        let due = !submission.is_empty() || submission.taskrun() || submission.cq_overflow();
        drop(submission);
        due || !ring.completion().is_empty()
    }

    fn set_now(&self) -> Instant {
        let now = self.timers.now();
        self.now.set(now);
        now
    }

    /// Waits for the ring as the state of things asks: not at all, polling, or asleep.
    fn wait(&self) {
        // A message may have asked to stop: sleeping now could be for ever.
        let awake = self.executor.has_ready() || !self.deferred.borrow().is_empty() || self.stopping.get();
        if awake {
            if self.ring_has_work() {
                self.enter(None, false);
            }
            return;
        }
        let now = self.set_now();
        let next = self.timers.next();
        let until = self.last_completion.get() + self.poll;
        if now < until {
            self.spin(until.min(next.unwrap_or(until)));
            return;
        }
        let wait = next.map(|at| at.saturating_duration_since(now));
        if wait == Some(Duration::ZERO) {
            self.enter(None, false);
            return;
        }
        if self.hooks(|hook| usize::from(hook.before_sleep())) > 0 {
            self.enter(None, false);
            return;
        }
        self.enter(wait, true);
        self.stats.asleep_ns.add((self.set_now() - now).as_nanos() as u64);
    }

    /// Asks every hook; the sum of their answers. Hooks may come and go meanwhile.
    fn hooks(&self, ask: impl Fn(&dyn TurnHook) -> usize) -> usize {
        let mut sum = 0;
        for index in 0.. {
            let Some(hook) = self.hooks.borrow().get(index).cloned() else { break };
            sum += ask(&*hook);
        }
        sum
    }

    /// Lets the hooks take what has completed.
    fn poll_hooks(&self) -> bool {
        let found = self.hooks(|hook| hook.poll());
        self.hook_completions.set(self.hook_completions.get() + found);
        found > 0
    }

    /// The order of everything follows from what the tasks do: messages are taken without the ring, and time passes only
    /// when nothing is left to do.
    fn wait_in_made_up_time(&self) {
        self.mailbox_due.set(!self.mailbox.is_empty());
        let awake = self.executor.has_ready()
            || !self.deferred.borrow().is_empty()
            || self.stopping.get()
            || self.mailbox_due.get();
        if self.operations.len() > 0 {
            self.enter(None, !awake);
        } else if !awake && !self.timers.jump() {
            *self.failed.borrow_mut() = Some(io::Error::other("nothing is left to happen"));
        }
    }

    fn spin(&self, until: Instant) {
        let start = self.now.get();
        let mut looked = false;
        loop {
            if self.ring_has_work() || self.poll_hooks() {
                break;
            }
            looked = true;
            std::hint::spin_loop();
            if self.set_now() >= until {
                break;
            }
        }
        if looked {
            self.stats.polling_ns.add((self.now.get() - start).as_nanos() as u64);
        }
        if self.ring_has_work() {
            self.enter(None, false);
        }
    }
}

/// Errors of `io_uring_enter` after which the loop simply goes on.
fn transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN))
}

/// A handle to the reactor of this thread. Cheap to clone, never leaves its thread.
#[derive(Clone)]
pub struct Reactor {
    pub(crate) core: Rc<Core>,
}

impl Reactor {
    /// Sets up a reactor on this thread. A warning says what works less well than it could.
    pub fn new(options: &Options, stats: Arc<Stats>) -> Result<(Reactor, Option<String>), SetupError> {
        let ring = ring::set_up()?;
        let mut arena = Arena::new(options.buffers, options.max_buffer, stats.clone()).map_err(|e| {
            SetupError::Limit("the data buffers cannot be mapped: lower `reactors.buffers`", e)
        })?;
        // SAFETY: the arena outlives the ring (order of the fields of `Core`) and never moves.
        let warning = match unsafe { ring.submitter().register_buffers(&arena.chunks()) } {
            Ok(()) => {
                arena.set_registered();
                None
            }
            Err(error) => Some(format!(
                "the data buffers ({} MiB) cannot be registered with io_uring ({error}); they work unregistered, with \
                 more CPU per command. Raise the limit for locked memory (`ulimit -l`, LimitMEMLOCK= in the unit) or \
                 lower `reactors.buffers`",
                options.buffers >> 20
            )),
        };
        let pool = ReceivePool::new().map_err(|e| SetupError::Other("map the receive buffers", e))?;
        // SAFETY: ring and buffers of the pool outlive the ring, as above.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(
                pool.ring_address(),
                received::COUNT,
                received::GROUP,
                0,
            )
        }
        .map_err(|e| SetupError::Other("register the receive buffers with io_uring", e))?;
        pool.fill();
        let mailbox = Mailbox::register().map_err(|e| SetupError::Other("make an eventfd", e))?;
        let timers = Rc::new(Timers::default());
        if options.made_up_time {
            timers.make_up_time();
        }
        let now = timers.now();
        let core = Core {
            ring: RefCell::new(ring),
            operations: Operations::new(),
            receive_pool: Rc::new(pool),
            arena: Rc::new(arena),
            executor: Rc::new(Executor::new(mailbox.reactor())),
            timers,
            mailbox,
            mailbox_count: Box::default(),
            mailbox_armed: Cell::new(false),
            mailbox_due: Cell::new(false),
            stats,
            poll: options.poll,
            now: Cell::new(now),
            now_uses: Cell::new(0),
            last_completion: Cell::new(now),
            stopping: Cell::new(false),
            failed: RefCell::new(None),
            deferred: RefCell::default(),
            hooks: RefCell::default(),
            hook_completions: Cell::new(0),
        };
        Ok((Reactor { core: Rc::new(core) }, warning))
    }

    /// Runs until [`Reactor::stop`]; then drops all tasks and waits, bounded, for what the kernel still holds.
    pub fn run(&self) -> io::Result<()> {
        let core = &self.core;
        core.executor.enter();
        while !core.stopping.get() && core.failed.borrow().is_none() {
            self.turn();
        }
        core.executor.clear();
        let deadline = Instant::now() + Duration::from_secs(5);
        if core.mailbox_armed.get() {
            core.push(opcode::AsyncCancel::new(MAILBOX).build().user_data(CANCEL).into());
        }
        while (core.operations.len() > 0 || core.mailbox_armed.get())
            && Instant::now() < deadline
            && core.failed.borrow().is_none()
        {
            core.enter(Some(Duration::from_millis(100)), true);
            core.reap();
        }
        core.mailbox.unregister();
        core.executor.leave();
        if core.operations.len() > 0 || core.mailbox_armed.get() {
            core.operations.leak();
            std::mem::forget(core.clone());
        }
        core.failed.borrow_mut().take().map_or(Ok(()), Err)
    }

    /// Runs one future on a reactor of its own: for tests and tools.
    pub fn block_on<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let result = Rc::new(RefCell::new(None));
        let (reactor, slot) = (self.clone(), result.clone());
        self.spawn(async move {
            *slot.borrow_mut() = Some(future.await);
            reactor.stop();
        });
        self.run().expect("the ring works");
        let value = result.borrow_mut().take();
        value.expect("the future has ended")
    }

    fn turn(&self) {
        let core = &self.core;
        core.stats.turns.add(1);
        core.executor.run_ready();
        core.hooks(|hook| {
            hook.flush();
            0
        });
        if core.stopping.get() {
            return;
        }
        if core.mailbox_due.take() {
            for message in core.mailbox.take() {
                core.stats.messages.add(1);
                message(self);
            }
        }
        if core.timers.has_made_up_time() {
            core.wait_in_made_up_time();
        } else {
            core.arm_mailbox();
            core.wait();
        }
        core.deferred.borrow_mut().drain(..).for_each(Waker::wake);
        core.poll_hooks();
        let reaped = core.reap() + core.hook_completions.take();
        let now = core.set_now();
        core.now_uses.set(0);
        if reaped > 0 {
            core.last_completion.set(now);
        }
        core.timers.fire(now);
    }

    /// Ends [`Reactor::run`].
    pub fn stop(&self) {
        self.core.stopping.set(true);
    }

    /// Starts a task of one slot.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        self.core.executor.spawn(std::iter::once(future));
    }

    /// Starts a task with a slot for each future; it ends when all have.
    pub fn spawn_slots<F: Future<Output = ()> + 'static>(&self, futures: impl Iterator<Item = F>) {
        self.core.executor.spawn(futures);
    }

    pub(crate) fn make_ready(&self, slot: SlotRef) {
        self.core.executor.make_ready(slot);
    }

    /// Tasks that have not ended.
    pub fn tasks(&self) -> usize {
        self.core.executor.tasks()
    }

    /// Operations the kernel holds.
    pub fn operations(&self) -> usize {
        self.core.operations.len()
    }

    /// The door for other threads.
    pub fn mailbox(&self) -> Mailbox {
        self.core.mailbox.clone()
    }

    /// What it counts.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.core.stats
    }

    /// The time of this turn: no system call, no clock read.
    pub fn now(&self) -> Instant {
        self.core.now.get()
    }

    /// The time, a few microseconds old at most: the clock is read for one call in sixteen within a turn.
    pub fn recent_now(&self) -> Instant {
        let uses = self.core.now_uses.get();
        self.core.now_uses.set(uses.wrapping_add(1));
        if uses.is_multiple_of(16) { self.core.set_now() } else { self.core.now.get() }
    }

    /// Waits.
    pub fn sleep(&self, time: Duration) -> Sleep {
        Sleep::new(&self.core.timers, self.core.timers.now() + time)
    }

    /// `future`'s result, or `None` when it takes longer than `time`.
    pub async fn timeout<T>(&self, time: Duration, future: impl Future<Output = T>) -> Option<T> {
        match select(pin!(future), self.sleep(time)).await {
            Either::Left((value, _)) => Some(value),
            Either::Right(_) => None,
        }
    }

    /// Lets others run, and the ring be served.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            self.core.deferred.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// A data buffer of at least `len` bytes, at once or not at all.
    pub fn try_buffer(&self, len: usize, class: BufferClass) -> Option<DataBuffer> {
        self.core.arena.try_get(len, class)
    }

    /// A data buffer of at least `len` bytes; waits its turn when none is free.
    pub fn buffer(&self, len: usize, class: BufferClass) -> GetBuffer {
        self.core.arena.get(len, class)
    }

    /// One buffer of `len` bytes beside the shared ones.
    pub fn reserve(&self, len: usize) -> io::Result<Reserve> {
        Reserve::new(len, self.core.stats.clone())
    }

    /// Buffers beside the shared ones: `bytes` in all, each of at most `max_buffer`.
    pub fn buffer_pool(&self, bytes: usize, max_buffer: usize) -> io::Result<BufferPool> {
        BufferPool::new(bytes, max_buffer, self.core.stats.clone())
    }

    /// The memory of all data buffers, to be registered with a device.
    pub fn device_memory(&self) -> DeviceMemory {
        self.core.arena.device_memory()
    }

    /// Has `hook` looked at once per turn.
    pub fn add_hook(&self, hook: Rc<dyn TurnHook>) -> HookGuard {
        self.core.hooks.borrow_mut().push(hook.clone());
        HookGuard { core: Rc::downgrade(&self.core), hook }
    }

    /// How much of the data buffers is in use.
    pub fn arena_use(&self) -> ArenaUse {
        self.core.arena.usage()
    }
}

/// A reactor on a thread of its own.
pub struct ReactorThread {
    /// The door into it.
    pub mailbox: Mailbox,
    /// What it counts.
    pub stats: Arc<Stats>,
    /// What works less well than it could, in one sentence.
    pub warning: Option<String>,
    thread: thread::JoinHandle<io::Result<()>>,
}

impl ReactorThread {
    /// Waits until it has stopped.
    pub fn join(self) -> io::Result<()> {
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("a reactor panicked")))
    }
}

/// Starts a reactor on a thread of its own; `init` runs there first.
pub fn start(
    options: Options,
    init: impl FnOnce(&Reactor) + Send + 'static,
) -> Result<ReactorThread, SetupError> {
    let stats: Arc<Stats> = Arc::default();
    let (sender, receiver) = mpsc::channel();
    let for_thread = stats.clone();
    let name = options.name.clone();
    let body = move || {
        if let Some(cpu) = options.cpu {
            // A processor that went away since it was listed: unpinned is slower, not wrong.
            let _ = system::pin(cpu);
        }
        let (reactor, warning) = match Reactor::new(&options, for_thread) {
            Ok(made) => made,
            Err(error) => {
                let _ = sender.send(Err(error));
                return Ok(());
            }
        };
        let _ = sender.send(Ok((reactor.mailbox(), warning)));
        init(&reactor);
        reactor.run()
    };
    let thread = thread::Builder::new()
        .name(name)
        .spawn(body)
        .map_err(|e| SetupError::Other("start a reactor's thread", e))?;
    let (mailbox, warning) = receiver.recv().unwrap_or_else(|_| {
        Err(SetupError::Other("start a reactor", io::Error::other("its thread panicked")))
    })?;
    Ok(ReactorThread { mailbox, stats, warning, thread })
}

#[cfg(test)]
impl Reactor {
    pub(crate) fn core_pending_timers(&self) -> usize {
        self.core.timers.pending()
    }
}
