//! Log pages: all 256 held against the one that lists them, offsets and lengths, health of one namespace, and the persistent
//! event log.

use crate::host::target::{ONE_NQN, namespace, one_memory, one_subsystem};
use crate::host::*;

const INVALID_LOG_PAGE: u16 = 0x109;

/// Get Log Page with a log specific parameter.
fn with_specific(lid: u8, bytes: usize, offset: u64, specific: u8) -> Command {
    let mut command = Command::get_log(lid, bytes, offset);
    command.sqe[41] |= specific;
    command
}

/// Reads every log page there may be; returns those that are supported.
async fn walk(host: &Host) -> Result<Vec<u8>, Failure> {
    let list = host.log(0x00, 1024, 0).await?;
    let mut supported = Vec::new();
    for lid in 0..=255_u8 {
        let entry = u32_at(&list, usize::from(lid) * 4);
        // The persistent event log wants a context; without one it is read too early.
        let answer = host.admin.execute(&Command::get_log(lid, 64, 0)).await;
        match entry {
            0 => drop(answer.fails_with(INVALID_LOG_PAGE, true)),
            1 if lid == 0x0d => drop(answer.fails_with(SEQUENCE_ERROR, true)),
            1 => assert_eq!(answer?.data.len(), 64),
            other => panic!("log page {lid:02x}h: {other:08x}h: no page takes an index"),
        }
        if entry == 1 {
            supported.push(lid);
            let index = Command::get_log(lid, 64, 0).dword(56, 1 << 23);
            host.admin.execute(&index).await.fails_with(INVALID_FIELD, true);
            for misaligned in 1..4 {
                let command = Command::get_log(lid, 64, misaligned);
                host.admin.execute(&command).await.fails_with(INVALID_FIELD, true);
            }
        }
    }
    Ok(supported)
}

#[test]
fn every_log_page_is_there_or_refused() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let supported = walk(&host).await?;
        let lpa = host.identify(0x01, 0).await?[261];
        for (bit, pages) in
            [(1, &[0x05][..]), (3, &[0x07, 0x08]), (4, &[0x0d]), (5, &[0x00, 0x05, 0x12, 0x13])]
        {
            for page in pages {
                assert_eq!(
                    supported.contains(page),
                    lpa >> bit & 1 == 1 || *page == 0x05,
                    "LPA, {page:02x}h"
                );
            }
        }
        for mandatory in [0x01, 0x02, 0x03] {
            assert!(supported.contains(&mandatory), "log page {mandatory:02x}h");
        }
        assert!(host.log(0x13, 1024, 0).await?.iter().all(|byte| *byte == 0), "no management interface");
        // The effects of another command set.
        let zoned = Command::get_log(0x05, 4096, 0).dword(56, 2 << 24);
        host.admin.execute(&zoned).await.fails_with(INVALID_LOG_PAGE, true);

        let discovery = Host::connect(&target, DISCOVERY_NQN, Options::default()).await?;
        assert_eq!(walk(&discovery).await?, [0x00, 0x12, 0x70]);
        Ok(())
    });
    target.stop();
}

