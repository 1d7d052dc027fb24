//! Watching the sizes of files and block devices.
//!
//! Once a second, on a thread of its own: to ask a file system for a size may take as long as its server likes, and neither
//! commands nor the metrics page wait for that.
//!
//! A medium that grew makes its namespace grow. First every reactor takes commands for the new blocks, then Identify reports
//! them, then hosts are told: whoever knows of a block can use it, on every path. A medium that shrank leaves its namespace
//! as it is, for hosts have no way to follow: that is said by name, and commands for what is gone fail.

use crate::{local, namespace::Namespace, subsystem::Subsystem, target::Target};
use std::{
    convert::Infallible,
    io,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

/// How often sizes are looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// The running watch; it ends soon after it is dropped.
pub struct Watch {
    _stop: mpsc::Sender<Infallible>,
}

impl Watch {
    /// Watches every namespace of a target whose size can change.
    pub fn start(target: &Arc<Target>) -> io::Result<Watch> {
        let (stop, stopped) = mpsc::channel();
        let of = |subsystem: &Arc<Subsystem>| {
            let watched = subsystem.namespaces.iter().filter(|namespace| namespace.can_change());
            watched.map(|namespace| Watched::new(subsystem, namespace)).collect::<Vec<_>>()
        };
        let mut all: Vec<Watched> = target.subsystems.iter().flat_map(of).collect();
        if !all.is_empty() {
            let target = target.clone();
            // Nobody waits for its end: it may be waiting for a file system.
            thread::Builder::new().name("weft-watch".into()).spawn(move || {
                while stopped.recv_timeout(INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                    all.iter_mut().for_each(|watched| watched.look(&target));
                }
            })?;
        }
        Ok(Watch { _stop: stop })
    }
}

/// A namespace, and what was last known of its medium.
struct Watched {
    subsystem: Arc<Subsystem>,
    namespace: Arc<Namespace>,
    present: u64,
    failed: bool,
}

impl Watched {
    fn new(subsystem: &Arc<Subsystem>, namespace: &Arc<Namespace>) -> Watched {
        Watched {
            subsystem: subsystem.clone(),
            namespace: namespace.clone(),
            present: namespace.geometry().lba_count,
            failed: false,
        }
    }

    fn look(&mut self, target: &Target) {
        match self.namespace.measure() {
            Ok(present) => {
                self.failed = false;
                if present != self.present {
                    self.follow(target, present);
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.failed, true) {
                    let (nsid, subsystem) = (self.namespace.nsid, &self.subsystem.nqn);
                    tracing::warn!(%nsid, %subsystem, "cannot see how large {} is: {error}", self.namespace.medium);
                }
            }
        }
    }

    fn follow(&mut self, target: &Target, present: u64) {
        let namespace = &self.namespace;
        let (nsid, index, subsystem) = (namespace.nsid, self.subsystem.index, &self.subsystem.nqn);
        let (medium, told) = (&namespace.medium, namespace.geometry().lba_count);
        self.present = present;
        let lba_count = namespace.admit(present);
        target.on_every_reactor(move || local::resize(index, nsid, lba_count, present));
        namespace.advertise(lba_count);
        if lba_count > told {
            tracing::info!(%nsid, %subsystem, "{medium} grew: the namespace has {lba_count} blocks, {told} before");
            self.subsystem.namespace_changed(nsid);
        } else if present == 0 {
            tracing::error!(%nsid, %subsystem, "{medium} is empty or gone: commands fail until it is back");
        } else if present < told {
            tracing::error!(
                %nsid, %subsystem,
                "{medium} shrank to {present} blocks: the namespace keeps its {told}, for hosts cannot follow, and commands \
                 for the rest fail; make it as large as it was"
            );
        } else {
            tracing::info!(%nsid, %subsystem, "{medium} has all {told} blocks of the namespace again");
        }
    }
}
