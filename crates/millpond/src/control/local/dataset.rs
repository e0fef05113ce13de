//! Walking the datasets of an open pool.

use super::super::{ControlError, DatasetInfo, DatasetQuery, Property, Source, Value, Wanted};
use super::{io, source, value};
use crate::{Dataset, Pool};
use millpond_dataset::DatasetError;
use millpond_dataset::properties::{DATASET_PROPERTIES, DatasetKind, PropertyName};
use millpond_ondisk::ObjectId;
use millpond_ondisk::dsl::keys;
use millpond_pool::properties::{Edit, Release, Shape, preset_value};
use millpond_zap::Zap;

/// Calls `each` with every dataset that the query selects.
pub fn walk(
    pool: &Pool,
    query: &DatasetQuery,
    each: &mut dyn FnMut(DatasetInfo) -> Result<(), ControlError>,
) -> Result<(), ControlError> {
    if let Some((of, name)) = query.root.split_once('#') {
        let dataset = find(pool, of)?;
        let bookmarks = dataset.bookmarks().map_err(io)?;
        let bookmark = bookmarks.iter().find(|bookmark| bookmark.name == name);
        return each(bookmarked(
            of,
            bookmark.ok_or(ControlError::NoSuchDataset)?,
            &query.wanted,
        ));
    }
    let root = find(pool, &query.root)?;
    if query.root.contains('@') {
        return report(&root, DatasetKind::Snapshot, query, each);
    }
    let prefix = format!("{}/", query.root);
    for dataset in pool.datasets() {
        let dataset = dataset.map_err(io)?;
        let depth = match dataset.name().strip_prefix(prefix.as_str()) {
            Some(rest) => u32::try_from(rest.split('/').count()).unwrap_or(u32::MAX),
            None if dataset.name() == query.root => 0,
            None => continue,
        };
        if depth > query.depth {
            continue;
        }
        let kind = dataset.kind().map_err(io)?;
        report(&dataset, kind, query, each)?;
        if depth == query.depth {
            continue;
        }
        if query.kinds.contains(DatasetKind::Snapshot) {
            for snapshot in dataset.snapshots().map_err(io)? {
                report(&snapshot, DatasetKind::Snapshot, query, each)?;
            }
        }
        if query.kinds.contains(DatasetKind::Bookmark) {
            for bookmark in dataset.bookmarks().map_err(io)? {
                each(bookmarked(dataset.name(), &bookmark, &query.wanted))?;
            }
        }
    }
    Ok(())
}

fn find(pool: &Pool, name: &str) -> Result<Dataset, ControlError> {
    pool.dataset(name).map_err(|error| match error {
        crate::Error::Dataset(DatasetError::NotFound { .. }) => ControlError::NoSuchDataset,
        other => io(other),
    })
}

fn report(
    dataset: &Dataset,
    kind: DatasetKind,
    query: &DatasetQuery,
    each: &mut dyn FnMut(DatasetInfo) -> Result<(), ControlError>,
) -> Result<(), ControlError> {
    if !query.kinds.contains(kind) {
        return Ok(());
    }
    let mut info = DatasetInfo {
        name: dataset.name().to_owned(),
        kind,
        created_txg: dataset.inner().phys().creation_txg.0,
        properties: Vec::new(),
    };
    match &query.wanted {
        Wanted::Named(names) => {
            for name in names {
                info.properties.extend(one(dataset, kind, name)?);
            }
        }
        Wanted::All => {
            let listed = DATASET_PROPERTIES
                .iter()
                .filter(|property| property.shape.is_listed && property.since == Release::V2_3);
            for native in listed {
                info.properties
                    .extend(one(dataset, kind, &PropertyName::Native(native))?);
            }
            for name in user_names(dataset)? {
                info.properties
                    .extend(one(dataset, kind, &PropertyName::User(name))?);
            }
        }
    }
    each(info)
}

