//! The configuration file, from outside: `weft check`, and that `weft serve` does what the file says.

use crate::host::target::{self, TempDir, local, namespace, one_memory, one_subsystem, weft};
use crate::host::*;
use std::path::{Path, PathBuf};

fn check(text: &str) -> (bool, String) {
    let directory = TempDir::new();
    let path = directory.file("weft.toml", text);
    let (status, said) = weft(&["check", "--config", &path.to_string_lossy()]);
    assert!(status.code().is_some(), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    (status.success(), said)
}

const PORT: &str = "[[port]]\nid = 1\ntransport = \"tcp\"\naddress = \"127.0.0.1:4420\"\n";

#[test]
fn a_good_file_passes() {
    let (good, said) = check(&format!("{PORT}{}", one_memory()));
    assert!(good, "{said}");
}

#[test]
fn the_example_is_good() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("weft.example.toml");
    let (status, said) = weft(&["check", "--config", &path.to_string_lossy()]);
    assert!(status.success(), "{said}");
}

#[test]
fn each_mistake_is_named_with_its_line() {
    let bad_size = namespace(1, "memory", 512, "1000 bytes", "");
    let odd_size = namespace(1, "memory", 4096, "5000", "");
    let twice = [namespace(1, "memory", 512, "1 MiB", ""), namespace(1, "null", 512, "1 MiB", "")].concat();
    let cases = [
        ("nothing at all", String::new(), ""),
        ("no TOML", "[[port".to_owned(), ":1:"),
        ("no port", one_memory(), "port"),
        ("no subsystem", PORT.to_owned(), "subsystem"),
        ("unknown key", format!("colour = 1\n{PORT}{}", one_memory()), "colour"),
        ("unknown transport", format!("{}{}", PORT.replace("tcp", "fc"), one_memory()), ":3:"),
        ("bad address", format!("{}{}", PORT.replace("127.0.0.1:4420", "here"), one_memory()), ":4:"),
        ("port id twice", format!("{PORT}{}{}", PORT.replace("4420", "4421"), one_memory()), "id"),
        ("bad NQN", format!("{PORT}{}", one_memory().replace("nqn.2026", "nqm.2026")), ":6:"),
        ("unknown backend", format!("{PORT}{}", one_memory().replace("memory", "tape")), "backend"),
        ("bad size", format!("{PORT}{}", one_subsystem(&bad_size)), "size"),
        ("size between blocks", format!("{PORT}{}", one_subsystem(&odd_size)), "size"),
        ("NSID twice", format!("{PORT}{}", one_subsystem(&twice)), "nsid"),
        ("odd block size", format!("{PORT}{}", one_memory().replace("512", "520")), "lba_size"),
        ("file without a path", format!("{PORT}{}", one_memory().replace("memory", "file")), "path"),
        ("unknown port", format!("{PORT}{}", one_memory().replace("serial", "ports = [7]\nserial")), "ports"),
        ("wrong type", format!("{PORT}{}", one_memory().replace("= true", "= \"yes\"")), "allow_any_host"),
    ];
    for (what, text, expected) in cases {
        let (good, said) = check(&text);
        assert!(!good, "{what} was accepted: {said}");
        assert!(said.contains(expected), "{what}: {expected:?} should be in: {said}");
    }
}

#[test]
fn all_mistakes_come_at_once() {
    let text = format!("{}{}", PORT.replace("tcp", "fc"), one_memory().replace("memory", "tape"));
    let (good, said) = check(&text.replace("WEFT0001", "a serial number that is far too long"));
    assert!(!good);
    for key in ["transport", "backend", "serial"] {
        assert!(said.contains(key), "{key} is missing in: {said}");
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    for command in ["check", "serve"] {
        let (status, said) = weft(&[command, "--config", "/nowhere/weft.toml"]);
        assert!(!status.success() && said.contains("/nowhere/weft.toml"), "{said}");
    }
}

#[test]
fn serve_refuses_what_check_refuses() {
    let directory = TempDir::new();
    let path = directory.file("weft.toml", &one_memory());
    let (status, said) = weft(&["serve", "--config", &path.to_string_lossy()]);
    assert!(!status.success() && said.contains("port"), "{said}");
}

#[test]
fn help_and_version_are_there() {
    for arguments in [&["--help"][..], &["serve", "--help"], &["check", "--help"], &["--version"]] {
        let (status, said) = weft(arguments);
        assert!(status.success() && said.contains("weft"), "{arguments:?}: {said}");
    }
    let (status, said) = weft(&["spin"]);
    assert!(!status.success() && said.contains("spin"), "{said}");
}

/// Two ports; one subsystem on both, one only on the second.
#[test]
fn subsystems_are_offered_on_their_ports_only() {
    let second = local(target::free_port());
    let port = format!("[[port]]\nid = 2\ntransport = \"tcp\"\naddress = \"{second}\"\n");
    let both = one_memory();
    let hidden = both.replace("weft:one", "weft:hidden").replace("serial", "ports = [2]\nserial");
    let target = Target::configured(&format!("{port}{both}{hidden}"));
    run(async {
        let hidden = "nqn.2026-12.io.weft:hidden";
        for address in [target.address, second] {
            let host = Host::attach(address, target::ONE_NQN, Options::default()).await?;
            host.enable().await?;
            assert_eq!(host.namespaces().await?, [1]);
        }
        Host::attach(second, hidden, Options::default()).await?;
        let refused = Host::attach(target.address, hidden, Options::default()).await;
        let refused = refused.map(|_| Completion::default()).fails_with(CONNECT_INVALID, true);
        assert_eq!(refused.dw0, 0x0001_0100);
        // The discovery log of a port says the same.
        for (address, records) in [(target.address, 2), (second, 3)] {
            let host = Host::attach(address, DISCOVERY_NQN, Options::default()).await?;
            host.enable().await?;
            let log = host.log(0x70, 1024 * 8, 0).await?;
            let port = address.port().to_string();
            let here = (1..=u64_at(&log, 8) as usize).filter(|index| {
                let record = &log[1024 * index..1024 * (index + 1)];
                String::from_utf8_lossy(&record[32..64]).trim_matches(['\0', ' ']) == port
            });
            assert_eq!(here.count(), records, "records for port {port}");
        }
        Ok(())
    });
    target.stop();
}

/// The configured limits are what hosts see.
#[test]
fn limits_show_up_in_capabilities() {
    let limits = "[limits]\nmax_transfer = \"128 KiB\"\nqueue_depth = 32\nin_capsule = \"16 KiB\"\n";
    let target = Target::configured(&format!("{limits}{}", one_memory()));
    run(async {
        let host = Host::connect(&target, target::ONE_NQN, Options::default()).await?;
        assert_eq!(host.property(property::CAP).await? & 0xffff, 31, "MQES");
        let controller = host.identify(0x01, 0).await?;
        assert_eq!(controller[77], 5, "MDTS");
        assert_eq!(u32_at(&controller, 1792), (64 + (16 << 10)) / 16, "IOCCSZ");
        let io = host.io_queue(1, 32).await?;
        for size in [16 << 10, 128 << 10] {
            let data = pattern(size as u64, size);
            io.write(1, 0, &data).await?;
            assert!(io.read(1, 0, size).await? == data);
        }
        Ok(())
    });
    target.stop();
}

/// Every `.toml` and every dashboard the repository ships parses.
#[test]
fn shipped_files_exist() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    for name in ["weft.example.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        assert!(root.join(name).is_file(), "{name} is missing");
    }
}
