//! A buddy allocator over page numbers: which pages of the arena are free, nothing about their memory.
//!
//! Blocks are powers of two of pages and aligned to their size. All lists are intrusive in arrays made at start, so
//! that taking and giving back allocate nothing.

/// No page.
const NONE: u32 = u32::MAX;
/// Marks the first page of a free block in `state`.
const FREE: u8 = 0x80;
/// Neither the head of a free block nor known here.
const USED: u8 = 0x7f;

/// Free blocks of `1 << order` pages.
pub(crate) struct Buddy {
    next: Vec<u32>,
    prev: Vec<u32>,
    state: Vec<u8>,
    heads: Vec<u32>,
    free_pages: usize,
}

impl Buddy {
    /// All of `pages` free, in blocks of `1 << max_order`; a rest that fills no such block is left out.
    pub(crate) fn new(pages: usize, max_order: u8) -> Buddy {
        let block = 1usize << max_order;
        let pages = pages / block * block;
        let mut buddy = Buddy {
            next: vec![NONE; pages],
            prev: vec![NONE; pages],
            state: vec![USED; pages],
            heads: vec![NONE; max_order as usize + 1],
            free_pages: pages,
        };
        for first in (0..pages).step_by(block).rev() {
            buddy.link(first as u32, max_order);
        }
        buddy
    }

    fn max_order(&self) -> u8 {
        (self.heads.len() - 1) as u8
    }

    fn link(&mut self, page: u32, order: u8) {
        let head = self.heads[order as usize];
        self.next[page as usize] = head;
        self.prev[page as usize] = NONE;
        if head != NONE {
            self.prev[head as usize] = page;
        }
        self.heads[order as usize] = page;
        self.state[page as usize] = FREE | order;
    }

    fn unlink(&mut self, page: u32, order: u8) {
        let (next, prev) = (self.next[page as usize], self.prev[page as usize]);
        if prev == NONE {
            self.heads[order as usize] = next;
        } else {
            self.next[prev as usize] = next;
        }
        if next != NONE {
            self.prev[next as usize] = prev;
        }
        self.state[page as usize] = USED;
    }

    /// Takes a block, splitting a larger one where none fits.
    pub(crate) fn take(&mut self, order: u8) -> Option<u32> {
        let mut from = (order..=self.max_order()).find(|&o| self.heads[o as usize] != NONE)?;
        let page = self.heads[from as usize];
        self.unlink(page, from);
        while from > order {
            from -= 1;
            self.link(page + (1 << from), from);
        }
        self.free_pages -= 1 << order;
        Some(page)
    }

    /// Gives a block back and joins it with its free neighbours.
    pub(crate) fn give(&mut self, page: u32, order: u8) {
        debug_assert_eq!(self.state[page as usize], USED, "given back twice");
        self.free_pages += 1 << order;
        let (mut page, mut order) = (page, order);
        while order < self.max_order() {
            let other = page ^ (1 << order);
            if self.state[other as usize] != FREE | order {
                break;
            }
            self.unlink(other, order);
            page = page.min(other);
            order += 1;
        }
        self.link(page, order);
    }

    /// Pages not taken.
    pub(crate) fn free_pages(&self) -> usize {
        self.free_pages
    }

    /// All pages.
    pub(crate) fn pages(&self) -> usize {
        self.state.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_disjoint_and_joined_again() {
        let mut buddy = Buddy::new(1024 + 3, 8);
        assert_eq!(buddy.pages(), 1024);
        let mut seed = 7u32;
        let mut held: Vec<(u32, u8)> = Vec::new();
        let mut owner = vec![false; 1024];
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let order = (seed >> 24) as u8 % 9;
            if seed & 1 == 0 || held.is_empty() {
                if let Some(page) = buddy.take(order) {
                    assert_eq!(page % (1 << order), 0);
                    for p in page..page + (1 << order) {
                        assert!(!std::mem::replace(&mut owner[p as usize], true));
                    }
                    held.push((page, order));
                }
            } else {
                let (page, order) = held.swap_remove(seed as usize % held.len());
                for p in page..page + (1 << order) {
                    owner[p as usize] = false;
                }
                buddy.give(page, order);
            }
            assert_eq!(buddy.free_pages(), owner.iter().filter(|o| !**o).count());
        }
        for (page, order) in held {
            buddy.give(page, order);
        }
        assert_eq!((0..4).filter_map(|_| buddy.take(8)).count(), 4);
        assert_eq!(buddy.take(0), None);
    }
}
