//! Peers that send what they must not. Whatever it is, the damage ends with their own connection: a bystander goes on
//! working, nothing leaks, and the process lives.

use crate::host::pdu::{self, C2H_TERM};
use crate::host::target::{ONE_NQN, one_memory};
use crate::host::*;

/// A host that behaves, to see whether the others hurt it.
pub struct Bystander {
    _host: Host,
    io: IoQueue,
}

impl Bystander {
    /// Connects and enables a controller with one I/O queue.
    pub async fn arrive(target: &Target) -> Result<Self, Failure> {
        let host = Host::connect(target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 32).await?;
        Ok(Self { _host: host, io })
    }

    /// Its data still comes and goes.
    pub async fn works(&self) -> Result<(), Failure> {
        let data = pattern(77, 20 << 10);
        self.io.write(1, 100_000, &data).await?;
        assert!(self.io.read(1, 100_000, data.len()).await? == data);
        Ok(())
    }

    /// Its own two connections are the only ones left.
    pub async fn is_alone(&self, target: &Target) -> Result<(), Failure> {
        target.metric_becomes("weft_connections_open", &[], 2.0).await
    }
}

/// ICReq with one byte changed.
fn icreq_with(at: usize, value: u8) -> Vec<u8> {
    let mut pdu = pdu::icreq(Wire::default());
    pdu[at] = value;
    pdu
}

/// The controller ends the connection, with C2HTermReq of one of these FES before that, or without a word.
pub async fn ends(connection: &mut Connection, what: &str, fes: &[u16]) -> Result<(), Failure> {
    match connection.next().await {
        Err(Failure::Closed(_)) => Ok(()),
        Err(other) => Err(other),
        Ok(pdu) => {
            assert_eq!(pdu.kind, C2H_TERM, "{what}: {pdu:02x?}");
            let got = u16_at(&pdu.header, 8);
            assert!(fes.contains(&got), "{what}: FES {got}, not {fes:?}");
            connection.leave_after_termination().await
        }
    }
}

/// A raw I/O queue pair with its host.
pub async fn raw_io(target: &Target, entries: u16) -> Result<(Host, Connection), Failure> {
    let host = Host::connect(target, ONE_NQN, Options::default()).await?;
    let connection = Connection::io(target.address, &host.io_connect(1, entries), Digests::NONE).await?;
    Ok((host, connection))
}

#[test]
fn the_first_pdu_has_to_be_a_proper_icreq() {
    let target = Target::configured(&one_memory());
    run(async {
        let bystander = Bystander::arrive(&target).await?;
        let (sqe, _) = Command::keep_alive().encode(1, 0);
        let capsule = pdu::capsule(Digests::NONE, &sqe, &[]);
        let data = pdu::h2c_data(Digests::NONE, 1, 1, 0, &[0; 64], true);
        for (what, bytes, fes) in [
            ("a capsule", capsule, [2]),
            ("H2CData", data, [2]),
            ("an unknown type", icreq_with(0, 0x55), [1]),
            ("a controller's type", icreq_with(0, pdu::ICRESP), [1]),
            ("HLEN", icreq_with(2, 127), [1]),
            ("PLEN", icreq_with(4, 129), [1]),
            ("a huge PLEN", icreq_with(7, 0xff), [1]),
            ("PLEN 0", icreq_with(4, 0), [1]),
            ("PFV", icreq_with(8, 1), [1]),
            ("HPDA", icreq_with(10, 32), [1]),
        ] {
            let mut connection = Connection::raw(target.address).await?;
            connection.send(&bytes).await;
            // A wrong type as first PDU is a sequence error as well; an unsupported parameter has a code of its own.
            let fes = [fes[0], 2, 6];
            ends(&mut connection, what, &fes).await?;
        }
        let mut connection = Connection::raw(target.address).await?;
        connection.send(&pdu::h2c_data(Digests::NONE, 1, 1, 0, &[0; 64], true)).await;
        connection.expect_terminated(&[1, 2]).await?;
        let mut connection = Connection::greeted(target.address).await?;
        connection.send(&pdu::icreq(Wire::default())).await;
        connection.expect_terminated(&[2]).await?;
        bystander.works().await?;
        bystander.is_alone(&target).await
    });
    target.stop();
}

