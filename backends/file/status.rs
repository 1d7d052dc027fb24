//! What an error of a medium means to a host.

use nvme::{Completion, Status};
use std::io;

/// What a host is told of an operation that carries no data back.
pub(super) fn completion_of(result: io::Result<()>) -> Completion {
    match result {
        Ok(()) => Completion::OK,
        Err(error) => status_of(&error, Status::WRITE_FAULT).into(),
    }
}

/// What an error of the medium means to a host; `medium` where it is the medium's own. Only what cannot succeed when it is
/// tried again unchanged says so (DNR).
pub(super) fn status_of(error: &io::Error, medium: Status) -> Status {
    use io::ErrorKind as E;
    match error.kind() {
        E::StorageFull | E::QuotaExceeded | E::FileTooLarge => Status::CAPACITY_EXCEEDED.dnr(),
        E::ReadOnlyFilesystem | E::PermissionDenied => Status::NAMESPACE_WRITE_PROTECTED.dnr(),
        E::Interrupted | E::WouldBlock | E::OutOfMemory => Status::COMMAND_INTERRUPTED,
        // The file was made shorter under us: those bytes are gone.
        E::UnexpectedEof => medium.dnr(),
        _ => medium,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_become_statuses_hosts_understand() {
        let status = |errno| status_of(&io::Error::from_raw_os_error(errno), Status::WRITE_FAULT);
        assert_eq!(status(28), Status::CAPACITY_EXCEEDED.dnr());
        assert_eq!(status(30), Status::NAMESPACE_WRITE_PROTECTED.dnr());
        assert_eq!(status(5), Status::WRITE_FAULT);
        assert!(!status(11).is_dnr() && !status(12).is_dnr(), "a passing shortage may be tried again");
    }
}
