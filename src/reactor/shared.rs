//! Memory mappings: the arena's, and the memory behind memory namespaces.
//!
//! Many queue pairs on many reactors read and write a memory namespace at once, and the kernel sends from it in place.
//! So no Rust reference to it ever exists: bytes go in and out by copies through raw pointers. Where a host lets two of
//! its commands overlap, it gets either's bytes, as it would from a drive.

use std::{io, ptr, rc::Rc, sync::Arc};

/// Anonymous memory, zeroed, given back when dropped.
pub(crate) struct Mapping {
    base: *mut u8,
    len: usize,
}

// SAFETY: the mapping is plain memory owned by this value; who may touch which bytes is decided by its users.
unsafe impl Send for Mapping {}
// SAFETY: as above; `Mapping` itself offers no access through `&self` but a raw pointer.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes that take memory only when touched.
    pub(crate) fn new(len: usize, huge_pages: bool) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh anonymous mapping, no address asked for.
        let base = unsafe { libc::mmap(ptr::null_mut(), len.max(1), prot, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if huge_pages {
            // SAFETY: the range was mapped above. Advice only: a refusal changes nothing but speed.
            unsafe { libc::madvise(base, len, libc::MADV_HUGEPAGE) };
        }
        Ok(Mapping { base: base.cast(), len: len.max(1) })
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length and not unmapped before.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// The memory of a memory namespace. It may be shared between threads; see the head of this file.
pub struct SharedMemory {
    mapping: Mapping,
}

impl SharedMemory {
    /// Zeroed memory of `len` bytes; pages are taken when first written.
    pub fn new(len: usize) -> io::Result<SharedMemory> {
        Ok(SharedMemory { mapping: Mapping::new(len, true)? })
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `from` to `offset`.
    ///
    /// # Panics
    /// When the range does not lie inside: callers check ranges before.
    pub fn write(&self, offset: usize, from: &[u8]) {
        assert!(
            offset.checked_add(from.len()).is_some_and(|end| end <= self.len()),
            "write outside of the memory"
        );
        // SAFETY: the range is inside the mapping (checked), and `from` is a reference, which never points into it.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.mapping.base().add(offset), from.len()) };
    }

    /// Copies from `offset` into `into`.
    ///
    /// # Panics
    /// When the range does not lie inside.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(
            offset.checked_add(into.len()).is_some_and(|end| end <= self.len()),
            "read outside of the memory"
        );
        // SAFETY: the range is inside the mapping (checked), and `into` is a reference, which never points into it.
        unsafe { ptr::copy_nonoverlapping(self.mapping.base().add(offset), into.as_mut_ptr(), into.len()) };
    }
}

impl SharedMemory {
    /// Makes `len` bytes at `offset` zero. Whole pages go back to the system, so that they take no memory any more.
    ///
    /// # Panics
    /// When the range does not lie inside.
    pub fn zero(&self, offset: usize, len: usize) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len()), "zeroes outside of the memory");
        let (from, to) = (offset.next_multiple_of(crate::PAGE), (offset + len) / crate::PAGE * crate::PAGE);
        let fill = |from: usize, to: usize| {
            // SAFETY: inside the range that was checked.
            unsafe { ptr::write_bytes(self.mapping.base().add(from), 0, to - from) };
        };
        if from >= to {
            fill(offset, offset + len);
            return;
        }
        fill(offset, from);
        fill(to, offset + len);
        // SAFETY: whole pages of this mapping, which is anonymous and private: they read as zeroes afterwards.
        let advised =
            unsafe { libc::madvise(self.mapping.base().add(from).cast(), to - from, libc::MADV_DONTNEED) };
        if advised != 0 {
            fill(from, to);
        }
    }

    /// Whether the bytes at `offset` are those of `other`.
    ///
    /// # Panics
    /// When the range does not lie inside.
    pub fn equals(&self, offset: usize, other: &[u8]) -> bool {
        // Piece by piece through a copy: a reference to memory that others write must not exist.
        let mut piece = [0; 4096];
        other.chunks(piece.len()).enumerate().all(|(index, chunk)| {
            let piece = &mut piece[..chunk.len()];
            self.read(offset + index * 4096, piece);
            piece == chunk
        })
    }
}

/// A reactor's handle to a memory: cloning it touches no count that other threads use.
#[allow(
    clippy::redundant_allocation,
    reason = "the outer count is the reactor's own, the inner one is shared"
)]
pub type LocalMemory = Rc<Arc<SharedMemory>>;

/// Bytes of a [`SharedMemory`], to be sent from where they lie. The handle keeps the memory alive, and is cheap: its
/// count is the reactor's own, not shared with other threads.
pub struct SharedBytes {
    memory: LocalMemory,
    offset: usize,
    len: u32,
}

impl SharedBytes {
    /// A handle to `len` bytes at `offset`.
    ///
    /// # Panics
    /// When the range does not lie inside.
    pub fn new(memory: &LocalMemory, offset: usize, len: u32) -> SharedBytes {
        assert!(
            offset.checked_add(len as usize).is_some_and(|end| end <= memory.len()),
            "bytes outside of the memory"
        );
        SharedBytes { memory: memory.clone(), offset, len }
    }

    /// A handle to `len` of them from `at` on.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn part(&self, at: usize, len: usize) -> SharedBytes {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len()), "part outside of the bytes");
        SharedBytes { memory: self.memory.clone(), offset: self.offset + at, len: len as u32 }
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies them out.
    ///
    /// # Panics
    /// When `into` has another length.
    pub fn copy_to(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.len());
        self.memory.read(self.offset, into);
    }

    pub(crate) fn pointer(&self) -> *const u8 {
        // SAFETY: the range was checked in `new`.
        unsafe { self.memory.mapping.base().add(self.offset) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_written_are_read_back_and_sent_in_place() {
        let memory = Rc::new(Arc::new(SharedMemory::new(8192).unwrap()));
        memory.write(4096, &[7; 512]);
        let bytes = SharedBytes::new(&memory, 4000, 200);
        let mut out = [1u8; 200];
        bytes.copy_to(&mut out);
        assert!(out[..96].iter().all(|b| *b == 0) && out[96..].iter().all(|b| *b == 7));
    }

    #[test]
    fn zeroed_bytes_are_zero_and_their_neighbours_untouched() {
        let memory = SharedMemory::new(64 << 10).unwrap();
        for (offset, len) in [(0, 1), (5, 4091), (100, 300), (4096, 8192), (4000, 20_000), (0, 64 << 10)] {
            memory.write(0, &[9; 64 << 10]);
            memory.zero(offset, len);
            let mut all = vec![1; 64 << 10];
            memory.read(0, &mut all);
            let right = |(i, b): (usize, &u8)| *b == if (offset..offset + len).contains(&i) { 0 } else { 9 };
            assert!(all.iter().enumerate().all(right), "{len} bytes at {offset}");
        }
        memory.write(0, &[7; 10_000]);
        assert!(memory.equals(0, &[7; 10_000]) && !memory.equals(1, &[7; 10_000]));
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn a_range_past_the_end_is_refused() {
        SharedMemory::new(4096).unwrap().write(4000, &[0; 97]);
    }
}
