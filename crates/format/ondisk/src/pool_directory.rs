//! Names in the pool's object directory (object 1 of the MOS) and in the ZAPs of vdevs.
//!
//! Pages `docs/format/pool-directory.md` and `docs/format/vdev-zap.md`. Readers ignore unknown names: the
//! feature lists decide whether a pool can be read.

use crate::{ChecksumKind, DecodeError, ObjectId, Uberblock, VdevId, Writer};

/// The object id of the object directory.
pub const OBJECT_DIRECTORY: ObjectId = ObjectId(1);

/// Names of entries in the object directory. Values are object ids unless stated otherwise.
pub mod key {
    /// DSL directory of the pool's root.
    pub const ROOT_DATASET: &str = "root_dataset";
    /// Packed list: the pool's configuration.
    pub const CONFIG: &str = "config";
    /// Block list: frees deferred from an earlier txg.
    pub const SYNC_BPLIST: &str = "sync_bplist";
    /// Number: the pool version at creation.
    pub const CREATION_VERSION: &str = "creation_version";
    /// Number 1: space is accounted with the deflate ratio.
    pub const DEFLATE: &str = "deflate";
    /// The command history.
    pub const HISTORY: &str = "history";
    /// ZAP of pool properties.
    pub const POOL_PROPERTIES: &str = "pool_props";
    /// Packed list of spares.
    pub const SPARES: &str = "spares";
    /// Packed list of cache devices.
    pub const L2CACHE: &str = "l2cache";
    /// Block list: blocks to be freed in the background.
    pub const FREE_BPOBJ: &str = "free_bpobj";
    /// Queue of block trees of destroyed datasets.
    pub const BPTREE: &str = "bptree_obj";
    /// The shared empty block list.
    pub const EMPTY_BPOBJ: &str = "empty_bpobj";
    /// ZAP of temporary holds.
    pub const TEMPORARY_HOLDS: &str = "tmp_userrefs";
    /// Error log of the last scrub and of ordinary reads; 0 for none.
    pub const ERROR_LOG_LAST: &str = "errlog_last";
    /// Error log of the running scrub; 0 for none.
    pub const ERROR_LOG_SCRUB: &str = "errlog_scrub";
    /// ZAP: feature to count, for the features that readers must support.
    pub const FEATURES_FOR_READ: &str = "features_for_read";
    /// ZAP: feature to count, for the features that only writers must support.
    pub const FEATURES_FOR_WRITE: &str = "features_for_write";
    /// ZAP: feature to text.
    pub const FEATURE_DESCRIPTIONS: &str = "feature_descriptions";
    /// ZAP: feature to the txg in which it was enabled.
    pub const FEATURE_ENABLED_TXG: &str = "feature_enabled_txg";
    /// 32 one-byte integers: salt of the keyed checksums.
    pub const CHECKSUM_SALT: &str = "org.illumos:checksum_salt";
    /// ZAP of all vdevs' ZAPs.
    pub const VDEV_ZAP_MAP: &str = "com.delphix:vdev_zap_map";
    /// 24 words: state of scrub or resilver.
    pub const SCAN: &str = "scan";
    /// 9 words: state of the error scrub.
    pub const ERROR_SCRUB: &str = "error_scrub";
    /// Number: the highest txg that a completed scrub covered.
    pub const LAST_SCRUBBED_TXG: &str = "last_scrubbed_txg";
    /// ZAP: txg to log space map.
    pub const LOG_SPACE_MAP_ZAP: &str = "com.delphix:log_spacemap_zap";
    /// ZAP: livelists that wait for deletion.
    pub const DELETED_CLONES: &str = "com.delphix:deleted_clones";
    /// 26 or 27 words: the uberblock of the checkpoint.
    pub const CHECKPOINT: &str = "com.delphix:zpool_checkpoint";
    /// 7 words: state of device removal.
    pub const REMOVING: &str = "com.delphix:removing";
    /// Block list: obsolete addresses.
    pub const OBSOLETE_BPOBJ: &str = "com.delphix:obsolete_bpobj";
    /// 3 words: state of condensing an indirect mapping.
    pub const CONDENSING_INDIRECT: &str = "com.delphix:condensing_indirect";
    /// ZAP: statistics of the dedup tables.
    pub const DEDUP_STATISTICS: &str = "DDT-statistics";
    /// 515 words each: times of txgs (OpenZFS 2.4).
    pub const TXG_LOG_TIMES: [&str; 3] = [
        "com.klarasystems:txg_log_time:minutes",
        "com.klarasystems:txg_log_time:days",
        "com.klarasystems:txg_log_time:months",
    ];
    /// State of a scrub in pool versions 11 to 24; a new scan replaces it.
    pub const OLD_SCRUB: [&str; 8] = [
        "scrub_func",
        "scrub_queue",
        "scrub_min_txg",
        "scrub_max_txg",
        "scrub_bookmark",
        "scrub_ddt_bookmark",
        "scrub_ddt_class_max",
        "scrub_errors",
    ];
    /// In the configuration object: GUIDs of active features that are required to read the MOS.
    pub const CONFIG_FEATURES_FOR_READ: &str = "features_for_read";
}

