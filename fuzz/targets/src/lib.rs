//! Fuzz targets: one function for each decoder of bytes from untrusted sources.
//!
//! A target must survive any input: no panic, no hang, no memory beyond the stated limits. If a structure
//! can be encoded, decoding the result must give the same structure. [`TARGETS`] is the only registry: the
//! fuzzer, the replay of saved inputs and the smoke test all use it. `fuzz/README.md` describes how to add
//! a target.
#![forbid(unsafe_code)]

mod checksum;
mod command_line;
mod compress;
mod crypt;
mod dedup;
mod file;
mod fuse;
mod label;
mod lua;
mod metrics;
mod nvlist;
mod ondisk;
mod pool;
mod receive;
mod rpc;
mod stored;
mod stream;
mod vdev;
mod zap;
mod zap_change;

/// A target's name (also of its directories in `fuzz/corpus` and `fuzz/crashes`) and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets, sorted by name.
pub const TARGETS: &[Target] = &[
    ("block_list", ondisk::block_list),
    ("block_pointer", ondisk::block_pointer),
    ("boot_environment", label::boot_environment),
    ("cache_device_header", ondisk::cache_device_header),
    ("cache_file", pool::cache_file),
    ("cache_log_block", ondisk::cache_log_block),
    ("checksum_trailer", label::checksum_trailer),
    ("checksums", checksum::checksums),
    ("command_line", command_line::command_line),
    ("crypt_key", crypt::crypt_key),
    ("dataset_name", command_line::dataset_name),
    ("decompress", compress::decompress),
    ("dedup", dedup::dedup),
    ("dnode", ondisk::dnode),
    ("dsl", ondisk::dsl),
    ("encrypted_block", crypt::encrypted_block),
    ("fuse_request", fuse::request),
    ("fuse_slot", fuse::slot),
    ("gang_header", ondisk::gang_header),
    ("gpt", label::gpt),
    ("history", ondisk::history),
    ("indirect_mapping", vdev::indirect_mapping),
    ("intent_log_block", ondisk::intent_log_block),
    ("intent_log_records", file::intent_log_records),
    ("keys", ondisk::keys),
    ("label_config", pool::label_config),
    ("lua", lua::program),
    ("metrics_request", metrics::request),
    ("name_normalisation", zap::normalisation),
    ("nvlist", nvlist::nvlist),
    ("object_set", ondisk::object_set),
    ("parity", checksum::parity),
    ("posix_acl", file::posix_acl),
    ("received_records", receive::received_records),
    ("removal", ondisk::removal),
    ("rpc", rpc::rpc),
    ("scan", ondisk::scan),
    ("send_stream", stream::send_stream),
    ("space_map", ondisk::space_map),
    ("stored_index", stored::index),
    ("system_attributes", file::system_attributes),
    ("uberblock", label::uberblock),
    ("vdev_tree", nvlist::vdev_tree),
    ("zap", zap::zap),
    ("zap_change", zap_change::zap_change),
    ("zap_header", zap::header),
    ("zap_leaf", zap::leaf),
    ("zap_micro", zap::micro),
    ("znode", file::znode),
    ("zstd_header", compress::zstd_header),
];

/// Finds the target with this name.
pub fn find(name: &str) -> Option<fn(&[u8])> {
    TARGETS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, target)| *target)
}

/// Takes the byte order from the first byte, so that the fuzzer explores both.
fn ordered(data: &[u8]) -> Option<(millpond_ondisk::Endian, &[u8])> {
    let (first, rest) = data.split_first()?;
    let endian = match first & 1 {
        0 => millpond_ondisk::Endian::Little,
        _ => millpond_ondisk::Endian::Big,
    };
    Some((endian, rest))
}

/// 64-bit words of the input, the form in which structures are stored in ZAP entries.
fn words(data: &[u8]) -> Vec<u64> {
    data.as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word))
        .collect()
}
