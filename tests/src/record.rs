//! The typed record of a golden case (`CASE.json` and related files).
//!
//! Parsing is strict: an unknown key is an error, so that no part of a record is ignored silently.

use crate::images;
use crate::reader::{Attributes, DatasetKind, Properties, SpaceOf, SpaceRow};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A case as recorded by OpenZFS.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// The pool's name.
    pub pool: String,
    /// Its disks.
    pub images: Vec<Image>,
    /// The largest sets of images that may be absent together.
    pub may_be_absent: Vec<Vec<String>>,
    /// The state in which the pool was left, unless it was exported cleanly.
    pub state: Option<String>,
    /// The output of `zpool get`.
    pub pool_properties: Properties,
    /// The output of `zpool history -il`, line by line.
    pub history: Vec<String>,
    /// Every dataset.
    pub datasets: Vec<Dataset>,
    /// Keys by encryption root.
    pub keys: BTreeMap<String, Key>,
    /// Paths below the pool's mount point that must fail to read.
    pub lost: BTreeSet<Vec<u8>>,
}

/// One disk.
#[derive(Debug, Clone)]
pub struct Image {
    /// Name of the packed file.
    pub file: String,
    /// Size in bytes, unpacked.
    pub size_bytes: u64,
    /// SHA-256, unpacked.
    pub sha256: String,
}

/// A key as a user enters it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// `raw`, `hex` or `passphrase`.
    pub format: String,
    /// The bytes, without the newline at the end of a text file.
    pub bytes: Vec<u8>,
}

/// One dataset.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// Its full name.
    pub name: String,
    /// Its kind.
    pub kind: DatasetKind,
    /// The output of `zfs get`.
    pub properties: Properties,
    /// Its files, if it has any and they could be listed.
    pub tree: Option<Vec<Entry>>,
    /// Its content, if it is a volume or a snapshot of one.
    pub volume: Option<Volume>,
    /// Tags and dates of its holds, if it is a snapshot.
    pub holds: Option<BTreeSet<(String, String)>>,
    /// Rows of space by owner.
    pub space: Vec<(SpaceOf, Vec<SpaceRow>)>,
}

/// A volume's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Volume {
    /// Digest of the whole content.
    Whole(String),
    /// Offsets and digests of samples of 64 KiB each.
    Samples(Vec<(u64, String)>),
}

/// One file.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Path relative to the root; `.` for the root.
    pub path: Vec<u8>,
    /// Object id.
    pub object: u64,
    /// Its attributes.
    pub attributes: Attributes,
    /// Whether OpenZFS itself could not list the extended attributes.
    pub xattrs_unknown: bool,
    /// Its content, for regular files.
    pub content: Option<Content>,
    /// Its data ranges.
    pub extents: Option<Vec<(u64, u64)>>,
    /// For a partially listed directory: the number of entries and the digest of their names.
    pub sampled: Option<(u64, String)>,
    /// Whether reading must fail.
    pub is_unreadable: bool,
}

/// A file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Digest of the whole content.
    Whole(String),
    /// Digest of all data ranges in order.
    Data(String),
}

/// Loads the record that a read-only reader must match.
///
/// # Errors
/// If files are missing or damaged, or contain unknown keys.
pub fn load(case: &Path) -> Result<Record> {
    let main = object_of(case, "CASE.json")?;
    let named = text(&main, "read_only_equals")?.to_owned();
    load_state(case, &named)
}

/// Loads the record of another state of the pool, from a named file of the case.
///
/// # Errors
/// Those of [`load`].
pub fn load_state(case: &Path, named: &str) -> Result<Record> {
    let main = object_of(case, "CASE.json")?;
    let named = named.strip_suffix(".zst").unwrap_or(named);
    let seen = if named == "CASE.json" {
        main.clone()
    } else {
        object_of(case, named)?
    };
    let mut record = Record {
        pool: text(&main, "pool")?.to_owned(),
        state: seen.get("state").and_then(Value::as_str).map(str::to_owned),
        pool_properties: properties(seen.get("zpool_get"))?,
        ..Record::default()
    };
    for key in main.keys().chain(seen.keys()) {
        ensure!(
            CASE_KEYS.contains(&key.as_str()),
            "the record has an unknown key {key:?}"
        );
    }
    for image in list(&main, "images")? {
        let image = image.as_object().context("an image is no object")?;
        record.images.push(Image {
            file: text(image, "file")?.to_owned(),
            size_bytes: number(image, "size")?,
            sha256: text(image, "sha256")?.to_owned(),
        });
    }
    for set in list(&main, "may_be_absent")? {
        let set = set.as_array().context("a set is no list")?.iter();
        record
            .may_be_absent
            .push(set.filter_map(Value::as_str).map(str::to_owned).collect());
    }
    let history = seen
        .get("zpool_history")
        .and_then(Value::as_str)
        .unwrap_or_default();
    record.history = history.lines().map(str::to_owned).collect();
    for value in list(&seen, "datasets")? {
        let value = value.as_object().context("a dataset is no object")?;
        let dataset = dataset(value).with_context(|| format!("dataset {:?}", value.get("name")))?;
        record.datasets.push(dataset);
    }
    ensure!(
        !record.datasets.is_empty() && !record.images.is_empty(),
        "the record is empty"
    );
    record.keys = keys(case, &main, &record)?;
    if case.join("LOST.txt").exists() {
        let lost = std::fs::read_to_string(case.join("LOST.txt"))?;
        record.lost = lost.lines().map(|line| line.as_bytes().to_vec()).collect();
    }
    Ok(record)
}

