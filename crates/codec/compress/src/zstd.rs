//! zstd: one frame without its magic number after a header of eight bytes.

use crate::{DecompressError, ZstdLevel};
use rusty_zstd::DecompressOptions;

const HEADER_BYTES: usize = 8;
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// A block's frame never needs a window larger than the largest block.
const WINDOW_BYTES_MAX: u64 = millpond_ondisk::BLOCK_BYTES_MAX;
/// The version number that OpenZFS 2.3 writes. Readers only display it.
const VERSION: u32 = 10405;

/// The eight bytes before a zstd block. Page `docs/format/compression.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZstdHeader {
    /// Length of the following frame in bytes.
    pub frame_bytes: u32,
    /// The level used to encode it. Needed only to produce the same bytes again.
    pub level: ZstdLevel,
    /// The encoder's version: major * 10000 + minor * 100 + patch.
    pub version: u32,
}

impl ZstdHeader {
    /// Decodes the header from the first eight bytes.
    ///
    /// The second word has four historic forms (big-endian writers stored it unconverted). The version is
    /// below 65536, so the position of its zero byte shows the form.
    ///
    /// # Errors
    /// If there are fewer than eight bytes or the level code does not exist.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecompressError> {
        let corrupt = |reason| DecompressError::corrupt("zstd", reason);
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or(corrupt("too short"))?;
        let (word, _) = rest.split_first_chunk::<4>().ok_or(corrupt("too short"))?;
        // Bytes in stored order, most significant first.
        let (code, version) = match *word {
            [level, low, middle, 0] => (level, [0, 0, middle, low]),
            [low, middle, 0, level] => (level, [0, 0, middle, low]),
            [level, 0, middle, low] => (level, [0, 0, middle, low]),
            [0, high, middle, level] => (level, [0, 0, high, middle]),
            [level, high, middle, low] => (level, [0, high, middle, low]),
        };
        Ok(Self {
            frame_bytes: u32::from_be_bytes(*length),
            level: ZstdLevel::from_code(code).ok_or(corrupt("level does not exist"))?,
            version: u32::from_be_bytes(version),
        })
    }

    fn encode(self) -> [u8; HEADER_BYTES] {
        let word = (u32::from(self.level.code()) << 24) | (self.version & 0x00ff_ffff);
        let mut bytes = [0; HEADER_BYTES];
        let (length, rest) = bytes.split_at_mut(4);
        length.copy_from_slice(&self.frame_bytes.to_be_bytes());
        rest.copy_from_slice(&word.to_be_bytes());
        bytes
    }
}

pub(crate) fn decompress(source: &[u8], destination: &mut [u8]) -> Result<(), DecompressError> {
    let corrupt = |reason| DecompressError::corrupt("zstd", reason);
    let header = ZstdHeader::decode(source)?;
    let length = usize::try_from(header.frame_bytes).unwrap_or(usize::MAX);
    let frame = source
        .get(HEADER_BYTES..)
        .and_then(|rest| rest.get(..length))
        .ok_or(corrupt("stated length goes past the block"))?;
    // The decoder needs the magic number, which the block omits.
    let mut with_magic = Vec::with_capacity(frame.len().saturating_add(MAGIC.len()));
    with_magic.extend_from_slice(&MAGIC);
    with_magic.extend_from_slice(frame);
    let options = DecompressOptions {
        window_max: WINDOW_BYTES_MAX,
        ..DecompressOptions::default()
    };
    let mut decoded = Vec::with_capacity(destination.len());
    rusty_zstd::decompress_into_with_limit(&mut decoded, &with_magic, options, destination.len())
        .map_err(|_| corrupt("invalid frame"))?;
    if decoded.len() != destination.len() {
        return Err(corrupt("decodes to less than the logical size"));
    }
    destination.copy_from_slice(&decoded);
    Ok(())
}

pub(crate) fn compress(level: ZstdLevel, source: &[u8], destination: &mut [u8]) -> Option<usize> {
    let (head, body) = destination.split_at_mut_checked(HEADER_BYTES)?;
    let length = encode_frame(level, source, body)?;
    let header = ZstdHeader {
        frame_bytes: u32::try_from(length).ok()?,
        level,
        version: VERSION,
    };
    head.copy_from_slice(&header.encode());
    length.checked_add(HEADER_BYTES)
}

/// Encodes with the C library, whose levels are those of the property.
#[cfg(feature = "zstd-c")]
fn encode_frame(level: ZstdLevel, source: &[u8], destination: &mut [u8]) -> Option<usize> {
    use zstd_safe::{CCtx, CParameter, FrameFormat};
    let mut context = CCtx::try_create()?;
    for parameter in [
        CParameter::CompressionLevel(level.number()),
        CParameter::Format(FrameFormat::Magicless),
        CParameter::ContentSizeFlag(false),
        CParameter::ChecksumFlag(false),
    ] {
        context.set_parameter(parameter).ok()?;
    }
    // The encoder needs some room beyond the length of the result, so it writes to a separate buffer.
    // Otherwise a form that just fits the limit would be refused.
    let mut frame = vec![0; zstd_safe::compress_bound(source.len())];
    let length = context.compress2(&mut frame[..], source).ok()?;
    destination
        .get_mut(..length)?
        .copy_from_slice(frame.get(..length)?);
    Some(length)
}

/// Encodes in Rust. Fast levels below -7 do not exist there and become -7. The frame states its content size,
/// which every decoder accepts.
#[cfg(not(feature = "zstd-c"))]
fn encode_frame(level: ZstdLevel, source: &[u8], destination: &mut [u8]) -> Option<usize> {
    let options = rusty_zstd::CompressOptions {
        level: level.number().max(rusty_zstd::MIN_CLEVEL),
        checksum: false,
    };
    let with_magic = rusty_zstd::compress_with(source, options).ok()?;
    let frame = with_magic.strip_prefix(&MAGIC)?;
    destination.get_mut(..frame.len())?.copy_from_slice(frame);
    Some(frame.len())
}
