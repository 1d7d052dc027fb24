//! The queue pairs there may be, and who has a claim to how many of them.
//!
//! A host is granted I/O queues before it connects them. What it was granted is set aside for it until its controller ends,
//! so that no Connect of a granted queue is ever refused for want of room.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// All queue pairs there may be at once.
pub struct Claims {
    limit: usize,
    taken: AtomicUsize,
}

impl Claims {
    /// Room for `limit` queue pairs.
    pub fn new(limit: usize) -> Arc<Claims> {
        Arc::new(Claims { limit, taken: AtomicUsize::new(0) })
    }

    /// A claim to `count` queue pairs, if there are so many left.
    pub fn claim(self: &Arc<Claims>, count: usize) -> Option<Claim> {
        let mut claim = Claim { claims: self.clone(), count: 0 };
        (claim.resize(count) == count).then_some(claim)
    }
}

/// A claim to some queue pairs, given back when dropped.
pub struct Claim {
    claims: Arc<Claims>,
    count: usize,
}

impl Claim {
    /// Gives back what is more than `wanted`, or takes what is missing as far as there is; how many it are now.
    pub fn resize(&mut self, wanted: usize) -> usize {
        if wanted <= self.count {
            self.claims.taken.fetch_sub(self.count - wanted, Ordering::Relaxed);
            self.count = wanted;
            return wanted;
        }
        let Claims { limit, taken } = &*self.claims;
        let mut more = 0;
        let take = |now: usize| {
            more = (wanted - self.count).min(limit.saturating_sub(now));
            Some(now + more)
        };
        // Never an error: the closure always has a new value.
        let _ = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        self.count += more;
        self.count
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_takes_what_there_is_and_gives_it_back() {
        let claims = Claims::new(10);
        let mut first = claims.claim(2).expect("room for two");
        assert_eq!(first.resize(7), 7);
        assert!(claims.claim(4).is_none(), "three are left, and a claim is whole or none");
        let mut second = claims.claim(2).expect("room for two more");
        assert_eq!(second.resize(9), 3, "as many as there are");
        assert_eq!(first.resize(3), 3);
        assert_eq!(second.resize(9), 7);
        drop(second);
        assert_eq!(first.resize(100), 10);
        drop(first);
        assert!(claims.claim(11).is_none() && claims.claim(10).is_some());
    }
}
