//! Namespace write protection (feature 84h): for all hosts, on all reactors, at once, and over restarts.

use crate::host::target::{ONE_NQN, TempDir, namespace, one_memory, one_subsystem};
use crate::host::*;
use crate::resize::listener;
use std::path::Path;

const PROTECTED: u16 = 0x020;
const NOT_CHANGEABLE: u16 = 0x10e;
/// NS attribute changed, as DW0 says it.
const NAMESPACE_CHANGED: u32 = 0x0004_0002;

/// Set Features 84h.
fn set(nsid: u32, state: u32) -> Command {
    Command::set_features(0x84, state).nsid(nsid)
}

/// Get Features 84h.
fn get(nsid: u32, select: u32) -> Command {
    Command::get_features(0x84).dword(40, 0x84 | select << 8).nsid(nsid)
}

/// What is kept there, and these namespaces.
fn kept(directory: &Path, namespaces: &str) -> String {
    format!("state_dir = \"{}\"\n{}", directory.join("state").display(), one_subsystem(namespaces))
}

/// One file of 1 MiB in a directory.
fn one_file(directory: &TempDir) -> String {
    let path = format!("path = \"{}\"", directory.join("file.img").display());
    kept(directory.path(), &namespace(1, "file", 512, "1 MiB", &path))
}

/// NSATTR in both structures.
async fn attributes(host: &Host) -> Result<[u8; 2], Failure> {
    Ok([host.identify(0x00, 1).await?[99], host.identify(0x08, 1).await?[8]])
}

/// The event has come, for namespace 1.
async fn heard(host: &Host, request: Pending) -> Result<(), Failure> {
    assert_eq!(request.done().await?.dw0, NAMESPACE_CHANGED);
    let list = host.log(0x04, 4096, 0).await?;
    assert_eq!((u32_at(&list, 0), u32_at(&list, 4)), (1, 0), "the changed namespaces");
    Ok(())
}

/// Every command that would change blocks fails; the others do as ever.
async fn refuses_writes(io: &IoQueue, written: &[u8]) -> Result<(), Failure> {
    let data = pattern(7, 4096);
    let copy = [&[0; 8][..], &8_u64.to_le_bytes(), &[0; 16]].concat();
    for command in [
        io.writing(1, 8, &data),
        io.writing(1, 8, &pattern(7, 256 << 10)),
        Command::new(0x08).nsid(1).range(8, 8),
        Command::new(0x09).nsid(1).dword(44, 4).writing(&[0; 16]),
        Command::new(0x19).nsid(1).dword(40, 64).writing(&copy),
    ] {
        io.queue.execute(&command).await.fails_with(PROTECTED, true);
    }
    assert!(io.read(1, 0, written.len()).await? == written);
    io.flush(1).await.map(drop)
}

#[test]
fn one_host_protects_for_all_until_one_unprotects() {
    let directory = TempDir::new();
    let config = one_file(&directory);
    let written = pattern(1, 64 << 10);
    let target = Target::configured(&config);
    run(async {
        let (first, heard_by_first) = listener(&target).await?;
        let (second, heard_by_second) = listener(&target).await?;
        let page = first.identify(0x01, 0).await?;
        assert_eq!((page[531], page[525] & 1), (1, 1), "NWPC, VWC");
        let queues = [second.io_queue(1, 16).await?, second.io_queue(2, 16).await?];
        queues[0].write(1, 0, &written).await?;
        assert_eq!(first.admin.execute(&get(1, 0)).await?.dw0, 0);
        assert_eq!(attributes(&first).await?, [0, 0]);
        first.admin.execute(&set(1, 1)).await?;
        for io in &queues {
            refuses_writes(io, &written).await?;
        }
        heard(&first, heard_by_first).await?;
        heard(&second, heard_by_second).await?;
        assert_eq!(attributes(&second).await?, [1, 1]);
        assert_eq!(second.admin.execute(&get(1, 0)).await?.dw0, 1);
        assert_eq!(second.admin.execute(&get(1, 1)).await?.dw0, 0, "the default");
        assert_eq!(second.identify(0x01, 0).await?[525] & 1, 1, "VWC stays");
        // Once more changes nothing, and is not told.
        let mut request = first.admin.submit(&Command::async_event_request());
        first.admin.execute(&set(1, 1)).await?;
        first.admin.execute(&Command::keep_alive()).await?;
        assert!(request.poll().is_none());
        Ok(())
    });
    drop(target.kill());
    let target = Target::configured(&config);
    run(async {
        let (host, request) = listener(&target).await?;
        let io = host.io_queue(1, 16).await?;
        assert_eq!(attributes(&host).await?, [1, 1], "after a restart");
        refuses_writes(&io, &written).await?;
        host.admin.execute(&set(1, 0)).await?;
        heard(&host, request).await?;
        assert_eq!((attributes(&host).await?, host.admin.execute(&get(1, 0)).await?.dw0), ([0, 0], 0));
        io.write(1, 0, &pattern(2, 4096)).await.map(drop)
    });
    target.stop();
    let target = Target::configured(&config);
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        assert_eq!(attributes(&host).await?, [0, 0], "that is kept as well");
        host.io_queue(1, 16).await?.write(1, 0, &written).await.map(drop)
    });
    target.stop();
}

