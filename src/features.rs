//! Get Features and Set Features (admin commands 0Ah and 09h).
//!
//! Base specification, "Features". Nothing is saveable: a controller ends with its connection, so a saved value is the
//! default one. Write protection is not the controller's: it outlives it without being saved.

mod protection;
mod values;

pub use values::FeatureValues;

use crate::{
    admin::Answer,
    controller::Controller,
    io::Failure,
    queue_pair::{self, QueuePair},
};
use nvme::{
    Completion, Nsid, Sqe, Status,
    features::{
        GetFeatures, HostBehavior, NumberOfQueues, SetFeatures, TemperatureThreshold, Timestamp,
        async_event_configuration, capability, feature, select, timestamp_origin,
    },
    log_page::effect,
};
use reactor::{BufferClass, DataBuffer};
use std::rc::Rc;
use transports::QueuePair as TransportQueuePair;

/// Bit 0 of CDW11 for the host identifier (EXHID): the 128-bit form, the only one on fabrics.
const EXTENDED_HOST_ID: u32 = 1;
/// Bit 0 of CDW11 for the volatile write cache (WCE).
const WRITE_CACHE_ENABLED: u32 = 1;

/// A feature, and what can be done with it.
pub struct Feature {
    /// Its identifier (FID).
    pub id: u8,
    /// Set Features can change it.
    changeable: bool,
    /// It belongs to a namespace.
    of_namespace: bool,
    /// Discovery controllers have it too.
    discovery: bool,
}

impl Feature {
    const fn fixed(id: u8) -> Feature {
        Feature { id, changeable: false, of_namespace: false, discovery: false }
    }

    const fn changeable(id: u8) -> Feature {
        Feature { changeable: true, ..Feature::fixed(id) }
    }

    const fn of_namespace(self) -> Feature {
        Feature { of_namespace: true, ..self }
    }

    const fn of_discovery(self) -> Feature {
        Feature { discovery: true, ..self }
    }

    /// Its entry in the features log (12h).
    pub fn effects(&self) -> u32 {
        if self.of_namespace { effect::SCOPE_NAMESPACE } else { effect::SCOPE_CONTROLLER }
    }

    /// What Get Features says when asked for capabilities.
    fn capabilities(&self) -> u32 {
        let of_namespace = if self.of_namespace { capability::NAMESPACE_SPECIFIC } else { 0 };
        of_namespace | if self.changeable { capability::CHANGEABLE } else { 0 }
    }

    /// The namespace of a Get Features. For a feature of the controller it means nothing, and tools name one all the same:
    /// the one whose device they were given. A feature of a namespace may be asked for without, as it is the same for all.
    fn check_get(&self, controller: &Controller, nsid: Nsid) -> Result<(), Status> {
        match nsid {
            Nsid::NONE | Nsid::ALL => Ok(()),
            _ if self.of_namespace && controller.subsystem.namespace(nsid).is_none() => {
                Err(Status::INVALID_NAMESPACE.dnr())
            }
            _ => Ok(()),
        }
    }

    /// The namespace of a Set Features: who sets a feature of the controller for one namespace only would be mistaken.
    fn check_set(&self, controller: &Controller, nsid: Nsid) -> Result<(), Status> {
        match nsid {
            Nsid::NONE | Nsid::ALL => Ok(()),
            _ if !self.of_namespace => Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC.dnr()),
            _ => self.check_get(controller, nsid),
        }
    }
}

/// All there are. Some need more: see [`supported`].
const CATALOGUE: &[Feature] = &[
    Feature::fixed(feature::ARBITRATION),
    Feature::fixed(feature::POWER_MANAGEMENT),
    Feature::changeable(feature::TEMPERATURE_THRESHOLD),
    Feature::fixed(feature::ERROR_RECOVERY).of_namespace(),
    Feature::fixed(feature::VOLATILE_WRITE_CACHE),
    Feature::changeable(feature::NUMBER_OF_QUEUES),
    Feature::fixed(feature::WRITE_ATOMICITY),
    Feature::changeable(feature::ASYNC_EVENT_CONFIGURATION).of_discovery(),
    Feature::changeable(feature::TIMESTAMP),
    Feature::changeable(feature::KEEP_ALIVE_TIMER).of_discovery(),
    Feature::changeable(feature::HOST_BEHAVIOR),
    Feature::fixed(feature::HOST_IDENTIFIER),
    Feature::changeable(feature::NAMESPACE_WRITE_PROTECTION).of_namespace(),
];