fn dataset(value: &Map<String, Value>) -> Result<Dataset> {
    let kind = match text(value, "type")? {
        "filesystem" => DatasetKind::Filesystem,
        "volume" => DatasetKind::Volume,
        "snapshot" => DatasetKind::Snapshot,
        "bookmark" => DatasetKind::Bookmark,
        other => bail!("unknown type {other:?}"),
    };
    for key in value.keys() {
        ensure!(DATASET_KEYS.contains(&key.as_str()), "unknown key {key:?}");
    }
    let tree = match value.get("tree") {
        Some(Value::Array(entries)) => Some(entries.iter().map(entry).collect::<Result<_>>()?),
        Some(_) => bail!("the tree is no list"),
        None => None,
    };
    let volume = match (value.get("volume_sha256"), value.get("volume_samples_64k")) {
        (Some(Value::String(digest)), None) => Some(Volume::Whole(digest.clone())),
        (None, Some(Value::Array(samples))) => Some(Volume::Samples(
            samples.iter().map(sample).collect::<Result<_>>()?,
        )),
        (None, None) => None,
        _ => bail!("the volume's content is unclear"),
    };
    let holds = match value.get("holds") {
        Some(Value::Array(rows)) => Some(rows.iter().map(hold).collect::<Result<_>>()?),
        Some(_) => bail!("holds are no list"),
        None => None,
    };
    let mut space = Vec::new();
    for (key, of) in SPACE_KEYS {
        if let Some(Value::Array(rows)) = value.get(key) {
            // A row with a single text is a message of the command instead of a result.
            if rows
                .iter()
                .all(|row| row.as_array().is_some_and(|row| row.len() > 1))
            {
                space.push((of, rows.iter().map(space_row).collect::<Result<_>>()?));
            }
        }
    }
    Ok(Dataset {
        name: text(value, "name")?.to_owned(),
        kind,
        properties: properties(value.get("properties"))?,
        tree,
        volume,
        holds,
        space,
    })
}

fn entry(value: &Value) -> Result<Entry> {
    let value = value.as_object().context("an entry is no object")?;
    let path = match value.get("path_b64").and_then(Value::as_str) {
        Some(encoded) => base64(encoded)?,
        None => text(value, "path")?.as_bytes().to_vec(),
    };
    for key in value.keys() {
        ensure!(
            ENTRY_KEYS.contains(&key.as_str()),
            "an entry has an unknown key {key:?}"
        );
    }
    let mode = u32::from_str_radix(text(value, "mode")?, 8)?;
    let time = |key: &str| -> Result<i128> {
        let number = value.get(key).context("a time is missing")?;
        Ok(number.to_string().parse()?)
    };
    let attributes = Attributes {
        kind: text(value, "type")?.to_owned(),
        mode,
        uid: number(value, "uid")?,
        gid: number(value, "gid")?,
        nlink: number(value, "nlink")?,
        size: number(value, "size")?,
        blocks: number(value, "blocks")?,
        mtime_ns: time("mtime_ns")?,
        ctime_ns: time("ctime_ns")?,
        atime_ns: time("atime_ns")?,
        target: value
            .get("target")
            .and_then(Value::as_str)
            .map(|text| text.as_bytes().to_vec()),
        rdev: value.get("rdev").map(pair).transpose()?,
        xattrs: match value.get("xattrs") {
            Some(Value::Object(map)) => map
                .iter()
                .map(|(name, value)| {
                    Ok((name.clone(), base64(value.as_str().context("no base64")?)?))
                })
                .collect::<Result<_>>()?,
            Some(_) => bail!("xattrs are no object"),
            None => BTreeMap::new(),
        },
    };
    let digest = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let content = match (digest("sha256"), digest("data_sha256")) {
        (Some(whole), None) => Some(Content::Whole(whole)),
        (None, Some(data)) => Some(Content::Data(data)),
        (None, None) => None,
        _ => bail!("an entry has two digests"),
    };
    let is_unreadable = value.contains_key("read_error");
    ensure!(
        attributes.kind != "file" || content.is_some() || is_unreadable,
        "a file has no digest"
    );
    let extents = match value.get("extents") {
        Some(Value::Array(ranges)) => Some(ranges.iter().map(pair).collect::<Result<_>>()?),
        Some(_) => bail!("extents are no list"),
        None => None,
    };
    let sampled = match (value.get("entries_count"), digest("entries_sha256")) {
        (Some(count), Some(digest)) => Some((count.as_u64().context("no count")?, digest)),
        (None, None) => None,
        _ => bail!("a sampled directory is unclear"),
    };
    Ok(Entry {
        path,
        object: number(value, "ino")?,
        attributes,
        xattrs_unknown: value.contains_key("xattr_error"),
        content,
        extents,
        sampled,
        is_unreadable,
    })
}

