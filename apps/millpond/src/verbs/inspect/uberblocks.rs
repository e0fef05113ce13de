//! `inspect uberblocks`: shows every valid uberblock and the locations of its copies.

use super::items::Items;
use super::pointer;
use crate::session::{Ending, Session};
use crate::text::date;
use crate::verbs::Global;
use clap::{Arg, ArgAction, ArgMatches};
use millpond_inspect::FoundUberblock;
use serde_json::{Value, json};

/// Its arguments.
pub fn arguments() -> Vec<Arg> {
    vec![
        super::pool_argument(),
        Arg::new("places")
            .short('v')
            .long("verbose")
            .help("Show their locations and root block pointers too")
            .action(ArgAction::SetTrue),
    ]
}

/// Runs the subcommand.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let wanted = matches.get_one::<String>("pool");
    let is_verbose = matches.get_flag("places");
    let zone = session.environment.zone.clone();
    let head = format!(
        "{:<20} {:>12} {:<24} {:>7} {:>6}",
        "POOL", "TXG", "TIME", "VERSION", "COPIES"
    );
    let mut items = Items::begin(session, global.is_json, &head)?;
    let search = match wanted {
        Some(name) => global.search_of(name),
        None => global.search.clone(),
    };
    for pool in search.pools() {
        let is_wanted =
            wanted.is_none_or(|name| *name == pool.name || *name == pool.guid.to_string());
        if !is_wanted {
            continue;
        }
        for found in &pool.uberblocks {
            let uberblock = &found.uberblock;
            items.item(
                || value(&pool.name, found),
                || {
                    let time = date::ctime(uberblock.timestamp_s, &zone);
                    let mut text = format!(
                        "{:<20} {:>12} {time:<24} {:>7} {:>6}",
                        pool.name,
                        uberblock.txg.0,
                        uberblock.version,
                        found.places.len()
                    );
                    if is_verbose {
                        text += &format!("\n    root {}", pointer::text(&uberblock.root));
                        for place in &found.places {
                            text += &format!(
                                "\n    leaf {} label {} slot {}",
                                place.leaf, place.label, place.slot
                            );
                        }
                    }
                    text
                },
            )?;
        }
    }
    if items.count() == 0 {
        items.failure("no uberblocks found")?;
    }
    Ok(items.end()?)
}

fn value(pool: &str, found: &FoundUberblock) -> Value {
    let uberblock = &found.uberblock;
    let places: Vec<Value> = found
        .places
        .iter()
        .map(|place| json!({ "leaf": place.leaf.0, "label": place.label, "slot": place.slot }))
        .collect();
    json!({
        "pool": pool,
        "txg": uberblock.txg.0,
        "timestamp": uberblock.timestamp_s,
        "version": uberblock.version,
        "software_version": uberblock.software_version,
        "guid_sum": uberblock.guid_sum,
        "checkpoint_txg": uberblock.checkpoint_txg.0,
        "raidz_reflow": uberblock.raidz_reflow.0,
        "mmp_delay_ns": uberblock.mmp_delay_ns,
        "mmp_config": uberblock.mmp_config,
        "root": pointer::value(&uberblock.root),
        "places": places,
    })
}
