//! Looks up datasets for commands that change them.

use super::names;
use crate::session::{Failure, Session};
use millpond_control::properties::{DatasetKind, Kinds, by_name};
use millpond_control::{ControlError, DatasetInfo, DatasetQuery, Value, Wanted};

/// The pool name in a dataset name.
pub fn pool_of(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or(name)
}

/// The dataset that a snapshot or bookmark belongs to, or the name itself.
pub fn head_of(name: &str) -> &str {
    name.split(['@', '#']).next().unwrap_or(name)
}

/// File systems and volumes.
pub fn heads() -> Kinds {
    Kinds::only(&[DatasetKind::Filesystem, DatasetKind::Volume])
}

/// Builds a request for these properties.
pub fn wanted(words: &[&str]) -> Wanted {
    Wanted::Named(words.iter().filter_map(|word| by_name(word)).collect())
}

/// Returns all datasets of these kinds at and below a dataset, or `None` if the dataset does not exist.
pub fn below(
    session: &Session,
    root: &str,
    depth: u32,
    kinds: Kinds,
    words: &[&str],
) -> Result<Option<Vec<DatasetInfo>>, Failure> {
    ask(session, root, (depth, kinds, words), false)
}

/// Like [`below`], for commands that need no properties. A damaged dataset, of which only the name is known,
/// is reported as a file system or a snapshot.
pub fn below_with_damaged(
    session: &Session,
    root: &str,
    depth: u32,
    kinds: Kinds,
    words: &[&str],
) -> Result<Option<Vec<DatasetInfo>>, Failure> {
    ask(session, root, (depth, kinds, words), true)
}

fn ask(
    session: &Session,
    root: &str,
    (depth, kinds, words): (u32, Kinds, &[&str]),
    names_damaged: bool,
) -> Result<Option<Vec<DatasetInfo>>, Failure> {
    let query = DatasetQuery {
        root: root.to_owned(),
        depth,
        kinds,
        wanted: wanted(words),
        names_damaged,
    };
    let mut found = vec![];
    let result = session.service()?.datasets(&query, &mut |info| {
        found.push(info);
        Ok(())
    });
    match result {
        Ok(()) => {}
        Err(ControlError::Damaged(names)) if names_damaged => {
            let kind = |name: &str| match name.contains('@') {
                true => DatasetKind::Snapshot,
                false => DatasetKind::Filesystem,
            };
            found.extend(names.into_iter().map(|name| DatasetInfo {
                kind: kind(&name),
                name,
                created_txg: 0,
                properties: vec![],
            }));
        }
        Err(ControlError::NoSuchDataset | ControlError::NoSuchPool) => return Ok(None),
        Err(other) => {
            let text = format!("cannot open '{root}': {other}");
            return Err(Failure::Refused(text));
        }
    }
    found.sort_by(|a, b| super::order::compare(a, b, &[]));
    Ok(Some(found))
}

/// Returns one dataset, if it exists.
pub fn one(session: &Session, name: &str, words: &[&str]) -> Result<Option<DatasetInfo>, Failure> {
    let found = below(session, name, 0, Kinds::ALL, words)?;
    Ok(found.and_then(|all| all.into_iter().find(|info| info.name == name)))
}

/// Returns one dataset of these kinds, or the message that it cannot be opened.
pub fn open(
    session: &Session,
    name: &str,
    kinds: Kinds,
    words: &[&str],
) -> Result<DatasetInfo, Failure> {
    let refuse = |reason: &str| Failure::Refused(format!("cannot open '{name}': {reason}"));
    names::check(name, kinds).map_err(|reason| refuse(&reason))?;
    let found = one(session, name, words)?.ok_or_else(|| refuse("dataset does not exist"))?;
    if !kinds.contains(found.kind) {
        return Err(refuse("operation not applicable to datasets of this type"));
    }
    Ok(found)
}

/// The numeric value of a property.
pub fn number(info: &DatasetInfo, name: &str) -> Option<u64> {
    info.property(name)?.value.as_ref().and_then(Value::number)
}

/// The text value of a property.
pub fn text<'a>(info: &'a DatasetInfo, name: &str) -> Option<&'a str> {
    info.property(name)?.value.as_ref().and_then(Value::text)
}
