//! Every protocol error of NVMe/TCP: which Fatal Error Status (FES) and which information (FEI) the C2HTermReq carries,
//! that it shows the header in question, and that one connection ends and nothing else. One row for each line of the sheet.

use crate::host::pdu::{self, C2H_TERM, DDGSTF, HDGSTF};
use crate::host::target::{ONE_NQN, one_memory};
use crate::host::*;
use crate::hostile::Bystander;

const NONE: Digests = Digests::NONE;
const HEADER: Digests = Digests { header: true, data: false };
const BOTH: Digests = Digests { header: true, data: true };

const INVALID_HEADER_FIELD: u16 = 1;
const PDU_SEQUENCE: u16 = 2;
const HEADER_DIGEST: u16 = 3;
const OUT_OF_RANGE: u16 = 4;
const LIMIT_EXCEEDED: u16 = 5;
const UNSUPPORTED: u16 = 6;

/// The labels of `weft_protocol_errors_total` by FES, from 1 on.
const LABELS: [&str; 6] = [
    "invalid_header_field",
    "pdu_sequence",
    "header_digest",
    "data_out_of_range",
    "limit_exceeded",
    "unsupported_parameter",
];

/// A wrong PDU, what it must be answered with, and what comes before it on the wire.
struct Row {
    words: &'static str,
    before: Vec<u8>,
    wrong: Vec<u8>,
    fes: u16,
    fei: u32,
}

fn row(words: &'static str, wrong: Vec<u8>, fes: u16, fei: u32) -> Row {
    Row { words, before: Vec::new(), wrong, fes, fei }
}

/// The same bytes with some of them changed.
fn with(pdu: &[u8], changes: &[(usize, u8)]) -> Vec<u8> {
    let mut pdu = pdu.to_vec();
    changes.iter().for_each(|&(at, value)| pdu[at] = value);
    pdu
}

/// The same PDU with another PLEN.
fn with_length(pdu: &[u8], length: u32) -> Vec<u8> {
    let mut pdu = pdu.to_vec();
    pdu[4..8].copy_from_slice(&length.to_le_bytes());
    pdu
}

/// A PDU whose header was changed, with a header digest that fits again.
fn digested(mut pdu: Vec<u8>) -> Vec<u8> {
    let header = usize::from(pdu[2]);
    let digest = pdu::crc32c(&pdu[..header]);
    pdu[header..header + 4].copy_from_slice(&digest.to_le_bytes());
    pdu
}

/// An I/O queue pair at the raw level, next to the host whose it is.
async fn raw_io(target: &Target, digests: Digests) -> Result<(Host, Connection), Failure> {
    let host = Host::connect(target, ONE_NQN, Options::with(digests)).await?;
    let connection = Connection::io(target.address, &host.io_connect(1, 16), digests).await?;
    Ok((host, connection))
}

/// Sends the row and holds the answer against it.
async fn check(connection: &mut Connection, row: &Row) -> Result<(), Failure> {
    let words = row.words;
    connection.send(&[&row.before[..], &row.wrong].concat()).await;
    let term = connection.expect(C2H_TERM).await?;
    let got = (u16_at(&term.header, 8), u32_at(&term.header, 10));
    assert_eq!(got, (row.fes, row.fei), "FES and FEI of: {words}");
    assert!(term.data.len() >= 4, "{words}: hosts want to see four bytes of the header");
    let shown = &term.data[..term.data.len().min(row.wrong.len())];
    assert!(row.wrong.starts_with(shown), "{words}: shown {shown:02x?}, sent {:02x?}", &row.wrong[..24]);
    connection.leave_after_termination().await
}

/// All rows were counted by their FES, and nobody else was hurt.
async fn counted(target: &Target, bystander: Bystander, rows: &[Row]) -> Result<(), Failure> {
    for (index, label) in LABELS.iter().enumerate() {
        let expected = rows.iter().filter(|row| usize::from(row.fes) == index + 1).count();
        let labels = [("error", *label)];
        target.metric_becomes("weft_protocol_errors_total", &labels, expected as f64).await?;
    }
    bystander.works().await?;
    bystander.is_alone(target).await
}

