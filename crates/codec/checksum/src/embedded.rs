//! Checksums embedded in the block that they cover: labels, gang headers and intent log blocks. A magic
//! number before the checksum also shows the block's byte order.
//!
//! While the checksum is computed, a *verifier* replaces the stored result: a value that only the right block
//! at the right location has. A stale or misplaced block with an intact trailer is therefore rejected.
//! Verification changes no bytes and allocates nothing.

use millpond_ondisk::{BlockPointer, ChecksumKind, Endian, Txg, VdevId};
use sha2::{Digest, Sha256};

use crate::{ChecksumError, Fletcher4, Form, checksummer::digest_words, fletcher::fletcher2};

/// Size of magic number and checksum, in bytes.
pub const TRAILER_BYTES: usize = 40;
/// The magic number in the block's own byte order.
pub const TRAILER_MAGIC: u64 = 0x0210_da7a_b10c_7a11;

/// Size of an intent log block's chain header, in bytes, trailer included.
const CHAIN_HEADER_BYTES: u64 = 184;
/// Offset of the trailer in a `zilog2` block.
const ZILOG2_TRAILER_OFFSET: usize = 144;
/// `zilog2` blocks are written and checksummed in multiples of this many bytes.
const ZILOG2_UNIT_BYTES: u64 = 4096;
/// Size of every gang header before sizes became dynamic.
const SMALL_GANG_HEADER_BYTES: usize = 512;

/// Identifies a gang header for its checksum: the address in the pointer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GangVerifier {
    /// The top-level vdev of the pointer's *first* address, also for the second and third copies.
    pub vdev: VdevId,
    /// That address's byte offset in allocatable space.
    pub offset_bytes: u64,
    /// The pointer's physical birth txg.
    pub birth: Txg,
}

impl GangVerifier {
    /// Returns the verifier of the header that `bp` points to, or `None` if the pointer has no address.
    #[must_use]
    pub fn of(bp: &BlockPointer) -> Option<Self> {
        let dva = bp.dvas().next()?;
        Some(Self {
            vdev: dva.vdev,
            offset_bytes: dva.offset_bytes,
            birth: bp.physical_birth(),
        })
    }
    fn words(self) -> [u64; 4] {
        [u64::from(self.vdev.0), self.offset_bytes, self.birth.0, 0]
    }
}

/// A gang header with a valid checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GangHeader {
    /// Its length from the start of the bytes that were read.
    pub length: usize,
    /// Its byte order.
    pub endian: Endian,
}

/// Verifies a label region (configuration, boot environment block or uberblock slot) at byte
/// `device_offset_bytes` of the device. Returns its byte order.
///
/// # Errors
/// [`ChecksumError`] if the region is too short for a trailer, has no magic number, or has another checksum.
pub fn verify_label(region: &[u8], device_offset_bytes: u64) -> Result<Endian, ChecksumError> {
    let verifier = [device_offset_bytes, 0, 0, 0];
    verify_sha256(region, ChecksumKind::Label, verifier, Form::Full)
}

/// A little-endian label region that is sealed for several offsets. Only the end of the region depends on
/// the offset, so the rest is hashed once.
#[derive(Debug, Clone)]
pub struct LabelSealer {
    /// With the magic number.
    region: Vec<u8>,
    /// Offset of the trailer.
    at: usize,
    /// Covers everything before the verifier.
    hash: Sha256,
}

impl LabelSealer {
    /// Takes a region whose last 40 bytes are free.
    ///
    /// # Errors
    /// [`ChecksumError::Size`] if the region is shorter than the trailer.
    pub fn new(region: Vec<u8>) -> Result<Self, ChecksumError> {
        let mut region = region;
        let at = trailer_at_end(&region)?;
        put_words(&mut region, at, &[TRAILER_MAGIC]);
        let [before, ..] = parts(&region, at, &[0; 32]);
        let hash = Sha256::new_with_prefix(before);
        Ok(Self { region, at, hash })
    }

