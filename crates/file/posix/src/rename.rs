//! Renames and moves files.

use crate::FileSystem;
use crate::error::FileError;
use crate::writing::{ENTRY_BYTES, NODE_BYTES};

use crate::create::{LINKS_MAX, NewMode, Plan};
use crate::open_node::{OpenNode, lock_changes_of};
use crate::settings::Caller;
use crate::state::{Lists, NodeState};
use crate::{DirectoryEntry, FileKind, Node};
use millpond_ondisk::intent_log::LogRecordBody;
use millpond_ondisk::intent_log::RenameKind;
use millpond_sa::{FileFlags, Timestamp};
use millpond_txg::Transaction;

/// How a rename treats the new name and the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// An existing file at the new name is replaced.
    #[default]
    Replace,
    /// The new name must not exist.
    NoReplace,
    /// Both names must exist, and are exchanged.
    Exchange,
    /// Like [`RenameMode::Replace`], and a character device 0:0 takes the old name. Union file systems treat
    /// it as "deleted below".
    Whiteout,
    /// Both [`RenameMode::NoReplace`] and [`RenameMode::Whiteout`].
    WhiteoutNoReplace,
}

impl RenameMode {
    fn makes_whiteout(self) -> bool {
        matches!(self, Self::Whiteout | Self::WhiteoutNoReplace)
    }
    fn may_replace(self) -> bool {
        matches!(self, Self::Replace | Self::Whiteout)
    }
}

/// One side of a rename: a directory and a name in it.
#[derive(Debug, Clone, Copy)]
pub struct DirEntryRef<'p> {
    /// The directory.
    pub directory: &'p Node,
    /// The name.
    pub name: &'p [u8],
}

/// The same with a directory that is open for change.
#[derive(Clone, Copy)]
struct Side<'p> {
    directory: &'p OpenNode,
    name: &'p [u8],
}

impl<'p> Side<'p> {
    fn of(entry: DirEntryRef<'p>) -> Result<Self, FileError> {
        Ok(Self {
            directory: entry.directory.for_change()?,
            name: entry.name,
        })
    }
}

/// Both sides of a rename, as looked up.
struct Found {
    source_entry: DirectoryEntry,
    source: OpenNode,
    target_entry: Option<DirectoryEntry>,
    target: Option<OpenNode>,
}

impl Found {
    /// Whether the old and the new name are the same entry, so only its spelling changes.
    fn is_respelling(&self, from: Side<'_>, to: Side<'_>) -> bool {
        from.directory.id() == to.directory.id()
            && self.target_entry.as_ref() == Some(&self.source_entry)
            && self.source_entry.name != to.name
    }
}

impl FileSystem {
    /// Renames a file. If both names are links of the same file, nothing happens.
    ///
    /// # Errors
    /// [`FileError::NotFound`], [`FileError::Exists`], [`FileError::NotEmpty`], [`FileError::NotADirectory`]
    /// and [`FileError::IsADirectory`] if the file types do not match, [`FileError::Invalid`] for a move of a
    /// directory below itself, [`FileError::CrossProject`]; and what [`FileError`] lists for names, flags,
    /// quotas and space.
    pub fn rename(
        &self,
        caller: &Caller,
        from: DirEntryRef<'_>,
        to: DirEntryRef<'_>,
        mode: RenameMode,
    ) -> Result<(), FileError> {
        let (from, to) = (Side::of(from)?, Side::of(to)?);
        let writing = self.writing()?;
        if !from.directory.is_directory() || !to.directory.is_directory() {
            return Err(FileError::NotADirectory);
        }
        self.check_writable()?;
        self.check_new_name(to.directory.id(), to.name)?;
        loop {
            let Some(found) = self.look_at_both(from, to, mode)? else {
                continue;
            };
            let changes_parents = from.directory.id() != to.directory.id()
                && (found.source.is_directory()
                    || mode == RenameMode::Exchange
                        && found
                            .target
                            .as_ref()
                            .is_some_and(|node| node.is_directory()));
            let _moves = changes_parents.then(|| writing.lock_moves());
            if changes_parents {
                self.check_loops(from, to, &found, mode)?;
            }
            if self.try_rename(caller, from, to, mode, &found)? {
                drop(found);
                self.reap()?;
                return self.settle();
            }
        }
    }

