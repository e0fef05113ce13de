//! Compares files that differ.

use crate::changed::Changed;
use crate::state::{State, links_of};
use crate::{Change, DiffError, Difference, Flow};
use millpond_env::sync::Arc;
use millpond_ondisk::ObjectId;
use millpond_posix::{FileSystem, Stat};

/// The two states, and who wants to know.
pub(crate) struct Compare<'a> {
    old: State,
    new: State,
    each: &'a mut dyn FnMut(Difference) -> Flow,
}

/// What becomes of an object.
enum Line {
    Removed(Stat),
    Created(Stat),
    /// It has other attributes, or maybe another path.
    Both(Stat, i64),
}

impl<'a> Compare<'a> {
    pub(crate) fn new(
        old: &Arc<FileSystem>,
        new: &Arc<FileSystem>,
        each: &'a mut dyn FnMut(Difference) -> Flow,
    ) -> Result<Self, DiffError> {
        Ok(Self {
            old: State::new(old)?,
            new: State::new(new)?,
            each,
        })
    }

    /// Compares some objects.
    pub(crate) fn batch(&mut self, batch: &[Changed]) -> Result<Flow, DiffError> {
        let mut lines = vec![];
        for changed in batch {
            self.lines(*changed, &mut lines)?;
        }
        let ids_in = |is_in: fn(&Line) -> bool| -> Vec<ObjectId> {
            let ids = lines.iter().filter(|(_, line)| is_in(line));
            ids.map(|(id, _)| *id).collect()
        };
        let in_old = ids_in(|line| !matches!(line, Line::Created(_)));
        let in_new = ids_in(|line| !matches!(line, Line::Removed(_)));
        let mut old_paths = self.old.paths(&in_old)?.into_iter();
        let mut new_paths = self.new.paths(&in_new)?.into_iter();
        for (_, line) in lines {
            let old_path = match line {
                Line::Created(_) => None,
                _ => old_paths.next(),
            };
            let new_path = match line {
                Line::Removed(_) => None,
                _ => new_paths.next(),
            };
            let Some(difference) = difference(line, old_path, new_path) else {
                continue;
            };
            if (self.each)(difference).is_break() {
                return Ok(Flow::Break(()));
            }
        }
        Ok(Flow::Continue(()))
    }

    fn lines(&self, changed: Changed, lines: &mut Vec<(ObjectId, Line)>) -> Result<(), DiffError> {
        let id = changed.id;
        let stat = |state: &State, is_in: bool| match is_in {
            true => state.stat(id),
            false => Ok(None),
        };
        let old = stat(&self.old, changed.is_in_old)?;
        let new = stat(&self.new, changed.is_in_new)?;
        match (old, new) {
            (None, None) => {}
            (Some(old), None) => lines.push((id, Line::Removed(old))),
            (None, Some(new)) => lines.push((id, Line::Created(new))),
            (Some(old), Some(new)) if is_same_file(&old, &new) => {
                if old.ctime != new.ctime {
                    let links = links_of(&new).saturating_sub(links_of(&old));
                    lines.push((id, Line::Both(new, links)));
                }
            }
            (Some(old), Some(new)) => {
                lines.push((id, Line::Removed(old)));
                lines.push((id, Line::Created(new)));
            }
        }
        Ok(())
    }
}

/// Whether two files with the same number are the same file, and not one that got the number of another.
fn is_same_file(old: &Stat, new: &Stat) -> bool {
    old.generation == new.generation && old.kind == new.kind
}

fn difference(
    line: Line,
    old_path: Option<Vec<u8>>,
    new_path: Option<Vec<u8>>,
) -> Option<Difference> {
    let (path, change, stat) = match line {
        Line::Removed(stat) => (old_path?, Change::Removed, stat),
        Line::Created(stat) => (new_path?, Change::Created, stat),
        Line::Both(stat, links) => {
            let (old_path, new_path) = (old_path?, new_path?);
            let change = match links == 0 && old_path != new_path {
                true => Change::Renamed { to: new_path },
                false => Change::Modified { links },
            };
            (old_path, change, stat)
        }
    };
    Some(Difference {
        path,
        change,
        kind: stat.kind,
        ctime: stat.ctime,
    })
}
