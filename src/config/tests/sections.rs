//! Mistakes within ports, limits, subsystems and namespaces.

use super::*;

#[test]
fn ports() {
    let text = format!(
        "[[port]]\nid = 1\ntransport = \"tcp\"\naddress = \"127.0.0.1:4420\"\n\
         [[port]]\nid = 1\ntransport = \"tcp\"\naddress = \"0.0.0.0:4420\"\n\
         [[port]]\nid = 2\ntransport = \"rdma\"\naddress = \"127.0.0.1:4420\"\n\
         [[port]]\nid = 3\ntransport = \"tcp\"\naddress = \"127.0.0.1:9464\"\n\
         [[port]]\nid = 4\ntransport = \"tcp\"\naddress = \"localhost:4420\"\n\
         [[port]]\nid = 65536\ntransport = \"tcp\"\naddress = \"[::1]:4420\"\n{SUBSYSTEM}{NAMESPACE}"
    );
    assert_eq!(
        mistakes(&text),
        [
            "6:6: port.id: 1 is taken by line 2: expected a different id",
            "8:11: port.address: 0.0.0.0:4420 is taken by line 4: expected a different address",
            "16:11: port.address: 127.0.0.1:9464 is taken by the metrics page: expected a different address",
            "20:11: port.address: \"localhost:4420\" is no address: expected \"ADDRESS:PORT\" such as \
             \"127.0.0.1:4420\" or \"[::1]:4420\"",
            "22:6: port.id: 65536 is out of range: expected an integer from 0 to 65535",
        ]
    );
    let any = format!(
        "{0}{1}{SUBSYSTEM}{NAMESPACE}",
        PORT.replace("4420", "0"),
        PORT.replace("4420", "0").replace("= 1\n", "= 2\n")
    );
    assert_eq!(warnings(&any), [""; 0]);
}

#[test]
fn limits_and_reactors() {
    assert_eq!(
        head_mistakes(
            "[limits]\nconnections = 0\nmax_transfer = \"12 KiB\"\nio_queues = -1\nqueue_depth = \
             1\nin_capsule = 5000"
        ),
        [
            "2:15: limits.connections: 0 is out of range: expected an integer from 1 to 65536",
            "3:16: limits.max_transfer: 12288 bytes: expected 4 KiB times a power of two",
            "4:13: limits.io_queues: -1 is out of range: expected an integer from 1 to 1024",
            "5:15: limits.queue_depth: 1 is out of range: expected an integer from 2 to 1024",
            "6:14: limits.in_capsule: 5000 bytes: expected a multiple of 4 KiB",
        ]
    );
    assert_eq!(
        head_mistakes(
            "[limits]\nmax_transfer = \"32 MiB\"\nin_capsule = 512\nhandshake_timeout_ms = \
             1.5\ndata_timeout_ms = 0"
        ),
        [
            "2:16: limits.max_transfer: 32 MiB is out of range: expected 4 KiB to 16 MiB",
            "3:14: limits.in_capsule: 512 bytes is out of range: expected 4 KiB to 64 KiB",
            "4:24: limits.handshake_timeout_ms: is a float: expected an integer from 1 to 3600000",
            "5:19: limits.data_timeout_ms: 0 is out of range: expected an integer from 1 to 3600000",
        ]
    );
    assert_eq!(
        head_mistakes(
            "[limits]\nmax_transfer = \"16 MiB\"\n[reactors]\ncount = 0\npoll_us = true\nbuffers = \"32 MiB\""
        ),
        [
            "4:9: reactors.count: 0 is out of range: expected an integer from 1 to 256",
            "5:11: reactors.poll_us: is a boolean: expected an integer from 0 to 1000000",
            "6:11: reactors.buffers: 32 MiB is out of range: expected 64 MiB to 256 GiB",
        ]
    );
    assert_eq!(
        head_mistakes("[reactors]\nbuffers = 67108865"),
        ["2:11: reactors.buffers: 67108865 bytes: expected a multiple of 4 KiB"]
    );
    // The default of in_capsule gives way to a small max_transfer; a stated one does not.
    let small = Config::parse(&whole("[limits]\nmax_transfer = \"4 KiB\""), "weft.toml").unwrap().config;
    assert_eq!(small.limits.in_capsule_bytes, 4096);
    assert_eq!(
        head_mistakes("[limits]\nmax_transfer = \"4 KiB\"\nin_capsule = \"8 KiB\""),
        ["3:14: limits.in_capsule: 8 KiB is out of range: expected 4 KiB to 4 KiB"]
    );
}

