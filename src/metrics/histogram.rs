//! Latencies in logarithmic buckets, fine inside and coarse on the page.
//!
//! A bucket is found from the leading bits of the nanosecond value: each power of two is cut into eight, so
//! that a quantile read from here is within 7 % of the truth. 200 buckets for each series would drown the
//! metrics page; [`HistogramSnapshot::page`] gives a fixed choice of bounds, two for each power of two, whose
//! counts are exact because each of them is also the bound of a fine bucket.

use super::Counter;

/// Buckets per power of two, as a power of two.
const FINE_BITS: u32 = 3;
const FINE: usize = 1 << FINE_BITS;
/// Everything up to 2^8 ns goes into the first bucket, everything above 2^34 ns (17 s) into the last.
const LOWEST_BIT: u32 = 8;
const HIGHEST_BIT: u32 = 34;
const BUCKETS: usize = (HIGHEST_BIT - LOWEST_BIT) as usize * FINE + 2;
/// The page's bounds: 2^k and 1.5 * 2^k ns, from 4.1 µs to 12.9 s.
const PAGE_BITS: std::ops::Range<u32> = 12..34;

/// How often what latency occurred. One thread writes, all may read.
#[derive(Debug)]
pub struct Histogram {
    buckets: [Counter; BUCKETS],
    sum_ns: Counter,
}

/// A histogram as it was at one moment, or several added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    buckets: [u64; BUCKETS],
    sum_ns: u64,
}

impl Histogram {
    /// Nothing recorded.
    #[must_use]
    pub const fn new() -> Self {
        Self { buckets: [const { Counter::new() }; BUCKETS], sum_ns: Counter::new() }
    }

    /// Counts one latency. Only the owning reactor may call this.
    #[inline]
    pub fn record(&self, ns: u64) {
        self.buckets[index(ns)].add(1);
        self.sum_ns.add(ns);
    }

    /// A copy of the counts.
    #[must_use]
    pub fn snapshot(&self) -> HistogramSnapshot {
        let mut snapshot = HistogramSnapshot::default();
        snapshot.add(self);
        snapshot
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for HistogramSnapshot {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], sum_ns: 0 }
    }
}

impl HistogramSnapshot {
    /// Adds what `histogram` has counted.
    pub fn add(&mut self, histogram: &Histogram) {
        for (sum, cell) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *sum += cell.get();
        }
        self.sum_ns = self.sum_ns.wrapping_add(histogram.sum_ns.get());
    }

    /// How many latencies were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// All latencies together.
    #[must_use]
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The latency that the share `q` (0 to 1) of all commands did not exceed; zero when there were none.
    #[must_use]
    pub fn quantile_ns(&self, q: f64) -> u64 {
        let rank = (q.clamp(0.0, 1.0) * self.count() as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        for (index, &count) in self.buckets.iter().enumerate() {
            if below + count >= rank {
                // The middle: all latencies of a bucket may lie at one end of it, and from there none is far.
                let lower = if index == 0 { 0 } else { upper_ns(index - 1) };
                return lower.midpoint(upper_ns(index));
            }
            below += count;
        }
        0
    }

    /// The page's buckets: an upper bound in nanoseconds (inclusive) and how many latencies did not exceed
    /// it.
    pub fn page(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut index = 0;
        let mut cumulative = 0;
        PAGE_BITS.flat_map(|bit| [1 << bit, 3 << (bit - 1)]).map(move |bound| {
            while upper_ns(index) <= bound {
                cumulative += self.buckets[index];
                index += 1;
            }
            (bound, cumulative)
        })
    }
}

/// The bucket of a latency. A bucket includes its upper bound, as `le` on the page demands.
#[inline]
const fn index(ns: u64) -> usize {
    let value = ns.saturating_sub(1);
    if value < 1 << LOWEST_BIT {
        return 0;
    }
    if value >= 1 << HIGHEST_BIT {
        return BUCKETS - 1;
    }
    let bit = value.ilog2();
    let fine = (value >> (bit - FINE_BITS)) as usize & (FINE - 1);
    (bit - LOWEST_BIT) as usize * FINE + fine + 1
}

/// The largest latency of a bucket; of the last one, which has no end, twice its lower bound.
const fn upper_ns(index: usize) -> u64 {
    match index {
        0 => 1 << LOWEST_BIT,
        _ if index == BUCKETS - 1 => 2 << HIGHEST_BIT,
        _ => {
            let bit = LOWEST_BIT + ((index - 1) / FINE) as u32;
            let fine = ((index - 1) % FINE) as u64;
            (FINE as u64 + fine + 1) << (bit - FINE_BITS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_lies_in_its_bucket() {
        for value in
            (0..64).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + 1, (1 << bit) / 3 * 4])
        {
            let at = index(value);
            assert!(value <= upper_ns(at) || at == BUCKETS - 1, "{value}");
            assert!(at == 0 || value > upper_ns(at - 1), "{value}");
        }
        for at in 1..BUCKETS {
            assert_eq!((index(upper_ns(at - 1)), index(upper_ns(at - 1) + 1)), (at - 1, at));
        }
    }

    #[test]
    fn quantiles_are_within_seven_percent() {
        let mut latencies: Vec<u64> = Vec::new();
        let mut state = 1_u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Log-uniform between 2 µs and about 2 s.
            latencies.push((2_000 << ((state >> 59) % 20)) | ((state >> 40) % 2_000));
        }
        let histogram = Histogram::new();
        for &latency in &latencies {
            histogram.record(latency);
        }
        latencies.sort_unstable();
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.count(), 20_000);
        assert_eq!(snapshot.sum_ns(), latencies.iter().sum::<u64>());
        for q in [0.01, 0.5, 0.9, 0.99, 0.999] {
            let truth = latencies[(q * 20_000.0) as usize - 1] as f64;
            let error = (snapshot.quantile_ns(q) as f64 - truth).abs() / truth;
            assert!(error < 0.07, "{q}: {error}");
        }
        assert_eq!(HistogramSnapshot::default().quantile_ns(0.5), 0);
        assert_eq!(snapshot.quantile_ns(f64::NAN), snapshot.quantile_ns(0.0));
    }

    #[test]
    fn the_page_counts_exactly() {
        let histogram = Histogram::new();
        for latency in [0, 4096, 4097, 6144, 6145, 1 << 33, u64::MAX >> 1] {
            histogram.record(latency);
        }
        let snapshot = histogram.snapshot();
        let page: Vec<(u64, u64)> = snapshot.page().collect();
        assert_eq!(page.len(), 44);
        assert_eq!(page[..3], [(4096, 2), (6144, 4), (8192, 5)]);
        assert_eq!(page[42..], [(1 << 33, 6), (3 << 32, 6)]);
        assert_eq!(snapshot.count(), 7);
        assert!(page.is_sorted());
    }
}
