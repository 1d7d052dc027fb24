//! Values out of text: sizes, addresses, NQNs, identifiers and printable names.
//!
//! Each function says what is wrong and what it expected in one line; where that was is the caller's
//! business.

use std::net::SocketAddr;

use nvme::{Nqn, Uuid};

use super::identity::hex16;

/// Bytes of the serial number field (SN).
pub(super) const LONGEST_SERIAL: usize = 20;
/// Bytes of the model number field (MN).
pub(super) const LONGEST_MODEL: usize = 40;

/// Bytes of the firmware revision field (FR).
pub(super) const LONGEST_FIRMWARE: usize = 8;

/// What a size may look like, for messages.
pub(super) const SIZE_FORM: &str =
    "bytes as an integer, or a whole number with KiB, MiB, GiB or TiB such as \"64 MiB\"";

/// What an address may look like, for messages.
pub(super) const ADDRESS_FORM: &str = "\"ADDRESS:PORT\" such as \"127.0.0.1:4420\" or \"[::1]:4420\"";

/// Bytes out of `64 MiB`. Decimal units (kB, MB) are refused: `1 GB` is no multiple of any block size above
/// 512, and the factor between the two has cost people volumes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        "kB" | "KB" | "MB" | "GB" | "TB" => {
            return Err(format!("{text:?} has a decimal unit, which is not taken: expected {SIZE_FORM}"));
        }
        _ => return Err(format!("{text:?} is no size: expected {SIZE_FORM}")),
    };
    if number.is_empty() {
        return Err(format!("{text:?} is no size: expected {SIZE_FORM}"));
    }
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    // Offsets in files are signed 64-bit values.
    bytes
        .filter(|&bytes| i64::try_from(bytes).is_ok())
        .ok_or_else(|| format!("{text:?} is too large: expected less than 8 EiB"))
}

/// A size for messages, in the largest unit that fits without a remainder.
pub(super) fn show_size(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} bytes")
}

/// An IP address and port. Names are not resolved: what a host is told in the discovery log must be an
/// address.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{text:?} is no address: expected {ADDRESS_FORM}"))
}

/// Which names are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// Those of the standard's forms: a slip of the pen is found.
    Standard,
    /// Whatever a host can send.
    Any,
}

/// The NQN of a host.
pub(super) fn nqn(text: &str, names: Names) -> Result<Nqn, String> {
    match names {
        Names::Standard => text.parse().map_err(|error| format!("{text:?} is no NQN: {error}")),
        Names::Any => any_nqn(text),
    }
}

/// A name as a host could send it: not empty, at most 223 bytes, no NUL.
fn any_nqn(text: &str) -> Result<Nqn, String> {
    if text.contains('\0') {
        return Err(format!("{text:?} is no NQN: expected a name without NUL characters"));
    }
    let mut field = [0; Nqn::FIELD_LEN];
    match field.get_mut(..text.len()) {
        Some(start) => start.copy_from_slice(text.as_bytes()),
        // Too long in any case; the name itself is not worth repeating.
        None => return Err(format!("the NQN has {} bytes; expected at most {}", text.len(), Nqn::MAX_LEN)),
    }
    Nqn::parse_field(&field).map_err(|error| format!("{text:?} is no NQN: {error}"))
}

/// The NQN of a subsystem, which the well-known discovery NQN cannot be.
pub(super) fn subsystem_nqn(text: &str, names: Names) -> Result<Nqn, String> {
    let nqn = nqn(text, names)?;
    if nqn.is_discovery() {
        return Err("is the NQN of the discovery service, which is always there: expected another".to_owned());
    }
    Ok(nqn)
}

/// A serial or model number: printable ASCII, as Identify Controller wants it.
pub(super) fn printable(text: &str, longest: usize) -> Result<String, String> {
    let printable = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
    let padded = text.starts_with(' ') || text.ends_with(' ');
    if text.is_empty() || text.len() > longest || !printable || padded {
        let how = match () {
            () if text.is_empty() => "is empty".to_owned(),
            () if !printable => format!("{text:?} is not printable ASCII"),
            () if padded => format!("{text:?} begins or ends with a space"),
            () => format!("is {} characters long", text.len()),
        };
        return Err(format!("{how}: expected 1 to {longest} printable ASCII characters"));
    }
    Ok(text.to_owned())
}

/// A UUID that is not zero.
pub(super) fn uuid(text: &str) -> Result<Uuid, String> {
    const FORM: &str = "\"xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx\" in hexadecimal digits, not all zero";
    match sixteen_bytes(text) {
        Some(bytes) if bytes == [0; 16] => Err(format!("is all zero: expected {FORM}")),
        Some(bytes) => Ok(Uuid(bytes)),
        None => Err(format!("{text:?} is no UUID: expected {FORM}")),
    }
}

