//! The model as the JSON that nvmetcli restores into the kernel's target, and a list of what got lost on the way: what
//! the kernel cannot do, and what is about weft and not about its target.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use nvme::Uuid;

use super::json::printable;
use super::model::{
    AllowedHosts, AnaGroup, AnaState, Config, DEFAULT_ANA_GROUP, Discovery, Limits, Metrics, Namespace,
    NamespaceBackend, Port, Reactors, Referral, Subsystem, TransportKind,
};
use super::write_toml::{path_text, quoted};

/// A value to be written. Objects come with their keys in order, as nvmetcli writes them.
enum Json {
    Number(u64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(&'static str, Json)>),
}

use Json::{List, Number, Object};

/// The text of the file, and what is not in it, a line each.
pub(super) fn write(config: &Config) -> (String, Vec<String>) {
    let mut lost = Vec::new();
    say_what_is_about_weft(config, &mut lost);
    let hosts: BTreeSet<&str> =
        config.subsystems.iter().flat_map(|subsystem| listed(&subsystem.hosts)).collect();
    let hosts = hosts.into_iter().map(|host| Object(vec![("nqn", text(host))]));
    let ports = config.ports.iter().map(|port| write_port(port, config));
    let subsystems =
        config.subsystems.iter().map(|subsystem| write_subsystem(subsystem, &config.limits, &mut lost));
    let root = Object(vec![
        ("hosts", List(hosts.collect())),
        ("ports", List(ports.collect())),
        ("subsystems", List(subsystems.collect())),
    ]);
    let mut out = String::new();
    print(&root, 0, &mut out);
    out.push('\n');
    (out, lost)
}

fn text(text: impl Into<String>) -> Json {
    Json::Text(text.into())
}

fn listed(hosts: &AllowedHosts) -> impl Iterator<Item = &str> {
    let hosts: &[_] = match hosts {
        AllowedHosts::Any => &[],
        AllowedHosts::Listed(hosts) => hosts,
    };
    hosts.iter().map(nvme::Nqn::as_str)
}

/// Logging, metrics, reactors and most limits have no place in the kernel's target.
fn say_what_is_about_weft(config: &Config, lost: &mut Vec<String>) {
    let mut differs = |what: &str, differs: bool| {
        if differs {
            lost.push(format!("{what}: nvmetcli has no such thing"));
        }
    };
    let (limits, default) = (&config.limits, Limits::default());
    differs("log", config.log.is_some());
    differs("state_dir", config.state_dir.is_some());
    differs("[discovery]", config.discovery != Discovery::default());
    differs("referral.nqn", config.referrals.iter().any(|referral| !referral.nqn.is_discovery()));
    differs("[[referral]] without a port", config.ports.is_empty() && !config.referrals.is_empty());
    differs("port.discovery", config.ports.iter().any(|port| port.discovery));
    differs("[metrics]", config.metrics != Metrics::default());
    differs("[reactors]", config.reactors != Reactors::default());
    differs("limits.connections", limits.connections != default.connections);
    differs("limits.max_transfer", limits.max_transfer_bytes != default.max_transfer_bytes);
    differs("limits.handshake_timeout_ms", limits.handshake_timeout != default.handshake_timeout);
    differs("limits.data_timeout_ms", limits.data_timeout != default.data_timeout);
    differs("limits.shutdown_timeout_ms", limits.shutdown_timeout != default.shutdown_timeout);
    // These are parameters of ports and subsystems there.
    let without_port = config.ports.is_empty();
    let in_capsule = limits.in_capsule_bytes != default.in_capsule_bytes;
    differs("limits.in_capsule without a port", without_port && in_capsule);
    differs("limits.queue_depth without a port", without_port && limits.queue_depth != default.queue_depth);
    let without_subsystem = config.subsystems.is_empty();
    differs(
        "limits.io_queues without a subsystem",
        without_subsystem && limits.io_queues != default.io_queues,
    );
}

/// An address and the transport spoken there.
fn write_address(transport: TransportKind, address: SocketAddr) -> Vec<(&'static str, Json)> {
    let family = match address {
        SocketAddr::V4(_) => "ipv4",
        SocketAddr::V6(_) => "ipv6",
    };
    vec![
        ("adrfam", text(family)),
        ("traddr", text(address.ip().to_string())),
        ("treq", text("not specified")),
        ("trsvcid", text(address.port().to_string())),
        ("trtype", text(transport.name())),
    ]
}

/// The kernel has referrals for each port, and a name for each that means nothing.
fn write_referral((index, referral): (usize, &Referral)) -> Json {
    let mut addr = write_address(referral.transport, referral.address);
    addr.insert(1, ("portid", text(referral.port_id.to_string())));
    Object(vec![
        ("addr", Object(addr)),
        ("enable", Number(1)),
        ("name", text(format!("referral{}", index + 1))),
    ])
}

fn write_port(port: &Port, config: &Config) -> Json {
    let first = AnaGroup { id: DEFAULT_ANA_GROUP, state: AnaState::Optimized };
    let has_first = port.ana_groups.first().is_some_and(|group| group.id == first.id);
    let groups = (!has_first).then_some(&first).into_iter().chain(&port.ana_groups);
    let groups = groups.map(|group| {
        let state = Object(vec![("state", text(group.state.name()))]);
        Object(vec![("ana", state), ("grpid", Number(group.id.into()))])
    });
    let offered = config.subsystems.iter().filter(|subsystem| subsystem.ports.contains(&port.id));
    Object(vec![
        ("addr", Object(write_address(port.transport, port.address))),
        ("ana_groups", List(groups.collect())),
        (
            "param",
            Object(vec![
                ("inline_data_size", text(config.limits.in_capsule_bytes.to_string())),
                ("max_queue_size", text(config.limits.queue_depth.to_string())),
            ]),
        ),
        ("portid", Number(port.id.into())),
        ("referrals", List(config.referrals.iter().enumerate().map(write_referral).collect())),
        ("subsystems", List(offered.map(|subsystem| text(subsystem.nqn.as_str())).collect())),
    ])
}

fn write_subsystem(subsystem: &Subsystem, limits: &Limits, lost: &mut Vec<String>) -> Json {
    let any_host = if subsystem.hosts == AllowedHosts::Any { "1" } else { "0" };
    let mut attr = vec![("allow_any_host", text(any_host))];
    attr.push(("cntlid_max", text(subsystem.controller_ids.end().to_string())));
    attr.push(("cntlid_min", text(subsystem.controller_ids.start().to_string())));
    if let Some(firmware) = &subsystem.firmware {
        attr.push(("firmware", text(firmware)));
    }
    attr.push(("model", text(&subsystem.model)));
    attr.push(("qid_max", text(limits.io_queues.to_string())));
    attr.push(("serial", text(&subsystem.serial)));
    let namespaces = subsystem.namespaces.iter().filter_map(|namespace| {
        let mut lose = |what: &str| {
            lost.push(format!("{} namespace {}: {what}", printable(subsystem.nqn.as_str()), namespace.nsid))
        };
        write_namespace(namespace, &mut lose)
    });
    Object(vec![
        ("allowed_hosts", List(listed(&subsystem.hosts).map(text).collect())),
        ("attr", Object(attr)),
        ("namespaces", List(namespaces.collect())),
        ("nqn", text(subsystem.nqn.as_str())),
    ])
}

/// A namespace, unless the kernel has nothing like it.
fn write_namespace(namespace: &Namespace, lose: &mut dyn FnMut(&str)) -> Option<Json> {
    let (path, size, direct, force) = match &namespace.backend {
        NamespaceBackend::File { path, size_bytes, direct, force } => (path, size_bytes, direct, force),
        NamespaceBackend::Memory { .. } => {
            lose("backend \"memory\": the kernel has none, so it is left out");
            return None;
        }
        NamespaceBackend::Passthrough { .. } => {
            lose("backend \"passthrough\": the kernel hands whole drives through only, so it is left out");
            return None;
        }
        NamespaceBackend::Null { .. } => {
            lose("backend \"null\": the kernel has none, so it is left out");
            return None;
        }
    };
    if *force {
        lose("force: the kernel takes a device that nobody else has");
    }
    if size.is_some() {
        lose("size: the kernel takes the file as it is, and it must exist");
    }
    if namespace.lba_size.is_some() {
        lose("lba_size: the kernel takes the block size of the file");
    }
    if namespace.faults.is_some() {
        lose("faults: the kernel has none");
    }
    if namespace.read_only {
        lose("read_only: the kernel would let hosts write, so it is written as not enabled");
    }
    let nguid = Uuid(namespace.nguid.unwrap_or_default());
    let mut members = vec![("ana_grpid", Number(namespace.ana_group.into()))];
    if let Some(direct) = direct {
        members.push(("buffered_io", Number(u64::from(!direct))));
    }
    members.extend([
        (
            "device",
            Object(vec![
                ("nguid", text(nguid.to_string())),
                ("path", text(path_text(path))),
                ("uuid", text(namespace.uuid.to_string())),
            ]),
        ),
        ("enable", Number(u64::from(namespace.enabled && !namespace.read_only))),
        ("nsid", Number(namespace.nsid.into())),
    ]);
    Some(Object(members))
}

/// Two blanks for each level, one key or item a line.
fn print(json: &Json, depth: usize, out: &mut String) {
    match json {
        Number(number) => out.push_str(&number.to_string()),
        Json::Text(text) => out.push_str(&quoted(text)),
        List(items) => {
            let items = items.iter().map(|item| (None, item));
            print_all(['[', ']'], items, depth, out);
        }
        Object(members) => {
            let members = members.iter().map(|(key, value)| (Some(*key), value));
            print_all(['{', '}'], members, depth, out);
        }
    }
}

fn print_all<'a>(
    [open, close]: [char; 2],
    parts: impl Iterator<Item = (Option<&'static str>, &'a Json)>,
    depth: usize,
    out: &mut String,
) {
    out.push(open);
    let mut empty = true;
    for (key, value) in parts {
        out.push_str(if empty { "\n" } else { ",\n" });
        out.push_str(&"  ".repeat(depth + 1));
        if let Some(key) = key {
            out.push_str(&format!("{}: ", quoted(key)));
        }
        print(value, depth + 1, out);
        empty = false;
    }
    if !empty {
        out.push('\n');
        out.push_str(&"  ".repeat(depth));
    }
    out.push(close);
}
