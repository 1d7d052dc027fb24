//! Processes and CPUs: pinning, starting a target on a core, and how much CPU time it has used.
#![allow(
    unsafe_code,
    reason = "affinity and the CPU clock of another process have no safe wrapper in the standard library"
)]

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Pins this thread; what it starts from now on inherits that.
pub fn pin(cpu: Option<usize>) -> io::Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no CPU {cpu}")));
    }
    // SAFETY: the set is a plain bit mask, cpu is below its size, and 0 is this thread.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// CPU time of a process: all its threads, those that have ended and the kernel's workers for its ring included.
pub fn cpu_ns(pid: u32) -> io::Result<u64> {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both calls only write to the variables they are given.
    let error = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    // SAFETY: as above.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// A process that ends with the value.
pub struct Started {
    child: Child,
    log: PathBuf,
}

impl Started {
    /// Starts it on `cpu`; its output goes to `log`. The calling thread is pinned to `own_cpu` afterwards.
    pub fn on(cpu: usize, own_cpu: usize, command: &mut Command, log: &Path) -> io::Result<Self> {
        pin(Some(cpu))?;
        let file = File::create(log)?;
        let child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn();
        pin(Some(own_cpu))?;
        let program = command.get_program().to_string_lossy().into_owned();
        let child = child.map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
        Ok(Self { child, log: log.to_owned() })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has said.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
