//! File attributes, access control lists, intent log records.

use crate::ordered;
use millpond_ondisk::acl::{decode_acl, decode_old_acl};
use millpond_ondisk::intent_log::LogRecordFrames;
use millpond_ondisk::sa::{SaHeader, SaRegistration};
use millpond_ondisk::znode::ZnodePhys;
use millpond_posix::PosixAcl;

pub fn znode(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    let _ = SaHeader::decode(rest);
    if let Ok(znode) = ZnodePhys::decode(rest, endian) {
        let _ = (znode.scanstamp(), znode.encode());
    }
    let count = u64::from(rest.first().copied().unwrap_or(0));
    for count in [count, u64::MAX] {
        if let Ok(entries) = decode_acl(rest, endian, count) {
            assert!(entries.len() <= rest.len());
        }
        if let Ok(entries) = decode_old_acl(rest, endian, count) {
            assert!(entries.len() <= rest.len());
        }
    }
}

pub fn intent_log_records(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    let mut used = 0_usize;
    for frame in LogRecordFrames::new(rest, endian) {
        let Ok(frame) = frame else { return };
        used += frame.bytes.len();
        assert!(!frame.bytes.is_empty() && used <= rest.len());
        if let Ok(record) = frame.decode() {
            let _ = format!("{record:?}");
            let _ = record.encode();
        }
    }
}

/// System attributes: the number of registrations, the registrations (length and number), then the buffer.
pub fn system_attributes(data: &[u8]) {
    let Some((count, rest)) = data.split_first() else {
        return;
    };
    let count = usize::from(count % 32).min(rest.len() / 3);
    let (head, buffer) = rest.split_at(count * 3);
    let layout: Vec<SaRegistration> = head
        .as_chunks::<3>()
        .0
        .iter()
        .filter_map(|[length, number, byteswap]| {
            let word =
                u64::from(*length) << 24 | u64::from(*number) | u64::from(byteswap & 7) << 16;
            SaRegistration::from_word(word).ok()
        })
        .collect();
    if let Ok(header) = SaHeader::decode(buffer)
        && let Ok(fields) = header.fields(buffer, &layout)
    {
        assert_eq!(fields.len(), layout.len());
        for field in fields {
            assert!(field.start <= field.end && field.end <= buffer.len());
        }
    }
}

/// The value of a POSIX ACL attribute, from a pool or from a program.
pub fn posix_acl(data: &[u8]) {
    let Ok(Some(list)) = PosixAcl::decode(data) else {
        return;
    };
    assert!(list.entries().len() * 8 + 4 == data.len());
    assert_eq!(PosixAcl::decode(&list.encode()), Ok(Some(list.clone())));
    // A valid ACL stays valid when its entries are sorted again.
    assert!(PosixAcl::new(list.entries().to_vec()).is_some());
}