/// An NGUID that is not zero.
pub(super) fn nguid(text: &str) -> Result<[u8; 16], String> {
    const FORM: &str = "32 hexadecimal digits, not all zero";
    match sixteen_bytes(text) {
        Some(bytes) if bytes == [0; 16] => Err(format!("is all zero: expected {FORM}")),
        Some(bytes) => Ok(bytes),
        None => Err(format!("{text:?} is no NGUID: expected {FORM}")),
    }
}

/// Hexadecimal digits with or without the dashes of a UUID: other tools write either for both kinds of
/// identifier.
fn sixteen_bytes(text: &str) -> Option<[u8; 16]> {
    hex16(text).or_else(|| text.parse::<Uuid>().ok().map(|uuid| uuid.0))
}

/// The known word nearest to `word`, when it is near enough to be a slip.
pub(super) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let length = word.chars().count();
    let allowed = (length / 3).clamp(1, 3);
    known
        .iter()
        // Each difference in length is one at least, and a word may be as long as the file.
        .filter(|candidate| candidate.chars().count().abs_diff(length) <= allowed)
        .map(|&candidate| (distance(word, candidate), candidate))
        .filter(|&(distance, _)| distance <= allowed)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// How many insertions, deletions, substitutions and swaps of neighbours lie between two words.
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut before_last = vec![0; right.len() + 1];
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for i in 1..=left.len() {
        let mut row = vec![i; right.len() + 1];
        for j in 1..=right.len() {
            let differs = usize::from(left[i - 1] != right[j - 1]);
            row[j] = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + differs);
            if i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1] {
                row[j] = row[j].min(before_last[j - 2] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("512 B"), Ok(512));
        assert_eq!(size("4KiB"), Ok(4096));
        assert_eq!(size(" 64 MiB "), Ok(64 << 20));
        assert_eq!(size("3 TiB"), Ok(3 << 40));
        for wrong in ["", "MiB", "64 mib", "1.5 GiB", "-1", "64 MiB x", "0x10", "1_000"] {
            assert!(size(wrong).unwrap_err().contains("is no size"), "{wrong}");
        }
        for wrong in ["8388608 TiB", "99999999999999999999"] {
            assert!(size(wrong).unwrap_err().contains("too large"), "{wrong}");
        }
        assert_eq!(
            size("1 GB").unwrap_err(),
            "\"1 GB\" has a decimal unit, which is not taken: expected bytes as an integer, or a whole \
             number with KiB, \
             MiB, GiB or TiB such as \"64 MiB\""
        );
    }

    #[test]
    fn sizes_are_shown_in_the_largest_whole_unit() {
        assert_eq!(show_size(0), "0 bytes");
        assert_eq!(show_size(1000), "1000 bytes");
        assert_eq!(show_size(4096), "4 KiB");
        assert_eq!(show_size(1 << 20), "1 MiB");
        assert_eq!(show_size(3 << 40), "3 TiB");
    }

    #[test]
    fn nqns() {
        assert_eq!(
            nqn("nqn.2026-12.io.weft:one", Names::Standard).map(|nqn| nqn.to_string()).as_deref(),
            Ok("nqn.2026-12.io.weft:one")
        );
        let long = format!("nqn.2026-12.io.weft:{}", "x".repeat(204));
        for names in [Names::Standard, Names::Any] {
            assert!(nqn(&long, names).unwrap_err().ends_with("the NQN has 224 bytes; expected at most 223"));
            assert!(nqn(&long[..223], names).is_ok());
            assert!(nqn(Nqn::DISCOVERY, names).is_ok());
            assert!(subsystem_nqn(Nqn::DISCOVERY, names).is_err());
            assert!(nqn("", names).is_err() && nqn("a\0b", names).is_err());
        }
        assert!(nqn(&"x".repeat(300), Names::Any).is_err());
        assert!(nqn("testnqn", Names::Standard).is_err());
        for odd in ["testnqn", "nqn.2024-13.a:b", "with \"quotes\" and häuser", "x"] {
            assert_eq!(nqn(odd, Names::Any).unwrap().as_str(), odd);
        }
    }

    #[test]
    fn identifiers_with_and_without_dashes() {
        let bytes = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef_u128.to_be_bytes();
        for text in ["01234567-89ab-cdef-0123-456789abcdef", "0123456789ABCDEF0123456789ABCDEF"] {
            assert_eq!((uuid(text), nguid(text)), (Ok(Uuid(bytes)), Ok(bytes)));
        }
        assert!(uuid("01234567-89ab-cdef-0123-456789abcde").is_err());
        assert!(uuid("00000000000000000000000000000000").is_err());
    }

    #[test]
    fn slips_find_their_key_and_other_words_do_not() {
        let known = ["address", "transport", "id"];
        assert_eq!(nearest("adress", &known), Some("address"));
        assert_eq!(nearest("addrses", &known), Some("address"));
        assert_eq!(nearest("transprot", &known), Some("transport"));
        assert_eq!(nearest("colour", &known), None);
        assert_eq!(nearest("x", &known), None);
    }

    #[test]
    fn distances() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("abc", "acb"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
