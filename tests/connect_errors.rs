//! Every check of Connect, as rows: what is wrong, the status and whether it may be tried again, and where DW0 says the field
//! is. And what comes after it: room for queues, queues that are connected anew, commands that may not follow.

use crate::host::target::{ONE_NQN, one_memory};
use crate::host::*;

/// A subsystem that admits one host only, beside that of [`one_memory`].
const FOR_A_FRIEND: &str = "[[subsystem]]\nnqn = \"nqn.2026-12.io.weft:friends\"\nserial = \"WEFT0002\"\n\
    allowed_hosts = [\"nqn.2026-12.io.weft:friend\"]\n\
    [[subsystem.namespace]]\nnsid = 1\nbackend = \"null\"\nsize = \"16 MiB\"\n";

const SUBNQN: u32 = 0x0001_0100;
const HOSTNQN: u32 = 0x0001_0200;
const CNTLID: u32 = 0x0001_0010;
const HOSTID: u32 = 0x0001_0000;
const QID: u32 = 0x2a;
const SQSIZE: u32 = 0x2c;
const BUSY: u16 = 0x181;

type Change = fn(&mut Connect);

/// Words of the sheet, the mistake, and what it is answered with: status, DNR, DW0.
type Row = (&'static str, Change, u16, bool, u32);

const ADMIN: &[Row] = &[
    ("SUBNQN unknown", |c| c.subnqn = "nqn.2026-12.io.weft:nobody".into(), CONNECT_INVALID, true, SUBNQN),
    ("SUBNQN in other case", |c| c.subnqn = ONE_NQN.to_uppercase(), CONNECT_INVALID, true, SUBNQN),
    ("SUBNQN longer than it should be", |c| c.subnqn.push('x'), CONNECT_INVALID, true, SUBNQN),
    ("SUBNQN empty", |c| c.subnqn.clear(), CONNECT_INVALID, true, SUBNQN),
    ("SUBNQN not terminated", |c| c.subnqn = "n".repeat(256), CONNECT_INVALID, true, SUBNQN),
    ("SUBNQN of 224 bytes", |c| c.subnqn = format!("nqn.{}", "n".repeat(220)), CONNECT_INVALID, true, SUBNQN),
    ("HOSTNQN empty", |c| c.hostnqn.clear(), CONNECT_INVALID, true, HOSTNQN),
    ("HOSTNQN not terminated", |c| c.hostnqn = "n".repeat(256), CONNECT_INVALID, true, HOSTNQN),
    (
        "host not in allow list",
        |c| c.subnqn = "nqn.2026-12.io.weft:friends".into(),
        INVALID_HOST,
        true,
        HOSTNQN,
    ),
    ("SQSIZE 0", |c| c.sqsize = 0, CONNECT_INVALID, true, SQSIZE),
    ("admin SQSIZE too large", |c| c.sqsize = 128, CONNECT_INVALID, true, SQSIZE),
    ("admin SQSIZE 65535", |c| c.sqsize = 0xffff, CONNECT_INVALID, true, SQSIZE),
    ("admin CNTLID != FFFFh", |c| c.cntlid = 1, CONNECT_INVALID, true, CNTLID),
    ("admin CNTLID 0", |c| c.cntlid = 0, CONNECT_INVALID, true, CNTLID),
    ("admin CNTLID FFEFh", |c| c.cntlid = 0xffef, CONNECT_INVALID, true, CNTLID),
];

const IO: &[Row] = &[
    ("I/O: CNTLID unknown in subsystem", |c| c.cntlid ^= 0x4000, CONNECT_INVALID, false, CNTLID),
    ("I/O: CNTLID FFFFh", |c| c.cntlid = 0xffff, CONNECT_INVALID, false, CNTLID),
    ("I/O: HOSTNQN differs", |c| c.hostnqn.push('x'), CONNECT_INVALID, true, HOSTNQN),
    ("I/O: HOSTID differs", |c| c.hostid[15] ^= 1, CONNECT_INVALID, true, HOSTID),
    ("I/O: SUBNQN of another subsystem", |c| c.subnqn.push('x'), CONNECT_INVALID, true, SUBNQN),
    ("I/O: QID > max allowed", |c| c.qid = 65, CONNECT_INVALID, true, QID),
    ("I/O: QID FFFFh", |c| c.qid = 0xffff, CONNECT_INVALID, true, QID),
    ("I/O: SQSIZE 0", |c| c.sqsize = 0, CONNECT_INVALID, true, SQSIZE),
    ("I/O: SQSIZE > CAP.MQES", |c| c.sqsize = 128, CONNECT_INVALID, true, SQSIZE),
    ("I/O: SQSIZE 65535", |c| c.sqsize = 0xffff, CONNECT_INVALID, true, SQSIZE),
];

async fn check(target: &Target, options: &Options, good: &Connect, row: &Row) -> Result<(), Failure> {
    let (words, change, status, dnr, dw0) = *row;
    let mut connect = good.clone();
    change(&mut connect);
    let queue = QueuePair::open(target.address, options, connect.qid).await?;
    let Err(Failure::Status(refused)) = queue.connect(&connect).await else { panic!("{words}: accepted") };
    assert_eq!((refused.code(), refused.dnr(), refused.dw0), (status, dnr, dw0), "{words}");
    Ok(())
}

#[test]
fn every_check_of_an_admin_connect() {
    let target = Target::configured(&format!("{}{FOR_A_FRIEND}", one_memory()));
    run(async {
        let options = Options::default();
        let good = options.connect(ONE_NQN, 0, 31);
        for row in ADMIN {
            check(&target, &options, &good, row).await?;
        }
        for (words, cntlid) in [("FFFFh", 0xffff), ("FFFEh: any, of the static model", 0xfffe)] {
            let queue = QueuePair::open(target.address, &options, 0).await?;
            let connected = queue.connect(&Connect { cntlid, ..good.clone() }).await?;
            assert!((1..=0xffef).contains(&connected.dw0), "{words}: CNTLID {:08x}h", connected.dw0);
        }
        Ok(())
    });
    target.stop();
}

#[test]
fn every_check_of_an_io_connect() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::attach(target.address, ONE_NQN, Options::default()).await?;
        let good = host.io_connect(1, 16);
        let disabled: Row = ("I/O: controller not enabled (CC.EN=0)", |_| (), CONNECT_INVALID, true, QID);
        check(&target, &host.options, &good, &disabled).await?;
        host.enable().await?;
        for row in IO {
            check(&target, &host.options, &good, row).await?;
        }
        host.admin.execute(&Command::set_features(7, 0x0001_0001)).await?;
        let more: Row = ("I/O: QID > granted", |c| c.qid = 3, CONNECT_INVALID, true, QID);
        check(&target, &host.options, &good, &more).await?;
        host.io_queue(2, 16).await?.write(1, 0, &pattern(1, 512)).await?;
        let reset = host.set_property(property::CC, CC_CONFIGURED).await;
        reset?;
        check(&target, &host.options, &good, &disabled).await
    });
    target.stop();
}

