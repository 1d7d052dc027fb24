//! What a controller remembers of the features a host has set. A controller reset (CC.EN to 0) starts anew.

use nvme::{
    Status,
    features::{HostBehavior, TemperatureThreshold, Timestamp, timestamp_origin},
};
use std::time::{Duration, Instant};

/// Nothing is too warm by default.
const OVER_DEFAULT: u16 = 0xffff;
/// Nothing is too cold by default.
const UNDER_DEFAULT: u16 = 0;

/// The values of one controller.
pub struct FeatureValues {
    over_kelvin: u16,
    under_kelvin: u16,
    timestamp: (u64, Instant, u8),
    reset_at: Instant,
    behavior: HostBehavior,
}

impl Default for FeatureValues {
    fn default() -> FeatureValues {
        FeatureValues {
            over_kelvin: OVER_DEFAULT,
            under_kelvin: UNDER_DEFAULT,
            timestamp: (0, Instant::now(), timestamp_origin::RESET),
            reset_at: Instant::now(),
            behavior: HostBehavior::new_zeroed(),
        }
    }
}

impl FeatureValues {
    /// A temperature threshold. There is no sensor, so the composite temperature is all there is.
    pub fn temperature_threshold(&self, wanted: TemperatureThreshold) -> Result<u16, Status> {
        if wanted.sensor != TemperatureThreshold::COMPOSITE {
            return Err(Status::INVALID_FIELD.dnr());
        }
        Ok(if wanted.under { self.under_kelvin } else { self.over_kelvin })
    }

    /// Sets one.
    pub fn set_temperature_threshold(&mut self, wanted: TemperatureThreshold) -> Result<(), Status> {
        if !matches!(wanted.sensor, TemperatureThreshold::COMPOSITE | TemperatureThreshold::ALL) {
            return Err(Status::INVALID_FIELD.dnr());
        }
        *if wanted.under { &mut self.under_kelvin } else { &mut self.over_kelvin } = wanted.kelvin;
        Ok(())
    }

    /// The timestamp, which counts on.
    pub fn timestamp(&self) -> Timestamp {
        let (from, since, attributes) = self.timestamp;
        Timestamp::new(Timestamp::wrap(u128::from(from) + since.elapsed().as_millis()), attributes)
    }

    /// Sets it; the one before.
    pub fn set_timestamp(&mut self, new: Timestamp) -> Timestamp {
        let old = self.timestamp();
        self.timestamp = (new.value(), Instant::now(), timestamp_origin::HOST);
        old
    }

    /// Time since the controller was made or reset.
    pub fn since_reset(&self) -> Duration {
        self.reset_at.elapsed()
    }

    /// What the host said it can do.
    pub fn host_behavior(&self) -> &HostBehavior {
        &self.behavior
    }

    /// Sets it: what is a flag is 0 or 1.
    pub fn set_host_behavior(&mut self, new: HostBehavior) -> Result<(), Status> {
        let flags =
            [new.command_retry, new.telemetry_area_4, new.extended_lba_formats, new.dispersed_namespaces];
        if flags.iter().any(|flag| *flag > 1) {
            return Err(Status::INVALID_FIELD.dnr());
        }
        self.behavior = new;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_counts_on_from_what_was_set() {
        let mut values = FeatureValues::default();
        assert_eq!(values.timestamp().attributes, timestamp_origin::RESET);
        let long_ago = values.timestamp().value();
        let old = values.set_timestamp(Timestamp::new((1 << 48) - 1, 0xff));
        assert!(old.value() >= long_ago && old.attributes == timestamp_origin::RESET);
        std::thread::sleep(Duration::from_millis(2));
        let now = values.timestamp();
        assert_eq!(now.attributes, timestamp_origin::HOST);
        assert!((1..1 << 40).contains(&now.value()), "{} wrapped round", now.value());
    }

    #[test]
    fn thresholds_of_sensors_that_are_not_there() {
        let mut values = FeatureValues::default();
        let of = |sensor, under| TemperatureThreshold { kelvin: 300, sensor, under };
        for sensor in 1..0xf {
            assert!(values.temperature_threshold(of(sensor, false)).is_err());
            assert!(values.set_temperature_threshold(of(sensor, false)).is_err());
        }
        assert!(values.temperature_threshold(of(0xf, false)).is_err());
        assert_eq!(values.set_temperature_threshold(of(0xf, true)), Ok(()));
        assert_eq!(values.temperature_threshold(of(0, true)), Ok(300));
        assert_eq!(values.temperature_threshold(of(0, false)), Ok(OVER_DEFAULT));
    }
}
