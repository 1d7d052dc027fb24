//! `[[subsystem.namespace]]`: where its blocks are, their size and its identity.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::identity;
use super::model::{DEFAULT_LBA_SIZE, MAX_NSID, Namespace, NamespaceBackend};
use super::section::{Located, Section};
use super::subsystem::{Known, earlier};
use super::value;

const LBA_SIZES: RangeInclusive<u32> = 512..=4096;

/// The backends by name; their parameters are read afterwards.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    File,
    Null,
}

/// Reads the namespaces of one subsystem; those with mistakes are left out.
pub(super) fn read_all(
    sections: Vec<Section<'_>>,
    subsystem_nqn: &str,
    known: &mut Known<'_>,
) -> Vec<Namespace> {
    let mut nsids = BTreeMap::new();
    // Identities of this subsystem only: twice in here is a mistake, twice across subsystems a warning.
    let mut uuids = BTreeMap::new();
    let mut nguids = BTreeMap::new();
    let mut namespaces = Vec::new();
    for section in sections {
        let nsid = section.whole("nsid", 1..=MAX_NSID);
        let nsid = section.require(
            "nsid",
            nsid,
            &format!("a number from 1 to {MAX_NSID}, different for each namespace"),
        );
        if let Some(nsid) = nsid
            && let Some(first) = earlier(&mut nsids, nsid.value, nsid.at)
        {
            let line = section.report.line(first);
            section.mistake(
                nsid.at,
                "nsid",
                format!("{} is taken by line {line}: expected a different NSID", nsid.value),
            );
        }
        let lba_size = read_lba_size(&section);
        let backend = read_backend(&section, lba_size, known);
        let read_only = section.flag("read_only").is_some_and(|flag| flag.value);

        // Without an NSID there are mistakes already, and what is derived from 0 goes nowhere.
        let uuid = section.text("uuid", "a UUID", value::uuid);
        let nguid = section.text("nguid", "32 hexadecimal digits", value::nguid);
        if let Some(uuid) = uuid {
            let first =
                [earlier(&mut uuids, uuid.value, uuid.at), earlier(&mut known.uuids, uuid.value, uuid.at)];
            check_identity(&section, "uuid", uuid.at, &uuid.value.to_string(), first);
        }
        if let Some(nguid) = nguid {
            let first = [
                earlier(&mut nguids, nguid.value, nguid.at),
                earlier(&mut known.nguids, nguid.value, nguid.at),
            ];
            let shown = format!("{:032x}", u128::from_be_bytes(nguid.value));
            check_identity(&section, "nguid", nguid.at, &shown, first);
        }
        let derived = || identity::derived_uuid(subsystem_nqn, nsid.map_or(0, |nsid| nsid.value));
        let uuid = uuid.map_or_else(derived, |uuid| uuid.value);
        let nguid = nguid.map_or(uuid.0, |nguid| nguid.value);
        section.finish();
        if let (Some(nsid), Some(backend)) = (nsid, backend) {
            namespaces.push(Namespace { nsid: nsid.value, backend, lba_size, uuid, nguid, read_only });
        }
    }
    namespaces
}

/// Two namespaces that look like one volume make hosts treat them as two paths to it: inside a subsystem that
/// destroys data, across subsystems it may be meant (the same file offered twice).
fn check_identity(
    section: &Section<'_>,
    key: &str,
    at: usize,
    shown: &str,
    [here, anywhere]: [Option<usize>; 2],
) {
    if let Some(first) = here {
        let line = section.report.line(first);
        section.mistake(at, key, format!("{shown} is taken by line {line}: expected a different one"));
    } else if let Some(first) = anywhere {
        let line = section.report.line(first);
        let message = format!("{shown} is also that of line {line}: hosts will take both for one volume");
        section.report.warning(at, section.path(key), message);
    }
}

fn read_lba_size(section: &Section<'_>) -> Option<u32> {
    let size = section.whole::<u32>("lba_size", 0..=u32::MAX)?;
    if !LBA_SIZES.contains(&size.value) || !size.value.is_power_of_two() {
        let message = format!("{} is no block size: expected 512, 1024, 2048 or 4096", size.value);
        section.mistake(size.at, "lba_size", message);
        return None;
    }
    Some(size.value)
}

fn read_backend(
    section: &Section<'_>,
    lba_size: Option<u32>,
    known: &mut Known<'_>,
) -> Option<NamespaceBackend> {
    const EXPECTED: &str = "\"memory\", \"file\" or \"null\"";
    let kinds = [("memory", Kind::Memory), ("file", Kind::File), ("null", Kind::Null)];
    let kind = section.choice("backend", &kinds);
    let kind = section.require("backend", kind, EXPECTED).map(|kind| kind.value);
    // The block size of a file follows what lies under it; only the smallest is certain here.
    let default = if kind == Some(Kind::File) { *LBA_SIZES.start() } else { DEFAULT_LBA_SIZE };
    let block = u64::from(lba_size.unwrap_or(default));
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

    match kind? {
        Kind::File => {
            let path = section.require("path", path, "the path of a file")?;
            warn_of_second_use(section, &path, known);
            Some(NamespaceBackend::File { path: path.value, size_bytes: size.map(|size| size.value) })
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
                Kind::File | Kind::Null => NamespaceBackend::Null { size_bytes },
            })
        }
    }
}

fn warn_of_second_use(section: &Section<'_>, path: &Located<PathBuf>, known: &mut Known<'_>) {
    if let Some(first) = earlier(&mut known.paths, path.value.clone(), path.at) {
        let line = section.report.line(first);
        let message =
            format!("{} is also used by line {line}: hosts will overwrite each other", path.value.display());
        section.report.warning(path.at, section.path("path"), message);
    }
}