/// The features a controller has.
pub fn supported(controller: &Controller) -> impl Iterator<Item = &'static Feature> {
    let has_cache = controller.subsystem.has_volatile_write_cache();
    let discovery = controller.is_discovery();
    CATALOGUE.iter().filter(move |feature| match feature.id {
        _ if discovery => feature.discovery,
        feature::VOLATILE_WRITE_CACHE => has_cache,
        feature::NAMESPACE_WRITE_PROTECTION => controller.subsystem.can_protect,
        _ => true,
    })
}

/// Whether a controller of either kind may have a feature.
pub fn is_known(id: u8) -> bool {
    CATALOGUE.iter().any(|feature| feature.id == id)
}

fn find(controller: &Controller, id: u8) -> Result<&'static Feature, Status> {
    supported(controller).find(|feature| feature.id == id).ok_or(Status::INVALID_FIELD.dnr())
}

/// What Get Features answers with.
enum Value {
    /// DW0.
    Number(u32),
    /// Data.
    Bytes(Vec<u8>),
}

/// Answers Get Features.
pub fn get<Q: TransportQueuePair>(pair: &QueuePair<Q>, sqe: &Sqe) -> Result<Answer, Status> {
    let command = GetFeatures::parse(sqe);
    let feature = find(&pair.controller, command.id)?;
    feature.check_get(&pair.controller, command.nsid)?;
    let value = match command.select {
        select::CURRENT => current(pair, &command)?,
        select::DEFAULT | select::SAVED => default(pair, &command)?,
        select::CAPABILITIES => Value::Number(feature.capabilities()),
        _ => return Err(Status::INVALID_FIELD.dnr()),
    };
    Ok(match value {
        Value::Number(value) => Completion::success(value.into()).into(),
        Value::Bytes(bytes) => Answer::whole(&bytes),
    })
}

/// The value in force.
fn current<Q: TransportQueuePair>(pair: &QueuePair<Q>, command: &GetFeatures) -> Result<Value, Status> {
    let controller = &pair.controller;
    let value = match command.id {
        feature::NUMBER_OF_QUEUES => granted_queues(pair).encode(),
        feature::ASYNC_EVENT_CONFIGURATION => controller.events.configuration(),
        feature::KEEP_ALIVE_TIMER => controller.keep_alive_ms(),
        feature::NAMESPACE_WRITE_PROTECTION => protection::current(controller, command.nsid)?,
        feature::TEMPERATURE_THRESHOLD => {
            let wanted = TemperatureThreshold::parse(command.cdw11)?;
            controller.with_features(|values| values.temperature_threshold(wanted))?.into()
        }
        feature::TIMESTAMP => {
            let stamp = controller.with_features(|values| values.timestamp());
            return Ok(Value::Bytes(stamp.as_bytes().to_vec()));
        }
        feature::HOST_BEHAVIOR => {
            let bytes = controller.with_features(|values| values.host_behavior().as_bytes().to_vec());
            return Ok(Value::Bytes(bytes));
        }
        feature::HOST_IDENTIFIER => {
            if command.cdw11 & EXTENDED_HOST_ID == 0 {
                return Err(Status::INVALID_FIELD.dnr());
            }
            return Ok(Value::Bytes(controller.host_id.0.to_vec()));
        }
        id => fixed(id).ok_or(Status::INVALID_FIELD.dnr())?,
    };
    Ok(Value::Number(value))
}

/// The value before a host sets another.
fn default<Q: TransportQueuePair>(pair: &QueuePair<Q>, command: &GetFeatures) -> Result<Value, Status> {
    let value = match command.id {
        feature::NUMBER_OF_QUEUES => all_queues(pair).encode(),
        feature::ASYNC_EVENT_CONFIGURATION | feature::KEEP_ALIVE_TIMER => 0,
        feature::NAMESPACE_WRITE_PROTECTION => protection::default(&pair.controller, command.nsid)?,
        feature::TEMPERATURE_THRESHOLD => {
            let wanted = TemperatureThreshold::parse(command.cdw11)?;
            FeatureValues::default().temperature_threshold(wanted)?.into()
        }
        feature::TIMESTAMP => {
            return Ok(Value::Bytes(Timestamp::new(0, timestamp_origin::RESET).as_bytes().to_vec()));
        }
        feature::HOST_BEHAVIOR => {
            return Ok(Value::Bytes(HostBehavior::new_zeroed().as_bytes().to_vec()));
        }
        // These never have another.
        _ => return current(pair, command),
    };
    Ok(Value::Number(value))
}

