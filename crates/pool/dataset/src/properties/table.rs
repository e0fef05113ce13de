//! The properties of file systems, volumes, snapshots and bookmarks.
//!
//! Properties without a fixed name (`userquota@W`, `written@SNAP`, user properties) follow them in output;
//! see [`crate::properties::by_name`].
#![allow(non_upper_case_globals)] // Listed, Hidden and the sets of kinds read as words of the table

use crate::properties::kind::{DatasetKind, Kinds};
use Edit::{Inheritable, Once, OnceByKey, ReadOnly, Settable};
use Form::{Number, Text, Words};
use NumberForm::{Bytes, BytesOrNone, Count, CountOrNone, Date, DateSeconds, Digits, Ratio};
use Release::{V2_3, V2_4};
use millpond_pool::properties::{Edit, Form, NumberForm, Preset, Release, Shape, WordTable};

/// A property of datasets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatasetProperty {
    /// Name, type and default.
    pub shape: Shape,
    /// The kinds of datasets that have it.
    pub kinds: Kinds,
    /// The first OpenZFS release that has it.
    pub since: Release,
}

/// Every property in the order of its number, which is the order of `get all`.
#[rustfmt::skip]
pub const DATASET_PROPERTIES: [DatasetProperty; 106] = [
    row("type", "TYPE", Text, false, ReadOnly, FSVB, Preset::Unset, Listed, V2_3, "filesystem | volume | snapshot | bookmark"),
    row("creation", "CREATION", Number(Date), false, ReadOnly, FSVB, Preset::Unset, Listed, V2_3, "<date>"),
    row("used", "USED", Number(Bytes), true, ReadOnly, FSV, Preset::Unset, Listed, V2_3, "<size>"),
    row("available", "AVAIL", Number(Bytes), true, ReadOnly, FV, Preset::Unset, Listed, V2_3, "<size>"),
    row("referenced", "REFER", Number(Bytes), true, ReadOnly, FSVB, Preset::Unset, Listed, V2_3, "<size>"),
    row("compressratio", "RATIO", Number(Ratio), true, ReadOnly, FSVB, Preset::Unset, Listed, V2_3, "<1.00x or higher if compressed>"),
    row("mounted", "MOUNTED", Words(MOUNTED), false, ReadOnly, F, Preset::Unset, Listed, V2_3, "yes | no"),
    row("origin", "ORIGIN", Text, false, ReadOnly, FV, Preset::Unset, Listed, V2_3, "<snapshot>"),
    row("quota", "QUOTA", Number(BytesOrNone), true, Settable, F, Preset::Number(0), Listed, V2_3, "<size> | none"),
    row("reservation", "RESERV", Number(BytesOrNone), true, Settable, FV, Preset::Number(0), Listed, V2_3, "<size> | none"),
    row("volsize", "VOLSIZE", Number(Count), true, Settable, SV, Preset::Number(0), Listed, V2_3, "<size>"),
    row("volblocksize", "VOLBLOCK", Number(Count), true, Once, V, Preset::Number(16384), Listed, V2_3, "512 to 128k, power of 2"),
    row("recordsize", "RECSIZE", Number(Count), true, Inheritable, F, Preset::Number(131072), Listed, V2_3, "512 to 1M, power of 2"),
    row("mountpoint", "MOUNTPOINT", Text, false, Inheritable, F, Preset::Text("/"), Listed, V2_3, "<path> | legacy | none"),
    row("sharenfs", "SHARENFS", Text, false, Inheritable, F, Preset::Text("off"), Listed, V2_3, "on | off | NFS share options"),
    row("checksum", "CHECKSUM", Words(CHECKSUM), false, Inheritable, FV, Preset::Text("on"), Listed, V2_3, "on | off | fletcher2 | fletcher4 | sha256 | sha512 | skein | edonr | blake3"),
    row("compression", "COMPRESS", Words(COMPRESSION), false, Inheritable, FV, Preset::Text("on"), Listed, V2_3, "on | off | lzjb | gzip | gzip-[1-9] | zle | lz4 | zstd | zstd-[1-19] | zstd-fast | zstd-fast-[1-10,20,30,40,50,60,70,80,90,100,500,1000]"),
    row("atime", "ATIME", Words(OFF_ON), false, Inheritable, F, Preset::Text("on"), Listed, V2_3, "on | off"),
    row("devices", "DEVICES", Words(OFF_ON), false, Inheritable, FS, Preset::Text("on"), Listed, V2_3, "on | off"),
    row("exec", "EXEC", Words(OFF_ON), false, Inheritable, FS, Preset::Text("on"), Listed, V2_3, "on | off"),
    row("setuid", "SETUID", Words(OFF_ON), false, Inheritable, FS, Preset::Text("on"), Listed, V2_3, "on | off"),
    row("readonly", "RDONLY", Words(OFF_ON), false, Inheritable, FV, Preset::Text("off"), Listed, V2_3, "on | off"),
    row("zoned", "ZONED", Words(OFF_ON), false, Inheritable, F, Preset::Text("off"), Listed, V2_3, "on | off"),
    row("snapdir", "SNAPDIR", Words(SNAPDIR), false, Inheritable, F, Preset::Text("hidden"), Listed, V2_3, "disabled | hidden | visible"),
    row("aclmode", "ACLMODE", Words(ACLMODE), false, Inheritable, F, Preset::Text("discard"), Listed, V2_3, "discard | groupmask | passthrough | restricted"),
    row("aclinherit", "ACLINHERIT", Words(ACLINHERIT), false, Inheritable, F, Preset::Text("restricted"), Listed, V2_3, "discard | noallow | restricted | passthrough | passthrough-x"),
    row("createtxg", "CREATETXG", Number(Digits), true, ReadOnly, FSVB, Preset::Unset, Listed, V2_3, "<uint64>"),
    row("name", "NAME", Text, false, ReadOnly, FSVB, Preset::Unset, Hidden, V2_3, ""),
    row("canmount", "CANMOUNT", Words(CANMOUNT), false, Settable, F, Preset::Text("on"), Listed, V2_3, "on | off | noauto"),
    row("iscsioptions", "ISCSIOPTIONS", Text, false, Inheritable, V, Preset::Unset, Hidden, V2_3, ""),
    row("xattr", "XATTR", Words(XATTR), false, Inheritable, FS, Preset::Text("on"), Listed, V2_3, "on | off | dir | sa"),
    row("numclones", "NUMCLONES", Number(Count), true, ReadOnly, S, Preset::Unset, Hidden, V2_3, ""),
    row("copies", "COPIES", Words(COPIES), false, Inheritable, FV, Preset::Text("1"), Listed, V2_3, "1 | 2 | 3"),
    row("version", "VERSION", Words(VERSION), false, Settable, FS, Preset::Number(0), Listed, V2_3, "1 | 2 | 3 | 4 | 5 | current"),
    row("utf8only", "UTF8ONLY", Words(OFF_ON), false, Once, FS, Preset::Text("off"), Listed, V2_3, "on | off"),
    row("normalization", "NORMALIZATION", Words(NORMALIZATION), false, Once, FS, Preset::Text("none"), Listed, V2_3, "none | formC | formD | formKC | formKD"),
    row("casesensitivity", "CASE", Words(CASESENSITIVITY), false, Once, FS, Preset::Text("sensitive"), Listed, V2_3, "sensitive | insensitive | mixed"),
    row("vscan", "VSCAN", Words(OFF_ON), false, Inheritable, F, Preset::Text("off"), Listed, V2_3, "on | off"),
    row("nbmand", "NBMAND", Words(OFF_ON), false, Inheritable, FS, Preset::Text("off"), Listed, V2_3, "on | off"),
    row("sharesmb", "SHARESMB", Text, false, Inheritable, F, Preset::Text("off"), Listed, V2_3, "on | off | SMB share options"),
    row("refquota", "REFQUOTA", Number(BytesOrNone), true, Settable, F, Preset::Number(0), Listed, V2_3, "<size> | none"),
    row("refreservation", "REFRESERV", Number(BytesOrNone), true, Settable, FV, Preset::Number(0), Listed, V2_3, "<size> | none"),
    row("guid", "GUID", Number(Digits), true, ReadOnly, FSVB, Preset::Unset, Listed, V2_3, "<uint64>"),
    row("primarycache", "PRIMARYCACHE", Words(PRIMARYCACHE), false, Inheritable, FSV, Preset::Text("all"), Listed, V2_3, "all | none | metadata"),
    row("secondarycache", "SECONDARYCACHE", Words(PRIMARYCACHE), false, Inheritable, FSV, Preset::Text("all"), Listed, V2_3, "all | none | metadata"),
    row("usedbysnapshots", "USEDSNAP", Number(Bytes), true, ReadOnly, FV, Preset::Unset, Listed, V2_3, "<size>"),
    row("usedbydataset", "USEDDS", Number(Bytes), true, ReadOnly, FV, Preset::Unset, Listed, V2_3, "<size>"),
    row("usedbychildren", "USEDCHILD", Number(Bytes), true, ReadOnly, FV, Preset::Unset, Listed, V2_3, "<size>"),
    row("usedbyrefreservation", "USEDREFRESERV", Number(Bytes), true, ReadOnly, FV, Preset::Unset, Listed, V2_3, "<size>"),
    row("useraccounting", "USERACCOUNTING", Number(Count), true, ReadOnly, FSV, Preset::Unset, Hidden, V2_3, ""),
    row("stmf_sbd_lu", "STMF_SBD_LU", Text, false, Inheritable, V, Preset::Unset, Hidden, V2_3, ""),
    row("defer_destroy", "DEFER_DESTROY", Words(OFF_ON), false, ReadOnly, S, Preset::Unset, Listed, V2_3, "yes | no"),
    row("userrefs", "USERREFS", Number(Count), true, ReadOnly, S, Preset::Unset, Listed, V2_3, "<count>"),
    row("logbias", "LOGBIAS", Words(LOGBIAS), false, Inheritable, FV, Preset::Text("latency"), Listed, V2_3, "latency | throughput"),
    row("unique", "UNIQUE", Number(Count), true, ReadOnly, FSV, Preset::Unset, Hidden, V2_3, ""),
    row("objsetid", "OBJSETID", Number(Digits), true, ReadOnly, FSV, Preset::Unset, Listed, V2_3, "<uint64>"),
    row("dedup", "DEDUP", Words(DEDUP), false, Inheritable, FV, Preset::Text("off"), Listed, V2_3, "on | off | verify | sha256[,verify] | sha512[,verify] | skein[,verify] | edonr,verify | blake3[,verify]"),
    row("mlslabel", "MLSLABEL", Text, false, Inheritable, FSV, Preset::Text("none"), Listed, V2_3, "<sensitivity label>"),
    row("sync", "SYNC", Words(SYNC), false, Inheritable, FV, Preset::Text("standard"), Listed, V2_3, "standard | always | disabled"),
    row("dnodesize", "DNSIZE", Words(DNODESIZE), false, Inheritable, F, Preset::Text("legacy"), Listed, V2_3, "legacy | auto | 1k | 2k | 4k | 8k | 16k"),
    row("refcompressratio", "REFRATIO", Number(Ratio), true, ReadOnly, FSV, Preset::Unset, Listed, V2_3, "<1.00x or higher if compressed>"),
    row("written", "WRITTEN", Number(Count), true, ReadOnly, FSV, Preset::Unset, Listed, V2_3, "<size>"),
    row("clones", "CLONES", Text, false, ReadOnly, S, Preset::Unset, Listed, V2_3, "<dataset>[,...]"),
    row("logicalused", "LUSED", Number(Count), true, ReadOnly, FV, Preset::Unset, Listed, V2_3, "<size>"),
    row("logicalreferenced", "LREFER", Number(Count), true, ReadOnly, FSVB, Preset::Unset, Listed, V2_3, "<size>"),
    row("inconsistent", "INCONSISTENT", Number(Count), true, ReadOnly, FSV, Preset::Unset, Hidden, V2_3, ""),
    row("volmode", "VOLMODE", Words(VOLMODE), false, Inheritable, FV, Preset::Text("default"), Listed, V2_3, "default | full | geom | dev | none"),
    row("filesystem_limit", "FSLIMIT", Number(CountOrNone), true, Settable, F, Preset::Number(u64::MAX), Listed, V2_3, "<count> | none"),
    row("snapshot_limit", "SSLIMIT", Number(CountOrNone), true, Settable, FV, Preset::Number(u64::MAX), Listed, V2_3, "<count> | none"),
    row("filesystem_count", "FSCOUNT", Number(CountOrNone), true, ReadOnly, F, Preset::Unset, Listed, V2_3, "<count>"),
    row("snapshot_count", "SSCOUNT", Number(CountOrNone), true, ReadOnly, FV, Preset::Unset, Listed, V2_3, "<count>"),
    row("snapdev", "SNAPDEV", Words(SNAPDEV), false, Inheritable, FV, Preset::Text("hidden"), Listed, V2_3, "hidden | visible"),
    row("acltype", "ACLTYPE", Words(ACLTYPE), false, Inheritable, FS, Preset::Text("off"), Listed, V2_3, "off | nfsv4 | posix"),
    row("context", "CONTEXT", Text, false, Settable, FSV, Preset::Text("none"), Listed, V2_3, "<selinux context>"),
    row("fscontext", "FSCONTEXT", Text, false, Settable, FSV, Preset::Text("none"), Listed, V2_3, "<selinux fscontext>"),
    row("defcontext", "DEFCONTEXT", Text, false, Settable, FSV, Preset::Text("none"), Listed, V2_3, "<selinux defcontext>"),
    row("rootcontext", "ROOTCONTEXT", Text, false, Settable, FSV, Preset::Text("none"), Listed, V2_3, "<selinux rootcontext>"),
    row("relatime", "RELATIME", Words(OFF_ON), false, Inheritable, F, Preset::Text("on"), Listed, V2_3, "on | off"),
    row("redundant_metadata", "REDUND_MD", Words(REDUNDANT_METADATA), false, Inheritable, FV, Preset::Text("all"), Listed, V2_3, "all | most | some | none"),
    row("overlay", "OVERLAY", Words(OFF_ON), false, Inheritable, F, Preset::Text("on"), Listed, V2_3, "on | off"),
    row("prevsnap", "PREVSNAP", Text, false, ReadOnly, FV, Preset::Unset, Hidden, V2_3, ""),
    row("receive_resume_token", "RESUMETOK", Text, false, ReadOnly, FV, Preset::Unset, Listed, V2_3, "<string token>"),
    row("encryption", "ENCRYPTION", Words(ENCRYPTION), false, Once, FSV, Preset::Text("off"), Listed, V2_3, "on | off | aes-128-ccm | aes-192-ccm | aes-256-ccm | aes-128-gcm | aes-192-gcm | aes-256-gcm"),
    row("keylocation", "KEYLOCATION", Text, false, Settable, FV, Preset::Text("none"), Listed, V2_3, "prompt | <file URI> | <https URL> | <http URL>"),
    row("keyformat", "KEYFORMAT", Words(KEYFORMAT), false, OnceByKey, FV, Preset::Text("none"), Listed, V2_3, "none | raw | hex | passphrase"),
    row("pbkdf2salt", "PBKDF2SALT", Number(Count), true, OnceByKey, FV, Preset::Number(0), Hidden, V2_3, ""),
    row("pbkdf2iters", "PBKDF2ITERS", Number(Digits), true, OnceByKey, FV, Preset::Number(0), Listed, V2_3, "<iters>"),
    row("encryptionroot", "ENCROOT", Text, false, ReadOnly, FSV, Preset::Unset, Listed, V2_3, "<filesystem | volume>"),
    row("keyguid", "KEYGUID", Number(Digits), true, ReadOnly, FSV, Preset::Unset, Hidden, V2_3, ""),
    row("keystatus", "KEYSTATUS", Words(KEYSTATUS), false, ReadOnly, FSV, Preset::Unset, Listed, V2_3, "none | unavailable | available"),
    row("remaptxg", "REMAPTXG", Number(Count), true, ReadOnly, FSV, Preset::Unset, Hidden, V2_3, ""),
    row("special_small_blocks", "SPECIAL_SMALL_BLOCKS", Number(Count), true, Inheritable, FV, Preset::Number(0), Listed, V2_3, "zero or 512 to 1M, power of 2"),
    row("ivsetguid", "IVSETGUID", Number(Digits), true, ReadOnly, FSVB, Preset::Unset, Hidden, V2_3, ""),
    row("redacted", "REDACTED", Number(Count), true, ReadOnly, FSV, Preset::Unset, Hidden, V2_3, ""),
    row("redact_snaps", "RSNAPS", Text, false, ReadOnly, FSVB, Preset::Unset, Listed, V2_3, "<snapshot>[,...]"),
    row("snapshots_changed", "SNAPSHOTS_CHANGED", Number(DateSeconds), false, ReadOnly, FV, Preset::Unset, Listed, V2_3, "<date>"),
    row("prefetch", "PREFETCH", Words(PRIMARYCACHE), false, Inheritable, FSV, Preset::Text("all"), Listed, V2_3, "none | metadata | all"),
    row("volthreading", "zvol threading", Words(OFF_ON), false, Settable, V, Preset::Text("on"), Listed, V2_3, "on | off"),
    row("direct", "DIRECT", Words(DIRECT), false, Inheritable, F, Preset::Text("standard"), Listed, V2_3, "disabled | standard | always"),
    row("longname", "LONGNAME", Words(OFF_ON), false, Inheritable, F, Preset::Text("off"), Listed, V2_3, "on | off"),
    row("defaultuserquota", "DEFAULTUSERQUOTA", Number(Count), true, Settable, FS, Preset::Number(0), Listed, V2_4, "<size> | none"),
    row("defaultgroupquota", "DEFAULTGROUPQUOTA", Number(Count), true, Settable, FS, Preset::Number(0), Listed, V2_4, "<size> | none"),
    row("defaultprojectquota", "DEFAULTPROJECTQUOTA", Number(Count), true, Settable, FS, Preset::Number(0), Listed, V2_4, "<size> | none"),
    row("defaultuserobjquota", "DEFAULTUSEROBJQUOTA", Number(Count), true, Settable, FS, Preset::Number(0), Listed, V2_4, "<size> | none"),
    row("defaultgroupobjquota", "DEFAULTGROUPOBJQUOTA", Number(Count), true, Settable, FS, Preset::Number(0), Listed, V2_4, "<size> | none"),
    row("defaultprojectobjquota", "DEFAULTPROJECTOBJQUOTA", Number(Count), true, Settable, FS, Preset::Number(0), Listed, V2_4, "<size> | none"),
];

