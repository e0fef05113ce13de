//! Compressed blocks.

use millpond_compress::{ZstdHeader, decompress as decompress_block};
use millpond_ondisk::CompressionKind;

pub fn decompress(data: &[u8]) {
    let Some(([function, size], rest)) = data.split_first_chunk::<2>() else {
        return;
    };
    let Some(kind) = CompressionKind::from_number(function % 20) else {
        return;
    };
    // From 512 bytes to 128 KiB, like logical block sizes.
    let mut destination = vec![0; (usize::from(*size) + 1) * 512];
    let _ = decompress_block(kind, rest, &mut destination);
}

/// The header before zstd frames.
pub fn zstd_header(data: &[u8]) {
    if let Ok(header) = ZstdHeader::decode(data) {
        let _ = format!("{header:?}");
    }
    for size in [512, 4096, 1 << 17] {
        let _ = decompress_block(CompressionKind::Zstd, data, &mut vec![0; size]);
    }
}
