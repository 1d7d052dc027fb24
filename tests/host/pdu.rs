//! NVMe/TCP PDUs as the test host sees them: encoders for what a host sends, and a parser that refuses everything a
//! controller should not send (lengths, flags, padding, reserved bytes, digests). It does no I/O and shares no code
//! with weft, so that one misreading of the specification cannot hide in both ends.

/// Initialize Connection Request, host to controller.
pub const ICREQ: u8 = 0x00;
/// Initialize Connection Response, controller to host.
pub const ICRESP: u8 = 0x01;
/// Host to Controller Terminate Connection Request.
pub const H2C_TERM: u8 = 0x02;
/// Controller to Host Terminate Connection Request.
pub const C2H_TERM: u8 = 0x03;
/// Command Capsule, host to controller.
pub const CAPSULE_CMD: u8 = 0x04;
/// Response Capsule, controller to host.
pub const CAPSULE_RESP: u8 = 0x05;
/// Host to Controller Data.
pub const H2C_DATA: u8 = 0x06;
/// Controller to Host Data.
pub const C2H_DATA: u8 = 0x07;
/// Ready to Transfer, controller to host.
pub const R2T: u8 = 0x09;

/// FLAGS bit 0, HDGSTF: a header digest is present.
pub const HDGSTF: u8 = 1;
/// FLAGS bit 1, DDGSTF: a data digest is present.
pub const DDGSTF: u8 = 2;
/// FLAGS bit 2, LAST_PDU: the last data PDU of the command (or of the R2T).
pub const LAST_PDU: u8 = 4;
/// FLAGS bit 3, SUCCESS: the command succeeded and no response capsule follows.
pub const SUCCESS: u8 = 8;

/// Which digests a connection carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// Every header but those of ICReq, ICResp and TermReq ends in a CRC-32C.
    pub header: bool,
    /// Every data field ends in a CRC-32C.
    pub data: bool,
}

impl Digests {
    /// No digests.
    pub const NONE: Self = Self { header: false, data: false };
    /// All four combinations.
    pub const ALL: [Self; 4] = [
        Self::NONE,
        Self { header: true, data: false },
        Self { header: false, data: true },
        Self { header: true, data: true },
    ];

    /// The DGST field of ICReq: bit 0 header, bit 1 data.
    pub fn dgst(self) -> u8 {
        u8::from(self.header) | u8::from(self.data) << 1
    }

    pub fn header_bytes(self) -> usize {
        if self.header { 4 } else { 0 }
    }

    fn data_bytes(self) -> usize {
        if self.data { 4 } else { 0 }
    }
}

/// What both ends agreed about one connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wire {
    /// The digests in use.
    pub digests: Digests,
    /// HPDA as sent in ICReq, 0's based dwords: the alignment of data in C2HData.
    pub hpda: u8,
}

/// CRC-32C as both digests use it.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The 16 bits at `at`, little-endian.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The 32 bits at `at`, little-endian.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

/// The 64 bits at `at`, little-endian.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// ICReq: PFV 0, the given HPDA and digests, MAXR2T 0 (one R2T per command).
pub fn icreq(wire: Wire) -> Vec<u8> {
    let mut pdu = vec![0; 128];
    pdu[..8].copy_from_slice(&[ICREQ, 0, 128, 0, 128, 0, 0, 0]);
    pdu[10] = wire.hpda;
    pdu[11] = wire.digests.dgst();
    pdu
}

/// A PDU with a header of `header.len()` bytes, its digests, and `data` directly behind (alignment CPDA 0).
/// `header` comes without its first eight bytes filled in but for TYPE and the flags above bit 1.
pub fn assemble(digests: Digests, mut header: Vec<u8>, data: &[u8]) -> Vec<u8> {
    let hlen = header.len();
    let data_at = hlen + digests.header_bytes();
    let with_data_digest = digests.data && !data.is_empty();
    let plen = data_at + data.len() + if with_data_digest { 4 } else { 0 };
    header[1] |= if digests.header { HDGSTF } else { 0 } | if with_data_digest { DDGSTF } else { 0 };
    header[2] = hlen as u8;
    header[3] = if data.is_empty() { 0 } else { data_at as u8 };
    header[4..8].copy_from_slice(&(plen as u32).to_le_bytes());
    let mut pdu = header;
    pdu.reserve(plen - hlen);
    if digests.header {
        let digest = crc32c(&pdu);
        pdu.extend_from_slice(&digest.to_le_bytes());
    }
    pdu.extend_from_slice(data);
    if with_data_digest {
        pdu.extend_from_slice(&crc32c(data).to_le_bytes());
    }
    pdu
}

