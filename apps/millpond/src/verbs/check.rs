//! `millpond check`: checks the consistency of a pool and reports each error with its location.

use super::Global;
use super::flag;
use super::name_text;
use super::verdict;
use crate::progress::{Done, Progress as Shown, allocated_bytes};
use crate::session::{Ending, Failure, Session};
use crate::text::number;
use clap::{Arg, ArgMatches, Command};
use millpond_check::{CheckOptions, CheckReport, Finding, Progress};
use millpond_engine::View;
use millpond_env::sync::Arc;
use serde_json::json;
use std::collections::BTreeSet;
use std::io;

/// Maximum number of findings shown as text. `--json` shows all.
const FINDINGS_SHOWN_MAX: usize = 200;

/// Defines the command.
pub fn command() -> Command {
    Command::new("check")
        .about("Check that a pool is consistent: space, counters, tables, names, links, owners")
        .long_about(
            "Compares the pool's metadata with itself: each block has one owner and is not in free space, \
             and every counter, table, name and link is correct. File contents are not read: \
             `millpond verify` does that. Nothing is repaired or written. docs/check.md explains the \
             findings.\n\n\
             Exit status: 0 no findings, 1 findings without danger, 2 the pool could not be checked, 3 data is \
             lost or in danger.",
        )
        .arg(Arg::new("pool").value_name("POOL").help("The pool, by name or guid"))
        .arg(flag("heads-only", "Skip names, attributes and owners of files in snapshots"))
        .arg(flag("quiet", "Show no progress and no advice").short('q'))
}

/// Checks a pool.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    match checked(global, matches) {
        Ok((pool, report)) => {
            if global.is_json {
                write_json(session, &pool, &report)?;
            } else {
                write_text(session, &pool, &report, matches.get_flag("quiet"))?;
            }
            Ok(verdict::check_status(&report))
        }
        Err(Failure::Refused(words)) => {
            writeln!(session.err, "{words}")?;
            Ok(verdict::COULD_NOT_CHECK)
        }
        Err(other) => Err(other),
    }
}

fn checked(global: &Global, matches: &ArgMatches) -> Result<(View, CheckReport), Failure> {
    let name = global.named(matches, "pool")?;
    let pool = global.open_pool(&name)?;
    let options = CheckOptions {
        with_snapshots_files: !matches.get_flag("heads-only"),
        ..CheckOptions::default()
    };
    let progress = Arc::new(Progress::default());
    let style = global.progress(matches.get_flag("quiet"));
    let (counts, total) = (Arc::clone(&progress), allocated_bytes(&pool));
    let shown = Shown::start(style, move || Done {
        bytes: counts.allocated_bytes(),
        total_bytes: Some(total),
        verb: "checked",
        counts: vec![("blocks", counts.blocks()), ("objects", counts.objects())],
    });
    let report = pool.check(&options, &progress, &|_| {});
    drop(shown);
    let report = report.map_err(super::global::refused)?;
    if !report.is_clean() {
        global.check_kept()?;
    }
    Ok((pool, report))
}

/// Formats the location of a finding.
fn place(finding: &Finding) -> String {
    match (&finding.dataset, finding.object, &finding.path) {
        (Some(dataset), _, Some(path)) => format!("{dataset}:/{}", name_text::escaped(path)),
        (Some(dataset), Some(object), None) => format!("{dataset} object {object}"),
        (Some(dataset), None, None) => dataset.clone(),
        (None, Some(object), _) => format!("the pool's object {object}"),
        (None, None, _) => "the pool".to_owned(),
    }
}

fn write_text(
    session: &mut Session,
    pool: &View,
    report: &CheckReport,
    is_quiet: bool,
) -> io::Result<()> {
    let out = &mut *session.out;
    let totals = &report.totals;
    writeln!(
        out,
        "{}: {} of {} ({} on disk, {} allocated), {}",
        pool.name(),
        number::of(totals.pointers, "block", "blocks"),
        number::bytes(totals.logical_bytes),
        number::bytes(totals.physical_bytes),
        number::bytes(totals.mapped_bytes),
        number::of(totals.objects, "object", "objects"),
    )?;
    for finding in report.findings.iter().take(FINDINGS_SHOWN_MAX) {
        writeln!(
            out,
            "  {}: {} ({}): {}",
            place(finding),
            finding.kind.code(),
            finding.kind.severity().word(),
            finding.detail
        )?;
    }
    let not_shown =
        report.findings.len().saturating_sub(FINDINGS_SHOWN_MAX) as u64 + report.not_listed;
    if not_shown > 0 {
        writeln!(out, "  … and {not_shown} more; --json lists them")?;
    }
    let kinds: BTreeSet<_> = report.findings.iter().map(|finding| finding.kind).collect();
    if !is_quiet {
        for kind in &kinds {
            writeln!(out, "{}: {}", kind.code(), kind.advice())?;
        }
    }
    for reason in &report.not_judged {
        writeln!(out, "not judged: {reason}")?;
    }
    if !report.is_clean() {
        let count = report.findings.len() as u64 + report.not_listed;
        let findings = number::of(count, "finding", "findings");
        let kinds = number::of(kinds.len() as u64, "kind", "kinds");
        writeln!(out, "{findings} of {kinds}")?;
    }
    verdict::write_checked(session, report)
}

fn write_json(session: &mut Session, pool: &View, report: &CheckReport) -> io::Result<()> {
    let findings: Vec<_> = report
        .findings
        .iter()
        .map(|finding| {
            let mut map = serde_json::Map::new();
            map.insert("finding".into(), json!(finding.kind.code()));
            map.insert("severity".into(), json!(finding.kind.severity().word()));
            map.insert("dataset".into(), json!(finding.dataset));
            map.insert("object".into(), json!(finding.object));
            if let Some(path) = &finding.path {
                super::json::put_name(&mut map, "path", path);
            }
            map.insert("detail".into(), json!(finding.detail));
            map.insert("advice".into(), json!(finding.kind.advice()));
            serde_json::Value::Object(map)
        })
        .collect();
    let totals = &report.totals;
    let whole = json!({
        "pool": pool.name(), "txg": pool.inner().uberblock().txg.0, "is_clean": report.is_clean(),
        "findings": findings, "not_listed": report.not_listed, "not_judged": report.not_judged,
        "pointers": totals.pointers, "embedded": totals.embedded,
        "logical_bytes": totals.logical_bytes, "physical_bytes": totals.physical_bytes,
        "allocated_bytes": totals.allocated_bytes, "shared_bytes": totals.shared_bytes,
        "gangs": totals.gangs, "mapped_bytes": totals.mapped_bytes,
        "checkpoint_bytes": totals.checkpoint_bytes, "leaked_bytes": totals.leaked_bytes,
        "objects": totals.objects,
    });
    writeln!(session.out, "{whole}")
}