    /// Looks up both names; `None` if they changed in the meantime.
    fn look_at_both(
        &self,
        from: Side<'_>,
        to: Side<'_>,
        mode: RenameMode,
    ) -> Result<Option<Found>, FileError> {
        let source_entry = self.find(from.directory, from.name)?;
        let source_entry = source_entry.ok_or(FileError::NotFound)?;
        let Some(source) = self.node_of_entry(from.directory, &source_entry)? else {
            return Ok(None);
        };
        let target_entry = self.find(to.directory, to.name)?;
        let target = match &target_entry {
            None if mode == RenameMode::Exchange => return Err(FileError::NotFound),
            None => None,
            Some(entry) => match self.node_of_entry(to.directory, entry)? {
                None => return Ok(None),
                found => found,
            },
        };
        Ok(Some(Found {
            source_entry,
            source,
            target_entry,
            target,
        }))
    }

    fn check_loops(
        &self,
        from: Side<'_>,
        to: Side<'_>,
        found: &Found,
        mode: RenameMode,
    ) -> Result<(), FileError> {
        let below_itself = || FileError::invalid("a directory cannot be below itself");
        if found.source.is_directory() && self.is_above(found.source.id(), to.directory)? {
            return Err(below_itself());
        }
        if let Some(target) = &found.target
            && mode == RenameMode::Exchange
            && target.is_directory()
            && self.is_above(target.id(), from.directory)?
        {
            return Err(below_itself());
        }
        Ok(())
    }

    /// Renames if both names still refer to the files found. Returns whether it did.
    fn try_rename(
        &self,
        caller: &Caller,
        from: Side<'_>,
        to: Side<'_>,
        mode: RenameMode,
        found: &Found,
    ) -> Result<bool, FileError> {
        let mut nodes = vec![&**from.directory, &**to.directory, &*found.source];
        nodes.extend(found.target.as_deref());
        let _changes = lock_changes_of(&nodes);
        if self.find(from.directory, from.name)?.as_ref() != Some(&found.source_entry)
            || self.find(to.directory, to.name)? != found.target_entry
        {
            return Ok(false);
        }
        self.check_attributes(&nodes)?;
        if found.is_respelling(from, to) && !mode.makes_whiteout() {
            if mode != RenameMode::Exchange {
                self.respell(from, to, found)?;
            }
            return Ok(true);
        }
        if let Some(target) = &found.target
            && !mode.may_replace()
            && mode != RenameMode::Exchange
        {
            let _ = target;
            return Err(FileError::Exists);
        }
        if found
            .target
            .as_ref()
            .is_some_and(|target| target.id() == found.source.id())
        {
            return Ok(true);
        }
        self.check_rename(from, to, mode, found)?;
        match mode {
            RenameMode::Exchange => self.exchange(from, to, found)?,
            _ => self.replace(caller, from, to, mode, found)?,
        }
        Ok(true)
    }

    fn check_rename(
        &self,
        from: Side<'_>,
        to: Side<'_>,
        mode: RenameMode,
        found: &Found,
    ) -> Result<(), FileError> {
        let source = found.source.state();
        let (from_state, to_state) = (from.directory.state(), to.directory.state());
        let is_exchange = mode == RenameMode::Exchange;
        self.check_directory(&from_state, false)?;
        self.check_directory(&to_state, true)?;
        self.check_removal(&source)?;
        let is_move = from.directory.id() != to.directory.id();
        if is_move {
            self.check_project(&to_state, &source)?;
        }
        if let Some(target) = &found.target {
            let state = target.state();
            self.check_directory(&to_state, false)?;
            self.check_removal(&state)?;
            if is_exchange {
                self.check_directory(&from_state, true)?;
                if is_move {
                    self.check_project(&from_state, &state)?;
                }
            } else {
                match (found.source.is_directory(), target.is_directory()) {
                    (true, false) => return Err(FileError::NotADirectory),
                    (false, true) => return Err(FileError::IsADirectory),
                    (true, true) if !self.is_empty(target)? => return Err(FileError::NotEmpty),
                    _ => {}
                }
            }
        }
        let brings_directory =
            found.source.is_directory() && !found.target.as_ref().is_some_and(|t| t.is_directory());
        if is_move && brings_directory && to_state.links >= LINKS_MAX {
            return Err(FileError::TooManyLinks);
        }
        Ok(())
    }

