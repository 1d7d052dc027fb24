//! Connect, properties and the controller's state machine.

use crate::host::target::{ONE_NQN, one_memory};
use crate::host::*;

/// Who may connect, as a configuration says it.
const ONE_HOST_ONLY: &str = "[[subsystem]]\nnqn = \"nqn.2026-12.io.weft:one\"\nserial = \"WEFT0001\"\n\
    allowed_hosts = [\"nqn.2026-12.io.weft:friend\"]\n\
    [[subsystem.namespace]]\nnsid = 1\nbackend = \"memory\"\nsize = \"16 MiB\"\n";

/// Tries an admin Connect that `change` made wrong.
async fn connect_with(target: &Target, change: impl FnOnce(&mut Connect)) -> Result<Completion, Failure> {
    let options = Options::default();
    let queue = QueuePair::open(target.address, &options, 0).await?;
    let mut connect = options.connect(ONE_NQN, 0, 31);
    change(&mut connect);
    queue.connect(&connect).await
}

/// Tries an I/O Connect that `change` made wrong.
async fn io_connect_with(
    target: &Target,
    host: &Host,
    change: impl FnOnce(&mut Connect),
) -> Result<Completion, Failure> {
    let queue = QueuePair::open(target.address, &host.options, 1).await?;
    let mut connect = host.io_connect(1, 16);
    change(&mut connect);
    queue.connect(&connect).await
}

#[test]
fn a_target_without_configuration_exports_a_gibibyte() {
    let target = Target::start(&[]);
    run(async {
        let host = Host::connect(&target, DEFAULT_NQN, Options::default()).await?;
        assert_eq!(host.namespaces().await?, [1]);
        let io = host.io_queue(1, 32).await?;
        let namespace = host.identify(0x00, 1).await?;
        assert_eq!(u64_at(&namespace, 0) * io.lba_size(1) as u64, 1 << 30);
        let data = pattern(1, 64 << 10);
        io.write(1, 8, &data).await?;
        io.flush(1).await?;
        assert!(io.read(1, 8, data.len()).await? == data);
        Ok(())
    });
    target.stop();
}

#[test]
fn only_allowed_hosts_get_in() {
    let target = Target::configured(ONE_HOST_ONLY);
    run(async {
        connect_with(&target, |_| {}).await.fails_with(INVALID_HOST, true);
        // Names are compared byte by byte.
        let near = ["nqn.2026-12.io.weft:Friend", "nqn.2026-12.io.weft:friend2", "nqn.2026-12.io.weft:frien"];
        for name in near {
            connect_with(&target, |connect| name.clone_into(&mut connect.hostnqn))
                .await
                .fails_with(INVALID_HOST, true);
        }
        let friend = Options::host("nqn.2026-12.io.weft:friend");
        let host = Host::connect(&target, ONE_NQN, friend).await?;
        assert_eq!(host.namespaces().await?, [1]);
        Ok(())
    });
    target.stop();
}

#[test]
fn wrong_admin_connects_say_which_field_is_wrong() {
    let target = Target::configured(&one_memory());
    run(async {
        let unknown = |connect: &mut Connect| "nqn.2026-12.io.weft:nobody".clone_into(&mut connect.subnqn);
        assert_eq!(connect_with(&target, unknown).await.fails_with(CONNECT_INVALID, true).dw0, 0x0001_0100);
        let empty = connect_with(&target, |connect| connect.subnqn.clear()).await;
        assert_eq!(empty.fails_with(CONNECT_INVALID, true).dw0, 0x0001_0100);
        let endless = connect_with(&target, |connect| connect.hostnqn = "n".repeat(256)).await;
        assert_eq!(endless.fails_with(CONNECT_INVALID, true).dw0, 0x0001_0200);
        let no_entries = connect_with(&target, |connect| connect.sqsize = 0).await;
        assert_eq!(no_entries.fails_with(CONNECT_INVALID, true).dw0, 0x2c);
        let static_model = connect_with(&target, |connect| connect.cntlid = 5).await;
        assert_eq!(static_model.fails_with(CONNECT_INVALID, true).dw0, 0x0001_0010);
        Ok(())
    });
    target.stop();
}

#[test]
fn connect_data_has_exactly_1024_bytes() {
    let target = Target::configured(&one_memory());
    run(async {
        let options = Options::default();
        for length in [512, 1020, 2048] {
            let queue = QueuePair::open(target.address, &options, 0).await?;
            let mut command = options.connect(ONE_NQN, 0, 31).command();
            command.data.resize(length, 0);
            queue.execute(&command).await.fails_with(SGL_LENGTH, true);
        }
        let queue = QueuePair::open(target.address, &options, 0).await?;
        let command = options.connect(ONE_NQN, 0, 31).command().byte(40, 1);
        queue.execute(&command).await.fails_with(0x180, true);
        Ok(())
    });
    target.stop();
}

