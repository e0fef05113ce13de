//! Attribute values as the writer expects them: little-endian.

use crate::Timestamp;
use millpond_ondisk::Writer;

/// The eight bytes of an integer.
#[must_use]
pub fn word(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

/// The sixteen bytes of a time: seconds, then nanoseconds.
#[must_use]
pub fn time(value: Timestamp) -> Vec<u8> {
    let mut writer = Writer::default();
    value.encode(&mut writer);
    writer.finish()
}