    /// Changes the spelling of an entry, in a file system that compares names without case or in a normal
    /// form.
    fn respell(&self, from: Side<'_>, to: Side<'_>, found: &Found) -> Result<(), FileError> {
        let writing = self.writing()?;
        let (mut parent, mut state) = (from.directory.state(), found.source.state());
        self.check_directory(&parent, true)?;
        self.check_directory(&parent, false)?;
        self.check_removal(&state)?;
        let now = writing.now();
        let tx = self.begin(2 * NODE_BYTES + 2 * ENTRY_BYTES)?;
        moved(&mut state, None, now);
        self.store(&tx, &found.source, state, &Lists::default())?;
        let unfinished = tx.unfinished();
        self.remove_entry(&tx, from.directory, &found.source_entry.name)?;
        self.add_entry(
            &tx,
            to.directory,
            to.name,
            found.source.id(),
            found.source.kind(),
        )?;
        parent.content_changed(now);
        self.store(&tx, from.directory, parent, &Lists::default())?;
        self.record_rename(&tx, RenameKind::Plain, from, to, found);
        unfinished.done();
        Ok(())
    }

    fn record_rename(
        &self,
        tx: &Transaction,
        kind: RenameKind,
        from: Side<'_>,
        to: Side<'_>,
        found: &Found,
    ) {
        // The log must not contain the new name without the earlier changes of the file.
        self.promote_records(found.source.id());
        let target_name = match (&found.target_entry, kind) {
            (Some(entry), RenameKind::Exchange) => &entry.name,
            _ => to.name,
        };
        let body = LogRecordBody::Rename {
            kind,
            source_directory: from.directory.id(),
            target_directory: to.directory.id(),
            source_name: &found.source_entry.name,
            target_name,
        };
        self.record(tx, None, body);
    }

    fn exchange(&self, from: Side<'_>, to: Side<'_>, found: &Found) -> Result<(), FileError> {
        let writing = self.writing()?;
        let (Some(target), Some(target_entry)) = (&found.target, &found.target_entry) else {
            return Err(FileError::NotFound);
        };
        let now = writing.now();
        let tx = self.begin(4 * NODE_BYTES + 4 * ENTRY_BYTES)?;
        let source_entry = &found.source_entry;
        let old = found.source.state();
        let mut state = old;
        moved(&mut state, Some(to.directory), now);
        self.store(&tx, &found.source, state, &Lists::default())?;
        let mut state = target.state();
        moved(&mut state, Some(from.directory), now);
        self.store(&tx, target, state, &Lists::default())
            .map_err(|error| self.undo_store(&tx, &found.source, old, error))?;
        let unfinished = tx.unfinished();
        self.remove_entry(&tx, from.directory, &source_entry.name)?;
        self.remove_entry(&tx, to.directory, &target_entry.name)?;
        let (source_kind, target_kind) = (found.source.kind(), target.kind());
        self.add_entry(
            &tx,
            to.directory,
            &target_entry.name,
            found.source.id(),
            source_kind,
        )?;
        self.add_entry(
            &tx,
            from.directory,
            &source_entry.name,
            target.id(),
            target_kind,
        )?;
        let gained = i64::from(found.source.is_directory()) - i64::from(target.is_directory());
        let is_move = from.directory.id() != to.directory.id();
        self.note_entries(&tx, to.directory, 0, if is_move { gained } else { 0 }, now)?;
        if is_move {
            self.note_entries(&tx, from.directory, 0, -gained, now)?;
        }
        self.promote_records(target.id());
        self.record_rename(&tx, RenameKind::Exchange, from, to, found);
        unfinished.done();
        Ok(())
    }

