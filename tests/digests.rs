//! Header and data digests: every combination carries data intact, and corruption is found with the right blast radius.

use crate::host::pdu::{self, DDGSTF};
use crate::host::target::{ONE_NQN, one_memory};
use crate::host::*;

const BOTH: Digests = Digests { header: true, data: true };

#[test]
fn every_combination_carries_data_intact() {
    let target = Target::with_three_backends();
    run(async {
        for digests in Digests::ALL {
            let host = Host::connect(&target, ONE_NQN, Options::with(digests)).await?;
            let io = host.io_queue(1, 128).await?;
            for nsid in [1, 2] {
                for size in [4096, 8192, 12_288, 128 << 10, 1 << 20] {
                    let data = pattern(size as u64, size);
                    io.write(nsid, 16, &data).await?;
                    assert!(io.read(nsid, 16, size).await? == data, "{size} bytes, {digests:?}");
                }
                let commands: Vec<_> = (0..64_u64).map(|index| (index * 16, pattern(index, 8192))).collect();
                let writes: Vec<_> = commands
                    .iter()
                    .map(|(lba, data)| io.queue.submit(&io.writing(nsid, *lba, data)))
                    .collect();
                for write in writes {
                    write.done().await?;
                }
                for (lba, data) in &commands {
                    assert!(io.read(nsid, *lba, 8192).await? == *data);
                }
            }
            let oddly_long = host.log(0x02, 508, 4).await?;
            assert_eq!(oddly_long.len(), 508);
        }
        Ok(())
    });
    target.stop();
}

/// A queue pair of an enabled controller at the raw level, next to its host.
async fn raw_io(target: &Target, digests: Digests) -> Result<(Host, Connection), Failure> {
    let host = Host::connect(target, ONE_NQN, Options::with(digests)).await?;
    let connection = Connection::io(target.address, &host.io_connect(1, 16), digests).await?;
    Ok((host, connection))
}

#[test]
fn a_corrupted_header_ends_only_its_connection() {
    let target = Target::configured(&one_memory());
    run(async {
        let bystander = Host::connect(&target, ONE_NQN, Options::default()).await?;
        for digests in [BOTH, Digests { header: true, data: false }] {
            // A bit of the header, and a bit of the digest itself.
            for at in [8 + 40, 73] {
                let (_host, mut connection) = raw_io(&target, digests).await?;
                let (sqe, _) = Command::write(1, 0, 1, &[1; 512]).in_capsule().encode(7, 8192);
                let mut pdu = pdu::capsule(digests, &sqe, &[1; 512]);
                pdu[at] ^= 1;
                connection.send(&pdu).await;
                connection.expect_terminated(&[3]).await?;
            }
        }
        let io = bystander.io_queue(1, 16).await?;
        assert!(io.read(1, 0, 512).await?.iter().all(|byte| *byte == 0), "the corrupted write was not done");
        Ok(())
    });
    target.stop();
}

#[test]
fn corrupted_data_in_a_capsule_fails_only_its_command() {
    let target = Target::configured(&one_memory());
    run(async {
        for digests in [BOTH, Digests { header: false, data: true }] {
            let (_host, mut connection) = raw_io(&target, digests).await?;
            let old = pattern(1, 4096);
            let write = |data: &[u8]| Command::write(1, 0, 8, data).in_capsule();
            let cqe = connection.ask(&write(&old), 1).await?;
            assert_eq!(u16_at(&cqe, 14), 0);
            let (sqe, _) = write(&pattern(2, 4096)).encode(2, 8192);
            for at_from_end in [1, 5, 4000] {
                let mut pdu = pdu::capsule(digests, &sqe, &pattern(2, 4096));
                let at = pdu.len() - at_from_end;
                pdu[at] ^= 0x80;
                connection.send(&pdu).await;
                let response = connection.expect(pdu::CAPSULE_RESP).await?;
                assert_eq!(u16_at(&response.header, 20), 2, "CID");
                assert_eq!(
                    u16_at(&response.header, 22) >> 1,
                    TRANSIENT_TRANSPORT,
                    "no DNR: a host tries again"
                );
            }
            assert!(read_block(&mut connection, 4096).await? == old, "corrupted data is not written");
        }
        Ok(())
    });
    target.stop();
}

/// Reads `bytes` from block 0.
async fn read_block(connection: &mut Connection, bytes: usize) -> Result<Vec<u8>, Failure> {
    let (sqe, _) = Command::read(1, 0, (bytes / 512) as u32, bytes).encode(9, 0);
    connection.send(&pdu::capsule(connection.wire.digests, &sqe, &[])).await;
    let mut data = Vec::new();
    loop {
        let pdu = connection.next().await?;
        match pdu.kind {
            pdu::C2H_DATA => data.extend(pdu.data),
            pdu::CAPSULE_RESP => return Ok(data),
            other => panic!("PDU type {other:02x}h"),
        }
        if pdu.flags & pdu::SUCCESS != 0 {
            return Ok(data);
        }
    }
}

#[test]
fn corrupted_solicited_data_fails_only_its_command() {
    let target = Target::configured(&one_memory());
    run(async {
        for digests in [BOTH, Digests { header: false, data: true }] {
            let (_host, mut connection) = raw_io(&target, digests).await?;
            let old = pattern(3, 16 << 10);
            for (data, corrupted) in
                [(old.clone(), None), (pattern(4, 16 << 10), Some(0)), (pattern(5, 16 << 10), Some(3))]
            {
                let (sqe, _) = Command::write(1, 0, 32, &data).by_r2t().encode(5, 8192);
                connection.send(&pdu::capsule(digests, &sqe, &[])).await;
                let r2t = connection.expect(pdu::R2T).await?;
                assert_eq!(
                    (u32_at(&r2t.header, 12), u32_at(&r2t.header, 16)),
                    (0, 16 << 10),
                    "one R2T for all of it"
                );
                let ttag = u16_at(&r2t.header, 10);
                for (index, piece) in data.chunks(4096).enumerate() {
                    let mut pdu = pdu::h2c_data(digests, 5, ttag, index * 4096, piece, index == 3);
                    assert_ne!(pdu[1] & DDGSTF, 0);
                    if corrupted == Some(index) {
                        let last = pdu.len() - 1;
                        pdu[last - 100] ^= 4;
                    }
                    connection.send(&pdu).await;
                }
                let response = connection.expect(pdu::CAPSULE_RESP).await?;
                let expected = if corrupted.is_some() { TRANSIENT_TRANSPORT } else { 0 };
                assert_eq!(u16_at(&response.header, 22) >> 1, expected, "{corrupted:?}");
            }
            assert!(read_block(&mut connection, 16 << 10).await? == old, "corrupted data is not written");
        }
        Ok(())
    });
    target.stop();
}

/// Once digests are agreed on, a PDU without one is a protocol error.
#[test]
fn a_missing_digest_ends_the_connection() {
    let target = Target::configured(&one_memory());
    run(async {
        for flags in [0, DDGSTF] {
            let (_host, mut connection) = raw_io(&target, BOTH).await?;
            let (sqe, _) = Command::write(1, 0, 1, &[1; 512]).in_capsule().encode(7, 8192);
            let mut pdu = pdu::capsule(BOTH, &sqe, &[1; 512]);
            pdu[1] = flags;
            let digest = pdu::crc32c(&pdu[..72]);
            pdu[72..76].copy_from_slice(&digest.to_le_bytes());
            connection.send(&pdu).await;
            connection.expect_terminated(&[1, 3]).await?;
        }
        Ok(())
    });
    target.stop();
}
