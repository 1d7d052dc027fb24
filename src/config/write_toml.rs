//! The model as weft's TOML: readable, commented, and read back as the very same model. What is as without the key is
//! left out, identities are not: a file must not change what hosts see when a name in it changes.

use std::fmt::Write as _;
use std::path::Path;

use backends::Faults;

use super::model::{
    ALL_CONTROLLER_IDS, AllowedHosts, Config, DEFAULT_ANA_GROUP, DEFAULT_MODEL, Discovery, Limits, Metrics,
    Namespace, NamespaceBackend, Port, Reactors, Referral, Subsystem,
};
use super::value::{self, Names};

/// The text of a configuration file.
pub(super) fn write(config: &Config) -> String {
    let mut out = Toml::default();
    out.comment("A configuration of weft. Every key is explained in weft.example.toml, and what is not here has its default.");
    out.comment("Check it with `weft check --config FILE`, run it with `weft serve --config FILE`.");
    if let Some(log) = &config.log {
        out.blank();
        out.text("log", log);
    }
    if let Some(directory) = &config.state_dir {
        out.blank();
        out.text("state_dir", path_text(directory));
    }
    if !has_standard_names(config) {
        out.blank();
        out.comment("Names that have no form of the standard, as a host or another target has them.");
        out.key("strict_names", false);
    }
    if config.ports.is_empty() {
        out.blank();
        out.comment("No host can connect.");
        out.key("port", "[]");
    }
    if config.subsystems.is_empty() {
        out.blank();
        out.comment("Nothing is exported.");
        out.key("subsystem", "[]");
    }
    if config.metrics != Metrics::default() {
        out.section("[metrics]");
        out.text("address", &config.metrics.address.to_string());
    }
    if config.reactors != Reactors::default() {
        write_reactors(&mut out, &config.reactors);
    }
    if config.limits != Limits::default() {
        write_limits(&mut out, &config.limits);
    }
    for port in &config.ports {
        write_port(&mut out, port);
    }
    if config.discovery != Discovery::default() {
        out.section("[discovery]");
        out.text("nqn", config.discovery.nqn.as_str());
        out.key_unless_default("mdns", config.discovery.mdns, false);
    }
    config.referrals.iter().for_each(|referral| write_referral(&mut out, referral));
    let offering = config.ports.iter().filter(|port| !port.discovery);
    let all_ports: Vec<u16> = offering.map(|port| port.id).collect();
    for subsystem in &config.subsystems {
        write_subsystem(&mut out, subsystem, &all_ports);
    }
    out.text
}

fn has_standard_names(config: &Config) -> bool {
    let standard = |name: &str| value::nqn(name, Names::Standard).is_ok();
    config.subsystems.iter().all(|subsystem| {
        let hosts: &[_] = match &subsystem.hosts {
            AllowedHosts::Any => &[],
            AllowedHosts::Listed(hosts) => hosts,
        };
        standard(subsystem.nqn.as_str()) && hosts.iter().all(|host| standard(host.as_str()))
    })
}

fn write_reactors(out: &mut Toml, reactors: &Reactors) {
    let default = Reactors::default();
    out.section("[reactors]");
    if let Some(count) = reactors.count {
        out.key("count", count);
    }
    out.key_unless_default("poll_us", reactors.poll.as_micros(), default.poll.as_micros());
    out.size_unless_default("buffers", reactors.buffer_bytes, default.buffer_bytes);
}

fn write_limits(out: &mut Toml, limits: &Limits) {
    let default = Limits::default();
    out.section("[limits]");
    out.key_unless_default("connections", limits.connections, default.connections);
    out.size_unless_default(
        "max_transfer",
        limits.max_transfer_bytes.into(),
        default.max_transfer_bytes.into(),
    );
    out.key_unless_default("io_queues", limits.io_queues, default.io_queues);
    out.key_unless_default("queue_depth", limits.queue_depth, default.queue_depth);
    // Without the key it follows a smaller `max_transfer`.
    let in_capsule = default.in_capsule_bytes.min(limits.max_transfer_bytes);
    out.size_unless_default("in_capsule", limits.in_capsule_bytes.into(), in_capsule.into());
    for (key, timeout, default) in [
        ("handshake_timeout_ms", limits.handshake_timeout, default.handshake_timeout),
        ("data_timeout_ms", limits.data_timeout, default.data_timeout),
        ("shutdown_timeout_ms", limits.shutdown_timeout, default.shutdown_timeout),
    ] {
        out.key_unless_default(key, timeout.as_millis(), default.as_millis());
    }
}

fn write_port(out: &mut Toml, port: &Port) {
    out.section("[[port]]");
    out.key("id", port.id);
    out.text("transport", port.transport.name());
    out.text("address", &port.address.to_string());
    out.key_unless_default("discovery", port.discovery, false);
    for group in &port.ana_groups {
        out.section("[[port.ana_group]]");
        out.key("id", group.id);
        out.text("state", group.state.name());
    }
}

fn write_referral(out: &mut Toml, referral: &Referral) {
    out.section("[[referral]]");
    out.text("transport", referral.transport.name());
    out.text("address", &referral.address.to_string());
    if !referral.nqn.is_discovery() {
        out.text("nqn", referral.nqn.as_str());
    }
    out.key_unless_default("port_id", referral.port_id, 0);
}

