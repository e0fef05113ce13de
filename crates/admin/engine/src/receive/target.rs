//! Finds out where a stream goes.

use super::problem::{of_engine, parent_of};
use super::{Naming, ReceiveRequest, Run};
use crate::{Error, View};
use millpond_dataset::{Dataset, DatasetError, DatasetName, NameTail};
use millpond_ondisk::ObjectSetKind;
use millpond_receive::ReceiveProblem;
use millpond_stream::{Begin, BeginFlags, StreamFeatures};

/// Where a stream goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// The full name of the file system or volume.
    pub(super) dataset: String,
    /// The name of the snapshot.
    pub(super) snapshot: String,
    /// The full name of the snapshot that a new clone begins with.
    pub(super) origin: Option<String>,
    /// Whether the file system or volume exists.
    pub(super) exists: bool,
    /// Whether the snapshot exists there.
    pub(super) is_present: bool,
}

impl Target {
    pub(super) fn full_name(&self) -> String {
        format!("{}@{}", self.dataset, self.snapshot)
    }
}

/// The name here of a dataset or snapshot that was sent under a name. `top` is the dataset that the whole package is about.
///
/// # Errors
/// [`ReceiveProblem::BadName`] if it is neither `top` nor below it, nor a snapshot of one of those: here it would come
/// to lie beside the target.
pub(super) fn name_of(
    request: &ReceiveRequest<'_>,
    top: &str,
    sent: &str,
) -> Result<String, ReceiveProblem> {
    let rest = sent.strip_prefix(top);
    let rest = rest.filter(|rest| rest.is_empty() || rest.starts_with(['/', '@']));
    let rest = rest.ok_or(ReceiveProblem::BadName)?;
    Ok(named(request, top, rest))
}

/// The dataset here that a whole package is about.
pub(super) fn top_of(request: &ReceiveRequest<'_>, top: &str) -> String {
    named(request, top, "")
}

fn named(request: &ReceiveRequest<'_>, top: &str, rest: &str) -> String {
    let name = &request.name;
    match request.naming {
        Naming::Given if name.contains('@') => name.clone(),
        Naming::Given => format!("{name}{rest}"),
        Naming::WithoutPool => {
            let at = top.find('/').unwrap_or(top.len());
            format!("{name}{}{rest}", top.split_at(at).1)
        }
        Naming::LastComponent => {
            let last = top.rsplit('/').next().unwrap_or(top);
            format!("{name}/{last}{rest}")
        }
    }
}

/// Whether the stream makes a new dataset.
pub(super) fn makes_new(begin: &Begin, request: &ReceiveRequest<'_>) -> bool {
    let is_resuming = begin.features.contains(StreamFeatures::RESUMING);
    let is_new =
        begin.from_guid == 0 || begin.flags.contains(BeginFlags::CLONE) || request.origin.is_some();
    is_new && !is_resuming
}

