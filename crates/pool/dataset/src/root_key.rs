//! The key of a new or changed encryption root.
//!
//! Page `docs/format/encryption.md`, "Wrapping key".

use crate::tasks::change_property::TEXT_BYTES_MAX;
use millpond_crypt::{
    CryptError, KeyFormat, PBKDF2_ITERATIONS, PBKDF2_ITERATIONS_MIN, WrappingKey,
};
use millpond_env::Env;

const LONG_LOCATION: &str = "keylocation is too long.";

/// Where the user's key of an encryption root comes from, and the wrapping key derived from it.
#[derive(Debug, Clone)]
pub struct RootKey {
    pub(crate) format: KeyFormat,
    pub(crate) location: String,
    pub(crate) salt: u64,
    pub(crate) iterations: u64,
    pub(crate) wrapping: WrappingKey,
}

impl RootKey {
    /// Derives the wrapping key. By design, that takes some tenths of a second for a passphrase, which gets a new
    /// random salt. `iterations` is used for passphrases only.
    ///
    /// # Errors
    /// [`CryptError::UserKey`] if the key does not have the form of its format, or a number of iterations below the
    /// least, or if the location is too long; [`CryptError::Unsupported`] for too many.
    pub fn derive(
        env: &Env,
        format: KeyFormat,
        location: &str,
        iterations: Option<u64>,
        user_key: &[u8],
    ) -> Result<Self, CryptError> {
        if location.len() > TEXT_BYTES_MAX {
            return Err(CryptError::UserKey {
                reason: LONG_LOCATION,
            });
        }
        let (mut salt, mut rounds) = (0, 0);
        if format == KeyFormat::Passphrase {
            WrappingKey::check_new_passphrase(user_key)?;
            let mut bytes = [0; 8];
            env.entropy.fill(&mut bytes);
            salt = u64::from_le_bytes(bytes).max(1);
            rounds = iterations.unwrap_or(PBKDF2_ITERATIONS);
            if rounds < PBKDF2_ITERATIONS_MIN {
                return Err(CryptError::UserKey {
                    reason: "minimum pbkdf2 iterations is 100000",
                });
            }
        }
        Ok(Self {
            format,
            location: location.to_owned(),
            salt,
            iterations: rounds,
            wrapping: WrappingKey::from_user_key(format, user_key, salt, rounds)?,
        })
    }
}

/// Whether a text can be the value of `keylocation` of an encryption root.
#[must_use]
pub fn is_key_location(text: &str) -> bool {
    let schemes = ["file:///", "https://", "http://"];
    let is_known = text == "prompt" || schemes.iter().any(|scheme| text.starts_with(scheme));
    is_known && text.len() <= TEXT_BYTES_MAX
}
