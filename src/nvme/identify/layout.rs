//! The one pattern every wire structure of Identify, log pages and discovery
//! follows: a size and offsets checked at compile time, and a view as bytes.
//!
//! It knows no structure itself; each is declared where it belongs.

/// Checks the size and the offset of every listed field of a wire structure
/// at compile time, and gives it `LEN`, `new_zeroed`, `as_bytes` and
/// `from_bytes`.
macro_rules! wire_layout {
    ($name:ident, $len:literal, { $($offset:literal $field:ident),* $(,)? }) => {
        const _: () = {
            assert!(size_of::<$name>() == $len);
            assert!(align_of::<$name>() == 1);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
        };

        impl $name {
            /// Length on the wire in bytes.
            pub const LEN: usize = $len;

            /// A structure of which every byte is zero.
            #[must_use]
            pub fn new_zeroed() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }

            /// The structure as it goes on the wire.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8] {
                zerocopy::IntoBytes::as_bytes(self)
            }

            /// The structure at the start of `bytes`; `None` if they are too few.
            #[must_use]
            pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
                zerocopy::FromBytes::read_from_prefix(bytes)
                    .ok()
                    .map(|(value, _rest)| value)
            }
        }
    };
}

pub(crate) use wire_layout;

/// Writes `text` into `field`: printable ASCII, left-justified, padded with
/// spaces, cut where the field ends. Other characters become `?`.
pub(crate) fn write_ascii(field: &mut [u8], text: &str) {
    let mut chars = text.chars();
    for byte in field {
        *byte = match chars.next() {
            Some(c @ ' '..='~') => u8::try_from(c).unwrap_or(b'?'),
            Some(_) => b'?',
            None => b' ',
        };
    }
}

#[cfg(test)]
mod tests {
    use super::write_ascii;
    use proptest::prelude::*;

    #[test]
    fn pads_cuts_and_replaces() {
        let mut field = [0u8; 6];
        write_ascii(&mut field, "abc");
        assert_eq!(&field, b"abc   ");
        write_ascii(&mut field, "abcdefgh");
        assert_eq!(&field, b"abcdef");
        write_ascii(&mut field, "a\u{e9}\0\nb");
        assert_eq!(&field, b"a???b ");
    }

    proptest! {
        #[test]
        fn writes_printable_ascii_only(text in ".*") {
            let mut field = [0u8; 40];
            write_ascii(&mut field, &text);
            prop_assert!(field.iter().all(|b| (0x20..0x7f).contains(b)));
        }
    }
}
