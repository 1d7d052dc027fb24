//! Features: each that the features log names works as it says, every other one is refused, for both kinds of controllers.

use crate::host::target::{ONE_NQN, TempDir, namespace, one_memory, one_subsystem};
use crate::host::*;
use crate::resize::set_size;

const NOT_SAVEABLE: u16 = 0x10d;
const NOT_CHANGEABLE: u16 = 0x10e;
const NOT_NAMESPACE_SPECIFIC: u16 = 0x10f;

/// Get Features with a value for SEL, as every feature wants to be asked: with EXHID, and for its data if it has some.
fn get(fid: u8, select: u32) -> Command {
    let command = Command::get_features(fid).dword(40, u32::from(fid) | select << 8);
    let bytes = match fid {
        _ if select == 3 => 0,
        0x0e => 8,
        0x16 => 512,
        0x81 => 16,
        _ => 0,
    };
    command.dword(44, u32::from(fid == 0x81)).reading(bytes)
}

/// Set Features to be saved.
fn save(fid: u8) -> Command {
    Command::set_features(fid, 0).dword(40, u32::from(fid) | 1 << 31)
}

/// Holds all 256 identifiers against the features log; returns those that are supported.
async fn walk(host: &Host) -> Result<Vec<u8>, Failure> {
    let log = host.log(0x12, 1024, 0).await?;
    let mut supported = Vec::new();
    for fid in 0..=255_u8 {
        let entry = u32_at(&log, usize::from(fid) * 4);
        if entry & 1 == 0 {
            assert_eq!(entry, 0, "feature {fid:02x}h");
            for select in 0..8 {
                let asked = get(fid, select);
                host.admin.execute(&asked).await.fails_with(INVALID_FIELD, true);
            }
            host.admin.execute(&Command::set_features(fid, 0)).await.fails_with(INVALID_FIELD, true);
            host.admin.execute(&save(fid)).await.fails_with(INVALID_FIELD, true);
            continue;
        }
        supported.push(fid);
        let can = host.admin.execute(&get(fid, 3)).await?.dw0;
        let of_namespace = can & 2 != 0;
        assert_eq!(can & !6, 0, "feature {fid:02x}h cannot be saved");
        assert_eq!(entry >> 20, if of_namespace { 1 } else { 2 }, "scope of feature {fid:02x}h");
        host.admin.execute(&save(fid)).await.fails_with(NOT_SAVEABLE, true);
        let default = host.admin.execute(&get(fid, 1)).await?;
        let saved = host.admin.execute(&get(fid, 2)).await?;
        assert_eq!((default.dw0, default.data), (saved.dw0, saved.data), "nothing is saved");
        host.admin.execute(&get(fid, 0)).await?;
        for reserved in 4..8 {
            host.admin.execute(&get(fid, reserved)).await.fails_with(INVALID_FIELD, true);
        }
        for all in [0, 0xffff_ffff] {
            host.admin.execute(&get(fid, 0).nsid(all)).await?;
        }
        if of_namespace {
            host.admin.execute(&get(fid, 0).nsid(1)).await?;
            host.admin.execute(&get(fid, 0).nsid(77)).await.fails_with(INVALID_NAMESPACE, true);
        } else {
            // Who asks by way of a namespace's device names that.
            let plain = host.admin.execute(&get(fid, 1)).await?;
            for named in [1, 77] {
                host.admin.execute(&get(fid, 0).nsid(named)).await?;
                let default = host.admin.execute(&get(fid, 1).nsid(named)).await?;
                assert_eq!(
                    (default.dw0, default.data),
                    (plain.dw0, plain.data.clone()),
                    "feature {fid:02x}h"
                );
                assert_eq!(host.admin.execute(&get(fid, 3).nsid(named)).await?.dw0, can);
                let set = Command::set_features(fid, 0).nsid(named);
                host.admin.execute(&set).await.fails_with(NOT_NAMESPACE_SPECIFIC, true);
            }
        }
    }
    Ok(supported)
}

#[test]
fn every_feature_is_there_or_refused() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let oncs = u16_at(&host.identify(0x01, 0).await?, 520);
        assert_eq!(oncs >> 4 & 1, 1, "ONCS: save and select");
        let supported = walk(&host).await?;
        assert_eq!(supported.contains(&0x0e), oncs >> 6 & 1 == 1, "ONCS: timestamp");
        assert_eq!(supported.contains(&0x82), oncs >> 5 & 1 == 1, "ONCS: reservations");
        for mandatory in [0x01, 0x02, 0x04, 0x05, 0x07, 0x0a, 0x0b, 0x0f, 0x81] {
            assert!(supported.contains(&mandatory), "feature {mandatory:02x}h");
        }
        assert!(!supported.contains(&0x06), "memory has no volatile write cache");
        Ok(())
    });
    target.stop();
}

