//! Finds the snapshots that a request is about.

use super::{Earlier, Found, SendRequest, StreamNames};
use crate::{Error, View};
use millpond_dataset::properties::ResumeToken;
use millpond_dataset::{Dataset, DatasetError, DatasetName, NameTail, RedactionList};
use millpond_ondisk::{Guid, ObjectId, Txg};
use millpond_send::{Older, SendError, SendFlags, Unfinished};
use std::collections::BTreeMap;

/// The version of file systems of today.
const ZPL_VERSION: u64 = 5;

impl View {
    /// The streams that a request leads to, oldest first, by their names and those of the older snapshots.
    pub(super) fn steps(&self, request: &SendRequest) -> Result<Vec<StreamNames>, Error> {
        let (name, from) = match request.guids {
            None => (request.name.clone(), request.from.clone()),
            Some(guids) => self.by_guids(&request.name, guids, &request.redacted_from)?,
        };
        let Some(older) = from.clone().filter(|_| request.has_between) else {
            return Ok(vec![(name, from)]);
        };
        let first = Dataset::find(self.inner(), &older)?;
        let mut at = Dataset::find(self.inner(), &name)?;
        // To find the name of one snapshot, the whole table is read: so it is read once for all.
        let entries = at.snapshot_entries()?.into_iter();
        let names: BTreeMap<ObjectId, String> = entries.map(|(name, id)| (id, name)).collect();
        let mut steps = vec![];
        loop {
            let previous = at.phys().previous_snapshot.ok_or(SendError::NotEarlier)?;
            let previous = match names.get(&previous) {
                Some(name) => at.open_snapshot(name, previous)?,
                None => Dataset::by_id(self.inner(), previous)?,
            };
            let is_first = previous.id() == first.id();
            // Each snapshot must be older than the next one; otherwise the chain is a cycle.
            let is_older = previous.phys().creation_txg < at.phys().creation_txg;
            if !is_older || previous.directory().id() != at.directory().id() && !is_first {
                return Err(SendError::NotEarlier.into());
            }
            steps.push((at.name().to_owned(), Some(previous.name().to_owned())));
            if is_first {
                steps.reverse();
                return Ok(steps);
            }
            at = previous;
        }
    }

    /// The names of a snapshot or head that was called `name`, and of the older one, which is redacted with respect to snapshots
    /// with these guids.
    fn by_guids(
        &self,
        name: &str,
        (to, from): (u64, u64),
        redacted_from: &[u64],
    ) -> Result<StreamNames, Error> {
        let head = name.split('@').next().unwrap_or(name);
        let head = Dataset::find(self.inner(), head)?;
        let has = |guid: u64| move |one: &Dataset| one.guid().0 == guid;
        let snapshot = match head.guid().0 == to {
            // The stream was not one of a snapshot.
            true => Some(head.clone()),
            false => head.snapshots()?.into_iter().find(has(to)),
        };
        let Some(snapshot) = snapshot else {
            return Err(match Dataset::find(self.inner(), name) {
                Ok(_) => SendError::Replaced.into(),
                Err(error) => error.into(),
            });
        };
        if from == 0 {
            return Ok((snapshot.name().to_owned(), None));
        }
        let mut at = Some(head.clone());
        while let Some(dataset) = at {
            if let Some(older) = dataset.snapshots()?.into_iter().find(has(from))
                && older.redacted_for()?.unwrap_or_default() == redacted_from
            {
                return Ok((snapshot.name().to_owned(), Some(older.name().to_owned())));
            }
            if let Some(older) = self.bookmark_redacted(&dataset, Guid(from), redacted_from)? {
                return Ok((snapshot.name().to_owned(), Some(older)));
            }
            let owner = match dataset.origin()? {
                Some(origin) => origin.directory().head()?,
                None => None,
            };
            // An origin is older than its clones, so this ends.
            at = owner.filter(|owner| owner.id() != dataset.id());
        }
        Err(SendError::SourceGone(Guid(from)).into())
    }

