//! Latencies in buckets that grow by a sixteenth, and medians.

const SUB_BITS: u32 = 4;
const SUB: usize = 1 << SUB_BITS;

/// Counts of latencies; each bucket is at most 1/16 wide of its value.
#[derive(Clone)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
}

impl Histogram {
    /// Nothing counted.
    pub fn new() -> Self {
        Self { buckets: vec![0; (64 - SUB_BITS as usize + 1) * SUB], count: 0 }
    }

    /// Counts one latency.
    pub fn add(&mut self, latency_ns: u64) {
        self.buckets[index_of(latency_ns)] += 1;
        self.count += 1;
    }

    /// The latency that `share` of all are not above, in nanoseconds; the upper end of its bucket.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let wanted = (self.count as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper_end(index);
            }
        }
        0
    }
}

fn index_of(value: u64) -> usize {
    let value = value.max(1);
    let magnitude = 63 - value.leading_zeros();
    if magnitude < SUB_BITS {
        return value as usize;
    }
    let shift = magnitude - SUB_BITS;
    let sub = (value >> shift) as usize - SUB;
    (shift as usize + 1) * SUB + sub
}

fn upper_end(index: usize) -> u64 {
    if index < 2 * SUB {
        return index as u64;
    }
    let shift = index / SUB - 1;
    ((SUB + index % SUB + 1) as u64) << shift
}

/// The middle value; the mean of the two middle ones of an even number. 0 for none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        length if length % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_close() {
        let mut histogram = Histogram::new();
        for value in 1..=100_000 {
            histogram.add(value);
        }
        for (share, exact) in [(0.5, 50_000.0), (0.99, 99_000.0), (0.001, 100.0)] {
            let ratio = histogram.quantile_ns(share) as f64 / exact;
            assert!((0.99..1.08).contains(&ratio), "{share}: {ratio}");
        }
        histogram.add(u64::MAX);
        histogram.add(0);
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
