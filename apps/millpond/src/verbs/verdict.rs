//! The last line of `verify` and `check`: what the results mean, and what to do next.

use super::name_text;
use crate::session::{Environment, Session};
use crate::text::number;
use anstyle::{AnsiColor, Style};
use millpond_check::{CheckReport, Severity};
use millpond_verify::{LeafReport, LostObject, PoolVerdict, VerifyReport};
use std::io;

/// Exit status when something needs repair and nothing is lost.
const NEEDS_REPAIR: u8 = 1;
/// Exit status when the pool could not be examined to the end.
pub const COULD_NOT_CHECK: u8 = 2;
/// Exit status when something is lost, or will be lost when the pool is written to.
const LOST: u8 = 3;
/// Lost files named below the verdict.
const FILES_SHOWN_MAX: usize = 100;
/// Devices named in the verdict.
const DEVICES_SHOWN_MAX: usize = 4;

/// The exit status for a verdict of `verify`.
pub fn status(verdict: PoolVerdict) -> u8 {
    match verdict {
        PoolVerdict::Sound => 0,
        PoolVerdict::Degraded | PoolVerdict::Stale | PoolVerdict::Repairable => NEEDS_REPAIR,
        PoolVerdict::Undecided => COULD_NOT_CHECK,
        PoolVerdict::Lost => LOST,
    }
}

/// The exit status for a report of `check`.
pub fn check_status(report: &CheckReport) -> u8 {
    match worst(report) {
        None => 0,
        Some(Severity::Harmless | Severity::Wrong) => NEEDS_REPAIR,
        Some(Severity::Danger) => LOST,
    }
}

/// Writes the verdict of `verify`.
pub fn write_verified(session: &mut Session, pool: &str, report: &VerifyReport) -> io::Result<()> {
    let verdict = report.verdict();
    let text = match verdict {
        PoolVerdict::Sound => "no errors".to_owned(),
        PoolVerdict::Degraded => format!(
            "no errors in what is there, but {} absent: connect it and run `zpool online {pool} DEVICE`, or \
             `zpool replace {pool} DEVICE NEW`",
            devices(report, |leaf| leaf.absent > 0, "is", "are")
        ),
        PoolVerdict::Stale => format!(
            "no errors, but {} not up to date: run `zpool online {pool} {}`",
            devices(report, |leaf| leaf.stale > 0, "is", "are"),
            names(report, |leaf| leaf.stale > 0).join(" ")
        ),
        PoolVerdict::Repairable => repairable(pool, report),
        PoolVerdict::Lost => lost(report),
        PoolVerdict::Undecided => format!(
            "not all was read: {}; copy out what is needed with `millpond cp`",
            report.gave_up.as_deref().unwrap_or("stopped")
        ),
    };
    write_line(
        session,
        verdict_style(status(verdict)),
        verdict.word(),
        &text,
    )?;
    if verdict == PoolVerdict::Lost {
        write_losses(session, report)?;
    }
    Ok(())
}

/// Writes the verdict of `check`.
pub fn write_checked(session: &mut Session, report: &CheckReport) -> io::Result<()> {
    let count = report.findings.len() as u64 + report.not_listed;
    let findings = number::of(count, "finding", "findings");
    let (word, text) = match worst(report) {
        None => ("sound", "nothing found".to_owned()),
        Some(Severity::Harmless) => (
            "sound",
            format!("{findings}, all harmless: no data is or will be lost"),
        ),
        Some(Severity::Wrong) => (
            "wrong",
            format!("{findings}: counters, names or links are wrong, no content is lost"),
        ),
        Some(Severity::Danger) => (
            "danger",
            format!(
                "{findings}: data is lost or will be; do not write to the pool before \
                 `millpond cp` copied out what is needed"
            ),
        ),
    };
    write_line(session, verdict_style(check_status(report)), word, &text)
}

/// The worst severity. Findings that are not listed count as the worst one.
fn worst(report: &CheckReport) -> Option<Severity> {
    let listed = report
        .findings
        .iter()
        .map(|finding| finding.kind.severity());
    let unlisted = (report.not_listed > 0).then_some(Severity::Danger);
    listed.chain(unlisted).max()
}

fn repairable(pool: &str, report: &VerifyReport) -> String {
    let is_wrong = |leaf: &LeafReport| leaf.wrong > 0 || leaf.faults > 0;
    let mut text = String::from("no file is lost");
    if report.leaves.values().any(is_wrong) || report.repairable > 0 {
        let named = devices(report, is_wrong, "has", "have");
        text += &format!("; {named} damage that `zpool scrub {pool}` repairs");
    }
    if report.leaves.values().any(|leaf| !leaf.labels.is_empty()) {
        let named = devices(report, |leaf| !leaf.labels.is_empty(), "has", "have");
        text += &format!(
            "; {named} damaged labels, which are written anew by `zpool export` and `zpool import`"
        );
    }
    text
}