/// Finds a property by name or alias.
pub fn find(word: &str) -> Option<&'static DatasetProperty> {
    DATASET_PROPERTIES
        .iter()
        .find(|property| property.shape.is_named(word))
}

const F: Kinds = Kinds::only(&[DatasetKind::Filesystem]);
const FS: Kinds = Kinds::only(&[DatasetKind::Filesystem, DatasetKind::Snapshot]);
const FSV: Kinds = Kinds::only(&[
    DatasetKind::Filesystem,
    DatasetKind::Snapshot,
    DatasetKind::Volume,
]);
const FSVB: Kinds = Kinds::only(&[
    DatasetKind::Filesystem,
    DatasetKind::Snapshot,
    DatasetKind::Volume,
    DatasetKind::Bookmark,
]);
const FV: Kinds = Kinds::only(&[DatasetKind::Filesystem, DatasetKind::Volume]);
const S: Kinds = Kinds::only(&[DatasetKind::Snapshot]);
const SV: Kinds = Kinds::only(&[DatasetKind::Snapshot, DatasetKind::Volume]);
const V: Kinds = Kinds::only(&[DatasetKind::Volume]);

const Listed: bool = true;
const Hidden: bool = false;

#[allow(clippy::too_many_arguments)] // one row of a table, read as columns
const fn row(
    name: &'static str,
    header: &'static str,
    form: Form,
    is_right_aligned: bool,
    edit: Edit,
    kinds: Kinds,
    preset: Preset,
    is_listed: bool,
    since: Release,
    values: &'static str,
) -> DatasetProperty {
    let shape = Shape {
        name,
        header,
        form,
        is_right_aligned,
        edit,
        preset,
        is_listed,
        values,
    };
    DatasetProperty {
        shape,
        kinds,
        since,
    }
}

