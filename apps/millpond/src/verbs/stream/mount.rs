//! `millpond stream mount`: a snapshot in streams as a mounted file system.

use super::opened::Opened;
use crate::session::{Ending, Failure, Session};
use crate::verbs::address::Address;
use crate::verbs::global::refused;
use crate::verbs::pools::explained;
use crate::verbs::{Global, mount};
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    mount: mount::Kernel,
    #[command(flatten)]
    pub(super) index: super::IndexOption,
    /// Streams, one snapshot in them as FILE[/CHILD]@SNAPSHOT (default: the newest one), and an existing directory
    #[arg(required = true, num_args = 2.., value_names = ["STREAM", "MOUNTPOINT"])]
    words: Vec<OsString>,
}

/// Mounts the snapshot until interrupted.
pub(super) fn run(session: &mut Session, global: &Global, options: &Options) -> Ending {
    let Some((mountpoint, words)) = options.words.split_last() else {
        return Err(Failure::Usage("where is it to be mounted?".into()));
    };
    let opened = Opened::open(session, global, words, &options.index)?;
    let snapshots = opened.snapshots()?;
    let [name] = snapshots.as_slice() else {
        return Err(Failure::Usage("one snapshot is mounted".into()));
    };
    let address = Address::parse(name.as_ref()).map_err(Failure::Usage)?;
    let dataset = opened.pools(global).dataset(&address)?;
    let files = dataset
        .served()
        .map_err(|error| refused(explained(&error)))?;
    let mounting = mount::Mounting::new(&options.mount, PathBuf::from(mountpoint))?;
    let status = mounting.stay(session, dataset.name(), files)?;
    Ok(opened.status(status))
}
