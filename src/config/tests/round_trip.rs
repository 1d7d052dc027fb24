//! Written and read back, a configuration is the same; and no text at all makes the reader do worse than complain.

use std::net::IpAddr;
use std::path::PathBuf;

use nvme::{Nqn, Uuid};
use proptest::collection::{btree_map, btree_set};
use proptest::option;
use proptest::prelude::*;

use super::*;

/// Names of either kind: of the standard, and whatever else a host can send.
fn any_name() -> impl Strategy<Value = Nqn> {
    let name =
        prop_oneof!["nqn\\.2026-12\\.io\\.weft:[a-z0-9.:-]{1,12}", "[^\\x00]{1,30}", "[\"\\\\\n\x7f ]{1,4}"];
    name.prop_filter_map("a name that can be one", |text| value::subsystem_nqn(&text, value::Names::Any).ok())
}

/// A text of Identify Controller.
fn field(longest: usize) -> impl Strategy<Value = String> {
    let long = proptest::string::string_regex(&format!("[!-~][ -~]{{0,{}}}[!-~]", longest - 2));
    prop_oneof!["[!-~]{1,4}", long.unwrap()]
}

fn address(index: u16) -> impl Strategy<Value = SocketAddr> {
    any::<IpAddr>().prop_map(move |ip| SocketAddr::new(ip, 10_000 + index))
}

fn port() -> impl Strategy<Value = Port> {
    let groups = btree_map(1..=MAX_ANA_GROUP, proptest::sample::select(&AnaState::ALL[..]), 0..3);
    let transport = proptest::sample::select(&TransportKind::ALL[..]);
    (transport, address(0), groups).prop_map(|(transport, address, groups)| Port {
        id: 0,
        transport,
        address,
        discovery: false,
        ana_groups: groups
            .into_iter()
            .map(|(id, state)| AnaGroup { id, state })
            .filter(|group| *group != AnaGroup { id: 1, state: AnaState::Optimized })
            .collect(),
    })
}

fn backend() -> impl Strategy<Value = NamespaceBackend> {
    let size = || (1..1_u64 << 20).prop_map(|blocks| blocks * 4096);
    prop_oneof![
        3 => ("/\\PC{1,20}", option::weighted(0.2, size()), any::<Option<bool>>(), proptest::bool::weighted(0.2))
            .prop_map(|(path, size_bytes, direct, force)| NamespaceBackend::File {
                path: path.into(), size_bytes, direct, force
            }),
        1 => ("/\\PC{1,20}", any::<bool>())
            .prop_map(|(device, force)| NamespaceBackend::Passthrough { device: device.into(), force }),
        1 => size().prop_map(|size_bytes| NamespaceBackend::Memory { size_bytes }),
        1 => size().prop_map(|size_bytes| NamespaceBackend::Null { size_bytes }),
    ]
}

fn faults() -> impl Strategy<Value = Faults> {
    let delays = (0..=60_000_000_u64, 0..=60_000_000_u64);
    let hang = option::of((1..=86_400_000_u64).prop_map(Duration::from_millis));
    let errors =
        proptest::collection::vec((1..=0x7ff_u16).prop_map(|code| Status::from_wire(code << 1)), 0..4);
    (0..=i64::MAX as u64, delays, any::<u32>(), errors, any::<u32>(), hang).prop_map(
        |(seed, (one, two), error_one_in, errors, hang_one_in, hang)| Faults {
            seed,
            min_delay: Duration::from_micros(one.min(two)),
            max_delay: Duration::from_micros(one.max(two)),
            error_one_in,
            errors,
            hang_one_in,
            hang,
        },
    )
}

fn namespace() -> impl Strategy<Value = Namespace> {
    let faults = option::weighted(0.1, faults());
    let lba_size = option::weighted(0.2, proptest::sample::select(vec![512_u32, 1024, 2048, 4096]));
    let flags = (proptest::bool::weighted(0.1), any::<bool>());
    (backend(), lba_size, any::<u64>(), 0..3_u8, flags, 1..=MAX_ANA_GROUP, faults).prop_map(
        |(backend, lba_size, random, nguid, (read_only, enabled), ana_group, faults)| {
            let uuid = u128::from(random) << 64;
            let nguid = match nguid {
                0 => None,
                1 => Some(uuid),
                _ => Some(uuid | 1 << 40),
            };
            let passthrough = matches!(backend, NamespaceBackend::Passthrough { .. });
            Namespace {
                nsid: 0,
                backend,
                // The drive decides.
                lba_size: lba_size.filter(|_| !passthrough),
                uuid: Uuid(uuid.to_be_bytes()),
                nguid: nguid.map(u128::to_be_bytes),
                read_only,
                enabled,
                ana_group,
                faults,
            }
        },
    )
}

