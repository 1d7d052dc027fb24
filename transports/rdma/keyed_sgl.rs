//! Where the data of a command is: keyed descriptors, lists of them in the capsule, data in the capsule itself.
//!
//! NVMe/RDMA transport specification, "SGL support". What a descriptor says is only believed here; whether it fits the command is the
//! pipeline's question, whether the key is good the adapter finds out.

use crate::Described;
use nvme::{SglDescriptor, SglKind, Sqe, Status};

/// Descriptors in a list at most (MSDBD).
pub const MAX_DESCRIPTORS: usize = 16;
/// In-capsule data above this and lists do not go together: Linux 5.4 to 5.12 corrupts such writes.
const MAX_IN_CAPSULE_WITH_LISTS: usize = 4096;
/// Last segment by offset (31h): a list of descriptors in the capsule.
const LAST_SEGMENT_OFFSET: u8 = 0x31;
const DESCRIPTOR_LEN: usize = 16;

/// How many data block descriptors a command may have when capsules carry `in_capsule` bytes (MSDBD).
pub fn max_descriptors(in_capsule: usize) -> usize {
    let room = in_capsule / DESCRIPTOR_LEN;
    if in_capsule > MAX_IN_CAPSULE_WITH_LISTS { 1 } else { MAX_DESCRIPTORS.min(room).max(1) }
}

/// A piece of the host's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Keyed {
    /// Its address at the host.
    pub address: u64,
    /// Its length in bytes.
    pub len: u32,
    /// The key to it.
    pub key: u32,
}

/// Where a command's data is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// There is none.
    Nowhere,
    /// In the host's memory: the pieces beside this.
    Keyed {
        /// The key to be invalidated with the response.
        invalidate: Option<u32>,
    },
    /// In the capsule.
    InCapsule {
        /// From the start of the capsule's data.
        offset: usize,
        /// Bytes.
        len: usize,
    },
}

/// The data descriptor of a command, read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Where the data is.
    pub place: Place,
    /// Bytes in all.
    pub len: u64,
}

impl Layout {
    /// No data.
    pub const NONE: Layout = Layout { place: Place::Nowhere, len: 0 };

    /// For the pipeline.
    pub fn described(&self) -> Described {
        Described { len: self.len, in_capsule: matches!(self.place, Place::InCapsule { .. }) }
    }

    /// Reads the descriptor of a command whose capsule brought `in_capsule`, of `capacity` bytes at most. The pieces of keyed
    /// data go to `pieces`, which is emptied before.
    pub fn parse(
        sqe: &Sqe,
        in_capsule: &[u8],
        capacity: usize,
        pieces: &mut Vec<Keyed>,
    ) -> Result<Layout, Status> {
        pieces.clear();
        let sgl = sqe.sgl();
        match sgl.kind {
            SglKind::Keyed { .. } if sgl.length == 0 => Ok(Layout::NONE),
            SglKind::Keyed { key, invalidate } => {
                pieces.push(Keyed { address: sgl.address, len: sgl.length, key });
                let place = Place::Keyed { invalidate: invalidate.then_some(key) };
                Ok(Layout { place, len: sgl.length.into() })
            }
            SglKind::InCapsule => in_capsule_data(&sgl, in_capsule, capacity),
            SglKind::Other(LAST_SEGMENT_OFFSET) if max_descriptors(capacity) > 1 => {
                let len = list(&sgl, in_capsule, capacity, pieces)?;
                Ok(Layout { place: Place::Keyed { invalidate: None }, len })
            }
            SglKind::Transport | SglKind::Other(_) => Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr()),
        }
    }
}

/// A range of the capsule's data, which must fit into a capsule, and must have arrived.
fn range(sgl: &SglDescriptor, in_capsule: &[u8], capacity: usize) -> Result<std::ops::Range<usize>, Status> {
    let offset = usize::try_from(sgl.address).map_err(|_| Status::SGL_OFFSET_INVALID.dnr())?;
    let end = offset.checked_add(sgl.length as usize).filter(|end| *end <= capacity);
    let end = end.ok_or(Status::SGL_OFFSET_INVALID.dnr())?;
    if end > in_capsule.len() { Err(Status::DATA_SGL_LENGTH_INVALID.dnr()) } else { Ok(offset..end) }
}

fn in_capsule_data(sgl: &SglDescriptor, in_capsule: &[u8], capacity: usize) -> Result<Layout, Status> {
    let range = range(sgl, in_capsule, capacity)?;
    let place = Place::InCapsule { offset: range.start, len: range.len() };
    Ok(Layout { place, len: sgl.length.into() })
}

