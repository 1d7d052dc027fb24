//! NVMe Qualified Names: the names of hosts and subsystems.
//!
//! Two doors with two manners. [`Nqn::from_str`](core::str::FromStr::from_str) is
//! for names an operator writes and insists on the standard forms;
//! [`Nqn::parse_field`] is for the 256-byte fields a host sends and only insists
//! on what makes the name comparable, because hosts in the field are not careful.
//! Whether a name is known or allowed is not decided here.

use core::fmt;
use core::str::FromStr;

use crate::ids::{Uuid, UuidError};

/// What the uuid form starts with; a valid UUID must follow.
const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// An NVMe Qualified Name (NQN): UTF-8, 1 to 223 bytes, no NUL. Compared byte for
/// byte, case-sensitive.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn(Box<str>);

impl Nqn {
    /// The well-known name of the discovery subsystem.
    pub const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
    /// The longest name, in bytes without the terminating NUL.
    pub const MAX_LEN: usize = 223;
    /// Size of the field that carries a name on the wire.
    pub const FIELD_LEN: usize = 256;

    /// The well-known discovery name as an owned NQN.
    #[must_use]
    pub fn discovery() -> Self {
        Self(Self::DISCOVERY.into())
    }

    /// True for the well-known discovery name.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        &*self.0 == Self::DISCOVERY
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads a name field (SUBNQN, HOSTNQN and the like): bytes up to the first
    /// NUL, whatever follows it is ignored. The form of the name is not checked.
    ///
    /// # Errors
    /// When the field has no NUL, or its text is empty, too long or not UTF-8.
    pub fn parse_field(field: &[u8; 256]) -> Result<Self, NqnError> {
        let len = field.iter().position(|byte| *byte == 0).ok_or(NqnError::NotTerminated)?;
        check_len(len)?;
        let text = core::str::from_utf8(&field[..len]).map_err(|_| NqnError::NotUtf8)?;
        Ok(Self(text.into()))
    }

    /// Writes the name into a field, NUL padded to its end.
    pub fn write_field(&self, field: &mut [u8; 256]) {
        let (text, padding) = field.split_at_mut(self.0.len());
        text.copy_from_slice(self.0.as_bytes());
        padding.fill(0);
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nqn({:?})", self.0)
    }
}

impl AsRef<str> for Nqn {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(text: &str) -> Result<Self, NqnError> {
        check_len(text.len())?;
        if let Some(uuid) = text.strip_prefix(UUID_PREFIX) {
            uuid.parse::<Uuid>().map_err(NqnError::Uuid)?;
            return Ok(Self(text.into()));
        }
        let rest = text.strip_prefix("nqn.").ok_or(NqnError::Prefix)?;
        let (date, rest) = rest.split_once('.').ok_or(NqnError::Date)?;
        check_date(date.as_bytes())?;
        let (domain, suffix) = match rest.split_once(':') {
            Some((domain, suffix)) => (domain, Some(suffix)),
            None => (rest, None),
        };
        check_domain(domain)?;
        // Spaces and control characters are legal UTF-8, but a name that holds
        // them cannot be typed into a host's connect command.
        if suffix.is_some_and(|s| s.is_empty() || s.chars().any(is_blank)) {
            return Err(NqnError::Suffix);
        }
        Ok(Self(text.into()))
    }
}

fn check_len(len: usize) -> Result<(), NqnError> {
    match len {
        0 => Err(NqnError::Empty),
        1..=Nqn::MAX_LEN => Ok(()),
        _ => Err(NqnError::TooLong(len)),
    }
}

/// `yyyy-mm`.
fn check_date(date: &[u8]) -> Result<(), NqnError> {
    let [year @ .., b'-', tens, ones] = date else {
        return Err(NqnError::Date);
    };
    let month_ok = matches!((tens, ones), (b'0', b'1'..=b'9') | (b'1', b'0'..=b'2'));
    if year.len() == 4 && year.iter().all(u8::is_ascii_digit) && month_ok {
        Ok(())
    } else {
        Err(NqnError::Date)
    }
}

fn check_domain(domain: &str) -> Result<(), NqnError> {
    let label_ok =
        |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if domain.split('.').all(label_ok) { Ok(()) } else { Err(NqnError::Domain) }
}

fn is_blank(c: char) -> bool {
    c.is_control() || c.is_whitespace()
}

/// Why a text or field is not an NQN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NqnError {
    /// There is no text.
    Empty,
    /// The text has this many bytes, more than 223.
    TooLong(usize),
    /// The 256-byte field holds no NUL.
    NotTerminated,
    /// The bytes are not UTF-8.
    NotUtf8,
    /// The text does not start with `nqn.`.
    Prefix,
    /// The date is not `yyyy-mm.`.
    Date,
    /// The reverse domain name is missing or malformed.
    Domain,
    /// The part after the colon is empty or holds blanks or control characters.
    Suffix,
    /// The uuid form is used with something that is not a UUID.
    Uuid(UuidError),
}

