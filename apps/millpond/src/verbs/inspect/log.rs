//! `inspect log`: shows intent logs with their blocks and records.

use super::items::Items;
use super::pointer;
use crate::session::{Ending, Failure, Session};
use crate::text::number;
use crate::verbs::Global;
use crate::verbs::flag;
use crate::verbs::global::refused;
use crate::verbs::name_text::escaped;
use clap::{Arg, ArgMatches};
use millpond_engine::{Dataset, ObjectId, View};
use millpond_inspect::{
    ChainEnd, IntentLog, LoggedRecord, RecordFate, datasets, ondisk::intent_log::LogRecordBody,
    ondisk::intent_log::WriteContent,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;

/// Its arguments.
pub fn arguments() -> Vec<Arg> {
    vec![
        Arg::new("dataset")
            .value_name("DATASET")
            .help("A pool, file system or volume (default: the only pool found)"),
        flag("only", "With a pool's name: only its root dataset").short('1'),
        flag("records", "List blocks and records too").short('r'),
    ]
}

/// Runs the subcommand.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let name = global.named(matches, "dataset")?;
    let pool = global.open_pool(name.split('/').next().unwrap_or(&name))?;
    let has_records = matches.get_flag("records");
    let is_one = name.contains('/') || matches.get_flag("only");
    let mut items = Items::begin(session, global.is_json, "")?;
    if is_one {
        let dataset = pool.dataset(&name).map_err(refused)?;
        if dataset.inner().is_snapshot() {
            return Err(Failure::Refused("millpond: a snapshot has no log".into()));
        }
        one(&mut items, &pool, &dataset, has_records)?;
    } else {
        for dataset in datasets(pool.inner()) {
            match dataset {
                Ok(dataset) if dataset.is_snapshot() => {}
                Ok(dataset) => match pool.dataset_by_id(dataset.id()) {
                    Ok(dataset) => one(&mut items, &pool, &dataset, has_records)?,
                    Err(error) => items.failure(error)?,
                },
                Err(error) => items.failure(error)?,
            }
        }
    }
    Ok(items.end()?)
}

fn one(items: &mut Items, pool: &View, dataset: &Dataset, has_records: bool) -> io::Result<()> {
    let set = match dataset.object_set() {
        Ok(set) => set,
        Err(error) => return items.failure(error),
    };
    let Some(log) = IntentLog::open(&set) else {
        return Ok(());
    };
    let synced = pool.inner().uberblock().txg;
    let header = *log.header();
    let mut tally = Tally::default();
    let mut records = log.records(synced);
    let name = dataset.name();
    for record in records.by_ref() {
        tally.add(&record);
        if has_records {
            items.item(
                || record_value(name, &record),
                || record_text(name, &record),
            )?;
        }
    }
    let end = records.end().map(end_text);
    items.item(
        || {
            json!({
                "dataset": name,
                "claim_txg": header.claim_txg.0,
                "replay_sequence": header.replay_sequence,
                "claim_block_sequence": header.claim_block_sequence,
                "claim_record_sequence": header.claim_record_sequence,
                "flags": header.flags.bits(),
                "first_block": pointer::value(&header.log),
                "blocks": tally.blocks,
                "records": tally.records,
                "pending": tally.pending,
                "types": tally.types,
                "end": end,
            })
        },
        || {
            let mut text = format!(
                "{name}: {}, {}, {} to be replayed",
                number::of(tally.blocks, "block", "blocks"),
                number::of(tally.records, "record", "records"),
                tally.pending
            );
            if header.claim_txg.0 != 0 {
                text += &format!(", claimed in txg {}", header.claim_txg);
            }
            text += &format!("\n    first block {}", pointer::text(&header.log));
            for (kind, count) in &tally.types {
                text += &format!("\n    {count:>8} {kind}");
            }
            text + &format!("\n    ends: {}", end.as_deref().unwrap_or("?"))
        },
    )
}

#[derive(Default)]
struct Tally {
    blocks: u64,
    last_block: Option<u64>,
    records: u64,
    pending: u64,
    types: BTreeMap<&'static str, u64>,
}

impl Tally {
    fn add(&mut self, record: &LoggedRecord) {
        if self.last_block != Some(record.block_sequence) {
            self.last_block = Some(record.block_sequence);
            self.blocks += 1;
        }
        self.records += 1;
        self.pending += u64::from(record.fate == RecordFate::Pending);
        *self.types.entry(record.type_name()).or_default() += 1;
    }
}