fn subsystem() -> impl Strategy<Value = Subsystem> {
    let hosts = prop_oneof![
        Just(AllowedHosts::Any),
        btree_set(any_name(), 0..4).prop_map(|hosts| AllowedHosts::Listed(hosts.into_iter().collect())),
    ];
    let controller_ids =
        (ALL_CONTROLLER_IDS, ALL_CONTROLLER_IDS).prop_map(|(one, two)| one.min(two)..=one.max(two));
    let controller_ids = prop_oneof![Just(ALL_CONTROLLER_IDS), controller_ids];
    let texts = (field(20), prop_oneof![Just("weft".to_owned()), field(40)], option::of(field(8)));
    (texts, controller_ids, hosts, any::<u8>(), btree_map(1..=MAX_NSID, namespace(), 0..4)).prop_map(
        |((serial, model, firmware), controller_ids, hosts, ports, namespaces)| Subsystem {
            nqn: Nqn::discovery(),
            serial,
            model,
            firmware,
            controller_ids,
            hosts,
            // Which of the ports, as bits.
            ports: (0..8).filter(|bit| ports >> bit & 1 == 1).collect(),
            namespaces: namespaces
                .into_iter()
                .map(|(nsid, namespace)| Namespace { nsid, ..namespace })
                .collect(),
        },
    )
}

fn limits() -> impl Strategy<Value = Limits> {
    let milliseconds = || (1..=3_600_000_u64).prop_map(Duration::from_millis);
    let sizes = (0..=12_u32).prop_flat_map(|power| {
        let max_transfer = 4096_u32 << power;
        (Just(max_transfer), (1..=max_transfer.min(65536) / 4096).prop_map(|pages| pages * 4096))
    });
    let counts = (1..=65536_usize, 1..=1024_u16, 2..=1024_u16);
    (sizes, counts, milliseconds(), milliseconds(), milliseconds()).prop_map(
        |(
            (max_transfer_bytes, in_capsule_bytes),
            (connections, io_queues, queue_depth),
            first,
            second,
            third,
        )| Limits {
            connections,
            max_transfer_bytes,
            io_queues,
            queue_depth,
            in_capsule_bytes,
            handshake_timeout: first,
            data_timeout: second,
            shutdown_timeout: third,
        },
    )
}

/// Limits of which the kernel's target has all that differ.
fn common_limits() -> impl Strategy<Value = Limits> {
    limits().prop_map(|limits| Limits {
        in_capsule_bytes: limits.in_capsule_bytes,
        queue_depth: limits.queue_depth,
        io_queues: limits.io_queues,
        ..Limits::default()
    })
}

/// What only weft has: log, state directory, name of the discovery service, metrics, reactors, limits.
type AboutWeft = (Option<String>, Option<PathBuf>, Discovery, Metrics, Reactors, Limits);

fn about_weft() -> impl Strategy<Value = AboutWeft> {
    let name = prop_oneof![Just(Nqn::discovery()), Just(nqn("nqn.2026-12.io.weft:discovery-service"))];
    let discovery = (name, any::<bool>()).prop_map(|(nqn, mdns)| Discovery { nqn, mdns });
    let everything = (
        option::of(Just("warn,weft=debug".to_owned())),
        option::of("/\\PC{1,20}".prop_map(PathBuf::from)),
        discovery,
        address(1).prop_map(|address| Metrics { address }),
        (option::of(1..=256_usize), 0..=1_000_000_u64, 16384..=32768_u64).prop_map(|(count, poll, pages)| {
            Reactors {
                count: count.and_then(NonZeroUsize::new),
                poll: Duration::from_micros(poll),
                buffer_bytes: pages * 4096,
            }
        }),
        limits(),
    );
    let nothing = common_limits().prop_map(|limits| {
        (None, None, Discovery::default(), Metrics::default(), Reactors::default(), limits)
    });
    prop_oneof![everything, nothing]
}

