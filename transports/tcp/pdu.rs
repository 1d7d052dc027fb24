//! PDU layouts of NVMe/TCP (TCP Transport Specification, "PDU definitions"): bytes to meaning and back, no state.

use crate::ProtocolError;
use nvme::{Cid, Cqe, SglKind, Sqe};

/// Bytes of the common header (CH).
pub(crate) const COMMON_HEADER: usize = 8;
/// Bytes of ICReq and ICResp.
pub(crate) const CONNECTION_PDU: usize = 128;
/// Header length (HLEN) of a command capsule.
pub(crate) const COMMAND_HEADER: usize = 72;
/// Header length (HLEN) of all other PDUs.
pub(crate) const SHORT_HEADER: usize = 24;
/// The largest PDU data offset (PDO).
pub(crate) const MAX_DATA_OFFSET: usize = 128;
/// Bytes of a digest.
pub(crate) const DIGEST: usize = 4;
/// In-capsule data every target takes on the admin queue and for Fabrics commands on any queue.
pub(crate) const FABRICS_IN_CAPSULE: usize = 8192;

/// PDU types (byte 0).
pub(crate) mod kind {
    pub(crate) const IC_REQ: u8 = 0x00;
    pub(crate) const IC_RESP: u8 = 0x01;
    pub(crate) const H2C_TERM_REQ: u8 = 0x02;
    pub(crate) const C2H_TERM_REQ: u8 = 0x03;
    pub(crate) const CAPSULE_CMD: u8 = 0x04;
    pub(crate) const CAPSULE_RESP: u8 = 0x05;
    pub(crate) const H2C_DATA: u8 = 0x06;
    pub(crate) const C2H_DATA: u8 = 0x07;
    pub(crate) const R2T: u8 = 0x09;
}

/// Bits of FLAGS (byte 1).
pub(crate) mod flag {
    pub(crate) const HEADER_DIGEST: u8 = 1 << 0;
    pub(crate) const DATA_DIGEST: u8 = 1 << 1;
    pub(crate) const LAST: u8 = 1 << 2;
    pub(crate) const SUCCESS: u8 = 1 << 3;
}

/// Byte offsets of header fields, as FEI names them.
pub(crate) mod field {
    pub(crate) const TYPE: u32 = 0;
    pub(crate) const FLAGS: u32 = 1;
    pub(crate) const HEADER_LENGTH: u32 = 2;
    pub(crate) const DATA_OFFSET: u32 = 3;
    pub(crate) const LENGTH: u32 = 4;
    pub(crate) const FORMAT_VERSION: u32 = 8;
    pub(crate) const COMMAND_ID: u32 = 8;
    pub(crate) const TRANSFER_TAG: u32 = 10;
    pub(crate) const DATA_ALIGNMENT: u32 = 10;
    pub(crate) const DATA_LENGTH: u32 = 16;
    /// SGL1 of the command in a capsule.
    pub(crate) const SGL: u32 = 8 + 24;
}

/// A breach of the protocol, which ends the queue pair: what C2HTermReq reports (FES and FEI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fatal {
    /// FES 1: a field of the header is wrong; its offset.
    InvalidField(u32),
    /// FES 2: the PDU may not come now.
    Sequence,
    /// FES 3: the header digest does not match; the one that came.
    HeaderDigest(u32),
    /// FES 4: data outside of what was asked for.
    OutOfRange,
    /// FES 5: more data than allowed.
    LimitExceeded,
    /// FES 6: a parameter that is not supported; its offset.
    Unsupported(u32),
    /// FES 2 as well: more commands than the queue holds.
    QueueOverrun,
}

impl Fatal {
    fn report(self) -> (u16, u32) {
        match self {
            Fatal::InvalidField(offset) => (1, offset),
            Fatal::Sequence | Fatal::QueueOverrun => (2, 0),
            Fatal::HeaderDigest(received) => (3, received),
            Fatal::OutOfRange => (4, 0),
            Fatal::LimitExceeded => (5, 0),
            Fatal::Unsupported(offset) => (6, offset),
        }
    }

    /// What kind of error it is.
    pub(crate) fn error(self) -> ProtocolError {
        ProtocolError::from_status(self.report().0)
    }

