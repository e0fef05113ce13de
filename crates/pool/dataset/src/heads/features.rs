//! Guids of the features that the dataset layer uses.

pub(crate) const ASYNC_DESTROY: &str = "com.delphix:async_destroy";
pub(crate) const BOOKMARKS: &str = "com.delphix:bookmarks";
pub(crate) const BOOKMARK_V2: &str = "com.datto:bookmark_v2";
pub(crate) const BOOKMARK_WRITTEN: &str = "com.delphix:bookmark_written";
pub(crate) const ENCRYPTION: &str = "com.datto:encryption";
pub(crate) const EXTENSIBLE_DATASET: &str = "com.delphix:extensible_dataset";
pub(crate) const FILESYSTEM_LIMITS: &str = "com.joyent:filesystem_limits";
pub(crate) const HEAD_ERRLOG: &str = "com.delphix:head_errlog";
pub(crate) const LIVELIST: &str = "com.delphix:livelist";
pub(crate) const LZ4_COMPRESS: &str = "org.illumos:lz4_compress";
pub(crate) const LARGE_BLOCKS: &str = "org.open-zfs:large_blocks";
pub(crate) const LARGE_DNODE: &str = "org.zfsonlinux:large_dnode";
pub(crate) const LONGNAME: &str = "org.zfsonlinux:longname";
pub(crate) const OBSOLETE_COUNTS: &str = "com.delphix:obsolete_counts";
pub(crate) const PHYSICAL_REWRITE: &str = "com.truenas:physical_rewrite";
pub(crate) const PROJECT_QUOTA: &str = "org.zfsonlinux:project_quota";
pub(crate) const REDACTED_DATASETS: &str = "com.delphix:redacted_datasets";
pub(crate) const REDACTION_BOOKMARKS: &str = "com.delphix:redaction_bookmarks";
pub(crate) const REDACTION_LIST_SPILL: &str = "com.delphix:redaction_list_spill";
pub(crate) const USEROBJ_ACCOUNTING: &str = "org.zfsonlinux:userobj_accounting";
pub(crate) const ZILSAXATTR: &str = "org.openzfs:zilsaxattr";
pub(crate) const ZSTD_COMPRESS: &str = "org.freebsd:zstd_compress";
pub(crate) const SHA512: &str = "org.illumos:sha512";
pub(crate) const SKEIN: &str = "org.illumos:skein";
pub(crate) const EDONR: &str = "org.illumos:edonr";
pub(crate) const BLAKE3: &str = "org.openzfs:blake3";