#[test]
fn connect_data_and_record_format() {
    let target = Target::configured(&one_memory());
    run(async {
        let options = Options::default();
        let good = options.connect(ONE_NQN, 0, 31).command();
        let with_data = |length: usize| {
            let mut command = good.clone();
            command.data.resize(length, 0);
            command
        };
        for (words, command, status) in [
            ("data length 1020", with_data(1020), SGL_LENGTH),
            ("data length 1028", with_data(1028), SGL_LENGTH),
            ("no data", with_data(0), SGL_LENGTH),
            ("RECFMT != 0", good.clone().byte(40, 1), 0x180),
            ("RECFMT != 0, high byte", good.clone().byte(41, 1), 0x180),
        ] {
            let queue = QueuePair::open(target.address, &options, 0).await?;
            let Err(Failure::Status(refused)) = queue.execute(&command).await else { panic!("{words}") };
            assert_eq!((refused.code(), refused.dnr()), (status, true), "{words}");
        }
        Ok(())
    });
    target.stop();
}

/// Every depth from 2 to MQES + 1 that is a border of something, full and one command over what flow control allows.
#[test]
fn queues_of_every_size_can_be_full() {
    let target = Target::configured(&one_memory());
    run(async {
        for flow_control in [false, true] {
            let host =
                Host::connect(&target, ONE_NQN, Options { flow_control, ..Options::default() }).await?;
            for entries in [2, 3, 4, 31, 32, 33, 127, 128] {
                let io = host.io_queue(1, entries).await?;
                let data = pattern(u64::from(entries), 16 << 10);
                for round in 0..3 {
                    let write = |index| io.queue.submit(&io.writing(1, index * 32, &data).by_r2t());
                    let full: Vec<_> = (0..u64::from(entries)).map(write).collect();
                    for write in full {
                        write.done().await?;
                    }
                    assert!(io.read(1, round * 32 % u64::from(entries), 512).await?.len() == 512);
                }
                drop(io);
                target.metric_becomes("weft_connections_open", &[], 1.0).await?;
            }
            drop(host);
            target.metric_becomes("weft_connections_open", &[], 0.0).await?;
        }
        Ok(())
    });
    target.stop();
}

