//! `inspect datasets`: shows the MOS and every dataset and snapshot.

use super::items::Items;
use super::pointer;
use crate::session::{Ending, Session};
use crate::text::number;
use crate::verbs::Global;
use clap::ArgMatches;
use millpond_inspect::{DatasetSummary, datasets, ondisk::ObjectSetKind};
use serde_json::{Value, json};

/// Runs the subcommand.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let pool = super::open_pool(global, matches)?;
    let head = format!(
        "{:>8} {:<5} {:>10} {:>8} {:>8} {:<3} NAME",
        "ID", "KIND", "TXG", "REFER", "OBJECTS", "LOG"
    );
    let mut items = Items::begin(session, global.is_json, &head)?;
    let mos = pool.inner().mos();
    items.item(
        || {
            json!({
                "name": "mos",
                "id": 0,
                "kind": "meta",
                "objects": mos.object_count(),
                "root": pointer::value(mos.root()),
            })
        },
        || {
            let objects = mos.object_count();
            format!(
                "{:>8} {:<5} {:>10} {:>8} {objects:>8} {:<3} mos",
                0, "meta", "-", "-", "-"
            )
        },
    )?;
    for dataset in datasets(pool.inner()) {
        match dataset {
            Ok(dataset) => {
                let summary = DatasetSummary::of(&dataset);
                items.item(|| value(&summary), || text(&summary))?;
            }
            Err(error) => items.failure(error)?,
        }
    }
    Ok(items.end()?)
}

fn kind(summary: &DatasetSummary) -> &'static str {
    match summary.kind {
        Some(ObjectSetKind::FileSystem) => "fs",
        Some(ObjectSetKind::Volume) => "vol",
        Some(ObjectSetKind::Meta) => "meta",
        Some(ObjectSetKind::Other) => "other",
        None => "?",
    }
}

fn text(summary: &DatasetSummary) -> String {
    let flag = if summary.is_inconsistent {
        " (inconsistent)"
    } else {
        ""
    };
    format!(
        "{:>8} {:<5} {:>10} {:>8} {:>8} {:<3} {}{flag}",
        summary.id,
        kind(summary),
        summary.creation_txg,
        number::count(summary.referenced_bytes),
        summary.object_count,
        if summary.has_log { "yes" } else { "-" },
        summary.name
    )
}

fn value(summary: &DatasetSummary) -> Value {
    let phys = &summary.phys;
    let id = |id: Option<millpond_engine::ObjectId>| id.map(|id| id.0);
    json!({
        "name": summary.name,
        "id": summary.id,
        "kind": kind(summary),
        "snapshot": summary.is_snapshot,
        "creation_txg": summary.creation_txg,
        "creation_time": phys.creation_time,
        "referenced": summary.referenced_bytes,
        "compressed": phys.compressed_bytes,
        "uncompressed": phys.uncompressed_bytes,
        "unique": phys.unique_bytes,
        "objects": summary.object_count,
        "has_log": summary.has_log,
        "flags": phys.flags.bits(),
        "guid": phys.guid.0,
        "directory": phys.directory.0,
        "previous_snapshot": id(phys.previous_snapshot),
        "previous_snapshot_txg": phys.previous_snapshot_txg.0,
        "next_snapshot": id(phys.next_snapshot),
        "deadlist": id(phys.deadlist),
        "children": phys.children_count,
        "root": pointer::value(&summary.root),
    })
}
