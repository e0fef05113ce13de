//! Values of attributes as they are handed to the writer: little-endian.

use crate::Timestamp;
use millpond_ondisk::Writer;

/// A number's eight bytes.
#[must_use]
pub fn word(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

/// A time's sixteen bytes: seconds, then nanoseconds.
#[must_use]
pub fn time(value: Timestamp) -> Vec<u8> {
    let mut writer = Writer::default();
    value.encode(&mut writer);
    writer.finish()
}