#[test]
fn a_discovery_controller_has_two_features() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, DISCOVERY_NQN, Options::default()).await?;
        assert_eq!(walk(&host).await?, [0x0b, 0x0f]);
        host.admin.execute(&Command::set_features(0x0f, 0)).await?;
        host.admin.execute(&Command::set_features(0x0f, 30_000)).await?;
        assert_eq!(host.admin.execute(&get(0x0f, 0)).await?.dw0, 30_000);
        Ok(())
    });
    target.stop();
}

/// Where there is a volatile write cache, it is on and stays on.
#[test]
fn a_write_cache_cannot_be_turned_off() {
    let target = Target::with_three_backends();
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        assert!(walk(&host).await?.contains(&0x06));
        assert_eq!(host.admin.execute(&get(0x06, 0)).await?.dw0, 1);
        host.admin.execute(&Command::set_features(0x06, 1)).await?;
        host.admin.execute(&Command::set_features(0x06, 0)).await.fails_with(NOT_CHANGEABLE, true);
        assert_eq!(host.admin.execute(&get(0x06, 0)).await?.dw0, 1);
        Ok(())
    });
    target.stop();
}

/// Over and under, for the composite temperature; there are no sensors.
#[test]
fn temperature_thresholds_are_kept() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let asked = |select: u32, which: u32| get(0x04, select).dword(44, which);
        let (over, under, sensor_1, all) = (0, 1 << 20, 1 << 16, 0xf << 16);
        assert_eq!(host.admin.execute(&asked(0, over)).await?.dw0, 0xffff, "never too warm by default");
        assert_eq!(host.admin.execute(&asked(0, under)).await?.dw0, 0, "never too cold by default");
        host.admin.execute(&Command::set_features(0x04, over | 350)).await?;
        host.admin.execute(&Command::set_features(0x04, under | all | 270)).await?;
        assert_eq!(host.admin.execute(&asked(0, over)).await?.dw0, 350);
        assert_eq!(host.admin.execute(&asked(0, under)).await?.dw0, 270);
        assert_eq!(host.admin.execute(&asked(1, over)).await?.dw0, 0xffff, "the default stays");
        for wrong in [sensor_1, 8 << 16, 9 << 16, 2 << 20, 3 << 20] {
            host.admin.execute(&asked(0, wrong)).await.fails_with(INVALID_FIELD, true);
            host.admin.execute(&Command::set_features(0x04, wrong)).await.fails_with(INVALID_FIELD, true);
        }
        host.admin.execute(&asked(0, all)).await.fails_with(INVALID_FIELD, true);
        Ok(())
    });
    target.stop();
}

/// A timestamp counts from zero until a host sets it, and on from there; whichever way its bytes travel.
#[test]
fn timestamps_count_on() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let first = host.admin.execute(&get(0x0e, 0)).await?.data;
        assert_eq!(first[6..], [0, 0], "from a reset");
        assert!(u64_at(&first, 0) < 1 << 32, "counted from zero");
        let set = Command::set_features(0x0e, 0);
        for (milliseconds, by_r2t) in [(1_700_000_000_000_u64, false), (1_800_000_000_000, true)] {
            let data = set.clone().writing(&milliseconds.to_le_bytes());
            host.admin.execute(&if by_r2t { data.by_r2t() } else { data }).await?;
            let mut last = milliseconds;
            for _ in 0..3 {
                let stamp = host.admin.execute(&get(0x0e, 0)).await?.data;
                assert_eq!(stamp[6..], [2, 0], "from the host");
                let now = u64_at(&[&stamp[..6], &[0, 0]].concat(), 0);
                assert!((last..milliseconds + 1_000_000).contains(&now), "{now} after {last}");
                last = now;
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
            assert!(last > milliseconds, "it counts");
        }
        assert_eq!(host.admin.execute(&get(0x0e, 1)).await?.data, [0; 8], "the default");
        host.admin.execute(&set.clone().writing(&[0; 4])).await.fails_with(SGL_LENGTH, true);
        host.admin.execute(&set).await.fails_with(SGL_LENGTH, true);
        Ok(())
    });
    target.stop();
}

