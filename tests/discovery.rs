//! The discovery service: its controller, log page 70h in the pieces hosts read it in, and who sees what.

use crate::host::target::{ONE_NQN, TempDir, free_port, local, one_memory};
use crate::host::*;

const THREE_SUBSYSTEMS: &str = r#"
[[subsystem]]
nqn = "nqn.2026-12.io.weft:one"
serial = "WEFT0001"
allow_any_host = true
[[subsystem.namespace]]
nsid = 1
backend = "memory"
size = "16 MiB"
[[subsystem]]
nqn = "nqn.2026-12.io.weft:two"
serial = "WEFT0002"
allowed_hosts = ["nqn.2026-12.io.weft:friend"]
[[subsystem.namespace]]
nsid = 1
backend = "memory"
size = "16 MiB"
[[subsystem]]
nqn = "nqn.2026-12.io.weft:three"
serial = "WEFT0003"
allow_any_host = true
[[subsystem.namespace]]
nsid = 1
backend = "memory"
size = "16 MiB"
"#;

/// One record of the discovery log.
struct Entry(Vec<u8>);

impl Entry {
    fn text(&self, at: usize, length: usize) -> String {
        let bytes = &self.0[at..at + length];
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(length);
        assert!(bytes[end..].iter().all(|byte| *byte == 0), "garbage behind the text at {at}");
        String::from_utf8(bytes[..end].to_vec()).expect("text").trim_end().to_owned()
    }

    fn subnqn(&self) -> String {
        self.text(256, 256)
    }
}

/// Reads the log the way libnvme does: 20 bytes of header, then entries in chunks, then the header again.
async fn read_log(host: &Host, chunk: usize) -> Result<Vec<Entry>, Failure> {
    let header = host.log(0x70, 20, 0).await?;
    let (generation, records) = (u64_at(&header, 0), u64_at(&header, 8) as usize);
    assert_eq!(u16_at(&header, 16), 0, "RECFMT");
    let mut bytes = Vec::new();
    while bytes.len() < records * 1024 {
        let length = chunk.min(records * 1024 - bytes.len());
        bytes.extend(host.log(0x70, length, 1024 + bytes.len() as u64).await?);
    }
    assert_eq!(u64_at(&host.log(0x70, 20, 0).await?, 0), generation, "GENCTR is stable");
    Ok(bytes.chunks(1024).map(|record| Entry(record.to_vec())).collect())
}

#[test]
fn the_log_names_the_service_itself_and_what_the_host_may_connect_to() {
    let target = Target::configured(THREE_SUBSYSTEMS);
    run(async {
        let host = Host::connect(&target, DISCOVERY_NQN, Options::default()).await?;
        let entries = read_log(&host, 4096).await?;
        let names: Vec<_> = entries.iter().map(Entry::subnqn).collect();
        assert_eq!(names[0], DISCOVERY_NQN, "the service itself comes first");
        let mut others = names[1..].to_vec();
        others.sort_unstable();
        assert_eq!(others, ["nqn.2026-12.io.weft:one", "nqn.2026-12.io.weft:three"]);
        let port = target.address.port().to_string();
        for (index, entry) in entries.iter().enumerate() {
            assert_eq!(entry.0[0], 3, "TRTYPE TCP");
            assert_eq!(entry.0[1], 1, "ADRFAM IPv4");
            assert_eq!(entry.0[2], if index == 0 { 3 } else { 2 }, "SUBTYPE");
            assert_ne!(entry.0[3] & 3, 1, "TREQ must not demand a secure channel");
            assert_eq!(u16_at(&entry.0, 4), 1, "PORTID");
            assert_eq!(u16_at(&entry.0, 6), 0xffff, "CNTLID: dynamic controllers");
            assert!(u16_at(&entry.0, 8) >= 32, "ASQSZ");
            assert_eq!(entry.text(32, 32), port, "TRSVCID");
            assert_eq!(entry.text(512, 256), "127.0.0.1", "TRADDR");
            assert!(entry.0[768..].iter().all(|byte| *byte == 0), "TSAS: no security");
            assert!(entry.0[12..32].iter().chain(&entry.0[64..256]).all(|byte| *byte == 0), "reserved");
        }
        let friend = Options::host("nqn.2026-12.io.weft:friend");
        let host = Host::connect(&target, DISCOVERY_NQN, friend).await?;
        assert_eq!(read_log(&host, 4096).await?.len(), 4, "the friend also sees the second subsystem");
        Ok(())
    });
    target.stop();
}

