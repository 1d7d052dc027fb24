//! A backend that misbehaves on purpose, around any other: for tests of what happens when a medium is slow, fails, or does
//! not answer. What it does to a command follows from its seed and the command's number on its queue.
//!
//! The contract knows no short transfers, so there are none here. A command that hangs is answered when its time is over; without
//! a time it hangs until its reactor ends, and with it its queue pair, as with a drive that never answers.

use crate::{Backend, BackendQueue, Description, Extent, Geometry, Storage, StorageQueue};
use nvme::{Completion, IoCommand, Lba, Status};
use reactor::{Data, DataBuffer, Reactor};
use std::{cell::Cell, future::Future, io, time::Duration};

/// What goes wrong, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Where the stream of accidents begins: the same seed brings the same ones.
    pub seed: u64,
    /// Every command takes at least this long.
    pub min_delay: Duration,
    /// And at most this long.
    pub max_delay: Duration,
    /// One command in so many fails; 0 for none.
    pub error_one_in: u32,
    /// With one of these.
    pub errors: Vec<Status>,
    /// One command in so many hangs; 0 for none.
    pub hang_one_in: u32,
    /// For so long; without it for ever.
    pub hang: Option<Duration>,
}

/// A backend and its faults.
pub struct Faulty {
    inner: Box<Storage>,
    faults: Faults,
}

impl Faulty {
    /// Lets `inner` misbehave.
    pub fn new(inner: Storage, faults: Faults) -> Faulty {
        Faulty { inner: Box::new(inner), faults }
    }
}

impl Backend for Faulty {
    type Queue = FaultyQueue;

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn description(&self) -> Description {
        self.inner.description()
    }

    fn measure(&self) -> io::Result<Option<Extent>> {
        self.inner.measure()
    }

    fn queue(&self, reactor: &Reactor) -> io::Result<FaultyQueue> {
        Ok(FaultyQueue {
            inner: Box::new(self.inner.queue(reactor)?),
            faults: self.faults.clone(),
            random: Cell::new(self.faults.seed),
            reactor: reactor.clone(),
        })
    }
}

/// One reactor's queue.
pub struct FaultyQueue {
    inner: Box<StorageQueue>,
    faults: Faults,
    random: Cell<u64>,
    reactor: Reactor,
}

/// What happens to one command.
struct Accident {
    delay: Duration,
    hangs: bool,
    error: Option<Status>,
    /// The medium does the work and reports an error all the same.
    too_late: bool,
}

impl FaultyQueue {
    /// SplitMix64.
    fn next(&self) -> u64 {
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn one_in(&self, n: u32) -> bool {
        n > 0 && self.next().is_multiple_of(n.into())
    }

    fn accident(&self) -> Accident {
        let faults = &self.faults;
        let range = (faults.max_delay.saturating_sub(faults.min_delay)).as_nanos() as u64;
        let delay = faults.min_delay + Duration::from_nanos(self.next() % (range + 1));
        let fails = self.one_in(faults.error_one_in) && !faults.errors.is_empty();
        Accident {
            delay,
            hangs: self.one_in(faults.hang_one_in),
            error: fails.then(|| faults.errors[self.next() as usize % faults.errors.len()]),
            too_late: self.one_in(2),
        }
    }

    async fn wait(&self, accident: &Accident) {
        if !accident.delay.is_zero() {
            self.reactor.sleep(accident.delay).await;
        }
        if accident.hangs {
            match self.faults.hang {
                Some(time) => self.reactor.sleep(time).await,
                None => std::future::pending().await,
            }
        }
    }
}

impl BackendQueue for FaultyQueue {
    fn execute(
        &self,
        command: &IoCommand<'_>,
        data: Option<DataBuffer>,
    ) -> impl Future<Output = (Completion, Data)> {
        let accident = self.accident();
        // In a box: this future would make the slots of every queue pair larger.
        Box::pin(async move {
            self.wait(&accident).await;
            match accident.error {
                Some(error) if !accident.too_late => (error.into(), Data::None),
                Some(error) => {
                    self.inner.execute(command, data).await;
                    (error.into(), Data::None)
                }
                None => self.inner.execute(command, data).await,
            }
        })
    }

    fn deallocate(&self, lba: Lba, blocks: u64) -> impl Future<Output = Completion> {
        let accident = self.accident();
        // In a box: this future would make the slots of every queue pair larger.
        Box::pin(async move {
            self.wait(&accident).await;
            match accident.error {
                Some(error) => error.into(),
                None => self.inner.deallocate(lba, blocks).await,
            }
        })
    }
}