/// A host is granted as many I/O queues as there is room for, and those it gets, whoever knocks meanwhile.
#[test]
fn granted_queues_can_be_connected() {
    let limits = "[limits]\nconnections = 8\nio_queues = 4\n";
    let target = Target::configured(&format!("{limits}{}", one_memory()));
    run(async {
        let queues = |count: u32| Command::set_features(7, (count - 1) << 16 | (count - 1));
        let first = Host::connect(&target, ONE_NQN, Options::default()).await?;
        assert_eq!(first.admin.execute(&queues(100)).await?.dw0, 0x0003_0003, "as many as there may be");
        let second = Host::connect(&target, ONE_NQN, Options::default()).await?;
        assert_eq!(second.admin.execute(&queues(4)).await?.dw0, 0x0001_0001, "as many as are left");
        assert_eq!(second.admin.execute(&Command::get_features(7)).await?.dw0, 0x0001_0001);
        // No room for a third, which may come again later; and who only knocks takes nobody's room.
        let third =
            Host::attach(target.address, ONE_NQN, Options::default()).await.map(|_| Completion::default());
        third.fails_with(BUSY, false);
        let mut strangers = Vec::new();
        for _ in 0..6 {
            strangers.push(Connection::raw(target.address).await?);
        }
        let mut connected = Vec::new();
        for (host, count) in [(&first, 4), (&second, 2)] {
            for qid in 1..=count {
                let io = host.io_queue(qid, 16).await?;
                io.write(1, u64::from(qid), &pattern(1, 512)).await?;
                connected.push(io);
            }
        }
        // A queue that was lost keeps its place.
        drop(connected.remove(0));
        drop(strangers);
        target.metric_becomes("weft_connections_open", &[], 7.0).await?;
        Host::attach(target.address, ONE_NQN, Options::default())
            .await
            .map(|_| Completion::default())
            .fails_with(BUSY, false);
        first.io_queue(1, 16).await?.write(1, 0, &pattern(2, 512)).await?;
        // What a host had is free when it has left.
        drop((first, connected));
        target.metric_becomes("weft_connections_open", &[], 1.0).await?;
        let next = Host::connect(&target, ONE_NQN, Options::default()).await?;
        assert_eq!(next.admin.execute(&queues(4)).await?.dw0, 0x0003_0003);
        Ok(())
    });
    target.stop();
}