#[test]
fn the_log_is_the_same_in_pieces_of_any_size() {
    let target = Target::configured(THREE_SUBSYSTEMS);
    run(async {
        let host = Host::connect(&target, DISCOVERY_NQN, Options::default()).await?;
        let whole = host.log(0x70, 4096, 0).await?;
        assert_eq!(u64_at(&whole, 8), 3, "NUMREC");
        assert!(whole[18..1024].iter().all(|byte| *byte == 0), "the rest of the header");
        for piece in [4, 20, 512, 1024, 2048, 4000] {
            let mut bytes = Vec::new();
            while bytes.len() < 4096 {
                let length = piece.min(4096 - bytes.len());
                bytes.extend(host.log(0x70, length, bytes.len() as u64).await?);
            }
            assert!(bytes == whole, "pieces of {piece} bytes");
        }
        let beyond = host.log(0x70, 2048, 3072).await?;
        assert!(beyond[..1024] == whole[3072..] && beyond[1024..].iter().all(|byte| *byte == 0));
        assert!(host.log(0x70, 1024, 1 << 20).await?.iter().all(|byte| *byte == 0), "far behind the end");
        host.admin.execute(&Command::get_log(0x70, 1024, 2)).await.fails_with(INVALID_FIELD, true);
        let unequal = Command::get_log(0x70, 1024, 0).claiming(512);
        host.admin.execute(&unequal).await.fails_with(SGL_LENGTH, true);
        Ok(())
    });
    target.stop();
}

#[test]
fn a_discovery_controller_identifies_itself() {
    let target = Target::configured(THREE_SUBSYSTEMS);
    run(async {
        let host = Host::connect(&target, DISCOVERY_NQN, Options::default()).await?;
        let controller = host.identify(0x01, 0).await?;
        assert_eq!(u16_at(&controller, 78), host.cntlid, "CNTLID");
        assert_eq!(u32_at(&controller, 80), host.property(property::VS).await? as u32, "VER");
        assert_eq!(controller[111], 2, "CNTRLTYPE: discovery");
        assert_eq!(controller[261] & 4, 4, "LPA: extended data");
        assert!(u16_at(&controller, 514) >= 32, "MAXCMD");
        assert_eq!(u32_at(&controller, 536) & 3, 1, "SGLS");
        let name = DISCOVERY_NQN.as_bytes();
        assert!(controller[768..].starts_with(name) && controller[768 + name.len()] == 0, "SUBNQN");
        host.admin.execute(&Command::identify(0x02, 0)).await.fails_with(INVALID_FIELD, true);
        host.admin.execute(&Command::identify(0x00, 1)).await.fails_with(INVALID_FIELD, true);
        let refused = host.admin.execute(&Command::get_log(0x02, 512, 0)).await;
        refused.fails_finally(&[INVALID_FIELD, 0x109]);
        host.admin.execute(&Command::new(0x80)).await.fails_with(INVALID_OPCODE, true);
        host.admin.execute(&Command::set_features(0x07, 0)).await.fails_with(INVALID_FIELD, true);
        Ok(())
    });
    target.stop();
}

#[test]
fn a_discovery_controller_has_no_io_queues() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, DISCOVERY_NQN, Options::default()).await?;
        let queue = QueuePair::open(target.address, &host.options, 1).await?;
        let refused = queue.connect(&host.io_connect(1, 16)).await.fails_with(CONNECT_INVALID, true);
        assert_eq!(refused.dw0, 0x2a);
        Ok(())
    });
    target.stop();
}

#[test]
fn a_persistent_discovery_controller_keeps_alive_and_holds_an_event_request() {
    let target = Target::configured(&one_memory());
    run(async {
        let options = Options { kato_ms: 30_000, ..Options::default() };
        let host = Host::connect(&target, DISCOVERY_NQN, options).await?;
        let controller = host.identify(0x01, 0).await?;
        assert!(u16_at(&controller, 320) >= 1, "KAS");
        host.admin.execute(&Command::set_features(0x0b, u32_at(&controller, 92))).await?;
        let mut event = host.admin.submit(&Command::async_event_request());
        for _ in 0..20 {
            host.admin.execute(&Command::keep_alive()).await?;
            read_log(&host, 4096).await?;
        }
        assert!(event.poll().is_none(), "nothing happened, so the request is held");
        assert_eq!(host.admin.execute(&Command::get_features(0x0f)).await?.dw0, 30_000);
        Ok(())
    });
    target.stop();
}

