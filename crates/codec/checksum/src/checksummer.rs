//! Checksums stored in block pointers.

use millpond_ondisk::{BlockPointer, ChecksumKind, Endian, ObjectType};
use sha2::{Digest, Sha256, Sha512_256};

use crate::{
    ChecksumError, Mismatch,
    edonr::EdonrKey,
    embedded::{verify_zilog, verify_zilog2},
    fletcher::{fletcher2, fletcher4},
    skein::SkeinKey,
};

/// The 32-byte key of a pool's salted checksums (MOS directory entry `org.illumos:checksum_salt`). Not a
/// secret: it keeps attackers from preparing collisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Salt(pub [u8; 32]);

/// How many words of a checksum are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// Four words.
    Full,
    /// Two words. The other two hold a MAC (blocks with the crypt bit, except object sets).
    Truncated,
}

impl Form {
    /// The form in which `bp` stores its block's checksum.
    #[must_use]
    pub fn of(bp: &BlockPointer) -> Self {
        if bp.has_crypt_bit() && bp.object_type() != ObjectType::OBJECT_SET {
            Self::Truncated
        } else {
            Self::Full
        }
    }

    /// Returns the words as stored. In the truncated form, the two words that belong to the MAC are 0.
    ///
    /// Functions strong enough for dedup keep their first two words. The others fold the second half into the
    /// first.
    #[must_use]
    pub fn fit(self, kind: ChecksumKind, words: [u64; 4]) -> [u64; 4] {
        let [a, b, c, d] = words;
        match self {
            Self::Full => words,
            Self::Truncated if kind.is_dedup_strong() => [a, b, 0, 0],
            Self::Truncated => [a ^ c, b ^ d, 0, 0],
        }
    }

    /// Compares stored words with computed words that are not yet truncated.
    pub(crate) fn compare(
        self,
        kind: ChecksumKind,
        stored: [u64; 4],
        computed: [u64; 4],
    ) -> Result<(), Mismatch> {
        let found = self.fit(kind, computed);
        let expected = match (self, stored) {
            (Self::Full, _) => stored,
            (Self::Truncated, [a, b, _, _]) => [a, b, 0, 0],
        };
        if expected == found {
            return Ok(());
        }
        Err(Mismatch {
            kind,
            form: self,
            expected,
            found,
        })
    }
}

/// A pool's checksum functions, with the keys of the salted ones prepared. Create one per pool. It is
/// immutable and can be shared by threads.
///
/// Page `docs/format/checksums.md`.
#[derive(Debug, Clone)]
pub struct Checksummer {
    keys: Option<Keys>,
}

#[derive(Debug, Clone)]
struct Keys {
    salt: Salt,
    skein: SkeinKey,
    edonr: EdonrKey,
}

impl Checksummer {
    /// Prepares the salted functions. Without a salt they return [`ChecksumError::NoSalt`].
    #[must_use]
    pub fn new(salt: Option<Salt>) -> Self {
        Self {
            keys: salt.map(|salt| Keys {
                salt,
                skein: SkeinKey::new(&salt.0),
                edonr: EdonrKey::new(&salt.0),
            }),
        }
    }

    /// The pool's salt, if it is known.
    #[must_use]
    pub fn salt(&self) -> Option<Salt> {
        self.keys.as_ref().map(|keys| keys.salt)
    }

    /// Computes the four checksum words of `data`, which is the whole block as stored (compressed, encrypted,
    /// padded).
    ///
    /// `data_endian` is the byte order of the block, [`BlockPointer::endian`]. `off` and `noparity` give
    /// zeros. Allocates nothing.
    ///
    /// # Errors
    /// [`ChecksumError`] if the function cannot be computed: `inherit` and `on`; functions whose checksum is
    /// embedded in the block; salted functions without a salt; Fletcher functions over an incomplete word.
    pub fn checksum(
        &self,
        kind: ChecksumKind,
        data: &[u8],
        data_endian: Endian,
    ) -> Result<[u64; 4], ChecksumError> {
        let keys = || self.keys.as_ref().ok_or(ChecksumError::NoSalt { kind });
        Ok(match kind {
            ChecksumKind::Inherit | ChecksumKind::On => {
                return Err(ChecksumError::NotAFunction { kind });
            }
            ChecksumKind::Label
            | ChecksumKind::GangHeader
            | ChecksumKind::Zilog
            | ChecksumKind::Zilog2 => return Err(ChecksumError::Embedded { kind }),
            ChecksumKind::Off | ChecksumKind::NoParity => [0; 4],
            ChecksumKind::Fletcher2 => fletcher2(data, data_endian)?,
            ChecksumKind::Fletcher4 => fletcher4(data, data_endian)?,
            // The one digest whose words do not follow the block's byte order.
            ChecksumKind::Sha256 => digest_words(Sha256::digest(data).into(), Endian::Big),
            ChecksumKind::Sha512 => digest_words(Sha512_256::digest(data).into(), data_endian),
            ChecksumKind::Skein => digest_words(keys()?.skein.digest(data), data_endian),
            ChecksumKind::Edonr => digest_words(keys()?.edonr.digest(data), data_endian),
            ChecksumKind::Blake3 => digest_words(
                *blake3::keyed_hash(&keys()?.salt.0, data).as_bytes(),
                data_endian,
            ),
        })
    }

    /// Verifies the stored bytes of the block that `bp` points to.
    ///
    /// `data` is the whole block; for a gang block, its joined pieces. Handles truncated checksums of
    /// encrypted blocks, and intent log blocks, whose checksum is embedded. Blocks without checksum pass if
    /// the words in their pointer are 0, as required. Allocates nothing.
    ///
    /// # Errors
    /// [`ChecksumError::Mismatch`] (and others for which [`ChecksumError::is_damage`] holds) if the bytes are
    /// bad. The other errors mean that the pointer cannot be checked with any bytes, or that `data` does not
    /// have the block's physical size.
    pub fn verify(&self, bp: &BlockPointer, data: &[u8]) -> Result<(), ChecksumError> {
        if bp.is_embedded() || bp.is_hole() {
            return Err(ChecksumError::NoBlock);
        }
        if data.len() as u64 != bp.psize_bytes() {
            return Err(ChecksumError::Size {
                expected: bp.psize_bytes(),
                length: data.len(),
            });
        }
        let kind = bp.checksum_kind().ok_or(ChecksumError::UnknownKind)?;
        let (form, stored) = (Form::of(bp), bp.checksum_words());
        match kind {
            ChecksumKind::Zilog => return verify_zilog(data, stored, form).map(|_| ()),
            ChecksumKind::Zilog2 => return verify_zilog2(data, stored, form).map(|_| ()),
            ChecksumKind::Label | ChecksumKind::GangHeader => {
                return Err(ChecksumError::NotAFunction { kind });
            }
            _ => {}
        }
        let computed = self.checksum(kind, data, bp.endian())?;
        Ok(form.compare(kind, stored, computed)?)
    }
}

/// Computes one checksum without a prepared [`Checksummer`].
///
/// # Errors
/// As [`Checksummer::checksum`].
pub fn checksum(
    kind: ChecksumKind,
    data: &[u8],
    data_endian: Endian,
    salt: Option<&Salt>,
) -> Result<[u64; 4], ChecksumError> {
    Checksummer::new(salt.copied().filter(|_| kind.is_salted())).checksum(kind, data, data_endian)
}

pub(crate) fn digest_words(digest: [u8; 32], endian: Endian) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(digest.as_chunks::<8>().0) {
        *word = endian.u64(*bytes);
    }
    words
}

#[cfg(test)]
mod tests;
