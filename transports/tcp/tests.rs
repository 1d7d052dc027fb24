//! The codec under arbitrary bytes and arbitrary cuts.

use super::{
    header::HeaderReader,
    pdu::{self, Common, Digests, Fatal, HostData, IcReq, Piece, field, flag, kind},
};
use nvme::{Cid, Completion, Cqe, Qid, Status};
use proptest::prelude::*;

const ALL_DIGESTS: [Digests; 4] = [
    Digests { header: false, data: false },
    Digests { header: true, data: false },
    Digests { header: false, data: true },
    Digests { header: true, data: true },
];

fn digests() -> impl Strategy<Value = Digests> {
    prop::sample::select(&ALL_DIGESTS[..])
}

/// A PDU as a correct host sends it.
fn host_pdu(kind: u8, digests: Digests, padding: usize, fields: &[u8], data: &[u8]) -> Vec<u8> {
    let header_len = if kind == kind::CAPSULE_CMD { pdu::COMMAND_HEADER } else { pdu::SHORT_HEADER };
    let mut pdu = vec![0; header_len];
    let n = fields.len().min(header_len - 8);
    pdu[8..8 + n].copy_from_slice(&fields[..n]);
    pdu[0] = kind;
    pdu[1] = if digests.header { flag::HEADER_DIGEST } else { 0 };
    pdu[2] = header_len as u8;
    let mut len = header_len + digests.header_len();
    if !data.is_empty() {
        let offset = (len + padding).next_multiple_of(4).min(pdu::MAX_DATA_OFFSET);
        pdu[1] |= if digests.data { flag::DATA_DIGEST } else { 0 };
        pdu[3] = offset as u8;
        len = offset + data.len() + digests.data_len();
    }
    pdu[4..8].copy_from_slice(&(len as u32).to_le_bytes());
    if digests.header {
        let sum = pdu::digest(&pdu);
        pdu.extend_from_slice(&sum);
    }
    if !data.is_empty() {
        pdu.resize(pdu[3] as usize, 0);
        pdu.extend_from_slice(data);
        if digests.data {
            pdu.extend_from_slice(&pdu::digest(data));
        }
    }
    pdu
}

/// Reads headers until the stream ends or breaks, in pieces; data is skipped.
fn read_all(stream: &[u8], cuts: &[usize], digests: Digests) -> (Vec<(Common, Vec<u8>)>, Option<Fatal>) {
    let mut reader = HeaderReader::new(digests);
    let (mut found, mut skip, mut at, mut turn) = (Vec::new(), 0, 0, 0);
    while at < stream.len() {
        let piece = cuts.get(turn % cuts.len().max(1)).copied().unwrap_or(stream.len()).max(1);
        turn += 1;
        let end = (at + piece).min(stream.len());
        while at < end {
            if skip > 0 {
                let n = skip.min(end - at);
                (skip, at) = (skip - n, at + n);
                continue;
            }
            match reader.take(&stream[at..end]) {
                Ok(Some(complete)) => {
                    at += complete.used;
                    skip = complete.common.data_len
                        + if complete.common.data_len > 0 { digests.data_len() } else { 0 };
                    found.push((complete.common, complete.bytes[..complete.common.header_len].to_vec()));
                }
                Ok(None) => at = end,
                Err(fatal) => return (found, Some(fatal)),
            }
        }
    }
    (found, None)
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), cuts in prop::collection::vec(1..50usize, 0..8), digests in digests()) {
        let _ = read_all(&bytes, &cuts, digests);
        if let Some(first) = bytes.first_chunk() {
            let _ = IcReq::check_common(first);
        }
        if let Some(request) = bytes.first_chunk() {
            let _ = IcReq::parse(request);
        }
    }

    #[test]
    fn a_header_that_is_almost_right_never_panics(
        kind in 0..12u8, flags: u8, len in prop::sample::select(vec![24u8, 72, 128, 0, 25]), offset: u8, plen in 0..20_000u32,
        digests in digests(),
    ) {
        let mut first = [kind, flags, len, offset, 0, 0, 0, 0];
        first[4..].copy_from_slice(&plen.to_le_bytes());
        if let Ok(common) = Common::parse(&first, digests) {
            // What is promised is what the length says, and the header fits its place.
            prop_assert!(common.before_data <= pdu::MAX_DATA_OFFSET && common.header_len <= common.before_data);
            if kind != kind::H2C_TERM_REQ {
                let digest = if common.data_len > 0 { digests.data_len() } else { 0 };
                prop_assert_eq!(common.before_data + common.data_len + digest, plen as usize);
            }
        }
    }

    #[test]
    fn a_stream_reads_the_same_however_it_is_cut(
        pdus in prop::collection::vec((any::<bool>(), any::<[u8; 64]>(), 1..300usize, any::<bool>(), 0..40usize), 1..8),
        cuts in prop::collection::vec(1..90usize, 1..8),
        digests in digests(),
    ) {
        let mut stream = Vec::new();
        for (is_command, fields, data_len, has_data, padding) in &pdus {
            let data = vec![7; if *has_data || !is_command { *data_len } else { 0 }];
            let kind = if *is_command { kind::CAPSULE_CMD } else { kind::H2C_DATA };
            stream.extend(host_pdu(kind, digests, *padding, fields, &data));
        }
        let whole = read_all(&stream, &[], digests);
        prop_assert_eq!((whole.0.len(), whole.1), (pdus.len(), None));
        for ((is_command, fields, ..), (_, header)) in pdus.iter().zip(&whole.0) {
            let expected = if *is_command { &fields[..] } else { &fields[..16] };
            prop_assert_eq!(&header[8..], expected);
        }
        prop_assert_eq!(read_all(&stream, &cuts, digests), whole);
    }

    #[test]
    fn a_flipped_bit_in_a_header_with_digest_is_noticed(fields: [u8; 64], bit in 0..576usize) {
        let digests = ALL_DIGESTS[1];
        let mut stream = host_pdu(kind::CAPSULE_CMD, digests, 0, &fields, &[]);
        stream[bit / 8] ^= 1 << (bit % 8);
        let (found, fatal) = read_all(&stream, &[], digests);
        prop_assert!(fatal.is_some() || found.is_empty());
    }

    #[test]
    fn what_we_encode_says_what_was_meant(cid: u16, tag: u16, len in 1..2_000_000usize, offset in 0..2_000_000usize, last: bool, hpda in 0..32usize, digests in digests()) {
        let data = pdu::encode_data(Cid(cid), Piece { offset, len, last, success: true }, (hpda + 1) * 4, digests);
        let bytes = data.as_bytes();
        let data_offset = bytes[3] as usize;
        prop_assert!(data_offset == bytes.len() && data_offset.is_multiple_of((hpda + 1) * 4));
        prop_assert!(data_offset <= pdu::MAX_DATA_OFFSET);
        let plen = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) as usize;
        prop_assert_eq!(plen, data_offset + len + digests.data_len());
        let sent = HostData::parse(bytes);
        prop_assert_eq!((sent.cid, sent.offset, sent.len, sent.last), (Cid(cid), offset, len, last));
        prop_assert_eq!(bytes[1] & flag::SUCCESS != 0, last);
        if digests.header {
            prop_assert_eq!(&bytes[24..28], &pdu::digest(&bytes[..24])[..]);
        }
        let r2t = pdu::encode_r2t(Cid(cid), tag, len, digests);
        let meant = HostData::parse(r2t.as_bytes());
        prop_assert_eq!((meant.cid, meant.tag, meant.offset, meant.len), (Cid(cid), tag, 0, len));
    }
}

