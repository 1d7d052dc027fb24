//! The byte stream of a queue pair, however it is cut, coalesced, padded and interleaved: framing does not depend on how
//! bytes arrive or leave, and much data leaves in pieces.

use crate::host::pdu::{self, C2H_DATA, CAPSULE_RESP, LAST_PDU, R2T, SUCCESS};
use crate::host::target::{ONE_NQN, one_memory};
use crate::host::*;

const NONE: Digests = Digests::NONE;
const BOTH: Digests = Digests { header: true, data: true };
const MIB: usize = 1 << 20;

/// An I/O queue pair at the raw level, next to the host whose it is.
async fn raw_io(target: &Target, options: Options, entries: u16) -> Result<(Host, Connection), Failure> {
    let wire = options.wire();
    let host = Host::connect(target, ONE_NQN, options).await?;
    let mut connection = Connection::raw(target.address).await?;
    connection.initialize(wire).await?;
    let cqe = connection.ask(&host.io_connect(1, entries).command(), 1).await?;
    assert_eq!(u16_at(&cqe, 14) >> 1, 0, "Connect");
    Ok((host, connection))
}

async fn send(connection: &Connection, command: &Command, cid: u16) {
    let (sqe, in_capsule) = command.encode(cid, 8192);
    let data = if in_capsule { &command.data[..] } else { &[] };
    connection.send(&pdu::capsule(connection.wire.digests, &sqe, data)).await;
}

/// The success of the command, which carries no data.
async fn answered(connection: &mut Connection, cid: u16) -> Result<(), Failure> {
    let response = connection.expect(CAPSULE_RESP).await?;
    assert_eq!((u16_at(&response.header, 20), u16_at(&response.header, 22) >> 1), (cid, 0), "CID and status");
    Ok(())
}

/// A small generator for cuts.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }
}

/// A large read comes in several C2HData PDUs: contiguous from 0, LAST_PDU once, SUCCESS only there and only without SQ
/// flow control, else a response behind it.
#[test]
fn large_reads_come_in_pieces() {
    let target = Target::with_three_backends();
    run(async {
        for (digests, flow_control) in [(NONE, false), (NONE, true), (BOTH, false), (BOTH, true)] {
            let options = Options { flow_control, ..Options::with(digests) };
            let (host, mut connection) = raw_io(&target, options, 16).await?;
            let io = host.io_queue(2, 16).await?;
            for nsid in [1, 2, 3] {
                for size in [MIB, 300 << 10, 256 << 10, 128 << 10] {
                    let data = if nsid == 3 { vec![0; size] } else { pattern(size as u64, size) };
                    io.write(nsid, 0, &data).await?;
                    send(&connection, &io.reading(nsid, 0, size), 7).await;
                    let (mut read, mut pieces, mut last) = (Vec::new(), 0, 0);
                    while last & LAST_PDU == 0 {
                        let pdu = connection.expect(C2H_DATA).await?;
                        assert_eq!((u16_at(&pdu.header, 8), u32_at(&pdu.header, 12)), (7, read.len() as u32));
                        assert!(pdu.data.len() <= 256 << 10, "a piece of {} bytes", pdu.data.len());
                        read.extend(pdu.data);
                        (pieces, last) = (pieces + 1, pdu.flags);
                    }
                    assert!(read == data, "{size} bytes of namespace {nsid}");
                    assert_eq!(pieces, size.div_ceil(256 << 10), "pieces of {size} bytes");
                    assert_eq!(last & SUCCESS != 0, !flow_control);
                    if flow_control {
                        answered(&mut connection, 7).await?;
                    }
                }
            }
        }
        Ok(())
    });
    target.stop();
}

/// What is answered after a large read does not wait for its end.
#[test]
fn a_large_read_does_not_hold_up_what_comes_after_it() {
    let target = Target::configured(&one_memory());
    run(async {
        let (_host, mut connection) = raw_io(&target, Options::default(), 16).await?;
        let large = Command::read(1, 0, 2048, MIB).encode(1, 0).0;
        let small = Command::read(1, 0, 1, 512).encode(2, 0).0;
        for _ in 0..20 {
            let both = [pdu::capsule(NONE, &large, &[]), pdu::capsule(NONE, &small, &[])].concat();
            connection.send(&both).await;
            let mut order = Vec::new();
            while order.iter().filter(|(_, success)| *success).count() < 2 {
                let pdu = connection.expect(C2H_DATA).await?;
                order.push((u16_at(&pdu.header, 8), pdu.flags & SUCCESS != 0));
            }
            assert_eq!(order.last(), Some(&(1, true)), "the small read is answered in between: {order:?}");
        }
        Ok(())
    });
    target.stop();
}

