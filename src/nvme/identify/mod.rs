//! Identify (opcode 06h): the command's fields and the structures it returns.
//!
//! Which CNS values a controller answers, and with what content, is the
//! target's business; here are only the wire formats.

mod bits;
mod controller;
mod descriptors;
pub(crate) mod layout;
mod namespace;
mod namespace_more;
mod power;

pub use bits::*;
pub use controller::IdentifyController;
pub use descriptors::{
    NamespaceDescriptors, namespace_id_type, write_command_sets, write_controller_list, write_nsid_list,
};
pub use namespace::{IdentifyNamespace, LbaFormat};
pub use namespace_more::{
    ExtendedLbaFormat, IdentifyNamespaceIndependent, IdentifyNvmController, IdentifyNvmNamespace,
};
pub use power::PowerState;

use crate::{Nsid, Sqe};

/// Every Identify command returns exactly this many bytes.
pub const IDENTIFY_LEN: usize = 4096;

/// Entries of a namespace list (CNS 02h and 07h, log page 04h).
pub const NSID_LIST_ENTRIES: usize = IDENTIFY_LEN / 4;

/// Values of CNS, "controller or namespace structure" (CDW10 bits 7:0).
pub mod cns {
    /// Identify Namespace of the NVM command set.
    pub const NAMESPACE: u8 = 0x00;
    /// Identify Controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Active namespace list.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Namespace identification descriptors.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// NVM set list.
    pub const NVM_SETS: u8 = 0x04;
    /// Namespace structure specific to an I/O command set (CSI).
    pub const COMMAND_SET_NAMESPACE: u8 = 0x05;
    /// Controller structure specific to an I/O command set (CSI).
    pub const COMMAND_SET_CONTROLLER: u8 = 0x06;
    /// Active namespace list of one I/O command set (CSI).
    pub const COMMAND_SET_ACTIVE_NAMESPACES: u8 = 0x07;
    /// Namespace structure independent of the I/O command set.
    pub const NAMESPACE_INDEPENDENT: u8 = 0x08;
    /// Allocated namespace list (namespace management).
    pub const ALLOCATED_NAMESPACES: u8 = 0x10;
    /// Identify Namespace of an allocated namespace.
    pub const ALLOCATED_NAMESPACE: u8 = 0x11;
    /// Controllers attached to a namespace.
    pub const ATTACHED_CONTROLLERS: u8 = 0x12;
    /// Controllers of the subsystem.
    pub const CONTROLLERS: u8 = 0x13;
    /// Primary controller capabilities.
    pub const PRIMARY_CONTROLLER: u8 = 0x14;
    /// Secondary controller list.
    pub const SECONDARY_CONTROLLERS: u8 = 0x15;
    /// Namespace granularity list.
    pub const NAMESPACE_GRANULARITY: u8 = 0x16;
    /// UUID list.
    pub const UUIDS: u8 = 0x17;
    /// Domain list.
    pub const DOMAINS: u8 = 0x18;
    /// Endurance group list.
    pub const ENDURANCE_GROUPS: u8 = 0x19;
    /// Allocated namespace list of one I/O command set.
    pub const COMMAND_SET_ALLOCATED_NAMESPACES: u8 = 0x1a;
    /// Allocated namespace structure specific to an I/O command set.
    pub const COMMAND_SET_ALLOCATED_NAMESPACE: u8 = 0x1b;
    /// I/O command set combinations.
    pub const COMMAND_SETS: u8 = 0x1c;
    /// Allocated namespace structure independent of the I/O command set.
    pub const ALLOCATED_NAMESPACE_INDEPENDENT: u8 = 0x1f;
}

/// Values of CSI, "command set identifier".
pub mod command_set {
    /// NVM command set.
    pub const NVM: u8 = 0x00;
    /// Key value command set.
    pub const KEY_VALUE: u8 = 0x01;
    /// Zoned namespace command set.
    pub const ZONED: u8 = 0x02;
}

/// The fields of an Identify command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdentifyCommand {
    /// Which structure is wanted (CNS, CDW10 bits 7:0); see [`cns`].
    pub cns: u8,
    /// Controller identifier (CNTID, CDW10 bits 31:16).
    pub controller_id: u16,
    /// CNS specific identifier, e.g. the NVM set (CNSSID, CDW11 bits 15:0).
    pub set_id: u16,
    /// I/O command set (CSI, CDW11 bits 31:24); see [`command_set`].
    pub csi: u8,
    /// Namespace (NSID, CDW1).
    pub nsid: Nsid,
    /// UUID index (UIDX, CDW14 bits 6:0).
    pub uuid_index: u8,
}

impl IdentifyCommand {
    /// The fields in `sqe`, whose opcode the caller has checked.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let (cdw10, cdw11, cdw14) = (sqe.cdw(10), sqe.cdw(11), sqe.cdw(14));
        Self {
            cns: cdw10 as u8,
            controller_id: (cdw10 >> 16) as u16,
            set_id: cdw11 as u16,
            csi: (cdw11 >> 24) as u8,
            nsid: sqe.nsid(),
            uuid_index: (cdw14 & 0x7f) as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fields_come_back(cns: u8, controller_id: u16, set_id: u16, csi: u8, nsid: u32, uuid in 0u8..128) {
            let mut sqe = Sqe::new(0x06);
            sqe.set_nsid(Nsid(nsid));
            sqe.set_cdw(10, u32::from(controller_id) << 16 | 0xff00 | u32::from(cns));
            sqe.set_cdw(11, u32::from(csi) << 24 | 0x00ff_0000 | u32::from(set_id));
            sqe.set_cdw(14, 0xffff_ff80 | u32::from(uuid));
            let nsid = Nsid(nsid);
            let expected = IdentifyCommand { cns, controller_id, set_id, csi, nsid, uuid_index: uuid };
            prop_assert_eq!(IdentifyCommand::parse(&sqe), expected);
        }
    }
}