/// Keys are in files named by `keylocation`, or in the note of the case.
fn keys(case: &Path, main: &Map<String, Value>, record: &Record) -> Result<BTreeMap<String, Key>> {
    let note = main.get("keys").and_then(Value::as_str).unwrap_or_default();
    let passphrase = note
        .split("passphrase '")
        .nth(1)
        .and_then(|rest| rest.split('\'').next());
    let mut keys = BTreeMap::new();
    for dataset in &record.datasets {
        let value = |name: &str| {
            dataset
                .properties
                .get(name)
                .map(|(value, _)| value.as_str())
        };
        if value("encryptionroot") != Some(&dataset.name) || dataset.kind == DatasetKind::Snapshot {
            continue;
        }
        let format = value("keyformat").context("no keyformat")?.to_owned();
        let location = value("keylocation").unwrap_or_default();
        let file = location.rsplit_once('/').map(|(_, name)| case.join(name));
        let mut bytes = match (file.filter(|file| file.exists()), passphrase) {
            (Some(file), _) => std::fs::read(file)?,
            (None, Some(passphrase)) => passphrase.as_bytes().to_vec(),
            (None, None) => bail!("no key is known for {}", dataset.name),
        };
        if format != "raw" && bytes.ends_with(b"\n") {
            bytes.pop();
        }
        keys.insert(dataset.name.clone(), Key { format, bytes });
    }
    Ok(keys)
}

fn object_of(case: &Path, name: &str) -> Result<Map<String, Value>> {
    let bytes = images::read_file(case, name)?;
    match serde_json::from_slice(&bytes).with_context(|| name.to_owned())? {
        Value::Object(map) => Ok(map),
        _ => bail!("{name} is no object"),
    }
}

fn properties(value: Option<&Value>) -> Result<Properties> {
    let mut properties = Properties::new();
    for (name, value) in value.and_then(Value::as_object).into_iter().flatten() {
        let pair = value.as_array().filter(|pair| pair.len() == 2);
        let texts: Option<Vec<&str>> =
            pair.map(|pair| pair.iter().filter_map(Value::as_str).collect());
        match texts.as_deref() {
            Some([value, source]) => {
                properties.insert(name.clone(), ((*value).to_owned(), (*source).to_owned()))
            }
            _ => bail!("the property {name} is no pair"),
        };
    }
    Ok(properties)
}

fn space_row(row: &Value) -> Result<SpaceRow> {
    let texts: Vec<&str> = row
        .as_array()
        .context("no row")?
        .iter()
        .filter_map(Value::as_str)
        .collect();
    // The kind of owner comes first, except for projects.
    let numbers = if texts.len() == 6 {
        texts.get(1..)
    } else {
        texts.get(..)
    };
    let Some([id, used, quota, objects, objects_quota]) = numbers else {
        bail!("a row of space has {} columns", texts.len());
    };
    let counted = |text: &str| match text {
        "-" => Ok(None),
        "none" => Ok(Some(0)),
        digits => digits.parse().map(Some).with_context(|| digits.to_owned()),
    };
    Ok(SpaceRow {
        id: id.parse().with_context(|| (*id).to_owned())?,
        used_bytes: used.parse().with_context(|| (*used).to_owned())?,
        quota_bytes: counted(quota)?.unwrap_or(0),
        objects: counted(objects)?,
        objects_quota: counted(objects_quota)?,
    })
}

