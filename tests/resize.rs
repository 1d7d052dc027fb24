//! Files and devices that grow and shrink while hosts use them.

use crate::host::target::{ONE_NQN, TempDir, one_subsystem};
use crate::host::*;
use std::fs::{self, OpenOptions};
use std::path::Path;

/// NS attribute changed, as DW0 says it.
const NAMESPACE_CHANGED: u32 = 0x0004_0002;
/// OAES and AEC: NS attribute changes.
const NAMESPACE_EVENTS: u32 = 1 << 8;
const UNRECOVERED_READ: u16 = 0x281;
const WRITE_FAULT: u16 = 0x280;
const INTERNAL_PATH: u16 = 0x300;

/// A subsystem with this file, without a size, as namespace 1.
fn exported(path: &Path, rest: &str) -> String {
    one_subsystem(&format!(
        "[[subsystem.namespace]]\nnsid = 1\nbackend = \"file\"\npath = \"{}\"\nlba_size = 512\n{rest}\n",
        path.display()
    ))
}

pub fn set_size(path: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(bytes)).expect("its new size");
}

/// A controller whose admin queue waits for a namespace event.
pub async fn listener(target: &Target) -> Result<(Host, Pending), Failure> {
    let host = Host::connect(target, ONE_NQN, Options { kato_ms: 120_000, ..Options::default() }).await?;
    host.admin.execute(&Command::set_features(0x0b, NAMESPACE_EVENTS)).await?;
    let request = host.admin.submit(&Command::async_event_request());
    Ok((host, request))
}

/// The event comes, the list names namespace 1 and only that, and the namespace has `blocks` blocks.
pub async fn hears_of(host: &Host, request: Pending, blocks: u64) -> Result<(), Failure> {
    assert_eq!(request.done().await?.dw0, NAMESPACE_CHANGED);
    let list = host.log(0x04, 4096, 0).await?;
    assert_eq!((u32_at(&list, 0), u32_at(&list, 4)), (1, 0), "the changed namespaces");
    let page = host.identify(0x00, 1).await?;
    assert_eq!((u64_at(&page, 0), u64_at(&page, 8)), (blocks, blocks), "NSZE, NCAP");
    Ok(())
}

#[test]
fn a_file_that_grows_is_told_to_every_host_and_usable_at_once() {
    let directory = TempDir::new();
    let path = directory.join("grows.img");
    fs::write(&path, pattern(1, 1 << 20)).expect("a file");
    let target = Target::configured(&exported(&path, ""));
    run(async {
        let (first, mut heard_by_first) = listener(&target).await?;
        let (second, mut heard_by_second) = listener(&target).await?;
        // Queues on both reactors.
        let queues =
            [first.io_queue(1, 16).await?, first.io_queue(2, 16).await?, second.io_queue(1, 16).await?];
        let mut blocks = 2048;
        for round in 0..3_u64 {
            for io in &queues {
                let beyond = io.queue.execute(&io.reading(1, blocks, 512)).await;
                beyond.fails_with(LBA_OUT_OF_RANGE, true);
            }
            blocks += 2048;
            // Half a block more is no block.
            set_size(&path, blocks * 512 + 256);
            hears_of(&first, heard_by_first, blocks).await?;
            hears_of(&second, heard_by_second, blocks).await?;
            for (index, io) in queues.iter().enumerate() {
                let data = pattern(round * 8 + index as u64, 4096);
                io.write(1, blocks - 8, &data).await?;
                assert!(io.read(1, blocks - 8, 4096).await? == data);
            }
            heard_by_first = first.admin.submit(&Command::async_event_request());
            heard_by_second = second.admin.submit(&Command::async_event_request());
        }
        assert!(queues[0].read(1, 0, 4096).await? == pattern(1, 1 << 20)[..4096], "what was there is there");
        Ok(())
    });
    target.stop();
}

#[test]
fn a_file_that_shrinks_keeps_its_size_and_makes_nothing_up() {
    for direct in [false, true] {
        let directory = TempDir::new();
        let path = directory.join("shrinks.img");
        fs::write(&path, pattern(1, 1 << 20)).expect("a file");
        let target = Target::configured(&exported(&path, &format!("direct = {direct}")));
        run(async {
            let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
            let io = host.io_queue(1, 16).await?;
            // At once, before anybody noticed, a read beyond the end brings no data.
            set_size(&path, (512 << 10) + 100);
            for (lba, bytes) in [(1024, 512), (1500, 4096), (1016, 8192)] {
                io.queue.execute(&io.reading(1, lba, bytes)).await.fails_with(UNRECOVERED_READ, true);
            }
            until("the log says that it shrank", || {
                target.log().contains(&format!("{} shrank to 1024 blocks", path.display()))
            })
            .await?;
            assert_eq!(u64_at(&host.identify(0x00, 1).await?, 0), 2048, "NSZE stays");
            for (lba, bytes) in [(1024, 512), (2040, 4096), (1020, 4096)] {
                io.queue.execute(&io.reading(1, lba, bytes)).await.fails_with(UNRECOVERED_READ, true);
                let data = pattern(3, bytes);
                io.queue.execute(&io.writing(1, lba, &data)).await.fails_with(WRITE_FAULT, true);
                let zeroes = Command::new(0x08).nsid(1).range(lba, (bytes / 512) as u32);
                io.queue.execute(&zeroes).await.fails_with(WRITE_FAULT, true);
            }
            io.queue.execute(&io.reading(1, 2048, 512)).await.fails_with(LBA_OUT_OF_RANGE, true);
            assert_eq!(
                fs::metadata(&path).expect("the file").len(),
                (512 << 10) + 100,
                "no write made it longer"
            );
            assert!(io.read(1, 1016, 4096).await? == pattern(1, 1 << 20)[1016 * 512..1024 * 512]);
            io.write(1, 0, &pattern(4, 4096)).await?;
            io.flush(1).await?;
            set_size(&path, 0);
            until("the log says that it is gone", || target.log().contains("is empty or gone")).await?;
            io.queue.execute(&io.reading(1, 0, 512)).await.fails_with(INTERNAL_PATH, false);
            set_size(&path, 1 << 20);
            until("the log says that it is back", || target.log().contains("of the namespace again")).await?;
            io.write(1, 2047, &pattern(5, 512)).await?;
            assert!(io.read(1, 2047, 512).await? == pattern(5, 512));
            Ok(())
        });
        target.stop();
    }
}

#[test]
fn a_sparse_file_is_thin_and_says_what_it_takes() {
    let directory = TempDir::new();
    let path = directory.join("thin.img");
    fs::File::create(&path).expect("a file");
    set_size(&path, 64 << 20);
    let target = Target::configured(&exported(&path, ""));
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 16).await?;
        let page = host.identify(0x00, 1).await?;
        assert_eq!((page[24] & 1, u64_at(&page, 16)), (1, 0), "NSFEAT: thin; NUSE");
        io.write(1, 0, &pattern(1, 1 << 20)).await?;
        io.flush(1).await?;
        let deadline = std::time::Instant::now() + LIMIT;
        while u64_at(&host.identify(0x00, 1).await?, 16) < 2048 {
            assert!(std::time::Instant::now() < deadline, "NUSE follows");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        Ok(())
    });
    target.stop();
}
