//! Mistakes within ports for discovery only, the discovery service and referrals.

use super::*;

#[test]
fn discovery_only_ports_and_referrals() {
    let only = format!("{}discovery = true\n{SUBSYSTEM}{NAMESPACE}", PORT);
    assert_eq!(
        mistakes(&only),
        ["1:1: port: all are for discovery only: expected one where subsystems are offered"]
    );
    let second = "[[port]]\nid = 2\ntransport = \"tcp\"\naddress = \"127.0.0.1:8009\"\ndiscovery = true\n";
    let text = format!("{PORT}{second}{SUBSYSTEM}ports = [1, 2]\n{NAMESPACE}");
    assert_eq!(mistakes(&text), ["13:13: subsystem.ports: port 2 is for discovery only: expected another"]);
    let text = format!("{PORT}{second}{SUBSYSTEM}{NAMESPACE}");
    assert_eq!(Config::parse(&text, "weft.toml").unwrap().config.subsystems[0].ports, [1]);
    let referral = |address: &str| format!("[[referral]]\ntransport = \"tcp\"\naddress = \"{address}\"\n");
    let referrals =
        ["0.0.0.0:8009", "192.0.2.1:0", "127.0.0.1:4420", "192.0.2.1:8009", "192.0.2.1:8009"].map(referral);
    let nqn = "[discovery]\nnqn = \"nqn.2026-12.io.weft:one\"\n";
    let text = format!("{PORT}{SUBSYSTEM}{NAMESPACE}{}{nqn}", referrals.concat());
    assert_eq!(
        mistakes(&text),
        [
            "14:11: referral.address: 0.0.0.0:8009 leads nowhere: expected the address and port of another discovery \
             service",
            "17:11: referral.address: 192.0.2.1:0 leads nowhere: expected the address and port of another discovery \
             service",
            "20:11: referral.address: 127.0.0.1:4420 is one of the ports here: expected the address of another \
             discovery service",
            "26:11: referral.address: 192.0.2.1:8009 is referred to twice: expected it once",
            "28:7: discovery.nqn: nqn.2026-12.io.weft:one is the NQN of a subsystem: expected a different one",
        ]
    );
    assert_eq!(head_mistakes("state_dir = \"\"").len(), 1);
}