fn before_icresp() -> Vec<Row> {
    let icreq = pdu::icreq(Wire::default());
    let (sqe, _) = Command::keep_alive().encode(1, 0);
    vec![
        row("first PDU must be ICReq: CapsuleCmd", pdu::capsule(NONE, &sqe, &[]), PDU_SEQUENCE, 0),
        row("first PDU: H2CData", pdu::h2c_data(NONE, 1, 1, 0, &[0; 64], true), PDU_SEQUENCE, 0),
        row("first PDU: H2CTermReq", with(&icreq, &[(0, pdu::H2C_TERM), (2, 24)]), PDU_SEQUENCE, 0),
        row("first PDU: a type of the controller", with(&icreq, &[(0, pdu::ICRESP)]), PDU_SEQUENCE, 0),
        row("first PDU: unknown type", with(&icreq, &[(0, 0x47)]), PDU_SEQUENCE, 0),
        row("wrong HLEN", with(&icreq, &[(2, 127)]), INVALID_HEADER_FIELD, 2),
        row("PLEN != 128", with(&icreq, &[(4, 129)]), INVALID_HEADER_FIELD, 4),
        row("PLEN of gigabytes", with(&icreq, &[(7, 0xff)]), INVALID_HEADER_FIELD, 4),
        row("bad PFV", with(&icreq, &[(8, 1)]), INVALID_HEADER_FIELD, 8),
        row("HPDA > 31", with(&icreq, &[(10, 32)]), INVALID_HEADER_FIELD, 10),
    ]
}

#[test]
fn errors_in_icreq() {
    let target = Target::configured(&one_memory());
    let rows = before_icresp();
    run(async {
        let bystander = Bystander::arrive(&target).await?;
        for row in &rows {
            let mut connection = Connection::raw(target.address).await?;
            check(&mut connection, row).await?;
        }
        counted(&target, bystander, &rows).await
    });
    // Whatever knocks at the port: nothing an operator could do anything about.
    assert!(!target.log().contains("WARN"), "{}", target.log());
    target.stop();
}

fn headers() -> Vec<Row> {
    let (sqe, _) = Command::write(1, 0, 1, &[1; 512]).in_capsule().encode(1, 8192);
    let capsule = pdu::capsule(NONE, &sqe, &[1; 512]);
    let data = pdu::h2c_data(NONE, 1, 0xfff0, 0, &[0; 64], true);
    let moved = with(&capsule, &[(8 + 24, 4)]);
    let (large, _) = Command::write(1, 0, 32, &[1; 16 << 10]).in_capsule().encode(1, 0);
    vec![
        row("a second ICReq", pdu::icreq(Wire::default()), PDU_SEQUENCE, 0),
        row("unknown type", with(&capsule, &[(0, 0x30)]), INVALID_HEADER_FIELD, 0),
        row("reserved type 08h", with(&capsule, &[(0, 8)]), INVALID_HEADER_FIELD, 0),
        row("CapsuleResp from a host", with(&capsule, &[(0, 5)]), INVALID_HEADER_FIELD, 0),
        row("C2HData from a host", with(&data, &[(0, 7)]), INVALID_HEADER_FIELD, 0),
        row("R2T from a host", with(&data, &[(0, 9)]), INVALID_HEADER_FIELD, 0),
        row("wrong HLEN of CapsuleCmd", with(&capsule, &[(2, 71)]), INVALID_HEADER_FIELD, 2),
        row("HLEN 0", with(&capsule, &[(2, 0)]), INVALID_HEADER_FIELD, 2),
        row("wrong HLEN of H2CData", with(&data, &[(2, 28)]), INVALID_HEADER_FIELD, 2),
        row("PDO < HLEN", with(&capsule, &[(3, 8)]), INVALID_HEADER_FIELD, 3),
        row("PDO > 128", with(&capsule, &[(3, 132)]), INVALID_HEADER_FIELD, 3),
        row("PDO not aligned", with(&capsule, &[(3, 74)]), INVALID_HEADER_FIELD, 3),
        row("PDO of H2CData not aligned", with(&data, &[(3, 27)]), INVALID_HEADER_FIELD, 3),
        row("PLEN shorter than the header", with_length(&capsule, 40), INVALID_HEADER_FIELD, 4),
        row("PLEN 0", with_length(&data, 0), INVALID_HEADER_FIELD, 4),
        row("PLEN of four gigabytes", with_length(&capsule, u32::MAX), LIMIT_EXCEEDED, 0),
        row(
            "HDGSTF although no header digest was agreed on",
            with(&capsule, &[(1, HDGSTF)]),
            INVALID_HEADER_FIELD,
            1,
        ),
        row(
            "DDGSTF although no data digest was agreed on",
            with(&capsule, &[(1, DDGSTF)]),
            INVALID_HEADER_FIELD,
            1,
        ),
        row(
            "in-capsule length != data bytes present in PDU",
            with_length(&capsule, 72 + 508),
            INVALID_HEADER_FIELD,
            4,
        ),
        row(
            "in-capsule data that no descriptor speaks of",
            with(&capsule, &[(8 + 39, 0x5a)]),
            INVALID_HEADER_FIELD,
            4,
        ),
        row("in-capsule address != 0", moved, UNSUPPORTED, 32),
        row(
            "in-capsule length larger than advertised",
            pdu::capsule(NONE, &large, &[1; 16 << 10]),
            LIMIT_EXCEEDED,
            0,
        ),
        row("H2CData before any R2T", data.clone(), INVALID_HEADER_FIELD, 10),
        row("PLEN and DATAL of H2CData disagree", with(&data, &[(16, 60)]), INVALID_HEADER_FIELD, 4),
        row("DATAL 0 and no data", with(&with_length(&data[..24], 24), &[(16, 0)]), INVALID_HEADER_FIELD, 16),
        row("DATAL 0 but data", with(&data, &[(16, 0)]), INVALID_HEADER_FIELD, 4),
    ]
}

