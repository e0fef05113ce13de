//! Derives the wrapping key from the user's key.

use crate::locked::LockedBytes;
use crate::{CryptError, KeyFormat};
use zeroize::Zeroizing;

/// More rounds than any user sets. The number comes from disk, and each round takes about a microsecond:
/// without a limit, a hostile key object could occupy a program forever.
pub const PBKDF2_ITERATIONS_MAX: u64 = 100_000_000;

/// The rounds of a new key when nothing else is asked for.
pub const PBKDF2_ITERATIONS: u64 = 350_000;
/// The fewest rounds of a new key.
pub const PBKDF2_ITERATIONS_MIN: u64 = 100_000;

const KEY_BYTES: usize = 32;
/// Lengths of a new passphrase.
const PASSPHRASE_BYTES: core::ops::RangeInclusive<usize> = 8..=512;

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
        let reasons = [
            "Raw key too short (expected 32).",
            "Raw key too long (expected 32).",
        ];
        check_length(bytes, KEY_BYTES..=KEY_BYTES, reasons)?;
        Ok(Self(LockedBytes::concat(&[bytes])))
    }

    /// Takes exactly 64 hexadecimal digits of either case.
    ///
    /// # Errors
    /// [`CryptError::UserKey`] for any other length or character.
    pub fn from_hex(digits: &[u8]) -> Result<Self, CryptError> {
        let reasons = [
            "Hex key too short (expected 64).",
            "Hex key too long (expected 64).",
        ];
        check_length(digits, 2 * KEY_BYTES..=2 * KEY_BYTES, reasons)?;
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Ok(digit.wrapping_sub(b'0')),
            b'a'..=b'f' => Ok(digit.wrapping_sub(b'a').wrapping_add(10)),
            b'A'..=b'F' => Ok(digit.wrapping_sub(b'A').wrapping_add(10)),
            _ => Err(CryptError::UserKey {
                reason: "Invalid hex character detected.",
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

    /// Whether a new passphrase has an allowed length. Existing ones of any length are accepted.
    ///
    /// # Errors
    /// [`CryptError::UserKey`] if it is shorter than 8 bytes or longer than 512.
    pub fn check_new_passphrase(text: &[u8]) -> Result<(), CryptError> {
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or(text);
        let reasons = [
            "Passphrase too short (min 8).",
            "Passphrase too long (max 512).",
        ];
        check_length(line, PASSPHRASE_BYTES, reasons)
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

/// Checks the length of a key's text. `reasons` says what is wrong with one that is too short or too long.
fn check_length(
    bytes: &[u8],
    allowed: core::ops::RangeInclusive<usize>,
    reasons: [&'static str; 2],
) -> Result<(), CryptError> {
    let [short, long] = reasons;
    let reason = match bytes.len() {
        length if length < *allowed.start() => short,
        length if length > *allowed.end() => long,
        _ => return Ok(()),
    };
    Err(CryptError::UserKey { reason })
}
