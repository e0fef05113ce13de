//! What a package consists of: the datasets of a tree, their properties, snapshots and holds, and the order of its
//! streams.
//!
//! Page `docs/format/send-stream.md`, "Packages".

use super::{Planned, SendRequest, StreamNames};
use crate::{Error, View};
use millpond_dataset::properties::table;
use millpond_dataset::{Dataset, Directory, PropertyValue, StoredProperties};
use millpond_env::sync::Arc;
use millpond_nvlist::{NvList, NvValue};
use millpond_ondisk::ObjectId;
use millpond_pool::properties::Edit;
use millpond_send::SendError;
use std::collections::BTreeSet;

/// What a package has beside its streams.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PackageOptions {
    /// The datasets below are sent too, with all their snapshots.
    pub is_recursive: bool,
    /// Properties are sent. A recursive package always has them.
    pub has_properties: bool,
    /// Only received values of properties are sent, also those that local ones override.
    pub only_received: bool,
    /// Holds are sent.
    pub has_holds: bool,
    /// Datasets without the snapshot, and those below them, are left out of a recursive package. Otherwise it is
    /// refused.
    pub skips_missing: bool,
    /// Full names of datasets that are left out of a recursive package, with those below them.
    pub excluded: Vec<String>,
}

impl PackageOptions {
    /// Whether the package begins with a list of its datasets.
    pub(super) fn has_list(&self) -> bool {
        self.is_recursive || self.lists_properties() || self.has_holds
    }

    fn lists_properties(&self) -> bool {
        self.is_recursive || self.has_properties || self.only_received
    }
}

/// A dataset of a package.
struct Member {
    head: Dataset,
    /// Its snapshots up to the last one that is sent, oldest first.
    snapshots: Vec<Dataset>,
    /// The index of the one that the reader has already.
    from: Option<usize>,
    /// The guid of the snapshot of the parent that it comes after, 0 for the top.
    parent_snapshot: u64,
    origin: Option<Dataset>,
}

impl Member {
    fn last(&self) -> Option<&Dataset> {
        self.snapshots.last()
    }

    /// The guid that names the state of this dataset to those below it.
    fn guid_for_children(&self) -> u64 {
        let from = self.from.and_then(|from| self.snapshots.get(from));
        from.or(self.last()).map_or(0, |one| one.guid().0)
    }

    /// Whether another dataset can be received only after this one: its parent or its origin is here.
    fn comes_before(&self, other: &Self) -> bool {
        let is_parent = self.guid_for_children() == other.parent_snapshot;
        let origin = other.origin.as_ref().filter(|_| other.from.is_none());
        let has = |id: ObjectId| self.snapshots.iter().any(|one| one.id() == id);
        is_parent || origin.is_some_and(|origin| has(origin.id()))
    }
}

/// The members of a recursive package.
struct Tree<'a> {
    request: &'a SendRequest,
    /// The last parts of the snapshots' names.
    to: &'a str,
    from: Option<&'a str>,
    members: Vec<Member>,
    skipped: Vec<String>,
}

impl View {
    /// Plans a package with a list.
    pub(super) fn plan_package(&self, request: &SendRequest) -> Result<Planned, Error> {
        let snapshot = Dataset::find(self.inner(), &request.name)?;
        let directory = Arc::clone(snapshot.directory());
        let to = snapshot.snapshot_name().ok_or(SendError::NotSnapshot)?;
        let options = &request.package;
        let from = request.from.as_deref();
        let from = from.map(|from| from.split_once('@').unwrap_or((from, "")));
        if !options.is_recursive {
            let streams = self.steps(request)?;
            let member = listed_alone(&snapshot, &streams, request)?;
            // One stream alone does not say from where it comes.
            let from = from.filter(|_| request.has_between);
            let list = list(request, to, from.map(|(_, name)| name), &[member])?;
            return Ok(Planned {
                streams,
                list: Some(list),
                skipped: vec![],
            });
        }
        if from.is_some_and(|(owner, name)| owner != directory.name() || name.is_empty()) {
            return Err(SendError::NotEarlier.into());
        }
        let mut tree = Tree {
            request,
            to,
            from: from.map(|(_, name)| name),
            members: vec![],
            skipped: vec![],
        };
        tree.add(&directory, None)?;
        let list = list(request, to, tree.from, &tree.members)?;
        Ok(Planned {
            streams: tree.streams()?,
            list: Some(list),
            skipped: tree.skipped,
        })
    }
}

