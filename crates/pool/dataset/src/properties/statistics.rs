//! Read-only properties: sizes, births, relations.
//!
//! Page `docs/format/space-accounting.md`.

use super::{Property, PropertySource, PropertyValue};
use crate::error::Named;
use crate::properties::owners::OwnerSpace;
use crate::properties::special::{OwnerKind, QuotaSubject};
use crate::properties::table::DatasetProperty;
use crate::properties::values::{PropertyReader, Subject, visible};
use crate::properties::written::{self, Since};
use crate::{Bookmark, Dataset, DatasetError, DatasetName, Directory, NameTail, RedactionList};
use millpond_alloc::{DirectoryLimits, HeadLimits, available_in_directory, available_in_head};
use millpond_env::sync::Arc;
use millpond_ondisk::DslDatasetFlags;
use millpond_ondisk::dsl::keys;
use millpond_zap::Zap;

impl PropertyReader {
    pub(super) fn statistic(
        &mut self,
        subject: &Subject<'_>,
        name: &'static str,
    ) -> Result<Option<Property>, DatasetError> {
        let dataset = subject.dataset;
        let (phys, directory) = (dataset.phys(), dataset.directory().phys());
        let is_snapshot = dataset.is_snapshot();
        let breakdown = directory.breakdown();
        let text = |text: String| Some(PropertyValue::Text(text));
        let list = |items: Vec<String>| match items.is_empty() {
            true => None,
            false => Some(PropertyValue::Text(items.join(","))),
        };
        let number = match name {
            "type" => return Ok(with_value(name, text(subject.kind.word().to_owned()))),
            "name" => return Ok(with_value(name, text(dataset.name().to_owned()))),
            "origin" => return Ok(with_value(name, self.origin(dataset)?.and_then(text))),
            "prevsnap" => return Ok(with_value(name, self.previous(dataset)?.and_then(text))),
            "clones" => return Ok(with_value(name, list(self.names.clones(phys)?))),
            "redact_snaps" => {
                let guids = dataset.redacted_for()?.unwrap_or_default();
                return Ok(with_value(name, list(decimal(&guids))));
            }
            "receive_resume_token" => {
                return Ok(with_value(name, dataset.resume_token()?.and_then(text)));
            }
            "filesystem_count" => return self.count(dataset, name, keys::FILESYSTEM_COUNT),
            "snapshot_count" => return self.count(dataset, name, keys::SNAPSHOT_COUNT),
            "creation" => Some(phys.creation_time),
            "createtxg" => Some(phys.creation_txg.0),
            "guid" => Some(phys.guid.0),
            "objsetid" => Some(dataset.id().0),
            "used" if is_snapshot => Some(phys.unique_bytes),
            "used" => Some(directory.used_bytes),
            "available" => self.available(dataset)?,
            "referenced" => Some(phys.referenced_bytes),
            "logicalreferenced" => Some(phys.uncompressed_bytes),
            "logicalused" => Some(directory.uncompressed_bytes),
            "refcompressratio" => Some(ratio(phys.uncompressed_bytes, phys.compressed_bytes)),
            "compressratio" if is_snapshot => {
                Some(ratio(phys.uncompressed_bytes, phys.compressed_bytes))
            }
            "compressratio" => Some(ratio(
                directory.uncompressed_bytes,
                directory.compressed_bytes,
            )),
            "usedbydataset" => breakdown.map(|used| used.head_bytes),
            "usedbysnapshots" => breakdown.map(|used| used.snapshots_bytes),
            "usedbyrefreservation" => breakdown.map(|used| used.ref_reserved_bytes),
            "usedbychildren" => breakdown.map(|used| {
                used.children_bytes
                    .saturating_add(used.children_reserved_bytes)
            }),
            // Pools before version 11 have snapshots without one before them.
            "written" if phys.is_snapshot() && phys.previous_snapshot.is_none() => None,
            "written" => Some(written::since_previous(&self.pool, phys)?),
            // This crate does not track mounts.
            "mounted" => Some(0),
            "numclones" => Some(phys.clones_count()),
            "unique" => Some(phys.unique_bytes),
            "userrefs" => Some(holds_count(dataset)?),
            "defer_destroy" => Some(flag(dataset, DslDatasetFlags::DEFER_DESTROY)),
            "inconsistent" => Some(flag(dataset, DslDatasetFlags::INCONSISTENT)),
            "redacted" => Some(u64::from(dataset.redacted_for()?.is_some())),
            "ivsetguid" => first(dataset.extension(keys::IVSET_GUID)?),
            "snapshots_changed" => first(dataset.directory().extension(keys::SNAPSHOTS_CHANGED)?),
            _ => None,
        };
        Ok(number.map(|number| Property::numeric(name, number)))
    }

