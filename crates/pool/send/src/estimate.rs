//! The length of a stream, before it is written.

/// The estimate that OpenZFS prints, in bytes. `referenced` are the bytes of the blocks that are sent: as they are
/// stored if they are sent so, otherwise uncompressed. `uncompressed` are their bytes uncompressed, `block_bytes` is the
/// record size of the dataset or the block size of the volume.
#[must_use]
pub fn estimated_bytes(referenced: u64, uncompressed: u64, block_bytes: u64) -> u64 {
    const POINTER_BYTES: u64 = 128;
    const HEADER_BYTES: u64 = 312;
    let records = uncompressed.checked_div(block_bytes).unwrap_or(0);
    referenced
        .saturating_sub(records.saturating_mul(POINTER_BYTES))
        .saturating_add(records.saturating_mul(HEADER_BYTES))
        .saturating_add(2 * HEADER_BYTES)
}
