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

/// What an error of the medium means to a host; `medium` where it is the medium's own.
///
/// | Error | Status | Again |
/// |---|---|---|
/// | no space, quota, file too large | Capacity Exceeded | no |
/// | read-only, not permitted | Namespace Write Protected | no |
/// | shortage or interruption that passes | Command Interrupted | yes |
/// | device, disk or server is gone or out of reach | Internal Path Error: other paths may have it | yes |
/// | another system's reservation (block devices) | Reservation Conflict | no |
/// | the medium's end came early, sectors unreadable | write fault or unrecovered read error | no |
/// | a request the kernel takes for wrong | Internal Error | no |
/// | I/O error, and what is not listed | write fault or unrecovered read error | yes |
///
/// Only what cannot succeed when it is tried again unchanged says so (DNR).
pub(super) fn status_of(error: &io::Error, medium: Status) -> Status {
    use io::ErrorKind as E;
    match error.raw_os_error() {
        Some(
            libc::ENODEV
            | libc::ENXIO
            | libc::ENOMEDIUM
            | libc::EBADF
            | libc::ESHUTDOWN
            | libc::ETIMEDOUT
            | libc::ENOLINK
            | libc::ENOTCONN
            | libc::ECONNRESET
            | libc::ECONNABORTED
            | libc::EHOSTDOWN
            | libc::EHOSTUNREACH
            | libc::ENETDOWN
            | libc::ENETUNREACH
            | libc::ESTALE,
        ) => return Status::INTERNAL_PATH_ERROR,
        Some(libc::EBADE) => return Status::RESERVATION_CONFLICT.dnr(),
        Some(libc::ENODATA) => return medium.dnr(),
        Some(libc::EINVAL | libc::EOPNOTSUPP) => return Status::INTERNAL_ERROR.dnr(),
        _ => {}
    }
    match error.kind() {
        E::StorageFull | E::QuotaExceeded | E::FileTooLarge => Status::CAPACITY_EXCEEDED.dnr(),
        E::ReadOnlyFilesystem | E::PermissionDenied => Status::NAMESPACE_WRITE_PROTECTED.dnr(),
        E::Interrupted | E::WouldBlock | E::OutOfMemory | E::ResourceBusy => Status::COMMAND_INTERRUPTED,
        // The file was made shorter under us: those bytes are gone.
        E::UnexpectedEof | E::WriteZero => medium.dnr(),
        _ => medium,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_become_statuses_hosts_understand() {
        let table: [(Status, bool, &[i32]); 8] = [
            (Status::CAPACITY_EXCEEDED, true, &[libc::ENOSPC, libc::EDQUOT, libc::EFBIG]),
            (Status::NAMESPACE_WRITE_PROTECTED, true, &[libc::EROFS, libc::EPERM, libc::EACCES]),
            (Status::COMMAND_INTERRUPTED, false, &[libc::EAGAIN, libc::ENOMEM, libc::EINTR, libc::EBUSY]),
            (
                Status::INTERNAL_PATH_ERROR,
                false,
                &[libc::ENODEV, libc::ENXIO, libc::EBADF, libc::ESHUTDOWN, libc::ETIMEDOUT, libc::ESTALE],
            ),
            (Status::RESERVATION_CONFLICT, true, &[libc::EBADE]),
            (Status::WRITE_FAULT, true, &[libc::ENODATA]),
            (Status::INTERNAL_ERROR, true, &[libc::EINVAL]),
            (Status::WRITE_FAULT, false, &[libc::EIO, libc::EREMOTEIO, libc::EILSEQ]),
        ];
        for (status, final_, errors) in table {
            let expected = if final_ { status.dnr() } else { status };
            for errno in errors {
                let error = io::Error::from_raw_os_error(*errno);
                assert_eq!(status_of(&error, Status::WRITE_FAULT), expected, "{error}");
            }
        }
        let end = io::Error::from(io::ErrorKind::UnexpectedEof);
        assert_eq!(status_of(&end, Status::UNRECOVERED_READ_ERROR), Status::UNRECOVERED_READ_ERROR.dnr());
    }
}
