//! Golden streams are opened without receiving them, and hold what the pool holds that they were sent from.

use crate::first_difference;
use crate::received::{Golden, before, content};
use anyhow::{Context, Result, ensure};
use millpond_engine::View;
use millpond_stored::{IndexUse, StoredOptions, StoredStreams};
use millpond_stream::{Begin, StreamFeatures};
use millpond_tests::record;
use millpond_tests::runner::Outcome;
use std::path::Path;

/// The full name of the snapshot with this guid.
fn named(view: &View, guid: u64) -> Result<Option<String>> {
    for dataset in view.datasets() {
        for snapshot in dataset?.snapshots()? {
            if snapshot.inner().guid().0 == guid {
                return Ok(Some(snapshot.name().to_owned()));
            }
        }
    }
    Ok(None)
}

/// Compares each snapshot of a stream with that of the pool. Returns the first difference.
fn compared(folder: &Path, golden: &View, ours: &View, begins: &[Begin]) -> Result<Option<String>> {
    for begin in begins {
        let sent = String::from_utf8_lossy(&begin.to_name).into_owned();
        let name = named(ours, begin.to_guid)?.with_context(|| format!("{sent} is missing"))?;
        if begin.features.contains(StreamFeatures::RAW) {
            let keys = record::load(folder)?.keys;
            let (_, key) = keys.iter().next().context("no key of the case")?;
            ours.load_key(&name, &key.bytes)?;
        }
        // What was left out is a hole, so there is a difference.
        if begin.features.contains(StreamFeatures::REDACTED) {
            continue;
        }
        let (theirs, ours) = (content(golden, &sent)?, content(ours, &name)?);
        if theirs != ours {
            return Ok(Some(format!(
                "{sent}: {}",
                first_difference(&theirs, &ours)
            )));
        }
    }
    Ok(None)
}

/// Opens a stream together with all that must come before it: without an index, with a new one, and from that.
pub fn outcome(folder: &Path, all: &[Golden], stream: &Golden) -> Result<Outcome> {
    let is_tree_of_two = [" -R -i ", " -R -I "];
    if is_tree_of_two
        .iter()
        .any(|words| stream.command.contains(words))
    {
        let reason = "the only stream of its older snapshots has its new ones too";
        return Ok(Outcome::PassedOver(reason.to_owned()));
    }
    let own = tempfile::tempdir()?;
    let mut paths = vec![];
    let chain = match before(all, stream) {
        Ok(chain) => chain,
        Err(error) => return Ok(Outcome::PassedOver(error.to_string())),
    };
    // The newest one first: the order is found by their guids.
    for one in [stream].into_iter().chain(chain.into_iter().rev()) {
        let path = own.path().join(&one.file);
        std::fs::write(&path, &one.bytes)?;
        paths.push(path);
    }
    let begins = stream.begins()?;
    let (golden, _disks) = crate::golden_view(folder)?;
    let options = StoredOptions {
        index: Some(own.path().join("index")),
        ..StoredOptions::default()
    };
    for expected in [IndexUse::Written(None), IndexUse::Used] {
        let opened = StoredStreams::open(&paths, &options)?;
        ensure!(
            opened.index.as_ref() == Some(&expected),
            "the index: {:?}",
            opened.index
        );
        ensure!(opened.streams.len() == paths.len(), "a stream is missing");
        if let Some(difference) = compared(folder, &golden, &opened.view, &begins)? {
            return Ok(Outcome::Failed(difference));
        }
    }
    Ok(Outcome::Passed("opened, and from its index".to_owned()))
}
