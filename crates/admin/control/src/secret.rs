//! A key in a request: wiped from memory when it is dropped, and never printed.

use std::fmt;
use zeroize::Zeroizing;

/// The longest key that is accepted, in bytes: longer than any key in any format.
pub const KEY_BYTES_MAX: usize = 4096;

/// The bytes of a key. Dropping it wipes them.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Copies a key.
    #[must_use]
    pub fn new(key: &[u8]) -> Self {
        Self(Zeroizing::new(key.to_vec()))
    }

    /// The key's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(feature = "serde")]
mod encoding {
    use super::{KEY_BYTES_MAX, Secret};
    use serde::de::{Error, SeqAccess, Visitor};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::fmt;
    use zeroize::Zeroizing;

    impl Serialize for Secret {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.0.as_slice().serialize(serializer)
        }
    }

    impl<'de> Deserialize<'de> for Secret {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_seq(Bytes)
        }
    }

    struct Bytes;

    impl<'de> Visitor<'de> for Bytes {
        type Value = Secret;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {KEY_BYTES_MAX} bytes")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut bytes: A) -> Result<Secret, A::Error> {
            // Allocate the full capacity, because growing the buffer would leave copies behind.
            let mut key = Zeroizing::new(Vec::with_capacity(KEY_BYTES_MAX));
            while let Some(byte) = bytes.next_element::<u8>()? {
                if key.len() >= KEY_BYTES_MAX {
                    return Err(A::Error::invalid_length(key.len(), &self));
                }
                key.push(byte);
            }
            Ok(Secret(key))
        }
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::*;

    #[test]
    fn a_key_round_trips_and_is_not_printed() {
        let secret = Secret::new(b"\x00\xffkey");
        let text = serde_json::to_string(&secret).unwrap();
        assert_eq!(serde_json::from_str::<Secret>(&text).unwrap(), secret);
        assert_eq!(format!("{secret:?}"), "Secret");
        let request = crate::Request::LoadKey {
            dataset: "tank".into(),
            key: Secret::new(b"hunter2"),
            only_check: false,
        };
        let shown = format!("{request:?}");
        assert!(!shown.contains("104"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn a_key_has_a_longest_length() {
        let text = serde_json::to_string(&vec![7u8; KEY_BYTES_MAX]).unwrap();
        assert!(serde_json::from_str::<Secret>(&text).is_ok());
        let text = serde_json::to_string(&vec![7u8; KEY_BYTES_MAX + 1]).unwrap();
        assert!(serde_json::from_str::<Secret>(&text).is_err());
    }
}