    pub(super) fn of_bookmark(
        &mut self,
        bookmark: &Bookmark,
        property: &'static DatasetProperty,
    ) -> Result<Option<Property>, DatasetError> {
        let (name, phys) = (property.shape.name, &bookmark.phys);
        let nonzero = |number: u64| Some(number).filter(|number| *number != 0);
        let number = match name {
            "type" | "name" => {
                let word = match name {
                    "type" => "bookmark",
                    _ => &bookmark.name,
                };
                let value = Some(PropertyValue::Text(word.to_owned()));
                return Ok(with_value(name, value));
            }
            "redact_snaps" => {
                let guids = match phys.redaction_list {
                    None => return Ok(None),
                    Some(list) => RedactionList::open(&self.pool, list)?.snapshots(),
                };
                let value =
                    (!guids.is_empty()).then(|| PropertyValue::Text(decimal(&guids).join(",")));
                return Ok(with_value(name, value));
            }
            "creation" => Some(phys.creation_time),
            "createtxg" => Some(phys.creation_txg.0),
            "guid" => Some(phys.guid.0),
            "referenced" => nonzero(phys.sizes.referenced),
            "logicalreferenced" => nonzero(phys.sizes.uncompressed),
            "ivsetguid" => nonzero(phys.ivset_guid.0),
            _ => None,
        };
        Ok(number.map(|number| Property::numeric(name, number)))
    }

    fn origin(&mut self, dataset: &Dataset) -> Result<Option<String>, DatasetError> {
        match dataset.directory().phys().origin {
            None => Ok(None),
            Some(id) => Ok(visible(self.names.dataset(id)?)),
        }
    }

    fn previous(&mut self, dataset: &Dataset) -> Result<Option<String>, DatasetError> {
        match dataset.phys().previous_snapshot {
            None => Ok(None),
            Some(id) => Ok(visible(self.names.dataset(id)?)),
        }
    }

    /// A count of descendants. Counts exist only after a limit was set somewhere.
    fn count(
        &self,
        dataset: &Dataset,
        name: &'static str,
        key: &str,
    ) -> Result<Option<Property>, DatasetError> {
        let count = first(dataset.directory().extension(key)?);
        let (number, source) = match count {
            Some(count) => (count, PropertySource::Local),
            None => (u64::MAX, PropertySource::Default),
        };
        let value = Some(PropertyValue::Number(number));
        Ok(Some(Property::new(name, value, source)))
    }

    /// Bytes that a head may still write. `None` if damage hides how full the pool is.
    fn available(&mut self, dataset: &Dataset) -> Result<Option<u64>, DatasetError> {
        if self.pool.space().is_err() {
            return Ok(None);
        }
        let in_directory = self.available_in(dataset.directory())?;
        let phys = dataset.phys();
        let limit = |name| -> Result<u64, DatasetError> {
            Ok(match dataset.directory().property(name, false)? {
                Some((PropertyValue::Number(number), _)) => number,
                _ => 0,
            })
        };
        let limits = HeadLimits {
            referenced_bytes: phys.referenced_bytes,
            unique_bytes: phys.unique_bytes,
            ref_quota_bytes: limit("refquota")?,
            ref_reserved_bytes: limit("refreservation")?,
        };
        Ok(Some(available_in_head(in_directory, limits)))
    }

    /// Bytes available in a directory. The depth check when directories are opened bounds the recursion.
    fn available_in(&mut self, directory: &Arc<Directory>) -> Result<u64, DatasetError> {
        if let Some(known) = self.available.get(&directory.id()) {
            return Ok(*known);
        }
        let phys = directory.phys();
        let (above, reserved_bytes) = match directory.parent() {
            Some(parent) => (self.available_in(&Arc::clone(parent))?, phys.reserved_bytes),
            None => {
                let limit = self.pool.space()?.limit().limit_bytes;
                (limit.saturating_sub(phys.used_bytes), 0)
            }
        };
        let limits = DirectoryLimits {
            used_bytes: phys.used_bytes,
            quota_bytes: phys.quota_bytes,
            reserved_bytes,
        };
        let available = available_in_directory(above, limits);
        self.available.insert(directory.id(), available);
        Ok(available)
    }

