//! Far more data in flight than there are buffers: commands wait their turn, nothing fails, nothing hangs, and admin
//! commands are answered all the while.

use crate::host::target::{ONE_NQN, TempDir, namespace, one_subsystem};
use crate::host::*;
use futures::future::{join, join_all};

/// The smallest arena there is: four of the largest transfers, for hundreds in flight.
const TIGHT: &str = "buffers = \"4 MiB\"\n";
const MIB: usize = 1 << 20;

fn tight_target(reactors: u32) -> Target {
    let directory = TempDir::new();
    let path = format!("path = \"{}\"", directory.join("namespace.img").display());
    let namespaces =
        [namespace(1, "memory", 4096, "256 MiB", ""), namespace(2, "file", 4096, "256 MiB", &path)].concat();
    let rest = format!("[reactors]\ncount = {reactors}\n{TIGHT}{}", one_subsystem(&namespaces));
    Target::configured_in(directory, &rest)
}

/// A queue full of writes in the capsule, small and large writes by R2T and reads, none waiting for another; then all of it
/// read back. Each call uses 64 MiB of its own.
async fn flood(io: &IoQueue, nsid: u32, place: u64) -> Result<(), Failure> {
    let sizes = [4096, MIB, 8192, 64 << 10, MIB, 4096, 256 << 10, 16 << 10];
    let mut written = Vec::new();
    let mut lba = place * 16_384;
    for index in 0..120_u64 {
        let size = sizes[index as usize % sizes.len()];
        written.push((lba, pattern(place * 1000 + index, size)));
        lba += (size / 4096) as u64;
    }
    let pending: Vec<_> =
        written.iter().map(|(lba, data)| io.queue.submit(&io.writing(nsid, *lba, data))).collect();
    for done in join_all(pending.into_iter().map(Pending::done)).await {
        done?;
    }
    let reads: Vec<_> =
        written.iter().map(|(lba, data)| io.queue.submit(&io.reading(nsid, *lba, data.len()))).collect();
    for ((lba, data), read) in written.iter().zip(reads) {
        assert!(read.done().await?.data == *data, "namespace {nsid}, block {lba}");
    }
    Ok(())
}

#[test]
fn more_in_flight_than_buffers_waits_and_finishes() {
    for reactors in [1, 2] {
        let target = tight_target(reactors);
        run(async {
            let host =
                Host::connect(&target, ONE_NQN, Options { kato_ms: 5000, ..Options::default() }).await?;
            let (one, two) = (host.io_queue(1, 128).await?, host.io_queue(2, 128).await?);
            let three = host.io_queue(3, 128).await?;
            let floods = async {
                let memory = join(flood(&one, 1, 0), flood(&two, 1, 1));
                let ((first, second), third) = join(memory, flood(&three, 2, 0)).await;
                first.and(second).and(third)
            };
            let admin = async {
                for _ in 0..50 {
                    host.admin.execute(&Command::keep_alive()).await?;
                    host.identify(0x01, 0).await?;
                }
                Ok(())
            };
            let (floods, admin) = join(floods, admin).await;
            floods.and(admin)?;
            assert!(target.metrics().sum("weft_buffer_waits_total", &[]) > 0.0, "buffers were short");
            assert!(target.metrics().sum("weft_commands_failed_total", &[]) == 0.0);
            Ok(())
        });
        target.stop();
    }
}

/// Data that others wait for lies in the stream behind capsules that need buffers themselves: the queue pair's own buffer
/// keeps the stream going.
#[test]
fn capsules_ahead_of_promised_data_do_not_block_it() {
    let target = tight_target(1);
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 128).await?;
        // Large writes take every buffer and keep it, because their data is held back ...
        io.queue.hold_data();
        let large = pattern(1, MIB);
        let held: Vec<_> = (0..8).map(|index| io.queue.submit(&io.writing(1, index * 256, &large))).collect();
        until("the large writes have asked for data", || io.queue.held_r2ts() >= 3).await?;
        // ... small ones arrive before that data, and are answered although there is no buffer left.
        let small = pattern(2, 8192);
        let capsules: Vec<_> =
            (0..60).map(|index| io.queue.submit(&io.writing(2, index * 2, &small).in_capsule())).collect();
        for capsule in capsules {
            capsule.done().await?;
        }
        io.queue.release_data();
        for write in held {
            write.done().await?;
        }
        assert!(io.read(1, 7 * 256, MIB).await? == large);
        assert!(io.read(2, 59 * 2, 8192).await? == small);
        Ok(())
    });
    target.stop();
}
