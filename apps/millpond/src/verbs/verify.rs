//! `millpond verify`: reads every copy and every parity column of all blocks and reports errors.

use super::Global;
use super::flag;
use super::global::refused;
use super::name_text;
use super::verdict;
use crate::progress::{Done, Progress as Shown, Style, allocated_bytes};
use crate::session::{Ending, Failure, Session};
use crate::text::number;
use clap::{Arg, ArgMatches, Command};
use millpond_engine::View;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::Ordering;
use millpond_verify::{LostObject, PoolVerdict, Problem, Progress, VerifyReport};
use serde_json::json;
use std::io::{self, Write};

/// Maximum number of problems shown as they are found. The summary counts all.
const PROBLEMS_SHOWN_MAX: u64 = 50;
/// Damaged objects named in the summary.
const OBJECTS_SHOWN_MAX: usize = 100;

/// Defines the command.
pub fn command() -> Command {
    Command::new("verify")
        .about("Read every copy and parity column of every block, and report damage by device and file")
        .long_about(
            "Reads every copy of every block, every side of each mirror and every parity column, and \
             compares them with the checksums. Lists the devices with wrong data and the damaged \
             files, and ends with a verdict: what to do, and for each lost file the newest snapshot in \
             which it is whole. Nothing is repaired or written.\n\n\
             Exit status: 0 sound, 1 something needs repair and nothing is lost, 2 the pool could not be \
             verified, 3 something is lost.",
        )
        .arg(Arg::new("pool").value_name("POOL").help("The pool, by name or guid"))
        .arg(flag("quiet", "Show no progress, and problems only in the summary").short('q'))
}

/// Verifies a pool.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let name = global.named(matches, "pool")?;
    let is_quiet = matches.get_flag("quiet");
    let has_lines = !is_quiet && !global.is_json;
    let verified = global.open_pool(&name).and_then(|pool| {
        let report = watched(&pool, global.progress(is_quiet), has_lines).map_err(refused)?;
        if report.verdict() != PoolVerdict::Sound {
            global.check_kept()?;
        }
        Ok((pool, report))
    });
    let (pool, report) = match verified {
        Ok(verified) => verified,
        Err(Failure::Refused(words)) => {
            writeln!(session.err, "{words}")?;
            return Ok(verdict::COULD_NOT_CHECK);
        }
        Err(other) => return Err(other),
    };
    if global.is_json {
        write_json(session, &pool, &report)?;
    } else {
        write_text(session, &pool, &report)?;
    }
    Ok(verdict::status(report.verdict()))
}

/// Verifies the pool and shows the progress.
fn watched(
    pool: &View,
    style: Style,
    has_lines: bool,
) -> Result<VerifyReport, millpond_engine::Error> {
    let progress = Arc::new(Progress::default());
    let (counts, total) = (Arc::clone(&progress), allocated_bytes(pool));
    let progress_shown = Shown::start(style, move || Done {
        bytes: counts.allocated_bytes(),
        total_bytes: Some(total),
        verb: "verified",
        counts: vec![("blocks", counts.blocks())],
    });
    let shown = millpond_env::sync::atomic::AtomicU64::new(0);
    let on_problem = |problem: &Problem| {
        if has_lines && shown.fetch_add(1, Ordering::Relaxed) < PROBLEMS_SHOWN_MAX {
            let line = problem.to_string();
            progress_shown.suspend(|| {
                // If the terminal does not accept the line, the summary still reports the problem.
                let _ = writeln!(io::stderr(), "{line}");
            });
        }
    };
    pool.verify(&progress, &on_problem)
}

