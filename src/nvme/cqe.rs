//! The completion queue entry: how a command is answered.
//!
//! [`Completion`] is what executing a command yields; [`Cqe`] is the 16 bytes that
//! carry it. Counting SQ heads and deciding what to report stays with the queue.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::ids::{Cid, Qid};
use crate::status::Status;

/// The outcome of a command, before it belongs to a queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Completion {
    /// What happened.
    pub status: Status,
    /// Command-specific result: DW0 in the low half, DW1 in the high half.
    pub result: u64,
}

impl Completion {
    /// Success with nothing to say.
    pub const OK: Self = Self::success(0);

    /// Success with a command-specific result.
    #[must_use]
    pub const fn success(result: u64) -> Self {
        Self { status: Status::SUCCESS, result }
    }

    /// A status with a command-specific result, as failed Connects have.
    #[must_use]
    pub const fn new(status: Status, result: u64) -> Self {
        Self { status, result }
    }
}

impl From<Status> for Completion {
    fn from(status: Status) -> Self {
        Self::new(status, 0)
    }
}

/// A completion queue entry (CQE), 16 bytes. Has no alignment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Cqe {
    /// DW0 and DW1, bytes 7:0.
    result: U64,
    /// SQ head pointer (SQHD), bytes 9:8.
    sq_head: U16,
    /// SQ identifier (SQID), bytes 11:10.
    sq_id: U16,
    /// Command identifier (CID), bytes 13:12.
    cid: U16,
    /// Phase tag (0 on fabrics) and status, bytes 15:14.
    status: U16,
}

impl Cqe {
    /// Size of a CQE in bytes.
    pub const LEN: usize = 16;

    /// The entry that reports `completion` for command `cid` of queue `qid`.
    #[must_use]
    pub fn new(completion: Completion, sq_head: u16, qid: Qid, cid: Cid) -> Self {
        Self {
            result: U64::new(completion.result),
            sq_head: U16::new(sq_head),
            sq_id: U16::new(qid.0),
            cid: U16::new(cid.0),
            status: U16::new(completion.status.wire()),
        }
    }

    /// Reads an entry. Every bit pattern is one.
    #[must_use]
    pub fn parse(bytes: &[u8; 16]) -> Self {
        zerocopy::transmute!(*bytes)
    }

    /// The entry as it stands on the wire.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        zerocopy::transmute_ref!(self)
    }

    /// Command-specific result (DW0, DW1), bytes 7:0.
    #[must_use]
    pub fn result(&self) -> u64 {
        self.result.get()
    }

    /// SQ head pointer (SQHD), bytes 9:8.
    #[must_use]
    pub fn sq_head(&self) -> u16 {
        self.sq_head.get()
    }

    /// Sets the SQ head pointer.
    pub fn set_sq_head(&mut self, head: u16) {
        self.sq_head = U16::new(head);
    }

    /// SQ identifier (SQID), bytes 11:10.
    #[must_use]
    pub fn qid(&self) -> Qid {
        Qid(self.sq_id.get())
    }

    /// Command identifier (CID), bytes 13:12.
    #[must_use]
    pub fn cid(&self) -> Cid {
        Cid(self.cid.get())
    }

    /// Status, bytes 15:14 without the phase tag.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::from_wire(self.status.get())
    }

    /// Status and result together.
    #[must_use]
    pub fn completion(&self) -> Completion {
        Completion::new(self.status(), self.result())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_stand_where_the_table_says() {
        let completion = Completion::new(Status::CONNECT_INVALID_PARAMETER.dnr(), 0x1122_3344_0001_0100);
        let cqe = Cqe::new(completion, 0x0102, Qid(0x0304), Cid(0x0506));
        assert_eq!(
            *cqe.as_bytes(),
            [0x00, 0x01, 0x01, 0x00, 0x44, 0x33, 0x22, 0x11, 0x02, 0x01, 0x04, 0x03, 0x06, 0x05, 0x04, 0x83]
        );
    }

    #[test]
    fn a_status_alone_has_no_result() {
        let completion = Completion::from(Status::INVALID_FIELD);
        assert_eq!(completion.result, 0);
        assert_eq!(Completion::OK.status, Status::SUCCESS);
    }

    proptest! {
        #[test]
        fn round_trip(status: u16, result: u64, head: u16, qid: u16, cid: u16) {
            let completion = Completion::new(Status::from_wire(status), result);
            let cqe = Cqe::new(completion, head, Qid(qid), Cid(cid));
            let back = Cqe::parse(cqe.as_bytes());
            prop_assert_eq!(back, cqe);
            prop_assert_eq!(back.completion(), completion);
            prop_assert_eq!((back.sq_head(), back.qid(), back.cid()), (head, Qid(qid), Cid(cid)));
        }

        #[test]
        fn any_bytes(bytes: [u8; 16]) {
            let cqe = Cqe::parse(&bytes);
            prop_assert_eq!(cqe.as_bytes(), &bytes);
            let _ = cqe.status().name();
        }
    }
}
