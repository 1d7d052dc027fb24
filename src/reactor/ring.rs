//! Setting up the ring, and saying clearly why it cannot be.

use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use std::{fmt, fs, io};

/// Entries of 128 and completions of 32 bytes: NVMe passthrough rides the same ring as sockets.
pub(crate) type Ring = IoUring<squeue::Entry128, cqueue::Entry32>;

const SUBMISSIONS: u32 = 512;
const COMPLETIONS: u32 = 4096;

/// Why a reactor could not be set up, and the way out.
#[derive(Debug)]
pub enum SetupError {
    /// The system forbids io_uring.
    Forbidden(&'static str),
    /// The kernel lacks something.
    KernelTooOld(String),
    /// A limit of the process was in the way.
    Limit(&'static str, io::Error),
    /// Anything else.
    Other(&'static str, io::Error),
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetupError::Forbidden(why) => write!(f, "io_uring is not available: {why}"),
            SetupError::KernelTooOld(what) => {
                write!(f, "the kernel is too old: {what}; weft needs Linux 6.1 or newer")
            }
            SetupError::Limit(what, error) => write!(f, "{what} ({error})"),
            SetupError::Other(what, error) => write!(f, "cannot {what}: {error}"),
        }
    }
}

impl std::error::Error for SetupError {}

/// Sets up a ring and checks that every operation weft uses exists.
pub(crate) fn set_up() -> Result<Ring, SetupError> {
    let mut builder: io_uring::Builder<squeue::Entry128, cqueue::Entry32> = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_cqsize(COMPLETIONS);
    let ring = builder.build(SUBMISSIONS).map_err(|error| explain(error, &disabled_setting()))?;
    if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
        return Err(SetupError::KernelTooOld("io_uring lacks waiting with a time limit".into()));
    }
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|e| SetupError::Other("probe io_uring", e))?;
    for (code, name) in NEEDED {
        if !probe.is_supported(*code) {
            return Err(SetupError::KernelTooOld(format!("io_uring lacks the operation {name}")));
        }
    }
    Ok(ring)
}

const NEEDED: &[(u8, &str)] = &[
    (opcode::AcceptMulti::CODE, "ACCEPT"),
    (opcode::PollAdd::CODE, "POLL_ADD"),
    (opcode::Recv::CODE, "RECV"),
    (opcode::Send::CODE, "SEND"),
    (opcode::SendMsg::CODE, "SENDMSG"),
    (opcode::Read::CODE, "READ"),
    (opcode::ReadFixed::CODE, "READ_FIXED"),
    (opcode::WriteFixed::CODE, "WRITE_FIXED"),
    (opcode::Fsync::CODE, "FSYNC"),
    (opcode::Fallocate::CODE, "FALLOCATE"),
    (opcode::AsyncCancel::CODE, "ASYNC_CANCEL"),
    (opcode::UringCmd80::CODE, "URING_CMD"),
];

fn disabled_setting() -> String {
    fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default()
}

/// What an error of `io_uring_setup` means.
fn explain(error: io::Error, disabled: &str) -> SetupError {
    match error.raw_os_error() {
        Some(libc::EPERM) if disabled.trim() == "2" => SetupError::Forbidden(
            "it is switched off for everyone; allow it with `sysctl kernel.io_uring_disabled=0`",
        ),
        Some(libc::EPERM) if disabled.trim() == "1" => SetupError::Forbidden(
            "it is switched off for this user; run weft with CAP_SYS_ADMIN, add its group to \
             `kernel.io_uring_group`, or allow it with `sysctl kernel.io_uring_disabled=0`",
        ),
        Some(libc::EPERM | libc::EACCES) => SetupError::Forbidden(
            "a seccomp filter or security module forbids it; in a container, use a profile that allows \
             io_uring_setup, io_uring_enter and io_uring_register (for example `--security-opt seccomp=unconfined`)",
        ),
        Some(libc::ENOSYS) => SetupError::Forbidden(
            "the kernel was built without it, or a seccomp filter hides it; use a kernel with CONFIG_IO_URING, \
             or a container profile that allows io_uring_setup, io_uring_enter and io_uring_register",
        ),
        Some(libc::EINVAL) => {
            SetupError::KernelTooOld("io_uring lacks large entries or deferred task work".into())
        }
        Some(libc::EMFILE | libc::ENFILE) => SetupError::Limit(
            "too few file descriptors for a ring: raise the limit (`ulimit -n`, LimitNOFILE= in the unit)",
            error,
        ),
        Some(libc::ENOMEM) => SetupError::Limit(
            "the ring's memory exceeds the limit for locked memory: raise it (`ulimit -l`, LimitMEMLOCK= in the unit)",
            error,
        ),
        _ => SetupError::Other("set up io_uring", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_says_the_way_out() {
        let cases = [
            (libc::EPERM, "2", "sysctl kernel.io_uring_disabled=0"),
            (libc::EPERM, "1", "io_uring_group"),
            (libc::EPERM, "0", "seccomp"),
            (libc::ENOSYS, "", "CONFIG_IO_URING"),
            (libc::EINVAL, "0", "6.1"),
            (libc::EMFILE, "0", "LimitNOFILE"),
            (libc::ENOMEM, "0", "LimitMEMLOCK"),
        ];
        for (errno, setting, hint) in cases {
            let text = explain(io::Error::from_raw_os_error(errno), setting).to_string();
            assert!(text.contains(hint) && !text.contains('\n'), "{text}");
        }
    }
}
