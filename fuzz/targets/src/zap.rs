//! Blocks of ZAPs.

use crate::ordered;
use millpond_ondisk::zap::{MicroZap, ZapHeader, ZapLeaf};

pub fn header(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    let Ok(header) = ZapHeader::decode(rest, endian) else {
        return;
    };
    let hashing = header.hashing();
    let _ = (hashing.name(b"name"), hashing.cd_limit());
    let _ = header.table_location(u64::MAX);
}

pub fn leaf(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    let Ok(leaf) = ZapLeaf::decode(rest, endian) else {
        return;
    };
    let _ = (leaf.first_hash(), leaf.next_hash(), leaf.count_free());
    let mut count = 0_usize;
    for entry in leaf.entries() {
        count += 1;
        // Good entries of other buckets, then a chain that loops until its own limit.
        assert!(
            count <= usize::from(leaf.chunk_count()) * 2 + 1,
            "entries without end"
        );
        let Ok(entry) = entry else { break };
        let _ = (leaf.name(&entry), leaf.words(&entry), leaf.value(&entry));
    }
}

pub fn micro(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    let Ok(zap) = MicroZap::decode(rest, endian) else {
        return;
    };
    assert!(zap.entries().count() <= zap.slots());
    let _ = zap.entry(usize::MAX);
}
