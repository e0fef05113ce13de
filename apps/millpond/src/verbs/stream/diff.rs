//! `millpond stream diff`: what a stream changes.

use super::opened::Opened;
use crate::session::{Ending, Failure, Session};
use crate::verbs::Global;
use crate::verbs::global::refused;
use crate::verbs::pools::explained;
use crate::zfs::{DiffStyle, put_difference};
use clap::Args;
use millpond_service::diff_view;
use std::ffi::OsString;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Show the file types (-F of zfs diff)
    #[arg(long = "types")]
    has_kind: bool,
    /// Tabs instead of arrows
    #[arg(short = 'H')]
    is_parsable: bool,
    /// Do not escape names (-h of zfs diff)
    #[arg(long = "raw-names")]
    is_raw: bool,
    /// Show the change times (-t of zfs diff)
    #[arg(long = "times")]
    has_time: bool,
    #[command(flatten)]
    pub(super) index: super::IndexOption,
    /// Streams; two snapshots in them as FILE@SNAPSHOT (default: the newest one, and the one before it)
    #[arg(required = true, value_name = "STREAM")]
    streams: Vec<OsString>,
}

/// Prints the differences.
pub(super) fn run(session: &mut Session, global: &Global, options: &Options) -> Ending {
    let opened = Opened::open(session, global, &options.streams, &options.index)?;
    let mut pools = opened.pools(global);
    let snapshots = opened.snapshots()?;
    let (from, to) = match snapshots.as_slice() {
        [to] => (before(&opened, to)?, to.clone()),
        [from, to] => (from.clone(), to.clone()),
        _ => return Err(Failure::Usage("two snapshots are compared".into())),
    };
    // Locked datasets are unlocked here.
    for name in [&from, &to] {
        let address = crate::verbs::address::Address::parse(name.as_ref());
        pools.dataset(&address.map_err(Failure::Usage)?)?;
    }
    let style = DiffStyle {
        mountpoint: String::new(),
        has_kind: options.has_kind,
        has_time: options.has_time,
        is_parsable: options.is_parsable,
        is_raw: options.is_raw,
    };
    let out = &mut *session.out;
    let mut written = Ok(());
    let done = diff_view(&opened.streams.view, &from, &to, &mut |difference| {
        written = put_difference(out, &style, &difference);
        written.is_ok()
    });
    written?;
    done.map_err(|error| refused(format!("unable to obtain diffs: {error}")))?;
    Ok(opened.status(0))
}

/// The snapshot of the same dataset before this one.
fn before(opened: &Opened, name: &str) -> Result<String, Failure> {
    let dataset = name.split('@').next().unwrap_or_default();
    let dataset = opened.streams.view.dataset(dataset);
    let dataset = dataset.map_err(|error| refused(explained(&error)))?;
    let snapshots = dataset.snapshots();
    let snapshots = snapshots.map_err(|error| refused(explained(&error)))?;
    let at = snapshots
        .iter()
        .position(|snapshot| snapshot.name() == name);
    let older = at.and_then(|at| snapshots.get(at.checked_sub(1)?));
    match older {
        Some(older) => Ok(older.name().to_owned()),
        None => Err(refused(format!(
            "'{name}' is the oldest snapshot in the streams: there is nothing to compare it with"
        ))),
    }
}
