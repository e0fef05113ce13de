//! `inspect log`: intent logs, their blocks and records.

use super::items::Items;
use super::pointer;
use crate::session::{Ending, Failure, Session};
use crate::verbs::Global;
use crate::verbs::global::refused;
use clap::{Arg, ArgAction, ArgMatches, Command};
use millpond::inspect::{ChainEnd, IntentLog, LoggedRecord, RecordFate, datasets};
use millpond::{Dataset, Pool};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;

/// The part's options.
pub fn command() -> Command {
    Command::new("log")
        .about("Show intent logs: of one dataset, or of all in a pool")
        .arg(
            Arg::new("dataset")
                .value_name("DATASET")
                .help("A pool, file system or volume (default: the only pool found)"),
        )
        .arg(
            Arg::new("only")
                .short('1')
                .long("only")
                .help("Of a pool's name mean the dataset of that name, not all")
                .action(ArgAction::SetTrue),
        )
        .arg(
            Arg::new("records")
                .short('r')
                .long("records")
                .help("Also list blocks and records")
                .action(ArgAction::SetTrue),
        )
}

/// Runs it.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let name = match matches.get_one::<String>("dataset") {
        Some(name) => name.clone(),
        None => global.only_pool()?,
    };
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

fn one(items: &mut Items, pool: &Pool, dataset: &Dataset, has_records: bool) -> io::Result<()> {
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
                "{name}: {} blocks, {} records, {} to be replayed",
                tally.blocks, tally.records, tally.pending
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
        ChainEnd::Unreadable(millpond::inspect::BlockError::Corrupt { .. }) => {
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
        Ok(decoded) => format!("{:?}", decoded.body),
        Err(error) => error.to_string(),
    };
    let mut body: String = body.chars().take(BODY_CHARACTERS_MAX + 1).collect();
    if body.chars().count() > BODY_CHARACTERS_MAX {
        body.pop();
        body.push('…');
    }
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

/// Longer bodies are data, which nobody reads in a list.
const BODY_CHARACTERS_MAX: usize = 240;
