//! Media that are slow, fail or do not answer: their commands suffer, nothing else does, and everything is counted to zero
//! in the end.

use crate::host::target::{ONE_NQN, namespace, one_subsystem};
use crate::host::*;
use crate::hostile::Bystander;
use std::time::Duration;

/// NSID 1 works, NSID 2 has these faults.
fn with_faults(limits: &str, faults: &str) -> Target {
    let namespaces = [
        namespace(1, "memory", 512, "64 MiB", ""),
        namespace(2, "memory", 512, "1 MiB", ""),
        format!("[subsystem.namespace.faults]\n{faults}\n"),
    ];
    Target::configured(&format!("{limits}{}", one_subsystem(&namespaces.concat())))
}

#[test]
fn errors_are_the_configured_ones_and_a_seed_repeats_them() {
    let faults = "seed = 3\nerror_one_in = 4\nerrors = [0x280, 0x281]\nmax_delay_us = 200";
    let once = || {
        let target = with_faults("[reactors]\ncount = 1\n", faults);
        let mut outcomes = Vec::new();
        run(async {
            let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
            let io = host.io_queue(1, 16).await?;
            for round in 0..100 {
                let status = match io.write(2, round, &pattern(round, 512)).await {
                    Ok(_) => 0,
                    Err(Failure::Status(completion)) => completion.code(),
                    Err(other) => return Err(other),
                };
                outcomes.push(status);
                io.write(1, round, &pattern(round, 512)).await?;
            }
            let failed = outcomes.iter().filter(|status| **status != 0).count() as f64;
            target.metric_becomes("weft_commands_failed_total", &[("opcode", "write")], failed).await
        });
        target.stop();
        outcomes
    };
    let outcomes = once();
    for wanted in [0, 0x280, 0x281] {
        assert!(outcomes.contains(&wanted), "{wanted:#x} in {outcomes:x?}");
    }
    assert!(outcomes.iter().all(|status| [0, 0x280, 0x281].contains(status)), "{outcomes:x?}");
    assert_eq!(once(), outcomes, "the same seed brings the same errors");
}

/// A command that hangs holds up its queue pair's end and nothing else: the host lives on, resets, leaves and comes back.
#[test]
fn a_hanging_command_holds_up_nobody_and_is_counted_to_zero() {
    let target = with_faults("", "hang_one_in = 1\nhang_ms = 3000");
    run(async {
        let bystander = Bystander::arrive(&target).await?;
        let options = Options { kato_ms: 1000, ..Options::host("nqn.2026-12.io.weft:patient") };
        let host = Host::connect(&target, ONE_NQN, options.clone()).await?;
        let io = host.io_queue(1, 32).await?;
        let hung = [
            io.queue.submit(&io.writing(2, 0, &pattern(1, 16 << 10))),
            io.queue.submit(&io.reading(2, 0, 4096)),
            io.queue.submit(&Command::flush(2)),
        ];
        // Keep alive and other namespaces go on meanwhile, longer than the keep alive timeout.
        for round in 0..8 {
            host.admin.execute(&Command::keep_alive()).await?;
            io.write(1, round, &pattern(round, 512)).await?;
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        bystander.works().await?;
        assert_eq!(target.metrics().sum("weft_keep_alive_expiries_total", &[]), 0.0);
        host.set_property(property::CC, CC_CONFIGURED).await?;
        for command in hung {
            // Answered before the reset, or gone with its queue.
            drop(command.done().await);
        }
        drop(io);
        drop(host);
        let again = Host::connect(&target, ONE_NQN, options).await?;
        again.io_queue(1, 32).await?.write(1, 0, &pattern(1, 512)).await?;
        drop(again);
        bystander.works().await?;
        bystander.is_alone(&target).await?;
        target.metric_becomes("weft_buffer_used_bytes", &[], 0.0).await?;
        target.metric_becomes("weft_orphaned_operations", &[], 0.0).await
    });
    target.stop();
}

/// Commands that never end do not keep weft from ending.
#[test]
fn sigterm_ends_it_with_commands_that_hang_for_ever() {
    let mut target = with_faults("[limits]\nshutdown_timeout_ms = 500\n", "hang_one_in = 1");
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 32).await?;
        let hung = io.queue.submit(&io.writing(2, 0, &pattern(1, 16 << 10)));
        io.write(1, 0, &pattern(1, 512)).await?;
        target.signal("TERM");
        assert!(matches!(hung.done().await, Err(Failure::Closed(_))), "a command that hangs is not answered");
        host.admin.ended().await
    });
    assert_eq!(target.wait().code(), Some(0), "exit status after SIGTERM:\n{}", target.log());
}