    /// The value of `written@SNAPSHOT` or `written#BOOKMARK`; `None` if the dataset has no such ancestor.
    ///
    /// `since` begins with `@` or `#`; a full name may follow.
    pub(super) fn written_since(
        &mut self,
        dataset: &Dataset,
        since: &str,
    ) -> Result<Option<u64>, DatasetError> {
        let own = dataset.directory().name();
        let (mark, given) = since.split_at(since.len().min(1));
        let full = match given.contains(['@', '#']) {
            true => given.to_owned(),
            false => format!("{own}{mark}{given}"),
        };
        let parsed = DatasetName::parse(&full)?;
        let found = match parsed.tail {
            NameTail::Head => return Ok(None),
            NameTail::Snapshot(_) => match Dataset::find(&self.pool, &full) {
                Ok(snapshot) => Some(Since::snapshot(snapshot.id(), snapshot.phys())),
                Err(DatasetError::NotFound { .. }) => None,
                Err(error) => return Err(error),
            },
            NameTail::Bookmark(name) => match Dataset::find(&self.pool, parsed.path) {
                Ok(head) => head
                    .bookmarks()?
                    .iter()
                    .find(|bookmark| bookmark.name == name)
                    .and_then(|bookmark| Since::bookmark(&bookmark.phys)),
                Err(DatasetError::NotFound { .. }) => None,
                Err(error) => return Err(error),
            },
        };
        match found {
            None => Ok(None),
            Some(since) => {
                let sizes = written::since(&self.pool, dataset.phys(), &since)?;
                Ok(sizes.map(|sizes| sizes.referenced))
            }
        }
    }

    /// The value of `userused@W` and its siblings. Owners must be numeric here; the caller translates
    /// names.
    pub(super) fn of_owner(
        &mut self,
        dataset: &Dataset,
        owners: OwnerKind,
        subject: QuotaSubject,
        owner: &str,
    ) -> Result<Option<u64>, DatasetError> {
        let Ok(id) = (match owner {
            "" => Ok(0),
            digits => digits.parse::<u64>(),
        }) else {
            return Ok(None);
        };
        let key = self.loaded.get(&dataset.directory().id()).cloned();
        let own = dataset.owner_space(owners, id, key)?;
        Ok(own.and_then(|own: OwnerSpace| match subject {
            QuotaSubject::BytesUsed => Some(own.used_bytes),
            QuotaSubject::BytesLimit => Some(own.quota_bytes),
            QuotaSubject::ObjectsUsed => own.objects,
            QuotaSubject::ObjectsLimit => own.objects_quota,
        }))
    }
}

fn with_value(name: &str, value: Option<PropertyValue>) -> Option<Property> {
    value.map(|value| Property::new(name, Some(value), PropertySource::None))
}

fn first(words: Option<Vec<u64>>) -> Option<u64> {
    words?.first().copied()
}

fn decimal(guids: &[u64]) -> Vec<String> {
    guids.iter().map(u64::to_string).collect()
}

fn flag(dataset: &Dataset, flag: DslDatasetFlags) -> u64 {
    u64::from(dataset.phys().flags.contains(flag))
}

/// The ratio in hundredths; 100 if nothing is stored.
fn ratio(uncompressed: u64, compressed: u64) -> u64 {
    let ratio = (u128::from(uncompressed) * 100).checked_div(u128::from(compressed));
    ratio.map_or(100, |ratio| u64::try_from(ratio).unwrap_or(u64::MAX))
}

fn holds_count(dataset: &Dataset) -> Result<u64, DatasetError> {
    let Some(table) = dataset.phys().user_references else {
        return Ok(0);
    };
    let object = dataset.pool().mos().object(table).named(dataset.name())?;
    let zap = Zap::open(object).named(dataset.name())?;
    zap.entry_count().named(dataset.name())
}