/// The only dataset of a package that is not recursive: of its snapshots the list has those that are sent, and the one
/// that they begin from if there may be several.
fn listed_alone(
    snapshot: &Dataset,
    streams: &[StreamNames],
    request: &SendRequest,
) -> Result<Member, Error> {
    let directory = snapshot.directory();
    let head = directory.head()?.ok_or(SendError::NotSnapshot)?;
    let sent: BTreeSet<&str> = streams.iter().map(|(name, _)| name.as_str()).collect();
    let is_listed = |one: &Dataset| {
        let is_sent = sent.contains(one.name());
        let is_source = request.has_between && request.from.as_deref() == Some(one.name());
        is_sent || is_source
    };
    let mut snapshots = head.snapshots()?;
    snapshots.retain(is_listed);
    let from = snapshots
        .iter()
        .position(|one| request.from.as_deref() == Some(one.name()));
    Ok(Member {
        origin: head.origin()?,
        head,
        snapshots,
        from,
        parent_snapshot: 0,
    })
}

impl Tree<'_> {
    /// Adds a dataset and those below it. `parent` is the index of the dataset above.
    fn add(&mut self, directory: &Arc<Directory>, parent: Option<usize>) -> Result<(), Error> {
        let name = directory.name();
        let Some(head) = directory.head()? else {
            return Ok(());
        };
        if parent.is_some() && self.request.package.excluded.iter().any(|one| one == name) {
            return Ok(());
        }
        let parent = parent.and_then(|parent| self.members.get(parent));
        let mut snapshots = head.snapshots()?;
        let position = |name: &str| {
            let is_it = |one: &Dataset| one.snapshot_name() == Some(name);
            snapshots.iter().position(is_it)
        };
        let Some(last) = position(self.to) else {
            let above = parent.and_then(Member::last);
            let is_later =
                above.is_some_and(|above| head.phys().creation_txg > above.phys().creation_txg);
            let missing = SendError::MissingSnapshot {
                dataset: name.to_owned(),
                snapshot: self.to.to_owned(),
            };
            return match is_later {
                // It was made after the snapshots.
                true => Ok(()),
                false if self.request.package.skips_missing && parent.is_some() => {
                    self.skipped.push(name.to_owned());
                    Ok(())
                }
                false => Err(missing.into()),
            };
        };
        let from = self.from.and_then(position);
        if from.is_some_and(|from| from >= last) || from.is_none() && self.is_source_missing(parent)
        {
            return Err(SendError::NotEarlier.into());
        }
        snapshots.truncate(last.saturating_add(1));
        let member = Member {
            parent_snapshot: parent.map_or(0, Member::guid_for_children),
            origin: head.origin()?,
            head,
            snapshots,
            from,
        };
        let own = self.members.len();
        self.members.push(member);
        for child in directory.children_in_table_order()? {
            self.add(&child, Some(own))?;
        }
        Ok(())
    }

    /// Whether a dataset must have the older snapshot: the top must.
    fn is_source_missing(&self, parent: Option<&Member>) -> bool {
        self.from.is_some() && parent.is_none()
    }

    /// The streams in an order in which they can be received: each after those of the parent, and of the dataset that
    /// has its origin.
    fn streams(&self) -> Result<Vec<StreamNames>, Error> {
        let mut streams = vec![];
        let mut left: Vec<&Member> = self.members.iter().collect();
        while !left.is_empty() {
            let mut waiting: Vec<&Member> = vec![];
            let mut rest = left.iter();
            while let Some(member) = rest.next() {
                let mut others = waiting.iter().chain(rest.as_slice());
                match others.any(|other| other.comes_before(member)) {
                    true => waiting.push(member),
                    false => self.streams_of(member, &mut streams),
                }
            }
            if waiting.len() == left.len() {
                let name = waiting.first().map(|member| member.head.name().to_owned());
                return Err(SendError::OriginBelow(name.unwrap_or_default()).into());
            }
            left = waiting;
        }
        Ok(streams)
    }

    fn streams_of(&self, member: &Member, streams: &mut Vec<StreamNames>) {
        let mut before = match member.from.and_then(|from| member.snapshots.get(from)) {
            Some(from) => Some(from),
            None => member.origin.as_ref(),
        };
        let first = member.from.map_or(0, |from| from.saturating_add(1));
        let last = member.snapshots.len().saturating_sub(1);
        for (index, snapshot) in member.snapshots.iter().enumerate().skip(first) {
            let is_skipped = member.from.is_some()
                && !self.request.has_between
                && index < last
                && !self.is_origin(snapshot);
            if is_skipped {
                continue;
            }
            let from = before.map(|before| before.name().to_owned());
            streams.push((snapshot.name().to_owned(), from));
            before = Some(snapshot);
        }
    }

    /// Whether a clone in the package begins with this snapshot.
    fn is_origin(&self, snapshot: &Dataset) -> bool {
        let mut origins = self.members.iter().filter_map(|one| one.origin.as_ref());
        origins.any(|origin| origin.id() == snapshot.id())
    }
}

