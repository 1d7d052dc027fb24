//! Identify structures that are lists: of namespaces (CNS 02h and 07h), of controllers (12h and 13h).

use crate::controller::Controller;
use nvme::{
    ControllerId, Nsid, Status,
    identify::{self, IDENTIFY_LEN, IdentifyCommand, cns},
};

/// The namespaces after one.
pub fn namespaces(controller: &Controller, after: Nsid, page: &mut [u8; IDENTIFY_LEN]) -> Result<(), Status> {
    if after.0 >= Nsid::ALL.0 - 1 {
        return Err(Status::INVALID_NAMESPACE.dnr());
    }
    identify::write_nsid_list(controller.subsystem.namespaces.iter().map(|n| n.nsid), after, page);
    Ok(())
}

/// The live controllers of the subsystem, from an identifier on. Each of them has every namespace attached.
pub fn controllers(
    controller: &Controller,
    command: &IdentifyCommand,
    page: &mut [u8; IDENTIFY_LEN],
) -> Result<(), Status> {
    let subsystem = &controller.subsystem;
    if command.cns == cns::ATTACHED_CONTROLLERS && subsystem.namespace(command.nsid).is_none() {
        return Err(Status::INVALID_NAMESPACE.dnr());
    }
    let first = ControllerId(command.controller_id);
    identify::write_controller_list(subsystem.controller_ids(), first, page);
    Ok(())
}