    /// For logs.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Fatal::InvalidField(field::TYPE) => "unknown PDU type",
            Fatal::InvalidField(field::FLAGS) => "wrong flags in a PDU",
            Fatal::InvalidField(field::HEADER_LENGTH) => "wrong header length in a PDU",
            Fatal::InvalidField(field::DATA_OFFSET) => "wrong data offset in a PDU",
            Fatal::InvalidField(field::LENGTH) => "wrong length of a PDU",
            Fatal::InvalidField(field::COMMAND_ID) => "wrong version in ICReq, or data for another command",
            Fatal::InvalidField(field::TRANSFER_TAG) => "wrong alignment in ICReq, or data nobody asked for",
            Fatal::InvalidField(field::DATA_LENGTH) => "an H2CData PDU without data",
            Fatal::InvalidField(_) => "wrong field in a PDU header",
            Fatal::Sequence => "PDU out of sequence",
            Fatal::HeaderDigest(_) => "header digest does not match",
            Fatal::OutOfRange => "data outside of the transfer",
            Fatal::LimitExceeded => "more data than allowed",
            Fatal::Unsupported(_) => "in-capsule data at an offset",
            Fatal::QueueOverrun => "more commands than the queue holds",
        }
    }
}

/// The digests of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digests {
    pub(crate) header: bool,
    pub(crate) data: bool,
}

impl Digests {
    pub(crate) fn header_len(self) -> usize {
        if self.header { DIGEST } else { 0 }
    }

    pub(crate) fn data_len(self) -> usize {
        if self.data { DIGEST } else { 0 }
    }
}

/// CRC-32C of `bytes` as it stands on the wire.
pub(crate) fn digest(bytes: &[u8]) -> [u8; 4] {
    crc_fast::crc32_iscsi(bytes).to_le_bytes()
}

/// CRC-32C of `len` zeroes.
pub(crate) fn digest_of_zeroes(len: usize) -> [u8; 4] {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    let zeroes = [0; 4096];
    let mut left = len;
    while left > 0 {
        let n = left.min(zeroes.len());
        digest.update(&zeroes[..n]);
        left -= n;
    }
    (digest.finalize() as u32).to_le_bytes()
}

/// Checks the digest that follows a header of `header_len` bytes.
pub(crate) fn check_header_digest(bytes: &[u8], header_len: usize) -> Result<(), Fatal> {
    let (header, rest) = bytes.split_at(header_len);
    let received = [rest[0], rest[1], rest[2], rest[3]];
    if received == digest(header) { Ok(()) } else { Err(Fatal::HeaderDigest(u32::from_le_bytes(received))) }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The common header (CH) with what follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Common {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    /// HLEN.
    pub(crate) header_len: usize,
    /// Bytes before the data: header, header digest, padding.
    pub(crate) before_data: usize,
    /// Bytes of data.
    pub(crate) data_len: usize,
}

impl Common {
    /// Checks the common header of a PDU that a host may send on a queue pair in service.
    pub(crate) fn parse(bytes: &[u8; COMMON_HEADER], digests: Digests) -> Result<Common, Fatal> {
        let [kind, flags, header_len, data_offset, ..] = *bytes;
        let (header_len, data_offset) = (header_len as usize, data_offset as usize);
        let len = u32_at(bytes, 4) as usize;
        let expected = match kind {
            kind::CAPSULE_CMD => COMMAND_HEADER,
            kind::H2C_DATA | kind::H2C_TERM_REQ => SHORT_HEADER,
            kind::IC_REQ => return Err(Fatal::Sequence),
            _ => return Err(Fatal::InvalidField(field::TYPE)),
        };
        if header_len != expected {
            return Err(Fatal::InvalidField(field::HEADER_LENGTH));
        }
        if kind == kind::H2C_TERM_REQ {
            // Its data (the offending header) tells us nothing: the connection ends either way.
            return Ok(Common { kind, flags, header_len, before_data: header_len, data_len: 0 });
        }
        if (flags & flag::HEADER_DIGEST != 0) != digests.header {
            return Err(Fatal::InvalidField(field::FLAGS));
        }
        let without_data = header_len + digests.header_len();
        if len == without_data {
            return Ok(Common { kind, flags, header_len, before_data: without_data, data_len: 0 });
        }
        if len < without_data {
            return Err(Fatal::InvalidField(field::LENGTH));
        }
        if (flags & flag::DATA_DIGEST != 0) != digests.data {
            return Err(Fatal::InvalidField(field::FLAGS));
        }
        // Our CPDA is 0: data starts at a multiple of four bytes.
        if data_offset < without_data || data_offset > MAX_DATA_OFFSET || data_offset % 4 != 0 {
            return Err(Fatal::InvalidField(field::DATA_OFFSET));
        }
        match len.checked_sub(data_offset + digests.data_len()) {
            Some(data_len) if data_len > 0 => {
                Ok(Common { kind, flags, header_len, before_data: data_offset, data_len })
            }
            _ => Err(Fatal::InvalidField(field::LENGTH)),
        }
    }
}

/// The submission queue entry of a command capsule.
pub(crate) fn command(header: &[u8]) -> Sqe {
    let mut sqe = [0; 64];
    sqe.copy_from_slice(&header[8..COMMAND_HEADER]);
    Sqe::parse(&sqe)
}

/// Checks how the data of a capsule, of which there are `data_len` bytes, is described; `limit` bytes are allowed.
pub(crate) fn check_in_capsule(sqe: &Sqe, data_len: usize, limit: usize) -> Result<(), Fatal> {
    let sgl = sqe.sgl();
    let in_capsule = sgl.kind == SglKind::InCapsule;
    if data_len > limit {
        return Err(Fatal::LimitExceeded);
    }
    if in_capsule && sgl.address != 0 {
        return Err(Fatal::Unsupported(field::SGL));
    }
    let described = if in_capsule { sgl.length as usize } else { 0 };
    if described == data_len { Ok(()) } else { Err(Fatal::InvalidField(field::LENGTH)) }
}

/// What an H2CData PDU says of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostData {
    /// CCCID (byte 8).
    pub(crate) cid: Cid,
    /// TTAG (byte 10).
    pub(crate) tag: u16,
    /// DATAO (byte 12).
    pub(crate) offset: usize,
    /// DATAL (byte 16).
    pub(crate) len: usize,
    /// LAST_PDU.
    pub(crate) last: bool,
}