#[test]
fn subsystems() {
    let one = format!("{SUBSYSTEM}{NAMESPACE}");
    assert_eq!(
        mistakes(&format!("{PORT}{one}{one}")),
        ["13:7: subsystem.nqn: nqn.2026-12.io.weft:one is taken by line 6: expected a different NQN"]
    );
    assert_eq!(
        subsystem_mistakes(&format!(
            "serial = \"123456789012345678901\"\nmodel = \"\"\nallow_any_host = \"yes\"\nports = [1, 1, \
             9]\n{NAMESPACE}"
        )),
        [
            "1:1: subsystem.nqn: missing: expected an NQN such as \"nqn.2026-12.io.weft:one\"",
            "1:1: warning: subsystem: admits no host: expected allow_any_host = true, or NQNs in \
             allowed_hosts",
            "2:10: subsystem.serial: is 21 characters long: expected 1 to 20 printable ASCII characters",
            "3:9: subsystem.model: is empty: expected 1 to 40 printable ASCII characters",
            "4:18: subsystem.allow_any_host: is a string: expected true or false",
            "5:13: subsystem.ports: names port 1 twice: expected it once",
            "5:16: subsystem.ports: there is no port 9: expected the id of a [[port]]",
        ]
    );
    assert_eq!(
        subsystem_mistakes(&format!(
            "nqn = \"nqn.2014-08.org.nvmexpress.discovery\"\nserial = \"é\"\nmodel = \" m\"\nallow_any_host \
             = true\n\
             allowed_hosts = [\"host\"]\nports = []\n{NAMESPACE}"
        )),
        [
            "2:7: subsystem.nqn: is the NQN of the discovery service, which is always there: expected \
             another",
            "3:10: subsystem.serial: \"é\" is not printable ASCII: expected 1 to 20 printable ASCII \
             characters",
            "4:9: subsystem.model: \" m\" begins or ends with a space: expected 1 to 40 printable ASCII \
             characters",
            "6:17: subsystem.allowed_hosts: cannot stand beside allow_any_host = true: expected one of the \
             two",
            "6:18: subsystem.allowed_hosts: \"host\" is no NQN: the NQN does not \
             start with \"nqn.\"; expected nqn.yyyy-mm.reverse.domain[:string]",
            "7:9: warning: subsystem.ports: names no port: no host can connect; without this key every port offers \
             the subsystem",
        ]
    );
    assert_eq!(
        subsystem_mistakes(&format!(
            "nqn = 1\nallowed_hosts = \"all\"\nports = 1\nnamespaces = 2\n{NAMESPACE}"
        ))[1..],
        [
            "2:7: subsystem.nqn: is an integer: expected an NQN such as \"nqn.2026-12.io.weft:one\"",
            "3:17: subsystem.allowed_hosts: is a string: expected a list of host NQNs",
            "4:9: subsystem.ports: is an integer: expected a list of port ids",
            "5:1: subsystem.namespaces: unknown key: did you mean \"namespace\"?",
        ]
    );
}

#[test]
fn contradicting_hosts_are_refused_even_when_the_list_is_empty() {
    let keys =
        format!("nqn = \"nqn.2026-12.io.weft:one\"\nallow_any_host = true\nallowed_hosts = []\n{NAMESPACE}");
    assert_eq!(
        subsystem_mistakes(&keys),
        ["4:17: subsystem.allowed_hosts: cannot stand beside allow_any_host = true: expected one of the two"]
    );
}