    /// The region with its checksum for byte `device_offset_bytes` of the device.
    #[must_use]
    pub fn sealed(&self, device_offset_bytes: u64) -> Vec<u8> {
        let verifier = verifier_bytes([device_offset_bytes, 0, 0, 0], Endian::Little);
        let [_, verifier, after] = parts(&self.region, self.at, &verifier);
        let hash = self.hash.clone().chain_update(verifier).chain_update(after);
        let computed = digest_words(hash.finalize().into(), Endian::Big);
        let mut sealed = self.region.clone();
        let fitted = Form::Full.fit(ChecksumKind::Label, computed);
        put_result(&mut sealed, self.at, Form::Full, fitted);
        sealed
    }
}

/// Writes magic number and checksum into the last 40 bytes of a little-endian label region.
///
/// # Errors
/// [`ChecksumError::Size`] if the region is shorter than the trailer.
pub fn seal_label(region: &mut [u8], device_offset_bytes: u64) -> Result<(), ChecksumError> {
    let sealed = LabelSealer::new(region.to_vec())?.sealed(device_offset_bytes);
    region.copy_from_slice(&sealed);
    Ok(())
}

/// Verifies a gang header of exactly these bytes. Returns its byte order. `form` is [`Form::of`] the pointer
/// to it.
///
/// # Errors
/// [`ChecksumError`] if the header is too short for a trailer, has no magic number, or has another checksum.
pub fn verify_gang_header(
    header: &[u8],
    verifier: GangVerifier,
    form: Form,
) -> Result<Endian, ChecksumError> {
    verify_sha256(header, ChecksumKind::GangHeader, verifier.words(), form)
}

/// Finds the length of the gang header at the start of `bytes`.
///
/// With dynamic gang headers a header takes the vdev's smallest allocation, or 512 bytes if it is an old one.
/// `bytes` must have the length of the smallest allocation.
///
/// # Errors
/// The error for the 512-byte form, if neither form is valid.
pub fn find_gang_header(
    bytes: &[u8],
    verifier: GangVerifier,
    form: Form,
) -> Result<GangHeader, ChecksumError> {
    if bytes.len() > SMALL_GANG_HEADER_BYTES
        && let Ok(endian) = verify_gang_header(bytes, verifier, form)
    {
        return Ok(GangHeader {
            length: bytes.len(),
            endian,
        });
    }
    let header = bytes
        .get(..SMALL_GANG_HEADER_BYTES)
        .ok_or(ChecksumError::Size {
            expected: SMALL_GANG_HEADER_BYTES as u64,
            length: bytes.len(),
        })?;
    Ok(GangHeader {
        length: header.len(),
        endian: verify_gang_header(header, verifier, form)?,
    })
}

/// Writes magic number and checksum into the last 40 bytes of a little-endian gang header.
///
/// # Errors
/// [`ChecksumError::Size`] if it is shorter than the trailer.
pub fn seal_gang_header(
    header: &mut [u8],
    verifier: GangVerifier,
    form: Form,
) -> Result<(), ChecksumError> {
    seal_sha256(header, ChecksumKind::GangHeader, verifier.words(), form)
}

/// Verifies a whole intent log block of the old form (trailer at the end). Returns its byte order.
///
/// `pointer_words` are the checksum words of its pointer. In intent log pointers these hold the chain's
/// identity and the block's sequence number. `form` is [`Form::of`] the pointer.
///
/// # Errors
/// [`ChecksumError`] if the block is too short, is not a multiple of 16 bytes, has no magic number, or has
/// another checksum.
pub fn verify_zilog(
    block: &[u8],
    pointer_words: [u64; 4],
    form: Form,
) -> Result<Endian, ChecksumError> {
    let at = trailer_at_end(block)?;
    let trailer = Trailer::read(block, at)?;
    let computed = zilog_sum(block, at, pointer_words, trailer.endian)?;
    form.compare(ChecksumKind::Zilog, trailer.words, computed)?;
    Ok(trailer.endian)
}

/// Writes magic number and checksum into a little-endian intent log block of the old form. In the truncated
/// form, the last two checksum words must already contain the MAC and stay unchanged.
///
/// # Errors
/// [`ChecksumError`] if the block is too short or not a multiple of 16 bytes.
pub fn seal_zilog(
    block: &mut [u8],
    pointer_words: [u64; 4],
    form: Form,
) -> Result<(), ChecksumError> {
    let at = trailer_at_end(block)?;
    put_words(block, at, &[TRAILER_MAGIC]);
    let computed = zilog_sum(block, at, pointer_words, Endian::Little)?;
    put_result(block, at, form, form.fit(ChecksumKind::Zilog, computed));
    Ok(())
}

