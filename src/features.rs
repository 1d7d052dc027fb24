//! Get Features and Set Features (admin commands 0Ah and 09h).
//!
//! Base specification, "Features". Nothing is saveable: a controller ends with its connection.

use crate::{admin::Answer, controller::Controller, queue_pair::QueuePair};
use nvme::{
    Completion, Sqe, Status,
    features::{GetFeatures, NumberOfQueues, SetFeatures, async_event_configuration, feature, select},
};
use transports::QueuePair as TransportQueuePair;

/// Bit 0 of CDW11 for the host identifier (EXHID): the 128-bit form, the only one on fabrics.
const EXTENDED_HOST_ID: u32 = 1;
/// Bit 0 of CDW11 for the volatile write cache (WCE).
const WRITE_CACHE_ENABLED: u32 = 1;

/// Answers Get Features.
pub fn get<Q: TransportQueuePair>(pair: &QueuePair<Q>, sqe: &Sqe) -> Result<Answer, Status> {
    let command = GetFeatures::parse(sqe);
    // Other values of SEL need "save and select" (ONCS bit 4), which is not offered.
    if command.select != select::CURRENT {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let controller = &pair.controller;
    let io = !controller.is_discovery();
    if let Some(value) = fixed(command.id).filter(|_| io) {
        return Ok(Completion::success(value.into()).into());
    }
    let value = match command.id {
        feature::VOLATILE_WRITE_CACHE if has_cache(controller) => WRITE_CACHE_ENABLED,
        feature::NUMBER_OF_QUEUES if io => granted_queues(pair).encode(),
        feature::ASYNC_EVENT_CONFIGURATION => controller.events.configuration(),
        feature::KEEP_ALIVE_TIMER => controller.keep_alive_ms(),
        feature::HOST_IDENTIFIER if io => {
            if command.cdw11 & EXTENDED_HOST_ID == 0 {
                return Err(Status::INVALID_FIELD.dnr());
            }
            return Ok(Answer::whole(&controller.host_id.0));
        }
        _ => return Err(Status::INVALID_FIELD.dnr()),
    };
    Ok(Completion::success(value.into()).into())
}

/// Answers Set Features.
pub fn set<Q: TransportQueuePair>(pair: &QueuePair<Q>, sqe: &Sqe) -> Result<Answer, Status> {
    let command = SetFeatures::parse(sqe);
    if command.save {
        return Err(Status::FEATURE_NOT_SAVEABLE.dnr());
    }
    let controller = &pair.controller;
    let io = !controller.is_discovery();
    if let Some(value) = fixed(command.id).filter(|_| io) {
        // Setting the one value there is, is no error.
        let same = value == command.cdw11;
        return if same { Ok(Completion::OK.into()) } else { Err(Status::FEATURE_NOT_CHANGEABLE.dnr()) };
    }
    let value = match command.id {
        feature::VOLATILE_WRITE_CACHE if has_cache(controller) => {
            if command.cdw11 & WRITE_CACHE_ENABLED == 0 {
                return Err(Status::FEATURE_NOT_CHANGEABLE.dnr());
            }
            0
        }
        feature::NUMBER_OF_QUEUES if io => {
            let asked = NumberOfQueues::parse(command.cdw11)?;
            if controller.io_queue_pairs() > 0 {
                return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
            }
            let granted = grant(asked, pair.local.target.limits.io_queues.into());
            controller.grant_queues(granted.submission);
            granted.encode()
        }
        feature::ASYNC_EVENT_CONFIGURATION => {
            // There is no health warning to raise, but hosts set those bits without asking.
            let offered = controller.offered_events() | async_event_configuration::CRITICAL_WARNINGS;
            if command.cdw11 & !offered != 0 {
                return Err(Status::INVALID_FIELD.dnr());
            }
            controller.events.configure(command.cdw11);
            0
        }
        feature::KEEP_ALIVE_TIMER => {
            if command.cdw11 == 0 && io {
                return Err(Status::KEEP_ALIVE_TIMEOUT_INVALID.dnr());
            }
            controller.set_keep_alive_ms(command.cdw11);
            0
        }
        // Fixed by Connect.
        feature::HOST_IDENTIFIER if io => return Err(Status::COMMAND_SEQUENCE_ERROR.dnr()),
        _ => return Err(Status::INVALID_FIELD.dnr()),
    };
    Ok(Completion::success(value.into()).into())
}

/// Features every I/O controller has and of which this one can do one thing only.
fn fixed(id: u8) -> Option<u32> {
    match id {
        // Queues are served in turn, without a limit on a burst (AB = 7).
        feature::ARBITRATION => Some(7),
        // There is one power state.
        feature::POWER_MANAGEMENT => Some(0),
        // No time limit on recovery (TLER), no error for deallocated blocks (DULBE): they read as zeroes.
        feature::ERROR_RECOVERY => Some(0),
        // Normal operation (DN): AWUN says what is atomic.
        feature::WRITE_ATOMICITY => Some(0),
        _ => None,
    }
}

fn has_cache(controller: &Controller) -> bool {
    !controller.is_discovery() && controller.subsystem.has_volatile_write_cache()
}

fn granted_queues<Q: TransportQueuePair>(pair: &QueuePair<Q>) -> NumberOfQueues {
    let limit = pair.local.target.limits.io_queues.into();
    let pairs = pair.controller.granted_queues().unwrap_or(limit);
    NumberOfQueues { submission: pairs, completion: pairs }
}

/// Queues come in pairs on fabrics: as many as both asked for, up to the limit.
fn grant(asked: NumberOfQueues, limit: u32) -> NumberOfQueues {
    let pairs = asked.submission.min(asked.completion).min(limit);
    NumberOfQueues { submission: pairs, completion: pairs }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_granted_in_pairs_and_up_to_the_limit() {
        let asked = |submission, completion| NumberOfQueues { submission, completion };
        assert_eq!(grant(asked(8, 4), 64), asked(4, 4));
        assert_eq!(grant(asked(200, 200), 64), asked(64, 64));
        assert_eq!(grant(asked(1, 1), 64), asked(1, 1));
    }
}