/// CapsuleCmd: a submission queue entry and, where there is any, in-capsule data.
pub fn capsule(digests: Digests, sqe: &[u8; 64], data: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 72];
    header[0] = CAPSULE_CMD;
    header[8..].copy_from_slice(sqe);
    assemble(digests, header, data)
}

/// H2CData: `data` at `offset` of the command's data, answering the R2T that carried `ttag`.
pub fn h2c_data(digests: Digests, cid: u16, ttag: u16, offset: usize, data: &[u8], last: bool) -> Vec<u8> {
    let mut header = vec![0; 24];
    header[0] = H2C_DATA;
    header[1] = if last { LAST_PDU } else { 0 };
    header[8..10].copy_from_slice(&cid.to_le_bytes());
    header[10..12].copy_from_slice(&ttag.to_le_bytes());
    header[12..16].copy_from_slice(&(offset as u32).to_le_bytes());
    header[16..20].copy_from_slice(&(data.len() as u32).to_le_bytes());
    assemble(digests, header, data)
}

/// One PDU from the controller, checked.
#[derive(Debug)]
pub struct Pdu {
    /// TYPE.
    pub kind: u8,
    /// FLAGS.
    pub flags: u8,
    /// The HLEN bytes of the header, common header included.
    pub header: Vec<u8>,
    /// The data field.
    pub data: Vec<u8>,
}

/// Takes one PDU from the front of `bytes`: `None` while it is not complete, an error when no controller may send it.
pub fn parse(bytes: &[u8], wire: Wire) -> Result<Option<(Pdu, usize)>, String> {
    if bytes.len() < 8 {
        return Ok(None);
    }
    let (kind, flags, hlen, pdo) = (bytes[0], bytes[1], usize::from(bytes[2]), usize::from(bytes[3]));
    let plen = u32_at(bytes, 4) as usize;
    let expected_hlen = match kind {
        ICRESP => 128,
        C2H_TERM | CAPSULE_RESP | C2H_DATA | R2T => 24,
        other => return Err(format!("a controller does not send PDU type {other:02x}h")),
    };
    check(hlen == expected_hlen, || format!("PDU type {kind:02x}h has HLEN {hlen}"))?;
    check(plen <= 24 + 4 + 104 + (64 << 20), || format!("PDU type {kind:02x}h has PLEN {plen}"))?;
    if bytes.len() < plen.max(hlen) {
        return Ok(None);
    }
    let digests = if matches!(kind, ICRESP | C2H_TERM) { Digests::NONE } else { wire.digests };
    let header = bytes[..hlen].to_vec();
    let header_end = hlen + digests.header_bytes();
    if digests.header {
        check(plen >= header_end, || format!("PLEN {plen} leaves no room for the header digest"))?;
        let (sent, computed) = (u32_at(bytes, hlen), crc32c(&header));
        check(sent == computed, || {
            format!("header digest {sent:08x}h, should be {computed:08x}h: {header:02x?}")
        })?;
    }
    let data = match kind {
        C2H_DATA => data_field(&bytes[..plen], &header, Wire { digests, hpda: wire.hpda })?,
        C2H_TERM => {
            check((25..=152).contains(&plen), || format!("C2HTermReq with PLEN {plen}"))?;
            check(pdo == 0 || pdo == 24, || format!("C2HTermReq with PDO {pdo}"))?;
            bytes[24..plen].to_vec()
        }
        _ => {
            check(plen == header_end, || format!("PDU type {kind:02x}h has PLEN {plen}, not {header_end}"))?;
            check(pdo == 0, || format!("PDU type {kind:02x}h has PDO {pdo} and no data"))?;
            Vec::new()
        }
    };
    check_flags(kind, flags, digests)?;
    check_reserved(kind, &header)?;
    Ok(Some((Pdu { kind, flags, header, data }, plen)))
}

