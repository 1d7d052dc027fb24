//! What a host is told of a drive's answer, or of the kernel's reason for having none.
//!
//! The drive's own statuses go on as they are, with three exceptions. *More* points to the drive's error log, which the host
//! cannot read. The retry delay refers to the drive's delay times and not to ours. Path statuses tell of the drive's path to
//! this machine: to the host they are an internal path error, after which it tries another path.

use nvme::{Completion, Status};
use reactor::DriveAnswer;
use std::io;

/// Status code and "do not retry" in the field without its phase tag.
const KEPT: u16 = 0x47ff;
/// Status code type "path related".
const PATH: u8 = 3;

/// The completion for a drive's answer.
pub(super) fn completion(answer: DriveAnswer) -> Completion {
    let status = Status::from_wire((answer.status & KEPT) << 1);
    match status {
        status if status.is_success() => Completion::OK,
        // The kernel took the command back from a drive it reset or lost.
        Status::ABORT_REQUESTED | Status::ABORTED_SQ_DELETION => Status::INTERNAL_PATH_ERROR.into(),
        status if status.sct() == PATH => Status::INTERNAL_PATH_ERROR.into(),
        status => status.into(),
    }
}

/// The status for a command that the kernel did not bring to the drive. `multipath`: the node is the head of several
/// paths, which refuses with "invalid" while none of them can be used.
pub(super) fn status_of(error: &io::Error, multipath: bool) -> Status {
    match error.raw_os_error().unwrap_or(0) {
        EINVAL if multipath => Status::INTERNAL_PATH_ERROR,
        EINTR | ENODEV | ENXIO | ESHUTDOWN | ETIMEDOUT | EBADF | ENOTCONN => Status::INTERNAL_PATH_ERROR,
        EAGAIN | ENOMEM | EBUSY => Status::COMMAND_INTERRUPTED,
        EINVAL | EFAULT => Status::INVALID_FIELD.dnr(),
        EACCES | EPERM => Status::OPERATION_DENIED.dnr(),
        ENOSPC => Status::CAPACITY_EXCEEDED.dnr(),
        EOPNOTSUPP | ENOTTY => Status::INVALID_OPCODE.dnr(),
        _ => Status::INTERNAL_ERROR,
    }
}

// Linux's numbers, which `std` does not name; the same on every architecture weft runs on.
const EPERM: i32 = 1;
const EINTR: i32 = 4;
const ENXIO: i32 = 6;
const EBADF: i32 = 9;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const EFAULT: i32 = 14;
const EBUSY: i32 = 16;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const ENOTTY: i32 = 25;
const ENOSPC: i32 = 28;
const EOPNOTSUPP: i32 = 95;
const ENOTCONN: i32 = 107;
const ESHUTDOWN: i32 = 108;
const ETIMEDOUT: i32 = 110;

#[cfg(test)]
mod tests {
    use super::*;

    fn told(status: u16) -> Status {
        completion(DriveAnswer { status, result: 7 }).status
    }

    #[test]
    fn a_drives_status_goes_on_without_what_only_the_drive_can_explain() {
        assert!(told(0).is_success());
        assert_eq!(told(0x281), Status::UNRECOVERED_READ_ERROR);
        assert_eq!(told(0x285), Status::COMPARE_FAILURE);
        let (more, dnr, delay) = (1 << 13, 1 << 14, 3 << 11);
        assert_eq!(told(0x080 | more | dnr | delay), Status::LBA_OUT_OF_RANGE.dnr());
        assert_eq!(told(0x006 | delay), Status::INTERNAL_ERROR);
        for path in [0x301, 0x302 | dnr, 0x303, 0x360, 0x370, 0x371] {
            assert_eq!(told(path), Status::INTERNAL_PATH_ERROR, "{path:x}: another path may do");
        }
        assert_eq!(told(0x007), Status::INTERNAL_PATH_ERROR, "the kernel aborted it, not the host");
    }

    #[test]
    fn errors_of_the_kernel_become_statuses_hosts_understand() {
        let status = |errno| status_of(&io::Error::from_raw_os_error(errno), false);
        assert_eq!(status(ENODEV), Status::INTERNAL_PATH_ERROR);
        assert_eq!(status(EINTR), Status::INTERNAL_PATH_ERROR);
        assert_eq!(status(EAGAIN), Status::COMMAND_INTERRUPTED);
        assert_eq!(status(EINVAL), Status::INVALID_FIELD.dnr());
        assert_eq!(status_of(&io::Error::from_raw_os_error(EINVAL), true), Status::INTERNAL_PATH_ERROR);
        assert_eq!(status(EACCES), Status::OPERATION_DENIED.dnr());
        assert_eq!(status(5), Status::INTERNAL_ERROR);
        assert_eq!(status(EOPNOTSUPP), Status::INVALID_OPCODE.dnr());
        assert_eq!(status(ENXIO), Status::INTERNAL_PATH_ERROR);
    }
}