#[test]
fn drives_have_keys_of_their_own() {
    assert_eq!(
        namespace_mistakes("nsid = 1\nbackend = \"passthrough\"\nsize = \"1 MiB\"\nlba_size = 512"),
        [
            "4:1: subsystem.namespace.device: missing: expected the character device of a drive's namespace, such as \
             \"/dev/ng0n1\"",
            "7:8: subsystem.namespace.size: does not belong to backend \"passthrough\": the drive decides",
            "8:12: subsystem.namespace.lba_size: does not belong to backend \"passthrough\": the drive decides",
        ]
    );
    assert_eq!(
        namespace_mistakes(
            "nsid = 1\nbackend = \"memory\"\nsize = 4096\ndevice = \"/dev/ng0n1\"\nforce = true"
        ),
        [
            "8:10: subsystem.namespace.device: expected only with backend \"passthrough\"",
            "9:9: subsystem.namespace.force: expected only with backend \"file\" or \"passthrough\"",
        ]
    );
}

#[test]
fn direct_io_is_for_files() {
    assert_eq!(
        namespace_mistakes("nsid = 1\nbackend = \"null\"\nsize = 4096\ndirect = true"),
        ["8:10: subsystem.namespace.direct: expected only with backend \"file\""]
    );
}

#[test]
fn namespaces() {
    assert_eq!(
        namespace_mistakes(""),
        [
            "4:1: subsystem.namespace.nsid: missing: expected a number from 1 to 1024, different for each \
             namespace",
            "4:1: subsystem.namespace.backend: missing: expected \"memory\", \"file\", \"passthrough\" or \"null\"",
        ]
    );
    assert_eq!(
        namespace_mistakes("nsid = 1025\nbackend = \"memory\"\npath = \"/x\""),
        [
            "4:1: subsystem.namespace.size: missing: expected bytes as an integer, or a whole number with \
             KiB, MiB, GiB or \
             TiB such as \"64 MiB\", for backend \"memory\"",
            "5:8: subsystem.namespace.nsid: 1025 is out of range: expected an integer from 1 to 1024",
            "7:8: subsystem.namespace.path: does not belong to backend \"memory\": expected only with \
             backend \"file\"",
        ]
    );
    assert_eq!(
        namespace_mistakes("nsid = 1\nbackend = \"file\"\nlba_size = 520"),
        [
            "4:1: subsystem.namespace.path: missing: expected the path of a file",
            "7:12: subsystem.namespace.lba_size: 520 is no block size: expected 512, 1024, 2048 or 4096",
        ]
    );
    assert_eq!(
        namespace_mistakes("nsid = 1\nbackend = \"null\"\nsize = 5120\npath = \"\"\nread_only = 1"),
        [
            "7:8: subsystem.namespace.size: 5120 bytes: expected a multiple of the block size 4096",
            "8:8: subsystem.namespace.path: is empty: expected the path of a file",
            "9:13: subsystem.namespace.read_only: is an integer: expected true or false",
        ]
    );
    assert_eq!(
        namespace_mistakes("nsid = 1\nbackend = \"null\"\nsize = 0\nlba_size = 512"),
        ["7:8: subsystem.namespace.size: 0 bytes is out of range: expected at least 512 bytes"]
    );
    assert_eq!(
        namespace_mistakes("nsid = 1\nbackend = \"null\"\nsize = true"),
        ["7:8: subsystem.namespace.size: is a boolean: expected bytes as an integer, or a whole number \
             with KiB, MiB, GiB \
             or TiB such as \"64 MiB\"",]
    );
    assert_eq!(
        namespace_mistakes(
            "nsid = 1\nbackend = \"null\"\nsize = 4096\nuuid = \"x\"\nnguid = \
             \"00000000000000000000000000000000\""
        ),
        [
            "8:8: subsystem.namespace.uuid: \"x\" is no UUID: expected \
             \"xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx\" in hexadecimal \
             digits, not all zero",
            "9:9: subsystem.namespace.nguid: is all zero: expected 32 hexadecimal digits, not all zero",
        ]
    );
    assert_eq!(
        namespace_mistakes(
            "nsid = 1\nbackend = \"null\"\nsize = 4096\nuuid = \
             \"00000000-0000-0000-0000-000000000000\"\nnguid = \"12\""
        ),
        [
            "8:8: subsystem.namespace.uuid: is all zero: expected \"xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx\" \
             in hexadecimal \
             digits, not all zero",
            "9:9: subsystem.namespace.nguid: \"12\" is no NGUID: expected 32 hexadecimal digits, not all \
             zero",
        ]
    );
}

