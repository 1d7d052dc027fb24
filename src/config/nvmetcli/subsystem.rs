//! `subsystems[]`: attributes, hosts and namespaces of the kernel's target.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use nvme::Nqn;

use super::Hosts;
use super::common::Common;
use crate::config::checks::{Known, Taken};
use crate::config::identity;
use crate::config::json::{printable, shorten};
use crate::config::model::{
    ALL_CONTROLLER_IDS, AllowedHosts, DEFAULT_ANA_GROUP, MAX_ANA_GROUP, MAX_NSID, Namespace,
    NamespaceBackend, Subsystem,
};
use crate::config::object::Object;
use crate::config::section::Located;
use crate::config::value::{self, LONGEST_FIRMWARE, LONGEST_MODEL, LONGEST_SERIAL, Names};

/// The model number the kernel's target reports when nobody set one; files of older kernels do not have it.
const KERNEL_MODEL: &str = "Linux";

/// Versions of NVMe the kernel's target reports when nobody chose one. weft reports its own.
const KERNEL_VERSIONS: [&str; 5] = ["1.2.1", "1.3", "1.3.0", "2.1", "2.1.0"];

/// A subsystem and its name.
pub(super) struct ReadSubsystem {
    pub(super) nqn: String,
    /// Nothing when weft cannot serve it, which has been said. Its ports are still to come.
    pub(super) subsystem: Option<Subsystem>,
    pub(super) at: usize,
    pub(super) path: String,
}

/// Reads one subsystem; `None` when it has no name.
pub(super) fn read(
    object: Object<'_>,
    hosts: &mut Hosts,
    known: &mut Known<'_>,
    limits: &mut Common,
) -> Option<ReadSubsystem> {
    if object.has("subsystem") && !object.has("nqn") {
        let message = "is a configuration of SPDK: expected one that nvmetcli saved, or weft's TOML";
        object.mistake(object.at, "", message);
        return None;
    }
    let nqn = object.parsed("nqn", |text| value::subsystem_nqn(text, Names::Any));
    let nqn = object.require("nqn", nqn, "the name of the subsystem");
    if let Some(nqn) = &nqn {
        known.check_nqn(nqn, object.path("nqn"));
        if let Err(why) = value::nqn(nqn.value.as_str(), Names::Standard) {
            object.warning(nqn.at, "nqn", format!("{why}; hosts must use exactly this name"));
        }
    }
    let shown = nqn.as_ref().map_or_else(String::new, |nqn| nqn.value.to_string());
    let attr = object.child("attr").map(|attr| read_attr(attr, limits)).unwrap_or_default();
    let hosts = read_hosts(&object, attr.any_host, hosts, &shown);
    let passthrough = read_passthrough(&object);
    let mut taken = Taken::default();
    let namespaces: Vec<_> = object
        .children("namespaces")
        .into_iter()
        .filter_map(|namespace| read_namespace(namespace, &shown, known, &mut taken))
        .collect();
    let (at, path) = (object.at, object.path(""));
    object.finish();

    let nqn = nqn?.value;
    let subsystem = (!passthrough).then(|| Subsystem {
        serial: attr.serial.unwrap_or_else(|| identity::derived_serial(nqn.as_str())),
        model: attr.model.unwrap_or_else(|| KERNEL_MODEL.to_owned()),
        firmware: attr.firmware,
        controller_ids: attr.controller_ids.unwrap_or(ALL_CONTROLLER_IDS),
        hosts,
        ports: Vec::new(),
        namespaces,
        nqn,
    });
    Some(ReadSubsystem { nqn: shown, subsystem, at, path })
}

/// What `attr` says.
#[derive(Default)]
struct Attr {
    any_host: Option<Located<bool>>,
    serial: Option<String>,
    model: Option<String>,
    firmware: Option<String>,
    controller_ids: Option<RangeInclusive<u16>>,
}

fn read_attr(attr: Object<'_>, limits: &mut Common) -> Attr {
    let read = Attr {
        any_host: attr.flag("allow_any_host"),
        serial: read_field(&attr, "serial", LONGEST_SERIAL),
        model: read_field(&attr, "model", LONGEST_MODEL),
        firmware: read_field(&attr, "firmware", LONGEST_FIRMWARE),
        controller_ids: read_controller_ids(&attr),
    };
    limits.io_queues(&attr);
    if let Some(version) = attr.text("version")
        && !KERNEL_VERSIONS.contains(&version.value.trim())
    {
        attr.unsupported(version.at, "version", "ignored: weft reports the version it implements");
    }
    if let Some(oui) = attr.whole("ieee_oui", 0..=0xff_ffff_u32)
        && oui.value != 0
    {
        attr.unsupported(oui.at, "ieee_oui", "ignored: none is reported");
    }
    if let Some(flag) = attr.flag("pi_enable")
        && flag.value
    {
        attr.unsupported(flag.at, "pi_enable", "protection information: ignored");
    }
    attr.finish();
    read
}

