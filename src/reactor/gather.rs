//! A batch of responses: headers and data in the order they leave, sent by one system call from where they lie.
//!
//! Everything is allocated once with the queue pair; filling and clearing a gather allocates nothing. While a gather is
//! in flight it belongs to its operation, so what its vectors point to cannot go away.

use crate::{DataBuffer, SharedBytes};

/// Zeroes for [`Gather::push_zeroes`].
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

enum Part {
    Buffer(#[allow(dead_code, reason = "held until sent")] DataBuffer),
    /// Goes back to its owner, who knows it by the number, for there is more in it to send.
    Lent(u16, DataBuffer),
    Shared(#[allow(dead_code, reason = "held until sent")] SharedBytes),
}

/// Headers and data on their way out.
pub struct Gather {
    vectors: Vec<libc::iovec>,
    headers: Box<[u8]>,
    headers_len: usize,
    parts: Vec<Part>,
    message: libc::msghdr,
    /// Vectors wholly sent by earlier, partial sends.
    sent_vectors: usize,
    bytes: usize,
}

impl Gather {
    /// Room for `responses` responses with `header_bytes` of headers each.
    pub fn new(responses: usize, header_bytes: usize) -> Gather {
        Gather {
            // A response has a header, its data and what follows the data; large zeroes take a few more.
            vectors: Vec::with_capacity((responses * 2 + 32).min(libc::UIO_MAXIOV as usize)),
            headers: vec![0; responses * header_bytes].into_boxed_slice(),
            headers_len: 0,
            parts: Vec::with_capacity(responses),
            // SAFETY: all-zero is a valid `msghdr`: no name, no vectors, no control data.
            message: unsafe { std::mem::zeroed() },
            sent_vectors: 0,
            bytes: 0,
        }
    }

    /// Whether a response with these bytes of headers and of zeroes still fits.
    pub fn has_room(&self, header_bytes: usize, zeroes: usize) -> bool {
        self.headers_len + header_bytes <= self.headers.len()
            && self.vectors.len() + 3 + zeroes / ZEROES.len() <= self.vectors.capacity()
            && self.parts.len() < self.parts.capacity()
    }

    /// Whether nothing is to be sent.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Bytes to be sent in all.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends header bytes; headers that follow one another leave as one vector.
    ///
    /// # Panics
    /// When there is no room: see [`Gather::has_room`].
    pub fn push_header(&mut self, header: &[u8]) {
        let start = self.headers_len;
        self.headers[start..start + header.len()].copy_from_slice(header);
        self.headers_len += header.len();
        let base = self.headers[start..].as_mut_ptr();
        if let Some(last) = self.vectors.last_mut()
            && std::ptr::eq(last.iov_base.cast::<u8>().wrapping_add(last.iov_len), base)
        {
            last.iov_len += header.len();
            self.bytes += header.len();
            return;
        }
        self.push_vector(base, header.len());
    }

    /// Appends the filled bytes of a data buffer from `at` on and keeps it until they are sent.
    ///
    /// # Panics
    /// When fewer are filled.
    pub fn push_buffer(&mut self, buffer: DataBuffer, at: usize) {
        let filled = &buffer.filled()[at..];
        self.push_vector(filled.as_ptr().cast_mut(), filled.len());
        self.parts.push(Part::Buffer(buffer));
    }

    /// Appends `len` filled bytes at `at` of a data buffer, which comes back with [`Gather::give_back`].
    ///
    /// # Panics
    /// When so much is not filled.
    pub fn push_lent(&mut self, owner: u16, buffer: DataBuffer, at: usize, len: usize) {
        let base = buffer.filled()[at..at + len].as_ptr().cast_mut();
        self.push_vector(base, len);
        self.parts.push(Part::Lent(owner, buffer));
    }

    /// Hands back what was lent, once it was sent, and starts anew.
    pub fn give_back(&mut self, mut to: impl FnMut(u16, DataBuffer)) {
        for part in self.parts.drain(..) {
            if let Part::Lent(owner, buffer) = part {
                to(owner, buffer);
            }
        }
        self.clear();
    }

    /// Appends bytes of a memory namespace, to be sent from where they lie.
    pub fn push_shared(&mut self, bytes: SharedBytes) {
        self.push_vector(bytes.pointer().cast_mut(), bytes.len());
        self.parts.push(Part::Shared(bytes));
    }

    /// Appends zeroes.
    pub fn push_zeroes(&mut self, mut len: usize) {
        while len > 0 {
            let n = len.min(ZEROES.len());
            self.push_vector(ZEROES.as_ptr().cast_mut(), n);
            len -= n;
        }
    }

    fn push_vector(&mut self, base: *mut u8, len: usize) {
        assert!(self.vectors.len() < self.vectors.capacity(), "no room in the gather");
        self.vectors.push(libc::iovec { iov_base: base.cast(), iov_len: len });
        self.bytes += len;
    }

    /// Lets go of everything and starts anew.
    pub fn clear(&mut self) {
        self.vectors.clear();
        self.parts.clear();
        (self.headers_len, self.sent_vectors, self.bytes) = (0, 0, 0);
    }

    /// Takes note that `n` bytes have left.
    pub fn advance(&mut self, mut n: usize) {
        self.bytes -= n.min(self.bytes);
        while let Some(vector) = self.vectors.get_mut(self.sent_vectors) {
            if n < vector.iov_len {
                vector.iov_base = vector.iov_base.wrapping_byte_add(n);
                vector.iov_len -= n;
                return;
            }
            n -= vector.iov_len;
            self.sent_vectors += 1;
        }
    }

    /// The message for the kernel. It points into this gather, which must stay where it is until the send ends.
    pub(crate) fn message(&mut self) -> *const libc::msghdr {
        let rest = &mut self.vectors[self.sent_vectors..];
        self.message.msg_iov = rest.as_mut_ptr();
        self.message.msg_iovlen = rest.len() as _;
        &raw const self.message
    }

    #[cfg(test)]
    pub(crate) fn remaining(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for v in &self.vectors[self.sent_vectors..] {
            // SAFETY: the vectors point to memory this gather keeps.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(v.iov_base.cast::<u8>(), v.iov_len) });
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SharedMemory;
    use std::{rc::Rc, sync::Arc};

    #[test]
    fn a_partial_send_continues_where_it_stopped() {
        let memory = Rc::new(Arc::new(SharedMemory::new(4096).unwrap()));
        memory.write(0, b"payload");
        let mut gather = Gather::new(4, 32);
        gather.push_header(b"head");
        gather.push_header(b"er");
        gather.push_shared(SharedBytes::new(&memory, 0, 7));
        gather.push_header(b"end");
        gather.push_zeroes(2);
        assert_eq!(gather.vectors.len(), 4, "headers that follow one another are one vector");
        let whole = b"headerpayloadend\0\0".to_vec();
        for cut in 0..=whole.len() {
            let mut gather = Gather::new(4, 32);
            gather.push_header(b"header");
            gather.push_shared(SharedBytes::new(&memory, 0, 7));
            gather.push_header(b"end");
            gather.push_zeroes(2);
            gather.advance(cut);
            assert_eq!(gather.remaining(), whole[cut..], "after {cut} bytes");
            assert_eq!(gather.bytes(), whole.len() - cut);
        }
        gather.clear();
        assert!(gather.is_empty() && gather.has_room(128, 0) && !gather.has_room(129, 0));
    }
}