impl HostData {
    pub(crate) fn parse(header: &[u8]) -> HostData {
        HostData {
            cid: Cid(u16_at(header, 8)),
            tag: u16_at(header, 10),
            offset: u32_at(header, 12) as usize,
            len: u32_at(header, 16) as usize,
            last: header[1] & flag::LAST != 0,
        }
    }
}

/// An initialize connection request (ICReq).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IcReq {
    /// Alignment of data in PDUs to the host, in bytes (HPDA, byte 10, 0's based dwords).
    pub(crate) host_alignment: usize,
    /// DGST (byte 11).
    pub(crate) digests: Digests,
}

impl IcReq {
    /// Checks the first eight bytes of a connection.
    pub(crate) fn check_common(bytes: &[u8; COMMON_HEADER]) -> Result<(), Fatal> {
        match *bytes {
            [kind, ..] if kind != kind::IC_REQ => Err(Fatal::Sequence),
            [_, _, header_len, ..] if header_len as usize != CONNECTION_PDU => {
                Err(Fatal::InvalidField(field::HEADER_LENGTH))
            }
            _ if u32_at(bytes, 4) as usize != CONNECTION_PDU => Err(Fatal::InvalidField(field::LENGTH)),
            _ => Ok(()),
        }
    }

    /// Parses a whole ICReq.
    pub(crate) fn parse(bytes: &[u8; CONNECTION_PDU]) -> Result<IcReq, Fatal> {
        if u16_at(bytes, 8) != 0 {
            return Err(Fatal::InvalidField(field::FORMAT_VERSION));
        }
        if bytes[10] > 31 {
            return Err(Fatal::InvalidField(field::DATA_ALIGNMENT));
        }
        Ok(IcReq {
            host_alignment: (bytes[10] as usize + 1) * 4,
            digests: Digests { header: bytes[11] & 1 != 0, data: bytes[11] & 2 != 0 },
        })
    }
}

/// An initialize connection response (ICResp): no alignment of ours, the digests the host asked for.
pub(crate) fn encode_ic_resp(digests: Digests, max_host_data: u32) -> [u8; CONNECTION_PDU] {
    let mut pdu = [0; CONNECTION_PDU];
    pdu[0] = kind::IC_RESP;
    pdu[2] = CONNECTION_PDU as u8;
    pdu[4..8].copy_from_slice(&(CONNECTION_PDU as u32).to_le_bytes());
    pdu[11] = u8::from(digests.header) | u8::from(digests.data) << 1;
    pdu[12..16].copy_from_slice(&max_host_data.to_le_bytes());
    pdu
}

