//! Dedup and clone tables.

use crate::ordered;
use millpond_ondisk::dedup::{CloneTablePhys, DedupEntry, DedupKey, DedupLogPhys, DedupLogRecords};

pub fn dedup(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    let _ = CloneTablePhys::decode(rest, endian);
    let _ = DedupLogPhys::decode(rest, endian);
    let mut count = 0_usize;
    for record in DedupLogRecords::new(rest, endian) {
        count += 1;
        assert!(count <= rest.len(), "records without end");
        if record.is_err() {
            break;
        }
    }
    let Ok(key) = DedupKey::decode(rest, endian) else {
        return;
    };
    let _ = (key.lsize_bytes(), key.to_words());
    for length in [72, 256] {
        if let Some(body) = rest.get(40..40 + length) {
            let _ = DedupEntry::decode(key, body, endian);
        }
    }
}
