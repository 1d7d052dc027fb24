//! The error information log of a controller: its latest failed commands.
//!
//! Base specification, "Error Information log page". Only commands that fail come here, so the lock is never on the way of
//! one that succeeds; the memory is taken when the controller is made.

mod location;

use crate::config::TransportKind;
use nvme::{Completion, IoCommand, Qid, Sqe, discovery::TransportType, log_page::ErrorLogEntry};
use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

/// Entries kept (ELPE, 1's based).
pub const ENTRIES: usize = 64;

/// The latest failed commands, newest first.
pub struct ErrorLog(Mutex<Log>);

struct Log {
    count: u64,
    entries: VecDeque<ErrorLogEntry>,
}

impl Default for ErrorLog {
    fn default() -> ErrorLog {
        ErrorLog(Mutex::new(Log { count: 0, entries: VecDeque::with_capacity(ENTRIES) }))
    }
}

impl ErrorLog {
    /// Takes note of a command that failed.
    pub fn record(&self, transport: TransportKind, qid: Qid, sqe: &Sqe, completion: Completion) {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.count += 1;
        let mut entry = ErrorLogEntry::new_zeroed();
        entry.error_count = log.count.into();
        entry.submission_queue = qid.0.into();
        entry.command_id = sqe.cid().0.into();
        entry.status = completion.status.wire().into();
        entry.parameter_error_location = location::of(qid, sqe, completion.status).into();
        entry.transport_type = match transport {
            TransportKind::Tcp => TransportType::Tcp,
            TransportKind::Rdma => TransportType::Rdma,
        } as u8;
        entry.opcode = sqe.opcode();
        if !sqe.is_fabrics() {
            entry.nsid = sqe.nsid().0.into();
            // Commands without a range have none.
            let command = IoCommand::parse(sqe).ok().filter(|_| !qid.is_admin());
            entry.lba = command.map_or(0, |command| command.lba.0).into();
        }
        log.entries.truncate(ENTRIES - 1);
        log.entries.push_front(entry);
    }

    /// How many commands have failed.
    pub fn count(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).count
    }

    /// The log page: newest first, then unused entries.
    pub fn page(&self) -> Vec<u8> {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut page: Vec<u8> = log.entries.iter().flat_map(|entry| entry.as_bytes()).copied().collect();
        page.resize(ENTRIES * ErrorLogEntry::LEN, 0);
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::{Lba, Nsid, Status};

    #[test]
    fn the_newest_come_first_and_the_oldest_go() {
        let log = ErrorLog::default();
        for lba in 0..100 {
            let sqe = IoCommand::encode(nvme::IoOpcode::Read, Nsid(3), Lba(lba), 1, false);
            log.record(TransportKind::Tcp, Qid(2), &sqe, Status::LBA_OUT_OF_RANGE.dnr().into());
        }
        let page = log.page();
        assert_eq!((log.count(), page.len()), (100, 4096));
        for (index, bytes) in page.chunks(64).enumerate() {
            let entry = ErrorLogEntry::from_bytes(bytes).unwrap();
            let newest_first = 99 - index as u64;
            assert_eq!((entry.error_count.get(), entry.lba.get()), (newest_first + 1, newest_first));
            assert_eq!((entry.submission_queue.get(), entry.nsid.get(), entry.opcode), (2, 3, 0x02));
            assert_eq!(entry.status.get(), Status::LBA_OUT_OF_RANGE.dnr().wire());
        }
    }
}
