//! Namespaces on block devices: loop devices, which need root. Everything a namespace says is compared with what the
//! kernel says of the device, and every device is given back.

use crate::host::target::{self, ONE_NQN, TempDir, one_subsystem};
use crate::host::*;
use crate::resize;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process;

/// A loop device over a file of its own; detached with the value.
struct Loop {
    path: String,
    backing: PathBuf,
    _directory: TempDir,
}

impl Loop {
    /// Without root and loop devices there is none, and the test is skipped.
    fn attach(bytes: u64, arguments: &[&str]) -> Option<Self> {
        let directory = TempDir::new();
        let backing = directory.join("disk");
        fs::File::create(&backing).and_then(|file| file.set_len(bytes)).expect("a backing file");
        let file = backing.to_string_lossy().into_owned();
        let all = [arguments, &["--show", "--find", &file]].concat();
        let output = process::Command::new("losetup").args(all).output();
        let path = output.ok().filter(|output| output.status.success());
        let Some(path) = path.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()) else {
            eprintln!("skipped: only root can make loop devices, where the kernel has them");
            return None;
        };
        Some(Self { path, backing, _directory: directory })
    }

    fn sysfs(&self, attribute: &str) -> PathBuf {
        Path::new("/sys/block").join(self.path.trim_start_matches("/dev/")).join(attribute)
    }

    fn says(&self, attribute: &str) -> String {
        fs::read_to_string(self.sysfs(attribute)).expect("an attribute in sysfs").trim().to_owned()
    }

    fn number(&self, attribute: &str) -> u64 {
        self.says(attribute).parse().expect("a number in sysfs")
    }

    /// Flushes the device was given so far.
    fn flushes(&self) -> u64 {
        let text = self.says("stat");
        text.split_whitespace().nth(15).and_then(|field| field.parse().ok()).expect("the flush count")
    }

    /// A subsystem with this device as namespace 1.
    fn exported(&self, rest: &str) -> String {
        exported(&self.path, rest)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        done("losetup", &["--detach", &self.path]);
    }
}

fn exported(path: &str, rest: &str) -> String {
    one_subsystem(&format!(
        "[[subsystem.namespace]]\nnsid = 1\nbackend = \"file\"\npath = \"{path}\"\n{rest}\n"
    ))
}