fn hold(row: &Value) -> Result<(String, String)> {
    match row.as_array().map(Vec::as_slice) {
        Some([_, Value::String(tag), Value::String(date)]) => Ok((tag.clone(), date.clone())),
        _ => bail!("a hold is no row of three"),
    }
}

fn sample(value: &Value) -> Result<(u64, String)> {
    match value.as_array().map(Vec::as_slice) {
        Some([Value::Number(offset), Value::String(digest)]) => {
            Ok((offset.as_u64().context("no offset")?, digest.clone()))
        }
        _ => bail!("a sample is no pair"),
    }
}

fn pair(value: &Value) -> Result<(u64, u64)> {
    match value.as_array().map(Vec::as_slice) {
        Some([first, second]) => Ok((
            first.as_u64().context("no number")?,
            second.as_u64().context("no number")?,
        )),
        _ => bail!("no pair of numbers"),
    }
}

fn list<'a>(map: &'a Map<String, Value>, key: &str) -> Result<&'a [Value]> {
    let list = map.get(key).and_then(Value::as_array);
    list.map(Vec::as_slice)
        .with_context(|| format!("the record has no list {key}"))
}

fn text<'a>(map: &'a Map<String, Value>, key: &str) -> Result<&'a str> {
    map.get(key)
        .and_then(Value::as_str)
        .with_context(|| format!("the record has no text {key}"))
}

fn number(map: &Map<String, Value>, key: &str) -> Result<u64> {
    map.get(key)
        .and_then(Value::as_u64)
        .with_context(|| format!("the record has no number {key}"))
}

/// Decodes standard base64 with padding.
fn base64(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let (mut bits, mut held) = (0_u32, 0);
    for letter in text.bytes().filter(|letter| *letter != b'=') {
        let value = BASE64
            .iter()
            .position(|known| *known == letter)
            .context("no base64")?;
        bits = bits << 6 | u32::try_from(value)?;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push(u8::try_from(bits >> held & 0xff)?);
        }
    }
    Ok(bytes)
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

const SPACE_KEYS: [(&str, SpaceOf); 3] = [
    ("userspace", SpaceOf::Users),
    ("groupspace", SpaceOf::Groups),
    ("projectspace", SpaceOf::Projects),
];

const CASE_KEYS: [&str; 14] = [
    "may_be_absent",
    "read_only_equals",
    "description",
    "images",
    "case",
    "pool",
    "zfs_version",
    "zpool_get",
    "zpool_status",
    "zpool_list_v",
    "zpool_history",
    "datasets",
    "state",
    // A note for humans, parsed by `keys`.
    "keys",
];

const DATASET_KEYS: [&str; 11] = [
    "name",
    "type",
    "properties",
    "tree",
    "volume_sha256",
    "volume_samples_64k",
    "holds",
    "userspace",
    "groupspace",
    "projectspace",
    // The error of OpenZFS if it could not mount the dataset (an interrupted receive).
    "tree_error",
];

const ENTRY_KEYS: [&str; 24] = [
    "path",
    "path_b64",
    "type",
    "ino",
    "mode",
    "uid",
    "gid",
    "nlink",
    "size",
    "blocks",
    "mtime_ns",
    "ctime_ns",
    "atime_ns",
    "sha256",
    "data_sha256",
    "extents",
    "target",
    "rdev",
    "xattrs",
    "xattr_error",
    "entries_count",
    "entries_sha256",
    "entries_note",
    "read_error",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_decodes_with_and_without_padding() {
        assert_eq!(base64("6S1sYXRpbjE=").unwrap(), b"\xe9-latin1");
        assert_eq!(base64("").unwrap(), b"");
        assert!(base64("a*").is_err());
    }

    #[test]
    fn every_record_of_the_set_at_hand_is_understood() {
        let set = images::golden_set().unwrap();
        let cases = images::cases(&set.folder).unwrap();
        assert!(cases.len() > 10);
        for case in cases {
            load(&set.folder.join(&case)).unwrap_or_else(|error| panic!("{case}: {error:#}"));
        }
    }

    #[test]
    fn keys_are_read_from_the_files_in_keylocation() {
        let record = load(&images::workspace().join("testdata/golden/crypt")).unwrap();
        assert_eq!(record.keys["pcrypt/pass"].bytes, b"millpond pass");
        assert_eq!(record.keys["pcrypt/changed"].bytes, b"new millpond pass");
        assert_eq!(record.keys["pcrypt/pass/own"].bytes.len(), 32);
        assert!(!record.keys.contains_key("pcrypt/pass/child"));
    }
}