/// Names of entries in the ZAPs of vdevs.
pub mod vdev_key {
    /// Top-level: string `log`, `special` or `dedup`.
    pub const ALLOCATION_BIAS: &str = "org.zfsonlinux:allocation_bias";
    /// Top-level: array with one word per metaslab, its unflushed txg.
    pub const UNFLUSHED_TXGS: &str = "com.delphix:ms_unflushed_phys_txgs";
    /// Top-level: space map of ranges that a checkpoint keeps allocated.
    pub const CHECKPOINT_SPACE_MAP: &str = "com.delphix:pool_checkpoint_sm";
    /// Top-level: space map of obsolete ranges of a removed vdev.
    pub const OBSOLETE_SPACE_MAP: &str = "com.delphix:indirect_obsolete_sm";
    /// Top-level: number 1 if the counts of obsolete bytes are exact.
    pub const OBSOLETE_COUNTS_ARE_PRECISE: &str = "com.delphix:obsolete_counts_are_precise";
    /// Top-level: state of sequential reconstruction.
    pub const REBUILD: &str = "org.openzfs:vdev_rebuild";
    /// Leaf: 0 none, 1 active, 2 cancelled, 3 suspended, 4 complete.
    pub const INITIALIZE_STATE: &str = "com.delphix:vdev_initialize_state";
    /// Leaf: byte offset of the progress.
    pub const INITIALIZE_OFFSET: &str = "com.delphix:next_offset_to_initialize";
    /// Leaf: time of the last state change in seconds.
    pub const INITIALIZE_ACTION_TIME: &str = "com.delphix:vdev_initialize_action_time";
    /// Leaf: values as for [`INITIALIZE_STATE`].
    pub const TRIM_STATE: &str = "org.zfsonlinux:vdev_trim_state";
    /// Leaf: byte offset of the progress.
    pub const TRIM_OFFSET: &str = "org.zfsonlinux:next_offset_to_trim";
    /// Leaf: time of the last state change in seconds.
    pub const TRIM_ACTION_TIME: &str = "org.zfsonlinux:vdev_trim_action_time";
    /// Leaf: requested rate.
    pub const TRIM_RATE: &str = "org.zfsonlinux:vdev_trim_rate";
    /// Leaf: whether only some metaslabs are trimmed.
    pub const TRIM_PARTIAL: &str = "org.zfsonlinux:vdev_trim_partial";
    /// Leaf: whether discards are secure.
    pub const TRIM_SECURE: &str = "org.zfsonlinux:vdev_trim_secure";
}

/// The entry of a dedup table's ZAP, which is also the key of its statistics.
///
/// A legacy table has it in the object directory, a fast table in its own directory. `class` is `ditto`,
/// `duplicate` or `unique`.
#[must_use]
pub fn dedup_table_key(checksum: ChecksumKind, class: &str) -> String {
    format!("DDT-{}-zap-{class}", checksum.name())
}

/// The entry of a fast dedup table's directory.
#[must_use]
pub fn dedup_directory_key(checksum: ChecksumKind) -> String {
    format!("DDT-{}", checksum.name())
}

/// The entry of a fast dedup table's log 0 or 1, in its directory.
#[must_use]
pub fn dedup_log_key(checksum: ChecksumKind, log: u8) -> String {
    format!("DDT-log-{}-{log}", checksum.name())
}

/// The entry of the clone table of a top-level vdev.
#[must_use]
pub fn clone_table_key(vdev: VdevId) -> String {
    format!("com.fudosecurity:brt:vdev:{vdev}")
}

/// The words that [`key::CHECKPOINT`] stores for an uberblock: 27 of them.
#[must_use]
pub fn checkpoint_words(uberblock: &Uberblock) -> Vec<u64> {
    let bytes = uberblock.encode();
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// The uberblock of a checkpoint as 1 KiB of little-endian bytes, for an uberblock decoder.
///
/// [`key::CHECKPOINT`] stores it as 26 or 27 words. Page `docs/format/checkpoint.md`.
///
/// # Errors
/// If there are fewer than 26 words, or more than fit 1 KiB.
pub fn checkpoint_uberblock(words: &[u64]) -> Result<Vec<u8>, DecodeError> {
    if !(26..=128).contains(&words.len()) {
        return Err(DecodeError::new("checkpoint", "not 26 to 128 words", 0));
    }
    let mut writer = Writer::with_capacity(1024);
    writer.put_words(words);
    writer.pad_to(1024);
    Ok(writer.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tables_follow_checksum_class_and_vdev() {
        assert_eq!(
            dedup_table_key(ChecksumKind::Sha256, "duplicate"),
            "DDT-sha256-zap-duplicate"
        );
        assert_eq!(dedup_directory_key(ChecksumKind::Blake3), "DDT-blake3");
        assert_eq!(dedup_log_key(ChecksumKind::Sha256, 0), "DDT-log-sha256-0");
        assert_eq!(clone_table_key(VdevId(12)), "com.fudosecurity:brt:vdev:12");
    }

    #[test]
    fn a_checkpoint_is_the_bytes_of_its_uberblock() {
        let mut words = vec![0u64; 27];
        words[0] = 0x00ba_b10c;
        let bytes = checkpoint_uberblock(&words).unwrap();
        assert_eq!(bytes.len(), 1024);
        assert_eq!(bytes[..4], [0x0c, 0xb1, 0xba, 0]);
        assert!(checkpoint_uberblock(&words[..25]).is_err());
        assert!(checkpoint_uberblock(&[0; 129]).is_err());
    }
}