#[test]
fn the_digest_is_crc_32c() {
    assert_eq!(pdu::digest(b"123456789"), [0x83, 0x92, 0x06, 0xe3]);
    for len in [0, 1, 4096, 10_000] {
        assert_eq!(pdu::digest_of_zeroes(len), pdu::digest(&vec![0; len]));
    }
}

#[test]
fn wrong_headers_name_the_wrong_field() {
    let none = Digests::default();
    let parse = |bytes: [u8; 8], digests| Common::parse(&bytes, digests).map(|_| ());
    assert_eq!(parse([9, 0, 24, 0, 24, 0, 0, 0], none), Err(Fatal::InvalidField(field::TYPE)));
    assert_eq!(parse([0, 0, 128, 0, 128, 0, 0, 0], none), Err(Fatal::Sequence));
    assert_eq!(parse([4, 0, 24, 0, 72, 0, 0, 0], none), Err(Fatal::InvalidField(field::HEADER_LENGTH)));
    assert_eq!(parse([4, 0, 72, 0, 71, 0, 0, 0], none), Err(Fatal::InvalidField(field::LENGTH)));
    assert_eq!(parse([4, 0, 72, 70, 80, 0, 0, 0], none), Err(Fatal::InvalidField(field::DATA_OFFSET)));
    assert_eq!(parse([4, 0, 72, 74, 80, 0, 0, 0], none), Err(Fatal::InvalidField(field::DATA_OFFSET)));
    assert_eq!(parse([4, 0, 72, 132, 200, 0, 0, 0], none), Err(Fatal::InvalidField(field::DATA_OFFSET)));
    assert_eq!(parse([4, 0, 72, 0, 76, 0, 0, 0], ALL_DIGESTS[1]), Err(Fatal::InvalidField(field::FLAGS)));
    assert_eq!(parse([4, 1, 72, 76, 90, 0, 0, 0], ALL_DIGESTS[3]), Err(Fatal::InvalidField(field::FLAGS)));
}

#[test]
fn a_response_carries_its_completion() {
    let completion = Completion { status: Status::LBA_OUT_OF_RANGE.dnr(), result: 7 };
    let cqe = Cqe::new(completion, 3, Qid(1), Cid(0xf00d));
    for digests in ALL_DIGESTS {
        let header = pdu::encode_response(&cqe, digests);
        let bytes = header.as_bytes();
        assert_eq!(bytes.len(), 24 + digests.header_len());
        assert_eq!(usize::from(bytes[4]), bytes.len());
        assert_eq!(&bytes[8..24], cqe.as_bytes());
    }
}

#[test]
fn a_termination_request_shows_the_offending_header() {
    let pdu = pdu::encode_term_req(Fatal::InvalidField(4), &[6; 300]);
    assert_eq!((pdu[0], pdu[2], pdu.len()), (kind::C2H_TERM_REQ, 24, 152));
    assert_eq!((&pdu[8..14], &pdu[24..]), (&[1, 0, 4, 0, 0, 0][..], &[6; 128][..]));
    assert_eq!(pdu::encode_term_req(Fatal::Sequence, &[]).len(), 28);
}
