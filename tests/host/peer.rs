//! Proof of the test host itself: a scripted peer that answers with canned PDUs, right and wrong ones. It is what
//! makes a green behaviour test mean something before and without weft.

use super::pdu::{self, Digests};
use super::{Command, Connection, Failure, Options, QueuePair, run};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;

/// ICResp with MAXH2CDATA 4096.
fn icresp(digests: Digests) -> Vec<u8> {
    let mut pdu = vec![0; 128];
    pdu[..8].copy_from_slice(&[pdu::ICRESP, 0, 128, 0, 128, 0, 0, 0]);
    pdu[11] = digests.dgst();
    pdu[12..16].copy_from_slice(&4096_u32.to_le_bytes());
    pdu
}

fn response(digests: Digests, cid: u16, sqhd: u16, status: u16) -> Vec<u8> {
    let mut header = vec![0; 24];
    header[0] = pdu::CAPSULE_RESP;
    header[16..18].copy_from_slice(&sqhd.to_le_bytes());
    header[20..22].copy_from_slice(&cid.to_le_bytes());
    header[22..24].copy_from_slice(&status.to_le_bytes());
    pdu::assemble(digests, header, &[])
}

fn c2h_data(digests: Digests, cid: u16, offset: u32, data: &[u8], flags: u8) -> Vec<u8> {
    let mut header = vec![0; 24];
    header[..2].copy_from_slice(&[pdu::C2H_DATA, flags]);
    header[8..10].copy_from_slice(&cid.to_le_bytes());
    header[12..16].copy_from_slice(&offset.to_le_bytes());
    header[16..20].copy_from_slice(&(data.len() as u32).to_le_bytes());
    pdu::assemble(digests, header, data)
}

fn r2t(digests: Digests, cid: u16, ttag: u16, offset: u32, length: u32) -> Vec<u8> {
    let mut header = vec![0; 24];
    header[0] = pdu::R2T;
    header[8..10].copy_from_slice(&cid.to_le_bytes());
    header[10..12].copy_from_slice(&ttag.to_le_bytes());
    header[12..16].copy_from_slice(&offset.to_le_bytes());
    header[16..20].copy_from_slice(&length.to_le_bytes());
    pdu::assemble(digests, header, &[])
}

/// Reads one PDU the host sent: all its bytes.
fn take(stream: &mut TcpStream) -> Vec<u8> {
    let mut pdu = vec![0; 8];
    stream.read_exact(&mut pdu).expect("a PDU of the host");
    let plen = pdu::u32_at(&pdu, 4) as usize;
    pdu.resize(plen, 0);
    stream.read_exact(&mut pdu[8..]).expect("the rest of the PDU");
    pdu
}

/// Takes ICReq and Connect and answers both, then plays `script`.
fn peer(
    digests: Digests,
    script: impl FnOnce(&mut TcpStream) + Send + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the host");
        assert_eq!(take(&mut stream)[..8], [pdu::ICREQ, 0, 128, 0, 128, 0, 0, 0]);
        stream.write_all(&icresp(digests)).expect("ICResp");
        let connect = take(&mut stream);
        assert_eq!((connect[0], connect[8], connect[12]), (pdu::CAPSULE_CMD, 0x7f, 0x01));
        stream.write_all(&response(digests, pdu::u16_at(&connect, 10), 0xffff, 0)).expect("Connect");
        script(&mut stream);
    });
    (address, thread)
}

async fn connected(address: SocketAddr, options: &Options) -> Result<QueuePair, Failure> {
    let queue = QueuePair::open(address, options, 0).await?;
    queue.connect(&options.connect("nqn.2026-12.io.weft:peer", 0, 31)).await?;
    Ok(queue)
}

#[test]
fn reads_and_writes_against_a_scripted_controller() {
    let both = Digests { header: true, data: true };
    let (address, thread) = peer(both, move |stream| {
        let read = take(stream);
        let cid = pdu::u16_at(&read, 10);
        let mut answer = c2h_data(both, cid, 0, &[1; 512], 0);
        answer.extend(c2h_data(both, cid, 512, &[2; 512], pdu::LAST_PDU | pdu::SUCCESS));
        for byte in answer {
            stream.write_all(&[byte]).expect("byte by byte");
        }
        let write = take(stream);
        let cid = pdu::u16_at(&write, 10);
        assert_eq!(write[8 + 39], 0x5a);
        stream.write_all(&r2t(both, cid, 77, 0, 10_000)).expect("R2T");
        let mut data = Vec::new();
        for (length, flags) in [(4096, 3), (4096, 3), (1808, 7)] {
            let piece = take(stream);
            assert_eq!((piece[0], piece[1]), (pdu::H2C_DATA, flags));
            assert_eq!((pdu::u16_at(&piece, 8), pdu::u16_at(&piece, 10)), (cid, 77));
            assert_eq!(pdu::u32_at(&piece, 12) as usize, data.len());
            assert_eq!(pdu::u32_at(&piece, 24), pdu::crc32c(&piece[..24]));
            data.extend_from_slice(&piece[28..28 + length]);
        }
        assert_eq!(data, super::pattern(3, 10_000));
        stream.write_all(&response(both, cid, 0, 0)).expect("response");
    });
    run(async move {
        let queue = connected(address, &Options::with(both)).await?;
        let read = queue.execute(&Command::read(1, 0, 2, 1024)).await?;
        assert_eq!(read.data, [[1; 512], [2; 512]].concat());
        queue.execute(&Command::write(1, 0, 20, &super::pattern(3, 10_000))).await?;
        Ok(())
    });
    thread.join().expect("the script was followed");
}

