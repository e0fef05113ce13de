//! Structures of the crate `ondisk`.

use crate::{ordered, words};
use millpond_ondisk::dsl;
use millpond_ondisk::intent_log::{IntentLogBlock, IntentLogBlockForm};
use millpond_ondisk::l2arc::{CacheLogBlock, DeviceHeader};
use millpond_ondisk::{
    BlockPointer, BookmarkPhys, BpObjectEntries, BpObjectPhys, BpTreeEntry, BpTreePhys,
    CondensingIndirectPhys, DeadlistPhys, Dnode, DslDatasetPhys, DslDirectoryPhys, Endian,
    ErrorScrubPhys, GangHeader, HistoryPhys, HistoryRecords, IndirectBirthEntry,
    IndirectBirthsPhys, IndirectMappingEntry, IndirectMappingPhys, IntentLogHeader, ObjectSetPhys,
    RebuildPhys, RedactionEntry, RedactionListPhys, ScanPhys, SpaceMapEntries, SpaceMapPhys,
    TxgTimes,
};

/// Calls all functions of a block pointer.
fn ask(pointer: &BlockPointer) {
    let _ = pointer.validate();
    let _ = (
        pointer.lsize_bytes(),
        pointer.psize_bytes(),
        pointer.asize_bytes(),
        pointer.fill(),
    );
    let _ = (
        pointer.compression(),
        pointer.checksum_kind(),
        pointer.content_byteswap(),
    );
    let _ = (
        pointer.crypt_salt(),
        pointer.crypt_iv(),
        pointer.crypt_mac(),
    );
    let _ = (pointer.birth(), pointer.physical_birth(), pointer.is_gang());
    if let Some(payload) = pointer.embedded_payload() {
        assert!(payload.as_bytes().len() <= 112);
    }
    assert!(pointer.dvas().count() <= 3);
    let _ = format!("{pointer:?}");
}

pub fn block_pointer(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    let Ok(pointer) = BlockPointer::decode(rest, endian) else {
        return;
    };
    ask(&pointer);
    let again = BlockPointer::decode(&pointer.encode(), Endian::Little);
    assert_eq!(again.ok(), Some(pointer));
}

pub fn dnode(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    let _ = Dnode::slot_count(rest);
    let Ok(Some(dnode)) = Dnode::decode(rest, endian) else {
        return;
    };
    let _ = (
        dnode.addressable_blocks(),
        dnode.indirect_block_bytes(),
        dnode.used_bytes(),
    );
    if let Ok(bytes) = dnode.encode() {
        // Encoding always uses little-endian, for either byte order of the input.
        let expected = Dnode {
            endian: Endian::Little,
            ..dnode
        };
        assert_eq!(Dnode::decode(&bytes, Endian::Little), Ok(Some(expected)));
    }
}

pub fn object_set(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    let _ = ObjectSetPhys::decode(rest, endian);
    let _ = IntentLogHeader::decode(rest, endian);
}

pub fn gang_header(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    let Ok(header) = GangHeader::decode(rest, endian) else {
        return;
    };
    header.children().for_each(ask);
    for pointer in header.children() {
        let _ = GangHeader::verifier(pointer);
    }
    let _ = header.encode(rest.len());
}

/// The header of a cache device. What is decoded survives being encoded.
pub fn cache_device_header(data: &[u8]) {
    let Ok(header) = DeviceHeader::decode(data) else {
        return;
    };
    let again = header.encode(512).map(|bytes| DeviceHeader::decode(&bytes));
    assert_eq!(again, Some(Ok(header)));
}

/// The number of entries, and a log block of a cache device.
pub fn cache_log_block(data: &[u8]) {
    let Some((count, rest)) = data.split_first_chunk::<2>() else {
        return;
    };
    let Ok(block) = CacheLogBlock::decode(rest, u16::from_le_bytes(*count).into()) else {
        return;
    };
    for entry in &block.entries {
        let _ = entry.fields();
    }
    let count = block.entries.len() as u64;
    assert_eq!(CacheLogBlock::decode(&block.encode(), count), Ok(block));
}

pub fn space_map(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    let _ = SpaceMapPhys::decode(rest, endian);
    let mut entries = SpaceMapEntries::new(rest, endian);
    let mut count = 0_usize;
    while entries.next().is_some() {
        count += 1;
        assert!(count <= rest.len().div_ceil(8), "more entries than words");
    }
}