fn write_subsystem(out: &mut Toml, subsystem: &Subsystem, all_ports: &[u16]) {
    out.section("[[subsystem]]");
    out.text("nqn", subsystem.nqn.as_str());
    out.text("serial", &subsystem.serial);
    if subsystem.model != DEFAULT_MODEL {
        out.text("model", &subsystem.model);
    }
    if let Some(firmware) = &subsystem.firmware {
        out.text("firmware", firmware);
    }
    if subsystem.controller_ids != ALL_CONTROLLER_IDS {
        let (first, last) = (subsystem.controller_ids.start(), subsystem.controller_ids.end());
        out.key("controller_ids", format_args!("[{first}, {last}]"));
    }
    match &subsystem.hosts {
        AllowedHosts::Any => out.key("allow_any_host", true),
        AllowedHosts::Listed(hosts) if hosts.is_empty() => {
            out.comment("No host may connect. List those that may, or say allow_any_host = true instead.");
            out.key("allowed_hosts", "[]");
        }
        AllowedHosts::Listed(hosts) => {
            let lines: String =
                hosts.iter().map(|host| format!("    {},\n", quoted(host.as_str()))).collect();
            out.key("allowed_hosts", format_args!("[\n{lines}]"));
        }
    }
    if subsystem.ports != all_ports {
        let ids: Vec<_> = subsystem.ports.iter().map(ToString::to_string).collect();
        out.key("ports", format_args!("[{}]", ids.join(", ")));
    }
    for namespace in &subsystem.namespaces {
        write_namespace(out, namespace);
    }
}

fn write_namespace(out: &mut Toml, namespace: &Namespace) {
    out.section("[[subsystem.namespace]]");
    out.key("nsid", namespace.nsid);
    match &namespace.backend {
        NamespaceBackend::Memory { size_bytes } => {
            out.text("backend", "memory");
            out.size("size", *size_bytes);
        }
        NamespaceBackend::Null { size_bytes } => {
            out.text("backend", "null");
            out.size("size", *size_bytes);
        }
        NamespaceBackend::Passthrough { device, force } => {
            out.text("backend", "passthrough");
            out.text("device", path_text(device));
            out.key_unless_default("force", *force, false);
        }
        NamespaceBackend::File { path, size_bytes, direct, force } => {
            out.text("backend", "file");
            out.text("path", path_text(path));
            if let Some(size_bytes) = size_bytes {
                out.size("size", *size_bytes);
            }
            if let Some(direct) = direct {
                out.key("direct", direct);
            }
            out.key_unless_default("force", *force, false);
        }
    }
    if let Some(lba_size) = namespace.lba_size {
        out.key("lba_size", lba_size);
    }
    out.text("uuid", &namespace.uuid.to_string());
    match namespace.nguid {
        None => out.text("nguid", "none"),
        Some(nguid) if nguid == namespace.uuid.0 => {}
        Some(nguid) => out.text("nguid", &format!("{:032x}", u128::from_be_bytes(nguid))),
    }
    if namespace.read_only {
        out.key("read_only", true);
    }
    if !namespace.enabled {
        out.comment("Not exported; its NSID and identity stay taken.");
        out.key("enabled", false);
    }
    if namespace.ana_group != DEFAULT_ANA_GROUP {
        out.key("ana_group", namespace.ana_group);
    }
    if let Some(faults) = &namespace.faults {
        write_faults(out, faults);
    }
}

fn write_faults(out: &mut Toml, faults: &Faults) {
    out.section("[subsystem.namespace.faults]");
    out.key_unless_default("seed", faults.seed, 0);
    out.key_unless_default("min_delay_us", faults.min_delay.as_micros(), 0);
    // Without it every command takes as long as the shortest.
    out.key_unless_default("max_delay_us", faults.max_delay.as_micros(), faults.min_delay.as_micros());
    out.key_unless_default("error_one_in", faults.error_one_in, 0);
    let codes: Vec<_> = faults.errors.iter().map(|status| format!("{:#05x}", status.code())).collect();
    out.key("errors", format_args!("[{}]", codes.join(", ")));
    out.key_unless_default("hang_one_in", faults.hang_one_in, 0);
    if let Some(hang) = faults.hang {
        out.key("hang_ms", hang.as_millis());
    }
}

/// A path of the model, which came out of text.
pub(super) fn path_text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

/// A string in double quotes, as TOML and JSON both read it.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\0'..' ' | '\u{7f}' => _ = write!(out, "\\u{:04x}", u32::from(character)),
            _ => out.push(character),
        }
    }
    out.push('"');
    out
}

/// Lines of TOML. Writing into a string cannot fail.
#[derive(Default)]
struct Toml {
    text: String,
}

impl Toml {
    fn blank(&mut self) {
        self.text.push('\n');
    }

    fn section(&mut self, header: &str) {
        _ = writeln!(self.text, "\n{header}");
    }

    fn comment(&mut self, comment: &str) {
        _ = writeln!(self.text, "# {comment}");
    }

    fn key(&mut self, key: &str, value: impl std::fmt::Display) {
        _ = writeln!(self.text, "{key} = {value}");
    }

    fn key_unless_default<T: std::fmt::Display + PartialEq>(&mut self, key: &str, value: T, default: T) {
        if value != default {
            self.key(key, value);
        }
    }

    fn text(&mut self, key: &str, text: &str) {
        self.key(key, quoted(text));
    }

    /// Bytes with a unit where that is exact.
    fn size(&mut self, key: &str, bytes: u64) {
        if bytes == 0 || !bytes.is_multiple_of(1024) {
            self.key(key, bytes);
        } else {
            self.text(key, &value::show_size(bytes));
        }
    }

    fn size_unless_default(&mut self, key: &str, bytes: u64, default: u64) {
        if bytes != default {
            self.size(key, bytes);
        }
    }
}