#[test]
fn wrong_io_connects_say_which_field_is_wrong() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::attach(target.address, ONE_NQN, Options::default()).await?;
        let early = io_connect_with(&target, &host, |_| {}).await;
        assert_eq!(early.fails_with(CONNECT_INVALID, true).dw0, 0x2a, "the controller is not enabled");
        host.enable().await?;
        let mqes = host.property(property::CAP).await? as u16;
        assert!(mqes >= 1);

        let empty = io_connect_with(&target, &host, |connect| connect.sqsize = 0).await;
        assert_eq!(empty.fails_with(CONNECT_INVALID, true).dw0, 0x2c);
        let deep = io_connect_with(&target, &host, |connect| connect.sqsize = mqes + 1).await;
        assert_eq!(deep.fails_with(CONNECT_INVALID, true).dw0, 0x2c);
        let stranger = io_connect_with(&target, &host, |connect| connect.cntlid ^= 0x100).await;
        // No DNR is right as well: a controller that has just gone looks the same, and its host should come again.
        let Err(Failure::Status(refused)) = stranger else { panic!("no such controller: {stranger:?}") };
        assert_eq!((refused.code(), refused.dw0), (CONNECT_INVALID, 0x0001_0010));
        let last = io_connect_with(&target, &host, |connect| connect.qid = 0xffff).await;
        assert_eq!(last.fails_with(CONNECT_INVALID, true).dw0, 0x2a);
        let other_host = |connect: &mut Connect| "nqn.2026-12.io.weft:thief".clone_into(&mut connect.hostnqn);
        let thief = io_connect_with(&target, &host, other_host).await.fails_with(CONNECT_INVALID, true);
        assert!([0x0001_0010, 0x0001_0200].contains(&thief.dw0), "DW0 {:08x}h", thief.dw0);
        let other_id = io_connect_with(&target, &host, |connect| connect.hostid[3] ^= 1).await;
        assert_eq!(other_id.fails_with(CONNECT_INVALID, true).dw0, 0x0001_0000);

        let io = host.io_queue(1, 16).await?;
        // Whether to come again is left open: the old connection may be about to close.
        let Err(Failure::Status(twice)) = io_connect_with(&target, &host, |_| {}).await else {
            panic!("queue 1 is connected already");
        };
        assert_eq!(twice.code(), SEQUENCE_ERROR);
        // After all of that the queue that was connected properly works, with the deepest queue beside it.
        io.write(1, 0, &pattern(1, 512)).await?;
        host.io_queue(2, mqes + 1).await?.flush(1).await?;
        Ok(())
    });
    target.stop();
}

#[test]
fn the_first_command_of_a_queue_pair_is_connect_and_only_the_first() {
    let target = Target::configured(&one_memory());
    run(async {
        for command in [Command::identify(1, 0), Command::property_get(0, 8), Command::flush(1)] {
            let queue = QueuePair::open(target.address, &Options::default(), 0).await?;
            queue.execute(&command).await.fails_finally(&[INVALID_OPCODE, SEQUENCE_ERROR]);
        }
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let again = host.options.connect(ONE_NQN, 0, 31).command();
        host.admin.execute(&again).await.fails_finally(&[INVALID_OPCODE, SEQUENCE_ERROR]);
        assert_eq!(host.namespaces().await?, [1]);
        Ok(())
    });
    target.stop();
}

