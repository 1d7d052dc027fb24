//! Pages that tell of a change: changed namespaces (04h) and reservation
//! notifications (80h).
//!
//! The queue of notifications and the set of changes are the target's.

use crate::Nsid;
use crate::identify::layout::wire_layout;
use crate::identify::{IDENTIFY_LEN, NSID_LIST_ENTRIES};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Writes the changed attached namespace list (04h): `nsids`, which must be
/// ascending, or FFFFFFFFh alone if they are more than 1024.
pub fn write_changed_namespaces(nsids: impl IntoIterator<Item = Nsid>, page: &mut [u8; IDENTIFY_LEN]) {
    page.fill(0);
    for (index, nsid) in nsids.into_iter().enumerate() {
        if index == NSID_LIST_ENTRIES {
            page.fill(0);
            page[..4].fill(0xff);
            return;
        }
        page[index * 4..index * 4 + 4].copy_from_slice(&nsid.0.to_le_bytes());
    }
}

/// Values of the type of a [`ReservationNotification`].
pub mod reservation_notification_type {
    /// There is no notification; the whole page is zero.
    pub const EMPTY: u8 = 0;
    /// The host's registration was preempted.
    pub const REGISTRATION_PREEMPTED: u8 = 1;
    /// The reservation was released.
    pub const RESERVATION_RELEASED: u8 = 2;
    /// The reservation was preempted.
    pub const RESERVATION_PREEMPTED: u8 = 3;
}

/// Reservation notification log page (80h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ReservationNotification {
    /// Number of this page; never 0 in a valid one, wraps to 1
    /// (LPC, bytes 0 to 7).
    pub page_count: U64,
    /// What happened; values in [`reservation_notification_type`] (RNLPT, byte 8).
    pub kind: u8,
    /// Further pages waiting, at most 255 (NALP, byte 9).
    pub available: u8,
    _reserved10: [u8; 2],
    /// Namespace (NSID, bytes 12 to 15).
    pub nsid: U32,
    _reserved16: [u8; 48],
}

wire_layout!(ReservationNotification, 64, {
    0 page_count,
    8 kind,
    9 available,
    12 nsid,
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_namespaces_up_to_1024() {
        let mut page = [0xaa; IDENTIFY_LEN];
        write_changed_namespaces([Nsid(1), Nsid(0x0203)], &mut page);
        assert_eq!(page[..8], [1, 0, 0, 0, 3, 2, 0, 0]);
        assert!(page[8..].iter().all(|&b| b == 0));

        write_changed_namespaces((1..=1024).map(Nsid), &mut page);
        assert_eq!(page[4092..], [0, 4, 0, 0]);
    }

    #[test]
    fn more_changed_namespaces_are_all() {
        let mut page = [0xaa; IDENTIFY_LEN];
        write_changed_namespaces((1..=1025).map(Nsid), &mut page);
        assert_eq!(page[..4], [0xff; 4]);
        assert!(page[4..].iter().all(|&b| b == 0));
    }
}
