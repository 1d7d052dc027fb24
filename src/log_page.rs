//! Get Log Page (admin command 02h) of an I/O controller.
//!
//! Base specification, "Get Log Page command".

use crate::{
    admin,
    admin::Answer,
    io,
    queue_pair::{self, QueuePair},
    subsystem::Subsystem,
};
use nvme::{
    IoOpcode, Sqe, Status,
    identify::command_set,
    log_page::{EffectsLog, FirmwareSlotLog, GetLogPage, SmartLog, effect, log_id},
};
use transports::QueuePair as TransportQueuePair;

/// A data unit of the health log: a thousand times 512 bytes, rounded up.
const DATA_UNIT: u64 = 512_000;

/// Answers Get Log Page.
pub fn execute<Q: TransportQueuePair>(pair: &QueuePair<Q>, sqe: &Sqe) -> Result<Answer, Status> {
    let command = begin(pair, sqe)?;
    let subsystem = &pair.controller.subsystem;
    let bytes = match command.id {
        log_id::CHANGED_NAMESPACES => {
            pair.controller.events.changed_namespaces(command.retain_async_event).to_vec()
        }
        log_id::ERROR_INFORMATION => pair.controller.errors.page(),
        log_id::SMART => health(subsystem, pair.controller.errors.count()).as_bytes().to_vec(),
        log_id::FIRMWARE_SLOT => FirmwareSlotLog::single(&subsystem.firmware).as_bytes().to_vec(),
        log_id::EFFECTS if command.csi == command_set::NVM => effects().as_bytes().to_vec(),
        _ => return Err(Status::INVALID_LOG_PAGE.dnr()),
    };
    cut(&command, bytes)
}

/// Checks what a command asks for, and lets the events of its log page come again. Reading can change what is read later
/// (the changed namespace list), so nothing may fail behind this but a log page that is not there.
pub fn begin<Q: TransportQueuePair>(pair: &QueuePair<Q>, sqe: &Sqe) -> Result<GetLogPage, Status> {
    let command = GetLogPage::parse(sqe);
    if !command.offset.is_multiple_of(4) || command.offset_is_index {
        return Err(Status::INVALID_FIELD.dnr());
    }
    queue_pair::check_transfer(sqe, command.bytes, true, false)?;
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

/// Health of the subsystem: what its namespaces read and wrote since the start, and this controller's failed commands. There is nothing that wears.
fn health(subsystem: &Subsystem, errors: u64) -> SmartLog {
    let mut page = SmartLog::new_zeroed();
    let totals = subsystem.namespaces.iter().map(|n| n.totals());
    let (mut reads, mut read_bytes, mut writes, mut written_bytes) = (0, 0, 0, 0);
    for t in totals {
        reads += t.reads;
        read_bytes += t.read_bytes;
        writes += t.writes;
        written_bytes += t.written_bytes;
    }
    let wide = |value: u64| u128::from(value).to_le_bytes();
    page.available_spare = 100;
    page.data_units_read = wide(read_bytes.div_ceil(DATA_UNIT));
    page.data_units_written = wide(written_bytes.div_ceil(DATA_UNIT));
    page.host_read_commands = wide(reads);
    page.host_write_commands = wide(writes);
    page.error_log_entries = wide(errors);
    page
}

/// Commands supported and their effects: exactly what the pipeline executes.
fn effects() -> EffectsLog {
    let mut page = EffectsLog::new_zeroed();
    for opcode in admin::SUPPORTED {
        page.add_admin(opcode.code(), effect::SUPPORTED);
    }
    for opcode in io::SUPPORTED {
        let changes = matches!(
            opcode,
            IoOpcode::Write | IoOpcode::WriteZeroes | IoOpcode::DatasetManagement | IoOpcode::Copy
        );
        page.add_io(opcode.code(), effect::SUPPORTED | if changes { effect::BLOCK_CONTENT } else { 0 });
    }
    page
}
