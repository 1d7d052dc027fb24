//! Which part of a command a status is about ("parameter error location" of the error log): what can be told from the
//! command and its status. Where a status has several possible causes in one command, nothing is claimed.

use crate::features;
use nvme::{
    AdminOpcode, IoOpcode, Qid, Sqe, Status,
    features::GetFeatures,
    identify::{IdentifyCommand, cns, command_set},
    log_page::{GetLogPage, NO_PARAMETER_ERROR, log_id},
};

/// A bit of a byte of the command.
const fn bit(byte: u16, bit: u16) -> u16 {
    byte | bit << 8
}

/// A field that begins with this byte of the command.
const fn byte(byte: u16) -> u16 {
    bit(byte, 0)
}

const OPCODE: u16 = byte(0);
const NSID: u16 = byte(4);
const CDW10: u16 = byte(40);
const CDW11: u16 = byte(44);

/// Where the mistake is, or [`NO_PARAMETER_ERROR`].
pub fn of(qid: Qid, sqe: &Sqe, status: Status) -> u16 {
    let code = status.code();
    let is = |other: Status| code == other.code();
    if sqe.is_fabrics() {
        return if is(Status::INVALID_OPCODE) { NSID } else { NO_PARAMETER_ERROR };
    }
    if is(Status::INVALID_OPCODE) {
        OPCODE
    } else if is(Status::INVALID_FIELD) && (sqe.fuse() == 0b11 || qid.is_admin() && sqe.fuse() != 0) {
        byte(1)
    } else if is(Status::INVALID_FIELD) && !sqe.uses_sgl() {
        bit(1, 6)
    } else if is(Status::INVALID_NAMESPACE) {
        NSID
    } else if is(Status::SGL_OFFSET_INVALID) {
        byte(24)
    } else if is(Status::DATA_SGL_LENGTH_INVALID) {
        byte(32)
    } else if is(Status::SGL_DESCRIPTOR_TYPE_INVALID) {
        byte(39)
    } else if qid.is_admin() {
        of_admin(sqe, status)
    } else if is(Status::LBA_OUT_OF_RANGE) && !has_ranges(sqe) {
        CDW10
    } else {
        NO_PARAMETER_ERROR
    }
}

/// The ranges of these are in their data.
fn has_ranges(sqe: &Sqe) -> bool {
    matches!(IoOpcode::from_u8(sqe.opcode()), Some(IoOpcode::DatasetManagement | IoOpcode::Copy))
}

fn of_admin(sqe: &Sqe, status: Status) -> u16 {
    let is = |other: Status| status.code() == other.code();
    match AdminOpcode::from_u8(sqe.opcode()) {
        _ if is(Status::INVALID_LOG_PAGE) => CDW10,
        _ if is(Status::FEATURE_NOT_SAVEABLE) => bit(43, 7),
        _ if is(Status::FEATURE_NOT_CHANGEABLE) => CDW11,
        _ if is(Status::FEATURE_NOT_NAMESPACE_SPECIFIC) => NSID,
        _ if !is(Status::INVALID_FIELD) => NO_PARAMETER_ERROR,
        Some(AdminOpcode::Identify) => of_identify(&IdentifyCommand::parse(sqe)),
        Some(AdminOpcode::GetLogPage) => of_log_page(&GetLogPage::parse(sqe)),
        Some(AdminOpcode::GetFeatures | AdminOpcode::SetFeatures) => of_features(sqe),
        _ => NO_PARAMETER_ERROR,
    }
}

fn of_identify(command: &IdentifyCommand) -> u16 {
    match command.cns {
        cns::COMMAND_SET_NAMESPACE | cns::COMMAND_SET_CONTROLLER | cns::COMMAND_SET_ACTIVE_NAMESPACES
            if command.csi != command_set::NVM =>
        {
            byte(47)
        }
        cns::COMMAND_SETS => byte(42),
        _ => CDW10,
    }
}

fn of_log_page(command: &GetLogPage) -> u16 {
    if command.offset_is_index {
        bit(58, 7)
    } else if !command.offset.is_multiple_of(4) {
        byte(48)
    } else if command.id == log_id::PERSISTENT_EVENT && command.specific & 3 == 3 {
        byte(41)
    } else {
        byte(42)
    }
}

/// A value is in CDW11 unless it is in the data.
fn of_features(sqe: &Sqe) -> u16 {
    use nvme::features::{feature, select};
    let command = GetFeatures::parse(sqe);
    let is_get = sqe.opcode() == AdminOpcode::GetFeatures.code();
    if !features::is_known(command.id) {
        CDW10
    } else if is_get && command.select > select::CAPABILITIES {
        byte(41)
    } else if command.id == feature::HOST_BEHAVIOR {
        NO_PARAMETER_ERROR
    } else {
        CDW11
    }
}