/// A header of 24 bytes with room for its digest and padding; `len()` bytes are to be sent.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    bytes: [u8; MAX_DATA_OFFSET],
    len: usize,
}

impl Header {
    fn new(kind: u8, flags: u8, digests: Digests) -> Header {
        let mut bytes = [0; MAX_DATA_OFFSET];
        bytes[0] = kind;
        bytes[1] = flags | if digests.header { flag::HEADER_DIGEST } else { 0 };
        bytes[2] = SHORT_HEADER as u8;
        Header { bytes, len: SHORT_HEADER }
    }

    fn set_len(&mut self, pdu_len: usize) {
        self.bytes[4..8].copy_from_slice(&(pdu_len as u32).to_le_bytes());
    }

    fn finish(mut self, digests: Digests) -> Header {
        if digests.header {
            let sum = digest(&self.bytes[..SHORT_HEADER]);
            self.bytes[SHORT_HEADER..SHORT_HEADER + DIGEST].copy_from_slice(&sum);
            self.len += DIGEST;
        }
        self
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A response capsule (CapsuleResp).
pub(crate) fn encode_response(cqe: &Cqe, digests: Digests) -> Header {
    let mut header = Header::new(kind::CAPSULE_RESP, 0, digests);
    header.set_len(SHORT_HEADER + digests.header_len());
    header.bytes[8..24].copy_from_slice(cqe.as_bytes());
    header.finish(digests)
}

/// Ready to transfer (R2T): asks for all `len` bytes of a command's data at once.
pub(crate) fn encode_r2t(cid: Cid, tag: u16, len: usize, digests: Digests) -> Header {
    let mut header = Header::new(kind::R2T, 0, digests);
    header.set_len(SHORT_HEADER + digests.header_len());
    header.bytes[8..10].copy_from_slice(&cid.0.to_le_bytes());
    header.bytes[10..12].copy_from_slice(&tag.to_le_bytes());
    header.bytes[16..20].copy_from_slice(&(len as u32).to_le_bytes());
    header.finish(digests)
}

/// A part of a command's data on its way to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Where it begins (DATAO).
    pub(crate) offset: usize,
    /// Its length (DATAL).
    pub(crate) len: usize,
    /// It ends the command's data (LAST_PDU).
    pub(crate) last: bool,
    /// It stands for a response as well (SUCCESS); only the last does.
    pub(crate) success: bool,
}

/// The header of a C2HData PDU, padded to the host's alignment.
pub(crate) fn encode_data(cid: Cid, piece: Piece, alignment: usize, digests: Digests) -> Header {
    let Piece { offset, len, last, success } = piece;
    let flags = if last { flag::LAST } else { 0 }
        | if last && success { flag::SUCCESS } else { 0 }
        | if digests.data { flag::DATA_DIGEST } else { 0 };
    let mut header = Header::new(kind::C2H_DATA, flags, digests);
    let data_offset = (SHORT_HEADER + digests.header_len()).next_multiple_of(alignment);
    header.bytes[3] = data_offset as u8;
    header.set_len(data_offset + len + digests.data_len());
    header.bytes[8..10].copy_from_slice(&cid.0.to_le_bytes());
    header.bytes[12..16].copy_from_slice(&(offset as u32).to_le_bytes());
    header.bytes[16..20].copy_from_slice(&(len as u32).to_le_bytes());
    let mut header = header.finish(digests);
    header.len = data_offset;
    header
}

/// A C2HTermReq about the PDU that begins with `offending`.
pub(crate) fn encode_term_req(fatal: Fatal, offending: &[u8]) -> Vec<u8> {
    let (status, information) = fatal.report();
    let offending = &offending[..offending.len().min(128)];
    let mut pdu = vec![0; SHORT_HEADER];
    pdu[0] = kind::C2H_TERM_REQ;
    pdu[2] = SHORT_HEADER as u8;
    pdu[8..10].copy_from_slice(&status.to_le_bytes());
    pdu[10..14].copy_from_slice(&information.to_le_bytes());
    pdu.extend_from_slice(offending);
    // Hosts read at least the header and four bytes more before they decode it.
    pdu.resize(pdu.len().max(SHORT_HEADER + DIGEST), 0);
    let len = pdu.len() as u32;
    pdu[4..8].copy_from_slice(&len.to_le_bytes());
    pdu
}
