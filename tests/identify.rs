//! Identify and features: what a Linux host needs, and that every value is true.

use crate::host::target::{ONE_NQN, one_memory};
use crate::host::*;

/// The text of a space-padded field; panics on anything but printable ASCII.
fn padded(bytes: &[u8]) -> String {
    assert!(bytes.iter().all(|byte| (0x20..0x7f).contains(byte)), "not printable: {bytes:02x?}");
    String::from_utf8_lossy(bytes).trim_end().to_owned()
}

#[test]
fn identify_controller_has_what_a_linux_host_needs() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let controller = host.identify(0x01, 0).await?;
        let mqes = host.property(property::CAP).await? as u16;
        assert_eq!(padded(&controller[4..24]), "WEFT0001", "SN");
        assert!(!padded(&controller[24..64]).is_empty(), "MN");
        assert!(!padded(&controller[64..72]).is_empty(), "FR");
        assert_eq!(controller[76] & 2, 2, "CMIC: several controllers");
        assert_eq!(controller[76] & 4, 0, "CMIC: no SR-IOV");
        assert_eq!(u16_at(&controller, 78), host.cntlid, "CNTLID");
        assert_eq!(u32_at(&controller, 80), host.property(property::VS).await? as u32, "VER");
        assert_eq!(u32_at(&controller, 96) & 1, 1, "CTRATT: 128-bit host identifiers");
        assert_eq!(controller[111], 1, "CNTRLTYPE: I/O controller");
        assert_eq!([128, 130, 132].map(|at| u16_at(&controller, at)), [1, 10, 0], "CRDT1 to CRDT3");
        assert!(controller[260] >> 1 & 7 >= 1, "FRMW: at least one slot");
        assert_eq!(controller[261] & 6, 6, "LPA: effects log, extended data");
        assert!(u16_at(&controller, 320) >= 1, "KAS");
        assert_eq!(controller[512], 0x66, "SQES");
        assert_eq!(controller[513], 0x44, "CQES");
        assert!(u16_at(&controller, 514) > mqes, "MAXCMD");
        assert!(u32_at(&controller, 516) >= 1, "NN");
        assert_eq!(u32_at(&controller, 536) & 3, 1, "SGLS: byte aligned");
        assert_eq!(u32_at(&controller, 536) >> 20 & 1, 1, "SGLS: offsets into the capsule");
        assert_eq!(u32_at(&controller, 536) & 4, 0, "SGLS: no keyed descriptors on TCP");
        let (mnan, nn) = (u32_at(&controller, 540), u32_at(&controller, 516));
        assert!(mnan <= nn, "MNAN {mnan}, NN {nn}");
        assert!(controller[768..].starts_with(ONE_NQN.as_bytes()), "SUBNQN");
        assert!(controller[768 + ONE_NQN.len()..1024].iter().all(|byte| *byte == 0), "SUBNQN is terminated");
        assert!(u32_at(&controller, 1792) >= 4, "IOCCSZ");
        assert_eq!(u32_at(&controller, 1796), 1, "IORCSZ");
        assert_eq!(u16_at(&controller, 1800), 0, "ICDOFF");
        assert_eq!(controller[1802] & 1, 0, "FCATT: dynamic controllers");
        assert_eq!(controller[1803], 1, "MSDBD");
        assert_eq!(u16_at(&controller, 1804) & 1, 0, "OFCS: no Disconnect");
        Ok(())
    });
    target.stop();
}