pub fn dsl(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    if let Ok(dataset) = DslDatasetPhys::decode(rest, endian) {
        let _ = (dataset.is_snapshot(), dataset.clones_count());
        let _ = DslDatasetPhys::decode(&dataset.encode(), Endian::Little);
    }
    if let Ok(directory) = DslDirectoryPhys::decode(rest, endian) {
        let _ = directory.breakdown();
        assert_eq!(
            DslDirectoryPhys::decode(&directory.encode(), Endian::Little),
            Ok(directory)
        );
    }
    let _ = BookmarkPhys::from_words(&words(rest));
    let _ = millpond_ondisk::dsl::PermissionKey::parse(rest);
    let _ = millpond_ondisk::dsl::hex_key_number(rest);
}

pub fn block_list(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    let _ = BpObjectPhys::decode(rest, endian);
    let _ = BpTreePhys::decode(rest, endian);
    let _ = BpTreeEntry::decode(rest, endian);
    let _ = DeadlistPhys::decode(rest, endian);
    for entry in BpObjectEntries::new(rest, endian) {
        ask(&entry.pointer);
        let _ = entry.encode();
    }
    let _ = RedactionListPhys::decode(rest, endian);
    let _ = RedactionEntry::decode(rest, endian);
}

pub fn removal(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    let _ = IndirectMappingPhys::decode(rest, endian);
    let _ = IndirectMappingEntry::decode(rest, endian);
    let _ = IndirectBirthsPhys::decode(rest, endian);
    let _ = IndirectBirthEntry::decode(rest, endian);
    let _ = CondensingIndirectPhys::from_words(&words(rest));
    let _ = millpond_ondisk::RemovalPhys::from_words(&words(rest));
}

pub fn scan(data: &[u8]) {
    let words = words(data);
    if let Ok(scan) = ScanPhys::from_words(&words) {
        let _ = (scan.is_paused(), scan.issued_bytes());
        assert_eq!(ScanPhys::from_words(&scan.to_words()), Ok(scan));
    }
    let _ = ErrorScrubPhys::from_words(&words);
    if let Ok(rebuild) = RebuildPhys::from_words(&words) {
        assert_eq!(RebuildPhys::from_words(&rebuild.to_words()), Ok(rebuild));
    }
    if let Ok(times) = TxgTimes::from_words(&words) {
        let _ = (times.last_until(7), times.first_from(7));
    }
    let _ = millpond_ondisk::parse_error_log_bookmark(data);
    let _ = millpond_ondisk::ErrorLogEntry::parse(data);
}

pub fn history(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    if let Ok(history) = HistoryPhys::decode(rest, endian) {
        assert!(history.ranges().len() <= 3);
    }
    let mut total = 0_usize;
    for record in HistoryRecords::new(rest).flatten() {
        total += record.len();
    }
    assert!(total <= rest.len());
}

pub fn intent_log_block(data: &[u8]) {
    let Some((_, rest)) = ordered(data) else {
        return;
    };
    let form = match data.first().map(|first| first >> 1 & 1) {
        Some(0) => IntentLogBlockForm::Slim,
        _ => IntentLogBlockForm::Old,
    };
    let Ok(block) = IntentLogBlock::parse(rest, form) else {
        return;
    };
    assert!(block.records.len() <= rest.len() && block.covered.len() <= rest.len());
    let _ = block.continues(&block.header.next);
}

/// ZAP keys: of error logs, of permissions, of number sets.
pub fn keys(data: &[u8]) {
    if let Some(entry) = millpond_ondisk::ErrorLogEntry::parse(data) {
        let again = millpond_ondisk::ErrorLogEntry::parse(entry.key().as_bytes());
        assert_eq!(again, Some(entry));
    }
    if let Some(bookmark) = millpond_ondisk::parse_error_log_bookmark(data) {
        let key = millpond_ondisk::error_log_bookmark_key(&bookmark);
        let again = millpond_ondisk::parse_error_log_bookmark(key.as_bytes());
        assert_eq!(again, Some(bookmark));
    }
    let _ = format!("{:?}", dsl::PermissionKey::parse(data));
    let _ = dsl::keys::is_hidden_name(data);
}
