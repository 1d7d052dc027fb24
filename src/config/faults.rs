//! `[subsystem.namespace.faults]`: what goes wrong with a namespace on purpose. For tests only.

use std::time::Duration;

use backends::Faults;
use nvme::Status;

use super::section::Section;

/// The largest delay, in microseconds: a minute.
const MAX_DELAY_US: u64 = 60_000_000;
/// The longest hang: a day.
const MAX_HANG_MS: u64 = 86_400_000;

/// Reads the faults of a namespace, when it has any.
pub(super) fn read(namespace: &Section<'_>) -> Option<Faults> {
    let section = namespace.child("faults", "subsystem.namespace.faults")?;
    let seed = section.whole("seed", 0..=u64::MAX).map_or(0, |seed| seed.value);
    let min_delay = section.whole("min_delay_us", 0..=MAX_DELAY_US);
    let max_delay = section.whole("max_delay_us", 0..=MAX_DELAY_US);
    let least = min_delay.map_or(0, |delay| delay.value);
    if let Some(most) = max_delay.filter(|most| most.value < least) {
        let message = format!("{}: expected at least min_delay_us, which is {least}", most.value);
        section.mistake(most.at, "max_delay_us", message);
    }
    let one_in = |key| section.whole(key, 0..=u32::MAX).map_or(0, |n| n.value);
    let (error_one_in, hang_one_in) = (one_in("error_one_in"), one_in("hang_one_in"));
    // SCT << 8 | SC; 0 would be success.
    let errors = section.wholes("errors", "NVMe status codes such as 0x281", 1..=0x7ff_u16);
    let hang = section.whole("hang_ms", 1..=MAX_HANG_MS).map(|ms| Duration::from_millis(ms.value));
    section.finish();
    let errors = match errors {
        Some(codes) => codes.value.iter().map(|code| Status::from_wire(code.value << 1)).collect(),
        None => vec![Status::INTERNAL_ERROR],
    };
    Some(Faults {
        seed,
        min_delay: Duration::from_micros(least),
        max_delay: Duration::from_micros(max_delay.map_or(least, |delay| delay.value)),
        error_one_in,
        errors,
        hang_one_in,
        hang,
    })
}