/// Verifies an intent log block of the present form (chain header with the trailer at its start). Returns its
/// byte order.
///
/// The checksum covers only the used bytes, rounded up to 4096. Bytes after them in `block` are ignored. The
/// arguments are those of [`verify_zilog`].
///
/// # Errors
/// [`ChecksumError`] if the block is shorter than the chain header, has no magic number, states a used length
/// below the header's or beyond `block`, or has another checksum.
pub fn verify_zilog2(
    block: &[u8],
    pointer_words: [u64; 4],
    form: Form,
) -> Result<Endian, ChecksumError> {
    chain_header_fits(block)?;
    let trailer = Trailer::read(block, ZILOG2_TRAILER_OFFSET)?;
    let computed = zilog2_sum(block, pointer_words, trailer.endian)?;
    form.compare(ChecksumKind::Zilog2, trailer.words, computed)?;
    Ok(trailer.endian)
}

/// Writes magic number and checksum into a little-endian intent log block of the present form. Its header
/// must already contain the used length. In the truncated form, the last two checksum words must already
/// contain the MAC and stay unchanged.
///
/// # Errors
/// [`ChecksumError`] if the block is too short or the length in use is impossible.
pub fn seal_zilog2(
    block: &mut [u8],
    pointer_words: [u64; 4],
    form: Form,
) -> Result<(), ChecksumError> {
    chain_header_fits(block)?;
    put_words(block, ZILOG2_TRAILER_OFFSET, &[TRAILER_MAGIC]);
    let computed = zilog2_sum(block, pointer_words, Endian::Little)?;
    let words = form.fit(ChecksumKind::Zilog2, computed);
    put_result(block, ZILOG2_TRAILER_OFFSET, form, words);
    Ok(())
}

/// Magic number and stored checksum words.
struct Trailer {
    endian: Endian,
    words: [u64; 4],
}

impl Trailer {
    fn read(block: &[u8], at: usize) -> Result<Self, ChecksumError> {
        let bytes = block.get(at..).unwrap_or(&[]);
        let short = |_| ChecksumError::Size {
            expected: (at as u64).saturating_add(TRAILER_BYTES as u64),
            length: block.len(),
        };
        let [magic, ..] = Endian::Little
            .words::<5>("checksum trailer", bytes)
            .map_err(short)?;
        let endian = if magic == TRAILER_MAGIC {
            Endian::Little
        } else if magic.swap_bytes() == TRAILER_MAGIC {
            Endian::Big
        } else {
            return Err(ChecksumError::Magic { found: magic });
        };
        let [_, words @ ..] = endian
            .words::<5>("checksum trailer", bytes)
            .map_err(short)?;
        Ok(Self { endian, words })
    }
}

fn trailer_at_end(block: &[u8]) -> Result<usize, ChecksumError> {
    block
        .len()
        .checked_sub(TRAILER_BYTES)
        .ok_or(ChecksumError::Size {
            expected: TRAILER_BYTES as u64,
            length: block.len(),
        })
}

fn chain_header_fits(block: &[u8]) -> Result<(), ChecksumError> {
    if (block.len() as u64) < CHAIN_HEADER_BYTES {
        return Err(ChecksumError::Size {
            expected: CHAIN_HEADER_BYTES,
            length: block.len(),
        });
    }
    Ok(())
}

fn verify_sha256(
    block: &[u8],
    kind: ChecksumKind,
    verifier: [u64; 4],
    form: Form,
) -> Result<Endian, ChecksumError> {
    let at = trailer_at_end(block)?;
    let trailer = Trailer::read(block, at)?;
    let computed = sha256_sum(block, at, verifier, trailer.endian);
    form.compare(kind, trailer.words, computed)?;
    Ok(trailer.endian)
}