    /// The full name of a bookmark of the snapshot with this guid that is redacted with respect to exactly these snapshots.
    fn bookmark_redacted(
        &self,
        dataset: &Dataset,
        guid: Guid,
        redacted: &[u64],
    ) -> Result<Option<String>, Error> {
        for bookmark in dataset.bookmarks()? {
            if bookmark.phys.guid != guid {
                continue;
            }
            let guids = match bookmark.phys.redaction_list {
                Some(list) => RedactionList::open(self.inner(), list)?.snapshots(),
                None => vec![],
            };
            if guids == redacted {
                return Ok(Some(format!("{}#{}", dataset.name(), bookmark.name)));
            }
        }
        Ok(None)
    }

    /// The full name of the redaction bookmark of the snapshot that is sent.
    fn redaction_of(
        &self,
        dataset: &Dataset,
        request: &SendRequest,
    ) -> Result<Option<String>, Error> {
        let is_listed = !request.redacted.is_empty() && dataset.redacted_for()?.is_none();
        if request.redaction.is_some() || !is_listed {
            return Ok(request.redaction.clone());
        }
        let Some(head) = dataset.directory().head()? else {
            return Ok(None);
        };
        let found = self.bookmark_redacted(&head, dataset.guid(), &request.redacted)?;
        match found {
            Some(bookmark) => Ok(Some(bookmark)),
            None => Err(SendError::RedactionGone(dataset.name().to_owned()).into()),
        }
    }

    /// Looks up a stream's names.
    pub(super) fn look_up(
        &self,
        name: &str,
        from: Option<&str>,
        request: &SendRequest,
    ) -> Result<Found, Error> {
        if request.is_unfinished {
            return self.look_up_unfinished(name);
        }
        let dataset = Dataset::find(self.inner(), name)?;
        let opened = crate::dataset::Dataset::new(self.clone(), dataset.clone());
        let is_raw = request.flags.raw && dataset.is_encrypted()?;
        if !is_raw && opened.is_locked()? {
            return Err(SendError::Locked.into());
        }
        let version = dataset.file_system_version()?;
        let older = from.map(|from| self.older(&dataset, from)).transpose()?;
        let mut lacked = None;
        let redacted_from = match &older {
            Some((_, Earlier::Snapshot(earlier))) => earlier.redacted_for()?,
            Some((_, Earlier::Bookmark(earlier))) => match earlier.redaction_list {
                Some(list) => {
                    let list = RedactionList::open(self.inner(), list)?;
                    if !list.is_complete() {
                        let bookmark = from.unwrap_or_default().to_owned();
                        return Err(SendError::NoRedactionList(bookmark).into());
                    }
                    let guids = list.snapshots();
                    lacked = Some(list);
                    Some(guids)
                }
                None => None,
            },
            None => None,
        };
        let redaction = match self.redaction_of(&dataset, request)? {
            None => None,
            Some(bookmark) => Some(self.redaction_list(&dataset, &bookmark, request)?),
        };
        Ok(Found {
            dataset,
            version,
            older,
            redaction,
            redacted_from: redacted_from.unwrap_or_default(),
            lacked,
            flags: request.flags,
            unfinished: None,
        })
    }

    /// Looks up what an interrupted receive into a dataset left.
    fn look_up_unfinished(&self, name: &str) -> Result<Found, Error> {
        let head = Dataset::find(self.inner(), name)?;
        let none = || SendError::NotPartlyReceived(name.to_owned());
        let partial = head.partly_received()?.ok_or_else(none)?;
        let token = partial.resume_token()?.ok_or_else(none)?;
        let token = ResumeToken::parse(&token).map_err(|_| none())?;
        if token.is_raw {
            return Err(SendError::PartlyReceivedRaw.into());
        }
        if self.dataset_by_id(partial.id())?.is_locked()? {
            return Err(SendError::Locked.into());
        }
        let older = match (token.from_guid, partial.phys().previous_snapshot) {
            (0, _) => None,
            (guid, Some(previous)) => {
                let previous = Dataset::by_id(self.inner(), previous)?;
                if previous.guid().0 != guid {
                    return Err(SendError::SourceGone(Guid(guid)).into());
                }
                let is_of_origin = previous.directory().id() != head.directory().id();
                let (older, earlier) = self.older(&partial, previous.name())?;
                // The state is in a hidden child of the dataset.
                let older = Older {
                    is_of_origin,
                    ..older
                };
                Some((older, earlier))
            }
            (guid, None) => return Err(SendError::SourceGone(Guid(guid)).into()),
        };
        // Its own version may not have been received yet.
        let version = match partial.file_system_version() {
            Ok(version) => version,
            Err(_) => Some(ZPL_VERSION),
        };
        Ok(Found {
            version,
            older,
            redaction: None,
            redacted_from: token.redacted_from.clone(),
            lacked: None,
            flags: SendFlags {
                large_blocks: token.large_blocks,
                embedded: token.embedded,
                compressed: token.compressed,
                raw: false,
            },
            unfinished: Some(Unfinished {
                guid: Guid(token.to_guid),
                name: token.to_name,
            }),
            dataset: partial,
        })
    }

