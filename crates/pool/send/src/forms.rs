//! What records of blocks say of them.

use crate::output::Output;
use millpond_ondisk::{BlockPointer, ChecksumKind, CompressionKind, Endian, ObjectId};
use millpond_stream::{Record, RecordFlags, StreamFeatures, Write, WriteEmbedded};

/// Whether the reader of the stream takes an embedded block as it is.
pub(crate) fn takes_embedded(output: &Output<'_>, pointer: &BlockPointer) -> bool {
    let features = output.features;
    let is_known = match pointer.compression() {
        Some(CompressionKind::Lz4) => features.contains(StreamFeatures::LZ4),
        Some(CompressionKind::Zstd) => features.contains(StreamFeatures::ZSTD),
        Some(_) => true,
        None => false,
    };
    features.contains(StreamFeatures::EMBEDDED) && is_known
}

pub(crate) fn embedded(
    output: &mut Output<'_>,
    id: ObjectId,
    offset: u64,
    length: u64,
    pointer: &BlockPointer,
) {
    let Some(stored) = pointer.embedded_payload() else {
        return;
    };
    let mut payload = stored.as_bytes().to_vec();
    let record = WriteEmbedded {
        object: id.0,
        offset,
        length,
        to_guid: output.to_guid,
        compression: pointer.compression().map_or(0, |kind| kind.number()),
        kind: 0,
        logical_bytes: u32::try_from(pointer.lsize_bytes()).unwrap_or(u32::MAX),
        stored_bytes: u32::try_from(payload.len()).unwrap_or(u32::MAX),
    };
    payload.resize(payload.len().next_multiple_of(8), 0);
    output.record(Record::WriteEmbedded(record), payload);
}

/// What the pointer says of the block. Readers ignore it, but OpenZFS sends it.
pub(crate) fn with_key(write: Write, pointer: &BlockPointer) -> Write {
    let checksum = pointer.checksum_kind().unwrap_or(ChecksumKind::Off);
    let is_strong = matches!(
        checksum,
        ChecksumKind::Sha256
            | ChecksumKind::Sha512
            | ChecksumKind::Skein
            | ChecksumKind::Edonr
            | ChecksumKind::Blake3
    );
    let sectors = |bytes: u64| (bytes / 512).saturating_sub(1) & 0xffff;
    let compression = pointer.compression().map_or(0, |kind| kind.number().into());
    Write {
        checksum: checksum as u8,
        flags: if is_strong {
            RecordFlags::DEDUP_CHECKSUM
        } else {
            0
        },
        key: pointer.checksum_words(),
        key_properties: sectors(pointer.lsize_bytes())
            | sectors(pointer.psize_bytes()) << 16
            | compression << 32,
        ..write
    }
}

/// A block as it is stored, with what its reader needs to store it so.
pub(crate) fn raw_write(write: Write, pointer: &BlockPointer) -> Write {
    let write = with_key(write, pointer);
    Write {
        flags: write.flags | byte_swap_flag(pointer),
        compression: pointer.compression().map_or(0, |kind| kind.number()),
        compressed_bytes: pointer.psize_bytes(),
        salt: salt_of(pointer),
        iv: iv_of(pointer),
        mac: pointer.crypt_mac(),
        key_properties: write.key_properties | 1 << 39,
        ..write
    }
}

/// Blocks that are only authenticated have an address in place of the salt.
pub(crate) fn salt_of(pointer: &BlockPointer) -> [u8; 8] {
    match pointer.is_encrypted() {
        true => pointer.crypt_salt(),
        false => [0; 8],
    }
}
pub(crate) fn iv_of(pointer: &BlockPointer) -> [u8; 12] {
    match pointer.is_encrypted() {
        true => pointer.crypt_iv(),
        false => [0; 12],
    }
}

/// Whether a block was written in another byte order than the stream's, as a flag.
pub(crate) fn byte_swap_flag(pointer: &BlockPointer) -> u8 {
    match pointer.endian() {
        Endian::Little => 0,
        Endian::Big => RecordFlags::RAW_BYTE_SWAP,
    }
}
