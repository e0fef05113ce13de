//! Names of entries in the ZAPs of directories, datasets and properties.
//!
//! Pages `docs/format/dsl-directory.md` and `docs/format/dsl-dataset.md`.

/// Directory of the space counters of the MOS.
pub const MOS_DIRECTORY: &str = "$MOS";
/// Directory of the empty dataset and snapshot from which every dataset descends (pool version 11).
pub const ORIGIN_DIRECTORY: &str = "$ORIGIN";
/// Directory of the counters of blocks that wait to be freed (pool version 26).
pub const FREE_DIRECTORY: &str = "$FREE";
/// Directory of the counters of blocks that could not be freed.
pub const LEAK_DIRECTORY: &str = "$LEAK";
/// The temporary dataset of a receive into an existing one.
pub const RECEIVE_DATASET: &str = "%recv";
/// The temporary clone of a rollback.
pub const ROLLBACK_DATASET: &str = "%rollback";

/// Whether a dataset name (one component of a path) is internal and hidden from users.
#[must_use]
pub fn is_hidden_name(name: &[u8]) -> bool {
    name.first() == Some(&b'$') || name.contains(&b'%')
}

/// Zapified directory: number of descendant file systems and volumes.
pub const FILESYSTEM_COUNT: &str = "com.joyent:filesystem_count";
/// Zapified directory: number of snapshots of the directory and its descendants.
pub const SNAPSHOT_COUNT: &str = "com.joyent:snapshot_count";
/// Zapified directory: the DSL crypto key object.
pub const CRYPTO_KEY_OBJECT: &str = "com.datto:crypto_key_obj";
/// Zapified directory of a clone: its livelist.
pub const LIVELIST: &str = "com.delphix:livelist";
/// Zapified directory: time of the last change of the set of snapshots, in seconds and nanoseconds (2 words).
pub const SNAPSHOTS_CHANGED: &str = "com.ixsystems:snapshots_changed";

/// Zapified dataset: ZAP of bookmarks.
pub const BOOKMARKS: &str = "com.delphix:bookmarks";
/// Zapified dataset: deadlist of remapped addresses.
pub const REMAP_DEADLIST: &str = "com.delphix:remap_deadlist";
/// Zapified encrypted snapshot: identity of its set of IVs.
pub const IVSET_GUID: &str = "com.datto:ivset_guid";
/// Zapified dataset: marks snapshots from a raw stream (after OpenZFS 2.4). Tolerated.
pub const RAW_RECEIVED: &str = "org.openzfs:raw_received";

/// State of a resumable receive, in a zapified dataset.
pub mod resume {
    /// GUID of the stream's base snapshot.
    pub const FROM_GUID: &str = "com.delphix:resume_fromguid";
    /// GUID of the stream's target snapshot; its presence means that the receive is resumable.
    pub const TO_GUID: &str = "com.delphix:resume_toguid";
    /// Name of the target snapshot.
    pub const TO_NAME: &str = "com.delphix:resume_toname";
    /// The last object received.
    pub const OBJECT: &str = "com.delphix:resume_object";
    /// The offset in that object.
    pub const OFFSET: &str = "com.delphix:resume_offset";
    /// The number of bytes received.
    pub const BYTES: &str = "com.delphix:resume_bytes";
    /// The stream has large blocks.
    pub const LARGE_BLOCK_OK: &str = "com.delphix:resume_largeblockok";
    /// The stream has embedded blocks.
    pub const EMBED_OK: &str = "com.delphix:resume_embedok";
    /// The stream has compressed blocks.
    pub const COMPRESS_OK: &str = "com.delphix:resume_compressok";
    /// The stream is raw.
    pub const RAW_OK: &str = "com.datto:resume_rawok";
    /// Redaction snapshots.
    pub const REDACT_BOOKMARK_SNAPSHOTS: &str = "com.delphix:resume_redact_book_snaps";
}

/// Suffix of a received value in a property ZAP.
pub const PROPERTY_RECEIVED_SUFFIX: &str = "$recvd";
/// Suffix of the entry that masks a received value.
pub const PROPERTY_INHERIT_SUFFIX: &str = "$inherit";
/// Suffix of the entry with a value that older software does not support.
pub const PROPERTY_UNKNOWN_VALUE_SUFFIX: &str = "$iuv";
/// Entry that marks that properties were ever received here.
pub const PROPERTY_HAS_RECEIVED: &str = "$hasrecvd";

/// The master node of a file system (its object 1) and the property object of a volume.
pub mod master_node {
    /// The root directory.
    pub const ROOT: &str = "ROOT";
    /// ZAP of unlinked files that are still to be deleted.
    pub const DELETE_QUEUE: &str = "DELETE_QUEUE";
    /// Version of the file system, 1 to 5.
    pub const VERSION: &str = "VERSION";
    /// The master node of system attributes.
    pub const SYSTEM_ATTRIBUTES: &str = "SA_ATTRS";
    /// 0 none, 0x10 form D, 0x20 form KD, 0x50 form C, 0x60 form KC.
    pub const NORMALIZATION: &str = "normalization";
    /// 0 or 1.
    pub const UTF8_ONLY: &str = "utf8only";
    /// 0 sensitive, 1 insensitive, 2 mixed.
    pub const CASE_SENSITIVITY: &str = "casesensitivity";
    /// Table of foreign identity domains.
    pub const FUID_TABLE: &str = "FUID";
    /// The `.zfs/shares` directory of other platforms.
    pub const SHARES: &str = "SHARES";
    /// ZAPs of quotas of bytes: user, group, project.
    pub const QUOTAS: [&str; 3] = ["userquota@", "groupquota@", "projectquota@"];
    /// ZAPs of quotas of objects: user, group, project.
    pub const OBJECT_QUOTAS: [&str; 3] = ["userobjquota@", "groupobjquota@", "projectobjquota@"];
    /// Default quotas of bytes, as plain integers (OpenZFS 2.4): user, group, project.
    pub const DEFAULT_QUOTAS: [&str; 3] = [
        "defaultuserquota",
        "defaultgroupquota",
        "defaultprojectquota",
    ];
    /// Default quotas of objects, as plain integers (OpenZFS 2.4): user, group, project.
    pub const DEFAULT_OBJECT_QUOTAS: [&str; 3] = [
        "defaultuserobjquota",
        "defaultgroupobjquota",
        "defaultprojectobjquota",
    ];
    /// The index of a default quota (0 user, 1 group, 2 project), and whether it counts objects; `None` for
    /// other names.
    #[must_use]
    pub fn default_quota(name: &str) -> Option<(usize, bool)> {
        let at = |names: &[&str; 3]| names.iter().position(|known| *known == name);
        let bytes = at(&DEFAULT_QUOTAS).map(|owner| (owner, false));
        bytes.or_else(|| at(&DEFAULT_OBJECT_QUOTAS).map(|owner| (owner, true)))
    }
    /// In the property object (object 2) of a volume: its size in bytes.
    pub const VOLUME_SIZE: &str = "size";
}