/// The list at the beginning of a package.
fn list(
    request: &SendRequest,
    to: &str,
    from: Option<&str>,
    members: &[Member],
) -> Result<NvList, Error> {
    let options = &request.package;
    let mut list = NvList::new();
    if let Some(from) = from {
        list.push("fromsnap", from);
    }
    list.push("tosnap", to);
    if !options.is_recursive {
        list.insert_flag("not_recursive");
    }
    if request.flags.raw {
        list.insert_flag("raw");
    }
    let mut datasets = NvList::new();
    for member in members {
        let key = format!("{:#x}", member.head.guid().0);
        datasets.push(key, described(request, member)?);
    }
    list.push("fss", datasets);
    Ok(list)
}

fn described(request: &SendRequest, member: &Member) -> Result<NvList, Error> {
    let options = &request.package;
    let directory = member.head.directory();
    let mut list = NvList::new();
    list.push("name", member.head.name());
    list.push("parentfromsnap", member.parent_snapshot);
    if let Some(origin) = &member.origin {
        list.push("origin", origin.guid().0);
    }
    let root = directory.crypt_key()?.map(|key| key.root_directory);
    if options.lists_properties() {
        if root.is_some() && !request.flags.raw {
            let name = member.head.name().to_owned();
            return Err(SendError::EncryptedProperties(name).into());
        }
        let stored = directory.stored_properties()?;
        let mut properties = sent_properties(options, &stored);
        if let Some(size) = member.head.volume_bytes()? {
            properties.push("volsize", size);
        }
        list.push("props", properties);
    }
    if root == Some(directory.id()) {
        list.insert_flag("is_encroot");
    }
    let mut snapshots = NvList::new();
    let mut properties = NvList::new();
    let mut holds = NvList::new();
    for (index, snapshot) in member.snapshots.iter().enumerate() {
        let name = snapshot.snapshot_name().unwrap_or_default();
        snapshots.push(name, snapshot.guid().0);
        let is_described = options.is_recursive || member.from.is_none_or(|from| index > from);
        if is_described {
            properties.push(name, sent_properties(options, &snapshot.own_properties()?));
        }
        if options.has_holds {
            let mut own = NvList::new();
            for hold in snapshot.holds()? {
                own.push(hold.tag, hold.time_s);
            }
            holds.push(name, own);
        }
    }
    list.push("snaps", snapshots);
    list.push("snapprops", properties);
    if options.has_holds {
        list.push("snapholds", holds);
    }
    Ok(list)
}

/// The properties of a table that a package takes along: those that were set or received, and can be set elsewhere.
fn sent_properties(options: &PackageOptions, stored: &StoredProperties) -> NvList {
    let mut list = NvList::new();
    for name in stored.names() {
        let value = match options.only_received {
            true => stored.received(name),
            false => stored.get(name).map(|(value, _)| value),
        };
        let edit = table::find(name).map(|known| known.shape.edit);
        let is_sent = match edit {
            Some(edit) => matches!(edit, Edit::Inheritable | Edit::Settable),
            None => name.contains(':'),
        };
        if let Some(value) = value.filter(|_| is_sent) {
            list.push(name, nv_value(value));
        }
    }
    list
}

fn nv_value(value: &PropertyValue) -> NvValue {
    match value {
        PropertyValue::Number(number) => (*number).into(),
        PropertyValue::Text(text) => text.as_str().into(),
    }
}