#[test]
fn identities_twice() {
    let uuid = "uuid = \"01234567-89ab-cdef-0123-456789abcdef\"\n";
    let nguid = "nguid = \"0123456789abcdef0123456789abcdef\"\n";
    let first = format!("{NAMESPACE}{uuid}{nguid}");
    assert_eq!(
        mistakes(&format!("{PORT}{SUBSYSTEM}{first}{first}")),
        [
            "15:8: subsystem.namespace.nsid: 1 is taken by line 9: expected a different NSID",
            "18:8: subsystem.namespace.uuid: 01234567-89ab-cdef-0123-456789abcdef is taken by line 12: \
             expected a different \
             one",
            "19:9: subsystem.namespace.nguid: 0123456789abcdef0123456789abcdef is taken by line 13: \
             expected a different one",
        ]
    );
    let other = SUBSYSTEM.replace("one", "two");
    assert_eq!(
        warnings(&format!("{PORT}{SUBSYSTEM}{first}{other}{first}")),
        [
            "21:8: warning: subsystem.namespace.uuid: 01234567-89ab-cdef-0123-456789abcdef is also that of \
             line 12: hosts will \
             take both for one volume",
            "22:9: warning: subsystem.namespace.nguid: 0123456789abcdef0123456789abcdef is also that of \
             line 13: hosts will \
             take both for one volume",
        ]
    );
}

#[test]
fn one_file_twice_is_a_warning() {
    let file =
        |nsid| format!("[[subsystem.namespace]]\nnsid = {nsid}\nbackend = \"file\"\npath = \"/dev/x\"\n");
    assert_eq!(
        warnings(&format!("{PORT}{SUBSYSTEM}{}{}", file(1), file(2))),
        ["15:8: warning: subsystem.namespace.path: /dev/x is also used by line 11: hosts will overwrite \
             each other"]
    );
}

#[test]
fn an_unreadable_port_id_does_not_blame_the_subsystem() {
    let text = format!(
        "[[port]]\ntransport = \"tcp\"\naddress = \"127.0.0.1:4420\"\n{SUBSYSTEM}ports = [1]\n{NAMESPACE}"
    );
    assert_eq!(
        mistakes(&text),
        ["1:1: port.id: missing: expected a number from 0 to 65535, different for each port"]
    );
}

#[test]
fn names_outside_of_the_standard_are_taken_only_on_request() {
    let odd = |head: &str| {
        format!("{head}{PORT}[[subsystem]]\nnqn = \"testnqn\"\nallowed_hosts = [\"a host\"]\n{NAMESPACE}")
    };
    let said = mistakes(&odd(""));
    assert_eq!(said.iter().filter(|line| line.contains("is no NQN")).count(), 2, "{said:?}");
    let config = Config::parse(&odd("strict_names = false\n"), "weft.toml").unwrap().config;
    assert_eq!(config.subsystems[0].nqn.as_str(), "testnqn");
    assert!(config.subsystems[0].hosts.admits("a host"));
}