fn seal_sha256(
    block: &mut [u8],
    kind: ChecksumKind,
    verifier: [u64; 4],
    form: Form,
) -> Result<(), ChecksumError> {
    let at = trailer_at_end(block)?;
    put_words(block, at, &[TRAILER_MAGIC]);
    let computed = sha256_sum(block, at, verifier, Endian::Little);
    // Headers have no MAC, so a truncated checksum leaves zeros.
    put_result(block, at, Form::Full, form.fit(kind, computed));
    Ok(())
}

fn sha256_sum(block: &[u8], at: usize, verifier: [u64; 4], endian: Endian) -> [u64; 4] {
    let verifier = verifier_bytes(verifier, endian);
    let [before, verifier, after] = parts(block, at, &verifier);
    let mut hash = Sha256::new();
    hash.update(before);
    hash.update(verifier);
    hash.update(after);
    digest_words(hash.finalize().into(), Endian::Big)
}

fn zilog_sum(
    block: &[u8],
    at: usize,
    verifier: [u64; 4],
    endian: Endian,
) -> Result<[u64; 4], ChecksumError> {
    // The magic number is the second half of a pair of words, so the block is summed in three parts of whole
    // pairs. The first part extends up to the verifier.
    let verifier = verifier_bytes(verifier, endian);
    let [before, verifier, after] = parts(block, at, &verifier);
    let mut sums = fletcher2(before, endian)?;
    for part in [verifier, after] {
        let [a0, a1, b0, b1] = sums;
        let [c0, c1, d0, d1] = fletcher2(part, endian)?;
        let pairs = (part.len() as u64) / 16;
        let follow = |a: u64, b: u64, d: u64| b.wrapping_add(a.wrapping_mul(pairs)).wrapping_add(d);
        sums = [
            a0.wrapping_add(c0),
            a1.wrapping_add(c1),
            follow(a0, b0, d0),
            follow(a1, b1, d1),
        ];
    }
    Ok(sums)
}

fn zilog2_sum(block: &[u8], verifier: [u64; 4], endian: Endian) -> Result<[u64; 4], ChecksumError> {
    let nused_bytes = block
        .get(136..144)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, |bytes| endian.u64(bytes));
    let refused = ChecksumError::Extent {
        nused_bytes,
        length: block.len(),
    };
    if nused_bytes < CHAIN_HEADER_BYTES {
        return Err(refused);
    }
    let covered = nused_bytes
        .checked_next_multiple_of(ZILOG2_UNIT_BYTES)
        .and_then(|bytes| usize::try_from(bytes).ok())
        .and_then(|bytes| block.get(..bytes))
        .ok_or(refused)?;
    let verifier = verifier_bytes(verifier, endian);
    let mut sum = Fletcher4::new();
    for part in parts(covered, ZILOG2_TRAILER_OFFSET, &verifier) {
        sum.update(part, endian)?;
    }
    Ok(sum.words())
}

/// Splits the block into the part before the checksum words of the trailer at `at`, the verifier in their
/// place, and the rest. Callers ensure that the trailer exists.
fn parts<'a>(block: &'a [u8], at: usize, verifier: &'a [u8; 32]) -> [&'a [u8]; 3] {
    let words = at.saturating_add(8);
    [
        block.get(..words).unwrap_or(&[]),
        verifier,
        block.get(words.saturating_add(32)..).unwrap_or(&[]),
    ]
}

fn verifier_bytes(verifier: [u64; 4], endian: Endian) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(verifier) {
        *bytes = match endian {
            Endian::Little => word.to_le_bytes(),
            Endian::Big => word.to_be_bytes(),
        };
    }
    bytes
}

fn put_words(block: &mut [u8], at: usize, words: &[u64]) {
    if let Some(bytes) = block.get_mut(at..) {
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
    }
}

/// Stores the checksum words that the form has after the magic number at `at`.
fn put_result(block: &mut [u8], at: usize, form: Form, words: [u64; 4]) {
    let at = at.saturating_add(8);
    match (form, words) {
        (Form::Full, _) => put_words(block, at, &words),
        (Form::Truncated, [a, b, _, _]) => put_words(block, at, &[a, b]),
    }
}

#[cfg(test)]
mod tests;
