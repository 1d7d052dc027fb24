//! Tests of the property layouts, kept apart for their length.

use proptest::prelude::*;

use super::*;
use crate::sqe::tests::any_sqe;

#[test]
fn capabilities_by_the_table() {
    let value = Capabilities::default().encode();
    assert_eq!(value, 0x0000_0020_0f01_007f);
    let parsed = Capabilities::parse(u64::MAX);
    assert_eq!(parsed.max_queue_entries, 0x1_0000);
    assert_eq!((parsed.min_page_size, parsed.max_page_size), (15, 15));
    let none = Capabilities { max_queue_entries: 0, ..Capabilities::default() };
    assert_eq!(none.encode() & 0xffff, 1);
}

#[test]
fn configuration_by_the_table() {
    let enable = Configuration::ENABLE_NVM;
    assert!(enable.enabled());
    assert_eq!((enable.io_sq_entry_size(), enable.io_cq_entry_size()), (6, 4));
    let all = Configuration(0x0152_b6e0);
    assert!(!all.enabled() && all.ready_independent_of_media());
    assert_eq!(all.command_set(), 6);
    assert_eq!(all.memory_page_size(), 13);
    assert_eq!(all.arbitration(), 6);
    assert_eq!(all.shutdown(), 2);
    assert_eq!((all.io_sq_entry_size(), all.io_cq_entry_size()), (2, 5));
}

#[test]
fn status_by_the_table() {
    assert_eq!(ControllerStatus::default().encode(), 0);
    for (shutdown, value) in [
        (ShutdownStatus::Normal, 0b0011),
        (ShutdownStatus::Occurring, 0b0111),
        (ShutdownStatus::Complete, 0b1011),
    ] {
        let status = ControllerStatus { ready: true, fatal: true, shutdown };
        assert_eq!(status.encode(), value);
        assert_eq!(ControllerStatus::parse(value), status);
    }
}

#[test]
fn sizes_other_than_four_and_eight_are_refused() {
    for attrib in 0..8 {
        let mut sqe = Sqe::new_fabrics(0);
        sqe.set_cdw(10, attrib | 0xffff_fff8);
        assert_eq!(PropertyGet::parse(&sqe).is_ok(), attrib < 2);
        let refused = PropertySet::parse(&sqe) == Err(Status::INVALID_FIELD.dnr());
        assert_eq!(refused, attrib >= 2);
    }
}

fn size() -> impl Strategy<Value = PropertySize> {
    prop::sample::select(vec![PropertySize::Four, PropertySize::Eight])
}

proptest! {
    #[test]
    fn command_round_trips(offset: u32, size in size(), value: u64) {
        let get = PropertyGet { offset, size };
        prop_assert_eq!(PropertyGet::parse(&get.encode()), Ok(get));
        let set = PropertySet { offset, size, value: size.cut(value) };
        prop_assert_eq!(PropertySet::parse(&set.encode()), Ok(set));
        let uncut = PropertySet { offset, size, value };
        prop_assert_eq!(PropertySet::parse(&uncut.encode()), Ok(set));
    }

    #[test]
    fn any_entry(sqe in any_sqe()) {
        let _ = (PropertyGet::parse(&sqe), PropertySet::parse(&sqe));
    }

    #[test]
    fn any_value_survives(value: u64) {
        // MQES 0 is invalid on the wire and comes back as the smallest valid size.
        let value = value | 1;
        let capabilities = Capabilities::parse(value);
        prop_assert_eq!(Capabilities::parse(capabilities.encode()), capabilities);
        prop_assert_eq!(capabilities.encode() & !value, 0);
        let timeouts = ReadyTimeouts::parse(value as u32);
        prop_assert_eq!(timeouts.encode(), value as u32);
        let status = ControllerStatus::parse(value as u32);
        prop_assert_eq!(ControllerStatus::parse(status.encode()), status);
    }
}