/// The controller identifiers to hand out. The kernel lets each end be anything from 1 to FFEFh.
fn read_controller_ids(attr: &Object<'_>) -> Option<RangeInclusive<u16>> {
    let first = attr.whole("cntlid_min", ALL_CONTROLLER_IDS);
    let last = attr.whole("cntlid_max", ALL_CONTROLLER_IDS);
    let (least, most) = (*ALL_CONTROLLER_IDS.start(), *ALL_CONTROLLER_IDS.end());
    let range = first.map_or(least, |first| first.value)..=last.map_or(most, |last| last.value);
    if let Some(at) = last.or(first).filter(|_| range.is_empty()).map(|end| end.at) {
        let message = format!("{} is less than cntlid_min, {}", range.end(), range.start());
        attr.mistake(at, "cntlid_max", message);
    }
    Some(range)
}

/// A text of Identify Controller: printable ASCII, cut at the size of its field, without blanks around it (they are
/// its padding). Nothing when it is empty.
fn read_field(attr: &Object<'_>, key: &'static str, longest: usize) -> Option<String> {
    let found = attr.text(key)?;
    let text = found.value.trim_matches(' ');
    if text.is_empty() {
        return None;
    }
    if !text.bytes().all(|byte| (0x20..=0x7e).contains(&byte)) {
        let message =
            format!("{:?} is not printable ASCII: expected 1 to {longest} such characters", shorten(text));
        attr.mistake(found.at, key, message);
        return None;
    }
    if found.value.starts_with(' ') {
        attr.warning(found.at, key, "begins with a space, which is left out");
    }
    let cut = text.get(..longest).unwrap_or(text).trim_end_matches(' ');
    if text.len() > longest {
        attr.warning(found.at, key, format!("is {} characters long: cut to {cut:?}", text.len()));
    }
    Some(cut.to_owned())
}

/// Who may connect. The kernel refuses `allow_any_host` beside a list, so that the list holds; a host with a key must
/// authenticate, which nobody can here, so that it is left out.
fn read_hosts(
    object: &Object<'_>,
    any_host: Option<Located<bool>>,
    hosts: &mut Hosts,
    shown: &str,
) -> AllowedHosts {
    let listed = object.texts("allowed_hosts");
    if let Some(any_host) = any_host.filter(|any_host| any_host.value) {
        if listed.is_empty() {
            return AllowedHosts::Any;
        }
        let message = format!(
            "is 1 beside allowed_hosts of subsystem {}: the list holds, as it does in the kernel",
            printable(shown)
        );
        object.warning(any_host.at, "attr.allow_any_host", message);
    }
    let mut nqns: Vec<Nqn> = Vec::new();
    for host in listed {
        let declared = hosts.get_mut(&*host.value);
        let keyed = declared.is_some_and(|declared| {
            declared.listed = true;
            declared.keyed
        });
        if keyed {
            let message = format!(
                "authentication: {:?} has a key and must prove it; it is left out and cannot connect to {}",
                shorten(&host.value),
                printable(shown)
            );
            object.unsupported(host.at, "allowed_hosts", message);
            continue;
        }
        match value::nqn(&host.value, Names::Any) {
            Ok(nqn) => nqns.push(nqn),
            Err(message) => object.mistake(host.at, "allowed_hosts", message),
        }
    }
    if nqns.is_empty() {
        object.warning(object.at, "", format!("subsystem {} admits no host", printable(shown)));
    }
    AllowedHosts::Listed(nqns)
}

/// Whether the subsystem hands a whole controller through, which leaves nothing of it to serve.
fn read_passthrough(object: &Object<'_>) -> bool {
    let mut enabled = false;
    for passthru in object.children("passthru") {
        if let Some(flag) = passthru.flag("enable").filter(|flag| flag.value) {
            let message = "a controller handed through whole: the subsystem is left out";
            passthru.unsupported(flag.at, "enable", message);
            enabled = true;
        }
        passthru.ignore(&["device", "clear_ids", "admin_timeout", "io_timeout"]);
        passthru.finish();
    }
    enabled
}