/// Gives the namespace identities that no other one has.
fn make_unique(namespace: &mut Namespace, subsystem: usize) {
    let salt = u128::from(namespace.nsid) << 8 | subsystem as u128 | 1 << 32;
    let salted = |id: [u8; 16]| (u128::from_be_bytes(id) >> 34 << 34 | salt).to_be_bytes();
    namespace.uuid = Uuid(salted(namespace.uuid.0));
    namespace.nguid = namespace.nguid.map(salted);
}

/// Other discovery services, at documentation addresses, so that none is a port of the machine.
fn referrals() -> impl Strategy<Value = Vec<Referral>> {
    let referral =
        (proptest::sample::select(&TransportKind::ALL[..]), any::<u16>(), proptest::bool::weighted(0.2));
    btree_map(1..=u16::MAX, referral, 0..3).prop_map(|referrals| {
        let made = referrals.into_iter().map(|(port, (transport, port_id, named))| Referral {
            transport,
            address: SocketAddr::from(([192, 0, 2, 1], port)),
            nqn: if named { nqn("nqn.2026-12.io.weft:elsewhere") } else { Nqn::discovery() },
            port_id,
        });
        made.collect()
    })
}

/// Ports, one of them perhaps for discovery only, but never all.
fn ports() -> impl Strategy<Value = Vec<Port>> {
    let only = option::weighted(0.2, any::<proptest::sample::Index>());
    (btree_map(any::<u16>(), port(), 0..4), only).prop_map(|(ports, only)| {
        let only = only.filter(|_| ports.len() > 1).map(|only| only.index(ports.len()));
        let made = ports.into_iter().enumerate().map(|(index, (id, mut port))| {
            // Different ports of the machine, so that no two clash.
            port.address.set_port(20_000 + index as u16);
            Port { id, discovery: only == Some(index), ..port }
        });
        made.collect()
    })
}

/// Any valid configuration.
fn config() -> impl Strategy<Value = Config> {
    let subsystems = btree_map(any_name(), subsystem(), 0..4);
    (about_weft(), ports(), referrals(), subsystems).prop_map(|(about, ports, referrals, subsystems)| {
        let (log, state_dir, discovery, metrics, reactors, limits) = about;
        let subsystems = subsystems.into_iter().enumerate().map(|(index, (nqn, mut subsystem))| {
            let wanted = |at: usize| subsystem.ports.contains(&(at as u16));
            let offering = ports.iter().enumerate().filter(|(at, port)| wanted(*at) && !port.discovery);
            subsystem.ports = offering.map(|(_, port)| port.id).collect();
            for namespace in &mut subsystem.namespaces {
                make_unique(namespace, index);
            }
            Subsystem { nqn, ..subsystem }
        });
        let subsystems = subsystems.collect();
        let mut config =
            Config { log, state_dir, metrics, reactors, limits, discovery, referrals, ports, subsystems };
        config.sort();
        config
    })
}

/// The configuration in a text that was written, which has no mistake.
fn read_back(text: &str) -> Loaded {
    Config::parse(text, "written").unwrap_or_else(|error| panic!("{error}\n{text}"))
}

