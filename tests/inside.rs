//! A target in this process, for tests that let something happen inside of it. Only this file and the allocation test use
//! weft's own code; what such a test sees of the target goes over the wire all the same.

use std::{net::SocketAddr, sync::Arc};
use weft::{config::Config, controller, daemon::Daemon, subsystem::Subsystem, target};

/// A running target with three reactors. It is stopped in order when dropped.
pub struct Inside {
    daemon: Option<Daemon>,
}

/// Something of the target's to be used from other threads.
#[derive(Clone)]
pub struct Target(Arc<target::Target>);

/// A controller, known beyond its end.
pub struct Controller(Arc<controller::Controller>);

impl Controller {
    /// Whether it has ended, and whether its status tells of a fatal condition (CSTS.CFS).
    pub fn end(&self) -> (bool, bool) {
        (self.0.has_ended(), self.0.status().fatal)
    }
}

impl Inside {
    /// One port, and `rest` of a configuration.
    pub fn start(rest: &str) -> Self {
        let text = format!(
            "[reactors]\ncount = 3\nbuffers = \"8 MiB\"\n[[port]]\nid = 1\ntransport = \"tcp\"\naddress = \
             \"127.0.0.1:0\"\n{rest}"
        );
        let loaded = Config::parse(&text, "test").unwrap_or_else(|error| panic!("{error}"));
        let daemon = Daemon::start(&loaded.config).unwrap_or_else(|error| panic!("{error}"));
        Self { daemon: Some(daemon) }
    }

    /// What can be made to happen.
    pub fn target(&self) -> Target {
        Target(self.daemon.as_ref().expect("it runs").target.clone())
    }

    /// Where its port listens.
    pub fn address(&self) -> SocketAddr {
        self.target().0.ports[0].address
    }
}

impl Target {
    fn subsystem(&self) -> &Arc<Subsystem> {
        &self.0.subsystems[0]
    }

    /// A namespace of the first subsystem has changed.
    pub fn namespace_changed(&self, nsid: u32) {
        self.subsystem().namespace_changed(nvme::Nsid(nsid));
    }

    /// A live controller of the first subsystem.
    pub fn controller(&self, cntlid: u16) -> Option<Controller> {
        self.subsystem().controller(nvme::ControllerId(cntlid)).map(Controller)
    }

    /// The discovery log has changed.
    pub fn discovery_changed(&self) {
        self.0.discovery_changed();
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            daemon.target.stop();
            let ended = daemon.join();
            assert!(std::thread::panicking() || ended.is_ok(), "{ended:?}");
        }
    }
}