/// Names of user properties: the snapshot's, the dataset's, its parent's and so on up.
fn user_names(dataset: &Dataset) -> Result<Vec<String>, ControlError> {
    let mut names: Vec<String> = Vec::new();
    let inner = dataset.inner();
    let mut add = |found: &mut dyn Iterator<Item = &str>| {
        for name in found.filter(|name| name.contains(':')) {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
    };
    add(&mut inner.own_properties().map_err(io)?.names());
    let mut directory = Some(inner.directory());
    while let Some(at) = directory {
        add(&mut at.stored_properties().map_err(io)?.names());
        directory = at.parent();
    }
    Ok(names)
}

/// One property; `None` where it does not apply or is not worked out here.
fn one(
    dataset: &Dataset,
    kind: DatasetKind,
    name: &PropertyName,
) -> Result<Option<Property>, ControlError> {
    let inner = dataset.inner();
    let native = match name {
        PropertyName::User(user) => {
            let found = inner.property(user, true).map_err(io)?;
            return Ok(found.map(|(v, s)| Property::new(user.as_str(), Some(value(v)), source(s))));
        }
        PropertyName::Native(native) => native,
        // Counted per owner, or against a snapshot: not worked out here yet.
        _ => return Ok(None),
    };
    if !native.kinds.contains(kind) {
        return Ok(None);
    }
    let name = native.shape.name;
    // A snapshot has what applies to the kind of dataset that it is of.
    if kind == DatasetKind::Snapshot {
        let of_files = native.kinds.contains(DatasetKind::Filesystem);
        let of_volumes = native.kinds.contains(DatasetKind::Volume);
        let has_files = dataset.has_files().map_err(io)?;
        if of_files != of_volumes && of_files != has_files {
            return Ok(None);
        }
    }
    if name == "special_small_blocks" && kind == DatasetKind::Volume && !is_of_2_4(dataset) {
        return Ok(None);
    }
    if FROM_CONTENT.contains(&name) {
        return Ok(content(dataset, kind, name));
    }
    match native.shape.edit {
        Edit::ReadOnly => Ok(figure(dataset, name)),
        Edit::Once | Edit::OnceByKey => Ok(unencrypted(dataset, &native.shape)),
        Edit::Settable | Edit::Inheritable => {
            let is_inheritable = native.shape.edit.is_inheritable();
            let found = inner.property(name, is_inheritable).map_err(io)?;
            let mut property = match found {
                Some((v, s)) => Property::new(name, Some(value(v)), source(s)),
                None => {
                    let preset = preset_value(&native.shape).map(value);
                    Property::new(name, preset, Source::Default)
                }
            };
            if name == "mountpoint" {
                mountpoint(dataset.name(), &mut property);
            }
            Ok(property.value.is_some().then_some(property))
        }
    }
}

/// An inherited mount point goes on with the rest of the name.
fn mountpoint(name: &str, property: &mut Property) {
    let Some(Value::Text(stored)) = &property.value else {
        return;
    };
    if ["none", "legacy"].contains(&stored.as_str()) {
        return;
    }
    let below = match &property.source {
        Source::Inherited(from) => name.strip_prefix(from.as_str()).unwrap_or_default(),
        Source::Default => &format!("/{name}"),
        _ => return,
    };
    let path = format!("{}{below}", stored.trim_end_matches('/'));
    property.value = Some(Value::Text(path));
}

/// Whether the pool uses anything that only OpenZFS 2.4 has: then what 2.4 shows is shown.
fn is_of_2_4(dataset: &Dataset) -> bool {
    let features = dataset.pool().inner().features().known();
    let is_enabled = |state| state != millpond_ondisk::FeatureState::Disabled;
    features
        .filter(|(_, state)| is_enabled(*state))
        .any(|(feature, _)| super::FEATURES_OF_2_4.contains(&feature.name()))
}

/// An unencrypted dataset has the presets of the properties of encryption; those of an encrypted one
/// are not worked out here yet.
fn unencrypted(dataset: &Dataset, shape: &Shape) -> Option<Property> {
    let is_plain = matches!(dataset.inner().is_encrypted(), Ok(false));
    let is_wanted =
        shape.is_listed && ["encryption", "keyformat", "pbkdf2iters"].contains(&shape.name);
    (is_plain && is_wanted)
        .then(|| Property::new(shape.name, preset_value(shape).map(value), Source::Default))
}

/// What stands in the objects of the dataset itself; `None` where they cannot be read (a locked one)
/// or do not have it.
fn content(dataset: &Dataset, kind: DatasetKind, name: &str) -> Option<Property> {
    let has_files = dataset.has_files().ok()?;
    let objects = dataset.object_set().ok()?;
    let number = |object: u64, key: &str| -> Option<u64> {
        let zap = Zap::open(objects.object(ObjectId(object)).ok()?).ok()?;
        zap.lookup_u64(key.as_bytes()).ok()?
    };
    let (number, source) = match (name, has_files) {
        ("version", true) => (number(MASTER_NODE, "VERSION")?, Source::None),
        // Old file systems do not say: they have none of it.
        ("utf8only" | "normalization" | "casesensitivity", true) => {
            (number(MASTER_NODE, name).unwrap_or(0), Source::None)
        }
        ("volsize", false) => (number(VOLUME_ZAP, "size")?, Source::Local),
        ("volblocksize", false) if kind == DatasetKind::Volume => {
            let data = objects.object(ObjectId(VOLUME_DATA)).ok()?;
            let bytes = data.block_bytes();
            (
                bytes,
                if bytes == 16384 {
                    Source::Default
                } else {
                    Source::None
                },
            )
        }
        _ => return None,
    };
    Some(Property::new(name, Some(Value::Number(number)), source))
}

/// Counts of what is below; kept only where a limit was ever set.
fn count_below(dataset: &Dataset, name: &str, key: &str) -> Option<Property> {
    let stored = dataset.inner().directory().extension(key).ok()?;
    Some(match stored.and_then(|words| words.first().copied()) {
        Some(count) => Property::new(name, Some(Value::Number(count)), Source::Local),
        None => Property::new(name, Some(Value::Number(u64::MAX)), Source::Default),
    })
}

/// What stands in the dataset's and its directory's own records.
fn figure(dataset: &Dataset, name: &str) -> Option<Property> {
    let phys = dataset.inner().phys();
    let directory = dataset.inner().directory().phys();
    let is_snapshot = dataset.inner().is_snapshot();
    let parts = directory.breakdown();
    let ratio = |logical: u64, physical: u64| {
        let hundredths = u128::from(logical) * 100 / u128::from(physical.max(1));
        u64::try_from(hundredths).unwrap_or(u64::MAX).max(100)
    };
    let number = match name {
        "creation" => phys.creation_time,
        "createtxg" => phys.creation_txg.0,
        "guid" => phys.guid.0,
        "objsetid" => dataset.inner().id().0,
        "referenced" => phys.referenced_bytes,
        "logicalreferenced" => phys.uncompressed_bytes,
        "refcompressratio" => ratio(phys.uncompressed_bytes, phys.compressed_bytes),
        "used" if is_snapshot => phys.unique_bytes,
        "used" => directory.used_bytes,
        "compressratio" if is_snapshot => ratio(phys.uncompressed_bytes, phys.compressed_bytes),
        "compressratio" => ratio(directory.uncompressed_bytes, directory.compressed_bytes),
        "logicalused" => directory.uncompressed_bytes,
        "usedbysnapshots" => parts?.snapshots_bytes,
        "usedbydataset" => parts?.head_bytes,
        "usedbyrefreservation" => parts?.ref_reserved_bytes,
        "usedbychildren" => {
            let parts = parts?;
            parts
                .children_bytes
                .saturating_add(parts.children_reserved_bytes)
        }
        "userrefs" => dataset.holds().ok()?.len() as u64,
        "defer_destroy" => return defer_destroy(dataset),
        "filesystem_count" => return count_below(dataset, name, keys::FILESYSTEM_COUNT),
        "snapshot_count" => return count_below(dataset, name, keys::SNAPSHOT_COUNT),
        "origin" => {
            let origin = dataset.inner().origin().ok()??;
            let name = Value::Text(origin.name().to_owned());
            return Some(Property::new("origin", Some(name), Source::None));
        }
        // Nothing is mounted by a program that only reads.
        "mounted" => 0,
        _ => return None,
    };
    Some(Property::new(
        name,
        Some(Value::Number(number)),
        Source::None,
    ))
}

fn defer_destroy(dataset: &Dataset) -> Option<Property> {
    let flags = dataset.inner().phys().flags;
    let is_deferred = flags.contains(millpond_ondisk::dsl::DslDatasetFlags::DEFER_DESTROY);
    let number = Value::Number(u64::from(is_deferred));
    Some(Property::new("defer_destroy", Some(number), Source::None))
}

fn bookmarked(of: &str, bookmark: &crate::Bookmark, wanted: &Wanted) -> DatasetInfo {
    let phys = &bookmark.phys;
    let mut numbers = vec![
        ("creation", phys.creation_time),
        ("createtxg", phys.creation_txg.0),
        ("guid", phys.guid.0),
    ];
    if phys.sizes.referenced > 0 {
        numbers.push(("referenced", phys.sizes.referenced));
        numbers.push(("logicalreferenced", phys.sizes.uncompressed));
    }
    let is_wanted = |name: &str| match wanted {
        Wanted::All => true,
        Wanted::Named(names) => names.iter().any(|wanted| wanted.text() == name),
    };
    DatasetInfo {
        name: format!("{of}#{}", bookmark.name),
        kind: DatasetKind::Bookmark,
        created_txg: phys.creation_txg.0,
        properties: numbers
            .into_iter()
            .filter(|(name, _)| is_wanted(name))
            .map(|(name, n)| Property::new(name, Some(Value::Number(n)), Source::None))
            .collect(),
    }
}

/// Properties that stand in the dataset's own objects.
const FROM_CONTENT: [&str; 6] = [
    "version",
    "utf8only",
    "normalization",
    "casesensitivity",
    "volsize",
    "volblocksize",
];
/// The first object of every file system.
const MASTER_NODE: u64 = 1;
/// The bytes of a volume.
const VOLUME_DATA: u64 = 1;
/// What is known of a volume.
const VOLUME_ZAP: u64 = 2;