proptest! {
    #[test]
    fn toml_says_everything(config in config()) {
        let text = config.to_toml();
        let loaded = read_back(&text);
        prop_assert_eq!(loaded.format, Format::Toml);
        prop_assert_eq!(&loaded.config, &config, "{}", text);
        prop_assert_eq!(loaded.config.to_toml(), text);
    }

    #[test]
    fn json_says_what_it_does_not_say(config in config()) {
        let (text, lost) = config.to_json();
        let loaded = read_back(&text);
        prop_assert_eq!(loaded.format, Format::Json);
        prop_assert_eq!(loaded.config == config, lost.is_empty(), "{:?}\n{}\n{:#?}", lost, text, config);
        // What is left loses nothing any more.
        prop_assert_eq!(loaded.config.to_json(), (text, vec![]));
    }

    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Config::parse(&String::from_utf8_lossy(&bytes), "any");
    }

    #[test]
    fn anything_like_toml(text in r#"(\[\[?[a-z.]{1,12}\]?\]?|[a-z_]{1,8} ?= ?|"|'|\{|\}|[0-9.:_-]{1,4}|\\|\n|#|\PC){0,60}"#) {
        let _ = Config::parse(&text, "any");
    }

    /// A sound file with a piece cut out, doubled, or replaced: whatever comes of it, nothing panics, and every complaint
    /// has a place in the file.
    #[test]
    fn damaged_files(
        file in 0..6_usize,
        at in any::<proptest::sample::Index>(),
        length in 0..40_usize,
        patch in prop_oneof!["", "\\PC{0,6}", "[0-9\\[\\]{}\",:=\n]{1,6}", "null|true|-1|99999999999999999999|\"\""],
    ) {
        let text = match file {
            0 => EVERY_KEY.to_owned(),
            1 => Config::default_target().to_toml(),
            _ => nvmetcli::data(["tcp.json", "kernel.json", "secure.json", "sloppy.json"][file - 2]),
        };
        let characters: Vec<char> = text.chars().collect();
        let start = at.index(characters.len());
        let end = (start + length).min(characters.len());
        let damaged: String = characters[..start].iter().copied().chain(patch.chars()).chain(characters[end..].iter().copied()).collect();
        let said = match Config::parse(&damaged, "any") {
            Ok(loaded) => {
                prop_assert_eq!(&read_back(&loaded.config.to_toml()).config, &loaded.config);
                loaded.remarks
            }
            Err(ConfigError::Mistakes(said)) => {
                prop_assert!(said.iter().any(|said| said.severity == Severity::Mistake));
                said
            }
            Err(error) => panic!("{error}"),
        };
        let lines = damaged.lines().count();
        prop_assert!(said.iter().all(|said| (1..=lines + 1).contains(&said.line) && said.column > 0));
    }
}

#[test]
fn files_of_nvmetcli_survive_both_formats() {
    for name in ["tcp.json", "rdma.json", "kernel.json", "secure.json", "sloppy.json", "loop.json"] {
        let config = read_back(&nvmetcli::data(name)).config;
        assert_eq!(read_back(&config.to_toml()).config, config, "{name}");
        let (text, lost) = config.to_json();
        assert_eq!(lost, [""; 0], "{name}");
        assert_eq!(read_back(&text).config, config, "{name}");
    }
}

#[test]
fn toml_is_written_for_people() {
    let config = Config::parse(EVERY_KEY, "weft.toml").unwrap().config;
    let text = config.to_toml();
    assert_eq!(read_back(&text).config, config);
    for line in [
        "address = \"[::1]:9000\"",
        "buffers = \"128 MiB\"",
        "[[port.ana_group]]",
        "size = \"1 TiB\"",
        "nguid = \"none\"",
        "ports = [8]",
        "[[referral]]",
        "discovery = true",
        "state_dir = \"state\"",
        "nqn = \"nqn.2026-12.io.weft:discovery\"",
        "enabled = false",
    ] {
        assert!(text.lines().any(|written| written == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("strict_names") && !text.contains("handshake_timeout_ms = 5000"), "{text}");
}

#[test]
fn what_json_loses_is_named() {
    let text = whole("log = \"warn\"\n[limits]\nconnections = 7").replace("size = \"1 MiB\"", "size = 4096");
    let file = "[[subsystem.namespace]]\nnsid = 2\nbackend = \"file\"\npath = \"/a\"\nread_only = true\nlba_size = 512\n";
    let config = Config::parse(&format!("{text}{file}size = 512"), "weft.toml").unwrap().config;
    let (text, lost) = config.to_json();
    let one = "nqn.2026-12.io.weft:one namespace";
    assert_eq!(
        lost,
        [
            "log: nvmetcli has no such thing".to_owned(),
            "limits.connections: nvmetcli has no such thing".to_owned(),
            format!("{one} 1: backend \"memory\": the kernel has none, so it is left out"),
            format!("{one} 2: size: the kernel takes the file as it is, and it must exist"),
            format!("{one} 2: lba_size: the kernel takes the block size of the file"),
            format!("{one} 2: read_only: the kernel would let hosts write, so it is written as not enabled"),
        ]
    );
    assert!(text.contains("\"enable\": 0"), "{text}");
}
