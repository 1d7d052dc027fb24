//! Collects one PDU header out of a stream that may be cut anywhere, and checks it before any byte of data is taken.

use super::pdu::{self, COMMON_HEADER, Common, Digests, Fatal, MAX_DATA_OFFSET};

/// A header being collected.
pub(crate) struct HeaderReader {
    digests: Digests,
    bytes: [u8; MAX_DATA_OFFSET],
    have: usize,
}

/// A complete header. Its bytes lie in the stream where possible, else in the reader.
pub(crate) struct Complete<'a> {
    pub(crate) common: Common,
    pub(crate) bytes: &'a [u8],
    /// Bytes taken from the stream.
    pub(crate) used: usize,
}

impl HeaderReader {
    pub(crate) fn new(digests: Digests) -> HeaderReader {
        HeaderReader { digests, bytes: [0; MAX_DATA_OFFSET], have: 0 }
    }

    /// Takes bytes from the front of the stream. Without a complete header it has taken all of them.
    pub(crate) fn take<'a>(&'a mut self, stream: &'a [u8]) -> Result<Option<Complete<'a>>, Fatal> {
        if self.have == 0 {
            // The usual case: the whole header is there and need not be copied.
            if let Some(first) = stream.first_chunk() {
                let common = Common::parse(first, self.digests).inspect_err(|_| self.keep(stream))?;
                if let Some(bytes) = stream.get(..common.before_data) {
                    self.check_digest(&common, bytes).inspect_err(|_| self.keep(stream))?;
                    return Ok(Some(Complete { common, bytes, used: bytes.len() }));
                }
            }
        }
        let mut used = self.fill(COMMON_HEADER, stream);
        let Some(first) = self.bytes[..self.have].first_chunk() else { return Ok(None) };
        let common = Common::parse(first, self.digests)?;
        used += self.fill(common.before_data, &stream[used..]);
        if self.have < common.before_data {
            return Ok(None);
        }
        let bytes = &self.bytes[..self.have];
        self.check_digest(&common, bytes)?;
        self.have = 0;
        Ok(Some(Complete { common, bytes, used }))
    }

    /// What was collected of a header that is wrong or incomplete.
    pub(crate) fn collected(&self) -> &[u8] {
        &self.bytes[..self.have]
    }

    /// Remembers a wrong header for the report: as long as it says, of what is there.
    fn keep(&mut self, stream: &[u8]) {
        let len = stream.get(2).map_or(0, |&len| (len as usize).clamp(COMMON_HEADER, MAX_DATA_OFFSET));
        self.have = 0;
        self.fill(len, stream);
    }

    fn fill(&mut self, up_to: usize, stream: &[u8]) -> usize {
        let n = up_to.saturating_sub(self.have).min(stream.len());
        self.bytes[self.have..self.have + n].copy_from_slice(&stream[..n]);
        self.have += n;
        n
    }

    fn check_digest(&self, common: &Common, bytes: &[u8]) -> Result<(), Fatal> {
        if !self.digests.header || common.kind == pdu::kind::H2C_TERM_REQ {
            return Ok(());
        }
        pdu::check_header_digest(bytes, common.header_len)
    }
}