#[test]
fn host_behavior_is_kept() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        assert_eq!(host.admin.execute(&get(0x16, 0)).await?.data, [0; 512]);
        let mut behavior = [0; 512];
        behavior[0] = 1;
        behavior[4] = 0x0c;
        host.admin.execute(&Command::set_features(0x16, 0).writing(&behavior)).await?;
        assert_eq!(host.admin.execute(&get(0x16, 0)).await?.data, behavior);
        for flag in 0..4 {
            let mut wrong = behavior;
            wrong[flag] = 2;
            let set = Command::set_features(0x16, 0).writing(&wrong).by_r2t();
            host.admin.execute(&set).await.fails_with(INVALID_FIELD, true);
        }
        assert_eq!(
            host.admin.execute(&get(0x16, 0)).await?.data,
            behavior,
            "a refused value changes nothing"
        );
        Ok(())
    });
    target.stop();
}

/// A command that fails because its medium is away has a delay for the next try (CRD 2: CRDT2), one that fails for want of
/// something a shorter one (CRD 1), for hosts that heed it.
#[test]
fn retry_delays_are_for_hosts_that_asked() {
    let directory = TempDir::new();
    let path = directory.file("away.img", &"x".repeat(1 << 20));
    let file = namespace(1, "file", 512, "1 MiB", &format!("path = \"{}\"", path.display()));
    let short = namespace(2, "memory", 512, "1 MiB", "");
    let faults = "[subsystem.namespace.faults]\nerror_one_in = 1\nerrors = [0x021]\n";
    let target = Target::configured(&one_subsystem(&[file, short, faults.to_owned()].concat()));
    run(async {
        let hosts = [
            Host::connect(&target, ONE_NQN, Options::default()).await?,
            Host::connect(&target, ONE_NQN, Options::default()).await?,
        ];
        let queues = [hosts[0].io_queue(1, 16).await?, hosts[1].io_queue(1, 16).await?];
        set_size(&path, 0);
        until("the log says that it is gone", || target.log().contains("is empty or gone")).await?;
        let mut behavior = [0; 512];
        for (acre, [long, short]) in [(0, [0, 0]), (1, [2, 1]), (0, [0, 0])] {
            behavior[0] = acre;
            hosts[0].admin.execute(&Command::set_features(0x16, 0).writing(&behavior)).await?;
            for (io, [expected, shorter]) in [(&queues[0], [long, short]), (&queues[1], [0, 0])] {
                let interrupted = io.queue.execute(&io.reading(2, 0, 512)).await.fails_with(0x021, false);
                assert_eq!(interrupted.status >> 12 & 3, shorter, "CRD with ACRE {acre}");
                let away = io.queue.execute(&io.reading(1, 0, 512)).await.fails_with(0x300, false);
                assert_eq!(away.status >> 12 & 3, expected, "CRD with ACRE {acre}");
                let beyond = io.queue.execute(&io.reading(1, 1 << 20, 512)).await;
                let beyond = beyond.fails_with(LBA_OUT_OF_RANGE, true);
                assert_eq!(beyond.status >> 12 & 3, 0, "there is nothing to wait for");
            }
        }
        Ok(())
    });
    target.stop();
}

/// CC.EN 1 to 0 forgets what was set.
#[test]
fn a_reset_takes_features_back() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let queues = host.admin.execute(&get(0x07, 0)).await?.dw0;
        let mut behavior = [0; 512];
        behavior[0] = 1;
        host.admin.execute(&Command::set_features(0x04, 300)).await?;
        host.admin.execute(&Command::set_features(0x07, 0)).await?;
        host.admin.execute(&Command::set_features(0x0b, 0x1f)).await?;
        host.admin.execute(&Command::set_features(0x0e, 0).writing(&(1_u64 << 40).to_le_bytes())).await?;
        host.admin.execute(&Command::set_features(0x16, 0).writing(&behavior)).await?;
        host.set_property(property::CC, CC_CONFIGURED).await?;
        host.enable().await?;
        assert_eq!(host.admin.execute(&get(0x04, 0)).await?.dw0, 0xffff);
        assert_eq!(host.admin.execute(&get(0x07, 0)).await?.dw0, queues);
        assert_eq!(host.admin.execute(&get(0x0b, 0)).await?.dw0, 0);
        assert_eq!(host.admin.execute(&get(0x16, 0)).await?.data, [0; 512]);
        let stamp = host.admin.execute(&get(0x0e, 0)).await?.data;
        assert!(u64_at(&stamp, 0) < 1 << 32, "counts from zero again, and says so");
        Ok(())
    });
    target.stop();
}
