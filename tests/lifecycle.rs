//! Start, drain and stop; keep alive; and what happens to a controller when one of its connections goes.

use crate::host::target::{ONE_NQN, binary, free_port, local, one_clear_error, one_memory};
use crate::host::{http, *};
use crate::inside::Inside;
use std::net::TcpListener;
use std::time::{Duration, Instant};

#[test]
fn sigterm_and_sigint_end_it_with_hosts_connected() {
    for signal in ["TERM", "INT"] {
        let mut target = Target::configured(&one_memory());
        run(async {
            let host =
                Host::connect(&target, ONE_NQN, Options { kato_ms: 30_000, ..Options::default() }).await?;
            let _event = host.admin.submit(&Command::async_event_request());
            let io = host.io_queue(1, 128).await?;
            let data = pattern(1, 64 << 10);
            let busy: Vec<_> =
                (0..64).map(|index| io.queue.submit(&io.writing(1, index * 128, &data))).collect();
            target.signal(signal);
            for write in busy {
                // What was running is answered, or the connection ends; never a wrong answer.
                match write.done().await {
                    Ok(_) | Err(Failure::Closed(_)) => {}
                    Err(Failure::Status(completion)) => assert!(!completion.dnr(), "{completion:?}"),
                    Err(other) => return Err(other),
                }
            }
            host.admin.ended().await?;
            io.queue.ended().await
        });
        assert_eq!(target.wait().code(), Some(0), "exit status after SIG{signal}:\n{}", target.log());
    }
}

#[test]
fn running_commands_are_drained() {
    let mut target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 16).await?;
        io.queue.hold_data();
        let write = io.queue.submit(&io.writing(1, 0, &pattern(1, 256 << 10)));
        until("the write has asked for its data", || io.queue.held_r2ts() == 1).await?;
        target.signal("TERM");
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(target.exit_status().is_none(), "it waits for the running command");
        io.queue.release_data();
        write.done().await?;
        Ok(())
    });
    assert_eq!(target.wait().code(), Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let limits = "[limits]\nshutdown_timeout_ms = 600000\ndata_timeout_ms = 600000\n";
    let mut target = Target::configured(&format!("{limits}{}", one_memory()));
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 16).await?;
        io.queue.hold_data();
        let _write = io.queue.submit(&io.writing(1, 0, &pattern(1, 256 << 10)));
        until("the write has asked for its data", || io.queue.held_r2ts() == 1).await?;
        target.signal("TERM");
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(target.exit_status().is_none(), "one signal waits for the running command");
        target.signal("TERM");
        assert_eq!(target.wait().code(), Some(1), "a second one ends it at once");
        Ok(())
    });
}

#[test]
fn a_stalled_command_does_not_hold_up_the_end_for_ever() {
    let limits = "[limits]\nshutdown_timeout_ms = 500\n";
    let mut target = Target::configured(&format!("{limits}{}", one_memory()));
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 16).await?;
        io.queue.hold_data();
        let _write = io.queue.submit(&io.writing(1, 0, &pattern(1, 256 << 10)));
        until("the write has asked for its data", || io.queue.held_r2ts() == 1).await?;
        target.signal("TERM");
        target.wait();
        Ok(())
    });
}

#[test]
fn nobody_gets_in_while_it_drains() {
    let mut target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 16).await?;
        io.queue.hold_data();
        let write = io.queue.submit(&io.writing(1, 0, &pattern(1, 256 << 10)));
        until("the write has asked for its data", || io.queue.held_r2ts() == 1).await?;
        target.signal("TERM");
        let deadline = Instant::now() + LIMIT;
        loop {
            // A Connect may be refused (to be tried again) or the connection may end; soon nobody gets in.
            match Host::attach(target.address, ONE_NQN, Options::default()).await {
                Ok(_) => assert!(Instant::now() < deadline, "hosts still get in"),
                Err(Failure::Status(completion)) => {
                    assert!(!completion.dnr(), "a host must come back later: {completion:?}");
                    break;
                }
                Err(Failure::Closed(_)) => break,
                Err(other) => return Err(other),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        io.queue.release_data();
        write.done().await.map(drop)
    });
    assert_eq!(target.wait().code(), Some(0));
}

