//! What a response carries.

use crate::{DataBuffer, SharedBytes};

/// Data on its way to the host: never more than was filled, for recycled memory holds what others wrote.
pub enum Data {
    /// Nothing.
    None,
    /// The filled bytes of a data buffer.
    Arena(DataBuffer),
    /// Bytes of a memory namespace, to leave from where they lie.
    Namespace(SharedBytes),
    /// So many zeroes.
    Zeroes(u32),
}

impl Data {
    /// Bytes that will be sent.
    pub fn len(&self) -> usize {
        match self {
            Data::None => 0,
            Data::Arena(buffer) => buffer.len(),
            Data::Namespace(bytes) => bytes.len(),
            Data::Zeroes(len) => *len as usize,
        }
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
