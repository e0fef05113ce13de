//! `zfs redact`.

use super::change_text::failure;
use super::lookup::{head_of, one, pool_of};
use super::names;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_control::properties::{DatasetKind, Kinds};
use millpond_control::{DatasetChange, PoolChange};

/// Creates a redaction bookmark.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let [snapshot, bookmark, redacted_for @ ..] = parsed.operands.as_slice() else {
        return Err(Failure::Usage("too few arguments".into()));
    };
    let action = format!("cannot redact '{snapshot}'");
    let refused = |reason: String| Failure::Refused(format!("{action}: {reason}"));
    if let Some(short) = redacted_for.iter().find(|name| name.starts_with('@')) {
        let reason = format!("'{short}': snapshots are given with their full dataset names");
        return Err(refused(reason));
    }
    for name in std::iter::once(snapshot).chain(redacted_for) {
        names::check(name, Kinds::only(&[DatasetKind::Snapshot])).map_err(refused)?;
        if one(session, name, &[])?.is_none() {
            return Err(refused(format!("'{name}' does not exist")));
        }
    }
    if bookmark.contains('#') {
        let reason = format!("'{bookmark}': the name of the bookmark must not contain '#'");
        return Err(refused(reason));
    }
    let name = format!("{}#{bookmark}", head_of(snapshot));
    names::check(&name, Kinds::only(&[DatasetKind::Bookmark])).map_err(refused)?;
    let change = PoolChange::Dataset(DatasetChange::Redact {
        snapshot: snapshot.clone(),
        name,
        redacted_for: redacted_for.to_vec(),
    });
    let pool = pool_of(snapshot).to_owned();
    let done = session.service()?.change(&pool, &[change], &parsed.line);
    done.map_err(|failed| failure(&action, &failed))?;
    Ok(0)
}