fn done(program: &str, arguments: &[&str]) -> bool {
    let output = process::Command::new(program).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

/// Starting has to fail with one error that says all of this.
#[track_caller]
fn refuses(rest: &str, about: &[&str]) {
    let directory = TempDir::new();
    let (listen, metrics) = (target::local(target::free_port()), target::local(target::free_port()));
    let config = directory.file("weft.toml", &target::configuration(listen, metrics, rest));
    let (status, said) = target::weft(&["serve", "--config", &config.to_string_lossy()]);
    for text in about {
        target::one_clear_error(status, &said, text);
    }
}

/// A 0's based number of blocks.
fn blocks(page: &[u8], at: usize) -> u64 {
    u64::from(u16_at(page, at)) + 1
}

#[test]
fn a_block_device_is_described_as_it_is() {
    for sector in ["512", "4096"] {
        let Some(device) = Loop::attach(64 << 20, &["--sector-size", sector]) else { return };
        let target = Target::configured(&device.exported(""));
        run(async {
            let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
            let page = host.identify(0x00, 1).await?;
            let lba_size = 1_u64 << page[130];
            assert_eq!(lba_size, device.number("queue/logical_block_size"), "LBADS");
            for (at, name) in [(0, "NSZE"), (8, "NCAP"), (16, "NUSE")] {
                assert_eq!(u64_at(&page, at), (64 << 20) / lba_size, "{name}");
            }
            assert_eq!(page[24] & 0x11, 0x10, "NSFEAT: OPTPERF, not thin");
            let write =
                device.number("queue/minimum_io_size").max(device.number("queue/physical_block_size"));
            assert_eq!(blocks(&page, 64) * lba_size, write, "NPWG");
            assert_eq!(blocks(&page, 66), blocks(&page, 64), "NPWA");
            let granularity = device.number("queue/discard_granularity");
            assert_eq!(blocks(&page, 68) * lba_size, granularity.max(lba_size), "NPDG");
            assert_eq!(blocks(&page, 72) % blocks(&page, 64), 0, "NOWS is a multiple of NPWG");
            let atomic = device.number("queue/physical_block_size") / lba_size;
            assert_eq!(page[24] & 2 != 0, atomic > 1, "NSFEAT: NAWUN, NAWUPF");
            for (at, name) in [(34, "NAWUN"), (36, "NAWUPF"), (40, "NABSN"), (44, "NABSPF")] {
                assert_eq!(blocks(&page, at), atomic.max(1), "{name}");
            }
            assert_eq!(page[33], 0x09, "DLFEAT: zeroes, Write Zeroes may deallocate");
            let independent = host.identify(0x08, 1).await?;
            assert_eq!(independent[0] >> 4 & 1 == 1, device.number("queue/rotational") == 1, "rotational");
            Ok(())
        });
        let log = target.log();
        assert!(log.contains("direct I/O") && log.contains("volatile write cache"), "{log}");
        target.stop();
    }
}

/// VWC of the controller and VWCNP of the namespace.
async fn cache_of(target: &Target) -> Result<(bool, bool), Failure> {
    let host = Host::connect(target, ONE_NQN, Options::default()).await?;
    let (controller, namespace) = (host.identify(0x01, 0).await?, host.identify(0x08, 1).await?);
    Ok((controller[525] & 1 == 1, namespace[0] >> 5 & 1 == 0))
}

#[test]
fn a_volatile_write_cache_is_advertised_exactly_when_there_is_one() {
    let Some(device) = Loop::attach(16 << 20, &[]) else { return };
    for (device_cache, rest, cached) in [
        ("write back", "", true),
        ("write back", "direct = false", true),
        ("write through", "", false),
        ("write through", "direct = false", true),
        ("write back", "read_only = true", false),
    ] {
        fs::write(device.sysfs("queue/write_cache"), device_cache).expect("the kernel's view of the cache");
        let target = Target::configured(&device.exported(rest));
        run(async {
            assert_eq!(cache_of(&target).await?, (cached, cached), "{device_cache}, {rest:?}");
            Ok(())
        });
        target.stop();
    }
}

#[test]
fn what_is_written_to_a_block_device_is_on_it() {
    for (sector, rest) in [("512", ""), ("4096", ""), ("512", "direct = false"), ("512", "lba_size = 4096")] {
        let Some(device) = Loop::attach(64 << 20, &["--sector-size", sector]) else { return };
        let target = Target::configured(&device.exported(rest));
        run(async {
            let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
            let io = host.io_queue(1, 64).await?;
            let size = io.lba_size(1);
            // One block, an odd number of them, and the most there can be in one command; in the capsule and by R2T.
            for (seed, (lba, bytes)) in [(1, size), (3, 7 * size), (1024, 1 << 20)].into_iter().enumerate() {
                let data = pattern(seed as u64, bytes);
                io.write(1, lba, &data).await?;
                assert!(io.read(1, lba, bytes).await? == data, "{bytes} bytes at {lba}");
                io.queue.execute(&io.writing(1, lba, &data).by_r2t().force_unit_access()).await?;
            }
            let last = (64 << 20) / size as u64 - 1;
            io.write(1, last, &pattern(9, size)).await?;
            let end = io.queue.execute(&io.reading(1, last + 1, size)).await;
            end.fails_with(LBA_OUT_OF_RANGE, true);
            io.flush(1).await?;
            let file = fs::File::open(&device.backing).expect("the backing file");
            let mut found = vec![0; 7 * size];
            file.read_exact_at(&mut found, 3 * size as u64).expect("what was written");
            assert!(found == pattern(1, 7 * size), "the bytes lie where they belong");
            Ok(())
        });
        target.stop();
    }
}

/// Dataset Management: deallocate one range.
fn deallocate(lba: u64, blocks: u32) -> Command {
    let mut range = [0; 16];
    range[4..8].copy_from_slice(&blocks.to_le_bytes());
    range[8..].copy_from_slice(&lba.to_le_bytes());
    Command::new(0x09).nsid(1).dword(44, 4).writing(&range)
}

#[test]
fn deallocated_and_zeroed_blocks_read_as_zeroes() {
    for (sector, rest) in [("512", ""), ("4096", ""), ("4096", "direct = false")] {
        let Some(device) = Loop::attach(64 << 20, &["--sector-size", sector]) else { return };
        let target = Target::configured(&device.exported(rest));
        run(async {
            let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
            let io = host.io_queue(1, 64).await?;
            let size = io.lba_size(1);
            let per_mib = (1 << 20) / size as u32;
            for mib in 0..8 {
                io.write(1, u64::from(mib * per_mib), &pattern(u64::from(mib), 1 << 20)).await?;
            }
            io.flush(1).await?;
            let taken = || fs::metadata(&device.backing).expect("the backing file").blocks() * 512;
            assert!(taken() >= 8 << 20, "{} bytes are there", taken());
            io.queue.execute(&deallocate(0, 4 * per_mib)).await?;
            assert!(taken() < 6 << 20, "{} bytes are still there", taken());
            // Write Zeroes without and with the leave to deallocate.
            let zeroes = |lba, count| Command::new(0x08).nsid(1).range(lba, count);
            io.queue.execute(&zeroes(u64::from(5 * per_mib), per_mib).force_unit_access()).await?;
            io.queue.execute(&zeroes(u64::from(6 * per_mib), 3).byte(51, 0x02)).await?;
            for (at, bytes) in
                [(0, 1 << 20), (3 * per_mib, 1 << 20), (5 * per_mib, 1 << 20), (6 * per_mib, 3 * size)]
            {
                let read = io.read(1, u64::from(at), bytes).await?;
                assert!(read.iter().all(|byte| *byte == 0), "{bytes} bytes at {at} are zero");
            }
            let rest = io.read(1, u64::from(6 * per_mib + 3), 4 * size).await?;
            assert!(rest == pattern(6, 1 << 20)[3 * size..7 * size], "nothing beside the range was touched");
            Ok(())
        });
        target.stop();
    }
}

/// The kernel counts what reaches the device: nothing may be acknowledged as stable without a flush of its cache.
#[test]
fn flush_and_fua_reach_the_device() {
    for rest in ["", "direct = false"] {
        let Some(device) = Loop::attach(16 << 20, &[]) else { return };
        let target = Target::configured(&device.exported(rest));
        run(async {
            let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
            let io = host.io_queue(1, 16).await?;
            for round in 0..3 {
                let before = device.flushes();
                io.write(1, round, &pattern(round, 512)).await?;
                io.flush(1).await?;
                let flushed = device.flushes();
                assert!(flushed > before, "Flush {round}: {before} flushes before, {flushed} after");
                io.queue.execute(&io.writing(1, round + 8, &pattern(round, 512)).force_unit_access()).await?;
                assert!(device.flushes() > flushed, "FUA {round}: {flushed} flushes before and after");
            }
            target.metric_becomes("weft_reactor_syncs_total", &[], 6.0).await
        });
        target.stop();
    }
}

/// A file system on a loop device, mounted until the value goes.
struct Mounted {
    place: TempDir,
    device: Loop,
}

impl Mounted {
    fn new() -> Option<Self> {
        let device = Loop::attach(32 << 20, &[])?;
        let place = TempDir::new();
        let path = place.path().to_string_lossy().into_owned();
        let mounted = done("mkfs.ext4", &["-q", &device.path]) && done("mount", &[&device.path, &path]);
        if !mounted {
            eprintln!("skipped: no file system can be made and mounted here");
        }
        mounted.then_some(Self { place, device })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        done("umount", &["-l", &self.place.path().to_string_lossy()]);
    }
}

#[test]
fn a_mounted_device_is_refused_by_its_mount_point() {
    let Some(mounted) = Mounted::new() else { return };
    let place = mounted.place.path().to_string_lossy().into_owned();
    refuses(&mounted.device.exported(""), &[&mounted.device.path, &place, "force = true"]);
    refuses(&mounted.device.exported("read_only = true"), &[&place]);
    // Meant, it is done and said.
    let target = Target::configured(&mounted.device.exported("force = true\nread_only = true"));
    assert!(target.log().contains(&format!("is mounted on {place}")), "{}", target.log());
    target.stop();
}

#[test]
fn a_device_serves_one_namespace_only() {
    let Some(device) = Loop::attach(16 << 20, &[]) else { return };
    let second =
        format!("[[subsystem.namespace]]\nnsid = 2\nbackend = \"file\"\npath = \"{}\"\n", device.path);
    refuses(&format!("{}{second}", device.exported("")), &["namespace 2", &device.path, "in use"]);
}

#[test]
fn a_read_only_device_is_one_clear_error_unless_it_is_meant() {
    let Some(device) = Loop::attach(16 << 20, &["--read-only"]) else { return };
    refuses(&device.exported(""), &[&device.path, "read_only = true"]);
    let target = Target::configured(&device.exported("read_only = true"));
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        assert_eq!(host.identify(0x00, 1).await?[99] & 1, 1, "NSATTR");
        let io = host.io_queue(1, 16).await?;
        assert!(io.read(1, 0, 4096).await?.iter().all(|byte| *byte == 0));
        io.write(1, 0, &pattern(2, 512)).await.fails_with(0x020, true);
        Ok(())
    });
    target.stop();
}

