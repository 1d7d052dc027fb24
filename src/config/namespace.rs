//! `[[subsystem.namespace]]`: where its blocks are, their size and its identity.

use std::ops::RangeInclusive;

use super::checks::{Known, Taken};
use super::faults;
use super::identity;
use super::model::{
    DEFAULT_ANA_GROUP, DEFAULT_LBA_SIZE, MAX_ANA_GROUP, MAX_NSID, Namespace, NamespaceBackend,
};
use super::section::{Located, Section};
use super::value;

const LBA_SIZES: RangeInclusive<u32> = 512..=4096;

/// The backends by name; their parameters are read afterwards.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    File,
    Null,
    Passthrough,
}

/// Reads the namespaces of one subsystem; those with mistakes are left out.
pub(super) fn read_all(
    sections: Vec<Section<'_>>,
    subsystem_nqn: &str,
    known: &mut Known<'_>,
) -> Vec<Namespace> {
    let mut taken = Taken::default();
    let read = |section| read_one(section, subsystem_nqn, known, &mut taken);
    sections.into_iter().filter_map(read).collect()
}

fn read_one(
    section: Section<'_>,
    subsystem_nqn: &str,
    known: &mut Known<'_>,
    taken: &mut Taken,
) -> Option<Namespace> {
    let nsid = section.whole("nsid", 1..=MAX_NSID);
    let expected = format!("a number from 1 to {MAX_NSID}, different for each namespace");
    let nsid = section.require("nsid", nsid, &expected);
    if let Some(nsid) = nsid {
        known.check_nsid(taken, nsid, section.path("nsid"));
    }
    let lba_size = read_lba_size(&section);
    let backend = read_backend(&section, lba_size.as_ref(), known);
    let read_only = section.flag("read_only").is_some_and(|flag| flag.value);
    let enabled = section.flag("enabled").is_none_or(|flag| flag.value);
    let ana_group = section.whole("ana_group", 1..=MAX_ANA_GROUP);

    let uuid = section.text("uuid", "a UUID", value::uuid);
    let nguid = section.text("nguid", "32 hexadecimal digits", |text| match text {
        "none" => Ok(None),
        _ => value::nguid(text).map(Some),
    });
    if let Some(uuid) = uuid {
        known.check_uuid(taken, uuid, section.path("uuid"));
    }
    if let Some(Located { value: Some(value), at }) = nguid {
        known.check_nguid(taken, Located { value, at }, section.path("nguid"));
    }
    let faults = faults::read(&section);
    section.finish();

    let nsid = nsid?.value;
    let uuid = uuid.map_or_else(|| identity::derived_uuid(subsystem_nqn, nsid), |uuid| uuid.value);
    Some(Namespace {
        nsid,
        backend: backend?,
        lba_size: lba_size.map(|size| size.value),
        uuid,
        nguid: nguid.map_or(Some(uuid.0), |nguid| nguid.value),
        read_only,
        enabled,
        ana_group: ana_group.map_or(DEFAULT_ANA_GROUP, |group| group.value),
        faults,
    })
}

fn read_lba_size(section: &Section<'_>) -> Option<Located<u32>> {
    let size = section.whole::<u32>("lba_size", 0..=u32::MAX)?;
    if !LBA_SIZES.contains(&size.value) || !size.value.is_power_of_two() {
        let message = format!("{} is no block size: expected 512, 1024, 2048 or 4096", size.value);
        section.mistake(size.at, "lba_size", message);
        return None;
    }
    Some(size)
}

