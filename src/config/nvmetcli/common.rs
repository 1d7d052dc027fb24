//! Limits that the kernel has for each port or subsystem, and weft for all of them at once.

use std::ops::RangeInclusive;

use crate::config::model::{KIB, Limits};
use crate::config::object::Object;

const PAGE: i64 = 4 * KIB as i64;
const IN_CAPSULE: RangeInclusive<i64> = PAGE..=16 * PAGE;
const QUEUE_DEPTH: RangeInclusive<i64> = 2..=1024;
const IO_QUEUES: RangeInclusive<i64> = 1..=1024;

/// The limits that the parts of a file have in common.
#[derive(Default)]
pub(super) struct Common {
    in_capsule: Option<i64>,
    queue_depth: Option<i64>,
    io_queues: Option<i64>,
}

impl Common {
    /// `param.inline_data_size` of a port. The largest holds: it costs a host nothing. Negative is the default.
    pub(super) fn in_capsule(&mut self, param: &Object<'_>) {
        let size = read(param, "inline_data_size", IN_CAPSULE, -1);
        // In whole pages, as weft has it.
        let size = size.map(|Found { value, at }| Found { value: (value + PAGE - 1) / PAGE * PAGE, at });
        settle(&mut self.in_capsule, size, param, "inline_data_size", i64::max);
    }

    /// `param.max_queue_size` of a port. The smallest holds: nobody gets more than was allowed.
    pub(super) fn queue_depth(&mut self, param: &Object<'_>) {
        let depth = read(param, "max_queue_size", QUEUE_DEPTH, -1);
        settle(&mut self.queue_depth, depth, param, "max_queue_size", i64::min);
    }

    /// `attr.qid_max` of a subsystem. The smallest holds.
    pub(super) fn io_queues(&mut self, attr: &Object<'_>) {
        let queues = read(attr, "qid_max", IO_QUEUES, 0);
        settle(&mut self.io_queues, queues, attr, "qid_max", i64::min);
    }

    /// The limits in force.
    pub(super) fn finish(self, default: Limits) -> Limits {
        let narrow = |value: Option<i64>| value.and_then(|value| u16::try_from(value).ok());
        let in_capsule = self.in_capsule.and_then(|size| u32::try_from(size).ok());
        Limits {
            in_capsule_bytes: in_capsule.unwrap_or(default.in_capsule_bytes),
            queue_depth: narrow(self.queue_depth).unwrap_or(default.queue_depth),
            io_queues: narrow(self.io_queues).unwrap_or(default.io_queues),
            ..default
        }
    }
}

/// A value and where it stands.
#[derive(Clone, Copy)]
struct Found {
    value: i64,
    at: usize,
}

/// The value of `key` within what weft can do; nothing when it is `unset` or less, which the kernel takes for "none given".
fn read(object: &Object<'_>, key: &'static str, range: RangeInclusive<i64>, unset: i64) -> Option<Found> {
    let wanted = object.whole(key, i64::from(i32::MIN)..=i64::from(i32::MAX))?;
    if wanted.value <= unset {
        return None;
    }
    let value = wanted.value.clamp(*range.start(), *range.end());
    if value != wanted.value {
        let (least, most) = (range.start(), range.end());
        let message = format!("{}: weft can do {least} to {most}, and does {value}", wanted.value);
        object.unsupported(wanted.at, key, message);
    }
    Some(Found { value, at: wanted.at })
}

/// Takes a value over, or says that there are two.
fn settle(
    chosen: &mut Option<i64>,
    found: Option<Found>,
    object: &Object<'_>,
    key: &'static str,
    choose: fn(i64, i64) -> i64,
) {
    let Some(found) = found else { return };
    let Some(before) = *chosen else {
        *chosen = Some(found.value);
        return;
    };
    if before != found.value {
        let best = choose(before, found.value);
        let message = format!("{} here and {before} elsewhere: weft has one for all: {best}", found.value);
        object.unsupported(found.at, key, message);
        *chosen = Some(best);
    }
}
