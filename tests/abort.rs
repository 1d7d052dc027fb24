//! Abort: what waits for data of its host is not executed and says so; everything else ends by itself, and the answer says
//! which it was. Every command is completed once.

use crate::host::target::{ONE_NQN, TempDir, namespace, one_memory, one_subsystem};
use crate::host::*;

const ABORT_REQUESTED: u16 = 0x007;
const ABORT_LIMIT: u16 = 0x103;

/// The status of a command that must have failed.
fn failed(result: Result<Completion, Failure>) -> u16 {
    match result {
        Err(Failure::Status(completion)) => completion.code(),
        other => panic!("a failed command was due, but: {other:02x?}"),
    }
}

#[test]
fn a_write_that_waits_for_its_data_is_aborted() {
    let target = Target::configured(&one_memory());
    run(async {
        for digests in [Digests::NONE, Digests { header: true, data: true }] {
            let host = Host::connect(&target, ONE_NQN, Options::with(digests)).await?;
            // Queues on both reactors.
            for qid in 1..=4 {
                let io = host.io_queue(qid, 16).await?;
                let old = pattern(u64::from(qid), 64 << 10);
                io.write(1, 0, &old).await?;
                io.queue.hold_data();
                let new = pattern(99, 64 << 10);
                let aborted = io.queue.submit(&io.writing(1, 0, &new).by_r2t());
                let other = io.queue.submit(&io.writing(1, 4096, &new).by_r2t());
                until("both have asked for data", || io.queue.held_r2ts() == 2).await?;
                let answer = host.admin.execute(&Command::abort(qid, aborted.cid)).await?;
                assert_eq!(answer.dw0 & 1, 0, "aborted");
                let again = host.admin.execute(&Command::abort(qid, aborted.cid)).await?;
                assert_eq!(again.dw0 & 1, 0, "still aborted");
                io.queue.release_data();
                assert_eq!(failed(aborted.done().await), ABORT_REQUESTED);
                other.done().await?;
                assert!(io.read(1, 0, old.len()).await? == old, "it was not executed");
                assert!(io.read(1, 4096, new.len()).await? == new, "the other one was");
            }
        }
        Ok(())
    });
    target.stop();
}

/// Writes that wait for a buffer are aborted as well: they never ask for their data.
#[test]
fn a_write_that_waits_for_its_buffer_is_aborted() {
    let directory = TempDir::new();
    let namespaces = one_subsystem(&namespace(1, "memory", 4096, "64 MiB", ""));
    let rest = format!("[reactors]\ncount = 1\nbuffers = \"4 MiB\"\n{namespaces}");
    let target = Target::configured_in(directory, &rest);
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 32).await?;
        io.queue.hold_data();
        let data = pattern(1, 1 << 20);
        let writes: Vec<_> =
            (0..8).map(|index| io.queue.submit(&io.writing(1, index * 256, &data))).collect();
        until("the first have asked for data", || io.queue.held_r2ts() >= 3).await?;
        // All have arrived: what an admin command finds is not a matter of luck.
        until("the others wait", || target.metrics().sum("weft_buffer_waits_total", &[]) >= 5.0).await?;
        let last = &writes[7];
        let answer = host.admin.execute(&Command::abort(1, last.cid)).await?;
        assert_eq!(answer.dw0 & 1, 0, "aborted");
        io.queue.release_data();
        for (index, write) in writes.into_iter().enumerate() {
            let done = write.done().await;
            if index == 7 { assert_eq!(failed(done), ABORT_REQUESTED) } else { drop(done?) }
        }
        assert!(io.read(1, 7 * 256, 4096).await?.iter().all(|byte| *byte == 0), "it was not executed");
        Ok(())
    });
    target.stop();
}

#[test]
fn what_is_not_there_is_not_aborted() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 16).await?;
        io.write(1, 0, &pattern(1, 512)).await?;
        for (words, qid, cid) in [
            ("a command of a queue that is idle", 1, 1),
            ("of a queue that is not connected", 2, 1),
            ("of a queue there cannot be", 0xffff, 1),
            ("of the admin queue", 0, 0xabcd),
        ] {
            let answer = host.admin.execute(&Command::abort(qid, cid)).await?;
            assert_eq!(answer.dw0 & 1, 1, "not aborted: {words}");
        }
        // As many at once as ACL says are always taken; more may be too many, and nothing else happens to them.
        let limit = usize::from(host.identify(0x01, 0).await?[258]) + 1;
        for count in [limit, 30] {
            let all: Vec<_> =
                (0..count).map(|cid| host.admin.submit(&Command::abort(1, cid as u16))).collect();
            for abort in all {
                match abort.done().await {
                    Ok(answer) => assert_eq!(answer.dw0 & 1, 1),
                    other => assert!(count > limit && failed(other) == ABORT_LIMIT),
                }
            }
        }
        io.write(1, 0, &pattern(1, 512)).await.map(drop)
    });
    target.stop();
}