fn write_text(session: &mut Session, pool: &View, report: &VerifyReport) -> io::Result<()> {
    let out = &mut *session.out;
    let (blocks, read) = (report.blocks, number::bytes(report.read_bytes));
    let logical = number::bytes(report.logical_bytes);
    writeln!(
        out,
        "{}: {} of {logical} verified, {read} read",
        pool.name(),
        number::of(blocks, "block", "blocks")
    )?;
    for leaf in report.leaves.values() {
        let mut words = vec![];
        if leaf.wrong > 0 {
            let bytes = number::bytes(leaf.wrong_bytes);
            words.push(format!("{} wrong ({bytes})", leaf.wrong));
        }
        if leaf.faults > 0 {
            words.push(format!("{} could not be read", leaf.faults));
        }
        if leaf.stale > 0 {
            words.push(format!(
                "{} not up to date, as its log of missed writes says",
                leaf.stale
            ));
        }
        if leaf.absent > 0 {
            words.push(format!("{} not checked: the device is absent", leaf.absent));
        }
        for (label, trouble) in &leaf.labels {
            words.push(format!("label {label}: {trouble}"));
        }
        if !words.is_empty() {
            writeln!(out, "  {}: {}", leaf.name, words.join(", "))?;
        }
    }
    for object in report.damaged.iter().take(OBJECTS_SHOWN_MAX) {
        let place = match (&object.dataset, &object.path) {
            (Some(dataset), Some(path)) => format!("{dataset}:/{}", name_text::escaped(path)),
            (Some(dataset), None) => format!("{dataset}: object {}", object.object),
            (None, _) => format!("pool metadata, object {}", object.object),
        };
        let state = match (object.lost, object.repairable) {
            (0, count) => format!(
                "{} damaged, other copies are right",
                number::of(count, "block", "blocks")
            ),
            (lost, 0) => format!("{} lost", number::of(lost, "block", "blocks")),
            (lost, count) => format!(
                "{} lost, {count} damaged",
                number::of(lost, "block", "blocks")
            ),
        };
        writeln!(out, "  {place}: {state}")?;
    }
    let not_shown =
        report.damaged.len().saturating_sub(OBJECTS_SHOWN_MAX) as u64 + report.damaged_not_listed;
    if not_shown > 0 {
        writeln!(out, "  … and {not_shown} more; --json lists them")?;
    }
    if let Some(words) = &report.gave_up {
        writeln!(out, "  gave up: {words}")?;
    }
    if report.lost + report.repairable + report.invalid > 0 {
        writeln!(
            out,
            "{} lost, {} damaged and repairable, {} not valid",
            number::of(report.lost, "block", "blocks"),
            report.repairable,
            report.invalid
        )?;
    }
    verdict::write_verified(session, pool.name(), report)
}

fn write_json(session: &mut Session, pool: &View, report: &VerifyReport) -> io::Result<()> {
    let leaves: Vec<_> = report
        .leaves
        .values()
        .map(|leaf| {
            let labels: Vec<_> = leaf
                .labels
                .iter()
                .map(|(label, trouble)| json!({"label": label, "trouble": trouble}))
                .collect();
            json!({
                "device": leaf.name, "wrong": leaf.wrong, "wrong_bytes": leaf.wrong_bytes,
                "faults": leaf.faults, "absent": leaf.absent, "stale": leaf.stale, "labels": labels,
            })
        })
        .collect();
    let damaged: Vec<_> = report
        .damaged
        .iter()
        .map(|object| {
            let mut map = serde_json::Map::new();
            map.insert("dataset".into(), json!(object.dataset));
            map.insert("object".into(), json!(object.object));
            if let Some(path) = &object.path {
                super::json::put_name(&mut map, "path", path);
            }
            map.insert("lost".into(), json!(object.lost));
            map.insert("repairable".into(), json!(object.repairable));
            map.insert("first".into(), json!(object.first));
            serde_json::Value::Object(map)
        })
        .collect();
    let lost_objects: Vec<_> = report.losses.objects.iter().map(lost_object).collect();
    let whole = json!({
        "pool": pool.name(), "is_clean": report.is_clean() && report.stale() == 0,
        "verdict": report.verdict().word(), "blocks": report.blocks,
        "log_blocks": report.log_blocks, "logical_bytes": report.logical_bytes,
        "read_bytes": report.read_bytes, "lost": report.lost, "repairable": report.repairable,
        "invalid": report.invalid, "devices": leaves, "damaged": damaged,
        "damaged_not_listed": report.damaged_not_listed, "gave_up": report.gave_up,
        "lost_objects": lost_objects, "lost_objects_are_partial": report.losses.is_partial,
    });
    writeln!(session.out, "{whole}")
}

fn lost_object(lost: &LostObject) -> serde_json::Value {
    let mut map = serde_json::Map::new();
    map.insert("dataset".into(), json!(lost.dataset));
    map.insert("is_snapshot".into(), json!(lost.is_snapshot));
    map.insert("object".into(), json!(lost.object));
    if let Some(path) = &lost.path {
        super::json::put_name(&mut map, "path", path);
    }
    map.insert("whole_in".into(), json!(lost.whole_in));
    serde_json::Value::Object(map)
}