#[test]
fn errors_in_headers() {
    let target = Target::configured(&one_memory());
    let rows = headers();
    run(async {
        let bystander = Bystander::arrive(&target).await?;
        for row in &rows {
            let (_host, mut connection) = raw_io(&target, NONE).await?;
            check(&mut connection, row).await?;
        }
        counted(&target, bystander, &rows).await
    });
    target.stop();
}

/// The same errors are found on an admin queue, and however the header is cut.
#[test]
fn errors_on_the_admin_queue_and_byte_by_byte() {
    let target = Target::configured(&one_memory());
    run(async {
        let bystander = Bystander::arrive(&target).await?;
        for row in headers().into_iter().filter(|row| row.fes != LIMIT_EXCEEDED) {
            let (mut connection, _) = Connection::admin(target.address, ONE_NQN, NONE).await?;
            for byte in &row.wrong[..row.wrong.len().min(80)] {
                connection.send(&[*byte]).await;
            }
            let term = connection.expect(C2H_TERM).await?;
            let got = (u16_at(&term.header, 8), u32_at(&term.header, 10));
            assert_eq!(got, (row.fes, row.fei), "FES and FEI of: {}", row.words);
            connection.leave_after_termination().await?;
        }
        bystander.works().await?;
        bystander.is_alone(&target).await
    });
    target.stop();
}

#[test]
fn errors_with_digests() {
    let target = Target::configured(&one_memory());
    let (sqe, _) = Command::write(1, 0, 1, &[1; 512]).in_capsule().encode(1, 8192);
    let mut rows = Vec::new();
    for digests in [HEADER, BOTH] {
        let capsule = pdu::capsule(digests, &sqe, &[1; 512]);
        let sum = u32_at(&capsule, 72);
        rows.push((digests, row("header digest error", with(&capsule, &[(50, 0x77)]), HEADER_DIGEST, sum)));
        let wrong = with(&capsule, &[(73, !capsule[73])]);
        rows.push((digests, row("a wrong digest", wrong, HEADER_DIGEST, sum ^ 0xff00)));
        let data = pdu::h2c_data(digests, 1, 0xfff0, 0, &[0; 64], true);
        let sum = u32_at(&data, 24);
        rows.push((digests, row("of H2CData", with(&data, &[(17, 1)]), HEADER_DIGEST, sum)));
        let without = digested(with(&capsule, &[(1, capsule[1] & !HDGSTF)]));
        rows.push((digests, row("HDGSTF must be 1 once negotiated", without, INVALID_HEADER_FIELD, 1)));
        let into = digested(with(&capsule, &[(3, 72)]));
        rows.push((digests, row("PDO < HLEN + 4", into, INVALID_HEADER_FIELD, 3)));
        let short = digested(with_length(&capsule, 72));
        rows.push((digests, row("PLEN without room for the digest", short, INVALID_HEADER_FIELD, 4)));
    }
    let capsule = pdu::capsule(BOTH, &sqe, &[1; 512]);
    let without = digested(with(&capsule, &[(1, HDGSTF)]));
    rows.push((BOTH, row("DDGSTF must be 1 when there is data", without, INVALID_HEADER_FIELD, 1)));
    let short = digested(with_length(&capsule, 76 + 3));
    rows.push((BOTH, row("PLEN without room for the data digest", short, INVALID_HEADER_FIELD, 4)));
    run(async {
        let bystander = Bystander::arrive(&target).await?;
        for (digests, row) in &rows {
            let (_host, mut connection) = raw_io(&target, *digests).await?;
            check(&mut connection, row).await?;
        }
        let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
        counted(&target, bystander, &rows).await
    });
    target.stop();
}

