//! Peers that stall or leave in the middle: they are dropped after their time, nothing of them stays behind, and
//! others never wait for them.

use crate::host::pdu;
use crate::host::target::{ONE_NQN, one_memory};
use crate::host::*;
use crate::hostile::{Bystander, ends, raw_io};
use std::io::{Read, Write};

#[test]
fn silent_peers_are_dropped_while_others_work() {
    let limits = "[limits]\nhandshake_timeout_ms = 500\n";
    let target = Target::configured(&format!("{limits}{}", one_memory()));
    run(async {
        let bystander = Bystander::arrive(&target).await?;
        let icreq = pdu::icreq(Wire::default());
        let (connect, _) = Options::default().connect(ONE_NQN, 0, 31).command().encode(1, 8192);
        let connect = pdu::capsule(Digests::NONE, &connect, &[0; 1024]);
        let mut silent = Vec::new();
        for length in [0, 1, 7, 8, 127] {
            let connection = Connection::raw(target.address).await?;
            connection.send(&icreq[..length]).await;
            silent.push(connection);
        }
        for length in [0, 5, 8, 72, 600] {
            let connection = Connection::greeted(target.address).await?;
            connection.send(&connect[..length]).await;
            silent.push(connection);
        }
        bystander.works().await?;
        for mut connection in silent {
            ends(&mut connection, "a silent peer", &[1, 2, 4, 5, 6]).await?;
            bystander.works().await?;
        }
        bystander.is_alone(&target).await
    });
    target.stop();
}

#[test]
fn half_a_pdu_and_gone() {
    let target = Target::configured(&one_memory());
    run(async {
        let bystander = Bystander::arrive(&target).await?;
        let (sqe, _) = Command::write(1, 0, 16, &[1; 8192]).in_capsule().encode(1, 8192);
        let capsule = pdu::capsule(Digests::NONE, &sqe, &[1; 8192]);
        for length in [1, 8, 71, 72, 73, 4000, capsule.len() - 1] {
            let (_host, connection) = raw_io(&target, 16).await?;
            connection.send(&capsule[..length]).await;
            drop(connection);
        }
        // Gone in the middle of solicited data.
        for length in [0, 24, 30, 5000] {
            let (_host, mut connection) = raw_io(&target, 16).await?;
            let (sqe, _) = Command::write(1, 0, 32, &[1; 16 << 10]).by_r2t().encode(9, 0);
            connection.send(&pdu::capsule(Digests::NONE, &sqe, &[])).await;
            let r2t = connection.expect(pdu::R2T).await?;
            let data = pdu::h2c_data(Digests::NONE, 9, u16_at(&r2t.header, 10), 0, &[1; 16 << 10], true);
            connection.send(&data[..length]).await;
            drop(connection);
        }
        bystander.works().await?;
        bystander.is_alone(&target).await
    });
    target.stop();
}

#[test]
fn a_thousand_connections_leave_nothing_behind() {
    let target = Target::configured(&one_memory());
    run(async {
        for round in 0..1000 {
            match round % 4 {
                0 => drop(Connection::raw(target.address).await?),
                1 => drop(Connection::greeted(target.address).await?),
                2 => drop(Connection::admin(target.address, ONE_NQN, Digests::NONE).await?),
                _ => {
                    let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
                    let io = host.io_queue(1, 16).await?;
                    io.write(1, 0, &pattern(round, 512)).await?;
                }
            }
        }
        target.metric_becomes("weft_connections_open", &[], 0.0).await?;
        assert!(target.metrics().sum("weft_connections_total", &[]) >= 1000.0);
        Ok(())
    });
    target.stop();
}

/// A host that stops reading, and one that withholds promised data, lose their queue pairs.
#[test]
fn hosts_that_stall_are_dropped() {
    let limits = "[limits]\ndata_timeout_ms = 500\n";
    let target = Target::configured(&format!("{limits}{}", one_memory()));
    run(async {
        let bystander = Bystander::arrive(&target).await?;
        let (host, mut connection) = raw_io(&target, 16).await?;
        let (sqe, _) = Command::write(1, 0, 32, &[1; 16 << 10]).by_r2t().encode(9, 0);
        connection.send(&pdu::capsule(Digests::NONE, &sqe, &[])).await;
        connection.expect(pdu::R2T).await?;
        bystander.works().await?;
        ends(&mut connection, "promised data does not come", &[1, 2, 4, 5, 6]).await?;

        let mut deaf = std::net::TcpStream::connect(target.address).expect("connect");
        deaf.write_all(&pdu::icreq(Wire::default())).expect("ICReq");
        deaf.read_exact(&mut [0; 128]).expect("ICResp");
        let connect = host.io_connect(2, 128).command();
        let (sqe, _) = connect.encode(0, 8192);
        deaf.write_all(&pdu::capsule(Digests::NONE, &sqe, &connect.data)).expect("Connect");
        deaf.read_exact(&mut [0; 24]).expect("its response");
        for cid in 0..100 {
            let (sqe, _) = Command::read(1, 0, 2048, 1 << 20).encode(cid, 0);
            deaf.write_all(&pdu::capsule(Digests::NONE, &sqe, &[])).expect("Read");
        }
        for _ in 0..20 {
            bystander.works().await?;
        }
        drop(host);
        bystander.is_alone(&target).await?;
        drop(deaf);
        bystander.works().await
    });
    target.stop();
}
