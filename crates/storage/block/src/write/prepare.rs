//! From content to the bytes that are stored.

use super::protect::{Protection, protect, protect_raw};
use super::{BlockWrite, EncodedContent};
use crate::buffer_pool::BufferPool;
use millpond_checksum::{Checksummer, Form};
use millpond_compress::{AllocationUnits, StoredForm, stored_form};
use millpond_env::sync::Arc;
use millpond_ondisk::{
    BLOCK_BYTES_MAX, CompressionKind, EMBEDDED_BYTES_MAX, Endian, Level, ObjectType, SECTOR_BYTES,
};
use millpond_vdev::{AllocationClass, VdevTree};

/// How a block will be stored.
#[derive(Debug)]
pub(super) enum Prepared {
    /// Not at all.
    Hole,
    /// In the pointer.
    Embedded(Vec<u8>, CompressionKind),
    /// On devices.
    Stored(Stored),
}

/// The bytes for the devices; their length is the physical size.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) bytes: Arc<Vec<u8>>,
    pub(super) compression: CompressionKind,
    pub(super) checksum_words: [u64; 4],
    /// Set in encrypted datasets.
    pub(super) protection: Option<Protection>,
}

/// Detects zeros, compresses, pads, encrypts and checksums.
///
/// # Errors
/// What is wrong with the request.
pub(super) fn prepare(
    job: &BlockWrite,
    units: AllocationUnits,
    checksummer: &Checksummer,
    buffers: &BufferPool,
) -> Result<Prepared, String> {
    let lsize = job.content.len();
    check(job)?;
    if let Some(given) = &job.encoded
        && let Some(seal) = given.seal
    {
        let protection = Protection::given(job, seal);
        return stored(
            job,
            Arc::clone(&given.bytes),
            given.compression,
            Some(protection),
            checksummer,
        );
    }
    let (found, compression) = match &job.encoded {
        Some(given) => (StoredForm::Encoded(given.bytes.to_vec()), given.compression),
        None => {
            let found = stored_form(job.compression, job.zstd_level, &job.content, units);
            (found, job.compression)
        }
    };
    let (bytes, compression) = match found {
        StoredForm::Hole => return Ok(Prepared::Hole),
        StoredForm::Raw => (Arc::clone(&job.content), CompressionKind::Off),
        StoredForm::Encoded(mut encoded) => {
            if encoded.len() <= EMBEDDED_BYTES_MAX && can_be_embedded(job) {
                return Ok(Prepared::Embedded(encoded, compression));
            }
            match units.stored_bytes(encoded.len(), lsize) {
                Some(stored) => {
                    encoded.resize(stored, 0);
                    if job.retention.is_kept() {
                        // The cache charges the length.
                        encoded.shrink_to_fit();
                    }
                    (Arc::new(encoded), compression)
                }
                None => (Arc::clone(&job.content), CompressionKind::Off),
            }
        }
    };
    let (bytes, protection) = match &job.key {
        None if job.is_raw => (bytes, Some(protect_raw(job)?)),
        None => (bytes, None),
        Some(key) => {
            let (bytes, protection) =
                protect(job, key, bytes, buffers).map_err(|error| error.to_string())?;
            (bytes, Some(protection))
        }
    };
    stored(job, bytes, compression, protection, checksummer)
}

fn stored(
    job: &BlockWrite,
    bytes: Arc<Vec<u8>>,
    compression: CompressionKind,
    protection: Option<Protection>,
    checksummer: &Checksummer,
) -> Result<Prepared, String> {
    let checksum_words = checksummer
        .checksum(job.checksum, &bytes, Endian::Little)
        .map_err(|error| error.to_string())?;
    Ok(Prepared::Stored(Stored {
        bytes,
        compression,
        checksum_words: form(job).fit(job.checksum, checksum_words),
        protection,
    }))
}

/// The form of the checksum in the block's pointer.
pub(super) fn form(job: &BlockWrite) -> Form {
    match is_protected(job) && job.object_type != ObjectType::OBJECT_SET {
        true => Form::Truncated,
        false => Form::Full,
    }
}

/// Whether it is a block of an encrypted dataset.
fn is_protected(job: &BlockWrite) -> bool {
    job.key.is_some() || job.is_raw
}

fn check(job: &BlockWrite) -> Result<(), String> {
    let lsize = job.content.len() as u64;
    if lsize == 0 || lsize > BLOCK_BYTES_MAX || !lsize.is_multiple_of(SECTOR_BYTES) {
        return Err(format!("a block of {lsize} bytes"));
    }
    if !(1..=3).contains(&job.copies) {
        return Err(format!("{} copies", job.copies));
    }
    // The place of the third address holds salt and IV.
    let is_encrypted = job.level == Level(0) && job.object_type.is_encrypted();
    if is_protected(job) && is_encrypted && job.copies > 2 {
        return Err(format!("{} encrypted copies", job.copies));
    }
    let is_stored = |kind: CompressionKind| {
        !matches!(
            kind,
            CompressionKind::Off
                | CompressionKind::Empty
                | CompressionKind::Inherit
                | CompressionKind::On
        )
    };
    match (job.compression, &job.encoded) {
        (CompressionKind::Inherit | CompressionKind::On, _) => {
            Err("its compression function was not resolved".into())
        }
        (_, Some(given)) if given.seal.is_some() => check_sealed(job, given),
        (_, Some(given)) if !is_stored(given.compression) || given.bytes.is_empty() => {
            Err("its encoded form is none".into())
        }
        _ => Ok(()),
    }
}

fn check_sealed(job: &BlockWrite, given: &EncodedContent) -> Result<(), String> {
    let psize = given.bytes.len();
    let is_whole = psize > 0 && (psize as u64).is_multiple_of(SECTOR_BYTES);
    let is_plain = given.compression == CompressionKind::Off;
    let fits = if is_plain {
        psize == job.content.len()
    } else {
        psize <= job.content.len()
    };
    match job.is_raw && is_whole && fits {
        true => Ok(()),
        false => Err(format!("a sealed block of {psize} bytes")),
    }
}

fn can_be_embedded(job: &BlockWrite) -> bool {
    job.may_embed
        && job.dedup.is_none()
        && !is_protected(job)
        && job.level == Level(0)
        && !matches!(job.object_type, ObjectType::DNODE | ObjectType::OBJECT_SET)
}

/// The allocation units of a pool, from the sector sizes of its normal-class vdevs.
pub(super) fn allocation_units(tree: &VdevTree) -> AllocationUnits {
    let sectors = tree.tops().filter_map(|(_, top)| {
        let is_ordinary = top.class == AllocationClass::Normal && top.is_concrete();
        // On dRAID the sector size too: it is the unit of the devices below.
        (is_ordinary && (9..=16).contains(&top.ashift.0)).then(|| 1u32 << top.ashift.0)
    });
    // All are powers of two, so the smallest divides them all.
    let smallest = sectors.min().unwrap_or(512);
    AllocationUnits::new(smallest, smallest)
}