#[test]
fn devices_named_by_mistake_are_one_clear_error() {
    refuses(&exported("/dev/null", ""), &["/dev/null is a character device"]);
    refuses(&exported("/dev/weft-missing", "size = \"1 GiB\""), &["/dev/weft-missing does not exist"]);
    assert!(!Path::new("/dev/weft-missing").exists());
    let Some(device) = Loop::attach(16 << 20, &["--sector-size", "4096"]) else { return };
    refuses(&device.exported("lba_size = 512"), &["logical blocks of 4096 bytes"]);
    refuses(&device.exported("size = \"1 GiB\""), &[&device.path, "`size`"]);
}

/// A link to a partition, as under /dev/disk/by-id, is that partition and nothing around it.
#[test]
fn a_link_to_a_partition_is_that_partition() {
    let Some(device) = Loop::attach(64 << 20, &["--partscan"]) else { return };
    // A table with two partitions of 8 MiB, at 1 MiB and at 16 MiB: start and length in sectors.
    let mut table = [0; 512];
    for (at, start) in [(446, 2048_u32), (462, 32_768)] {
        table[at + 4] = 0x83;
        table[at + 8..at + 12].copy_from_slice(&start.to_le_bytes());
        table[at + 12..at + 16].copy_from_slice(&16_384_u32.to_le_bytes());
    }
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    fs::write(&device.path, table).expect("a partition table");
    let partition = format!("{}p2", device.path);
    // Not every kernel reads tables itself.
    done("partx", &["--add", &device.path]);
    if !Path::new(&partition).exists() {
        eprintln!("skipped: the kernel makes no partitions of loop devices here");
        return;
    }
    let directory = TempDir::new();
    let link = directory.join("by-id");
    std::os::unix::fs::symlink(&partition, &link).expect("a link");
    let target = Target::configured(&exported(&link.to_string_lossy(), ""));
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        assert_eq!(u64_at(&host.identify(0x00, 1).await?, 0), (8 << 20) / 512, "NSZE");
        let io = host.io_queue(1, 16).await?;
        io.write(1, 5, &pattern(5, 512)).await?;
        io.flush(1).await?;
        let mut found = [0; 512];
        let file = fs::File::open(&device.backing).expect("the backing file");
        file.read_exact_at(&mut found, (16 << 20) + 5 * 512).expect("what was written");
        assert!(found[..] == pattern(5, 512), "it lies in the second partition");
        Ok(())
    });
    assert!(target.log().contains("a partition of loop"), "{}", target.log());
    // The disk around it is taken through its partition.
    refuses(&device.exported(""), &[&device.path, "in use"]);
    target.stop();
}

