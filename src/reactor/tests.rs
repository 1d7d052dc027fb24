//! The reactor against the real kernel.

use crate::{BufferClass, Gather, Options, Reactor, Stats, system};
use futures::{FutureExt, future::join};
use std::{
    future::Future,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::OwnedFd,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

fn reactor() -> Reactor {
    let options = Options { buffers: 8 << 20, ..Options::default() };
    Reactor::new(&options, Arc::new(Stats::default())).unwrap().0
}

fn socket_pair() -> (Rc<OwnedFd>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (Rc::new(listener.accept().unwrap().0.into()), peer)
}

fn temporary_file() -> Rc<OwnedFd> {
    let path = std::env::temp_dir().join(format!("weft-reactor-{}-{:?}", std::process::id(), Instant::now()));
    let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(1 << 20).unwrap();
    std::fs::remove_file(path).unwrap();
    Rc::new(file.into())
}

#[test]
fn bytes_go_through_shared_buffers_data_buffers_and_gathers() {
    let r = reactor();
    let (socket, mut peer) = socket_pair();
    peer.write_all(b"hello").unwrap();
    let inner = r.clone();
    r.block_on(async move {
        assert_eq!(&*inner.receive(&socket).await.unwrap(), b"hello");
        peer.write_all(&[5; 10_000]).unwrap();
        let buffer = inner.buffer(16_384, BufferClass::Io).await;
        let (result, mut buffer) = inner.receive_into(&socket, buffer, 100, 10_000).await;
        result.unwrap();
        buffer.set_len(10_100);
        assert!(buffer.filled()[100..].iter().all(|b| *b == 5));
        let mut gather = Box::new(Gather::new(4, 32));
        gather.push_header(b"head");
        gather.push_buffer(buffer, 0);
        gather.push_zeroes(70_000);
        let echo = std::thread::spawn(move || {
            let mut all = vec![0; 4 + 10_100 + 70_000];
            peer.read_exact(&mut all).unwrap();
            all
        });
        let (result, gather) = inner.send(&socket, gather).await;
        result.unwrap();
        assert!(gather.is_empty());
        let all = echo.join().unwrap();
        assert!(all.starts_with(b"head") && all[104..10_104].iter().all(|b| *b == 5));
    });
    assert_eq!(r.arena_use().free, r.arena_use().total, "the gather let go of its buffer");
}

#[test]
fn files_are_written_synced_and_read_back_and_a_short_one_is_an_error() {
    let r = reactor();
    let inner = r.clone();
    r.block_on(async move {
        let file = temporary_file();
        let mut buffer = inner.buffer(8192, BufferClass::Io).await;
        buffer.fill_from(&[3; 8192]);
        let (result, buffer) = inner.write_at(&file, buffer, 4096, true).await;
        result.unwrap();
        inner.sync_data(&file).await.unwrap();
        let (result, buffer) = inner.read_at(&file, buffer, 8192, 8192).await;
        result.unwrap();
        assert!(buffer.filled()[..4096].iter().all(|b| *b == 3));
        assert!(buffer.filled()[4096..].iter().all(|b| *b == 0));
        let (result, _) = inner.read_at(&file, buffer, 8192, (1 << 20) - 4096).await;
        assert_eq!(result.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    });
}

/// Polls `make()` once, drops it, and sees that everything comes back once the peer does something.
fn drop_in_flight<F: Future>(name: &str, make: impl Fn(Reactor, Rc<OwnedFd>) -> F + 'static) {
    let r = reactor();
    let inner = r.clone();
    let (socket, mut peer) = socket_pair();
    r.block_on(async move {
        for _ in 0..100 {
            assert!(make(inner.clone(), socket.clone()).now_or_never().is_none());
            inner.yield_now().await;
        }
        peer.write_all(&[1; 64]).unwrap();
        while inner.stats().orphans.get() > 0 {
            inner.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(Rc::strong_count(&socket), 1);
    });
    assert_eq!(r.operations(), 0, "{name}");
    let usage = r.arena_use();
    assert_eq!((usage.free, usage.waiting), (usage.total, 0), "{name}");
}

#[test]
fn a_future_dropped_at_any_await_leaves_nothing_behind() {
    drop_in_flight("receive", |r, socket| async move { r.receive(&socket).await.map(drop) });
    drop_in_flight("receive_into", |r, socket| async move {
        let buffer = r.buffer(4096, BufferClass::Io).await;
        r.receive_into(&socket, buffer, 0, 4096).await
    });
    drop_in_flight("receive_exact", |r, s| async move { r.receive_exact(&s, vec![0; 4096].into()).await });
    drop_in_flight("send", |r, socket| async move {
        let mut buffer = r.buffer(4096, BufferClass::Io).await;
        buffer.fill_from(&[0; 4096]);
        let mut gather = Box::new(Gather::new(2, 32));
        gather.push_buffer(buffer, 0);
        r.send(&socket, gather).await
    });
    drop_in_flight("send_all", |r, socket| async move { r.send_all(&socket, vec![0; 4096].into()).await });
    drop_in_flight("read_at", |r, _socket| async move {
        let buffer = r.buffer(4096, BufferClass::Io).await;
        r.read_at(&temporary_file(), buffer, 4096, 0).await
    });
    drop_in_flight("write_at", |r, _socket| async move {
        let mut buffer = r.buffer(4096, BufferClass::Io).await;
        buffer.fill_from(&[0; 4096]);
        r.write_at(&temporary_file(), buffer, 0, false).await
    });
    drop_in_flight("sync_data", |r, _socket| async move { r.sync_data(&temporary_file()).await });
    drop_in_flight("zero_at", |r, _socket| async move { r.zero_at(&temporary_file(), 0, 4096, true).await });
    drop_in_flight("sleep", |r, _socket| async move { r.sleep(Duration::from_secs(3600)).await });
    drop_in_flight("accept", |r, _socket| async move {
        let listener = Rc::new(system::listen("127.0.0.1:0".parse().unwrap()).unwrap());
        r.accept(&listener).next().await
    });
}

#[test]
fn a_future_dropped_after_completion_gives_the_shared_buffer_back() {
    let r = reactor();
    let inner = r.clone();
    let (socket, mut peer) = socket_pair();
    r.block_on(async move {
        for _ in 0..200 {
            let mut receive = Box::pin(inner.receive(&socket));
            assert!(futures::poll!(&mut receive).is_pending());
            peer.write_all(b"x").unwrap();
            inner.sleep(Duration::from_micros(200)).await;
            drop(receive);
        }
        // With 16 buffers and 200 drops, a leak would leave none to receive into.
        peer.write_all(b"end").unwrap();
        assert!(!inner.receive(&socket).await.unwrap().is_empty());
    });
}

#[test]
fn one_accept_takes_many_connections() {
    let r = reactor();
    let inner = r.clone();
    r.block_on(async move {
        let listener = system::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = TcpListener::from(listener.try_clone().unwrap()).local_addr().unwrap();
        let mut stream = inner.accept(&Rc::new(listener));
        let peers: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
        for _ in &peers {
            let (_, local, _) = system::prepare_connection(stream.next().await.unwrap()).unwrap();
            assert_eq!(local, address);
        }
    });
}

#[test]
fn timers_fire_in_order_and_other_threads_get_in() {
    let r = reactor();
    let inner = r.clone();
    let order = r.block_on(async move {
        let order = Rc::new(std::cell::RefCell::new(Vec::new()));
        let at = |ms: u64| {
            let (inner, order) = (inner.clone(), order.clone());
            async move {
                inner.sleep(Duration::from_millis(ms)).await;
                order.borrow_mut().push(ms);
            }
        };
        join(at(30), join(at(10), at(20))).await;
        assert!(inner.timeout(Duration::from_millis(1), std::future::pending::<()>()).await.is_none());
        let (sender, receiver) = futures::channel::oneshot::channel();
        let mailbox = inner.mailbox();
        // A waker of this reactor used on another thread, and a message from there.
        let thread = std::thread::spawn(move || {
            sender.send(7).unwrap();
            mailbox.send(|reactor| assert!(reactor.tasks() > 0));
        });
        assert_eq!(receiver.await, Ok(7));
        thread.join().unwrap();
        assert_eq!(inner.core_pending_timers(), 0);
        order.take()
    });
    assert_eq!(order, [10, 20, 30]);
}

/// Without polling there is no grace between the message and the sleep after it.
#[test]
fn a_message_can_stop_a_reactor_that_never_polls() {
    for _ in 0..50 {
        let options = Options { buffers: 8 << 20, poll: Duration::ZERO, ..Options::default() };
        let thread = crate::start(options, |_| {}).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        thread.mailbox.send(Reactor::stop);
        thread.join().unwrap();
    }
}

#[test]
fn an_idle_reactor_sleeps() {
    let r = reactor();
    let inner = r.clone();
    r.block_on(async move {
        let before = inner.stats().turns.get();
        inner.sleep(Duration::from_millis(300)).await;
        // Polling goes on for 50 µs; after that only the timer ends the sleep.
        let turns = inner.stats().turns.get() - before;
        assert!(turns < 100, "{turns} turns in an idle third of a second");
    });
}

/// A completion queue as a reactor sees one: an eventfd that speaks only when asked to.
struct Queue {
    event: Rc<OwnedFd>,
    due: std::cell::Cell<usize>,
    armed: std::cell::Cell<usize>,
    flushed: std::cell::Cell<usize>,
    taken: crate::Signal,
    total: std::cell::Cell<usize>,
}

impl crate::TurnHook for Queue {
    fn poll(&self) -> usize {
        let found = self.due.take();
        if found > 0 {
            self.total.set(self.total.get() + found);
            self.taken.notify();
        }
        found
    }

    fn flush(&self) {
        self.flushed.set(self.flushed.get() + 1);
    }

    fn before_sleep(&self) -> bool {
        self.armed.set(self.armed.get() + 1);
        self.poll() > 0
    }
}

#[test]
fn a_hook_is_polled_every_turn_asked_before_sleep_and_woken_by_its_descriptor() {
    // SAFETY: plain system call.
    let raw = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    // SAFETY: a fresh descriptor that nothing else owns.
    let event = Rc::new(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(raw) });
    let options = Options { buffers: 8 << 20, poll: Duration::ZERO, ..Options::default() };
    let r = Reactor::new(&options, Arc::new(Stats::default())).unwrap().0;
    let queue = Rc::new(Queue {
        event: event.clone(),
        due: Default::default(),
        armed: Default::default(),
        flushed: Default::default(),
        taken: Default::default(),
        total: Default::default(),
    });
    let (inner, hook) = (r.clone(), queue.clone());
    let _guard = r.add_hook(queue.clone());
    r.block_on(async move {
        let mut readable = inner.readable(&event);
        for round in 1..=3 {
            let mut other = std::fs::File::from(event.try_clone().unwrap());
            // Another thread stands for the device: it speaks when the reactor sleeps or is about to.
            let device = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(5));
                other.write_all(&1u64.to_ne_bytes()).unwrap();
            });
            readable.next().await.unwrap();
            device.join().unwrap();
            let mut count = [0; 8];
            std::fs::File::from(event.try_clone().unwrap()).read_exact(&mut count).unwrap();
            assert_eq!(u64::from_ne_bytes(count), 1);
            hook.due.set(round);
            let so_far = hook.total.get();
            hook.taken.wait_for(|| (hook.total.get() > so_far).then_some(())).await;
        }
    });
    assert_eq!(queue.total.get(), 6);
    assert!(
        queue.armed.get() >= 3 && queue.flushed.get() > 3,
        "asked before every sleep, flushed every turn"
    );
    drop(queue.event.clone());
}
