//! Command retry delays: how long a host is to wait before it sends a command again that nothing was wrong with.
//!
//! Base specification, "Command Retry Delay". Only hosts that said they heed it (ACRE, feature 16h) are told.

use crate::controller::Controller;
use nvme::Status;

/// The delays Identify Controller names (CRDT1 to CRDT3), in units of 100 ms. The third is not used.
pub const DELAYS: [u16; 3] = [1, 10, 0];

/// CRD for what is over soon: a shortage of memory or of room in a queue.
const SHORT: u8 = 1;
/// CRD for what takes its time: a medium that is away or not ready.
const LONG: u8 = 2;

/// The delay for a status, by what has to pass first; 0 where there is nothing to wait for.
const fn of(status: Status) -> u8 {
    if status.is_dnr() {
        return 0;
    }
    match Status::from_wire(status.code() << 1) {
        Status::COMMAND_INTERRUPTED => SHORT,
        // A host with another path goes there at once, whatever the delay.
        Status::INTERNAL_PATH_ERROR
        | Status::NAMESPACE_NOT_READY
        | Status::FORMAT_IN_PROGRESS
        | Status::SANITIZE_IN_PROGRESS => LONG,
        _ => 0,
    }
}

/// A failed command's status as this controller's host is told.
pub fn told(controller: &Controller, status: Status) -> Status {
    match of(status) {
        0 => status,
        delay if controller.acre() => status.with_retry_delay(delay),
        _ => status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_passes_is_worth_waiting_for() {
        assert_eq!(of(Status::COMMAND_INTERRUPTED), SHORT);
        assert_eq!(of(Status::COMMAND_INTERRUPTED.more()), SHORT, "whatever else the status says");
        assert_eq!(of(Status::INTERNAL_PATH_ERROR), LONG);
        assert_eq!(of(Status::COMMAND_INTERRUPTED.dnr()), 0);
        // Sent again, the data is whole: at once.
        assert_eq!(of(Status::TRANSIENT_TRANSPORT_ERROR), 0);
        assert_eq!(of(Status::WRITE_FAULT), 0);
        for delay in [SHORT, LONG] {
            assert_ne!(DELAYS[usize::from(delay) - 1], 0, "CRD {delay}");
        }
    }
}