/// Writes are under way on all reactors all the time: when the host has its answer, nothing changes any more.
#[test]
fn nothing_changes_once_it_is_protected() {
    let directory = TempDir::new();
    let memory = kept(directory.path(), &namespace(1, "memory", 512, "1 MiB", ""));
    let target = Target::configured(&format!("{memory}[reactors]\ncount = 3\n"));
    run(async {
        let (admin, host) = (
            Host::connect(&target, ONE_NQN, Options::default()).await?,
            Host::connect(&target, ONE_NQN, Options::default()).await?,
        );
        let mut queues = Vec::new();
        for qid in 1..=3 {
            queues.push(host.io_queue(qid, 64).await?);
        }
        let mut refused = 0;
        for round in 0..20 {
            let writes: Vec<_> = (0..96)
                .map(|index| {
                    let io = &queues[index % 3];
                    let data = pattern((round * 100 + index) as u64, 4096 << (index % 4));
                    io.queue.submit(&io.writing(1, (index as u64 % 16) * 64, &data))
                })
                .collect();
            admin.admin.execute(&set(1, 1)).await?;
            let before = queues[round % 3].read(1, 0, 512 << 10).await?;
            for write in writes {
                match write.done().await {
                    Ok(_) => {}
                    failed => {
                        failed.fails_with(PROTECTED, true);
                        refused += 1;
                    }
                }
            }
            assert!(queues[0].read(1, 0, 512 << 10).await? == before, "written after it was protected");
            admin.admin.execute(&set(1, 0)).await?;
        }
        for io in &queues {
            io.write(1, 0, &pattern(1, 4096)).await?;
        }
        assert!(refused > 0, "some came too late");
        Ok(())
    });
    target.stop();
}

/// A write that was admitted and waits for its data holds nobody up, and is not done when the data comes.
#[test]
fn a_write_that_waits_for_its_data_comes_too_late() {
    let directory = TempDir::new();
    let target = Target::configured(&one_file(&directory));
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 16).await?;
        let written = pattern(1, 128 << 10);
        io.write(1, 0, &written).await?;
        io.queue.hold_data();
        let late = io.queue.submit(&io.writing(1, 0, &pattern(2, 128 << 10)));
        until("the write has asked for its data", || io.queue.held_r2ts() == 1).await?;
        host.admin.execute(&set(1, 1)).await?;
        io.queue.release_data();
        late.done().await.fails_with(PROTECTED, true);
        assert!(io.read(1, 0, written.len()).await? == written);
        Ok(())
    });
    target.stop();
}

#[test]
fn states_and_namespaces_there_are_not() {
    let directory = TempDir::new();
    let namespaces =
        [namespace(1, "memory", 512, "1 MiB", ""), namespace(2, "memory", 512, "1 MiB", "read_only = true")];
    let target = Target::configured(&kept(directory.path(), &namespaces.concat()));
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        for state in 2..8 {
            host.admin.execute(&set(1, state)).await.fails_with(INVALID_FIELD, true);
        }
        for nsid in [0, 3, u32::MAX] {
            host.admin.execute(&set(nsid, 1)).await.fails_with(INVALID_NAMESPACE, true);
            host.admin.execute(&get(nsid, 0)).await.fails_with(INVALID_NAMESPACE, true);
        }
        assert_eq!(host.admin.execute(&get(1, 3)).await?.dw0, 6, "changeable, of a namespace, not saveable");
        assert_eq!(attributes(&host).await?, [0, 0]);
        // What the configuration says is not for hosts to change.
        assert_eq!(host.admin.execute(&get(2, 0)).await?.dw0, 1);
        host.admin.execute(&set(2, 1)).await?;
        host.admin.execute(&set(2, 0)).await.fails_with(NOT_CHANGEABLE, true);
        let io = host.io_queue(1, 16).await?;
        io.write(2, 0, &pattern(1, 512)).await.fails_with(PROTECTED, true);
        io.write(1, 0, &pattern(1, 512)).await.map(drop)
    });
    target.stop();
}

/// What cannot be kept is not promised.
#[test]
fn a_state_that_cannot_be_kept_is_refused() {
    let directory = TempDir::new();
    let target = Target::configured(&one_file(&directory));
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 16).await?;
        let in_the_way = directory.join("state").join("state.new");
        std::fs::create_dir(&in_the_way).expect("a directory");
        host.admin.execute(&set(1, 1)).await.fails_with(0x006, false);
        assert_eq!((attributes(&host).await?, host.admin.execute(&get(1, 0)).await?.dw0), ([0, 0], 0));
        io.write(1, 0, &pattern(1, 512)).await?;
        assert!(target.log().contains("cannot be kept"));
        std::fs::remove_dir(&in_the_way).expect("remove");
        host.admin.execute(&set(1, 1)).await?;
        io.write(1, 0, &pattern(1, 512)).await.fails_with(PROTECTED, true);
        Ok(())
    });
    target.stop();
}

#[test]
fn without_a_state_directory_there_is_no_such_feature() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        assert_eq!(host.identify(0x01, 0).await?[531], 0, "NWPC");
        assert_eq!(u32_at(&host.log(0x12, 1024, 0).await?, 0x84 * 4), 0, "the features log");
        host.admin.execute(&set(1, 1)).await.fails_with(INVALID_FIELD, true);
        host.admin.execute(&get(1, 0)).await.fails_with(INVALID_FIELD, true);
        Ok(())
    });
    target.stop();
}
