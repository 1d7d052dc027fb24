//! Who on this machine uses a block device: mounts, swap, and what is built on it (device mapper, RAID).
//!
//! Exporting a device that is in use destroys data sooner or later, so that weft refuses it and says by whom.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The users of a block device (its kernel name, such as `sda` or `nvme0n1`) and of its partitions, in words.
pub fn users(block: &str) -> Vec<String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let class = Path::new("/sys/class/block").join(block);
    let mut names = vec![block.to_owned()];
    // The whole disk's folder has one folder for each partition, and each of these a file that numbers it.
    for name in entries(&class).into_iter().filter(|name| name.starts_with(block)) {
        if class.join(&name).join("partition").exists() {
            names.push(name);
        }
    }
    let (mounts, swaps) = (read("/proc/self/mountinfo"), read("/proc/swaps"));
    let mut found = Vec::new();
    for name in names {
        let device = class.parent().unwrap_or(&class).join(&name);
        let number = read(&device.join("dev").to_string_lossy());
        if let Some(at) = mounted_at(&mounts, number.trim()) {
            found.push(format!("{name} is mounted on {at}"));
        }
        if is_swap(&swaps, &name) {
            found.push(format!("{name} is used for swap"));
        }
        for holder in entries(&device.join("holders")) {
            let alias = read(&format!("/sys/class/block/{holder}/dm/name"));
            let alias = if alias.trim().is_empty() { holder } else { format!("{holder} ({})", alias.trim()) };
            found.push(format!("{name} is held by {alias}"));
        }
    }
    found
}

/// Partitions of a block device: it has a partition table.
pub fn partitions(block: &str) -> Vec<String> {
    let class = PathBuf::from("/sys/class/block").join(block);
    entries(&class).into_iter().filter(|name| class.join(name).join("partition").exists()).collect()
}

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// Where the device with that number (`major:minor`) is mounted.
fn mounted_at<'a>(mountinfo: &'a str, number: &str) -> Option<&'a str> {
    mountinfo.lines().find_map(|line| {
        let mut fields = line.split(' ');
        (fields.nth(2)? == number).then(|| fields.nth(1)).flatten()
    })
}

fn is_swap(swaps: &str, name: &str) -> bool {
    swaps
        .lines()
        .any(|line| line.split_whitespace().next().and_then(|path| path.strip_prefix("/dev/")) == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_and_swap_are_found_by_what_the_kernel_lists() {
        let mounts = "22 1 259:3 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n\
                      30 22 8:1 /sub /srv/data rw - xfs /dev/sda1 rw\n";
        assert_eq!(mounted_at(mounts, "8:1"), Some("/srv/data"));
        assert_eq!(mounted_at(mounts, "259:3"), Some("/"));
        assert_eq!(mounted_at(mounts, "8:2"), None);
        assert_eq!(mounted_at(mounts, ""), None);
        let swaps = "Filename Type Size Used Priority\n/dev/sdb2 partition 1 0 -2\n";
        assert!(is_swap(swaps, "sdb2") && !is_swap(swaps, "sdb"));
        assert!(users("no-such-device").is_empty() && partitions("no-such-device").is_empty());
    }
}