/// What answers an R2T for 16 KiB of the command 9 under `tag`, wrongly.
fn answers(tag: u16) -> Vec<Row> {
    let piece = |offset, len, last| pdu::h2c_data(NONE, 9, tag, offset, &vec![1; len], last);
    vec![
        row(
            "TTAG unknown",
            pdu::h2c_data(NONE, 9, tag ^ 0x4000, 0, &[1; 512], false),
            INVALID_HEADER_FIELD,
            10,
        ),
        row(
            "CCCID of another command",
            pdu::h2c_data(NONE, 8, tag, 0, &[1; 512], false),
            INVALID_HEADER_FIELD,
            8,
        ),
        row("DATAO != next expected offset: a gap", piece(512, 512, false), OUT_OF_RANGE, 0),
        Row {
            before: piece(0, 512, false),
            ..row("DATAO: the same piece twice", piece(0, 512, false), OUT_OF_RANGE, 0)
        },
        Row {
            before: piece(0, 8192, false),
            ..row("DATAO: backwards", piece(4096, 512, false), OUT_OF_RANGE, 0)
        },
        row("DATAO near the end of 32 bits", piece(0xffff_fe00, 512, false), OUT_OF_RANGE, 0),
        row("DATAO + DATAL > R2TO + R2TL", piece(0, 17 << 10, true), OUT_OF_RANGE, 0),
        Row {
            before: piece(0, 15 << 10, false),
            ..row("the last piece too long", piece(15 << 10, 2 << 10, true), OUT_OF_RANGE, 0)
        },
        row("DATAL > MAXH2CDATA", piece(0, (1 << 20) + 512, true), LIMIT_EXCEEDED, 0),
        row("LAST_PDU too early", piece(0, 512, true), INVALID_HEADER_FIELD, 1),
        row("LAST_PDU missing", piece(0, 16 << 10, false), INVALID_HEADER_FIELD, 1),
        Row {
            before: piece(0, 16 << 10, true),
            ..row("TTAG of a finished command", piece(0, 512, true), INVALID_HEADER_FIELD, 10)
        },
    ]
}

#[test]
fn errors_in_h2cdata() {
    let target = Target::configured(&one_memory());
    run(async {
        let bystander = Bystander::arrive(&target).await?;
        let mut rows = Vec::new();
        for index in 0..answers(0).len() {
            let (_host, mut connection) = raw_io(&target, NONE).await?;
            let (sqe, _) = Command::write(1, 0, 32, &[1; 16 << 10]).by_r2t().encode(9, 0);
            connection.send(&pdu::capsule(NONE, &sqe, &[])).await;
            let r2t = connection.expect(pdu::R2T).await?;
            let mut row = answers(u16_at(&r2t.header, 10)).swap_remove(index);
            if row.words == "TTAG of a finished command" {
                connection.send(&std::mem::take(&mut row.before)).await;
                connection.expect(pdu::CAPSULE_RESP).await?;
            }
            check(&mut connection, &row).await?;
            rows.push(row);
        }
        // Data for a command that reads: there never was an R2T for it.
        let (host, mut connection) = raw_io(&target, NONE).await?;
        let (sqe, _) = Command::read(1, 0, 32, 16 << 10).encode(9, 0);
        connection.send(&pdu::capsule(NONE, &sqe, &[])).await;
        let mut read = 0;
        while read < 16 << 10 {
            read += connection.expect(pdu::C2H_DATA).await?.data.len();
        }
        let row = row(
            "for a read command",
            pdu::h2c_data(NONE, 9, 0, 0, &[1; 512], true),
            INVALID_HEADER_FIELD,
            10,
        );
        check(&mut connection, &row).await?;
        rows.push(row);
        drop(host);
        counted(&target, bystander, &rows).await
    });
    target.stop();
}

