//! Get Log Page (admin command 02h) of an I/O controller.
//!
//! Base specification, "Get Log Page command".

mod health;
pub mod supported;

use crate::{
    admin::Answer,
    persistent_event,
    queue_pair::{self, QueuePair},
};
use nvme::{
    Sqe, Status,
    identify::command_set,
    log_page::{FirmwareSlotLog, GetLogPage, log_id},
};
use transports::QueuePair as TransportQueuePair;

/// Answers Get Log Page.
pub fn execute<Q: TransportQueuePair>(
    pair: &QueuePair<Q>,
    token: &Q::Token,
    sqe: &Sqe,
) -> Result<Answer, Status> {
    let command = begin(pair, token, sqe)?;
    let bytes = match command.id {
        log_id::CHANGED_NAMESPACES => {
            pair.controller.events.changed_namespaces(command.retain_async_event).to_vec()
        }
        log_id::ERROR_INFORMATION => pair.controller.errors.page(),
        log_id::SMART => health::page(pair, command.nsid)?,
        log_id::FIRMWARE_SLOT => {
            FirmwareSlotLog::single(&pair.controller.subsystem.firmware).as_bytes().to_vec()
        }
        log_id::EFFECTS if command.csi == command_set::NVM => supported::effects(),
        log_id::SUPPORTED_LOG_PAGES => supported::pages(&pair.controller),
        log_id::PERSISTENT_EVENT => persistent_event::read(&pair.controller, &command)?,
        log_id::FEATURES => supported::features(&pair.controller),
        log_id::MANAGEMENT_COMMANDS => supported::management_commands(),
        _ => return Err(Status::INVALID_LOG_PAGE.dnr()),
    };
    cut(&command, bytes)
}

/// Checks what a command asks for, and lets the events of its log page come again. Reading can change what is read later
/// (the changed namespace list), so nothing may fail behind this but a log page that is not there.
pub fn begin<Q: TransportQueuePair>(
    pair: &QueuePair<Q>,
    token: &Q::Token,
    sqe: &Sqe,
) -> Result<GetLogPage, Status> {
    let command = GetLogPage::parse(sqe);
    if !command.offset.is_multiple_of(4) || command.offset_is_index {
        return Err(Status::INVALID_FIELD.dnr());
    }
    queue_pair::check_transfer(pair.transport.described(token, sqe)?, command.bytes, true, false)?;
    if command.bytes > pair.local.target.limits.max_transfer_bytes.into() {
        return Err(Status::INVALID_FIELD.dnr());
    }
    if !command.retain_async_event {
        pair.controller.events.log_read(command.id);
    }
    Ok(command)
}

/// The part of a log page that a command asks for.
pub fn cut(command: &GetLogPage, bytes: Vec<u8>) -> Result<Answer, Status> {
    let len = usize::try_from(command.bytes).map_err(|_| Status::INVALID_FIELD.dnr())?;
    Ok(Answer::Bytes { bytes, offset: command.offset, len })
}
