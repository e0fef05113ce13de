//! `inspect history`: shows the pool history as stored.

use super::items::{Items, indented};
use super::pointer;
use crate::session::{Ending, Session};
use crate::text::date;
use crate::verbs::Global;
use crate::verbs::global::refused;
use clap::ArgMatches;
use millpond_inspect::nvlist::NvList;

/// Runs the subcommand.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let pool = super::open_pool(global, matches)?;
    let history = pool.inner().history().map_err(refused)?;
    let zone = session.environment.zone.clone();
    let mut items = Items::begin(session, global.is_json, "")?;
    for record in history.into_iter().flatten() {
        match record {
            Ok(record) => items.item(
                || pointer::list(&record),
                || {
                    let time = record.u64("history time").unwrap_or(0);
                    format!("{} {}", date::ctime(time, &zone), text(&record))
                },
            )?,
            Err(error) => items.failure(error)?,
        }
    }
    Ok(items.end()?)
}

fn text(record: &NvList) -> String {
    if let Ok(command) = record.string("history command") {
        return command.to_owned();
    }
    let name = ["internal_name", "ioctl"]
        .into_iter()
        .find_map(|key| record.string(key).ok());
    let Some(name) = name else {
        return format!("\n{}", indented(&record.to_string(), 4));
    };
    let txg = match record.u64("history txg") {
        Ok(txg) => format!("[txg {txg}] "),
        Err(_) => String::new(),
    };
    let dataset = record
        .string("dsname")
        .map_or(String::new(), |name| format!(" {name}"));
    let text = record
        .string("history internal str")
        .map_or(String::new(), |text| format!(" {text}"));
    let input = record.list("in_nvl").map_or(String::new(), |list| {
        format!("\n{}", indented(&list.to_string(), 4))
    });
    format!("{txg}{name}{dataset}{text}{input}")
}