#[rustfmt::skip]
mod words {
    use super::WordTable;

    pub const MOUNTED: WordTable = &[("no", 0), ("yes", 1)];
    pub const CHECKSUM: WordTable = &[("on", 1), ("off", 2), ("fletcher2", 6), ("fletcher4", 7), ("sha256", 8), ("noparity", 10), ("sha512", 11), ("skein", 12), ("edonr", 13), ("blake3", 14)];
    pub const COMPRESSION: WordTable = &[("on", 1), ("off", 2), ("lzjb", 3), ("gzip", 10), ("gzip-1", 5), ("gzip-2", 6), ("gzip-3", 7), ("gzip-4", 8), ("gzip-5", 9), ("gzip-6", 10), ("gzip-7", 11), ("gzip-8", 12), ("gzip-9", 13), ("zle", 14), ("lz4", 15), ("zstd", 16), ("zstd-1", 144), ("zstd-2", 272), ("zstd-3", 400), ("zstd-4", 528), ("zstd-5", 656), ("zstd-6", 784), ("zstd-7", 912), ("zstd-8", 1040), ("zstd-9", 1168), ("zstd-10", 1296), ("zstd-11", 1424), ("zstd-12", 1552), ("zstd-13", 1680), ("zstd-14", 1808), ("zstd-15", 1936), ("zstd-16", 2064), ("zstd-17", 2192), ("zstd-18", 2320), ("zstd-19", 2448), ("zstd-fast", 13200), ("zstd-fast-1", 13200), ("zstd-fast-2", 13328), ("zstd-fast-3", 13456), ("zstd-fast-4", 13584), ("zstd-fast-5", 13712), ("zstd-fast-6", 13840), ("zstd-fast-7", 13968), ("zstd-fast-8", 14096), ("zstd-fast-9", 14224), ("zstd-fast-10", 14352), ("zstd-fast-20", 14480), ("zstd-fast-30", 14608), ("zstd-fast-40", 14736), ("zstd-fast-50", 14864), ("zstd-fast-60", 14992), ("zstd-fast-70", 15120), ("zstd-fast-80", 15248), ("zstd-fast-90", 15376), ("zstd-fast-100", 15504), ("zstd-fast-500", 15632), ("zstd-fast-1000", 15760)];
    pub const OFF_ON: WordTable = &[("off", 0), ("on", 1)];
    pub const SNAPDIR: WordTable = &[("hidden", 0), ("visible", 1), ("disabled", 2)];
    pub const ACLMODE: WordTable = &[("discard", 0), ("groupmask", 2), ("passthrough", 3), ("restricted", 4)];
    pub const ACLINHERIT: WordTable = &[("discard", 0), ("noallow", 1), ("restricted", 4), ("passthrough", 3), ("secure", 4), ("passthrough-x", 5)];
    pub const CANMOUNT: WordTable = &[("off", 0), ("on", 1), ("noauto", 2)];
    pub const XATTR: WordTable = &[("off", 0), ("on", 2), ("sa", 2), ("dir", 1)];
    pub const COPIES: WordTable = &[("1", 1), ("2", 2), ("3", 3)];
    pub const VERSION: WordTable = &[("1", 1), ("2", 2), ("3", 3), ("4", 4), ("5", 5), ("current", 5)];
    pub const NORMALIZATION: WordTable = &[("none", 0), ("formD", 16), ("formKC", 96), ("formC", 80), ("formKD", 32)];
    pub const CASESENSITIVITY: WordTable = &[("sensitive", 0), ("insensitive", 1), ("mixed", 2)];
    pub const PRIMARYCACHE: WordTable = &[("none", 0), ("metadata", 1), ("all", 2)];
    pub const LOGBIAS: WordTable = &[("latency", 0), ("throughput", 1)];
    pub const DEDUP: WordTable = &[("on", 1), ("off", 2), ("verify", 257), ("sha256", 8), ("sha256,verify", 264), ("sha512", 11), ("sha512,verify", 267), ("skein", 12), ("skein,verify", 268), ("edonr,verify", 269), ("blake3", 14), ("blake3,verify", 270)];
    pub const SYNC: WordTable = &[("standard", 0), ("always", 1), ("disabled", 2)];
    pub const DNODESIZE: WordTable = &[("legacy", 0), ("auto", 1), ("1k", 1024), ("2k", 2048), ("4k", 4096), ("8k", 8192), ("16k", 16384)];
    pub const VOLMODE: WordTable = &[("default", 0), ("full", 1), ("geom", 1), ("dev", 2), ("none", 3)];
    pub const SNAPDEV: WordTable = &[("hidden", 0), ("visible", 1)];
    pub const ACLTYPE: WordTable = &[("off", 0), ("posix", 1), ("nfsv4", 2), ("disabled", 0), ("noacl", 0), ("posixacl", 1)];
    pub const REDUNDANT_METADATA: WordTable = &[("all", 0), ("most", 1), ("some", 2), ("none", 3)];
    pub const ENCRYPTION: WordTable = &[("on", 1), ("off", 2), ("aes-128-ccm", 3), ("aes-192-ccm", 4), ("aes-256-ccm", 5), ("aes-128-gcm", 6), ("aes-192-gcm", 7), ("aes-256-gcm", 8)];
    pub const KEYFORMAT: WordTable = &[("none", 0), ("raw", 1), ("hex", 2), ("passphrase", 3)];
    pub const KEYSTATUS: WordTable = &[("none", 0), ("unavailable", 1), ("available", 2)];
    pub const DIRECT: WordTable = &[("disabled", 0), ("standard", 1), ("always", 2)];
}
use words::*;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_and_no_alias_belongs_to_two_properties() {
        for (at, property) in DATASET_PROPERTIES.iter().enumerate() {
            for word in [
                property.shape.name.to_string(),
                property.shape.header.to_ascii_lowercase(),
            ] {
                let owner = DATASET_PROPERTIES
                    .iter()
                    .position(|p| p.shape.is_named(&word));
                assert_eq!(owner, Some(at), "{word}");
            }
        }
    }

    #[test]
    fn every_preset_of_an_indexed_property_is_one_of_its_words() {
        for property in DATASET_PROPERTIES {
            let shape = property.shape;
            if let (Form::Words(_), Preset::Text(word)) = (shape.form, shape.preset) {
                assert!(shape.number_of(word).is_some(), "{}", shape.name);
            }
        }
    }

    #[test]
    fn compression_numbers_are_algorithm_plus_128_times_level() {
        let shape = find("compress").unwrap().shape;
        for (word, number) in [
            ("gzip-9", 13),
            ("gzip", 10),
            ("zstd", 16),
            ("zstd-3", 400),
            ("zstd-19", 2448),
            ("zstd-fast", 13200),
            ("zstd-fast-10", 14352),
            ("zstd-fast-20", 14480),
            ("zstd-fast-100", 15504),
            ("zstd-fast-500", 15632),
            ("zstd-fast-1000", 15760),
        ] {
            assert_eq!(shape.number_of(word), Some(number), "{word}");
            assert_eq!(shape.word_of(number), Some(word));
        }
        assert_eq!(shape.word_of(10), Some("gzip"));
    }
}