fn lost(report: &VerifyReport) -> String {
    let objects = &report.losses.objects;
    let count = |is_snapshot| {
        let own = objects
            .iter()
            .filter(|lost| lost.is_snapshot == is_snapshot);
        own.count() as u64
    };
    let (heads, snapshots) = (count(false), count(true));
    let more = if report.losses.is_partial {
        "at least "
    } else {
        ""
    };
    let text = match (heads, snapshots) {
        (0, 0) => "structures of the pool are not valid".to_owned(),
        (0, snapshots) => {
            let files = number::of(snapshots, "file", "files");
            format!("{more}{files} of snapshots, none of file systems and volumes")
        }
        (heads, 0) => format!(
            "{more}{}",
            number::of(heads, "file or object", "files or objects")
        ),
        (heads, snapshots) => {
            let files = number::of(heads, "file or object", "files or objects");
            format!("{more}{files}, and {snapshots} of snapshots")
        }
    };
    format!("{text} cannot be read whole from any copy")
}

fn write_losses(session: &mut Session, report: &VerifyReport) -> io::Result<()> {
    let objects = &report.losses.objects;
    for lost in objects.iter().take(FILES_SHOWN_MAX) {
        let place = place(lost);
        let advice = match (&lost.whole_in, &lost.path) {
            (Some(snapshot), Some(path)) => format!(
                "whole in {snapshot}: `millpond cp '{snapshot}:/{}' .`",
                name_text::escaped(path)
            ),
            (Some(snapshot), None) => format!("whole in {snapshot}"),
            (None, _) if lost.is_snapshot => "cannot be read whole in this snapshot".to_owned(),
            (None, Some(_)) => "whole in no snapshot: restore it from a backup".to_owned(),
            (None, None) => "not a file whose name is known".to_owned(),
        };
        writeln!(session.out, "  {place}: {advice}")?;
    }
    let rest = objects.len().saturating_sub(FILES_SHOWN_MAX);
    if rest > 0 {
        writeln!(session.out, "  … and {rest} more; --json lists them")?;
    }
    Ok(())
}

fn place(lost: &LostObject) -> String {
    match (&lost.dataset, &lost.path) {
        (Some(dataset), Some(path)) => format!("{dataset}:/{}", name_text::escaped(path)),
        (Some(dataset), None) if lost.object == 0 => format!("{dataset}: its metadata"),
        (Some(dataset), None) => format!("{dataset}: object {}", lost.object),
        (None, _) => format!("pool metadata, object {}", lost.object),
    }
}

/// Names the devices that a condition holds for, with the verb for one or for several.
fn devices(
    report: &VerifyReport,
    holds: impl Fn(&LeafReport) -> bool,
    one: &str,
    several: &str,
) -> String {
    let names = names(report, holds);
    let shown = names.get(..DEVICES_SHOWN_MAX).unwrap_or(&names).join(", ");
    match names.len() {
        0 => format!("the pool {one}"),
        1 => format!("{shown} {one}"),
        count if count <= DEVICES_SHOWN_MAX => format!("{shown} {several}"),
        count => format!("{shown} and {} more {several}", count - DEVICES_SHOWN_MAX),
    }
}

fn names(report: &VerifyReport, holds: impl Fn(&LeafReport) -> bool) -> Vec<&str> {
    let leaves = report.leaves.values().filter(|leaf| holds(leaf));
    leaves.map(|leaf| leaf.name.as_str()).collect()
}

fn verdict_style(status: u8) -> Style {
    let color = match status {
        0 => AnsiColor::Green,
        NEEDS_REPAIR => AnsiColor::Yellow,
        _ => AnsiColor::Red,
    };
    color.on_default().bold()
}

/// Writes the line, in color on a terminal unless `NO_COLOR` is set.
fn write_line(session: &mut Session, style: Style, word: &str, text: &str) -> io::Result<()> {
    let style = match has_color(session.environment) {
        true => style,
        false => Style::new(),
    };
    writeln!(session.out, "verdict: {style}{word}{style:#}: {text}")
}

fn has_color(environment: &Environment) -> bool {
    let is_refused = environment
        .variables
        .get("NO_COLOR")
        .is_some_and(|value| !value.is_empty());
    let is_dumb = environment
        .variables
        .get("TERM")
        .is_some_and(|value| value == "dumb");
    environment.screen_lines.is_some() && !is_refused && !is_dumb
}
