//! nvmetcli's JSON from outside: `weft check`, `weft convert` there and back, and that `weft serve` exports with it what
//! the kernel's target did.

use crate::host::target::{TempDir, one_memory, weft};
use crate::host::*;
use std::fs;
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Runs weft with a path among its arguments; whether it succeeded, and what it said.
fn weft_on(before: &[&str], path: &Path, after: &[&str]) -> (bool, String) {
    let path = path.to_string_lossy();
    let arguments: Vec<&str> = before.iter().copied().chain([&*path]).chain(after.iter().copied()).collect();
    let (status, said) = weft(&arguments);
    assert!(status.code().is_some() && !said.contains("panicked"), "{said}");
    (status.success(), said)
}

const HOST_NQN: &str = "nqn.2026-12.io.weft:host";

const PORT: &str = "[[port]]\nid = 1\ntransport = \"tcp\"\naddress = \"127.0.0.1:4420\"\n";

/// A file as nvmetcli saves it: two namespaces in files, the second disabled, and one that hosts know by its UUID only.
fn saved(directory: &TempDir) -> PathBuf {
    for name in ["one.img", "two.img", "three.img"] {
        let file = fs::File::create(directory.join(name)).expect("a backing file");
        file.set_len(1 << 20).expect("a backing file of one mebibyte");
    }
    let namespace = |nsid: u32, name: &str, enable: u8, nguid: &str| {
        format!(
            r#"{{"nsid": {nsid}, "enable": {enable}, "ana_grpid": 1, "device": {{"path": "{}", "nguid": "{nguid}",
                "uuid": "b4a1f1f8-6a3a-4c55-9a55-0f3ad7cbd30{nsid}"}}}}"#,
            directory.join(name).display()
        )
    };
    let namespaces = [
        namespace(1, "one.img", 1, "ef90689c-6c46-d44c-89c1-4067801309a8"),
        namespace(2, "two.img", 0, "ef90689c-6c46-d44c-89c1-4067801309a9"),
        namespace(5, "three.img", 1, "00000000-0000-0000-0000-000000000000"),
    ];
    let text = format!(
        r#"{{
  "hosts": [{{"nqn": "{HOST_NQN}"}}],
  "ports": [{{"portid": 9, "addr": {{"adrfam": "ipv4", "traddr": "127.0.0.1", "treq": "not specified",
    "trsvcid": "4420", "trtype": "tcp"}}, "param": {{"inline_data_size": "16384"}}, "referrals": [],
    "ana_groups": [{{"ana": {{"state": "optimized"}}, "grpid": 1}}], "subsystems": ["testnqn"]}}],
  "subsystems": [{{"nqn": "testnqn", "allowed_hosts": ["{HOST_NQN}"], "attr": {{"allow_any_host": "0",
    "cntlid_min": "700", "cntlid_max": "701", "firmware": "6.18.0", "model": "Linux", "serial": "6ec53b8a0a2b4e9d1c7f"}}, "namespaces": [{}]}}]
}}"#,
        namespaces.join(", ")
    );
    directory.file("config.json", &text)
}

#[test]
fn a_saved_file_serves_as_it_is() {
    let directory = TempDir::new();
    let path = saved(&directory);
    let target = Target::start(&["--config", &path.to_string_lossy()]);
    run(async {
        let host = Host::connect(&target, "testnqn", Options::host(HOST_NQN)).await?;
        host.enable().await?;
        assert_eq!(host.namespaces().await?, [1, 5]);
        let controller = host.identify(0x01, 0).await?;
        assert_eq!(u16_at(&controller, 78), 700, "CNTLID");
        assert_eq!(&controller[4..24], b"6ec53b8a0a2b4e9d1c7f");
        assert_eq!(&controller[24..64], format!("{:40}", "Linux").as_bytes());
        assert_eq!(&controller[64..72], b"6.18.0  ");
        assert_eq!(u32_at(&controller, 1792), (64 + (16 << 10)) / 16, "IOCCSZ");

        let nguid = 0xef90_689c_6c46_d44c_89c1_4067_8013_09a8_u128.to_be_bytes();
        assert_eq!(host.identify(0x00, 1).await?[104..120], nguid);
        let descriptors = host.identify(0x03, 1).await?;
        assert!(descriptors.windows(16).any(|bytes| bytes == nguid));
        // No NGUID: a host must not see one that the kernel did not report.
        assert_eq!(host.identify(0x00, 5).await?[104..120], [0; 16]);
        assert_eq!(host.identify(0x03, 5).await?[..2], [3, 16], "the first descriptor is the UUID");
        // Disabled: not active, as if it were not there.
        assert!(host.identify(0x00, 2).await?.iter().all(|&byte| byte == 0));

        let io = host.io_queue(1, 32).await?;
        let written = pattern(1, 8192);
        io.write(5, 0, &written).await?;
        assert!(io.read(5, 0, 8192).await? == written);

        // The range has two controllers, and one that went is there again.
        let second = Host::connect(&target, "testnqn", Options::host(HOST_NQN)).await?;
        second.enable().await?;
        assert_eq!(u16_at(&second.identify(0x01, 0).await?, 78), 701);
        let third = Host::connect(&target, "testnqn", Options::host(HOST_NQN)).await;
        assert!(third.is_err(), "a third controller has no identifier left");
        Ok(())
    });
    target.stop();
}