/// MDTS and IOCCSZ are not only numbers: transfers up to them work, and the next larger one is refused.
#[test]
fn transfer_limits_are_true() {
    let target = Target::with_three_backends();
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let controller = host.identify(0x01, 0).await?;
        let io = host.io_queue(1, 16).await?;
        let capacity = io.queue.capsule_capacity.get();
        assert!(capacity >= 8192, "IOCCSZ leaves {capacity} bytes");
        assert_ne!(controller[77], 0, "MDTS is stated");
        let limit = 4096_usize << controller[77];
        for nsid in [1, 2] {
            let data = pattern(u64::from(nsid), limit);
            io.write(nsid, 0, &data).await?;
            assert!(io.read(nsid, 0, limit).await? == data);
            let full = pattern(9, capacity);
            io.queue.execute(&io.writing(nsid, 64, &full).in_capsule()).await?;
            assert!(io.read(nsid, 64, capacity).await? == full);
            let more = limit + io.lba_size(nsid);
            let read = io.queue.execute(&io.reading(nsid, 0, more)).await;
            read.fails_with(INVALID_FIELD, true);
        }
        let more = io.writing(1, 0, &pattern(4, limit + 512));
        io.queue.execute(&more).await.fails_with(INVALID_FIELD, true);
        assert!(io.read(1, 128, 512).await?.len() == 512, "the queue pair lives");
        Ok(())
    });
    target.stop();
}

#[test]
fn namespaces_are_described_alike_everywhere() {
    let target = Target::with_three_backends();
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let second = Host::connect(&target, ONE_NQN, Options::default()).await?;
        assert_eq!(host.namespaces().await?, [1, 2, 3]);
        let with_sets = host.property(property::CAP).await? >> 43 & 1 == 1;
        let mut identities = Vec::new();
        for (nsid, lba_size) in [(1, 512), (2, 4096), (3, 512)] {
            let namespace = host.identify(0x00, nsid).await?;
            let blocks = (64 << 20) / lba_size;
            assert_eq!(u64_at(&namespace, 0), blocks, "NSZE");
            assert_eq!(u64_at(&namespace, 8), blocks, "NCAP");
            assert!(u64_at(&namespace, 16) <= blocks, "NUSE");
            let format = usize::from(namespace[26] & 0xf);
            assert!(format <= usize::from(namespace[25]), "FLBAS names one of NLBAF + 1 formats");
            assert_eq!(u16_at(&namespace, 128 + 4 * format), 0, "no metadata");
            assert_eq!(1 << namespace[128 + 4 * format + 2], lba_size, "LBADS");
            assert_eq!(namespace[30] & 1, 1, "NMIC: several controllers share it");
            assert_eq!(namespace[99] & 1, 0, "NSATTR: writable");
            let descriptors = host.identify(0x03, nsid).await?;
            assert!(
                descriptors == second.identify(0x03, nsid).await?,
                "identities are the same on every path"
            );
            let found = identifiers(&descriptors);
            assert!(found.iter().any(|(kind, _)| (1..=3).contains(kind)), "a unique identifier");
            if with_sets {
                assert!(found.contains(&(4, vec![0])), "the command set is named");
            }
            for (kind, value) in &found {
                let same = match kind {
                    1 => &namespace[120..128],
                    2 => &namespace[104..120],
                    _ => &value[..],
                };
                assert_eq!(same, value, "EUI64 and NGUID agree with Identify Namespace");
            }
            identities.extend(found.into_iter().filter(|(kind, _)| *kind != 4));
            let independent = host.identify(0x08, nsid).await?;
            assert_eq!(
                (independent[1] & 1, independent[8] & 1, independent[14] & 1),
                (1, 0, 1),
                "NMIC, NSATTR, NSTAT"
            );
        }
        let count = identities.len();
        identities.sort();
        identities.dedup();
        assert_eq!(identities.len(), count, "no identifier appears twice");
        Ok(())
    });
    target.stop();
}

/// The descriptors of CNS 03: type and value.
fn identifiers(page: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut found = Vec::new();
    let mut at = 0;
    while page[at] != 0 {
        let (kind, length) = (page[at], usize::from(page[at + 1]));
        let expected = match kind {
            1 => 8,
            2 | 3 => 16,
            4 => 1,
            other => panic!("identifier type {other}"),
        };
        assert_eq!(length, expected, "NIDL of type {kind}");
        let value = page[at + 4..at + 4 + length].to_vec();
        assert!(kind == 4 || value.iter().any(|byte| *byte != 0), "identifier type {kind} is zero");
        found.push((kind, value));
        at += 4 + length;
    }
    assert!(page[at..].iter().all(|byte| *byte == 0), "zero behind the last descriptor");
    found
}

