//! The Connect command: what ties a connection to a controller's queue.
//!
//! Reads the SQE and the 1024 bytes of data, and builds the results that name an
//! offending field. The validity checks themselves need the target's state and
//! are made there.

use crate::ids::{ControllerId, HostId, Qid};
use crate::nqn::{Nqn, NqnError};
use crate::opcode::FabricsType;
use crate::sgl::SglDescriptor;
use crate::sqe::Sqe;

/// CATTR bit 2: disable SQ flow control.
const CATTR_DISABLE_FLOW_CONTROL: u32 = 1 << 2;

/// A Connect command's SQE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectCommand {
    /// Record format (RECFMT), bytes 41:40; 0 is the only one.
    pub record_format: u16,
    /// Queue identifier (QID), bytes 43:42.
    pub qid: Qid,
    /// Entries of the submission queue: SQSIZE plus one.
    pub sq_entries: u32,
    /// Submission queue size (SQSIZE), bytes 45:44, as sent. 0 is invalid, which is
    /// the one question to ask of it; use `sq_entries` for everything else.
    pub sq_size_field: u16,
    /// Connect attributes (CATTR) bit 2, byte 46: the host wants no SQHD updates.
    pub sq_flow_control_disabled: bool,
    /// Keep alive timeout (KATO), bytes 51:48, in milliseconds; 0 disables it.
    pub keep_alive_ms: u32,
}

impl ConnectCommand {
    /// Reads the fields of an SQE already known to be a Connect.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw(10);
        let cdw11 = sqe.cdw(11);
        let sq_size_field = cdw11 as u16;
        Self {
            record_format: cdw10 as u16,
            qid: Qid((cdw10 >> 16) as u16),
            sq_entries: u32::from(sq_size_field) + 1,
            sq_size_field,
            sq_flow_control_disabled: cdw11 >> 16 & CATTR_DISABLE_FLOW_CONTROL != 0,
            keep_alive_ms: sqe.cdw(12),
        }
    }

    /// A Connect as a host would send it to a queue of `sq_entries` (1 to 65536).
    #[must_use]
    pub const fn new(qid: Qid, sq_entries: u32, keep_alive_ms: u32) -> Self {
        Self {
            record_format: 0,
            qid,
            sq_entries,
            sq_size_field: sq_entries.wrapping_sub(1) as u16,
            sq_flow_control_disabled: false,
            keep_alive_ms,
        }
    }

    /// The SQE of this command, with its data in the capsule. SQSIZE is taken from
    /// `sq_size_field`. For hosts in tests and benchmarks.
    #[must_use]
    pub fn encode(&self) -> Sqe {
        let mut sqe = Sqe::new_fabrics(FabricsType::Connect.code());
        sqe.set_sgl(SglDescriptor::in_capsule(ConnectData::LEN as u32));
        sqe.set_cdw(10, u32::from(self.record_format) | u32::from(self.qid.0) << 16);
        let attributes = if self.sq_flow_control_disabled { CATTR_DISABLE_FLOW_CONTROL } else { 0 };
        sqe.set_cdw(11, u32::from(self.sq_size_field) | attributes << 16);
        sqe.set_cdw(12, self.keep_alive_ms);
        sqe
    }
}

/// The data of a Connect command, 1024 bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectData {
    /// Host identifier (HOSTID), bytes 15:0.
    pub host_id: HostId,
    /// Controller identifier (CNTLID), bytes 17:16.
    pub controller_id: ControllerId,
    /// NVM subsystem NQN (SUBNQN), bytes 511:256, or what is wrong with it.
    pub subsystem_nqn: Result<Nqn, NqnError>,
    /// Host NQN (HOSTNQN), bytes 767:512, or what is wrong with it.
    pub host_nqn: Result<Nqn, NqnError>,
}

impl ConnectData {
    /// Length of the data in bytes.
    pub const LEN: usize = 1024;

    /// Reads the data; `None` when it is not exactly [`LEN`](Self::LEN) bytes.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        Some(Self {
            host_id: HostId(*bytes.first_chunk()?),
            controller_id: ControllerId(u16::from_le_bytes([bytes[16], bytes[17]])),
            subsystem_nqn: Nqn::parse_field(bytes[256..].first_chunk()?),
            host_nqn: Nqn::parse_field(bytes[512..].first_chunk()?),
        })
    }

    /// The data a host would send.
    #[must_use]
    pub const fn new(
        host_id: HostId,
        controller_id: ControllerId,
        subsystem_nqn: Nqn,
        host_nqn: Nqn,
    ) -> Self {
        Self { host_id, controller_id, subsystem_nqn: Ok(subsystem_nqn), host_nqn: Ok(host_nqn) }
    }

    /// Writes the data; a name that is an error leaves its field empty. For hosts
    /// in tests and benchmarks.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&self.host_id.0);
        bytes[16..18].copy_from_slice(&self.controller_id.0.to_le_bytes());
        for (at, name) in [(256, &self.subsystem_nqn), (512, &self.host_nqn)] {
            if let (Ok(name), Some(field)) = (name, bytes[at..].first_chunk_mut()) {
                name.write_field(field);
            }
        }
        bytes
    }
}

/// Result (DW0) of a successful Connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectResult {
    /// Controller identifier (CNTLID), bits 15:0.
    pub controller_id: ControllerId,
    /// Authentication required (ATR), bit 17.
    pub authentication_required: bool,
    /// Authentication and secure channel required (ASCR), bit 18.
    pub secure_channel_required: bool,
}

impl ConnectResult {
    /// The value for the completion's result.
    #[must_use]
    pub const fn encode(self) -> u64 {
        self.controller_id.0 as u64
            | (self.authentication_required as u64) << 17
            | (self.secure_channel_required as u64) << 18
    }