#[test]
fn an_expired_keep_alive_ends_the_whole_controller() {
    let target = Target::configured(&one_memory());
    run(async {
        let options = |kato_ms| Options { kato_ms, ..Options::default() };
        let quiet = Host::connect(&target, ONE_NQN, options(1000)).await?;
        let queues = [quiet.io_queue(1, 16).await?, quiet.io_queue(2, 16).await?];
        let lively = Host::connect(&target, ONE_NQN, options(1000)).await?;
        let lively_io = lively.io_queue(1, 16).await?;
        let without = Host::connect(&target, ONE_NQN, options(0)).await?;
        while quiet.admin.is_alive() || queues.iter().any(|io| io.queue.is_alive()) {
            lively.admin.execute(&Command::keep_alive()).await?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        quiet.admin.ended().await?;
        for io in &queues {
            io.queue.ended().await?;
        }
        lively_io.write(1, 0, &pattern(1, 512)).await?;
        without.identify(0x01, 0).await?;
        target.metric_becomes("weft_connections_open", &[], 3.0).await
    });
    target.stop();
}

/// With CTRATT.TBKAS any traffic keeps a controller alive.
#[test]
fn traffic_keeps_alive_where_it_is_said_to() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options { kato_ms: 1000, ..Options::default() }).await?;
        let by_traffic = u32_at(&host.identify(0x01, 0).await?, 96) >> 6 & 1 == 1;
        let io = host.io_queue(1, 16).await?;
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(4) {
            match io.read(1, 0, 512).await {
                Ok(_) => {}
                Err(Failure::Closed(_)) if !by_traffic => break,
                Err(other) => return Err(other),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(io.queue.is_alive(), by_traffic, "TBKAS");
        Ok(())
    });
    target.stop();
}

#[test]
fn a_controller_ends_with_its_admin_queue() {
    let target = Target::configured(&one_memory());
    run(async {
        let Host { admin, cntlid, options, .. } = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let again = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let queue = QueuePair::open(target.address, &options, 1).await?;
        let connect = Connect { cntlid, ..options.connect(ONE_NQN, 1, 15) };
        queue.connect(&connect).await?;
        drop(admin);
        queue.ended().await?;
        // Linux deletes its controller for good when a Connect fails with DNR; this one must be worth another try.
        let late = QueuePair::open(target.address, &options, 2).await?;
        let connect = Connect { qid: 2, ..connect };
        let Err(Failure::Status(refused)) = late.connect(&connect).await else {
            panic!("the controller is gone")
        };
        assert_eq!(refused.code(), CONNECT_INVALID);
        again.identify(0x01, 0).await.map(drop)
    });
    target.stop();
}

#[test]
fn a_lost_io_queue_can_be_connected_again() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        for round in 0..20 {
            let io = host.io_queue(1, 16).await?;
            let data = pattern(round, 4096);
            io.write(1, 8, &data).await?;
            assert!(io.read(1, 8, 4096).await? == data);
            drop(io);
            target.metric_becomes("weft_connections_open", &[], 1.0).await?;
        }
        Ok(())
    });
    target.stop();
}

/// CC.EN 1 to 0 is a controller reset: the I/O queues go, the admin queue stays and can enable it again.
#[test]
fn a_reset_takes_the_io_queues_with_it() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 16).await?;
        host.set_property(property::CC, CC_CONFIGURED).await?;
        host.wait_for_status(1, 0).await?;
        match io.read(1, 0, 512).await {
            Err(Failure::Closed(_)) => {}
            other => drop(other.map(|_| Completion::default()).fails_finally(&[SEQUENCE_ERROR])),
        }
        drop(io);
        target.metric_becomes("weft_connections_open", &[], 1.0).await?;
        host.enable().await?;
        host.io_queue(1, 16).await?.write(1, 0, &pattern(1, 512)).await.map(drop)
    });
    target.stop();
}

/// How a controller of the next test ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    AdminQueueLost,
    Reset,
    Shutdown,
    KeepAlive,
}

/// However a controller ends, all its queue pairs go, on all reactors; event requests are answered only where the admin
/// queue lives on; the host comes back at once; and nothing is left.
#[test]
fn a_controller_ends_on_all_reactors() {
    let target = Target::configured(&format!("[reactors]\ncount = 4\n{}", one_memory()));
    run(async {
        for end in [End::AdminQueueLost, End::Reset, End::Shutdown, End::KeepAlive, End::AdminQueueLost] {
            let kato_ms = if end == End::KeepAlive { 1000 } else { 60_000 };
            let host = Host::connect(&target, ONE_NQN, Options { kato_ms, ..Options::default() }).await?;
            let mut queues = Vec::new();
            for qid in 1..=7 {
                queues.push(host.io_queue(qid, 16).await?);
            }
            let events: Vec<_> = (0..4).map(|_| host.admin.submit(&Command::async_event_request())).collect();
            host.identify(0x01, 0).await?;
            match end {
                End::AdminQueueLost => host.admin.break_off(),
                End::Reset => host.set_property(property::CC, CC_CONFIGURED).await?,
                End::Shutdown => {
                    host.set_property(property::CC, CC_CONFIGURED | 1 << 14 | 1).await?;
                    host.wait_for_status(0xc, 0x8).await?;
                    host.admin.break_off();
                }
                End::KeepAlive => host.admin.ended().await?,
            }
            for event in events {
                match (event.done().await, end) {
                    (Err(Failure::Status(aborted)), End::Reset) if aborted.code() == 0x007 => {}
                    (Err(Failure::Closed(_)), other) if other != End::Reset => {}
                    other => panic!("an event request at its controller's end: {other:?}"),
                }
            }
            let again = Host::connect(&target, ONE_NQN, Options::default()).await?;
            again.io_queue(1, 16).await?.write(1, 0, &pattern(1, 512)).await?;
            for queue in &queues {
                queue.queue.ended().await?;
            }
            if end == End::Reset {
                host.enable().await?;
                for qid in 1..=7 {
                    host.io_queue(qid, 16).await?.write(1, 0, &pattern(1, 512)).await?;
                }
            }
            drop((host, again, queues));
            target.metric_becomes("weft_connections_open", &[], 0.0).await?;
        }
        Ok(())
    });
    target.stop();
}