#[test]
fn wrong_headers_end_a_connected_queue_pair() {
    let target = Target::configured(&one_memory());
    run(async {
        let bystander = Bystander::arrive(&target).await?;
        let (sqe, _) = Command::write(1, 0, 1, &[1; 512]).in_capsule().encode(1, 8192);
        let capsule = pdu::capsule(Digests::NONE, &sqe, &[1; 512]);
        let data = pdu::h2c_data(Digests::NONE, 1, 0xfff0, 0, &[0; 64], true);
        let with = |pdu: &[u8], at: usize, value: u8| {
            let mut pdu = pdu.to_vec();
            pdu[at] = value;
            pdu
        };
        for (what, bytes, fes) in [
            ("an unknown type", with(&capsule, 0, 0x30), &[1, 2][..]),
            ("a controller's type", with(&capsule, 0, pdu::CAPSULE_RESP), &[1, 2]),
            ("R2T from a host", with(&data, 0, pdu::R2T), &[1, 2]),
            ("HLEN of a capsule", with(&capsule, 2, 71), &[1]),
            ("HLEN 0", with(&capsule, 2, 0), &[1]),
            ("HLEN of H2CData", with(&data, 2, 28), &[1]),
            ("PDO into the header", with(&capsule, 3, 8), &[1]),
            ("PDO behind the data", with(&capsule, 3, 255), &[1]),
            ("PDO between dwords", with(&capsule, 3, 74), &[1]),
            ("PLEN below HLEN", with(&with(&capsule, 5, 0), 4, 40), &[1]),
            ("PLEN 0", with(&with(&capsule, 5, 0), 4, 0), &[1]),
            ("PLEN of four gigabytes", with(&with(&capsule, 6, 0xff), 7, 0xff), &[1, 5]),
            ("PLEN and SGL disagree", with(&capsule, 4, capsule[4] + 4), &[1]),
            ("a header digest nobody agreed on", with(&capsule, 1, 1), &[1]),
            ("a transfer tag nobody handed out", data.clone(), &[1, 2]),
            ("PLEN and DATAL disagree", with(&data, 16, 60), &[1, 2, 4]),
        ] {
            let (_host, mut connection) = raw_io(&target, 16).await?;
            connection.send(&bytes).await;
            let pdu = connection.expect(C2H_TERM).await?;
            let got = u16_at(&pdu.header, 8);
            assert!(fes.contains(&got), "{what}: FES {got}, not {fes:?}");
            connection.leave_after_termination().await?;
            bystander.works().await?;
        }
        bystander.is_alone(&target).await
    });
    target.stop();
}

#[test]
fn host_data_has_to_answer_its_r2t() {
    let target = Target::configured(&one_memory());
    run(async {
        let bystander = Bystander::arrive(&target).await?;
        let none = Digests::NONE;
        type Wrong = Box<dyn Fn(u16) -> Vec<u8>>;
        let wrong: Vec<(&str, Wrong, &[u16])> = vec![
            (
                "another tag",
                Box::new(move |tag| pdu::h2c_data(none, 9, tag ^ 0x4000, 0, &[1; 512], false)),
                &[1, 2],
            ),
            (
                "another command",
                Box::new(move |tag| pdu::h2c_data(none, 8, tag, 0, &[1; 512], false)),
                &[1, 2],
            ),
            ("a gap", Box::new(move |tag| pdu::h2c_data(none, 9, tag, 512, &[1; 512], false)), &[1, 2, 4]),
            (
                "too much",
                Box::new(move |tag| pdu::h2c_data(none, 9, tag, 0, &[1; 17 << 10], true)),
                &[1, 2, 4, 5],
            ),
            (
                "LAST_PDU too early",
                Box::new(move |tag| pdu::h2c_data(none, 9, tag, 0, &[1; 512], true)),
                &[1, 2, 4],
            ),
            (
                "the same piece twice",
                Box::new(move |tag| {
                    let piece = pdu::h2c_data(none, 9, tag, 0, &[1; 512], false);
                    [piece.clone(), piece].concat()
                }),
                &[1, 2, 4],
            ),
            (
                "LAST_PDU missing, then more",
                Box::new(move |tag| {
                    let all = pdu::h2c_data(none, 9, tag, 0, &[1; 16 << 10], false);
                    [all, pdu::h2c_data(none, 9, tag, 16 << 10, &[1; 512], true)].concat()
                }),
                &[1, 2, 4],
            ),
        ];
        for (what, bytes, fes) in wrong {
            let (_host, mut connection) = raw_io(&target, 16).await?;
            let (sqe, _) = Command::write(1, 0, 32, &[1; 16 << 10]).by_r2t().encode(9, 0);
            connection.send(&pdu::capsule(none, &sqe, &[])).await;
            let r2t = connection.expect(pdu::R2T).await?;
            connection.send(&bytes(u16_at(&r2t.header, 10))).await;
            ends(&mut connection, what, fes).await?;
        }
        bystander.works().await?;
        bystander.is_alone(&target).await
    });
    target.stop();
}