    /// Opens the list of a redaction bookmark of the snapshot that is sent.
    fn redaction_list(
        &self,
        dataset: &Dataset,
        bookmark: &str,
        request: &SendRequest,
    ) -> Result<RedactionList, Error> {
        let is_plain = !request.flags.raw && !request.has_between && !request.package.has_list();
        if !is_plain {
            return Err(SendError::NotRedactable.into());
        }
        let missing = || DatasetError::NotFound {
            name: bookmark.to_owned(),
        };
        let parsed = DatasetName::parse(bookmark)?;
        let NameTail::Bookmark(name) = parsed.tail else {
            return Err(missing().into());
        };
        let owner = Dataset::find(self.inner(), parsed.path)?;
        let mut bookmarks = owner.bookmarks()?.into_iter();
        let found = bookmarks.find(|one| one.name == name).ok_or_else(missing)?;
        let unusable = || SendError::NoRedactionList(bookmark.to_owned());
        let list = found.phys.redaction_list.ok_or_else(unusable)?;
        let list = RedactionList::open(self.inner(), list)?;
        let is_usable = list.is_complete() && found.phys.guid == dataset.guid();
        match is_usable && dataset.is_snapshot() {
            true => Ok(list),
            false => Err(unusable().into()),
        }
    }

    /// Looks up what the reader of a stream has already.
    fn older(&self, dataset: &Dataset, from: &str) -> Result<(Older, Earlier), Error> {
        let parsed = DatasetName::parse(from)?;
        let missing = || DatasetError::NotFound {
            name: from.to_owned(),
        };
        let owner = Dataset::find(self.inner(), parsed.path)?;
        let (guid, created, iv_set, earlier) = match parsed.tail {
            NameTail::Bookmark(name) => {
                let mut bookmarks = owner.bookmarks()?.into_iter();
                let bookmark = bookmarks.find(|bookmark| bookmark.name == name);
                let phys = bookmark.ok_or_else(missing)?.phys;
                let earlier = Earlier::Bookmark(Box::new(phys));
                (phys.guid, phys.creation_txg, phys.ivset_guid.0, earlier)
            }
            NameTail::Snapshot(name) => {
                let older = owner.snapshot(name)?;
                let (guid, created) = (older.phys().guid, older.phys().creation_txg);
                let iv_set = older.iv_set()?.unwrap_or(0);
                (guid, created, iv_set, Earlier::Snapshot(Box::new(older)))
            }
            NameTail::Head => return Err(SendError::NotEarlier.into()),
        };
        let is_of_origin = owner.directory().id() != dataset.directory().id();
        if !is_earlier(dataset, &owner, created)? {
            return Err(SendError::NotEarlier.into());
        }
        let older = Older {
            guid,
            created,
            iv_set,
            is_of_origin,
        };
        Ok((older, earlier))
    }
}

/// Whether a dataset contains the state that `owner` had in a txg.
pub(crate) fn is_earlier(dataset: &Dataset, owner: &Dataset, txg: Txg) -> Result<bool, Error> {
    let mut at = dataset.clone();
    let mut newest = dataset.phys().creation_txg;
    if !dataset.is_snapshot() {
        newest = Txg(u64::MAX);
    }
    loop {
        if at.directory().id() == owner.directory().id() {
            return Ok(txg < newest);
        }
        match at.origin()? {
            // An origin is older than its clones, so this ends.
            Some(origin) if origin.phys().creation_txg < newest => {
                newest = Txg(origin.phys().creation_txg.0.saturating_add(1));
                at = origin;
            }
            _ => return Ok(false),
        }
    }
}