#[test]
fn there_and_back_again() {
    let directory = TempDir::new();
    let toml = directory.join("weft.toml");
    let (good, said) = weft_on(&["convert"], &data("kernel.json"), &["-o", &toml.to_string_lossy()]);
    assert!(good && said.contains("not supported yet: ports[0].ana_groups[1].ana.state"), "{said}");
    let text = fs::read_to_string(&toml).expect("the converted file");
    assert!(text.contains("serial = \"6ec53b8a0a2b4e9d1c7f\""), "{text}");
    let (good, said) = weft_on(&["check", "--config"], &toml, &[]);
    assert!(good && said.contains("2 port(s), 1 subsystem(s), 2 namespace(s)"), "{said}");

    let json = directory.join("config.json");
    let (good, said) = weft_on(&["convert"], &toml, &["-o", &json.to_string_lossy()]);
    assert!(good && !said.contains("lost"), "{said}");
    let (good, text_again) = weft_on(&["convert"], &json, &["--to", "toml", "--strict"]);
    assert!(!good && text_again.contains("(--strict)"), "ANA groups are not supported yet: {text_again}");
    let again = directory.join("again.toml");
    let (good, said) = weft_on(&["convert"], &json, &["-o", &again.to_string_lossy()]);
    assert!(good, "{said}");
    assert_eq!(fs::read_to_string(&again).expect("the file converted again"), text);
}

#[test]
fn what_gets_lost_is_listed_and_strict_refuses_it() {
    let directory = TempDir::new();
    let toml = directory.file("weft.toml", &format!("{PORT}{}", one_memory()));
    let (good, said) = weft_on(&["convert"], &toml, &[]);
    assert!(good && said.contains("backend \"memory\": the kernel has none, so it is left out"), "{said}");
    let json = directory.join("config.json");
    let (good, said) = weft_on(&["convert"], &toml, &["--strict", "-o", &json.to_string_lossy()]);
    assert!(!good && said.contains("would get lost"), "{said}");
    assert!(!json.exists());
}

#[test]
fn a_file_that_is_there_is_kept() {
    let directory = TempDir::new();
    let there = directory.file("weft.toml", "mine");
    let output = there.to_string_lossy();
    let (good, said) = weft_on(&["convert"], &data("rdma.json"), &["-o", &output]);
    assert!(!good && said.contains("--force writes over a file"), "{said}");
    assert_eq!(fs::read_to_string(&there).expect("the old file"), "mine");
    let (good, said) = weft_on(&["convert"], &data("rdma.json"), &["--force", "-o", &output]);
    assert!(good, "{said}");
    assert!(fs::read_to_string(&there).expect("the new file").contains("transport = \"rdma\""));
    let (good, said) = weft_on(&["convert"], &directory.join("gone"), &[]);
    assert!(!good && said.contains("cannot be read"), "{said}");
}

#[test]
fn paths_mean_the_same_in_the_new_place() {
    let directory = TempDir::new();
    let namespace = "[[subsystem.namespace]]\nnsid = 1\nbackend = \"file\"\npath = \"ns.img\"\n";
    let subsystem = "[[subsystem]]\nnqn = \"nqn.2026-12.io.weft:one\"\nallow_any_host = true\n";
    let toml = directory.file("weft.toml", &format!("{PORT}{subsystem}{namespace}"));
    let (good, said) = weft_on(&["convert"], &toml, &[]);
    let path = directory.join("ns.img");
    assert!(good && said.contains(&format!("\"path\": \"{}\"", path.display())), "{said}");
}

#[test]
fn strict_refuses_what_is_not_supported() {
    for name in ["loop.json", "secure.json", "kernel.json", "sloppy.json"] {
        let (good, said) = weft_on(&["check", "--config"], &data(name), &[]);
        assert!(good && said.contains("not supported yet: "), "{name}: {said}");
        let (good, said) = weft_on(&["check", "--strict", "--config"], &data(name), &[]);
        assert!(!good && said.contains("thing(s) that weft cannot do yet (--strict)"), "{name}: {said}");
        let (good, said) = weft_on(&["serve", "--strict", "--config"], &data(name), &[]);
        assert!(!good && said.contains("thing(s) that weft cannot do yet (--strict)"), "{name}: {said}");
    }
    let (good, said) = weft_on(&["check", "--strict", "--config"], &data("tcp.json"), &[]);
    assert!(good && said.contains("is right"), "{said}");
}

#[test]
fn files_that_are_no_configuration_are_one_error() {
    let directory = TempDir::new();
    let deep = "[{\"a\":".repeat(50_000);
    for (what, bytes, expected) in [
        ("a list", b"[{}]".to_vec(), "1:1: is a list: expected an object"),
        ("no UTF-8", b"{\"hosts\": [\xff]}".to_vec(), "1:12: byte 0xff is not UTF-8"),
        ("cut off", b"{\"hosts\": [".to_vec(), "1:12: the file ends before the ']'"),
        ("a key twice", b"{\"ports\": [],\n \"ports\": []}".to_vec(), "2:2: ports: duplicate key"),
        ("deep", deep.into_bytes(), "nested more than 64 levels deep"),
        ("deep TOML", format!("x = {}", "[".repeat(50_000)).into_bytes(), "config.json:1:"),
        ("huge", vec![b' '; 9 << 20], "it is larger than 8 MiB"),
    ] {
        let path = directory.join("config.json");
        fs::write(&path, bytes).expect("a file");
        let (good, said) = weft_on(&["check", "--config"], &path, &[]);
        assert!(!good && said.contains(expected), "{what}: {said}");
        let mistakes =
            said.lines().filter(|line| line.contains("config.json:") && !line.contains("warning: "));
        assert_eq!(mistakes.filter(|line| !line.contains("cannot be used")).count(), 1, "{what}: {said}");
    }
    let (good, said) = weft_on(&["check", "--config"], Path::new("/dev/zero"), &[]);
    assert!(!good && said.contains("it is larger than 8 MiB"), "{said}");
}