/// Answers Set Features.
pub async fn set<Q: TransportQueuePair>(
    pair: &Rc<QueuePair<Q>>,
    sqe: &Sqe,
    data: Option<DataBuffer>,
    token: &mut Q::Token,
) -> Result<Answer, Failure> {
    let command = SetFeatures::parse(sqe);
    let controller = &pair.controller;
    let feature = find(controller, command.id)?;
    if command.save {
        return Err(Status::FEATURE_NOT_SAVEABLE.dnr().into());
    }
    feature.check_set(controller, command.nsid)?;
    match command.id {
        feature::TIMESTAMP => {
            let data = data_in(pair, sqe, data, token, Timestamp::LEN).await?;
            let new = Timestamp::from_bytes(data.filled()).ok_or(Status::DATA_SGL_LENGTH_INVALID.dnr())?;
            let (previous, since_reset) =
                controller.with_features(|values| (values.set_timestamp(new), values.since_reset()));
            let place = controller.place();
            controller.subsystem.persistent_events.timestamp_changed(place, previous, since_reset);
            Ok(Completion::OK.into())
        }
        feature::HOST_BEHAVIOR => {
            let data = data_in(pair, sqe, data, token, HostBehavior::LEN).await?;
            let new = HostBehavior::from_bytes(data.filled()).ok_or(Status::DATA_SGL_LENGTH_INVALID.dnr())?;
            controller.with_features(|values| values.set_host_behavior(new))?;
            Ok(Completion::OK.into())
        }
        feature::NAMESPACE_WRITE_PROTECTION => {
            protection::set(pair, &command).await?;
            Ok(Completion::OK.into())
        }
        _ => {
            let value = set_number(pair, &command)?;
            Ok(Completion::success(value.into()).into())
        }
    }
}

/// Sets a feature whose value is in the command; DW0 of the completion.
fn set_number<Q: TransportQueuePair>(pair: &QueuePair<Q>, command: &SetFeatures) -> Result<u32, Status> {
    let controller = &pair.controller;
    match command.id {
        feature::NUMBER_OF_QUEUES => {
            let asked = NumberOfQueues::parse(command.cdw11)?;
            if controller.io_queue_pairs() > 0 {
                return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
            }
            let granted = grant(asked, pair.local.target.limits.io_queues.into());
            let pairs = controller.grant_queues(granted.submission);
            return Ok(NumberOfQueues { submission: pairs, completion: pairs }.encode());
        }
        feature::ASYNC_EVENT_CONFIGURATION => {
            // There is no health warning to raise, but hosts set those bits without asking.
            let offered = controller.offered_events() | async_event_configuration::CRITICAL_WARNINGS;
            if command.cdw11 & !offered != 0 {
                return Err(Status::INVALID_FIELD.dnr());
            }
            controller.events.configure(command.cdw11);
        }
        feature::KEEP_ALIVE_TIMER => {
            if command.cdw11 == 0 && !controller.is_discovery() {
                return Err(Status::KEEP_ALIVE_TIMEOUT_INVALID.dnr());
            }
            controller.set_keep_alive_ms(command.cdw11);
        }
        feature::TEMPERATURE_THRESHOLD => {
            let wanted = TemperatureThreshold::parse(command.cdw11)?;
            controller.with_features(|values| values.set_temperature_threshold(wanted))?;
        }
        // Fixed by Connect.
        feature::HOST_IDENTIFIER => return Err(Status::COMMAND_SEQUENCE_ERROR.dnr()),
        // Setting the one value there is, is no error.
        id if fixed(id) == Some(command.cdw11) => {}
        _ => return Err(Status::FEATURE_NOT_CHANGEABLE.dnr()),
    }
    Ok(0)
}

/// The data of a Set Features: what came with it, or fetched from the host.
async fn data_in<Q: TransportQueuePair>(
    pair: &QueuePair<Q>,
    sqe: &Sqe,
    data: Option<DataBuffer>,
    token: &mut Q::Token,
    len: usize,
) -> Result<DataBuffer, Failure> {
    queue_pair::check_transfer(pair.transport.described(token, sqe)?, len as u64, false, data.is_some())?;
    if let Some(data) = data {
        return Ok(data);
    }
    let buffer = pair.local.reactor.buffer(len, BufferClass::Admin).await;
    Ok(pair.transport.fetch(token, buffer, len).await?)
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
        // Where there is a cache, it cannot be turned off.
        feature::VOLATILE_WRITE_CACHE => Some(WRITE_CACHE_ENABLED),
        // Normal operation (DN): AWUN says what is atomic.
        feature::WRITE_ATOMICITY => Some(0),
        _ => None,
    }
}

fn all_queues<Q: TransportQueuePair>(pair: &QueuePair<Q>) -> NumberOfQueues {
    let pairs = pair.local.target.limits.io_queues.into();
    NumberOfQueues { submission: pairs, completion: pairs }
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
