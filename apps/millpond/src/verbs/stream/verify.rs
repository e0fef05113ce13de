//! `millpond stream verify`: whether streams are whole and can be applied.

use super::info::summary;
use super::opened::open;
use crate::session::{Ending, Session};
use crate::text::number;
use crate::verbs::Global;
use crate::verbs::global::refused;
use crate::verbs::name_text::escaped;
use millpond_stored::{StoredError, StoredStreams};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Verifies all checksums, and applies the streams to a pool that is thrown away.
pub(super) fn run(session: &mut Session, global: &Global, paths: &[PathBuf]) -> Ending {
    match open(global, paths, None) {
        Ok(streams) => applied(session, global, &streams),
        // Without it nothing can be applied, but read.
        Err(StoredError::MissingBase { path, name, guid }) => {
            let why = format!("its older snapshot is not here, guid {guid}");
            read_only(
                session,
                global,
                paths,
                &path,
                &escaped(name.as_bytes()),
                &why,
            )
        }
        Err(error) => Err(refused(error)),
    }
}

fn applied(session: &mut Session, global: &Global, streams: &StoredStreams) -> Ending {
    let mut status = 0;
    for stream in &streams.streams {
        let path = stream.path.display().to_string();
        let damage = stream.damage.as_ref().map(|damage| damage.reason.clone());
        status |= u8::from(damage.is_some());
        let verdict = match &damage {
            None => "sound: all checksums are right, and it can be received",
            Some(_) => "damaged",
        };
        say(
            session,
            global,
            &path,
            verdict,
            damage.as_deref(),
            stream.snapshots.len(),
        )?;
    }
    Ok(status)
}

fn read_only(
    session: &mut Session,
    global: &Global,
    paths: &[PathBuf],
    without: &Path,
    name: &str,
    why: &str,
) -> Ending {
    let mut status = 0;
    for path in paths {
        let shown = path.display().to_string();
        if path.as_os_str() == "-" {
            return Err(refused(format!("-: '{name}' cannot be applied: {why}")));
        }
        let summary = summary(global, path)?;
        status |= u8::from(summary.damage.is_some());
        let verdict = match &summary.damage {
            None => "whole: all checksums are right; it was not applied",
            Some(_) => "damaged",
        };
        let damage = summary.damage.as_deref();
        say(
            session,
            global,
            &shown,
            verdict,
            damage,
            summary.streams.len(),
        )?;
    }
    let without = without.display();
    writeln!(
        session.err,
        "millpond: {without}: '{name}' was not applied: {why}"
    )?;
    Ok(status)
}

fn say(
    session: &mut Session,
    global: &Global,
    path: &str,
    verdict: &str,
    damage: Option<&str>,
    snapshots: usize,
) -> std::io::Result<()> {
    if global.is_json {
        let verdict = verdict.split(':').next().unwrap_or_default();
        let line = json!({
            "path": path,
            "verdict": verdict,
            "snapshots": snapshots,
            "damage": damage,
        });
        return writeln!(session.out, "{line}");
    }
    let count = number::count(snapshots as u64);
    let damage = damage.map_or_else(String::new, |damage| format!(": {damage}"));
    writeln!(
        session.out,
        "{path}: {verdict}{damage} (snapshots: {count})"
    )
}