#[test]
fn completions_may_come_in_any_order() {
    let (address, thread) = peer(Digests::NONE, |stream| {
        let first = pdu::u16_at(&take(stream), 10);
        let second = pdu::u16_at(&take(stream), 10);
        let answers = [response(Digests::NONE, second, 0, 0), response(Digests::NONE, first, 0, 0x8004)];
        stream.write_all(&answers.concat()).expect("answers");
    });
    run(async move {
        let queue = connected(address, &Options::default()).await?;
        let (first, second) = (queue.submit(&Command::keep_alive()), queue.submit(&Command::keep_alive()));
        assert_eq!(second.done().await?.order, 1);
        let Err(Failure::Status(refused)) = first.done().await else { panic!("status 02h was due") };
        assert_eq!((refused.code(), refused.dnr(), refused.order), (0x002, true, 2));
        Ok(())
    });
    thread.join().expect("the script was followed");
}

/// Whatever a controller does wrong after Connect is noticed.
#[test]
fn faults_of_a_controller_are_found() {
    type Wrong = fn(u16) -> Vec<u8>;
    let wrong: [(&str, Wrong); 11] = [
        ("unknown CID", |cid| response(Digests::NONE, cid ^ 1, 0, 0)),
        ("SQHD", |cid| response(Digests::NONE, cid, 5, 0)),
        ("phase bit", |cid| response(Digests::NONE, cid, 0, 1)),
        ("success without data", |cid| response(Digests::NONE, cid, 0, 0)),
        ("too much data", |cid| c2h_data(Digests::NONE, cid, 0, &[0; 1028], pdu::LAST_PDU)),
        ("LAST_PDU too early", |cid| c2h_data(Digests::NONE, cid, 0, &[0; 512], pdu::LAST_PDU)),
        ("LAST_PDU missing", |cid| c2h_data(Digests::NONE, cid, 0, &[0; 1024], 0)),
        ("wrong offset", |cid| c2h_data(Digests::NONE, cid, 512, &[0; 512], pdu::LAST_PDU)),
        ("digest nobody asked for", |cid| response(Digests { header: true, data: false }, cid, 0, 0)),
        ("R2T for a read", |cid| r2t(Digests::NONE, cid, 1, 0, 512)),
        ("PDU of a host", |cid| pdu::h2c_data(Digests::NONE, cid, 0, 0, &[0; 4], true)),
    ];
    for (what, wrong) in wrong {
        let (address, thread) = peer(Digests::NONE, move |stream| {
            let cid = pdu::u16_at(&take(stream), 10);
            stream.write_all(&wrong(cid)).expect("something wrong");
        });
        run(async move {
            let queue = connected(address, &Options::default()).await?;
            let answer = queue.execute(&Command::read(1, 0, 2, 1024)).await;
            assert!(matches!(answer, Err(Failure::Protocol(_))), "{what}: {answer:?}");
            Ok(())
        });
        thread.join().expect("the script was followed");
    }
}

#[test]
fn a_corrupted_digest_of_the_controller_is_found() {
    let both = Digests { header: true, data: true };
    for at in [9, 24, 40, 28 + 512] {
        let (address, thread) = peer(both, move |stream| {
            let cid = pdu::u16_at(&take(stream), 10);
            let mut data = c2h_data(both, cid, 0, &[6; 512], pdu::LAST_PDU | pdu::SUCCESS);
            data[at] ^= 0x10;
            stream.write_all(&data).expect("corrupted data");
        });
        run(async move {
            let queue = connected(address, &Options::with(both)).await?;
            let answer = queue.execute(&Command::read(1, 0, 1, 512)).await;
            assert!(
                matches!(&answer, Err(Failure::Protocol(why)) if why.contains("digest")),
                "{at}: {answer:?}"
            );
            Ok(())
        });
        thread.join().expect("the script was followed");
    }
}

#[test]
fn the_end_of_a_connection_is_seen_at_the_raw_level() {
    let (address, thread) = peer(Digests::NONE, |stream| {
        let mut term = vec![pdu::C2H_TERM, 0, 24, 0, 28, 0, 0, 0];
        term.resize(28, 0);
        term[8] = 2;
        stream.write_all(&term).expect("C2HTermReq");
    });
    run(async move {
        let (mut connection, _) =
            Connection::admin(address, "nqn.2026-12.io.weft:peer", Digests::NONE).await?;
        assert_eq!(connection.expect_terminated(&[1, 2]).await?, (2, 0));
        Ok(())
    });
    thread.join().expect("the script was followed");
}