/// Many large reads at once, of a host that is in no hurry, with small ones between them.
#[test]
fn a_queue_full_of_large_reads() {
    let target = Target::with_three_backends();
    run(async {
        for digests in [NONE, BOTH] {
            let host = Host::connect(&target, ONE_NQN, Options::with(digests)).await?;
            let io = host.io_queue(1, 64).await?;
            for nsid in [1, 2] {
                let data = pattern(5, 4 * MIB);
                for part in 0..4 {
                    let lba = (part * MIB / io.lba_size(nsid)) as u64;
                    io.write(nsid, lba, &data[part * MIB..][..MIB]).await?;
                }
                let mut reads = Vec::new();
                for index in 0..60 {
                    let size = [MIB, 4096, 512 << 10, 300 << 10][index % 4];
                    let at = index % 3 * MIB;
                    let lba = (at / io.lba_size(nsid)) as u64;
                    reads.push((at, size, io.queue.submit(&io.reading(nsid, lba, size))));
                }
                for (at, size, read) in reads {
                    assert!(read.done().await?.data == data[at..at + size], "{size} bytes at {at}");
                }
            }
        }
        Ok(())
    });
    target.stop();
}

/// Two pieces of data, then a command: in two parts, cut at every byte.
#[test]
fn pdus_cut_at_every_byte() {
    let target = Target::configured(&one_memory());
    run_for(LIMIT * 20, async {
        for digests in [NONE, BOTH] {
            let (_host, mut connection) = raw_io(&target, Options::with(digests), 16).await?;
            let (mut cut, mut length) = (0, 1);
            while cut < length {
                let data = pattern(cut as u64, 1024);
                send(&connection, &Command::write(1, 3, 2, &data).by_r2t(), 5).await;
                let ttag = u16_at(&connection.expect(R2T).await?.header, 10);
                let (read, _) = Command::read(1, 3, 2, 1024).encode(6, 0);
                let flush = Command::write(1, 9, 1, &data[..512]).in_capsule().encode(7, 8192).0;
                let stream = [
                    pdu::h2c_data(digests, 5, ttag, 0, &data[..512], false),
                    pdu::h2c_data(digests, 5, ttag, 512, &data[512..], true),
                    pdu::capsule(digests, &flush, &data[..512]),
                ]
                .concat();
                connection.send(&stream[..cut]).await;
                // Most of the time enough for the two parts to arrive as two; nothing depends on it.
                tokio::time::sleep(std::time::Duration::from_micros(500)).await;
                connection.send(&stream[cut..]).await;
                let mut cids = [0; 2];
                for cid in &mut cids {
                    let response = connection.expect(CAPSULE_RESP).await?;
                    assert_eq!(u16_at(&response.header, 22) >> 1, 0, "cut at {cut}");
                    *cid = u16_at(&response.header, 20);
                }
                cids.sort_unstable();
                assert_eq!(cids, [5, 7]);
                connection.send(&pdu::capsule(digests, &read, &[])).await;
                assert!(connection.expect(C2H_DATA).await?.data == data, "cut at {cut}");
                (cut, length) = (cut + 1, stream.len());
            }
        }
        Ok(())
    });
    target.stop();
}

/// Many R2Ts outstanding, their data interleaved in pieces of all sizes, the stream sent in parts of all sizes.
#[test]
fn interleaved_data_in_parts_of_all_sizes() {
    let target = Target::configured(&one_memory());
    const EACH: usize = 96 << 10;
    run_for(LIMIT * 20, async {
        for (seed, digests) in Digests::ALL.into_iter().cycle().take(8).enumerate() {
            let mut dice = Dice(seed as u64 * 7919 + 1);
            let (host, mut connection) = raw_io(&target, Options::with(digests), 32).await?;
            let all: Vec<_> = (0..16).map(|cid| pattern(seed as u64 * 100 + cid, EACH)).collect();
            for (cid, data) in all.iter().enumerate() {
                let lba = (cid * EACH / 512) as u64;
                send(&connection, &Command::write(1, lba, EACH as u32 / 512, data).by_r2t(), cid as u16)
                    .await;
            }
            let mut open = Vec::new();
            for _ in 0..all.len() {
                let r2t = connection.expect(R2T).await?;
                assert_eq!((u32_at(&r2t.header, 12), u32_at(&r2t.header, 16)), (0, EACH as u32));
                open.push((u16_at(&r2t.header, 8), u16_at(&r2t.header, 10), 0));
            }
            let mut stream = Vec::new();
            while !open.is_empty() {
                let turn = dice.below(open.len());
                let (cid, ttag, at) = open[turn];
                let most = [4, 100, 4096, 20_000, EACH][dice.below(5)];
                let len = ((dice.below(most) + 4) & !3).min(EACH - at);
                let data = &all[usize::from(cid)][at..at + len];
                stream.extend(pdu::h2c_data(digests, cid, ttag, at, data, at + len == EACH));
                if at + len == EACH {
                    open.swap_remove(turn);
                } else {
                    open[turn].2 = at + len;
                }
            }
            let mut rest = &stream[..];
            while !rest.is_empty() {
                let most = [1, 3, 9, 80, 5000, 70_000][dice.below(6)];
                let (part, after) = rest.split_at((dice.below(most) + 1).min(rest.len()));
                connection.send(part).await;
                rest = after;
            }
            for _ in 0..all.len() {
                let response = connection.expect(CAPSULE_RESP).await?;
                assert_eq!(u16_at(&response.header, 22) >> 1, 0, "{digests:?}");
            }
            let io = host.io_queue(2, 32).await?;
            for (cid, data) in all.iter().enumerate() {
                assert!(
                    io.read(1, (cid * EACH / 512) as u64, EACH).await? == *data,
                    "{digests:?}, CID {cid}"
                );
            }
        }
        Ok(())
    });
    target.stop();
}