/// What lies behind the end of a page is zero, however far; what is more than MDTS is refused.
#[test]
fn the_end_of_a_page_is_no_wall() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let limit = 4096 << host.identify(0x01, 0).await?[77];
        let (page, more) = (host.log(0x05, 4096, 0).await?, host.log(0x05, 8192, 0).await?);
        assert!(page == more[..4096] && more[4096..].iter().all(|byte| *byte == 0));
        for far in [4096, 1 << 20, u64::MAX - 3] {
            assert_eq!(host.log(0x05, 64, far).await?, [0; 64]);
        }
        assert_eq!(host.log(0x05, 4, 24).await?, page[24..28]);
        assert_eq!(host.log(0x02, limit, 0).await?.len(), limit);
        for (bytes, claimed) in [(limit + 4, limit + 4), (1 << 34, 4096)] {
            let command = Command::get_log(0x02, 4096, 0);
            let dwords = (bytes as u64 / 4 - 1) as u32;
            let command =
                command.dword(40, 2 | dwords << 16).dword(44, dwords >> 16).claiming(claimed as u32);
            host.admin.execute(&command).await.fails_finally(&[INVALID_FIELD, SGL_LENGTH]);
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn health_is_told_of_all_and_of_one() {
    let both = [namespace(1, "memory", 512, "1 MiB", ""), namespace(4, "null", 512, "1 MiB", "")];
    let target = Target::configured(&one_subsystem(&both.concat()));
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        assert_eq!(host.identify(0x01, 0).await?[261] & 1, 1, "LPA: health of one namespace");
        let io = host.io_queue(1, 16).await?;
        let data = pattern(1, 4096);
        for lba in 0..3 {
            io.write(1, lba * 8, &data).await?;
            io.write(4, lba * 8, &data).await?;
            io.read(4, lba, 512).await?;
        }
        for (nsid, units, reads, writes) in [(0, 1, 3, 6), (0xffff_ffff, 1, 3, 6), (1, 0, 0, 3), (4, 1, 3, 3)]
        {
            let page = host.admin.execute(&Command::get_log(0x02, 512, 0).nsid(nsid)).await?.data;
            let counts = [32, 48, 64, 80].map(|at| u64_at(&page, at));
            assert_eq!(counts, [units, 1, reads, writes], "namespace {nsid:08x}h");
            assert_eq!((u64_at(&page, 112), u64_at(&page, 128), u64_at(&page, 144)), (1, 0, 0));
        }
        for nobody in [2, 77, 0xffff_fffe] {
            let asked = Command::get_log(0x02, 512, 0).nsid(nobody);
            host.admin.execute(&asked).await.fails_with(INVALID_NAMESPACE, true);
        }
        Ok(())
    });
    target.stop();
}

/// The events of a persistent event log: type, controller, port, data.
fn events(log: &[u8]) -> Vec<(u8, u16, u16, Vec<u8>)> {
    assert_eq!((log[0], log[16], u16_at(log, 18)), (0x0d, 3, 492), "LID, revision, header length");
    let mut at = 512;
    let mut found = Vec::new();
    for _ in 0..u32_at(log, 4) {
        let event = &log[at..];
        let (header, data) = (usize::from(event[2]) + 3, usize::from(u16_at(event, 22)));
        assert_eq!(log[480 + usize::from(event[0]) / 8] >> (event[0] % 8) & 1, 1, "a supported event");
        found.push((event[0], u16_at(event, 4), u16_at(event, 14), event[header..header + data].to_vec()));
        at += header + data;
    }
    assert_eq!(at as u64, u64_at(log, 8), "TLL");
    found
}

