//! Writers of the variable Identify answers: namespace identification
//! descriptors (CNS 03h), namespace lists (CNS 02h and 07h), controller lists
//! (CNS 12h and 13h) and I/O command set combinations (CNS 1Ch).
//!
//! Which identifiers a namespace has, and which namespaces and controllers
//! there are, the caller says.

use super::{IDENTIFY_LEN, NSID_LIST_ENTRIES};
use crate::{ControllerId, Nsid, Uuid};

/// Values of NIDT, namespace identifier type.
pub mod namespace_id_type {
    /// IEEE extended unique identifier, 8 bytes.
    pub const EUI64: u8 = 1;
    /// Namespace globally unique identifier, 16 bytes.
    pub const NGUID: u8 = 2;
    /// UUID, 16 bytes.
    pub const UUID: u8 = 3;
    /// Command set identifier, 1 byte.
    pub const COMMAND_SET: u8 = 4;
}

/// Bytes before the identifier: NIDT, NIDL and two reserved.
const HEADER_LEN: usize = 4;

/// Writes the namespace identification descriptors (CNS 03h) one after another.
#[derive(Debug)]
pub struct NamespaceDescriptors<'a> {
    buffer: &'a mut [u8],
    written: usize,
}

impl<'a> NamespaceDescriptors<'a> {
    /// An empty list in `buffer`, which is zeroed: zero ends the list.
    pub fn new(buffer: &'a mut [u8]) -> Self {
        buffer.fill(0);
        Self { buffer, written: 0 }
    }

    /// Adds the EUI64, a big-endian byte string.
    pub fn eui64(&mut self, id: [u8; 8]) -> &mut Self {
        self.push(namespace_id_type::EUI64, &id)
    }

    /// Adds the NGUID, a big-endian byte string.
    pub fn nguid(&mut self, id: [u8; 16]) -> &mut Self {
        self.push(namespace_id_type::NGUID, &id)
    }

    /// Adds the UUID, in the byte order of RFC 4122.
    pub fn uuid(&mut self, id: Uuid) -> &mut Self {
        self.push(namespace_id_type::UUID, &id.0)
    }

    /// Adds the I/O command set (CSI); values in [`super::command_set`].
    pub fn command_set(&mut self, csi: u8) -> &mut Self {
        self.push(namespace_id_type::COMMAND_SET, &[csi])
    }

    /// Bytes written so far.
    #[must_use]
    pub fn written(&self) -> usize {
        self.written
    }

    /// Adds one descriptor. One that does not fit is left out whole: all four
    /// take 57 bytes, so in the 4096 of Identify there is always room.
    fn push(&mut self, kind: u8, id: &[u8]) -> &mut Self {
        let end = self.written + HEADER_LEN + id.len();
        if let Some(place) = self.buffer.get_mut(self.written..end) {
            place[0] = kind;
            place[1] = id.len() as u8;
            place[HEADER_LEN..].copy_from_slice(id);
            self.written = end;
        }
        self
    }
}

/// Writes the namespaces greater than `after` to `page`, at most 1024, ended
/// by zeros; returns how many. `nsids` must be ascending.
pub fn write_nsid_list(
    nsids: impl IntoIterator<Item = Nsid>,
    after: Nsid,
    page: &mut [u8; IDENTIFY_LEN],
) -> usize {
    page.fill(0);
    let mut count = 0;
    let listed = nsids.into_iter().filter(|nsid| nsid.0 > after.0);
    for (nsid, place) in listed.zip(page.chunks_exact_mut(4)) {
        place.copy_from_slice(&nsid.0.to_le_bytes());
        count += 1;
    }
    debug_assert!(count <= NSID_LIST_ENTRIES);
    count
}

/// Writes the controllers from `first` on to `page`: how many, at most 2047,
/// then their identifiers. `ids` must be ascending.
pub fn write_controller_list(
    ids: impl IntoIterator<Item = ControllerId>,
    first: ControllerId,
    page: &mut [u8; IDENTIFY_LEN],
) {
    page.fill(0);
    let (count, places) = page.split_at_mut(2);
    let mut listed = 0u16;
    for (id, place) in ids.into_iter().filter(|id| id.0 >= first.0).zip(places.chunks_exact_mut(2)) {
        place.copy_from_slice(&id.0.to_le_bytes());
        listed += 1;
    }
    count.copy_from_slice(&listed.to_le_bytes());
}

/// Writes one combination of I/O command sets that can be used together: bit n
/// of a vector is the set with CSI n.
pub fn write_command_sets(csis: &[u8], page: &mut [u8; IDENTIFY_LEN]) {
    page.fill(0);
    let vector = csis.iter().fold(0u64, |bits, csi| bits | 1 << csi);
    page[..8].copy_from_slice(&vector.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn controllers_are_counted_and_listed() {
        let mut page = [0xff; IDENTIFY_LEN];
        write_controller_list([1, 5, 0x0102].map(ControllerId), ControllerId(2), &mut page);
        assert_eq!(page[..6], [2, 0, 5, 0, 2, 1]);
        assert!(page[6..].iter().all(|&b| b == 0));
        write_controller_list((1..5000).map(ControllerId), ControllerId(0), &mut page);
        assert_eq!((page[..4].to_vec(), page[4094..].to_vec()), (vec![0xff, 7, 1, 0], vec![0xff, 7]));
    }

    #[test]
    fn command_sets_are_bits() {
        let mut page = [0xff; IDENTIFY_LEN];
        write_command_sets(&[0, 2], &mut page);
        assert_eq!(page[0], 5);
        assert!(page[1..].iter().all(|&b| b == 0));
    }

    #[test]
    fn descriptors_follow_each_other() {
        let mut page = [0xffu8; IDENTIFY_LEN];
        let mut writer = NamespaceDescriptors::new(&mut page);
        writer.eui64([1; 8]).nguid([2; 16]).uuid(Uuid([3; 16])).command_set(0);
        assert_eq!(writer.written(), 57);
        assert_eq!(page[..5], [1, 8, 0, 0, 1]);
        assert_eq!(page[12..17], [2, 16, 0, 0, 2]);
        assert_eq!(page[32..37], [3, 16, 0, 0, 3]);
        assert_eq!(page[52..57], [4, 1, 0, 0, 0]);
        assert!(page[57..].iter().all(|&b| b == 0));
    }

    #[test]
    fn descriptors_that_do_not_fit_are_left_out() {
        for len in 0..32 {
            let mut page = vec![0xff; len];
            let mut writer = NamespaceDescriptors::new(&mut page);
            writer.nguid([2; 16]).command_set(2);
            let expected = match len {
                0..5 => 0,
                5..20 => 5,
                20..25 => 20,
                _ => 25,
            };
            assert_eq!(writer.written(), expected, "length {len}");
        }
    }

    proptest! {
        #[test]
        fn list_holds_the_first_after(
            set in prop::collection::btree_set(1u32..4000, 0..2000),
            after in 0u32..4100,
        ) {
            let mut page = [0xff; IDENTIFY_LEN];
            let count = write_nsid_list(set.iter().copied().map(Nsid), Nsid(after), &mut page);
            let set: BTreeSet<u32> = set;
            let expected: Vec<u32> = set.range(after + 1..).copied().take(1024).collect();
            let mut read: Vec<u32> = page
                .chunks_exact(4)
                .map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]))
                .collect();
            prop_assert!(read[count..].iter().all(|&n| n == 0));
            read.truncate(count);
            prop_assert_eq!(read, expected);
        }
    }
}