/// An expired keep alive is a fatal condition: CSTS.CFS is set before the queue pairs go.
#[test]
fn an_expired_keep_alive_sets_cfs() {
    let inside = Inside::start(&one_memory());
    run(async {
        let options = Options { kato_ms: 1000, ..Options::default() };
        let host = Host::attach(inside.address(), ONE_NQN, options).await?;
        host.enable().await?;
        let io = host.io_queue(1, 16).await?;
        let controller = inside.target().controller(host.cntlid).expect("it lives");
        assert_eq!(controller.end(), (false, false));
        host.admin.ended().await?;
        io.queue.ended().await?;
        assert_eq!(controller.end(), (true, true));
        assert!(inside.target().controller(host.cntlid).is_none(), "nobody can join it any more");
        // A lost connection is no fault of the controller's.
        let host = Host::attach(inside.address(), ONE_NQN, Options::default()).await?;
        let controller = inside.target().controller(host.cntlid).expect("it lives");
        drop(host);
        until("it has ended", || controller.end().0).await?;
        assert_eq!(controller.end(), (true, false));
        Ok(())
    });
}

/// There is no subsystem reset (CAP.NSSRS is 0): one host could end the connections of all others.
#[test]
fn a_subsystem_reset_is_refused() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let other = Host::connect(&target, ONE_NQN, Options::default()).await?;
        assert_eq!(host.property(property::CAP).await? >> 36 & 1, 0, "NSSRS");
        let reset = Command::property_set(0x20, 0x4e56_4d65);
        host.admin.execute(&reset).await.fails_with(INVALID_FIELD, true);
        host.identify(0x01, 0).await?;
        other.identify(0x01, 0).await.map(drop)
    });
    target.stop();
}

#[test]
fn a_port_in_use_is_one_clear_error() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).expect("its address");
    let free = local(free_port()).to_string();
    for (listen, metrics) in [(&taken.1, &free), (&free, &taken.1)] {
        let arguments = ["serve", "--listen", listen, "--metrics", metrics, "--reactors", "1"];
        let (status, said) = target::weft(&arguments);
        one_clear_error(status, &said, &taken.1);
    }
}

#[test]
fn an_idle_target_sleeps() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 128).await?;
        let _event = host.admin.submit(&Command::async_event_request());
        io.read(1, 0, 512).await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let before = target.cpu_ns();
        tokio::time::sleep(Duration::from_secs(3)).await;
        let used = Duration::from_nanos(target.cpu_ns().saturating_sub(before));
        assert!(used < Duration::from_millis(150), "{used:?} of CPU in three idle seconds");
        Ok(())
    });
    target.stop();
}

/// Whoever started weft may stop reading what it says; it serves on, and ends in order.
#[test]
fn a_closed_standard_error_ends_nothing() {
    let (listen, metrics) = (local(free_port()), local(free_port()));
    let mut child = std::process::Command::new(binary())
        .args(["serve", "--log", "trace", "--listen", &listen.to_string(), "--metrics", &metrics.to_string()])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("weft starts");
    drop((child.stdout.take(), child.stderr.take()));
    run(async {
        until("it is healthy", || http::get(metrics, "/healthz").is_some_and(|(status, _)| status == 200))
            .await?;
        let host = Host::attach(listen, "nqn.2026-12.io.weft:default", Options::default()).await?;
        host.enable().await?;
        let io = host.io_queue(1, 16).await?;
        assert!(io.write(1, 0, &pattern(1, 4096)).await?.is_success());
        Ok(())
    });
    let killed = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(killed.expect("kill runs").success());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn too_few_open_files_is_one_clear_error() {
    let (listen, metrics) = (local(free_port()).to_string(), local(free_port()).to_string());
    let output = std::process::Command::new("prlimit")
        .args([
            "--nofile=20",
            &binary().display().to_string(),
            "serve",
            "--listen",
            &listen,
            "--metrics",
            &metrics,
        ])
        .output()
        .expect("prlimit runs");
    one_clear_error(output.status, &String::from_utf8_lossy(&output.stderr), "ulimit -n");
}