#[test]
fn persistent_events_are_read_through_a_context() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        assert_eq!(u32_at(&host.identify(0x01, 0).await?, 352), 1, "PELS: 64 KiB");
        let (read, establish, release) = (0, 1, 2);
        let ask = |action, bytes, offset| with_specific(0x0d, bytes, offset, action);
        let second = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let stamp = 1_700_000_000_000_u64.to_le_bytes();
        second.admin.execute(&Command::set_features(0x0e, 0).writing(&stamp)).await?;
        second.set_property(property::CC, CC_CONFIGURED).await?;

        host.admin.execute(&ask(read, 512, 0)).await.fails_with(SEQUENCE_ERROR, true);
        let header = host.admin.execute(&ask(establish, 512, 0)).await?.data;
        host.admin.execute(&ask(establish, 512, 0)).await.fails_with(SEQUENCE_ERROR, true);
        let total = u64_at(&header, 8) as usize;
        let log = host.admin.execute(&ask(read, total, 0)).await?.data;
        assert!(log[..512] == header);
        let controller = host.identify(0x01, 0).await?;
        assert!(
            log[56..116] == controller[4..64] && log[116..372] == controller[768..1024],
            "whose log it is"
        );
        let found = events(&log);
        let seen: Vec<_> =
            found.iter().map(|(kind, cntlid, port, data)| (*kind, *cntlid, *port, data.len())).collect();
        let (one, two) = (host.cntlid, second.cntlid);
        // Newest first: a reset, a clock, two controllers, the start.
        assert_eq!(
            seen,
            [(4, two, 1, 44), (3, two, 1, 16), (4, two, 1, 44), (4, one, 1, 44), (4, 0xffff, 0, 8)]
        );
        assert_eq!(found[4].3, controller[64..72], "FR");
        assert_eq!(u16_at(&found[0].3, 8), two, "which controller was reset");

        // What a context holds does not change; another host has its own.
        let third = Host::connect(&target, ONE_NQN, Options::default()).await?;
        assert!(host.admin.execute(&ask(read, total, 0)).await?.data == log);
        assert!(host.admin.execute(&ask(read, 100, 512)).await?.data == log[512..612]);
        third.admin.execute(&ask(read, 512, 0)).await.fails_with(SEQUENCE_ERROR, true);
        let newer = third.admin.execute(&ask(establish, 512, 0)).await?.data;
        assert_eq!(u32_at(&newer, 4), 6);
        assert_ne!(u16_at(&newer, 372), u16_at(&header, 372), "the generation");

        host.admin.execute(&ask(release, 512, 0)).await?;
        host.admin.execute(&ask(release, 512, 0)).await?;
        host.admin.execute(&ask(read, 512, 0)).await.fails_with(SEQUENCE_ERROR, true);
        host.admin.execute(&ask(3, 512, 0)).await.fails_with(INVALID_FIELD, true);
        // A reset releases it as well.
        third.set_property(property::CC, CC_CONFIGURED).await?;
        third.enable().await?;
        third.admin.execute(&ask(read, 512, 0)).await.fails_with(SEQUENCE_ERROR, true);
        Ok(())
    });
    target.stop();
}

/// The error log names the part of a command that is wrong, where it is known.
#[test]
fn the_error_log_points_at_the_mistake() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 16).await?;
        let bit = |byte: u16, bit: u16| byte | bit << 8;
        let admin = [
            (Command::new(0xc1), bit(0, 0)),
            (Command::identify(0x1a, 0), bit(40, 0)),
            (Command::identify(0x05, 1).byte(47, 2), bit(47, 0)),
            (Command::identify(0x03, 9), bit(4, 0)),
            (Command::get_log(0x99, 64, 0), bit(40, 0)),
            (Command::get_features(0x99), bit(40, 0)),
            (save_arbitration(), bit(43, 7)),
            (Command::identify(0x01, 0).byte(1, 0), bit(1, 6)),
        ];
        let ranges = [
            (Command::read(1, 1 << 40, 1, 512), bit(40, 0), 1 << 40),
            (Command::read(9, 5, 1, 512), bit(4, 0), 5),
            (Command::flush(9).dword(40, 77), bit(4, 0), 0),
        ];
        for (command, location) in admin {
            assert!(host.admin.execute(&command).await.is_err(), "{command:?}");
            let entry = host.log(0x01, 64, 0).await?;
            assert_eq!((u16_at(&entry, 14), entry[29]), (location, 3), "location, TRTYPE of {command:?}");
        }
        for (command, location, lba) in ranges {
            assert!(io.queue.execute(&command).await.is_err(), "{command:?}");
            let entry = host.log(0x01, 64, 0).await?;
            assert_eq!((u16_at(&entry, 14), u64_at(&entry, 16)), (location, lba), "{command:?}");
        }
        Ok(())
    });
    target.stop();
}

fn save_arbitration() -> Command {
    Command::set_features(0x01, 7).dword(40, 1 | 1 << 31)
}