    fn replace(
        &self,
        caller: &Caller,
        from: Side<'_>,
        to: Side<'_>,
        mode: RenameMode,
        found: &Found,
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        let now = writing.now();
        let whiteout = if mode.makes_whiteout() {
            let plan = Plan {
                rdev: Some(0),
                ..Plan::of(FileKind::CharacterDevice, NewMode::exactly(0))
            };
            let parent = from.directory.state();
            Some(self.draft(caller, from.directory, &parent, plan, now)?)
        } else {
            None
        };
        let is_last = found
            .target
            .as_ref()
            .is_some_and(|node| node.is_directory() || node.state().links <= 1);
        let _unlinked = is_last.then(|| writing.unlinked().lock_table());
        let tx = self.begin(6 * NODE_BYTES + 4 * ENTRY_BYTES)?;
        let source = &found.source;
        // Steps that can fail come first and are undone on error: storing attributes, and adding a name that
        // needs space in a table that cannot be read. The other entries were just looked up.
        let old = source.state();
        let mut state = old;
        moved(&mut state, Some(to.directory), now);
        self.store(&tx, source, state, &Lists::default())?;
        let undo = |error| self.undo_store(&tx, source, old, error);
        let add = || self.add_entry(&tx, to.directory, to.name, source.id(), source.kind());
        let unfinished;
        if let (Some(target), Some(entry)) = (&found.target, &found.target_entry) {
            self.drop_link(&tx, target, now).map_err(undo)?;
            unfinished = tx.unfinished();
            self.remove_entry(&tx, to.directory, &entry.name)?;
            add()?;
            let directories = -i64::from(target.is_directory());
            self.note_entries(&tx, to.directory, -1, directories, now)?;
        } else {
            add().map_err(undo)?;
            unfinished = tx.unfinished();
        }
        self.remove_entry(&tx, from.directory, &found.source_entry.name)?;
        let whiteout = whiteout.map(|draft| self.realise(&tx, draft)).transpose()?;
        let directories = i64::from(source.is_directory());
        self.note_entries(&tx, from.directory, -1, -directories, now)?;
        self.note_entries(&tx, to.directory, 1, directories, now)?;
        if let Some(node) = whiteout {
            let name = &found.source_entry.name;
            self.add_entry(&tx, from.directory, name, node.id(), node.kind())?;
            self.note_entries(&tx, from.directory, 1, 0, now)?;
            self.promote_records(source.id());
            let from = (from.directory.id(), name.as_slice());
            self.record_whiteout(&tx, &node, from, (to.directory.id(), to.name));
        } else {
            self.record_rename(&tx, RenameKind::Plain, from, to, found);
        }
        if is_last && let Some(target) = &found.target {
            self.forget_records(target.id());
        }
        unfinished.done();
        Ok(())
    }

    fn note_entries(
        &self,
        tx: &Transaction,
        directory: &OpenNode,
        entries: i64,
        directories: i64,
        now: Timestamp,
    ) -> Result<(), FileError> {
        let mut state = directory.state();
        state.entries_changed(entries, directories, now);
        self.store(tx, directory, state, &Lists::default())
    }
}

/// Updates a file's attributes after a rename; `directory` is the new directory, if it changed.
fn moved(state: &mut NodeState, directory: Option<&OpenNode>, now: Timestamp) {
    state.attributes_changed(now);
    state.flags |= FileFlags::AV_MODIFIED;
    if let Some(directory) = directory {
        state.parent = directory.id();
        let hands_down = directory.state().flags.contains(FileFlags::PROJECT_INHERIT);
        if hands_down && state.project.is_some() {
            state.flags |= FileFlags::PROJECT_INHERIT;
        }
    }
}
