//! `inspect blocks`: counts all blocks by type.

use crate::session::{Ending, Session};
use crate::text::number;
use crate::verbs::Global;
use crate::verbs::flag;
use clap::{Arg, ArgMatches};
use millpond_inspect::{BlockStatistics, BlockTotals, block_statistics, ondisk::ObjectType};
use serde_json::{Value, json};
use std::ops::ControlFlow;

/// Its arguments.
pub fn arguments() -> Vec<Arg> {
    vec![
        super::pool_argument(),
        flag("levels", "Count by level of the block tree too").short('l'),
    ]
}

/// Runs the subcommand.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let pool = super::open_pool(global, matches)?;
    let found = block_statistics(pool.inner(), &mut |_| ControlFlow::Continue(()));
    if global.is_json {
        writeln!(session.out, "{:#}", value(&found))?;
    } else {
        let has_levels = matches.get_flag("levels");
        write!(session.out, "{}", text(&found, has_levels))?;
    }
    for (_, error) in &found.unreadable {
        writeln!(session.err, "millpond: {error}")?;
    }
    if found.gave_up {
        let reason =
            "counting ended early: the pool's pointers claim more than fits on its devices";
        writeln!(session.err, "millpond: {reason}")?;
    }
    Ok(u8::from(found.unreadable_count > 0 || found.gave_up))
}

fn text(found: &BlockStatistics, has_levels: bool) -> String {
    let total = found.total();
    let mut text = format!(
        "{:>10} {:>7} {:>7} {:>7} {:>6}  TYPE\n",
        "BLOCKS", "LSIZE", "PSIZE", "ASIZE", "SHARE"
    );
    for (number, totals) in found.types() {
        let name = ObjectType(number).name();
        text += &line(&totals, &total, name);
        let levels = found.by_type.range((number, 0)..=(number, u8::MAX));
        for ((_, level), totals) in levels.rev().filter(|_| has_levels) {
            text += &line(totals, &total, &format!("    L{level}"));
        }
    }
    if found.deferred.count > 0 {
        text += &line(&found.deferred, &total, "(deferred frees)");
    }
    text += &line(&total, &total, "total");
    text += &format!(
        "\nganged {}, dedup {}, embedded in their pointers {}, unreadable {}\n",
        total.ganged, found.dedup.count, found.embedded_count, found.unreadable_count
    );
    text
}

fn line(totals: &BlockTotals, total: &BlockTotals, name: &str) -> String {
    let bytes = number::count;
    format!(
        "{:>10} {:>7} {:>7} {:>7} {:>6}  {name}\n",
        totals.count,
        bytes(totals.logical_bytes),
        bytes(totals.physical_bytes),
        bytes(totals.allocated_bytes),
        number::percent_of(totals.allocated_bytes, total.allocated_bytes),
    )
}

fn value(found: &BlockStatistics) -> Value {
    let types: Vec<Value> = found
        .by_type
        .iter()
        .map(|((number, level), totals)| {
            let mut value = sums(totals);
            value["type"] = ObjectType(*number).name().into();
            value["type_number"] = (*number).into();
            value["level"] = (*level).into();
            value
        })
        .collect();
    json!({
        "types": types,
        "deferred": sums(&found.deferred),
        "total": sums(&found.total()),
        "dedup": sums(&found.dedup),
        "embedded": found.embedded_count,
        "unreadable": found.unreadable_count,
    })
}

fn sums(totals: &BlockTotals) -> Value {
    json!({
        "count": totals.count,
        "ganged": totals.ganged,
        "lsize": totals.logical_bytes,
        "psize": totals.physical_bytes,
        "asize": totals.allocated_bytes,
    })
}