#[test]
fn identify_refuses_what_does_not_exist() {
    let target = Target::with_three_backends();
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        assert!(
            host.identify(0x00, 77).await?.iter().all(|byte| *byte == 0),
            "an inactive namespace is all zeroes"
        );
        for (cns, nsid, code) in [
            (0x00, 0xffff_ffff, INVALID_NAMESPACE),
            (0x02, 0xffff_fffe, INVALID_NAMESPACE),
            (0x02, 0xffff_ffff, INVALID_NAMESPACE),
            (0x03, 77, INVALID_NAMESPACE),
            (0x03, 0, INVALID_NAMESPACE),
            (0x08, 77, INVALID_NAMESPACE),
            (0x04, 0, INVALID_FIELD),
            (0x7f, 0, INVALID_FIELD),
            (0xff, 1, INVALID_FIELD),
        ] {
            host.admin.execute(&Command::identify(cns, nsid)).await.fails_with(code, true);
        }
        let list = host.identify(0x02, 1).await?;
        assert_eq!((u32_at(&list, 0), u32_at(&list, 4), u32_at(&list, 8)), (2, 3, 0), "NSIDs above 1");
        let short = Command::identify(0x01, 0).reading(2048);
        host.admin.execute(&short).await.fails_finally(&[SGL_LENGTH, INVALID_FIELD]);
        // Linux asks for this one and goes on whatever comes.
        match host.admin.execute(&Command::identify(0x06, 0)).await {
            Ok(_) => {}
            other => drop(other.fails_with(INVALID_FIELD, true)),
        }
        // An unknown I/O command set: CSI 7.
        let unknown_set = Command::identify(0x05, 1).dword(44, 7 << 24);
        host.admin.execute(&unknown_set).await.fails_with(INVALID_FIELD, true);
        Ok(())
    });
    target.stop();
}

#[test]
fn features_are_set_and_read_back() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options { kato_ms: 60_000, ..Options::default() }).await?;
        let queues = host.admin.execute(&Command::set_features(0x07, 0x0003_0003)).await?.dw0;
        assert_eq!(queues & 0xffff, queues >> 16, "as many submission as completion queues");
        let read = host.admin.execute(&Command::get_features(0x07)).await?.dw0;
        assert_eq!(read, queues, "Get Features 07h repeats what Set answered");
        host.admin.execute(&Command::set_features(0x07, 0xffff_ffff)).await.fails_with(INVALID_FIELD, true);

        let oaes = u32_at(&host.identify(0x01, 0).await?, 92);
        let wanted = oaes & 0x8000_0b00 | 0x1f;
        host.admin.execute(&Command::set_features(0x0b, wanted)).await?;
        assert_eq!(host.admin.execute(&Command::get_features(0x0b)).await?.dw0, wanted);

        assert_eq!(host.admin.execute(&Command::get_features(0x0f)).await?.dw0, 60_000);
        host.admin.execute(&Command::set_features(0x0f, 90_000)).await?;
        assert_eq!(host.admin.execute(&Command::get_features(0x0f)).await?.dw0, 90_000);
        host.admin.execute(&Command::set_features(0x0f, 0)).await.fails_with(0x01a, true);

        let identifier = Command::get_features(0x81).dword(44, 1).reading(16);
        assert_eq!(host.admin.execute(&identifier).await?.data, host.options.hostid);
        let short = Command::get_features(0x81).reading(8);
        host.admin.execute(&short).await.fails_with(INVALID_FIELD, true);
        for fid in [0x00, 0x0d, 0x7f, 0xc0, 0xff] {
            host.admin.execute(&Command::get_features(fid)).await.fails_with(INVALID_FIELD, true);
            host.admin.execute(&Command::set_features(fid, 0)).await.fails_with(INVALID_FIELD, true);
        }
        Ok(())
    });
    target.stop();
}

