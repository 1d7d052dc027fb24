//! The discovery service announced by mDNS, in a network namespace of its own: nobody else hears of it.

use crate::host::{
    LIMIT,
    target::{Target, one_memory},
};
use mdns_sd::{ServiceDaemon, ServiceEvent};
use std::{
    env,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Set within the namespace.
const INSIDE: &str = "WEFT_TEST_MDNS_INSIDE";

/// Makes a network of two interfaces that are joined, one of them with an address.
const NETWORK: &str = "ip link set lo up && ip link add weft0 type veth peer name weft1 && ip link set weft0 multicast on up \
                       && ip link set weft1 up && ip addr add 192.0.2.1/24 dev weft0";

const KIND: &str = "_nvme-disc._tcp.local.";
const NQN: &str = "nqn.2026-12.io.weft:announced";

/// Runs a test of this module once more, within a network of its own; false if that is where it runs already.
fn runs_in_a_network_of_its_own(test: &str) -> bool {
    if env::var_os(INSIDE).is_some() {
        return false;
    }
    let possible = Command::new("unshare").args(["-n", "sh", "-c", NETWORK]).stderr(Stdio::null()).status();
    if !possible.is_ok_and(|status| status.success()) {
        eprintln!(
            "skipped: only root can make a network of its own, where the kernel has virtual interfaces"
        );
        return true;
    }
    let script = format!("{NETWORK} && exec \"$0\" --exact {test} --nocapture");
    let binary = env::current_exe().expect("the test binary");
    let output =
        Command::new("unshare").args(["-n", "sh", "-c", &script]).arg(binary).env(INSIDE, "1").output();
    let output = output.expect("unshare");
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{errors}");
    true
}

/// A target that announces itself, with these ports besides the one on the loopback interface.
fn announcing(ports: &str) -> Target {
    let discovery = format!("[discovery]\nnqn = \"{NQN}\"\nmdns = true\n");
    Target::configured(&format!("{ports}{discovery}{}", one_memory()))
}

#[test]
fn the_discovery_service_is_found_and_says_goodbye() {
    if runs_in_a_network_of_its_own("mdns::the_discovery_service_is_found_and_says_goodbye") {
        return;
    }
    let browser = ServiceDaemon::new().expect("a browser");
    let events = browser.browse(KIND).expect("to browse");
    let next = |what: &str, target: &Target| {
        events.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("no {what}:\n{}", target.log()))
    };
    let target = announcing("[[port]]\nid = 2\ntransport = \"tcp\"\naddress = \"0.0.0.0:4420\"\n");
    let found = loop {
        if let ServiceEvent::ServiceResolved(found) = next("service", &target) {
            break found;
        }
    };
    assert!(found.get_fullname().ends_with(&format!("-2.{KIND}")), "{found:?}");
    assert_eq!(found.get_port(), 4420);
    assert_eq!(found.get_property_val_str("p"), Some("tcp"));
    assert_eq!(found.get_property_val_str("nqn"), Some(NQN));
    let addresses: Vec<_> = found.get_addresses_v4().iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["192.0.2.1"]);
    let log = target.log();
    assert!(log.contains("only this machine can reach them: port(s) 1"), "{log}");
    // Without a goodbye it would be known for 75 minutes.
    target.signal("TERM");
    loop {
        if let ServiceEvent::ServiceRemoved(_, name) = next("goodbye", &target) {
            assert_eq!(name, found.get_fullname());
            break;
        }
    }
    let mut target = target;
    assert_eq!(target.wait().code(), Some(0), "{}", target.log());
}

#[test]
fn ports_of_this_machine_only_are_not_announced() {
    let target = announcing("");
    let deadline = Instant::now() + LIMIT;
    while !target.log().contains("not announced by mDNS, since only this machine can reach them: port(s) 1") {
        assert!(Instant::now() < deadline, "{}", target.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    target.stop();
}
