//! What the kernel says of a block device (sysfs), and who else uses it.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// A block device as sysfs knows it. Without sysfs nothing is known, and the careful answer is given.
pub(super) struct Device {
    /// Its name in the kernel, such as `sda1`.
    pub name: String,
    directory: PathBuf,
}

impl Device {
    /// The device with this number (`st_rdev`).
    pub fn of(number: u64) -> Device {
        let id = format!("{}:{}", libc::major(number), libc::minor(number));
        let link = Path::new("/sys/dev/block").join(&id);
        let directory = fs::canonicalize(&link).unwrap_or(link);
        let name = directory.file_name().map_or(id, |name| name.to_string_lossy().into_owned());
        Device { name, directory }
    }

    /// The device the kernel calls so.
    pub fn named(name: &str) -> Device {
        let link = Path::new("/sys/class/block").join(name);
        Device { name: name.to_owned(), directory: fs::canonicalize(&link).unwrap_or(link) }
    }

    fn is_partition(&self) -> bool {
        self.directory.join("partition").exists()
    }

    /// The disk it is a partition of.
    pub fn disk(&self) -> Option<String> {
        let disk = self.directory.parent()?.file_name()?;
        self.is_partition().then(|| disk.to_string_lossy().into_owned())
    }

    /// An attribute of its queue; a partition has that of its disk.
    fn queue(&self, attribute: &str) -> Option<String> {
        let own = self.directory.join("queue");
        let queue = if own.exists() { own } else { self.directory.parent()?.join("queue") };
        Some(fs::read_to_string(queue.join(attribute)).ok()?.trim().to_owned())
    }

    fn number(&self, attribute: &str) -> u64 {
        self.queue(attribute).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Whether it cannot be written.
    pub fn is_read_only(&self) -> bool {
        fs::read_to_string(self.directory.join("ro")).is_ok_and(|text| text.trim() == "1")
    }

    /// Whether what it acknowledged may be lost with its power. Nobody knows better than the device: unless it says "write
    /// through", it may.
    pub fn has_volatile_cache(&self) -> bool {
        self.queue("write_cache").is_none_or(|text| text != "write through")
    }

    /// Whether it makes ranges zero by itself. Without, the kernel would have to write them.
    pub fn writes_zeroes(&self) -> bool {
        self.number("write_zeroes_max_bytes") > 0
    }

    /// Whether its media rotate.
    pub fn is_rotational(&self) -> bool {
        self.number("rotational") == 1
    }

    /// Bytes that are written whole or not at all.
    pub fn physical_block_size(&self) -> u64 {
        self.number("physical_block_size")
    }

    /// Bytes from which on writes are worth it.
    pub fn write_granularity(&self) -> u64 {
        self.number("minimum_io_size").max(self.physical_block_size())
    }

    /// Bytes of writes it likes best; 0 where it does not say.
    pub fn optimal_write(&self) -> u64 {
        self.number("optimal_io_size")
    }

    /// Bytes that can be deallocated at once; 0 where it cannot.
    pub fn deallocate_granularity(&self) -> u64 {
        self.number("discard_granularity")
    }

    fn partitions(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.join("partition").exists()).collect()
    }

    /// Who uses it: where it or a partition of it is mounted, used for swapping, or part of another device.
    pub fn users(&self) -> Vec<String> {
        let own = std::iter::once(self.directory.clone());
        own.chain(self.partitions()).flat_map(|part| users_in(&part)).collect()
    }
}

/// Who uses the block device that the kernel calls `name`, or a partition of it, in words.
pub fn users_of(name: &str) -> Vec<String> {
    Device::named(name).users()
}

/// Names of the partitions of the block device that the kernel calls `name`.
pub fn partitions_of(name: &str) -> Vec<String> {
    let names = |path: PathBuf| Some(path.file_name()?.to_string_lossy().into_owned());
    let mut all: Vec<String> = Device::named(name).partitions().into_iter().filter_map(names).collect();
    all.sort();
    all
}

fn users_in(directory: &Path) -> Vec<String> {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let number = fs::read_to_string(directory.join("dev")).unwrap_or_default();
    let number = number.trim();
    let is_this = |path: &str| {
        fs::metadata(path).is_ok_and(|m| {
            m.rdev() != 0 && format!("{}:{}", libc::major(m.rdev()), libc::minor(m.rdev())) == number
        })
    };
    let mut users = Vec::new();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for (device, place, source) in mounts.lines().filter_map(mount) {
        if device == number || is_this(&source) {
            users.push(format!("{name} is mounted on {place}"));
        }
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).any(is_this) {
        users.push(format!("{name} is used for swapping"));
    }
    for holder in fs::read_dir(directory.join("holders")).into_iter().flatten().flatten() {
        let file = holder.file_name();
        let holder_name = fs::read_to_string(holder.path().join("dm/name"))
            .map_or_else(|_| file.to_string_lossy().into_owned(), |name| name.trim().to_owned());
        users.push(format!("{name} is part of {holder_name}"));
    }
    users
}

/// Device number, mount point and source of a line of mountinfo.
fn mount(line: &str) -> Option<(&str, String, String)> {
    let (first, second) = line.split_once(" - ")?;
    let mut fields = first.split(' ').skip(2);
    let (device, place) = (fields.next()?, fields.nth(1)?);
    Some((device, unescape(place), unescape(second.split(' ').nth(1)?)))
}

/// Blanks and the like are octal in the kernel's tables (`\040`).
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(char::from(byte));
                out.push_str(&part[3..]);
            }
            None => {
                out.push('\\');
                out.push_str(part);
            }
        }
    }
    out
}

/// What a character device was probably meant to be: drives have one for each namespace and one for the controller, and
/// block devices beside them.
pub(super) fn block_device_beside(path: &Path) -> io::Result<Option<String>> {
    let real = fs::canonicalize(path)?;
    let name = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let namespace = name.strip_prefix("ng").filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    Ok(match (namespace, name.strip_prefix("nvme")) {
        (Some(rest), _) => Some(format!("/dev/nvme{rest}")),
        (None, Some(rest)) if !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()) => {
            Some(format!("/dev/{name}n1"))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_understood() {
        let line = "36 35 98:0 /sub /mnt/a\\040b rw,noatime shared:1 - ext3 /dev/root rw,errors=continue";
        assert_eq!(mount(line), Some(("98:0", "/mnt/a b".into(), "/dev/root".into())));
        assert_eq!(mount("nonsense"), None);
        assert_eq!(unescape("a\\"), "a\\");
    }

    #[test]
    fn an_unknown_device_gets_the_careful_answers() {
        let device = Device::of(libc::makedev(4000, 77));
        assert_eq!(device.name, "4000:77");
        assert!(device.has_volatile_cache() && !device.writes_zeroes() && !device.is_read_only());
        assert!(device.disk().is_none() && device.users().is_empty());
    }
}
