//! Send streams of golden pools, byte for byte.
//!
//! Each case with a `STREAMS.json` holds streams that OpenZFS sent, and the pool that they were sent from. All are read
//! here, and those whose options are offered are sent again.
#![forbid(unsafe_code)]

mod opened;
mod received;
mod redacted;
mod resumed;

use anyhow::{Context, Result, anyhow, bail};
use millpond_compress::decompress;
use millpond_engine::{OpenOptions, PackageOptions, Search, SendFlags, SendRequest, View};
use millpond_ondisk::CompressionKind;
use millpond_stream::{Record, StreamReader, Taken};
use millpond_tests::runner::{self, Outcome, Trial};
use millpond_tests::{images, record};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    runner::main(trials())
}

struct Stream {
    file: String,
    command: String,
}

fn streams(folder: &Path) -> Result<Vec<Stream>> {
    let list: serde_json::Value =
        serde_json::from_slice(&images::read_file(folder, "STREAMS.json")?)?;
    let list = list.as_array().context("STREAMS.json is no list")?;
    let text = |one: &serde_json::Value, key: &str| {
        let found = one.get(key).and_then(|value| value.as_str());
        found.map(str::to_owned).ok_or_else(|| anyhow!("no {key}"))
    };
    list.iter()
        .map(|one| {
            Ok(Stream {
                file: text(one, "stream")?,
                command: text(one, "command")?,
            })
        })
        .collect()
}

fn trials() -> Result<Vec<Trial>> {
    let set = images::golden_set()?;
    let mut trials = vec![];
    for case in images::cases(&set.folder)? {
        let folder = set.folder.join(&case);
        if !folder.join("STREAMS.json").is_file() {
            continue;
        }
        let all = streams(&folder)?;
        let goldens = all
            .iter()
            .map(|stream| received::Golden::load(&folder, stream));
        let goldens: Arc<Vec<received::Golden>> = Arc::new(goldens.collect::<Result<_>>()?);
        for index in 0..goldens.len() {
            let (folder, goldens) = (folder.clone(), Arc::clone(&goldens));
            let file = goldens[index]
                .file
                .trim_end_matches(".zsend.zst")
                .to_owned();
            let (same, again) = (folder.clone(), Arc::clone(&goldens));
            trials.push(Trial {
                name: format!("{case}::{file}::opened"),
                run: Box::new(move || {
                    let outcome = opened::outcome(&same, &again, &again[index]);
                    outcome.unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
                }),
            });
            trials.push(Trial {
                name: format!("{case}::{file}::received"),
                run: Box::new(move || {
                    let outcome = received::outcome(&folder, &goldens, &goldens[index]);
                    outcome.unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
                }),
            });
        }
        for stream in all {
            let folder = folder.clone();
            let name = stream.file.trim_end_matches(".zsend.zst").to_owned();
            trials.push(Trial {
                name: format!("{case}::{name}"),
                run: Box::new(move || {
                    let outcome = compared(&folder, &stream);
                    outcome.unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
                }),
            });
        }
    }
    if set.folder.join("sends").is_dir() {
        let folder = set.folder.join("sends");
        trials.push(Trial {
            name: "sends::redaction-bookmark".to_owned(),
            run: Box::new(move || {
                let outcome = redacted::outcome(&folder);
                outcome.unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
            }),
        });
    }
    if set.folder.join("resume").is_dir() {
        let folder = set.folder.join("resume");
        trials.push(Trial {
            name: "resume::remainder".to_owned(),
            run: Box::new(move || {
                let outcome = resumed::outcome(&folder);
                outcome.unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
            }),
        });
    }
    println!("{}: {} streams", set.description, trials.len());
    Ok(trials)
}

/// The options of a recorded command; `None` if one of them is not offered.
fn request_of(command: &str) -> Option<SendRequest> {
    let mut words = command.strip_prefix("zfs send ")?.split(' ').peekable();
    let mut flags = SendFlags::default();
    let (mut from, mut has_between) = (None, false);
    let mut package = PackageOptions::default();
    let mut redaction = None;
    while let Some(word) = words.next_if(|word| word.starts_with('-')) {
        match word {
            "-L" => flags.large_blocks = true,
            "-c" => flags.compressed = true,
            "-e" => flags.embedded = true,
            "-R" => package.is_recursive = true,
            "-p" => package.has_properties = true,
            "-h" => package.has_holds = true,
            "-w" => {
                flags = SendFlags {
                    large_blocks: true,
                    embedded: true,
                    compressed: true,
                    raw: true,
                }
            }
            "--redact" => redaction = Some(words.next()?.to_owned()),
            "-i" => from = Some(words.next()?.to_owned()),
            "-I" => {
                has_between = true;
                from = Some(words.next()?.to_owned());
            }
            _ => return None,
        }
    }
    let name = words.next()?.to_owned();
    let dataset = name.split('@').next()?;
    let from = from.map(|from| match from.starts_with(['@', '#']) {
        true => format!("{dataset}{from}"),
        false => from,
    });
    let redaction = redaction.map(|bookmark| format!("{dataset}#{bookmark}"));
    Some(SendRequest {
        name,
        from,
        has_between,
        package,
        redaction,
        flags,
        ..SendRequest::default()
    })
}