/// The dataset with this name, if there is one.
pub(super) fn found(view: &View, name: &str) -> Result<Option<Dataset>, Error> {
    match Dataset::find(view.inner(), name) {
        Ok(dataset) => Ok(Some(dataset)),
        Err(DatasetError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Run<'_> {
    /// Looks up where a stream goes, and whether it can go there.
    pub(super) fn target(&self, begin: &Begin, top: &str) -> Result<Target, ReceiveProblem> {
        let sent = String::from_utf8_lossy(&begin.to_name).into_owned();
        let full = name_of(self.request, top, &sent)?;
        let parsed = DatasetName::parse(&full).map_err(|error| of_engine(error.into(), &full))?;
        let NameTail::Snapshot(snapshot) = parsed.tail else {
            return Err(ReceiveProblem::BadName);
        };
        let (dataset, snapshot) = (parsed.path.to_owned(), snapshot.to_owned());
        let view = self.pool.committed();
        let view = view.map_err(|error| of_engine(error, &dataset))?;
        let present = self.present_name(&view, begin, &dataset);
        let looked_up = present.and_then(|name| self.look_up(&view, begin, name, snapshot));
        looked_up.map_err(|error| match error {
            Error::Receive(problem) => *problem,
            other => of_engine(other, &dataset),
        })
    }

    /// The name of a new dataset of a package. Its parent may still have an older name here, which it loses when all streams
    /// are received.
    fn present_name(&self, view: &View, begin: &Begin, name: &str) -> Result<String, Error> {
        let package = self.package.as_ref().filter(|package| {
            package.is_recursive && package.has_source && makes_new(begin, self.request)
        });
        let described = package.and_then(|package| package.dataset_of(begin.to_guid));
        let (Some(package), Some(described)) = (package, described) else {
            return Ok(name.to_owned());
        };
        let root = top_of(self.request, &package.top);
        if name == root || found(view, &root)?.is_none() {
            return Ok(name.to_owned());
        }
        let present = self.new_name(package, &root, (described, name))?;
        Ok(present.unwrap_or_else(|| name.to_owned()))
    }

    fn look_up(
        &self,
        view: &View,
        begin: &Begin,
        dataset: String,
        snapshot: String,
    ) -> Result<Target, Error> {
        let problem = |problem| Err(Error::Receive(Box::new(problem)));
        if self.request.naming != Naming::Given && found(view, &self.request.name)?.is_none() {
            return problem(ReceiveProblem::NoBase(self.request.name.clone()));
        }
        let existing = found(view, &dataset)?;
        let mut target = Target {
            exists: existing.is_some(),
            dataset,
            snapshot,
            origin: self.request.origin.clone(),
            is_present: false,
        };
        let is_resuming = begin.features.contains(StreamFeatures::RESUMING);
        match &existing {
            Some(existing) if makes_new(begin, self.request) => {
                self.check_replace(view, begin, existing)?;
            }
            Some(existing) if !is_resuming => {
                target.is_present = self.has_snapshot(existing, begin, &target.snapshot)?;
            }
            Some(_) => {}
            None if makes_new(begin, self.request) => {
                self.check_parent(view, &target.dataset)?;
            }
            None => match self.renamed(view, begin)? {
                Some(dataset) => {
                    target = Target {
                        dataset,
                        exists: true,
                        ..target
                    }
                }
                None => return problem(ReceiveProblem::NoDestination(target.dataset)),
            },
        }
        if let Some(origin) = &target.origin
            && found(view, origin)?.is_none()
        {
            return problem(ReceiveProblem::NoGivenOrigin(origin.clone()));
        }
        let is_clone = begin.flags.contains(BeginFlags::CLONE) && !is_resuming;
        if is_clone && target.origin.is_none() {
            match origin_near(view, &target.dataset, begin.from_guid)? {
                Some(origin) => target.origin = Some(origin),
                None => return problem(ReceiveProblem::NoOrigin(target.full_name())),
            }
        }
        Ok(target)
    }

    /// Whether the snapshot of a stream is there already, so that the stream is passed over.
    ///
    /// Under another name it counts only for the streams of a package: a single stream brings the name too.
    fn has_snapshot(
        &self,
        existing: &Dataset,
        begin: &Begin,
        name: &str,
    ) -> Result<bool, DatasetError> {
        let is_any_name = self.package.is_some();
        let mut snapshots = existing.snapshots()?.into_iter();
        Ok(snapshots.any(|one| {
            one.guid().0 == begin.to_guid && (is_any_name || one.snapshot_name() == Some(name))
        }))
    }

    /// The dataset that a stream of a package changes, if it has another name here.
    fn renamed(&self, view: &View, begin: &Begin) -> Result<Option<String>, Error> {
        match &self.package {
            Some(package) if package.is_recursive => {
                let root = top_of(self.request, &package.top);
                self.holder_of(view, package, &root, begin.from_guid)
            }
            _ => Ok(None),
        }
    }

    /// Checks whether an existing dataset can be replaced.
    fn check_replace(&self, view: &View, begin: &Begin, existing: &Dataset) -> Result<(), Error> {
        let problem = |problem| Err(Error::Receive(Box::new(problem)));
        let name = existing.name().to_owned();
        if !self.request.is_forced {
            return problem(ReceiveProblem::Exists(name));
        }
        if let Some((snapshot, _)) = existing.snapshot_entries()?.into_iter().next() {
            let example = format!("{name}@{snapshot}");
            return problem(ReceiveProblem::HasSnapshots(name, example));
        }
        if existing.origin()?.is_some() {
            return problem(ReceiveProblem::IsClone(name));
        }
        if u64::from(begin.object_set_type) == ObjectSetKind::Volume.number() {
            if existing.directory().parent().is_none() {
                return problem(ReceiveProblem::IsRoot(name));
            }
            let mut children = existing.directory().children()?.into_iter();
            if let Some(child) = children.next() {
                return problem(ReceiveProblem::HasChildren(name, child.name().to_owned()));
            }
        }
        let parent = found(view, parent_of(&name))?;
        let is_encrypted = |one: &Dataset| one.is_encrypted();
        let above = parent.as_ref().map_or(Ok(false), is_encrypted)?;
        let is_raw = begin.features.contains(StreamFeatures::RAW);
        match is_raw || above || existing.is_encrypted()? {
            true => problem(ReceiveProblem::EncryptionReplaced),
            false => Ok(()),
        }
    }

    fn check_parent(&self, view: &View, dataset: &str) -> Result<(), Error> {
        let problem = |problem| Err(Error::Receive(Box::new(problem)));
        let parent = parent_of(dataset);
        match found(view, parent)? {
            Some(above) if above.content_kind()? == ObjectSetKind::Volume => {
                problem(ReceiveProblem::ParentIsVolume(parent.to_owned()))
            }
            // They are created.
            None if self.request.naming == Naming::WithoutPool => Ok(()),
            None => problem(ReceiveProblem::NoParent(parent.to_owned())),
            Some(_) => Ok(()),
        }
    }
}

/// The full name of the snapshot with this guid: the one whose dataset has the most of its name in common.
pub(super) fn origin_near(view: &View, name: &str, guid: u64) -> Result<Option<String>, Error> {
    let mut best: Option<(usize, String)> = None;
    for dataset in view.datasets() {
        let dataset = dataset?;
        let common = dataset
            .name()
            .split('/')
            .zip(name.split('/'))
            .take_while(|(one, other)| one == other)
            .count();
        if best.as_ref().is_some_and(|(most, _)| *most >= common) {
            continue;
        }
        let mut snapshots = dataset.inner().snapshots()?.into_iter();
        if let Some(snapshot) = snapshots.find(|one| one.guid().0 == guid) {
            best = Some((common, snapshot.name().to_owned()));
        }
    }
    Ok(best.map(|(_, name)| name))
}