/// A host may place its data anywhere up to byte 128: what counts is PDO.
#[test]
fn data_wherever_pdo_says() {
    let target = Target::configured(&one_memory());
    let padded = |pdu: &[u8], padding: usize| {
        let header_end = usize::from(pdu[3]);
        let mut out = [&pdu[..header_end], &vec![0xee; padding][..], &pdu[header_end..]].concat();
        let length = out.len() as u32;
        out[3] += padding as u8;
        out[4..8].copy_from_slice(&length.to_le_bytes());
        if out[1] & pdu::HDGSTF != 0 {
            let header = usize::from(out[2]);
            let digest = pdu::crc32c(&out[..header]);
            out[header..header + 4].copy_from_slice(&digest.to_le_bytes());
        }
        out
    };
    run(async {
        for digests in Digests::ALL {
            let (_host, mut connection) = raw_io(&target, Options::with(digests), 16).await?;
            let data = pattern(3, 2048);
            for offset in (72 + digests.header_bytes()..=128).step_by(4) {
                let (sqe, _) = Command::write(1, 8, 4, &data).in_capsule().encode(1, 8192);
                let capsule = pdu::capsule(digests, &sqe, &data);
                connection.send(&padded(&capsule, offset - usize::from(capsule[3]))).await;
                answered(&mut connection, 1).await?;
            }
            for offset in (24 + digests.header_bytes()..=128).step_by(4) {
                let data = pattern(offset as u64, 2048);
                send(&connection, &Command::write(1, 8, 4, &data).by_r2t(), 2).await;
                let ttag = u16_at(&connection.expect(R2T).await?.header, 10);
                let pdu = pdu::h2c_data(digests, 2, ttag, 0, &data, true);
                connection.send(&padded(&pdu, offset - usize::from(pdu[3]))).await;
                answered(&mut connection, 2).await?;
                send(&connection, &Command::read(1, 8, 4, 2048), 3).await;
                assert!(connection.expect(C2H_DATA).await?.data == data, "PDO {offset}, {digests:?}");
            }
        }
        Ok(())
    });
    target.stop();
}

/// Every alignment a host may ask for, with every combination of digests and reads of several pieces.
#[test]
fn every_alignment_with_every_digest() {
    let target = Target::configured(&one_memory());
    run_for(LIMIT * 20, async {
        for hpda in 0..32 {
            for digests in Digests::ALL {
                let options = Options { hpda, ..Options::with(digests) };
                let host = Host::connect(&target, ONE_NQN, options).await?;
                let io = host.io_queue(1, 16).await?;
                let data = pattern(u64::from(hpda), 600 << 10);
                io.write(1, 0, &data).await?;
                assert!(io.read(1, 0, data.len()).await? == data, "HPDA {hpda}, {digests:?}");
                assert!(io.read(1, 5, 512).await? == data[5 * 512..6 * 512]);
            }
        }
        Ok(())
    });
    target.stop();
}

/// Hosts that split by MAXH2CDATA, that do not split, and that send four bytes at a time.
#[test]
fn any_number_of_h2cdata_for_an_r2t() {
    let target = Target::configured(&one_memory());
    run(async {
        for (chunk, size) in [(None, MIB), (Some(MIB), MIB), (Some(4096), MIB), (Some(4), 24 << 10)] {
            let host =
                Host::connect(&target, ONE_NQN, Options { h2c_chunk: chunk, ..Options::with(BOTH) }).await?;
            let io = host.io_queue(1, 16).await?;
            let data = pattern(size as u64, size);
            io.queue.execute(&io.writing(1, 0, &data).by_r2t()).await?;
            assert!(io.read(1, 0, size).await? == data, "{chunk:?}");
        }
        // The limit holds what a host may send for the largest command, and is one that Linux takes.
        let mut connection = Connection::raw(target.address).await?;
        let welcome = connection.initialize(Wire::default()).await?;
        assert!(welcome.max_h2c_data >= MIB && welcome.max_h2c_data.is_multiple_of(4));
        Ok(())
    });
    target.stop();
}
