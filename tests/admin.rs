//! The other admin commands: log pages, Asynchronous Event Requests, Abort, Keep Alive, and what must not be there.

use crate::host::target::{ONE_NQN, one_memory};
use crate::host::*;

#[test]
fn log_pages_are_there() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 16).await?;
        for lba in 0..10 {
            io.write(1, lba, &pattern(lba, 512)).await?;
            io.read(1, lba, 512).await?;
        }
        let health = host.log(0x02, 512, 0).await?;
        assert_eq!(health[0], 0, "no critical warning");
        assert!(health[3] >= health[4], "available spare above its threshold");
        let firmware = host.log(0x03, 512, 0).await?;
        let slot = usize::from(firmware[0] & 7);
        if slot != 0 {
            let controller = host.identify(0x01, 0).await?;
            assert_eq!(firmware[8 * slot..8 * slot + 8], controller[64..72], "the active slot holds FR");
        }
        let notices = u32_at(&host.identify(0x01, 0).await?, 92) >> 8 & 1 == 1;
        match host.admin.execute(&Command::get_log(0x04, 4096, 0)).await {
            Ok(page) => assert!(page.data.iter().all(|byte| *byte == 0), "no namespace has changed"),
            refused if !notices => drop(refused.fails_finally(&[0x109, INVALID_FIELD])),
            other => drop(other?),
        }
        for (lid, bytes) in [(0x02, 512), (0x03, 512), (0x05, 4096)] {
            let whole = host.log(lid, bytes, 0).await?;
            let half = host.log(lid, bytes / 2, bytes as u64 / 2).await?;
            assert!(whole[bytes / 2..] == half, "log page {lid:02x}h from its middle");
        }
        for lid in [0x07, 0xc0, 0xff] {
            let refused = host.admin.execute(&Command::get_log(lid, 512, 0)).await;
            refused.fails_finally(&[0x109, INVALID_FIELD]);
        }
        host.admin.execute(&Command::get_log(0x02, 508, 2)).await.fails_with(INVALID_FIELD, true);
        Ok(())
    });
    target.stop();
}

/// What the effects log calls supported is not an invalid opcode, and everything else is one.
#[test]
fn the_effects_log_is_true() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let effects = host.log(0x05, 4096, 0).await?;
        let supported = |at: usize| u32_at(&effects, at) & 1 == 1;
        for opcode in [0x02, 0x06, 0x09, 0x0a, 0x0c, 0x18_usize] {
            assert!(supported(opcode * 4), "admin command {opcode:02x}h");
        }
        for opcode in [0x00, 0x01, 0x02_usize] {
            assert!(supported(1024 + opcode * 4), "I/O command {opcode:02x}h");
        }
        assert_eq!(u32_at(&effects, 1024 + 4) & 2, 2, "Write changes logical blocks");
        let io = host.io_queue(1, 16).await?;
        for opcode in 0..=255_u8 {
            let at = usize::from(opcode) * 4;
            // Event requests are held; Fabrics commands have a type of their own.
            if !matches!(opcode, 0x0c | 0x7f) {
                let answer = host.admin.execute(&Command::new(opcode).nsid(0xdead)).await;
                assert_eq!(code(&answer) != INVALID_OPCODE, supported(at), "admin {opcode:02x}h: {answer:?}");
            }
            if opcode != 0x7f {
                let answer = io.queue.execute(&Command::new(opcode).nsid(0xdead)).await;
                assert_eq!(
                    code(&answer) != INVALID_OPCODE,
                    supported(1024 + at),
                    "I/O {opcode:02x}h: {answer:?}"
                );
            }
        }
        Ok(())
    });
    target.stop();
}