/// A list of keyed descriptors; the sum of their lengths.
fn list(
    sgl: &SglDescriptor,
    in_capsule: &[u8],
    capacity: usize,
    pieces: &mut Vec<Keyed>,
) -> Result<u64, Status> {
    let count = sgl.length as usize / DESCRIPTOR_LEN;
    if sgl.length == 0 || !(sgl.length as usize).is_multiple_of(DESCRIPTOR_LEN) {
        return Err(Status::SGL_LAST_SEGMENT_INVALID.dnr());
    }
    if count > max_descriptors(capacity) {
        return Err(Status::SGL_COUNT_INVALID.dnr());
    }
    let range = range(sgl, in_capsule, capacity)?;
    let (descriptors, _) = in_capsule[range].as_chunks::<DESCRIPTOR_LEN>();
    let mut len = 0;
    for descriptor in descriptors.iter().map(SglDescriptor::parse) {
        let SglKind::Keyed { key, invalidate: false } = descriptor.kind else {
            pieces.clear();
            return Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr());
        };
        if descriptor.length == 0 {
            pieces.clear();
            return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
        }
        len += u64::from(descriptor.length);
        pieces.push(Keyed { address: descriptor.address, len: descriptor.length, key });
    }
    Ok(len)
}

/// The parts of the first `len` bytes of a transfer, one for each piece they touch: where a part begins in the transfer, and
/// which memory of the host it is.
pub fn parts(pieces: &[Keyed], len: usize) -> impl Iterator<Item = (usize, Keyed)> {
    let mut at = 0;
    pieces.iter().map_while(move |piece| {
        let part = Keyed { len: piece.len.min((len - at) as u32), ..*piece };
        let start = at;
        at += part.len as usize;
        (part.len > 0).then_some((start, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CAPACITY: usize = 4096;

    fn sqe(descriptor: [u8; 16]) -> Sqe {
        let mut bytes = [0; 64];
        bytes[24..40].copy_from_slice(&descriptor);
        Sqe::parse(&bytes)
    }

    fn keyed(address: u64, length: u32, key: u32, invalidate: bool) -> [u8; 16] {
        SglDescriptor { address, length, kind: SglKind::Keyed { key, invalidate } }.encode()
    }

    fn other(address: u64, length: u32, id: u8) -> [u8; 16] {
        SglDescriptor { address, length, kind: SglKind::Other(id) }.encode()
    }

    fn parse(descriptor: [u8; 16], in_capsule: &[u8]) -> (Result<Layout, Status>, Vec<Keyed>) {
        let mut pieces = vec![Keyed::default(); 3];
        (Layout::parse(&sqe(descriptor), in_capsule, CAPACITY, &mut pieces), pieces)
    }

    #[test]
    fn one_keyed_descriptor_with_and_without_invalidation() {
        let piece = Keyed { address: 0x1000, len: 8192, key: 7 };
        for (invalidate, wanted) in [(false, None), (true, Some(7))] {
            let (layout, pieces) = parse(keyed(0x1000, 8192, 7, invalidate), &[]);
            let place = Place::Keyed { invalidate: wanted };
            assert_eq!((layout, pieces), (Ok(Layout { place, len: 8192 }), vec![piece]));
        }
        assert_eq!(parse(keyed(0, 0, 0, false), &[]), (Ok(Layout::NONE), vec![]));
        assert_eq!(parse(keyed(9, 0, 5, true), &[]).0, Ok(Layout::NONE), "nothing to invalidate for no data");
    }

    #[test]
    fn data_in_the_capsule_lies_where_the_offset_says() {
        let descriptor = |offset, len| SglDescriptor { address: offset, ..SglDescriptor::in_capsule(len) };
        let data = [0; 1024];
        let at = |offset, len| parse(descriptor(offset, len).encode(), &data).0;
        assert_eq!(at(0, 1024).map(|l| l.place), Ok(Place::InCapsule { offset: 0, len: 1024 }));
        assert_eq!(at(512, 512).map(|l| l.place), Ok(Place::InCapsule { offset: 512, len: 512 }));
        assert_eq!(at(512, 513), Err(Status::DATA_SGL_LENGTH_INVALID.dnr()), "it did not arrive");
        assert_eq!(at(1, 4096), Err(Status::SGL_OFFSET_INVALID.dnr()), "beyond a capsule");
        assert_eq!(at(u64::MAX, 1), Err(Status::SGL_OFFSET_INVALID.dnr()));
        assert!(at(0, 1024).unwrap().described().in_capsule);
    }

    #[test]
    fn kinds_that_are_not_for_rdma() {
        for id in [0x5a, 0x00, 0x10, 0x20, 0x30, 0x41, 0x4e, 0x50, 0xff] {
            let refused = parse(other(0, 512, id), &[0; 512]).0;
            assert_eq!(refused, Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr()), "{id:#x}");
        }
    }

    #[test]
    fn a_list_in_the_capsule() {
        let list = [keyed(0x1000, 4096, 1, false), keyed(0x9000, 512, 2, false)].concat();
        let (layout, pieces) = parse(other(0, 32, 0x31), &list);
        assert_eq!(layout, Ok(Layout { place: Place::Keyed { invalidate: None }, len: 4608 }));
        assert_eq!(pieces.len(), 2);
        assert_eq!(parse(other(0, 31, 0x31), &list).0, Err(Status::SGL_LAST_SEGMENT_INVALID.dnr()));
        assert_eq!(parse(other(0, 0, 0x31), &list).0, Err(Status::SGL_LAST_SEGMENT_INVALID.dnr()));
        assert_eq!(parse(other(16, 32, 0x31), &list).0, Err(Status::DATA_SGL_LENGTH_INVALID.dnr()));
        assert_eq!(parse(other(4090, 32, 0x31), &list).0, Err(Status::SGL_OFFSET_INVALID.dnr()));
        assert_eq!(parse(other(0, 17 * 16, 0x31), &[0; 512]).0, Err(Status::SGL_COUNT_INVALID.dnr()));
        for bad in [keyed(0, 512, 1, true), other(0, 512, 1), other(0, 16, 0x31)] {
            let refused = parse(other(0, 16, 0x31), &bad);
            assert_eq!(refused, (Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr()), vec![]));
        }
        let empty = parse(other(0, 16, 0x31), &keyed(1, 0, 1, false)).0;
        assert_eq!(empty, Err(Status::DATA_SGL_LENGTH_INVALID.dnr()));
    }

    #[test]
    fn lists_only_where_they_fit_and_hurt_no_host() {
        assert_eq!([0, 16, 64, 4096, 8192].map(max_descriptors), [1, 1, 4, 16, 1]);
        let mut pieces = Vec::new();
        let large = Layout::parse(&sqe(other(0, 16, 0x31)), &[0; 8192], 8192, &mut pieces);
        assert_eq!(large, Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr()));
    }

    #[test]
    fn a_transfer_shorter_than_its_pieces_touches_only_what_it_needs() {
        let pieces = [(0x1000, 100, 1), (0x2000, 50, 2), (0x3000, 7, 3)].map(|(address, len, key)| Keyed {
            address,
            len,
            key,
        });
        let short: Vec<_> = parts(&pieces, 120).collect();
        assert_eq!(short, [(0, pieces[0]), (100, Keyed { len: 20, ..pieces[1] })]);
        assert_eq!(parts(&pieces, 0).count(), 0);
        assert_eq!(parts(&pieces, 157).last(), Some((150, pieces[2])));
    }

    proptest! {
        #[test]
        fn any_descriptor_and_any_capsule(
            bytes: [u8; 16],
            id in prop::sample::select(&[0x01u8, 0x40, 0x4f, 0x31, 0x5a, 0x00, 0x33]),
            capsule in prop::collection::vec(any::<u8>(), 0..400),
            small: bool,
        ) {
            let mut bytes = bytes;
            bytes[15] = id;
            if small {
                bytes[1..8].fill(0);
                bytes[9..12].fill(0);
            }
            let mut pieces = Vec::new();
            if let Ok(layout) = Layout::parse(&sqe(bytes), &capsule, CAPACITY, &mut pieces) {
                prop_assert!(pieces.len() <= MAX_DESCRIPTORS);
                match layout.place {
                    Place::Nowhere => prop_assert_eq!(layout.len, 0),
                    Place::Keyed { .. } => {
                        prop_assert_eq!(pieces.iter().map(|p| u64::from(p.len)).sum::<u64>(), layout.len);
                    }
                    Place::InCapsule { offset, len } => prop_assert!(offset + len <= capsule.len()),
                }
            }
        }

        #[test]
        fn parts_cover_a_transfer_without_gaps(lens in prop::collection::vec(1..5000u32, 1..16), share in 0.0..1.0f64) {
            let pieces: Vec<_> = lens.iter().map(|len| Keyed { address: 0, len: *len, key: 0 }).collect();
            let total: usize = lens.iter().map(|len| *len as usize).sum();
            let len = (total as f64 * share) as usize;
            let mut at = 0;
            for (start, part) in parts(&pieces, len) {
                prop_assert_eq!(start, at);
                at += part.len as usize;
            }
            prop_assert_eq!(at, len);
        }
    }
}