/// A discovery host may write CC without entry sizes.
#[test]
fn a_discovery_controller_needs_no_entry_sizes() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::attach(target.address, DISCOVERY_NQN, Options::default()).await?;
        host.set_property(property::CC, 1).await?;
        host.wait_for_status(3, 1).await?;
        assert_eq!(read_log(&host, 1024).await?.len(), 2);
        Ok(())
    });
    target.stop();
}

#[test]
fn a_wildcard_address_is_never_reported() {
    let port = free_port();
    let listen = format!("0.0.0.0:{port}");
    let target = Target::start(&["--listen", &listen]);
    let address = local(port);
    run(async {
        let host = Host::attach(address, DISCOVERY_NQN, Options::default()).await?;
        host.enable().await?;
        let entries = read_log(&host, 4096).await?;
        assert_eq!(entries.len(), 2);
        for entry in entries {
            assert_eq!(
                (entry.text(512, 256), entry.text(32, 32)),
                ("127.0.0.1".to_owned(), port.to_string())
            );
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn what_the_log_says_can_be_connected_to() {
    let target = Target::configured(THREE_SUBSYSTEMS);
    run(async {
        let host = Host::connect(&target, DISCOVERY_NQN, Options::default()).await?;
        for entry in read_log(&host, 4096).await?.iter().skip(1) {
            let address =
                format!("{}:{}", entry.text(512, 256), entry.text(32, 32)).parse().expect("an address");
            let host = Host::attach(address, &entry.subnqn(), Options::default()).await?;
            host.enable().await?;
            assert_eq!(host.namespaces().await?, [1]);
        }
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let refused = host.admin.execute(&Command::get_log(0x70, 1024, 0)).await;
        refused.fails_finally(&[INVALID_FIELD, 0x109]);
        Ok(())
    });
    target.stop();
}

/// NQN, SUBTYPE, PORTID, TRADDR and TRSVCID of every entry.
fn summary(entries: &[Entry]) -> Vec<(String, u8, u16, String, String)> {
    let row = |e: &Entry| (e.subnqn(), e.0[2], u16_at(&e.0, 4), e.text(512, 256), e.text(32, 32));
    entries.iter().map(row).collect()
}

/// EFLAGS of the first entry, the discovery service itself: bit 0 DUPRETINFO, bit 1 EPCSD. No other entry has flags but
/// those of discovery services.
fn own_flags(entries: &[Entry]) -> u16 {
    assert!(entries[1..].iter().all(|entry| u16_at(&entry.0, 10) == 0), "EFLAGS");
    u16_at(&entries[0].0, 10)
}

/// Through a port a host learns of what that port offers, with all its paths; through a port for discovery only, of
/// everything it may use. Nobody connects to anything else there.
#[test]
fn every_port_tells_what_it_offers() {
    let (second, only) = (free_port(), free_port());
    let ports = format!(
        "[[port]]\nid = 2\ntransport = \"tcp\"\naddress = \"127.0.0.1:{second}\"\n[[port]]\nid = 3\ntransport = \
         \"tcp\"\naddress = \"127.0.0.1:{only}\"\ndiscovery = true\n"
    );
    let limited = THREE_SUBSYSTEMS.replace("serial = \"WEFT0003\"", "serial = \"WEFT0003\"\nports = [2]");
    let target = Target::configured(&format!("{ports}{limited}"));
    run(async {
        let (one, three) = ("nqn.2026-12.io.weft:one", "nqn.2026-12.io.weft:three");
        let first = target.address.port();
        let entry = |nqn: &str, kind, id, port: u16| {
            (nqn.to_owned(), kind, id, "127.0.0.1".to_owned(), port.to_string())
        };
        let both = [entry(one, 2, 1, first), entry(one, 2, 2, second)];
        let mut expected = Vec::new();
        for (port, id, sees_three) in [(first, 1, false), (second, 2, true), (only, 3, true)] {
            let host = Host::attach(local(port), DISCOVERY_NQN, Options::default()).await?;
            host.enable().await?;
            let entries = read_log(&host, 4096).await?;
            expected.clear();
            expected.push(entry(DISCOVERY_NQN, 3, id, port));
            expected.extend(both.clone());
            expected.extend(sees_three.then(|| entry(three, 2, 2, second)));
            assert_eq!(summary(&entries), expected, "through port {id}");
            assert_eq!(own_flags(&entries), 2, "EPCSD, and not the same on every port");
        }
        let refused = Host::attach(local(only), one, Options::default()).await;
        refused.map(|_| Completion::default()).fails_with(CONNECT_INVALID, true);
        Ok(())
    });
    target.stop();
}

#[test]
fn ports_that_tell_the_same_say_so() {
    let second = free_port();
    let port = format!("[[port]]\nid = 2\ntransport = \"tcp\"\naddress = \"127.0.0.1:{second}\"\n");
    let target = Target::configured(&format!("{port}{THREE_SUBSYSTEMS}"));
    run(async {
        let one = Host::connect(&target, DISCOVERY_NQN, Options::default()).await?;
        let other = Host::attach(local(second), DISCOVERY_NQN, Options::default()).await?;
        other.enable().await?;
        let (one, other) = (read_log(&one, 4096).await?, read_log(&other, 4096).await?);
        assert_eq!((own_flags(&one), own_flags(&other)), (3, 3), "EPCSD and DUPRETINFO");
        assert_eq!(summary(&one)[1..], summary(&other)[1..]);
        Ok(())
    });
    target.stop();
}

#[test]
fn other_discovery_services_are_referred_to() {
    let referrals = "[[referral]]\ntransport = \"tcp\"\naddress = \"192.0.2.7:8009\"\n\
                     [[referral]]\ntransport = \"rdma\"\naddress = \"[2001:db8::7]:4420\"\nnqn = \
                     \"nqn.2026-12.io.weft:elsewhere\"\nport_id = 9\n";
    let target = Target::configured(&format!("{referrals}{}", one_memory()));
    run(async {
        let host = Host::connect(&target, DISCOVERY_NQN, Options::default()).await?;
        let entries = read_log(&host, 4096).await?;
        let [_, _, tcp, rdma] = entries.as_slice() else { panic!("{} entries", entries.len()) };
        assert_eq!(
            summary(&entries)[2..],
            [
                (DISCOVERY_NQN.to_owned(), 1, 0, "192.0.2.7".to_owned(), "8009".to_owned()),
                (
                    "nqn.2026-12.io.weft:elsewhere".to_owned(),
                    1,
                    9,
                    "2001:db8::7".to_owned(),
                    "4420".to_owned()
                )
            ]
        );
        assert_eq!((tcp.0[0], tcp.0[1], rdma.0[0], rdma.0[1]), (3, 1, 1, 2), "TRTYPE and ADRFAM");
        assert_eq!(own_flags(&entries) & 2, 2, "EPCSD");
        for entry in [tcp, rdma] {
            assert_eq!((u16_at(&entry.0, 6), u16_at(&entry.0, 8)), (0xffff, 32), "CNTLID and ASQSZ");
            assert_eq!(entry.0[3] & 3, 0, "TREQ: not known here");
        }
        assert_eq!(rdma.0[768..771], [1, 1, 1], "TSAS: RC, unspecified provider, RDMA-CM");
        assert!(tcp.0[768..].iter().chain(&rdma.0[771..]).all(|byte| *byte == 0), "the rest of TSAS");
        Ok(())
    });
    target.stop();
}

/// A discovery service with a name of its own answers to both, and calls itself by its own.
#[test]
fn the_discovery_service_has_two_names() {
    const UNIQUE: &str = "nqn.2026-12.io.weft:discovery";
    let target = Target::configured(&format!("[discovery]\nnqn = \"{UNIQUE}\"\n{}", one_memory()));
    run(async {
        for name in [UNIQUE, DISCOVERY_NQN] {
            let host = Host::connect(&target, name, Options::default()).await?;
            let controller = host.identify(0x01, 0).await?;
            assert_eq!(controller[111], 2, "CNTRLTYPE: discovery");
            assert!(controller[768..].starts_with(UNIQUE.as_bytes()) && controller[768 + UNIQUE.len()] == 0);
            let entries = read_log(&host, 4096).await?;
            assert_eq!((entries[0].subnqn().as_str(), entries[0].0[2]), (UNIQUE, 3));
            let queue = QueuePair::open(target.address, &host.options, 1).await?;
            let refused = queue.connect(&host.io_connect(1, 16)).await.fails_with(CONNECT_INVALID, true);
            assert_eq!(refused.dw0, 0x2a, "no I/O queues");
        }
        Ok(())
    });
    target.stop();
}

/// 130 entries in pieces that begin and end anywhere: the same bytes.
#[test]
fn a_long_log_is_the_same_however_it_is_cut() {
    let subsystem =
        |n| format!("[[subsystem]]\nnqn = \"nqn.2026-12.io.weft:{n:03}\"\nallow_any_host = true\n");
    let all: String = (0..130).map(subsystem).collect();
    let target = Target::configured(&all);
    run(async {
        let host = Host::connect(&target, DISCOVERY_NQN, Options::default()).await?;
        let length = (1 + 131) * 1024;
        let whole = host.log(0x70, length, 0).await?;
        assert_eq!(u64_at(&whole, 8), 131, "NUMREC");
        for n in 0..130_usize {
            let name = format!("nqn.2026-12.io.weft:{n:03}");
            let at = (2 + n) * 1024 + 256;
            assert!(whole[at..].starts_with(name.as_bytes()), "entry {n}");
        }
        for seed in 1..=20 {
            let mut bytes = Vec::new();
            let mut cuts = pattern(seed, 4096).into_iter().map(|byte| (1 + usize::from(byte)) * 4 * 20);
            while bytes.len() < length {
                let piece = cuts.next().unwrap_or(4096).min(length - bytes.len());
                bytes.extend(host.log(0x70, piece, bytes.len() as u64).await?);
            }
            assert!(bytes == whole, "cut by {seed}");
        }
        Ok(())
    });
    target.stop();
}

/// The generation counter goes on over restarts: the same while nothing changes, further on when something has, and never a
/// number that was used for something else, whatever became of its file.
#[test]
fn the_generation_counter_outlives_the_target() {
    // Another address would be a change.
    let port = free_port();
    let generation = |_: &Target| {
        let mut counter = 0;
        run(async {
            let host = Host::attach(local(port), DISCOVERY_NQN, Options::default()).await?;
            host.enable().await?;
            counter = u64_at(&host.log(0x70, 20, 0).await?, 0);
            Ok(())
        });
        counter
    };
    let state = TempDir::new();
    let state_dir = format!("state_dir = \"{}\"\n", state.join("state").display());
    let start = |rest: &str| {
        let address = local(port);
        let text = target::configuration(address, local(1), &format!("{state_dir}{rest}"));
        let config = state.file("weft.toml", &text);
        Target::start(&["--config", &config.to_string_lossy(), "--listen", &address.to_string()])
    };
    let target = start(&one_memory());
    let first = generation(&target);
    assert!(!target.log().contains("no state_dir"));
    target.stop();
    let target = start(&one_memory());
    assert_eq!(generation(&target), first, "nothing has changed");
    drop(target.kill());
    let target = start(&format!("{}{ONE_MORE}", one_memory()));
    let second = generation(&target);
    assert_eq!(second, first + 1, "a subsystem more");
    target.stop();
    let file = state.join("state").join("state");
    for damage in [b"garbage".to_vec(), Vec::new(), std::fs::read(&file).expect("the file")[..40].to_vec()] {
        std::fs::write(&file, damage).expect("write");
        let target = start(&one_memory());
        assert!(generation(&target) > second, "a number that was not used before");
        let log = target.log();
        assert!(log.contains("is damaged") && log.contains("state.damaged"), "{log}");
        target.stop();
    }
    std::fs::remove_file(&file).expect("remove");
    let target = start(&one_memory());
    assert!(generation(&target) > second);
    target.stop();
}

const ONE_MORE: &str = "[[subsystem]]\nnqn = \"nqn.2026-12.io.weft:more\"\nallow_any_host = true\n";