impl fmt::Display for NqnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const FORM: &str = "expected nqn.yyyy-mm.reverse.domain[:string]";
        match self {
            Self::Empty => write!(f, "the NQN is empty; {FORM}"),
            Self::TooLong(len) => write!(f, "the NQN has {len} bytes; expected at most {}", Nqn::MAX_LEN),
            Self::NotTerminated => {
                write!(f, "the NQN field holds no NUL; expected a NUL after at most {} bytes", Nqn::MAX_LEN)
            }
            Self::NotUtf8 => f.write_str("the NQN is not UTF-8; expected UTF-8 text"),
            Self::Prefix => write!(f, "the NQN does not start with \"nqn.\"; {FORM}"),
            Self::Date => write!(f, "the date of the NQN is not a year and month; {FORM}"),
            Self::Domain => write!(
                f,
                "the domain of the NQN is not made of letters, digits and dashes \
                 separated by dots; {FORM}"
            ),
            Self::Suffix => write!(
                f,
                "the part of the NQN after the colon is empty or has blanks or \
                 control characters; {FORM}"
            ),
            Self::Uuid(error) => {
                write!(f, "the NQN is malformed after \"{UUID_PREFIX}\": {error}")
            }
        }
    }
}

impl core::error::Error for NqnError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn accepts_the_standard_forms() {
        for text in [
            Nqn::DISCOVERY,
            "nqn.2016-06.io.spdk:cnode1",
            "nqn.2014-08.com.example:nvme.host.sys.xyz:with:colons",
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
            "nqn.2014-08.org.nvmexpress:OEM:serial",
            "nqn.2024-12.de.xn--huser-gra:häuser",
        ] {
            assert_eq!(text.parse::<Nqn>().unwrap().as_str(), text);
        }
        assert!(Nqn::DISCOVERY.parse::<Nqn>().unwrap().is_discovery());
        assert_eq!(Nqn::discovery().as_ref(), Nqn::DISCOVERY);
    }

    #[test]
    fn rejects_with_the_reason() {
        let long = format!("nqn.2024-01.a:{}", "x".repeat(210));
        for (text, error) in [
            ("", NqnError::Empty),
            (long.as_str(), NqnError::TooLong(224)),
            ("iqn.2024-01.a:b", NqnError::Prefix),
            ("nqn.2024-13.a:b", NqnError::Date),
            ("nqn.2024-00.a:b", NqnError::Date),
            ("nqn.224-01.a:b", NqnError::Date),
            ("nqn.2024-01", NqnError::Date),
            ("nqn.2024-01.:b", NqnError::Domain),
            ("nqn.2024-01.a..b:c", NqnError::Domain),
            ("nqn.2024-01.a b:c", NqnError::Domain),
            ("nqn.2024-01.a:", NqnError::Suffix),
            ("nqn.2024-01.a:b\0", NqnError::Suffix),
            ("nqn.2014-08.org.nvmexpress:uuid:1", NqnError::Uuid(UuidError::Length(1))),
        ] {
            let got = text.parse::<Nqn>().unwrap_err();
            assert_eq!(got, error, "{text}");
            assert!(got.to_string().contains("expected") || matches!(got, NqnError::Uuid(_)));
        }
        assert!(long[..223].parse::<Nqn>().is_ok());
    }

    #[test]
    fn fields_are_lenient_in_form_only() {
        let mut field = [0; 256];
        assert_eq!(Nqn::parse_field(&field), Err(NqnError::Empty));
        field[..9].copy_from_slice(b"any thing");
        field[200] = 0xff;
        assert_eq!(Nqn::parse_field(&field).unwrap().as_str(), "any thing");
        field[3] = 0xff;
        assert_eq!(Nqn::parse_field(&field), Err(NqnError::NotUtf8));
        field.fill(b'x');
        assert_eq!(Nqn::parse_field(&field), Err(NqnError::NotTerminated));
        field[224] = 0;
        assert_eq!(Nqn::parse_field(&field), Err(NqnError::TooLong(224)));
        field[223] = 0;
        assert_eq!(Nqn::parse_field(&field).unwrap().as_str().len(), 223);
    }

    proptest! {
        #[test]
        fn field_round_trip(text in "[^\\x00]{1,55}") {
            let nqn = Nqn(text.into());
            let mut field = [0xaa; 256];
            nqn.write_field(&mut field);
            prop_assert_eq!(Nqn::parse_field(&field), Ok(nqn));
        }

        #[test]
        fn any_field(bytes in prop::collection::vec(any::<u8>(), 256)) {
            let _ = Nqn::parse_field(bytes.as_slice().try_into().unwrap());
        }

        #[test]
        fn any_text(text in "\\PC{0,60}|nqn\\.[0-9]{4}-[01][0-9]\\.\\PC{0,60}") {
            if let Ok(nqn) = text.parse::<Nqn>() {
                let mut field = [0; 256];
                nqn.write_field(&mut field);
                prop_assert_eq!(Nqn::parse_field(&field), Ok(nqn));
            }
        }
    }
}