fn records(bytes: &[u8]) -> Result<Vec<Taken>> {
    let mut reader = StreamReader::new(bytes);
    let mut records = vec![];
    while let Some(taken) = reader.take()? {
        records.push(taken);
    }
    Ok(records)
}

/// The number of spill blocks that OpenZFS sends as embedded blocks at an offset below 0. Here they are spill records,
/// because OpenZFS's receiver refuses some of the others. `None` if anything else differs.
fn spills_sent_plainly(theirs: &[Taken], ours: &[Taken]) -> Result<Option<usize>> {
    let mut count = 0;
    for (their, our) in theirs.iter().zip(ours) {
        match (&their.record, &our.record) {
            (Record::WriteEmbedded(theirs), Record::Spill(ours))
                if i64::try_from(theirs.offset).is_err() =>
            {
                let kind = CompressionKind::from_number(theirs.compression);
                let mut content = vec![0; theirs.logical_bytes as usize];
                let stored = &their.payload[..theirs.stored_bytes as usize];
                decompress(kind.context("no compression")?, stored, &mut content)
                    .map_err(|error| anyhow!("{error}"))?;
                if (theirs.object, content) != (ours.object, our.payload.clone()) {
                    return Ok(None);
                }
                count += 1;
            }
            // Its checksum is that of other records.
            (Record::End(theirs), Record::End(ours)) if theirs.to_guid == ours.to_guid => {}
            (one, other) if one == other && their.payload == our.payload => {}
            _ => return Ok(None),
        }
    }
    Ok((theirs.len() == ours.len() && count > 0).then_some(count))
}

/// The first record that differs.
fn first_difference(theirs: &[Taken], ours: &[Taken]) -> String {
    for (number, (their, our)) in theirs.iter().zip(ours).enumerate() {
        if (&their.record, &their.payload) != (&our.record, &our.payload) {
            return format!(
                "record {number}:\n  theirs {:?} with {} bytes\n  ours   {:?} with {} bytes",
                their.record,
                their.payload.len(),
                our.record,
                our.payload.len()
            );
        }
    }
    format!("theirs has {} records, ours {}", theirs.len(), ours.len())
}

/// Opens the pool that streams were sent from. The second is its disks, to keep.
fn golden_view(folder: &Path) -> Result<(View, images::Disks)> {
    let record = record::load(folder)?;
    let mut present = vec![];
    for image in &record.images {
        let packed = folder.join(&image.file);
        let path = images::unpacked(&packed, &image.sha256, image.size_bytes)?;
        present.push((image.file.trim_end_matches(".zst").to_owned(), path));
    }
    let disks = images::gather("streams", &present)?;
    let pools = Search::new([disks.folder.clone()]).pools();
    let [candidate] = pools.as_slice() else {
        bail!("{} pools are found", pools.len());
    };
    let view = View::open_candidate(candidate, &OpenOptions::default())?;
    for (dataset, key) in &record.keys {
        view.load_key(dataset, &key.bytes)?;
    }
    Ok((view, disks))
}

fn compared(folder: &Path, stream: &Stream) -> Result<Outcome> {
    let theirs = images::read_file(folder, stream.file.trim_end_matches(".zst"))?;
    let their_records = records(&theirs)?;
    let Some(request) = request_of(&stream.command) else {
        let note = format!("{} records read; not sent yet", their_records.len());
        return Ok(Outcome::PassedOver(note));
    };
    let (view, _disks) = golden_view(folder)?;
    let mut ours = vec![];
    let length = view.send(&request, &mut ours)?;
    anyhow::ensure!(length == ours.len() as u64, "{length} bytes are said");
    if ours == theirs {
        return Ok(Outcome::Passed(format!("{} records", their_records.len())));
    }
    let our_records = records(&ours)?;
    Ok(match spills_sent_plainly(&their_records, &our_records)? {
        Some(count) => Outcome::Passed(format!(
            "{} records, {count} spill blocks as such instead of embedded",
            their_records.len()
        )),
        None => Outcome::Failed(first_difference(&their_records, &our_records)),
    })
}