fn read_namespace(
    object: Object<'_>,
    subsystem_nqn: &str,
    known: &mut Known<'_>,
    taken: &mut Taken,
) -> Option<Namespace> {
    let nsid = object.whole("nsid", 1..=u32::MAX - 1);
    let nsid = object.require("nsid", nsid, "a number, different for each namespace");
    if let Some(nsid) = nsid {
        known.check_nsid(taken, nsid, object.path("nsid"));
        if nsid.value > MAX_NSID {
            let message = format!("NSIDs above {MAX_NSID}: namespace {} is left out", nsid.value);
            object.unsupported(nsid.at, "nsid", message);
            return None;
        }
    }
    // Without it weft chooses: block devices past the page cache, files through it.
    let direct = object.flag("buffered_io").map(|buffered| !buffered.value);
    let has_enable = object.has("enable");
    let enabled = object.flag("enable").is_some_and(|flag| flag.value);
    let device = object.child("device");
    let device = object.require("device", device, "an object with path, uuid and nguid");
    let ana_group = read_ana_group(&object);
    for group in [object.child("resv"), object.child("reservation")].into_iter().flatten() {
        if let Some(flag) = group.flag("enable").filter(|flag| flag.value) {
            group.unsupported(flag.at, "enable", "reservations: ignored, hosts are told that there are none");
        }
        group.finish();
    }
    refuse_flag(&object, "p2pmem", "peer-to-peer memory: ignored");
    object.ignore(&["revalidate_size"]);
    let read = device.map(|device| read_device(device, enabled, known, taken));
    if !has_enable {
        object.warning(object.at, "", "has no enable: it is not exported, as with nvmetcli");
    }
    object.finish();

    let (nsid, (path, uuid, nguid)) = (nsid?.value, read?);
    Some(Namespace {
        nsid,
        backend: NamespaceBackend::File { path: path?, size_bytes: None, direct, force: false },
        lba_size: None,
        uuid: uuid.unwrap_or_else(|| identity::derived_uuid(subsystem_nqn, nsid)),
        nguid,
        read_only: false,
        enabled,
        ana_group,
        faults: None,
    })
}

/// `ana_grpid`, and in files of newer versions the same once more as `ana.grpid`.
fn read_ana_group(object: &Object<'_>) -> u32 {
    let own = object.whole("ana_grpid", 0..=MAX_ANA_GROUP);
    let nested = object.child("ana").and_then(|ana| {
        let group = ana.whole("grpid", 0..=MAX_ANA_GROUP);
        ana.finish();
        group
    });
    // 0 is what nvmetcli writes where the kernel has no ANA.
    own.or(nested).map(|group| group.value).filter(|&group| group != 0).unwrap_or(DEFAULT_ANA_GROUP)
}

fn refuse_flag(object: &Object<'_>, key: &'static str, why: &str) {
    if let Some(text) = object.text(key)
        && !["", "0", "n", "off", "none"].contains(&text.value.trim())
    {
        object.unsupported(text.at, key, why);
    }
}

/// Path, UUID and NGUID.
type Device = (Option<PathBuf>, Option<nvme::Uuid>, Option<[u8; 16]>);

fn read_device(device: Object<'_>, enabled: bool, known: &mut Known<'_>, taken: &mut Taken) -> Device {
    let path = device.text("path").filter(|path| !["", "(null)"].contains(&path.value.trim()));
    let uuid = identifier(&device, "uuid", value::uuid);
    let nguid = identifier(&device, "nguid", value::nguid);
    refuse_flag(&device, "p2pmem", "peer-to-peer memory: ignored");
    if let Some(uuid) = uuid {
        known.check_uuid(taken, uuid, device.path("uuid"));
    }
    if let Some(nguid) = nguid {
        known.check_nguid(taken, nguid, device.path("nguid"));
    }
    let path = match path {
        Some(path) => {
            let path = Located { value: known.directory.join(&*path.value), at: path.at };
            known.check_path(&path, device.path("path"));
            Some(path.value)
        }
        None if enabled => {
            device.mistake(device.at, "path", "missing: expected the path of a file or block device");
            None
        }
        None => {
            device.warning(device.at, "path", "there is none, and the namespace is disabled: it is left out");
            None
        }
    };
    device.finish();
    (path, uuid.map(|uuid| uuid.value), nguid.map(|nguid| nguid.value))
}

/// An identifier; all zero is none.
fn identifier<T>(
    device: &Object<'_>,
    key: &'static str,
    parse: fn(&str) -> Result<T, String>,
) -> Option<Located<T>> {
    let text = device.text(key)?;
    let zero = text.value.bytes().all(|byte| matches!(byte, b'0' | b'-' | b' '));
    if zero { None } else { device.parsed(key, |text| parse(text.trim())) }
}
