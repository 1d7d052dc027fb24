//! Namespaces in files: what is acknowledged is in the file, whatever becomes of the process or the disk.

use crate::host::target::{self, ONE_NQN, TempDir, namespace, one_subsystem};
use crate::host::*;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process;

/// A subsystem with one file namespace of this size in `directory`.
fn in_file(path: &Path, lba_size: u32, size: &str) -> String {
    one_subsystem(&namespace(1, "file", lba_size, size, &format!("path = \"{}\"", path.display())))
}

/// A file system of its own, of a few mebibytes; gone with the value. Needs root: without it there is none.
struct SmallDisk {
    directory: TempDir,
}

impl SmallDisk {
    fn mount(size: &str) -> Option<Self> {
        let directory = TempDir::new();
        let path = directory.path().to_string_lossy().into_owned();
        let options = format!("size={size},mode=0700");
        let mounted = run_quietly("mount", &["-t", "tmpfs", "-o", &options, "weft-test", &path]);
        if !mounted {
            eprintln!("skipped: only root can mount a small file system");
        }
        mounted.then_some(Self { directory })
    }

    fn make_read_only(&self) -> bool {
        run_quietly("mount", &["-o", "remount,ro", &self.directory.path().to_string_lossy()])
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run_quietly("umount", &["-l", &self.directory.path().to_string_lossy()]);
    }
}

fn run_quietly(program: &str, arguments: &[&str]) -> bool {
    let output = process::Command::new(program).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn a_new_file_is_sparse_and_has_the_size_asked_for() {
    let directory = TempDir::new();
    let path = directory.join("new.img");
    let target = Target::configured(&in_file(&path, 4096, "1 GiB"));
    let metadata = fs::metadata(&path).expect("the file was created");
    assert_eq!(metadata.len(), 1 << 30);
    assert!(metadata.blocks() * 512 < 16 << 20, "{} bytes are allocated", metadata.blocks() * 512);
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 16).await?;
        let end = (1 << 30) / 4096;
        assert!(io.read(1, end - 16, 64 << 10).await?.iter().all(|byte| *byte == 0));
        io.write(1, end - 1, &pattern(1, 4096)).await?;
        Ok(())
    });
    target.stop();
    assert_eq!(fs::metadata(&path).expect("it stays").len(), 1 << 30);
    let tail = fs::read(&path).expect("the file");
    assert!(tail[(1 << 30) - 4096..] == pattern(1, 4096));
}

#[test]
fn acknowledged_data_survives_sigkill() {
    let directory = TempDir::new();
    let path = directory.join("killed.img");
    let target = Target::configured(&in_file(&path, 512, "64 MiB"));
    let data = |index: u64| pattern(index + 1, [512, 8192, 65_536][index as usize % 3]);
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 128).await?;
        let writes: Vec<_> =
            (0..100).map(|index| io.queue.submit(&io.writing(1, index * 128, &data(index)))).collect();
        for write in writes {
            write.done().await?;
        }
        Ok(())
    });
    drop(target.kill());
    let contents = fs::read(&path).expect("the file");
    for index in 0..100 {
        let (at, data) = (index as usize * 65_536, data(index));
        assert!(contents[at..at + data.len()] == data, "write {index}");
    }
    // A new process serves what the old one left, under the same identity.
    let target = Target::configured(&in_file(&path, 512, "64 MiB"));
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 16).await?;
        for index in [0, 50, 99] {
            assert!(io.read(1, index * 128, data(index).len()).await? == data(index));
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn a_restart_changes_no_identity() {
    let directory = TempDir::new();
    let path = directory.join("same.img");
    let mut seen = Vec::new();
    for _ in 0..2 {
        let target = Target::configured(&in_file(&path, 512, "16 MiB"));
        let mut page = Vec::new();
        run(async {
            let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
            page = host.identify(0x03, 1).await?;
            page.extend_from_slice(&host.identify(0x01, 0).await?[4..64]);
            Ok(())
        });
        target.stop();
        seen.push(page);
    }
    assert!(seen[0] == seen[1]);
}

#[test]
fn a_full_disk_is_capacity_exceeded_and_loses_nothing() {
    let Some(disk) = SmallDisk::mount("4m") else { return };
    let path = disk.directory.join("large.img");
    let target = Target::configured(&in_file(&path, 4096, "16 MiB"));
    let data = |index: u64| pattern(index + 1, 128 << 10);
    let mut acknowledged = 0;
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 16).await?;
        let refused = loop {
            assert!(acknowledged < 64, "8 MiB do not fit into 4 MiB");
            match io.write(1, acknowledged * 32, &data(acknowledged)).await {
                Ok(_) => acknowledged += 1,
                refused => break refused,
            }
        };
        refused.fails_with(CAPACITY_EXCEEDED, true);
        assert!(acknowledged >= 24, "{acknowledged} writes went well");
        for index in 0..acknowledged {
            assert!(io.read(1, index * 32, 128 << 10).await? == data(index), "write {index}");
        }
        // Blocks that exist can still be written, and everything else goes on.
        io.write(1, 0, &data(0)).await?;
        io.flush(1).await?;
        host.identify(0x01, 0).await.map(drop)
    });
    assert_eq!(target.metrics().sum("weft_commands_failed_total", &[("opcode", "write")]), 1.0);
    target.stop();
    let contents = fs::read(&path).expect("the file");
    for index in 0..acknowledged {
        let at = index as usize * (128 << 10);
        assert!(contents[at..at + (128 << 10)] == data(index), "write {index}");
    }
}

