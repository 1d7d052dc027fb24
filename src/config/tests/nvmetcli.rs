//! nvmetcli's JSON: the shapes of tests/data, the kernel's meaning of them, and what is said about the rest.

use super::*;

const HOST: &str = "nqn.2026-12.com.example:host";
const NQN: &str = "nqn.2026-12.com.example:one";

/// A file of tests/data.
pub(super) fn data(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The configuration in a text, and its remarks without the name of the file.
fn loaded(text: &str) -> (Config, Vec<String>) {
    let loaded = Config::parse(text, "c.json").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(loaded.format, Format::Json);
    let remarks = loaded.remarks.iter().map(|remark| remark.to_string()["c.json:".len()..].to_owned());
    (loaded.config, remarks.collect())
}

/// Everything wrong with a text, without the name of the file.
fn wrong(text: &str) -> Vec<String> {
    let error = Config::parse(text, "c.json").map(|loaded| panic!("no mistake: {loaded:?}")).unwrap_err();
    error.to_string().lines().map(|line| line["c.json:".len()..].to_owned()).collect()
}

/// A sound file on one line, with these attributes, hosts and namespaces.
fn one(attr: &str, allowed: &str, namespaces: &str) -> String {
    format!(
        r#"{{"hosts":[],"ports":[{{"portid":1,"addr":{{"trtype":"tcp","adrfam":"ipv4","traddr":"127.0.0.1","trsvcid":"4420"}},"subsystems":["{NQN}"]}}],"subsystems":[{{"nqn":"{NQN}","attr":{{{attr}}},"allowed_hosts":[{allowed}],"namespaces":[{namespaces}]}}]}}"#
    )
}

/// A sound namespace.
fn namespace(nsid: u32, more: &str) -> String {
    format!(r#"{{"nsid":{nsid},"enable":1,"device":{{"path":"/srv/{nsid}.img"{more}}}}}"#)
}

/// The text behind the position.
fn unplaced(remarks: &[String]) -> Vec<&str> {
    remarks.iter().map(|remark| remark.splitn(3, ':').nth(2).unwrap_or_default().trim_start()).collect()
}

#[test]
fn the_smallest_file_of_nvmetcli() {
    let (config, remarks) = loaded(&data("tcp.json"));
    assert_eq!(
        unplaced(&remarks),
        [
            "warning: subsystems[0].nqn: \"testnqn\" is no NQN: the NQN does not start with \"nqn.\"; expected \
             nqn.yyyy-mm.reverse.domain[:string]; hosts must use exactly this name"
        ]
    );
    let [port] = config.ports.as_slice() else { panic!("one port") };
    assert_eq!(
        (port.id, port.transport, port.address),
        (1, TransportKind::Tcp, "127.0.0.1:4420".parse().unwrap())
    );
    let [subsystem] = config.subsystems.as_slice() else { panic!("one subsystem") };
    assert_eq!(
        (subsystem.nqn.as_str(), subsystem.model.as_str(), &*subsystem.ports),
        ("testnqn", "Linux", &[1][..])
    );
    assert_eq!(subsystem.serial, identity::derived_serial("testnqn"));
    assert!(subsystem.hosts.admits("hostnqn") && !subsystem.hosts.admits("another"));
    let [namespace] = subsystem.namespaces.as_slice() else { panic!("one namespace") };
    assert_eq!(
        *namespace,
        Namespace {
            nsid: 1,
            backend: NamespaceBackend::File {
                path: "/dev/nvme0n1".into(),
                size_bytes: None,
                direct: None,
                force: false,
            },
            lba_size: None,
            uuid: identity::derived_uuid("testnqn", 1),
            nguid: Some(0xef90_689c_6c46_d44c_89c1_4067_8013_09a8_u128.to_be_bytes()),
            read_only: false,
            enabled: true,
            ana_group: 1,
            faults: None,
        }
    );
}

#[test]
fn a_file_of_a_new_kernel_serves_as_it_is() {
    let (config, remarks) = loaded(&data("kernel.json"));
    assert_eq!(
        unplaced(&remarks),
        [
            "not supported yet: ports[0].ana_groups[1].ana.state: ANA groups: group 2 is served as if it were \
             optimized, not as \"inaccessible\"",
            "not supported yet: ports[1].param.inline_data_size: 4096 here and 16384 elsewhere: weft has one for \
             all: 16384",
            "not supported yet: ports[1].param.max_queue_size: 128 here and 1024 elsewhere: weft has one for all: 128",
        ]
    );
    let limits = &config.limits;
    assert_eq!((limits.in_capsule_bytes, limits.queue_depth, limits.io_queues), (16384, 128, 128));
    assert_eq!(config.ports[0].address, "[::1]:4420".parse().unwrap());
    assert_eq!(config.ports[0].ana_groups, [AnaGroup { id: 2, state: AnaState::Inaccessible }]);
    assert_eq!((config.ports[1].id, config.ports[1].transport), (4, TransportKind::Rdma));
    let [subsystem] = config.subsystems.as_slice() else { panic!("one subsystem") };
    assert_eq!(subsystem.serial, "6ec53b8a0a2b4e9d1c7f");
    assert_eq!((subsystem.model.as_str(), subsystem.firmware.as_deref()), ("Linux", Some("6.18.0")));
    assert_eq!(subsystem.ports, [3, 4]);
    let [first, second] = subsystem.namespaces.as_slice() else { panic!("two namespaces") };
    // All zero is no NGUID: a host that knew the namespace must not see another one.
    assert_eq!((first.nguid, first.enabled, first.ana_group), (None, true, 1));
    assert_eq!(first.uuid.to_string(), "b4a1f1f8-6a3a-4c55-9a55-0f3ad7cbd3a5");
    assert_eq!((second.nsid, second.enabled, second.ana_group), (7, false, 2));
    assert!(second.nguid.is_some());
}

#[test]
fn transports_weft_does_not_have_are_left_out() {
    let (config, remarks) = loaded(&data("loop.json"));
    assert_eq!(config.ports, []);
    let said = unplaced(&remarks);
    assert!(
        said.contains(&"not supported yet: ports[0].addr.trtype: \"loop\" ports: port 1 is left out"),
        "{said:?}"
    );
    assert!(
        said.contains(&"warning: ports: there is no port that weft serves: no host can connect"),
        "{said:?}"
    );
    assert!(
        said.contains(&"warning: subsystems[0]: no port that is served offers it: no host can connect"),
        "{said:?}"
    );
    for (from, to) in [("\"rdma\"", "\"fc\""), ("\"ipv4\"", "\"ib\"")] {
        let (config, remarks) = loaded(&data("rdma.json").replace(from, to));
        assert_eq!(config.ports, []);
        assert!(remarks.iter().any(|remark| remark.contains("port 1 is left out")), "{remarks:?}");
    }
    assert_eq!(loaded(&data("rdma.json")).0.ports[0].transport, TransportKind::Rdma);
    // A port that nobody has set up yet.
    let unset = r#"{"trtype":"","adrfam":"","traddr":"","trsvcid":"","treq":"not specified","tsas":""}"#;
    let (config, remarks) = loaded(&format!(r#"{{"ports":[{{"portid":1,"addr":{unset}}}]}}"#));
    assert_eq!(config.ports, []);
    assert_eq!(
        unplaced(&remarks)[1..],
        ["warning: ports[0].addr.trtype: names no transport: port 1 is left out"]
    );
}

#[test]
fn hosts_that_nothing_lists_are_named() {
    let text = one("\"allow_any_host\":1", "", "")
        .replace("\"hosts\":[]", &format!("\"hosts\":[{{\"nqn\":\"{HOST}\"}}]"));
    let (_, remarks) = loaded(&text);
    assert_eq!(
        unplaced(&remarks),
        [format!("warning: hosts[0].nqn: no subsystem lists {HOST:?}: it is left out")]
    );
}

#[test]
fn what_demands_a_key_or_a_secure_channel_is_never_opened_without() {
    let (config, remarks) = loaded(&data("secure.json"));
    let ids: Vec<_> = config.ports.iter().map(|port| port.id).collect();
    assert_eq!(ids, [3]);
    let [both, keyed] = config.subsystems.as_slice() else { panic!("two subsystems") };
    assert!(both.hosts.admits("nqn.2026-12.com.example:open"));
    assert!(!both.hosts.admits("nqn.2026-12.com.example:keyed"));
    assert_eq!(keyed.hosts, AllowedHosts::Listed(vec![]));
    assert_eq!((&*both.ports, &*keyed.ports), (&[3][..], &[3][..]));
    assert_eq!(
        unplaced(&remarks),
        [
            "not supported yet: ports[0].addr.treq: TLS: port 1 demands a secure channel and is left out",
            "not supported yet: ports[1].addr.tsas: TLS: port 2 demands it and is left out",
            "not supported yet: ports[2].addr.tsas: TLS: port 3 takes connections without it only",
            "not supported yet: subsystems[0].allowed_hosts: authentication: \"nqn.2026-12.com.example:keyed\" has a \
             key and must prove it; it is left out and cannot connect to nqn.2026-12.com.example:both",
            "warning: subsystems[1]: subsystem nqn.2026-12.com.example:keyed-only admits no host",
            "warning: subsystems[1].attr.allow_any_host: is 1 beside allowed_hosts of subsystem \
             nqn.2026-12.com.example:keyed-only: the list holds, as it does in the kernel",
            "not supported yet: subsystems[1].allowed_hosts: authentication: \"nqn.2026-12.com.example:keyed\" has a \
             key and must prove it; it is left out and cannot connect to nqn.2026-12.com.example:keyed-only",
        ]
    );
}

#[test]
fn sloppy_files_are_taken_and_their_slips_named() {
    let (config, remarks) = loaded(&data("sloppy.json"));
    let addresses: Vec<_> = config.ports.iter().map(|port| port.address.to_string()).collect();
    assert_eq!(addresses, ["127.0.0.1:4420", "[::1]:4420"]);
    let [subsystem] = config.subsystems.as_slice() else { panic!("one subsystem") };
    assert_eq!(subsystem.nqn.as_str(), "häuser \"und\" mehr");
    assert_eq!((subsystem.serial.as_str(), &subsystem.hosts), ("1234", &AllowedHosts::Any));
    let [first, second] = subsystem.namespaces.as_slice() else { panic!("two namespaces") };
    assert_eq!(first.uuid.to_string(), "b4a1f1f8-6a3a-4c55-9a55-0f3ad7cbd3a5");
    assert_eq!(first.nguid, Some(0x6ec5_3b8a_0a2b_4e9d_1c7f_0000_0000_0002_u128.to_be_bytes()));
    assert_eq!((second.enabled, second.uuid), (false, identity::derived_uuid(subsystem.nqn.as_str(), 2)));
    assert_eq!(
        unplaced(&remarks),
        [
            "warning: ports[0].subsystems: there is no subsystem \"nqn.2026-12.com.example:gone\": it is skipped",
            "not supported yet: ports[1].colour: unknown key, ignored",
            "warning: subsystems[0].nqn: \"häuser \\\"und\\\" mehr\" is no NQN: the NQN does not start with \
             \"nqn.\"; expected nqn.yyyy-mm.reverse.domain[:string]; hosts must use exactly this name",
            "not supported yet: subsystems[0].attr.modell: unknown key, ignored: did you mean \"model\"?",
            "warning: subsystems[0].namespaces[2]: has no enable: it is not exported, as with nvmetcli",
            "warning: subsystems[0].namespaces[2].device.path: there is none, and the namespace is disabled: it is \
             left out",
            "not supported yet: subsystems[0].namespaces[3].nsid: NSIDs above 1024: namespace 4420 is left out",
        ]
    );
}

#[test]
fn a_list_of_hosts_goes_before_allow_any_host() {
    for any in ["\"1\"", "1", "true", "\"on\""] {
        let attr = format!("\"allow_any_host\":{any}");
        let (config, remarks) = loaded(&one(&attr, &format!("\"{HOST}\""), &namespace(1, "")));
        assert_eq!(config.subsystems[0].hosts, AllowedHosts::Listed(vec![nqn(HOST)]));
        assert!(
            remarks.iter().any(|remark| remark.contains(NQN) && remark.contains("the list holds")),
            "{remarks:?}"
        );
        let (config, remarks) = loaded(&one(&attr, "", &namespace(1, "")));
        assert_eq!((config.subsystems[0].hosts.clone(), remarks), (AllowedHosts::Any, vec![]));
    }
    let (config, remarks) = loaded(&one("", "", &namespace(1, "")));
    assert_eq!(config.subsystems[0].hosts, AllowedHosts::Listed(vec![]));
    assert_eq!(unplaced(&remarks), [format!("warning: subsystems[0]: subsystem {NQN} admits no host")]);
}

#[test]
fn everything_weft_cannot_do_is_said_item_by_item() {
    let attr = r#""allow_any_host":"1","cntlid_min":"1","cntlid_max":"1000","ieee_oui":"0x123456","pi_enable":"1","version":"9.9","qid_max":"5000""#;
    let more = r#"{"nsid":1,"enable":1,"device":{"path":"/srv/1.img","p2pmem":"pci:0000:01:00.0"},"resv":{"enable":"1"}}"#;
    let text = one(attr, "", more)
        .replace(
            r#""4420"}"#,
            r#""4420"},"param":{"inline_data_size":"0","max_queue_size":"4096","mdts":"5","pi_enable":"1"}"#,
        )
        .replace(r#""hosts":[]"#, r#""hosts":[],"version":2"#);
    let (config, remarks) = loaded(&text);
    assert!(remarks.iter().all(|remark| remark.contains(": not supported yet: ")), "{remarks:?}");
    let keys: Vec<_> =
        unplaced(&remarks).iter().map(|remark| remark.split(": ").nth(1).unwrap_or_default()).collect();
    assert_eq!(
        keys,
        [
            "version",
            "ports[0].param.inline_data_size",
            "ports[0].param.max_queue_size",
            "ports[0].param.mdts",
            "ports[0].param.pi_enable",
            "subsystems[0].attr.ieee_oui",
            "subsystems[0].attr.pi_enable",
            "subsystems[0].attr.version",
            "subsystems[0].attr.qid_max",
            "subsystems[0].namespaces[0].device.p2pmem",
            "subsystems[0].namespaces[0].resv.enable",
        ]
    );
    let limits = &config.limits;
    assert_eq!((limits.in_capsule_bytes, limits.queue_depth, limits.io_queues), (4096, 1024, 1024));
    assert_eq!(config.subsystems[0].controller_ids, 1..=1000);
    let said = wrong(&one("\"cntlid_min\":10,\"cntlid_max\":\"9\"", "", ""));
    assert!(
        said.iter().any(|line| line.ends_with("attr.cntlid_max: 9 is less than cntlid_min, 10")),
        "{said:?}"
    );

    let passthru = r#""nqn":"x","passthru":{"enable":1,"device":{"path":"/dev/nvme0"}},"#;
    let text = one("", "", "").replacen(&format!(r#""nqn":"{NQN}","#), &passthru.replace('x', NQN), 1);
    let (config, remarks) = loaded(&text);
    assert_eq!(config.subsystems, []);
    assert!(remarks.iter().any(|remark| remark.contains("the subsystem is left out")), "{remarks:?}");
}

#[test]
fn serials_fit_their_field() {
    let serial = |text: &str| {
        let attr = format!("\"allow_any_host\":1,\"serial\":{text}");
        loaded(&one(&attr, "", &namespace(1, ""))).0.subsystems[0].serial.clone()
    };
    assert_eq!(serial("\"123456789012345678901234\""), "12345678901234567890");
    assert_eq!(serial("\" a b \""), "a b");
    for empty in ["\"\"", "\"  \"", "null"] {
        assert_eq!(serial(empty), identity::derived_serial(NQN));
    }
    let said = wrong(&one("\"serial\":\"ä\"", "", &namespace(1, "")));
    assert!(said.iter().any(|line| line.contains("attr.serial: \"ä\" is not printable ASCII")), "{said:?}");
}

#[test]
fn mistakes_come_all_at_once() {
    let text = r#"{
 "ports": [
  {"portid": 1, "addr": {"trtype": "tcp", "traddr": "localhost", "trsvcid": "http"}},
  {"portid": 1, "addr": {"trtype": "quic"}},
  {"addr": {"trtype": "tcp", "adrfam": "ipv6", "traddr": "127.0.0.1", "trsvcid": 1, "treq": "maybe"}},
  {"portid": 70000, "addr": 5, "subsystems": "all"},
  {"portid": 5, "addr": {"trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": "9464"}},
  7
 ],
 "subsystems": [
  {"nqn": "", "namespaces": [{"nsid": 0}, {"nsid": 1, "enable": 2, "device": {"uuid": "x"}}]},
  {"nqn": "nqn.2014-08.org.nvmexpress.discovery", "allowed_hosts": [{}]},
  {"nqn": "a", "attr": {"allow_any_host": "maybe"}, "namespaces": [{"nsid": 1, "enable": 1, "device": {}}]},
  {"nqn": "a"}
 ]
}"#;
    let said = wrong(text);
    let mistakes: Vec<_> =
        said.iter().filter(|line| !line.contains(": warning: ")).map(String::as_str).collect();
    assert_eq!(
        mistakes,
        [
            "3:53: ports[0].addr.traddr: \"localhost\" is no IP address: expected one such as \"192.0.2.1\"",
            "3:77: ports[0].addr.trsvcid: \"http\": expected an integer from 0 to 65535",
            "4:14: ports[1].portid: 1 is taken by line 3: expected a different id",
            "4:36: ports[1].addr.trtype: \"quic\" is unknown: expected one of \"tcp\", \"rdma\", \"loop\", \"fc\", \
             \"pci\", \"pcie\"",
            "5:3: ports[2].portid: missing: expected a number from 0 to 65535, different for each port",
            "5:58: ports[2].addr.traddr: 127.0.0.1 is not of the family that adrfam names: expected both to agree",
            "5:93: ports[2].addr.treq: \"maybe\" is unknown: expected one of \"\", \"not specified\", \"required\", \
             \"not required\"",
            "6:14: ports[3].portid: \"70000\": expected an integer from 0 to 65535",
            "6:29: ports[3].addr: is a number: expected an object",
            "6:46: ports[3].subsystems: is a string: expected a list of names",
            "7:53: ports[4].addr.traddr: 127.0.0.1:9464 is taken by the metrics page: expected a different address",
            "8:3: ports[5]: is a number: expected an object",
            "11:11: subsystems[0].nqn: \"\" is no NQN: the NQN is empty; expected nqn.yyyy-mm.reverse.domain[:string]",
            "11:30: subsystems[0].namespaces[0].device: missing: expected an object with path, uuid and nguid",
            "11:39: subsystems[0].namespaces[0].nsid: \"0\": expected an integer from 1 to 4294967294",
            "11:65: subsystems[0].namespaces[1].enable: \"2\": expected 1 or 0",
            "11:87: subsystems[0].namespaces[1].device.uuid: \"x\" is no UUID: expected \
             \"xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx\" in hexadecimal digits, not all zero",
            "12:11: subsystems[1].nqn: is the NQN of the discovery service, which is always there: expected another",
            "12:69: subsystems[1].allowed_hosts: is an object: expected a string or a number",
            "13:43: subsystems[2].attr.allow_any_host: \"maybe\": expected 1 or 0",
            "13:103: subsystems[2].namespaces[0].device.path: missing: expected the path of a file or block device",
            "14:11: subsystems[3].nqn: a is taken by line 13: expected a different NQN",
        ]
    );
}

#[test]
fn equal_identities_and_devices() {
    let uuid = r#","uuid":"b4a1f1f8-6a3a-4c55-9a55-0f3ad7cbd3a5""#;
    let said = wrong(&one("", "", &[namespace(1, uuid), namespace(2, uuid), namespace(2, "")].join(",")));
    assert!(
        said.iter()
            .any(|line| line.contains("namespaces[1].device.uuid: b4a1f1f8") && line.contains("is taken"))
    );
    assert!(said.iter().any(|line| line.contains("namespaces[2].nsid: 2 is taken")), "{said:?}");
    let same = namespace(1, "").replace("\"nsid\":1", "\"nsid\":2");
    let (_, remarks) = loaded(&one("\"allow_any_host\":1", "", &[namespace(1, ""), same].join(",")));
    assert!(remarks.iter().any(|remark| remark.contains("/srv/1.img is also used by line 1")), "{remarks:?}");
}

#[test]
fn what_is_no_file_of_nvmetcli() {
    let said = wrong(r#"{"subsystems":[{"subsystem":"nvmf","config":[]}]}"#);
    assert!(said.iter().any(|line| line.contains("subsystems[0]: is a configuration of SPDK")), "{said:?}");
    assert_eq!(wrong("[{}]"), ["1:1: is a list: expected an object"]);
    assert_eq!(wrong("{\"ports\": 1}").len(), 2);
    assert_eq!(wrong("{\"ports\": [\n"), ["2:1: the file ends before the ']' for line 1"]);
    // A byte-order mark and blanks in front change nothing.
    let (config, _) = loaded(&format!("\u{feff}\n  {}", one("", "", "")));
    assert_eq!(config.subsystems.len(), 1);
}

#[test]
fn referrals_of_the_ports_are_told_on_all() {
    let referral = |name: &str, address: &str, more: &str| {
        format!(
            r#"{{"name":"{name}","enable":1,"addr":{{"trtype":"tcp","adrfam":"ipv4","traddr":"{address}","trsvcid":"8009","treq":"not specified","portid":"7"{more}}}}}"#
        )
    };
    let all = [
        referral("a", "192.0.2.1", ""),
        referral("b", "127.0.0.1", "").replace("8009", "4420"),
        referral("c", "0.0.0.0", ""),
        referral("d", "192.0.2.2", "").replace("\"tcp\"", "\"fc\""),
        referral("e", "192.0.2.3", "").replace("\"enable\":1", "\"enable\":0"),
    ];
    let port = r#"{"portid":2,"addr":{"trtype":"tcp","traddr":"127.0.0.1","trsvcid":4421}},"#;
    let text = one("\"allow_any_host\":1", "", "")
        .replace(r#""ports":["#, &format!(r#""ports":[{port}"#))
        .replace(r#""portid":1,"#, &format!(r#""portid":1,"referrals":[{}],"#, all.join(",")));
    let (config, remarks) = loaded(&text);
    let expected = Referral {
        transport: TransportKind::Tcp,
        address: "192.0.2.1:8009".parse().unwrap(),
        nqn: nvme::Nqn::discovery(),
        port_id: 7,
    };
    assert_eq!(config.referrals, [expected]);
    assert_eq!(
        unplaced(&remarks),
        [
            "not supported yet: ports[1].referrals[0]: referrals of some ports only: hosts are told of it on every port",
            "warning: ports[1].referrals[1]: 127.0.0.1:4420 is a port of this target: it is left out",
            "warning: ports[1].referrals[2]: 0.0.0.0:8009 leads nowhere: it is left out",
            "not supported yet: ports[1].referrals[3].addr.trtype: \"fc\" ports: referral \"d\" is left out",
            "warning: ports[1].referrals[4]: is disabled: it is left out",
        ]
    );
}

#[test]
fn buffered_io_is_the_other_side_of_direct() {
    for (written, direct) in [("\"0\"", Some(true)), ("1", Some(false)), ("null", None)] {
        let namespace =
            namespace(1, "").replace("\"nsid\":1,", &format!("\"nsid\":1,\"buffered_io\":{written},"));
        let (config, _) = loaded(&one("\"allow_any_host\":1", "", &namespace));
        let expected =
            NamespaceBackend::File { path: "/srv/1.img".into(), size_bytes: None, direct, force: false };
        assert_eq!(config.subsystems[0].namespaces[0].backend, expected);
    }
}