fn end_text(end: &ChainEnd) -> String {
    match end {
        ChainEnd::NoLog => "no chain".into(),
        ChainEnd::NoSuccessor => "the last block names no other".into(),
        ChainEnd::Unreadable(millpond_inspect::BlockError::Corrupt { .. }) => {
            "the next block was never written".into()
        }
        ChainEnd::Unreadable(error) => error.to_string(),
        ChainEnd::Broken(error) => error.to_string(),
        ChainEnd::ClaimLimit => "what follows was not claimed".into(),
    }
}

fn fate(record: &LoggedRecord) -> &'static str {
    match record.fate {
        RecordFate::Pending => "pending",
        RecordFate::Synced => "synced",
        RecordFate::Replayed => "replayed",
    }
}

fn record_text(name: &str, record: &LoggedRecord) -> String {
    let body = match record.decode() {
        Ok(decoded) => body_text(&decoded.body),
        Err(error) => error.to_string(),
    };
    format!(
        "{name} {:<18} block {} len {:>6} txg {} seq {} {} {body}",
        record.type_name(),
        record.block_sequence,
        record.length_bytes(),
        record.txg,
        record.sequence,
        fate(record)
    )
}

/// Describes a record in one line. Names come from the disk and are escaped.
fn body_text(body: &LogRecordBody<'_>) -> String {
    let range = |object: &ObjectId, offset: u64, length: u64| {
        format!("object {object} offset {offset:#x} length {length:#x}")
    };
    match body {
        LogRecordBody::Create(create) => {
            let mut text = format!(
                "object {} in {} '{}' mode {:o} uid {} gid {}",
                create.object.id.object,
                create.directory,
                escaped(create.name),
                create.object.mode,
                create.object.uid,
                create.object.gid
            );
            if !create.target.is_empty() {
                text += &format!(" -> '{}'", escaped(create.target));
            }
            text
        }
        LogRecordBody::Remove {
            directory, name, ..
        } => format!("'{}' in {directory}", escaped(name)),
        LogRecordBody::Link {
            directory,
            object,
            name,
        } => format!("object {object} as '{}' in {directory}", escaped(name)),
        LogRecordBody::Rename {
            source_directory,
            target_directory,
            source_name,
            target_name,
            ..
        } => format!(
            "'{}' in {source_directory} to '{}' in {target_directory}",
            escaped(source_name),
            escaped(target_name)
        ),
        LogRecordBody::Write {
            object,
            offset,
            length,
            content,
        } => {
            let place = match content {
                WriteContent::Immediate(_) => "data in the record".to_owned(),
                WriteContent::Indirect(pointer) => pointer::text(pointer),
            };
            format!("{} {place}", range(object, *offset, *length))
        }
        LogRecordBody::WriteAgain {
            object,
            offset,
            length,
        }
        | LogRecordBody::Truncate {
            object,
            offset,
            length,
        } => range(object, *offset, *length),
        LogRecordBody::SetAttributes(set) => format!(
            "object {} mask {:#x} mode {:o} uid {} gid {} size {}",
            set.object, set.mask, set.mode, set.uid, set.gid, set.size
        ),
        LogRecordBody::SetAclV0 { object, entries } => {
            format!("object {object} {} bytes of entries", entries.len())
        }
        LogRecordBody::SetAcl { object, acl } => {
            format!("object {object} {} entries", acl.entry_count)
        }
        LogRecordBody::SetXattr {
            object,
            name,
            value,
        } => format!("object {object} '{}' {} bytes", escaped(name), value.len()),
        LogRecordBody::CloneRange {
            object,
            offset,
            length,
            pointers,
            ..
        } => format!(
            "{} {} blocks",
            range(object, *offset, *length),
            pointers.iter().count()
        ),
    }
}

fn record_value(name: &str, record: &LoggedRecord) -> Value {
    json!({
        "dataset": name,
        "type": record.type_name(),
        "block": record.block_sequence,
        "length": record.length_bytes(),
        "txg": record.txg.0,
        "sequence": record.sequence,
        "fate": fate(record),
        "encrypted": record.has_ciphertext,
    })
}