/// A host that lost an I/O connection and connects the queue anew at once is let in: its old connection only has to end.
#[test]
fn a_queue_is_connected_anew_at_once() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        for round in 0..200 {
            let io = host.io_queue(1, 16).await?;
            let data = pattern(round, 8192);
            let _unfinished = io.queue.submit(&io.writing(1, round * 16, &data).by_r2t());
            drop(io);
        }
        let io = host.io_queue(1, 16).await?;
        let alive = QueuePair::open(target.address, &host.options, 1).await?;
        alive.connect(&host.io_connect(1, 16)).await.fails_with(SEQUENCE_ERROR, false);
        io.write(1, 0, &pattern(1, 512)).await.map(drop)
    });
    target.stop();
}

/// Fabrics commands where they do not belong, and the one that is not offered (OFCS is 0).
#[test]
fn fabrics_commands_out_of_place() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 16).await?;
        let connect = host.io_connect(1, 16).command();
        let ofcs = u16_at(&host.identify(0x01, 0).await?, 1804);
        assert_eq!(ofcs & 1, 0, "Disconnect is not offered");
        for (words, queue, command, status) in [
            ("Disconnect", &io.queue, Command::fabrics(0x08), INVALID_OPCODE),
            ("Disconnect on the admin queue", &host.admin, Command::fabrics(0x08), INVALID_OPCODE),
            ("Property Get on an I/O queue", &io.queue, Command::property_get(0, 8), INVALID_OPCODE),
            ("Property Set on an I/O queue", &io.queue, Command::property_set(0x14, 0), INVALID_OPCODE),
            ("FCTYPE unknown", &host.admin, Command::fabrics(0x70), INVALID_OPCODE),
            ("FCTYPE of a vendor", &host.admin, Command::fabrics(0xc0), INVALID_OPCODE),
            ("Connect on a connected queue", &io.queue, connect.clone(), SEQUENCE_ERROR),
            ("Connect on a connected admin queue", &host.admin, connect, SEQUENCE_ERROR),
        ] {
            let Err(Failure::Status(refused)) = queue.execute(&command).await else { panic!("{words}") };
            assert_eq!((refused.code(), refused.dnr()), (status, true), "{words}");
        }
        io.write(1, 0, &pattern(1, 512)).await.map(drop)
    });
    target.stop();
}

/// KATO is in milliseconds and rounded up to whole seconds; 0 is none.
#[test]
fn keep_alive_times_are_rounded_up() {
    let target = Target::configured(&one_memory());
    run(async {
        for (asked, set) in [(0, 0), (1, 1000), (999, 1000), (1000, 1000), (1001, 2000), (120_000, 120_000)] {
            let host =
                Host::connect(&target, ONE_NQN, Options { kato_ms: asked, ..Options::default() }).await?;
            assert_eq!(host.admin.execute(&Command::get_features(0x0f)).await?.dw0, set, "KATO {asked}");
            let alive = host.admin.execute(&Command::keep_alive()).await;
            if asked == 0 {
                alive.fails_with(0x1a, true);
            } else {
                alive?;
            }
        }
        Ok(())
    });
    target.stop();
}

/// A target that was stopped for longer than the timeout finds what its host sent meanwhile, before it gives it up.
#[test]
fn a_target_that_slept_does_not_blame_its_host() {
    let target = Target::configured(&one_memory());
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options { kato_ms: 1000, ..Options::default() }).await?;
        let io = host.io_queue(1, 16).await?;
        for _ in 0..3 {
            target.signal("STOP");
            let alive = host.admin.submit(&Command::keep_alive());
            tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
            target.signal("CONT");
            alive.done().await?;
            io.write(1, 0, &pattern(1, 512)).await?;
        }
        assert_eq!(target.metrics().sum("weft_keep_alive_expiries_total", &[]), 0.0);
        Ok(())
    });
    target.stop();
}