#[test]
fn a_device_that_grows_is_told_and_one_that_shrinks_is_not_followed() {
    let Some(device) = Loop::attach(16 << 20, &[]) else { return };
    let target = Target::configured(&device.exported(""));
    run(async {
        let (host, request) = resize::listener(&target).await?;
        let io = host.io_queue(1, 16).await?;
        resize::set_size(&device.backing, 32 << 20);
        assert!(done("losetup", &["--set-capacity", &device.path]));
        resize::hears_of(&host, request, (32 << 20) / 512).await?;
        io.write(1, (32 << 20) / 512 - 8, &pattern(7, 4096)).await?;
        resize::set_size(&device.backing, 8 << 20);
        assert!(done("losetup", &["--set-capacity", &device.path]));
        until("the log says that it shrank", || target.log().contains("shrank to 16384 blocks")).await?;
        assert_eq!(u64_at(&host.identify(0x00, 1).await?, 0), (32 << 20) / 512, "NSZE stays");
        let zeroes = Command::new(0x08).nsid(1).range(16_380, 8);
        for (command, code) in [
            (io.reading(1, 16_384, 512), 0x281),
            (io.writing(1, 16_380, &pattern(1, 4096)), 0x280),
            (zeroes, 0x280),
            (deallocate(20_000, 8), 0x280),
        ] {
            io.queue.execute(&command).await.fails_with(code, true);
        }
        io.write(1, 16_376, &pattern(2, 4096)).await?;
        assert!(io.read(1, 16_376, 4096).await? == pattern(2, 4096));
        Ok(())
    });
    target.stop();
}

#[test]
fn flush_and_fua_of_a_file_reach_the_disk_under_its_file_system() {
    let Some(mounted) = Mounted::new() else { return };
    for (name, rest) in [("buffered", "direct = false"), ("direct", "direct = true")] {
        let path = mounted.place.join(name);
        let rest = format!("size = \"4 MiB\"\nlba_size = 4096\n{rest}");
        let target = Target::configured(&exported(&path.to_string_lossy(), &rest));
        assert!(target.log().contains(if name == "direct" { "direct I/O" } else { "page cache" }));
        run(async {
            let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
            let io = host.io_queue(1, 16).await?;
            for round in 0..3 {
                let before = mounted.device.flushes();
                io.write(1, round, &pattern(round, 4096)).await?;
                io.flush(1).await?;
                let flushed = mounted.device.flushes();
                assert!(flushed > before, "Flush {round} of the {name} file");
                io.queue
                    .execute(&io.writing(1, round + 8, &pattern(round, 4096)).force_unit_access())
                    .await?;
                assert!(mounted.device.flushes() > flushed, "FUA {round} of the {name} file");
            }
            Ok(())
        });
        target.stop();
    }
}
