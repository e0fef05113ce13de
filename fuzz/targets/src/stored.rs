//! The index of stored streams.

use millpond_nvlist::{NvList, NvValue};
use millpond_stored::{StoredOptions, StoredStreams};
use sha2::{Digest, Sha256};
use std::path::PathBuf;

/// The stream that the indexes are of. It is no stream, so one that does not fit ends with an error at once.
const STREAM: [u8; 5000] = [7; 5000];
const ENDS_BYTES: usize = 4096;
const EXTENT_BYTES: usize = 32;
/// The largest table of ranges, to leave something for kept bytes.
const EXTENTS_MAX: usize = 64;

/// An index is opened or refused. What it leads to is read as a pool, which it hardly ever is.
///
/// The first byte decides: the rest is a whole index, or the ranges and kept bytes of one whose other parts are right.
pub fn index(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (stream, index) = (folder.path().join("stream"), folder.path().join("index"));
    std::fs::write(&stream, STREAM).expect("a stream");
    let bytes = match first & 1 {
        0 => rest.to_vec(),
        _ => sealed(rest, &stream),
    };
    std::fs::write(&index, bytes).expect("an index");
    let options = StoredOptions {
        index: Some(index),
        temporary_folder: folder.path().to_owned(),
        ..StoredOptions::default()
    };
    assert!(StoredStreams::open(&[stream], &options).is_err());
}

/// An index with these ranges, then kept bytes, whose digest is right.
fn sealed(data: &[u8], stream: &std::path::Path) -> Vec<u8> {
    let count = (data.len() / EXTENT_BYTES).min(EXTENTS_MAX);
    let (table, kept) = data.split_at(count * EXTENT_BYTES);
    let list = list(stream.to_owned()).encode_xdr().expect("a list");
    let mut bytes = b"mpstrmix".to_vec();
    for number in [1, list.len(), count, kept.len()] {
        bytes.extend_from_slice(&(number as u64).to_le_bytes());
    }
    bytes.extend_from_slice(&list);
    bytes.extend_from_slice(table);
    let digest = Sha256::digest(&bytes);
    bytes.extend_from_slice(&digest);
    bytes.extend_from_slice(kept);
    bytes
}

fn list(path: PathBuf) -> NvList {
    let mut ends = Sha256::new();
    ends.update(&STREAM[..ENDS_BYTES]);
    ends.update(&STREAM[STREAM.len() - ENDS_BYTES..]);
    let mut one = NvList::new();
    one.insert("file", 0u64);
    one.insert("path", path.to_string_lossy().into_owned());
    one.insert("length", STREAM.len() as u64);
    one.insert("digest", NvValue::Uint8Array(ends.finalize().to_vec()));
    one.insert("dataset", "tank");
    one.insert("snapshots", NvValue::StringArray(vec!["tank@s".into()]));
    let mut list = NvList::new();
    list.insert("streams", NvValue::ListArray(vec![one]));
    list
}