fn read_backend(
    section: &Section<'_>,
    lba_size: Option<&Located<u32>>,
    known: &mut Known<'_>,
) -> Option<NamespaceBackend> {
    const EXPECTED: &str = "\"memory\", \"file\", \"passthrough\" or \"null\"";
    let kinds = [
        ("memory", Kind::Memory),
        ("file", Kind::File),
        ("passthrough", Kind::Passthrough),
        ("null", Kind::Null),
    ];
    let kind = section.choice("backend", &kinds);
    let kind = section.require("backend", kind, EXPECTED).map(|kind| kind.value);
    // The block size of a file follows what lies under it; only the smallest is certain here.
    let default = if kind == Some(Kind::File) { *LBA_SIZES.start() } else { DEFAULT_LBA_SIZE };
    let block = u64::from(lba_size.map_or(default, |size| size.value));
    let size = section.size("size", block..=u64::MAX);
    if let Some(size) = size
        && size.value % block != 0
    {
        let message = format!("{} bytes: expected a multiple of the block size {block}", size.value);
        section.mistake(size.at, "size", message);
    }
    let path = section.text("path", "the path of a file", |text| match text {
        "" => Err("is empty: expected the path of a file".to_owned()),
        _ => Ok(known.directory.join(text)),
    });

    let direct = section.flag("direct");
    let force = section.flag("force");
    let drive = read_drive(section, kind, force, known);
    check_owners(section, kind, direct, force);

    match kind? {
        Kind::Passthrough => {
            let size = size.map(|size| (size.at, "size"));
            let path = path.map(|path| (path.at, "path"));
            let lba_size = lba_size.map(|size| (size.at, "lba_size"));
            for (at, key) in size.into_iter().chain(path).chain(lba_size) {
                section.mistake(at, key, "does not belong to backend \"passthrough\": the drive decides");
            }
            drive
        }
        Kind::File => {
            let path = section.require("path", path, "the path of a file")?;
            known.check_path(&path, section.path("path"));
            Some(NamespaceBackend::File {
                path: path.value,
                size_bytes: size.map(|size| size.value),
                direct: direct.map(|flag| flag.value),
                force: force.is_some_and(|flag| flag.value),
            })
        }
        kind => {
            let name = if kind == Kind::Memory { "memory" } else { "null" };
            if let Some(path) = path {
                let message =
                    format!("does not belong to backend {name:?}: expected only with backend \"file\"");
                section.mistake(path.at, "path", message);
            }
            let size =
                section.require("size", size, &format!("{}, for backend {name:?}", value::SIZE_FORM))?;
            let size_bytes = size.value;
            Some(match kind {
                Kind::Memory => NamespaceBackend::Memory { size_bytes },
                Kind::File | Kind::Passthrough | Kind::Null => NamespaceBackend::Null { size_bytes },
            })
        }
    }
}

/// Keys that only some backends have.
fn check_owners(
    section: &Section<'_>,
    kind: Option<Kind>,
    direct: Option<Located<bool>>,
    force: Option<Located<bool>>,
) {
    if let (true, Some(direct)) = (kind != Some(Kind::File), direct) {
        section.mistake(direct.at, "direct", "expected only with backend \"file\"");
    }
    if let (Some(Kind::Memory | Kind::Null), Some(force)) = (kind, force) {
        section.mistake(force.at, "force", "expected only with backend \"file\" or \"passthrough\"");
    }
}

/// The keys of backend "passthrough"; mistakes with any other.
fn read_drive(
    section: &Section<'_>,
    kind: Option<Kind>,
    force: Option<Located<bool>>,
    known: &mut Known<'_>,
) -> Option<NamespaceBackend> {
    const EXPECTED: &str = "the character device of a drive's namespace, such as \"/dev/ng0n1\"";
    let device = section.text("device", EXPECTED, |text| match text {
        "" => Err(format!("is empty: expected {EXPECTED}")),
        _ => Ok(known.directory.join(text)),
    });
    if kind != Some(Kind::Passthrough) {
        if let Some(device) = device {
            section.mistake(device.at, "device", "expected only with backend \"passthrough\"");
        }
        return None;
    }
    let device = section.require("device", device, EXPECTED)?;
    known.check_path(&device, section.path("device"));
    Some(NamespaceBackend::Passthrough { device: device.value, force: force.is_some_and(|flag| flag.value) })
}
