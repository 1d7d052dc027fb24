//! The bare work, the same for both yardsticks: what a request says and how its response looks. A request is a 72-byte
//! CapsuleCmd (opcode, CID and length are looked at, nothing else) with the data of a write behind it; the response is a
//! C2HData header with the data of a read, or a 24-byte response capsule.

use crate::pdu;

/// The longest read; longer ones are a mistake of the generator.
pub const LONGEST: usize = 1 << 20;

/// What every read returns.
pub static ZEROES: [u8; LONGEST] = [0; LONGEST];

/// One request.
#[derive(Clone, Copy)]
pub struct Request {
    /// Its command identifier.
    pub cid: u16,
    /// How many bytes it wants back: 0 for a write.
    pub wants: usize,
}

/// Finds requests in a stream of bytes and skips the data behind them.
#[derive(Default)]
pub struct Requests {
    header: Vec<u8>,
    skip: usize,
}

impl Requests {
    /// Takes `bytes` and calls `found` for each request that is complete.
    pub fn take(&mut self, mut bytes: &[u8], mut found: impl FnMut(Request)) {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let length = self.skip.min(bytes.len());
                self.skip -= length;
                bytes = &bytes[length..];
                if self.skip == 0 {
                    found(parse(&self.header));
                    self.header.clear();
                }
                continue;
            }
            if self.header.is_empty() && bytes.len() >= 72 {
                let header = &bytes[..72];
                let behind = pdu::u32_at(header, 4) as usize - 72;
                if bytes.len() >= 72 + behind {
                    found(parse(header));
                    bytes = &bytes[72 + behind..];
                    continue;
                }
            }
            let length = (72 - self.header.len()).min(bytes.len());
            self.header.extend_from_slice(&bytes[..length]);
            bytes = &bytes[length..];
            if self.header.len() == 72 {
                self.skip = pdu::u32_at(&self.header, 4) as usize - 72;
                if self.skip == 0 {
                    found(parse(&self.header));
                    self.header.clear();
                }
            }
        }
    }
}

fn parse(header: &[u8]) -> Request {
    let wants = if header[8] == 0x02 { pdu::u32_at(header, 40) as usize } else { 0 };
    Request { cid: pdu::u16_at(header, 10), wants: wants.min(LONGEST) }
}

/// The 24 bytes of a response header.
pub fn response(request: Request) -> [u8; 24] {
    let mut header = [0; 24];
    let plen = (24 + request.wants) as u32;
    header[4..8].copy_from_slice(&plen.to_le_bytes());
    header[2] = 24;
    if request.wants == 0 {
        header[0] = pdu::CAPSULE_RESP;
        header[20..22].copy_from_slice(&request.cid.to_le_bytes());
    } else {
        header[0] = pdu::C2H_DATA;
        header[1] = pdu::LAST_PDU | pdu::SUCCESS;
        header[3] = 24;
        header[8..10].copy_from_slice(&request.cid.to_le_bytes());
        header[16..20].copy_from_slice(&(request.wants as u32).to_le_bytes());
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Command;

    #[test]
    fn requests_are_found_however_the_stream_is_cut() {
        let mut stream = Vec::new();
        for cid in 0..20 {
            let command = if cid % 3 == 0 {
                Command::write(1, 0, 1, &[7; 4096])
            } else {
                Command::read(1, 0, 1, 4096 * usize::from(cid))
            };
            let (sqe, in_capsule) = command.encode(cid, 8192);
            let data = if in_capsule { &command.data[..] } else { &[] };
            stream.extend(pdu::capsule(pdu::Digests::NONE, &sqe, data));
        }
        for piece in [1, 7, 72, 73, 4167, 4168, 5000, 1 << 20] {
            let mut requests = Requests::default();
            let mut found = Vec::new();
            for bytes in stream.chunks(piece) {
                requests.take(bytes, |request| found.push((request.cid, request.wants)));
            }
            let expected: Vec<_> =
                (0..20).map(|cid| (cid, if cid % 3 == 0 { 0 } else { 4096 * usize::from(cid) })).collect();
            assert_eq!(found, expected, "pieces of {piece}");
        }
    }

    #[test]
    fn responses_are_pdus() {
        let wire = pdu::Wire::default();
        for wants in [0, 512, 4096] {
            let mut bytes = response(Request { cid: 3, wants }).to_vec();
            bytes.extend(&ZEROES[..wants]);
            let (parsed, length) = pdu::parse(&bytes, wire).unwrap().unwrap();
            assert_eq!((parsed.data.len(), length), (wants, bytes.len()));
        }
    }
}
