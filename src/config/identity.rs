//! Stable identities for what the configuration does not name: serial numbers and namespace UUIDs.
//!
//! A host recognises a volume by its UUID, so a derived one must be the same after every restart and on every
//! machine. It therefore depends on nothing but the subsystem's NQN and the NSID. The hash is [`mix`] over
//! the text, once per 64-bit half with different seeds. **It is not cryptographic**: whoever chooses NQNs
//! freely could make two of them collide. It only has to keep apart the names of honest administrators, and
//! 122 bits do that. Where identities come from strangers, write the UUIDs into the configuration.

use nvme::Uuid;

/// Sixteen bytes from exactly 32 hexadecimal digits.
pub(super) fn hex16(digits: &str) -> Option<[u8; 16]> {
    // from_str_radix would also take a leading sign.
    if digits.len() != 32 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(digits, 16).ok().map(u128::to_be_bytes)
}

/// The UUID of a namespace that has none in the configuration: version 8 (custom), derived from its NQN and
/// NSID.
pub(super) fn derived_uuid(subsystem_nqn: &str, nsid: u32) -> Uuid {
    let text = format!("weft namespace\n{subsystem_nqn}\n{nsid}");
    let (high, low) = (hash(0, &text), hash(1, &text));
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&high.to_be_bytes());
    bytes[8..].copy_from_slice(&low.to_be_bytes());
    bytes[6] = bytes[6] & 0x0f | 0x80; // version 8
    bytes[8] = bytes[8] & 0x3f | 0x80; // the variant of RFC 9562
    Uuid(bytes)
}

/// The serial number of a subsystem that has none in the configuration: 20 characters, derived from its NQN.
pub(super) fn derived_serial(subsystem_nqn: &str) -> String {
    format!("WEFT{:016X}", hash(2, &format!("weft subsystem\n{subsystem_nqn}")))
}

/// Folds the text into 64 bits, eight bytes (little-endian, the last piece padded with zeroes) at a time, its
/// length last.
fn hash(seed: u64, text: &str) -> u64 {
    let mut state = mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15));
    for piece in text.as_bytes().chunks(8) {
        let mut word = [0; 8];
        word[..piece.len()].copy_from_slice(piece);
        state = mix(state.rotate_left(23) ^ u64::from_le_bytes(word));
    }
    mix(state.rotate_left(23) ^ text.len() as u64)
}

/// The finaliser of SplitMix64: a bijection in which every input bit changes about half of the output bits.
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn derived_identities_never_change() {
        // Pinned: a host that knew the volume by this UUID must find it again after any upgrade.
        let nqn = "nqn.2026-12.io.weft:one";
        assert_eq!(derived_uuid(nqn, 1).to_string(), "7886c5cc-d04a-8ee4-a5cc-9c5c76716ee3");
        assert_eq!(derived_uuid(nqn, 2).to_string(), "fc85a505-e01f-84ac-bd10-da70a9b82211");
        assert_eq!(derived_serial(nqn), "WEFTD71F5357EC80E786");
    }

    #[test]
    fn derived_uuids_are_valid_and_differ() {
        let mut seen = HashSet::new();
        for subsystem in 0..40 {
            for nsid in 1..=100 {
                let uuid = derived_uuid(&format!("nqn.2026-12.io.weft:s{subsystem}"), nsid);
                assert_eq!(uuid.0[6] >> 4, 8);
                assert_eq!(uuid.0[8] >> 6, 0b10);
                assert!(seen.insert(uuid));
            }
        }
    }

    #[test]
    fn a_separator_keeps_name_and_number_apart() {
        assert_ne!(derived_uuid("nqn.2026-12.io.weft:a1", 2), derived_uuid("nqn.2026-12.io.weft:a", 12));
    }

    #[test]
    fn sixteen_bytes_need_exactly_32_digits() {
        let expected = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef_u128.to_be_bytes();
        assert_eq!(hex16("0123456789ABCDEF0123456789abcdef"), Some(expected));
        for wrong in ["", "0123", "+123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdeg"] {
            assert_eq!(hex16(wrong), None, "{wrong}");
        }
    }
}
