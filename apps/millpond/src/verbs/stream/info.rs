//! `millpond stream info`: what streams are, and whether they are whole.

use super::opened::reading;
use crate::session::{Ending, Failure, Session};
use crate::text::{date, number};
use crate::verbs::Global;
use crate::verbs::global::refused;
use crate::verbs::name_text::escaped;
use millpond_inspect::stream::{Begin, BeginFlags, StreamFeatures};
use millpond_stored::{InputSummary, StreamInput, StreamSummary, summarize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

/// Describes each stream file.
pub(super) fn run(session: &mut Session, global: &Global, paths: &[PathBuf]) -> Ending {
    let mut status = 0;
    let mut summaries = vec![];
    for path in paths {
        let summary = summary(global, path)?;
        status |= u8::from(summary.damage.is_some());
        summaries.push((path, summary));
    }
    // Snapshots that are named in one stream are meant by their guids in others.
    let streams = summaries.iter().flat_map(|(_, summary)| &summary.streams);
    let names: BTreeMap<u64, String> = streams
        .map(|stream| (stream.begin.to_guid, name(&stream.begin)))
        .collect();
    for (path, summary) in &summaries {
        let shown = path.display().to_string();
        match global.is_json {
            true => writeln!(session.out, "{}", to_json(&shown, summary))?,
            false => write_text(session, &shown, summary, &names)?,
        }
    }
    Ok(status)
}

/// Reads a stream to its end.
///
/// # Errors
/// If it cannot be opened.
pub(super) fn summary(global: &Global, path: &PathBuf) -> Result<InputSummary, Failure> {
    let read = reading(global, std::slice::from_ref(path), |read_bytes| {
        StreamInput::open(path, read_bytes).map(summarize)
    });
    read.map_err(|error| refused(format!("{}: {error}", path.display())))
}

fn write_text(
    session: &mut Session,
    path: &str,
    summary: &InputSummary,
    names: &BTreeMap<u64, String>,
) -> io::Result<()> {
    let out = &mut *session.out;
    writeln!(out, "{path}")?;
    if let Some(package) = &summary.package {
        let (count, top) = (summary.streams.len(), name(package));
        writeln!(out, "  package    {count} streams for '{top}'")?;
    }
    writeln!(out, "  size       {}", number::bytes(summary.bytes))?;
    match &summary.damage {
        None => writeln!(out, "  state      whole: all checksums are right")?,
        Some(damage) => writeln!(out, "  state      damaged: {damage}")?,
    }
    for stream in &summary.streams {
        let begin = &stream.begin;
        let cut = match stream.is_whole {
            true => "",
            false => ", not whole",
        };
        let size = number::bytes(stream.bytes);
        writeln!(out, "  snapshot   {}", name(begin))?;
        writeln!(out, "    kind     {}", kind(begin))?;
        if begin.from_guid != 0 {
            let older = match names.get(&begin.from_guid) {
                Some(known) => format!("{known}, guid {}", begin.from_guid),
                None => format!("the snapshot with guid {}", begin.from_guid),
            };
            writeln!(out, "    since    {older}")?;
        }
        let created = date::seconds(begin.creation_s, &session.environment.zone);
        writeln!(out, "    guid     {}", begin.to_guid)?;
        writeln!(out, "    created  {created}")?;
        writeln!(
            out,
            "    size     {size} in {}{cut}",
            number::of(stream.records, "record", "records")
        )?;
        let features = features(begin);
        if !features.is_empty() {
            writeln!(out, "    features {}", features.join(", "))?;
        }
    }
    Ok(())
}

fn to_json(path: &str, summary: &InputSummary) -> Value {
    let streams: Vec<Value> = summary.streams.iter().map(stream_json).collect();
    json!({
        "path": path,
        "package": summary.package.as_ref().map(name),
        "size_bytes": summary.bytes,
        "is_whole": summary.damage.is_none(),
        "damage": summary.damage,
        "streams": streams,
    })
}

fn stream_json(stream: &StreamSummary) -> Value {
    let begin = &stream.begin;
    json!({
        "snapshot": name(begin),
        "kind": kind(begin),
        "guid": begin.to_guid,
        "from_guid": Some(begin.from_guid).filter(|guid| *guid != 0),
        "creation": begin.creation_s,
        "size_bytes": stream.bytes,
        "records": stream.records,
        "is_whole": stream.is_whole,
        "features": features(begin),
    })
}

fn name(begin: &Begin) -> String {
    escaped(&begin.to_name)
}

fn kind(begin: &Begin) -> String {
    let of = match begin.object_set_type {
        2 => "a file system",
        3 => "a volume",
        _ => "an unknown object set",
    };
    let has = |feature| begin.features.contains(feature);
    let mut kind = match (begin.from_guid, begin.flags.contains(BeginFlags::CLONE)) {
        _ if has(StreamFeatures::RESUMING) => "rest of an interrupted stream".to_owned(),
        (0, _) => "full stream".to_owned(),
        (_, true) => "clone".to_owned(),
        (_, false) => "increment".to_owned(),
    };
    for (feature, word) in [
        (StreamFeatures::RAW, "raw"),
        (StreamFeatures::REDACTED, "redacted"),
    ] {
        if has(feature) {
            kind = format!("{word} {kind}");
        }
    }
    format!("{kind} of {of}")
}

/// The names of the features, and the bits of those that have none.
fn features(begin: &Begin) -> Vec<String> {
    let known = begin.features.iter_names();
    let mut names: Vec<String> = known.map(|(name, _)| name.to_lowercase()).collect();
    let unknown = begin.features.difference(StreamFeatures::all());
    if !unknown.is_empty() {
        names.push(format!("unknown ({:#x})", unknown.bits()));
    }
    names
}