/// The status of an answer, 0 for success.
fn code(answer: &Result<Completion, Failure>) -> u16 {
    match answer {
        Ok(_) => 0,
        Err(Failure::Status(completion)) => completion.code(),
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn event_requests_are_held_while_other_commands_flow() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options { kato_ms: 30_000, ..Options::default() }).await?;
        let limit = usize::from(host.identify(0x01, 0).await?[259]) + 1;
        assert_eq!(limit, 4, "AERL");
        // Commands may be executed in any order: one of the five is refused, whichever it is.
        let mut held: Vec<_> =
            (0..=limit).map(|_| host.admin.submit(&Command::async_event_request())).collect();
        let mut refused = None;
        until("one request too many is refused", || {
            let position = held.iter_mut().position(|event| {
                refused = event.poll();
                refused.is_some()
            });
            position.map(|position| held.remove(position)).is_some()
        })
        .await?;
        refused.expect("an answer").fails_with(AER_LIMIT, true);
        for _ in 0..50 {
            host.admin.execute(&Command::keep_alive()).await?;
            host.identify(0x01, 0).await?;
        }
        assert!(held.iter_mut().all(|event| event.poll().is_none()), "nothing happened");
        // A request that waits can be aborted, and its place taken by another.
        let first = held.remove(0);
        let answer = host.admin.execute(&Command::abort(0, first.cid)).await?;
        assert_eq!(answer.dw0 & 1, 0, "aborted");
        assert_eq!(code(&first.done().await), 0x007, "abort requested");
        held.push(host.admin.submit(&Command::async_event_request()));
        host.identify(0x01, 0).await?;
        assert!(held.iter_mut().all(|event| event.poll().is_none()), "four wait again");
        let nobody = host.admin.execute(&Command::abort(1, 0x4242)).await?;
        assert_eq!(nobody.dw0 & 1, 1, "there was nothing to abort");
        Ok(())
    });
    target.stop();
}

#[test]
fn keep_alive_without_a_timeout_is_refused() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        host.admin.execute(&Command::keep_alive()).await.fails_with(0x01a, true);
        Ok(())
    });
    target.stop();
}

/// Admin commands a fabrics controller must not know.
#[test]
fn queues_are_not_created_by_commands() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        for opcode in [0x00, 0x01, 0x04, 0x05] {
            host.admin.execute(&Command::new(opcode)).await.fails_with(INVALID_OPCODE, true);
        }
        host.admin.execute(&Command::fabrics(0x77)).await.fails_with(INVALID_OPCODE, true);
        Ok(())
    });
    target.stop();
}

/// Newest first, with what a person needs to find the command; the health log counts them.
#[test]
fn failed_commands_are_in_the_error_log() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 16).await?;
        let entries = usize::from(host.identify(0x01, 0).await?[262]) + 1;
        assert!(host.log(0x01, entries * 64, 0).await?.iter().all(|byte| *byte == 0));
        io.queue.execute(&Command::read(1, 1 << 40, 1, 512)).await.fails_with(LBA_OUT_OF_RANGE, true);
        io.queue.execute(&Command::flush(9)).await.fails_with(INVALID_NAMESPACE, true);
        let log = host.log(0x01, entries * 64, 0).await?;
        for (at, count, nsid, lba, status) in
            [(0, 2, 9, 0, INVALID_NAMESPACE), (64, 1, 1, 1 << 40, LBA_OUT_OF_RANGE)]
        {
            let entry = &log[at..at + 64];
            assert_eq!(u64_at(entry, 0), count);
            assert_eq!(u16_at(entry, 8), 1, "SQID");
            assert_eq!(u16_at(entry, 12) >> 1 & 0x7ff, status);
            assert_eq!((u32_at(entry, 24), u64_at(entry, 16)), (nsid, lba));
        }
        assert!(log[128..].iter().all(|byte| *byte == 0));
        assert_eq!(u64_at(&host.log(0x02, 512, 0).await?, 176), 2, "error log entries in the health log");
        Ok(())
    });
    target.stop();
}

/// Features that every I/O controller has, of which this one can do one thing only.
#[test]
fn fixed_features_say_what_they_are() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        for (feature, value) in [(0x01, 7), (0x02, 0), (0x05, 0), (0x0a, 0)] {
            let get = Command::get_features(feature);
            assert_eq!(host.admin.execute(&get).await?.dw0, value, "feature {feature:02x}h");
            host.admin.execute(&Command::set_features(feature, value)).await?;
            let other = host.admin.execute(&Command::set_features(feature, value + 1)).await;
            other.fails_with(0x10e, true);
            assert_eq!(host.admin.execute(&get).await?.dw0, value);
        }
        Ok(())
    });
    target.stop();
}