/// Starting has to fail with one error that names the file.
fn refuses(path: &Path, size: &str) {
    let directory = TempDir::new();
    let (listen, metrics) = (target::local(target::free_port()), target::local(target::free_port()));
    let text = target::configuration(listen, metrics, &in_file(path, 4096, size));
    let config = directory.file("weft.toml", &text);
    let (status, said) = target::weft(&["serve", "--config", &config.to_string_lossy()]);
    target::one_clear_error(status, &said, &path.to_string_lossy());
}

#[test]
fn unusable_files_are_one_clear_error() {
    let directory = TempDir::new();
    let short = directory.join("short.img");
    fs::write(&short, vec![0; 1 << 20]).expect("a short file");
    refuses(&short, "64 MiB");
    assert_eq!(fs::metadata(&short).expect("the short file").len(), 1 << 20, "it is left alone");
    refuses(&directory.join("nowhere/new.img"), "64 MiB");
    refuses(directory.path(), "64 MiB");
}

#[test]
fn a_missing_file_without_a_size_is_one_clear_error() {
    let directory = TempDir::new();
    let path = directory.join("missing.img");
    let (listen, metrics) = (target::local(target::free_port()), target::local(target::free_port()));
    let rest = one_subsystem(&format!(
        "[[subsystem.namespace]]\nnsid = 1\nbackend = \"file\"\npath = \"{}\"\n",
        path.display()
    ));
    let config = directory.file("weft.toml", &target::configuration(listen, metrics, &rest));
    let (status, said) = target::weft(&["serve", "--config", &config.to_string_lossy()]);
    target::one_clear_error(status, &said, &path.to_string_lossy());
    assert!(!path.exists(), "no file without a size");
}

#[test]
fn a_read_only_file_is_one_clear_error_unless_it_is_meant() {
    let Some(disk) = SmallDisk::mount("4m") else { return };
    let path = disk.directory.join("fixed.img");
    fs::write(&path, pattern(1, 1 << 20)).expect("a file");
    assert!(disk.make_read_only());
    refuses(&path, "1 MiB");
    let extra = format!("path = \"{}\"\nread_only = true", path.display());
    let target = Target::configured(&one_subsystem(&namespace(1, "file", 4096, "1 MiB", &extra)));
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 16).await?;
        assert!(io.read(1, 0, 64 << 10).await? == pattern(1, 1 << 20)[..64 << 10]);
        io.write(1, 0, &pattern(2, 4096)).await.fails_with(0x020, true);
        Ok(())
    });
    target.stop();
}
