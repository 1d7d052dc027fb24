//! `weft drives`: the NVMe namespaces of this machine, what they are, who uses them, and what weft makes of them.

use backends::{Passthrough, partitions_of, users_of};
use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

/// One row of the list.
struct Row {
    cells: [String; 7],
    note: String,
}

const TITLES: [&str; 7] = ["DEVICE", "NSID", "MODEL", "SERIAL", "FIRMWARE", "SIZE", "FORMAT"];

/// The list as text: a table, and below each drive that cannot be exported, why.
pub fn list() -> io::Result<String> {
    let mut nodes: Vec<PathBuf> = match fs::read_dir("/sys/class/nvme-generic") {
        Ok(entries) => entries.flatten().map(|entry| Path::new("/dev").join(entry.file_name())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    nodes.sort();
    if nodes.is_empty() {
        return Ok("This machine has no NVMe drives (there is nothing in /sys/class/nvme-generic).\n".into());
    }
    Ok(table(&nodes.iter().map(|node| row(node)).collect::<Vec<_>>()))
}

fn row(node: &Path) -> Row {
    let name = node.display().to_string();
    let drive = match Passthrough::look(node) {
        Ok(drive) => drive,
        Err(error) => {
            let blank = || "?".to_owned();
            let cells = [name, blank(), blank(), blank(), blank(), blank(), blank()];
            return Row { cells, note: error.to_string() };
        }
    };
    let mut format = format!("{} B", drive.lba_size);
    if drive.metadata_size > 0 {
        let _ = write!(format, " + {} B", drive.metadata_size);
    }
    let block = &drive.block_device;
    let mut notes: Vec<String> =
        drive.obstacle().map(|why| format!("cannot be exported: {why}")).into_iter().collect();
    let users = users_of(block);
    if users.is_empty() {
        let partitions = partitions_of(block);
        if !partitions.is_empty() {
            notes.push(format!("has partitions ({}); nobody uses them", partitions.join(", ")));
        }
    } else {
        notes.push(format!("in use: {}; refused without `force = true`", users.join(", ")));
    }
    if notes.is_empty() {
        notes.push(drive.summary());
    }
    let size = size(drive.lba_count.saturating_mul(drive.lba_size.into()));
    let cells = [name, drive.nsid.to_string(), drive.model, drive.serial, drive.firmware, size, format];
    Row { cells, note: notes.join("; ") }
}

fn size(bytes: u64) -> String {
    for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >> shift > 0 {
            return format!("{:.1} {unit}", bytes as f64 / (1_u64 << shift) as f64);
        }
    }
    format!("{bytes} B")
}

fn table(rows: &[Row]) -> String {
    let width = |n: usize| {
        rows.iter().map(|row| row.cells[n].chars().count()).chain([TITLES[n].len()]).max().unwrap_or(0)
    };
    let widths: [usize; 7] = std::array::from_fn(width);
    let line = |cells: [&str; 7]| {
        let padded: Vec<String> =
            cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        padded.join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(TITLES);
    for row in rows {
        text += &line(std::array::from_fn(|n| row.cells[n].as_str()));
        let _ = writeln!(text, "    {}", row.note);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_lines_up_and_says_what_stands_in_the_way() {
        let row = |device: &str, model: &str, note: &str| Row {
            cells: [device, "1", model, "S1", "1.0", "1.0 TiB", "512 B"].map(str::to_owned),
            note: note.into(),
        };
        let text = table(&[row("/dev/ng0n1", "A", "as it is"), row("/dev/ng10n1", "Long model", "in use")]);
        let lines: Vec<&str> = text.lines().collect();
        let column = |line: &str, word: &str| line.find(word).unwrap();
        assert_eq!(column(lines[0], "SERIAL"), column(lines[1], "S1"));
        assert_eq!(column(lines[1], "S1"), column(lines[3], "S1"));
        assert_eq!(lines[4], "    in use");
    }

    #[test]
    fn sizes_are_for_people() {
        assert_eq!([size(0), size(4096), size(3 << 39)], ["0 B", "4.0 KiB", "1.5 TiB"].map(str::to_owned));
    }
}