/// The data field of C2HData: PDO, padding, DATAL and data digest all have to agree.
fn data_field(pdu: &[u8], header: &[u8], wire: Wire) -> Result<Vec<u8>, String> {
    let header_end = 24 + wire.digests.header_bytes();
    let alignment = (usize::from(wire.hpda) + 1) * 4;
    let pdo = header_end.next_multiple_of(alignment);
    check(usize::from(header[3]) == pdo, || format!("C2HData with PDO {}, should be {pdo}", header[3]))?;
    let length = u32_at(header, 16) as usize;
    let plen = pdo + length + wire.digests.data_bytes();
    check(length > 0, || "C2HData without data".to_owned())?;
    check(pdu.len() == plen, || format!("C2HData of {length} bytes with PLEN {}, not {plen}", pdu.len()))?;
    check(pdu[header_end..pdo].iter().all(|byte| *byte == 0), || {
        "padding of C2HData is not zero".to_owned()
    })?;
    let data = &pdu[pdo..pdo + length];
    if wire.digests.data {
        let (sent, computed) = (u32_at(pdu, pdo + length), crc32c(data));
        check(sent == computed, || format!("data digest {sent:08x}h, should be {computed:08x}h"))?;
    }
    Ok(data.to_vec())
}

fn check_flags(kind: u8, flags: u8, digests: Digests) -> Result<(), String> {
    let header = if digests.header { HDGSTF } else { 0 };
    let data = if digests.data { DDGSTF } else { 0 };
    let good = match kind {
        C2H_DATA => {
            flags & (HDGSTF | DDGSTF) == header | data
                && flags & !0xf == 0
                && (flags & SUCCESS == 0 || flags & LAST_PDU != 0)
        }
        _ => flags == header,
    };
    check(good, || format!("PDU type {kind:02x}h has FLAGS {flags:02x}h"))
}

fn check_reserved(kind: u8, header: &[u8]) -> Result<(), String> {
    let ranges: &[(usize, usize)] = match kind {
        ICRESP => &[(16, 128)],
        C2H_TERM => &[(14, 24)],
        C2H_DATA => &[(10, 12), (20, 24)],
        R2T => &[(20, 24)],
        _ => &[],
    };
    for &(from, to) in ranges {
        let zero = header[from..to].iter().all(|byte| *byte == 0);
        check(zero, || format!("PDU type {kind:02x}h: reserved bytes {from}..{to} are not zero"))?;
    }
    Ok(())
}

fn check(good: bool, complaint: impl FnOnce() -> String) -> Result<(), String> {
    if good { Ok(()) } else { Err(complaint()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_of_the_check_string() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn a_capsule_with_both_digests_has_the_documented_layout() {
        let both = Digests { header: true, data: true };
        let pdu = capsule(both, &[7; 64], &[9; 512]);
        assert_eq!(pdu.len(), 72 + 4 + 512 + 4);
        assert_eq!(&pdu[..8], &[CAPSULE_CMD, 3, 72, 76, 80, 2, 0, 0]);
        assert_eq!(u32_at(&pdu, 72), crc32c(&pdu[..72]));
        assert_eq!(u32_at(&pdu, 588), crc32c(&[9; 512]));
        let bare = capsule(both, &[7; 64], &[]);
        assert_eq!(
            (bare.len(), bare[1], bare[3]),
            (76, 1, 0),
            "without data there is no data digest and no PDO"
        );
    }

    #[test]
    fn wrong_pdus_are_refused() {
        let wire = Wire::default();
        let mut response = vec![CAPSULE_RESP, 0, 24, 0, 24, 0, 0, 0];
        response.resize(24, 0);
        assert!(parse(&response, wire).unwrap().is_some());
        for (at, value) in [(0, 4), (1, 1), (2, 25), (3, 24), (4, 25)] {
            let mut wrong = response.clone();
            wrong[at] = value;
            wrong.resize(40, 0);
            assert!(parse(&wrong, wire).is_err(), "byte {at} = {value}");
        }
        assert!(parse(&response[..23], wire).unwrap().is_none());
    }

    #[test]
    fn padding_follows_the_alignment_the_host_asked_for() {
        let wire = Wire { digests: Digests { header: true, data: true }, hpda: 15 };
        let data = [5; 8];
        let mut pdu = vec![C2H_DATA, HDGSTF | DDGSTF | LAST_PDU, 24, 64, 76, 0, 0, 0];
        pdu.resize(24, 0);
        pdu[16] = 8;
        let digest = crc32c(&pdu);
        pdu.extend_from_slice(&digest.to_le_bytes());
        pdu.resize(64, 0);
        pdu.extend_from_slice(&data);
        pdu.extend_from_slice(&crc32c(&data).to_le_bytes());
        let (parsed, taken) = parse(&pdu, wire).unwrap().unwrap();
        assert_eq!((parsed.data.as_slice(), taken), (&data[..], 76));
        pdu[66] ^= 1;
        assert!(parse(&pdu, wire).unwrap_err().contains("data digest"));
    }
}