    /// Reads a completion's result.
    #[must_use]
    pub const fn parse(result: u64) -> Self {
        Self {
            controller_id: ControllerId(result as u16),
            authentication_required: result >> 17 & 1 != 0,
            secure_channel_required: result >> 18 & 1 != 0,
        }
    }
}

/// Result (DW0) of a Connect that fails with 182h: which field was wrong.
/// The offsets are in [`offset`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidParameter;

impl InvalidParameter {
    /// The field at byte `offset` of the SQE (IATTR 0).
    #[must_use]
    pub const fn in_command(offset: u16) -> u64 {
        offset as u64
    }

    /// The field at byte `offset` of the Connect data (IATTR 1).
    #[must_use]
    pub const fn in_data(offset: u16) -> u64 {
        offset as u64 | 1 << 16
    }
}

/// Byte offsets of Connect fields, as [`InvalidParameter`] reports them.
pub mod offset {
    /// Record format (RECFMT), in the SQE.
    pub const RECFMT: u16 = 40;
    /// Queue identifier (QID), in the SQE.
    pub const QID: u16 = 42;
    /// Submission queue size (SQSIZE), in the SQE.
    pub const SQSIZE: u16 = 44;
    /// Keep alive timeout (KATO), in the SQE.
    pub const KATO: u16 = 48;
    /// Host identifier (HOSTID), in the data.
    pub const HOSTID: u16 = 0;
    /// Controller identifier (CNTLID), in the data.
    pub const CNTLID: u16 = 16;
    /// NVM subsystem NQN (SUBNQN), in the data.
    pub const SUBNQN: u16 = 256;
    /// Host NQN (HOSTNQN), in the data.
    pub const HOSTNQN: u16 = 512;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqe::tests::any_sqe;
    use proptest::prelude::*;

    #[test]
    fn command_fields_stand_where_the_table_says() {
        let mut command = ConnectCommand::new(Qid(3), 128, 5000);
        command.sq_flow_control_disabled = true;
        let sqe = command.encode();
        let bytes = sqe.as_bytes();
        assert_eq!(bytes[0], 0x7f);
        assert_eq!(bytes[4], 0x01);
        assert_eq!(bytes[40..52], [0, 0, 3, 0, 127, 0, 4, 0, 0x88, 0x13, 0, 0]);
        assert_eq!(sqe.sgl(), SglDescriptor::in_capsule(1024));
    }

    #[test]
    fn names_fail_one_by_one() {
        let mut bytes = [0; ConnectData::LEN];
        bytes[256..512].fill(b'x');
        bytes[512..515].copy_from_slice(b"abc");
        let data = ConnectData::parse(&bytes).unwrap();
        assert_eq!(data.subsystem_nqn, Err(NqnError::NotTerminated));
        assert_eq!(data.host_nqn.unwrap().as_str(), "abc");
        assert_eq!(ConnectData::parse(&bytes[1..]), None);
    }

    #[test]
    fn invalid_parameter_values() {
        assert_eq!(InvalidParameter::in_data(offset::SUBNQN), 0x0001_0100);
        assert_eq!(InvalidParameter::in_data(offset::HOSTNQN), 0x0001_0200);
        assert_eq!(InvalidParameter::in_data(offset::CNTLID), 0x0001_0010);
        assert_eq!(InvalidParameter::in_data(offset::HOSTID), 0x0001_0000);
        assert_eq!(InvalidParameter::in_command(offset::QID), 0x2a);
        assert_eq!(InvalidParameter::in_command(offset::SQSIZE), 0x2c);
        assert_eq!(InvalidParameter::in_command(offset::RECFMT), 0x28);
        assert_eq!(InvalidParameter::in_command(offset::KATO), 0x30);
    }

    proptest! {
        #[test]
        fn command_round_trip(format: u16, qid: u16, entries in 1_u32..=65536, off: bool, kato: u32) {
            let mut command = ConnectCommand::new(Qid(qid), entries, kato);
            command.record_format = format;
            command.sq_flow_control_disabled = off;
            prop_assert_eq!(ConnectCommand::parse(&command.encode()), command);
        }

        #[test]
        fn command_of_any_entry(sqe in any_sqe()) {
            let command = ConnectCommand::parse(&sqe);
            prop_assert_eq!(command.sq_entries, u32::from(command.sq_size_field) + 1);
        }

        #[test]
        fn data_round_trip(
            id: [u8; 16],
            cntlid: u16,
            sub in "nqn\\.2024-01\\.a:[a-z0-9]{1,200}",
            host in "nqn\\.2024-01\\.b:[a-z0-9]{1,200}",
        ) {
            let (sub, host) = (sub.parse().unwrap(), host.parse().unwrap());
            let data = ConnectData::new(HostId(id), ControllerId(cntlid), sub, host);
            prop_assert_eq!(ConnectData::parse(&data.encode()), Some(data));
        }

        #[test]
        fn any_data(
            bytes in prop::collection::vec(any::<u8>(), 0..1100),
            whole in prop::collection::vec(any::<u8>(), 1024),
        ) {
            let fits = bytes.len() == ConnectData::LEN;
            prop_assert_eq!(ConnectData::parse(&bytes).is_some(), fits);
            prop_assert!(ConnectData::parse(&whole).is_some());
        }

        #[test]
        fn result_round_trip(id: u16, authentication_required: bool, secure_channel_required: bool) {
            let controller_id = ControllerId(id);
            let result = ConnectResult { controller_id, authentication_required, secure_channel_required };
            prop_assert_eq!(ConnectResult::parse(result.encode()), result);
        }
    }
}