#[test]
fn ana_groups() {
    let group = |id, state| format!("[[port.ana_group]]\nid = {id}\nstate = {state:?}\n");
    let all = [group(0, "change"), group(3, "gone"), group(4, "optimized"), group(4, "optimized")].concat();
    assert_eq!(
        mistakes(&format!("{PORT}{all}{SUBSYSTEM}{NAMESPACE}ana_group = 129")),
        [
            "6:6: port.ana_group.id: 0 is out of range: expected an integer from 1 to 128",
            "10:9: port.ana_group.state: unknown state \"gone\": expected \"optimized\", \"non-optimized\", \
             \"inaccessible\", \"persistent-loss\" or \"change\"",
            "15:6: port.ana_group.id: group 4 has its state from line 12: expected it once",
            "24:13: subsystem.namespace.ana_group: 129 is out of range: expected an integer from 1 to 128",
        ]
    );
    // That group 1 is optimized goes without saying.
    let text = format!("{PORT}{}{}{SUBSYSTEM}{NAMESPACE}", group(1, "optimized"), group(9, "optimized"));
    let config = Config::parse(&text, "weft.toml").unwrap().config;
    assert_eq!(config.ports[0].ana_groups, [AnaGroup { id: 9, state: AnaState::Optimized }]);
}

#[test]
fn one_file_by_two_names_is_a_warning() {
    let directory = std::env::temp_dir().join(format!("weft-links-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let (file, link) = (directory.join("a"), directory.join("b"));
    fs::write(&file, "").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let namespace = |nsid, path: &Path| {
        format!("[[subsystem.namespace]]\nnsid = {nsid}\nbackend = \"file\"\npath = {path:?}\n")
    };
    let text = format!("{PORT}{SUBSYSTEM}{}{}", namespace(1, &file), namespace(2, &link));
    let said = warnings(&text);
    fs::remove_dir_all(&directory).unwrap();
    assert_eq!(
        said,
        [format!(
            "15:8: warning: subsystem.namespace.path: {} is also used by line 11: hosts will overwrite each other",
            link.display()
        )]
    );
}

#[test]
fn ranges_of_controller_identifiers() {
    for wrong in ["[1]", "[2, 1]", "[1, 2, 3]", "[]"] {
        let said = subsystem_mistakes(&format!("controller_ids = {wrong}\n{NAMESPACE}"));
        let expected = "2:18: subsystem.controller_ids: is no range: expected two controller identifiers, the first and the last";
        assert!(said.iter().any(|line| line == expected), "{wrong}: {said:?}");
    }
    let said = subsystem_mistakes(&format!("controller_ids = [0, 65520]\n{NAMESPACE}"));
    assert_eq!(
        said.iter().filter(|line| line.contains("expected an integer from 1 to 65519")).count(),
        2,
        "{said:?}"
    );
}

#[test]
fn faults_are_off_by_default_and_their_mistakes_are_named() {
    let with = |faults: &str| format!("{PORT}{SUBSYSTEM}{NAMESPACE}[subsystem.namespace.faults]\n{faults}");
    let config = Config::parse(&with(""), "test").unwrap().config;
    let faults = config.subsystems[0].namespaces[0].faults.clone().unwrap();
    assert_eq!((faults.error_one_in, faults.hang_one_in, faults.max_delay), (0, 0, Duration::ZERO));
    assert_eq!(
        mistakes(&with("min_delay_us = 5\nmax_delay_us = 4\nerrors = [0, 0x800]\nhang_s = 1\n")),
        [
            "14:16: subsystem.namespace.faults.max_delay_us: 4: expected at least min_delay_us, which \
             is 5",
            "15:11: subsystem.namespace.faults.errors: 0 is out of range: expected an integer from \
             1 to 2047",
            "15:14: subsystem.namespace.faults.errors: 0x800 is out of range: expected an integer from \
             1 to 2047",
            "16:1: subsystem.namespace.faults.hang_s: unknown key: did you mean \"hang_ms\"?",
        ]
    );
}