/// Feature 07h says how many I/O queues there may be; exactly that many connect.
#[test]
fn the_number_of_queues_is_true() {
    let limit = "[limits]\nio_queues = 4\n";
    let target = Target::configured(&format!("{limit}{}", one_memory()));
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let answer = host.admin.execute(&Command::set_features(0x07, 0x003f_003f)).await?.dw0;
        assert_eq!(answer, 0x0003_0003);
        let mut queues = Vec::new();
        for qid in 1..=4 {
            queues.push(host.io_queue(qid, 16).await?);
        }
        let queue = QueuePair::open(target.address, &host.options, 5).await?;
        let refused = queue.connect(&host.io_connect(5, 16)).await.fails_with(CONNECT_INVALID, true);
        assert_eq!(refused.dw0, 0x2a);
        for io in &queues {
            io.write(1, 0, &pattern(5, 512)).await?;
        }
        Ok(())
    });
    target.stop();
}

/// CNS 12h and 13h: who else is there, from an identifier on.
#[test]
fn live_controllers_are_listed() {
    let target = Target::with_three_backends();
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let second = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let (one, two) = (host.cntlid, second.cntlid);
        let list = |cns, nsid, first: u16| {
            Command::identify(cns, nsid).dword(40, u32::from(first) << 16 | cns as u32)
        };
        for (cns, nsid) in [(0x12, 1), (0x12, 3), (0x13, 0)] {
            for (first, expected) in
                [(0, vec![one, two]), (one, vec![one, two]), (two, vec![two]), (two + 1, vec![])]
            {
                let page = host.admin.execute(&list(cns, nsid, first)).await?.data;
                let count = usize::from(u16_at(&page, 0));
                let found: Vec<_> = (1..=count).map(|index| u16_at(&page, index * 2)).collect();
                assert_eq!(found, expected, "CNS {cns:02x}h from {first}");
                assert!(page[2 + 2 * count..].iter().all(|byte| *byte == 0));
            }
        }
        for nsid in [0, 77, 0xffff_ffff] {
            host.admin.execute(&list(0x12, nsid, 0)).await.fails_with(INVALID_NAMESPACE, true);
        }
        Ok(())
    });
    target.stop();
}

/// There is one I/O command set; all 256 structures are answered or refused in full.
#[test]
fn every_structure_is_there_or_refused() {
    let target = Target::with_three_backends();
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        for own in [0xffff, host.cntlid] {
            let asked = Command::identify(0x1c, 0).dword(40, u32::from(own) << 16 | 0x1c);
            let sets = host.admin.execute(&asked).await?.data;
            assert_eq!(u64_at(&sets, 0), 1, "NVM alone");
            assert!(sets[8..].iter().all(|byte| *byte == 0), "one combination");
        }
        let other = Command::identify(0x1c, 0).dword(40, u32::from(host.cntlid + 1) << 16 | 0x1c);
        host.admin.execute(&other).await.fails_with(INVALID_FIELD, true);
        let served = [0x00, 0x01, 0x02, 0x03, 0x05, 0x06, 0x07, 0x08, 0x12, 0x13];
        for cns in 0..=255_u8 {
            let answer = host.admin.execute(&Command::identify(cns, 1)).await;
            if served.contains(&cns) {
                assert_eq!(answer?.data.len(), 4096, "CNS {cns:02x}h");
            } else {
                answer.fails_with(INVALID_FIELD, true);
            }
            if matches!(cns, 0x05..=0x07) {
                for csi in [1, 2, 3, 0x3f, 0xff] {
                    let asked = Command::identify(cns, 1).byte(47, csi);
                    host.admin.execute(&asked).await.fails_with(INVALID_FIELD, true);
                }
            }
        }
        let (all, nvm) = (host.identify(0x02, 1).await?, host.identify(0x07, 1).await?);
        assert!(all == nvm, "every namespace belongs to the NVM command set");
        let discovery = Host::connect(&target, DISCOVERY_NQN, Options::default()).await?;
        for cns in 0..=255_u8 {
            let answer = discovery.admin.execute(&Command::identify(cns, 0)).await;
            if cns == 1 {
                assert_eq!(answer?.data[111], 2, "CNTRLTYPE");
            } else {
                answer.fails_with(INVALID_FIELD, true);
            }
        }
        Ok(())
    });
    target.stop();
}