#[test]
fn properties_have_their_documented_values() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::attach(target.address, ONE_NQN, Options::default()).await?;
        let cap = host.property(property::CAP).await?;
        assert!(cap & 0xffff >= 1, "MQES");
        assert_eq!(cap >> 17 & 3, 0, "AMS: round robin only");
        assert!(cap >> 24 & 0xff != 0, "TO");
        assert_eq!(cap >> 32 & 0xf, 0, "DSTRD");
        assert_eq!(cap >> 37 & 1, 1, "CSS: NVM command set");
        assert_eq!(cap >> 44 & 1, 0, "CSS: there is an I/O command set");
        assert_eq!(cap >> 48 & 0xff, 0, "MPSMIN and MPSMAX: 4 KiB");
        assert_eq!(cap >> 45 & 1, 0, "BPS");
        assert_eq!(cap >> 56 & 3, 0, "PMRS and CMBS");
        let vs = host.property(property::VS).await? as u32;
        assert!((0x0001_0300..=0x0002_0300).contains(&vs), "VS {vs:08x}h");
        assert_eq!(host.property(property::CC).await?, 0);
        assert_eq!(host.property(property::CSTS).await?, 0);
        let low = host.admin.execute(&Command::property_get(property::CAP, 4)).await?;
        assert_eq!(low.dw0, cap as u32, "four bytes of CAP");
        let high = host.admin.execute(&Command::property_get(property::CAP + 4, 4)).await?;
        assert_eq!(high.dw0, (cap >> 32) as u32, "the other four bytes of CAP");
        if cap >> 59 & 1 == 1 {
            let crto = host.property(0x68).await?;
            assert!(crto & 0xffff >= cap >> 24 & 0xff, "CRWMT is at least CAP.TO");
        }
        for command in [
            Command::property_get(0x70, 4),
            Command::property_get(0xffff_fffc, 8),
            Command::property_get(property::CC, 8),
            Command::property_set(property::CAP, 1),
            Command::property_set(property::VS, 1),
            Command::property_set(0x1234_5678, 1),
        ] {
            host.admin.execute(&command).await.fails_with(INVALID_FIELD, true);
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn a_controller_is_enabled_disabled_and_enabled_again() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::attach(target.address, ONE_NQN, Options::default()).await?;
        host.admin.execute(&Command::identify(1, 0)).await.fails_with(SEQUENCE_ERROR, true);
        host.admin.execute(&Command::set_features(7, 0x0003_0003)).await.fails_with(SEQUENCE_ERROR, true);
        for _ in 0..3 {
            host.enable().await?;
            assert_eq!(host.property(property::CC).await? as u32, CC_CONFIGURED | 1);
            host.identify(0x01, 0).await?;
            host.set_property(property::CC, CC_CONFIGURED).await?;
            host.wait_for_status(1, 0).await?;
            host.admin.execute(&Command::identify(1, 0)).await.fails_with(SEQUENCE_ERROR, true);
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn a_controller_cannot_be_enabled_with_a_wrong_configuration() {
    let target = Target::configured(&one_memory());
    run(async {
        for (what, cc) in [
            ("IOSQES and IOCQES", 0x0000_0001),
            ("IOSQES", 0x0045_0001),
            ("IOCQES", 0x0056_0001),
            ("MPS", CC_CONFIGURED | 1 << 7 | 1),
            ("AMS", CC_CONFIGURED | 1 << 11 | 1),
            ("CSS", CC_CONFIGURED | 3 << 4 | 1),
        ] {
            let host = Host::attach(target.address, ONE_NQN, Options::default()).await?;
            // Either answer is in use: the property is refused, or the controller reports a fatal status.
            match host.set_property(property::CC, cc).await {
                Err(Failure::Status(refused)) => assert!(refused.dnr(), "{what}: {refused:?}"),
                Err(other) => return Err(other),
                Ok(()) => host.wait_for_status(2, 2).await?,
            }
            assert_eq!(
                host.property(property::CSTS).await? & 1,
                0,
                "{what}: the controller must not be ready"
            );
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn shutdown_completes_and_the_host_leaves() {
    let target = Target::configured(&one_memory());
    run(async {
        for notification in [1_u32, 2] {
            let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
            let io = host.io_queue(1, 16).await?;
            io.write(1, 0, &pattern(3, 4096)).await?;
            host.set_property(property::CC, CC_CONFIGURED | 1 | notification << 14).await?;
            host.wait_for_status(0xc, 0x8).await?;
        }
        target.metric_becomes("weft_connections_open", &[], 0.0).await
    });
    target.stop();
}

#[test]
fn every_host_gets_a_controller_of_its_own() {
    let target = Target::configured(&one_memory());
    run(async {
        let mut hosts = Vec::new();
        for _ in 0..8 {
            hosts.push(Host::connect(&target, ONE_NQN, Options::default()).await?);
        }
        let mut ids: Vec<_> = hosts.iter().map(|host| host.cntlid).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 8, "{ids:?}");
        assert!(ids.iter().all(|id| (1..=0xffef).contains(id)), "{ids:?}");
        for host in &hosts {
            let controller = host.identify(0x01, 0).await?;
            assert_eq!(u16_at(&controller, 78), host.cntlid);
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn flow_control_is_disabled_only_where_the_host_asks() {
    let target = Target::configured(&one_memory());
    run(async {
        for flow_control in [false, true] {
            let options = Options { flow_control, ..Options::default() };
            let queue = QueuePair::open(target.address, &options, 0).await?;
            let connected = queue.connect(&options.connect(ONE_NQN, 0, 31)).await?;
            assert_eq!(connected.sqhd, if flow_control { 1 } else { 0xffff });
        }
        // The queue pair checks SQHD of every completion; here it wraps around many times.
        let options = Options { flow_control: true, ..Options::default() };
        let host = Host::connect(&target, ONE_NQN, options).await?;
        let io = host.io_queue(1, 5).await?;
        for lba in 0..64 {
            let data = pattern(lba, 512);
            io.write(1, lba, &data).await?;
            assert!(io.read(1, lba, 512).await? == data);
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn icresp_suits_every_host() {
    let target = Target::configured(&one_memory());
    run(async {
        for digests in Digests::ALL {
            for hpda in [0, 1, 7, 15, 31] {
                // CPDA 0, DGST as asked for and a usable MAXH2CDATA are checked inside; so is the padding of the data.
                let options = Options { hpda, ..Options::with(digests) };
                let host = Host::connect(&target, ONE_NQN, options).await?;
                let io = host.io_queue(1, 16).await?;
                let data = pattern(u64::from(hpda), 8192);
                io.write(1, 64, &data).await?;
                assert!(io.read(1, 64, data.len()).await? == data, "HPDA {hpda}, {digests:?}");
            }
        }
        Ok(())
    });
    target.stop();
}
