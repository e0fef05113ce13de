//! Derives the wrapping key from the user's key.

use crate::locked::LockedBytes;
use crate::{CryptError, KeyFormat};
use zeroize::Zeroizing;

/// More rounds than any user sets. The number comes from disk, and each round takes about a microsecond:
/// without a limit, a hostile key object could occupy a program forever.
pub const PBKDF2_ITERATIONS_MAX: u64 = 100_000_000;

const KEY_BYTES: usize = 32;

/// The key that wraps a dataset's keys.
///
/// Always 32 bytes, wiped on drop, and in memory that is not swapped where the system permits that.
///
/// Page `docs/format/encryption.md`, "Wrapping key".
#[derive(Clone)]
pub struct WrappingKey(LockedBytes);

impl WrappingKey {
    /// Uses these bytes unchanged as the key.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; KEY_BYTES]) -> Self {
        Self(LockedBytes::concat(&[bytes]))
    }

    /// Converts the content of a key file or the input from a terminal to the wrapping key.
    ///
    /// Passphrases and hexadecimal digits end before the first newline. A raw key is exactly the 32 bytes.
    /// `salt` and `iterations` come from the encryption root's key object and apply to passphrases only. With
    /// a passphrase this is slow by design (0.2 s with the usual 350,000 rounds).
    ///
    /// # Errors
    /// [`CryptError::UserKey`] if the text does not have the form of its format; [`CryptError::Unsupported`]
    /// for format "none" and for more than [`PBKDF2_ITERATIONS_MAX`] rounds.
    pub fn from_user_key(
        format: KeyFormat,
        text: &[u8],
        salt: u64,
        iterations: u64,
    ) -> Result<Self, CryptError> {
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or(text);
        match format {
            KeyFormat::Raw => Self::from_raw(text),
            KeyFormat::Hex => Self::from_hex(line),
            KeyFormat::Passphrase => Self::from_passphrase(line, salt, iterations),
            KeyFormat::None => Err(CryptError::Unsupported {
                what: "a key of format \"none\"",
            }),
        }
    }

    /// Takes exactly 32 bytes.
    ///
    /// # Errors
    /// [`CryptError::UserKey`] for any other length.
    pub fn from_raw(bytes: &[u8]) -> Result<Self, CryptError> {
        check_length(KeyFormat::Raw, bytes, KEY_BYTES)?;
        Ok(Self(LockedBytes::concat(&[bytes])))
    }

    /// Takes exactly 64 hexadecimal digits of either case.
    ///
    /// # Errors
    /// [`CryptError::UserKey`] for any other length or character.
    pub fn from_hex(digits: &[u8]) -> Result<Self, CryptError> {
        check_length(KeyFormat::Hex, digits, 2 * KEY_BYTES)?;
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Ok(digit.wrapping_sub(b'0')),
            b'a'..=b'f' => Ok(digit.wrapping_sub(b'a').wrapping_add(10)),
            b'A'..=b'F' => Ok(digit.wrapping_sub(b'A').wrapping_add(10)),
            _ => Err(CryptError::UserKey {
                format: KeyFormat::Hex.name(),
                reason: "has a character that is no hexadecimal digit",
            }),
        };
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        for (to, pair) in key.iter_mut().zip(digits.as_chunks::<2>().0) {
            let [high, low] = *pair;
            *to = (value(high)? << 4) | value(low)?;
        }
        Ok(Self::from_bytes(&key))
    }

    /// Derives the key from a passphrase of any length with PBKDF2 and HMAC-SHA-1. The passphrase ends before
    /// the first NUL.
    ///
    /// # Errors
    /// [`CryptError::Unsupported`] for zero rounds, or more than [`PBKDF2_ITERATIONS_MAX`].
    pub fn from_passphrase(
        passphrase: &[u8],
        salt: u64,
        iterations: u64,
    ) -> Result<Self, CryptError> {
        let rounds = u32::try_from(iterations)
            .ok()
            .filter(|_| (1..=PBKDF2_ITERATIONS_MAX).contains(&iterations))
            .ok_or(CryptError::Unsupported {
                what: "a passphrase derivation of 0 or more than 100,000,000 rounds",
            })?;
        let password = passphrase
            .split(|byte| *byte == 0)
            .next()
            .unwrap_or(passphrase);
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        pbkdf2::pbkdf2_hmac::<sha1::Sha1>(password, &salt.to_le_bytes(), rounds, &mut *key);
        Ok(Self::from_bytes(&key))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_slice()
    }
}

impl core::fmt::Debug for WrappingKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("WrappingKey(secret)")
    }
}

fn check_length(format: KeyFormat, bytes: &[u8], expected: usize) -> Result<(), CryptError> {
    let reason = match bytes.len().cmp(&expected) {
        core::cmp::Ordering::Less => "is too short",
        core::cmp::Ordering::Equal => return Ok(()),
        core::cmp::Ordering::Greater => "is too long",
    };
    Err(CryptError::UserKey {
        format: format.name(),
        reason,
    })
}
