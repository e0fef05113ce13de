//! `zfs diff`.

use super::lookup::{self, head_of, heads, one};
use super::names;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_control::properties::{DatasetKind, Kinds};
use millpond_control::{
    ControlError, DiffQuery, PathChange, PathDifference, escape_path, unescape_path,
};
use std::io::{self, Write};

/// How differences are printed.
pub struct Style {
    /// The root of the file system, without a slash at its end.
    pub mountpoint: String,
    /// With file types.
    pub has_kind: bool,
    /// With change times.
    pub has_time: bool,
    /// Tabs instead of arrows.
    pub is_parsable: bool,
    /// Names as they are, without escapes.
    pub is_raw: bool,
}

/// Prints what changed from a snapshot to a newer snapshot, or to the current content.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let (from, to) = match parsed.operands.as_slice() {
        [from] => (from, None),
        [from, to] => (from, Some(to)),
        _ => return Err(Failure::Usage("too many arguments".into())),
    };
    names::check(from, Kinds::only(&[DatasetKind::Snapshot])).map_err(|reason| {
        Failure::Refused(format!("Badly formed snapshot name {from}: {reason}"))
    })?;
    let to = match to {
        None => head_of(from).to_owned(),
        Some(to) if to.starts_with('@') => format!("{}{to}", head_of(from)),
        Some(to) => to.clone(),
    };
    lookup::open(session, head_of(from), heads(), &[])?;
    lookup::open(session, head_of(&to), heads(), &[])?;
    let style = Style {
        mountpoint: mountpoint_of(session, head_of(&to))?,
        has_kind: parsed.has("F"),
        has_time: parsed.has("t"),
        is_parsable: parsed.has("H"),
        is_raw: parsed.has("h"),
    };
    let query = DiffQuery {
        from: from.clone(),
        to,
    };
    let control = session.pools.service().map_err(Failure::Refused)?;
    let out = &mut *session.out;
    let mut written = Ok(());
    let done = control.diff(&query, &mut |difference| {
        written = put(out, &style, &difference);
        match written {
            Ok(()) => Ok(()),
            Err(_) => Err(ControlError::Stopped),
        }
    });
    written?;
    done.map_err(|error| refusal(&query, &error))?;
    Ok(0)
}

/// Where the files of a file system are, without a slash at the end.
fn mountpoint_of(session: &Session, dataset: &str) -> Result<String, Failure> {
    // Only the daemon mounts.
    let mounts = session.service()?.mounts().unwrap_or_default();
    let mount = mounts.into_iter().find(|mount| mount.dataset == dataset);
    let path = match mount {
        Some(mount) => mount.mountpoint,
        None => {
            let info = one(session, dataset, &["mountpoint"])?;
            let set = info
                .as_ref()
                .and_then(|info| lookup::text(info, "mountpoint"));
            let path = set.filter(|path| path.starts_with('/'));
            path.unwrap_or_default().to_owned()
        }
    };
    Ok(path.trim_end_matches('/').to_owned())
}

fn refusal(query: &DiffQuery, error: &ControlError) -> Failure {
    let is_same = head_of(&query.from) == head_of(&query.to);
    Failure::Refused(match error {
        ControlError::NoSuchDataset | ControlError::NoSuchPool => {
            "Unable to obtain diffs: No such file or directory".into()
        }
        ControlError::NotEarlier if is_same => {
            "Unable to obtain diffs: \n   Not an earlier snapshot from the same fs".into()
        }
        ControlError::NotEarlier => "Not an earlier snapshot from the same fs: invalid name".into(),
        other => format!("Unable to obtain diffs: {other}"),
    })
}

/// Prints a difference.
pub fn put(out: &mut dyn Write, style: &Style, difference: &PathDifference) -> io::Result<()> {
    if style.has_time {
        let (seconds, nanoseconds) = difference.ctime;
        write!(out, "{seconds:10}.{nanoseconds:09}\t")?;
    }
    let code = match difference.change {
        PathChange::Removed => '-',
        PathChange::Created => '+',
        PathChange::Modified { .. } => 'M',
        PathChange::Renamed { .. } => 'R',
    };
    write!(out, "{code}\t")?;
    if style.has_kind {
        write!(out, "{}\t", difference.kind)?;
    }
    put_path(out, style, &difference.path)?;
    match &difference.change {
        PathChange::Renamed { to } => {
            out.write_all(if style.is_parsable { b"\t" } else { b" -> " })?;
            put_path(out, style, to)?;
        }
        PathChange::Modified { links } if *links != 0 => write!(out, "\t({links:+})")?,
        _ => {}
    }
    out.write_all(b"\n")
}

fn put_path(out: &mut dyn Write, style: &Style, escaped: &str) -> io::Result<()> {
    match style.is_raw {
        true => {
            out.write_all(style.mountpoint.as_bytes())?;
            out.write_all(b"/")?;
            out.write_all(&unescape_path(escaped))
        }
        false => {
            let mountpoint = escape_path(style.mountpoint.as_bytes());
            write!(out, "{mountpoint}/{escaped}")
        }
    }
}