/// A host that sends more commands than its queue holds loses its own queue pair, and is told why.
#[test]
fn more_commands_than_the_queue_holds() {
    let target = Target::configured(&one_memory());
    run(async {
        let bystander = Bystander::arrive(&target).await?;
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let mut connection = Connection::io(target.address, &host.io_connect(1, 4), NONE).await?;
        let mut flood = Vec::new();
        for cid in 0..64 {
            // None of them can end: their data is not sent.
            let (sqe, _) = Command::write(1, 0, 32, &[1; 16 << 10]).by_r2t().encode(cid, 0);
            flood.extend(pdu::capsule(NONE, &sqe, &[]));
        }
        connection.send(&flood).await;
        loop {
            let pdu = connection.next().await?;
            if pdu.kind == C2H_TERM {
                assert_eq!(u16_at(&pdu.header, 8), PDU_SEQUENCE);
                break;
            }
            assert_eq!(pdu.kind, pdu::R2T);
        }
        connection.leave_after_termination().await?;
        drop(host);
        target.metric_becomes("weft_protocol_errors_total", &[("error", "pdu_sequence")], 1.0).await?;
        assert!(target.log().contains("more commands than the queue holds"), "{}", target.log());
        bystander.works().await?;
        bystander.is_alone(&target).await
    });
    target.stop();
}

/// H2CTermReq: no reply, the connection closes, and what the host said is in the log and on the metrics page.
#[test]
fn what_a_host_says_with_h2ctermreq() {
    let target = Target::configured(&one_memory());
    let words = [
        "invalid PDU header field",
        "PDU sequence error",
        "header digest error",
        "data transfer out of range",
        "limit on data or R2Ts exceeded",
        "unsupported parameter",
    ];
    run(async {
        let bystander = Bystander::arrive(&target).await?;
        for digests in [NONE, BOTH] {
            for fes in 1..=6 {
                let (_host, mut connection) = raw_io(&target, digests).await?;
                let mut term = vec![pdu::H2C_TERM, 0, 24, 0, 24 + 72, 0, 0, 0];
                term.resize(24 + 72, 0);
                (term[8], term[10]) = (fes, 3);
                connection.send(&term).await;
                connection.expect_closed().await?;
            }
        }
        for (label, words) in LABELS.iter().zip(words) {
            target.metric_becomes("weft_host_terminations_total", &[("error", *label)], 2.0).await?;
            let line = format!("H2CTermReq: {words}, FEI 3");
            assert!(target.log().contains(&line), "{line}: {}", target.log());
        }
        bystander.works().await?;
        bystander.is_alone(&target).await
    });
    target.stop();
}

/// A damaged Connect is a failed command like any other.
#[test]
fn a_data_digest_error_in_connect() {
    let target = Target::configured(&one_memory());
    run(async {
        let mut connection = Connection::raw(target.address).await?;
        connection.initialize(Wire { digests: BOTH, hpda: 0 }).await?;
        let connect = Options::default().connect(ONE_NQN, 0, 31).command();
        let (sqe, _) = connect.encode(77, 8192);
        let mut pdu = pdu::capsule(BOTH, &sqe, &connect.data);
        pdu[300] ^= 1;
        connection.send(&pdu).await;
        let response = connection.expect(pdu::CAPSULE_RESP).await?;
        assert_eq!(u16_at(&response.header, 20), 77, "CID");
        assert_eq!(u16_at(&response.header, 22) >> 1, TRANSIENT_TRANSPORT, "without DNR");
        connection.shut_down_sending();
        connection.expect_closed().await
    });
    target.stop();
}