/// Data beyond the capsule's capacity, and more commands than the queue has entries.
#[test]
fn more_than_was_agreed_on_does_no_harm() {
    let target = Target::configured(&one_memory());
    run(async {
        let bystander = Bystander::arrive(&target).await?;
        let (host, mut connection) = raw_io(&target, 16).await?;
        let (sqe, _) = Command::write(1, 0, 256, &[1; 128 << 10]).in_capsule().encode(1, 0);
        connection.send(&pdu::capsule(Digests::NONE, &sqe, &[1; 128 << 10])).await;
        match connection.next().await {
            Ok(pdu) if pdu.kind == pdu::CAPSULE_RESP => {
                assert!([0x016, INVALID_FIELD, SGL_LENGTH].contains(&(u16_at(&pdu.header, 22) >> 1 & 0x7ff)));
            }
            Ok(pdu) => assert_eq!(pdu.kind, C2H_TERM),
            Err(Failure::Closed(_)) => {}
            Err(other) => return Err(other),
        }
        drop((host, connection));
        let (host, mut connection) = raw_io(&target, 2).await?;
        let mut flood = Vec::new();
        for cid in 0..600 {
            let (sqe, _) = Command::read(1, 0, 256, 128 << 10).encode(cid, 0);
            flood.extend(pdu::capsule(Digests::NONE, &sqe, &[]));
        }
        connection.send(&flood).await;
        // Every command is answered, or the queue pair ends; nothing hangs.
        let mut answered = 0;
        while answered < 600 {
            match connection.next().await {
                Ok(pdu) if pdu.kind == pdu::C2H_DATA => {
                    answered += usize::from(pdu.flags & pdu::SUCCESS != 0)
                }
                Ok(pdu) if pdu.kind == pdu::CAPSULE_RESP => answered += 1,
                Ok(_) | Err(Failure::Closed(_)) => break,
                Err(other) => return Err(other),
            }
        }
        drop((host, connection));
        bystander.works().await?;
        bystander.is_alone(&target).await
    });
    target.stop();
}

#[test]
fn a_terminate_request_of_the_host_is_obeyed() {
    let target = Target::configured(&one_memory());
    run(async {
        let bystander = Bystander::arrive(&target).await?;
        for payload in [1, 4, 72, 128] {
            let (_host, mut connection) = raw_io(&target, 16).await?;
            let mut term = vec![pdu::H2C_TERM, 0, 24, 0, 24 + payload, 0, 0, 0];
            term.resize(24 + usize::from(payload), 0);
            term[8] = 1;
            connection.send(&term).await;
            connection.expect_closed().await?;
        }
        bystander.works().await?;
        bystander.is_alone(&target).await
    });
    target.stop();
}

#[test]
fn garbage_ends_the_connection_and_nothing_else() {
    let target = Target::configured(&one_memory());
    run(async {
        let bystander = Bystander::arrive(&target).await?;
        for seed in 0..40 {
            let garbage = pattern(seed, 64 + (seed as usize * 997) % 9000);
            let mut connection = match seed % 3 {
                0 => Connection::raw(target.address).await?,
                1 => Connection::greeted(target.address).await?,
                _ => Connection::admin(target.address, ONE_NQN, Digests::NONE).await?.0,
            };
            // Behind a believable common header the garbage gets further.
            let mut bytes = Vec::new();
            if seed % 2 == 0 {
                bytes.extend([4, 0, 72, 72, (72 + seed) as u8, 2, 0, 0]);
            }
            bytes.extend(garbage);
            connection.send(&bytes).await;
            connection.shut_down_sending();
            loop {
                match connection.next_raw().await {
                    Ok(()) => {}
                    Err(Failure::Closed(_)) => break,
                    Err(other) => return Err(other),
                }
            }
        }
        bystander.works().await?;
        bystander.is_alone(&target).await
    });
    target.stop();
}
