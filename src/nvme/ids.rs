//! Identifiers that travel in commands: command, queue, controller, namespace,
//! block and host ids, and the UUID text form.
//!
//! Each is its own type so that a queue id never lands where a command id was
//! meant. What an id refers to, and whether it exists, is decided by the users of
//! this package; NQNs live in [`crate::nqn`].

use core::fmt;
use core::str::FromStr;

/// Declares a one-field id with the derives and `Display` every id has.
macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

id! {
    /// Command identifier (CID), SQE bytes 3:2. Chosen by the host, unique among
    /// the commands outstanding on one queue.
    Cid(u16)
}

id! {
    /// Namespace identifier (NSID), SQE bytes 7:4. 0 means "no namespace".
    Nsid(u32)
}

id! {
    /// Queue identifier (QID), Connect SQE bytes 43:42. 0 is the admin queue.
    Qid(u16)
}

id! {
    /// Controller identifier (CNTLID), Connect data bytes 17:16.
    ControllerId(u16)
}

id! {
    /// Logical block address (SLBA and friends), in units of the namespace's
    /// LBA format.
    Lba(u64)
}

impl Nsid {
    /// No namespace: what controller-scope commands carry.
    pub const NONE: Self = Self(0);
    /// The broadcast value: every namespace attached to the controller.
    pub const ALL: Self = Self(0xffff_ffff);
}

impl Qid {
    /// The admin queue.
    pub const ADMIN: Self = Self(0);

    /// True for the admin queue, false for every I/O queue.
    #[must_use]
    pub const fn is_admin(self) -> bool {
        self.0 == 0
    }
}

impl ControllerId {
    /// In an admin Connect: "give me any controller" of the dynamic model.
    pub const DYNAMIC: Self = Self(0xffff);
    /// In an admin Connect: "give me any controller" of the static model.
    pub const STATIC_ANY: Self = Self(0xfffe);
    /// The largest id a controller can have; FFF0h and above are reserved.
    pub const MAX_USABLE: Self = Self(0xffef);
}

/// Host identifier (HOSTID), Connect data bytes 15:0: 128 bits that name a host
/// for reservations. All controllers with an equal id are the same registrant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostId(pub [u8; 16]);

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_uuid(&self.0, f)
    }
}

impl From<Uuid> for HostId {
    fn from(uuid: Uuid) -> Self {
        Self(uuid.0)
    }
}

/// A UUID in RFC 4122 byte order, as namespaces and NQNs carry it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_uuid(&self.0, f)
    }
}

/// Where the dashes of the text form stand: before these byte indices.
const DASH_BEFORE: [usize; 4] = [4, 6, 8, 10];
/// Length of the text form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
const UUID_TEXT_LEN: usize = 36;

fn write_uuid(bytes: &[u8; 16], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (index, byte) in bytes.iter().enumerate() {
        if DASH_BEFORE.contains(&index) {
            f.write_str("-")?;
        }
        write!(f, "{byte:02x}")?;
    }
    Ok(())
}

/// Why a text is not a UUID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UuidError {
    /// The text has this many bytes instead of 36.
    Length(usize),
    /// The byte at this position is not what the form wants there: a dash at 8,
    /// 13, 18 and 23, a hexadecimal digit everywhere else.
    Position(usize),
}

impl fmt::Display for UuidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(len) => write!(
                f,
                "a UUID has {UUID_TEXT_LEN} characters \
                 (xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx), this text has {len}"
            ),
            Self::Position(at) => write!(
                f,
                "character {at} does not fit a UUID: expected hexadecimal digits \
                 in the form xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
            ),
        }
    }
}

impl core::error::Error for UuidError {}

impl FromStr for Uuid {
    type Err = UuidError;

    fn from_str(text: &str) -> Result<Self, UuidError> {
        if text.len() != UUID_TEXT_LEN {
            return Err(UuidError::Length(text.len()));
        }
        let text = text.as_bytes();
        let mut bytes = [0; 16];
        let mut at = 0;
        for (index, byte) in bytes.iter_mut().enumerate() {
            if DASH_BEFORE.contains(&index) {
                if text[at] != b'-' {
                    return Err(UuidError::Position(at));
                }
                at += 1;
            }
            *byte = hex_digit(text, at)? << 4 | hex_digit(text, at + 1)?;
            at += 2;
        }
        Ok(Self(bytes))
    }
}

fn hex_digit(text: &[u8], at: usize) -> Result<u8, UuidError> {
    match text[at] {
        digit @ b'0'..=b'9' => Ok(digit - b'0'),
        digit @ b'a'..=b'f' => Ok(digit - b'a' + 10),
        digit @ b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(UuidError::Position(at)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_uuid_text() {
        let text = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
        let uuid: Uuid = text.parse().unwrap();
        assert_eq!(uuid.0[..5], [0xf8, 0x1d, 0x4f, 0xae, 0x7d]);
        assert_eq!(uuid.to_string(), text);
        assert_eq!(HostId::from(uuid).to_string(), text);
    }

    #[test]
    fn bad_uuid_text() {
        assert_eq!("".parse::<Uuid>(), Err(UuidError::Length(0)));
        assert_eq!("f81d4fae+7dec-11d0-a765-00a0c91e6bf6".parse::<Uuid>(), Err(UuidError::Position(8)));
        assert_eq!("f81d4fae-7dec-11d0-a765-00a0c91e6bfg".parse::<Uuid>(), Err(UuidError::Position(35)));
    }

    #[test]
    fn display_is_the_plain_number() {
        assert_eq!(Nsid::ALL.to_string(), "4294967295");
        assert_eq!(format!("{:>4}", Qid(7)), "   7");
        assert!(Qid::ADMIN.is_admin() && !Qid(1).is_admin());
    }

    proptest! {
        #[test]
        fn uuid_round_trip(bytes: [u8; 16]) {
            prop_assert_eq!(Uuid(bytes).to_string().parse(), Ok(Uuid(bytes)));
        }

        #[test]
        fn uuid_of_any_text(text in "\\PC{0,40}|[0-9a-f-]{36}") {
            let _ = text.parse::<Uuid>();
        }
    }
}
