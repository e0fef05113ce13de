//! The lines of `zpool status` about scrubs, resilvers, removal, checkpoint and expansion.

use super::vdev_name::Naming;
use crate::text::date;
use crate::text::number::{bytes, count};
use jiff::tz::TimeZone;
use millpond_control::{
    CheckpointInfo, ErrorScrubInfo, ExpansionInfo, PoolInfo, ProgressState, RebuildInfo,
    RemovalInfo, ScanFunction, ScanInfo, StuckFreeing, VdevInfo, VdevKind,
};

/// What the lines depend on besides the pool.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// The local time zone.
    pub zone: &'a TimeZone,
    /// Seconds since 1970.
    pub now_s: u64,
    /// How to name vdevs.
    pub naming: Naming,
}

/// Formats all lines, each with its line end.
pub fn lines(pool: &PoolInfo, around: Surroundings) -> String {
    let mut text = String::new();
    scans(&mut text, pool, around);
    if let Some(removal) = &pool.removal {
        removing(&mut text, pool, removal, around);
    }
    if let Some(checkpoint) = pool.checkpoint {
        checkpointed(&mut text, checkpoint, around.zone);
    }
    if let Some(stuck) = &pool.stuck_freeing {
        stuck_freeing(&mut text, stuck);
    }
    if let Some(expansion) = &pool.expansion {
        expanding(&mut text, pool, expansion, around);
    }
    text
}

/// Formats what is stuck, and what can be done. OpenZFS says nothing of it.
fn stuck_freeing(text: &mut String, stuck: &StuckFreeing) {
    let datasets = match stuck.datasets {
        1 => "1 destroyed dataset".to_owned(),
        count => format!("{count} destroyed datasets"),
    };
    let reason = &stuck.reason;
    *text += &format!(
        "freeing: stuck at {datasets}: {reason}\n\
         \tIf devices are missing, attach them, then export and import the pool. Otherwise\n\
         \trun 'millpond tunable zfs_free_leak_on_eio 1' and 'zpool sync', which gives up\n\
         \tthe space that cannot be found and frees the rest.\n"
    );
}

/// Formats the scrub (or the error scrub if it started later), and the later of resilver and rebuild.
fn scans(text: &mut String, pool: &PoolInfo, around: Surroundings) {
    let scan = pool.scan.filter(|scan| scan.state != ProgressState::None);
    let scrub = scan.filter(|scan| scan.function == ScanFunction::Scrub);
    let resilver = scan.filter(|scan| scan.function == ScanFunction::Resilver);
    let error_scrub = pool
        .scan
        .and_then(|scan| scan.error_scrub)
        .filter(|scrub| scrub.state != ProgressState::None);
    match (scrub, error_scrub) {
        (scrub, Some(errors)) if errors.start_s >= scrub.map_or(0, |scrub| scrub.start_s) => {
            error_scrubbing(text, errors, around.zone);
        }
        (Some(scrub), _) => scanning(text, pool, &scrub, around),
        _ => {}
    }
    let rebuilds: Vec<&RebuildInfo> = pool
        .rebuilds
        .iter()
        .filter(|r| r.state != ProgressState::None)
        .collect();
    let last_rebuild_s = rebuilds.iter().map(|rebuild| rebuild.start_s).max();
    match (resilver, last_rebuild_s) {
        (Some(resilver), last) if resilver.start_s >= last.unwrap_or(0) => {
            scanning(text, pool, &resilver, around);
        }
        _ => {
            for rebuild in rebuilds {
                rebuilding(text, pool, rebuild, around);
            }
        }
    }
    if pool.checkpoint.is_some()
        && let Some(scan) = scan
    {
        match scan.state {
            ProgressState::Active => text.push_str(
                "    scan warning: skipping blocks that are only referenced by the checkpoint.\n",
            ),
            ProgressState::Finished => text.push_str(
                "    scan warning: skipped blocks that are only referenced by the checkpoint.\n",
            ),
            _ => {}
        }
    }
}

fn scanning(text: &mut String, pool: &PoolInfo, scan: &ScanInfo, around: Surroundings) {
    let is_scrub = scan.function == ScanFunction::Scrub;
    let at = |time_s| date::ctime(time_s, around.zone);
    let noun = if is_scrub { "scrub" } else { "resilver" };
    match scan.state {
        ProgressState::None => {}
        ProgressState::Canceled => {
            *text += &format!("  scan: {noun} canceled on {}\n", at(scan.end_s));
        }
        ProgressState::Finished => {
            let verb = if is_scrub {
                "scrub repaired"
            } else {
                "resilvered"
            };
            *text += &format!(
                "  scan: {verb} {} in {} with {} errors on {}\n",
                bytes(scan.processed_bytes),
                date::duration(scan.end_s.saturating_sub(scan.start_s)),
                scan.errors,
                at(scan.end_s)
            );
        }
        ProgressState::Active => {
            if is_scrub && scan.paused_at_s > 0 {
                let (paused, started) = (at(scan.paused_at_s), at(scan.start_s));
                *text +=
                    &format!("  scan: scrub paused since {paused}\n\tscrub started on {started}\n");
            } else {
                *text += &format!("  scan: {noun} in progress since {}\n", at(scan.start_s));
            }
            let elapsed_s = around
                .now_s
                .saturating_sub(scan.pass_start_s)
                .saturating_sub(scan.spent_paused_s)
                .max(1);
            let is_suspended = pool.suspended.is_some();
            progress(
                text,
                &Progress {
                    scanned: scan.examined_bytes,
                    total: scan.to_examine_bytes,
                    skipped: scan.skipped_bytes,
                    issued: scan.issued_bytes,
                    processed: scan.processed_bytes,
                    scan_rate: scan.pass_examined_bytes / elapsed_s,
                    issue_rate: scan.pass_issued_bytes / elapsed_s,
                    is_paused: is_scrub && scan.paused_at_s > 0,
                    is_scrub,
                    is_suspended,
                },
            );
        }
    }
}

/// The progress of a running scan: bytes, and bytes per second.
struct Progress {
    scanned: u64,
    total: u64,
    skipped: u64,
    issued: u64,
    processed: u64,
    scan_rate: u64,
    issue_rate: u64,
    is_paused: bool,
    is_scrub: bool,
    is_suspended: bool,
}

fn progress(text: &mut String, p: &Progress) {
    let to_issue = p.total.saturating_sub(p.skipped);
    let rate = |rate: u64| {
        if p.is_paused || rate == 0 {
            String::new()
        } else {
            format!(" at {}/s", bytes(rate))
        }
    };
    // Once everything has been scanned, the scan rate is not shown. Issuing may still be in progress.
    let scan_rate = if p.scanned >= p.total {
        String::new()
    } else {
        rate(p.scan_rate)
    };
    *text += &format!(
        "\t{} / {} scanned{scan_rate}, {} / {} issued{}\n",
        bytes(p.scanned),
        bytes(p.total),
        bytes(p.issued),
        bytes(to_issue),
        rate(p.issue_rate)
    );
    let done = if to_issue == 0 {
        0.0
    } else {
        p.issued as f64 / to_issue as f64 * 100.0
    };
    let done = if p.issued >= to_issue && to_issue > 0 {
        100.0
    } else {
        done
    };
    let verb = if p.is_scrub { "repaired" } else { "resilvered" };
    *text += &format!("\t{} {verb}, {done:.2}% done", bytes(p.processed));
    if !p.is_paused {
        let has_begun = if p.is_scrub {
            p.issued > 0
        } else {
            p.processed > 0
        };
        if has_begun && p.issue_rate >= ESTIMABLE_RATE && !p.is_suspended {
            let left_s = to_issue.saturating_sub(p.issued) / p.issue_rate;
            *text += &format!(", {} to go", date::duration(left_s));
        } else {
            *text += ", no estimated completion time";
        }
    }
    text.push('\n');
}

fn error_scrubbing(text: &mut String, scrub: ErrorScrubInfo, zone: &TimeZone) {
    let at = |time_s| date::ctime(time_s, zone);
    match scrub.state {
        ProgressState::None => {}
        ProgressState::Finished => {
            let elapsed_s = scrub.end_s.saturating_sub(scrub.start_s);
            let (days, rest_s) = (elapsed_s / 86400, elapsed_s % 86400);
            *text += &format!(
                " scrub: scrubbed {} error blocks in {days} days {} on {}\n",
                scrub.examined,
                date::duration(rest_s),
                at(scrub.end_s)
            );
        }
        ProgressState::Canceled => {
            *text += &format!(" scrub: error scrub canceled on {}\n", at(scrub.end_s));
        }
        ProgressState::Active => {
            if scrub.paused_at_s > 0 {
                *text += &format!(
                    " scrub: error scrub paused since {}\n\terror scrub started on {}\n",
                    at(scrub.paused_at_s),
                    at(scrub.start_s)
                );
            } else {
                *text += &format!(
                    " scrub: error scrub in progress since {}\n",
                    at(scrub.start_s)
                );
            }
            let all = scrub.examined.saturating_add(scrub.to_examine).max(1);
            let done = scrub.examined as f64 / all as f64 * 100.0;
            *text += &format!(
                "\t{done:.2}% done, issued I/O for {} error blocks\n",
                scrub.examined
            );
        }
    }
}

fn rebuilding(text: &mut String, pool: &PoolInfo, rebuild: &RebuildInfo, around: Surroundings) {
    let at = |time_s| date::ctime(time_s, around.zone);
    let name = top_level(pool, rebuild.top_id)
        .map_or_else(|| rebuild.top_id.to_string(), |vdev| around.naming.of(vdev));
    match rebuild.state {
        ProgressState::None => {}
        ProgressState::Finished => {
            *text += &format!(
                "  scan: resilvered ({name}) {} in {} with {} errors on {}\n",
                bytes(rebuild.rebuilt_bytes),
                date::duration(rebuild.end_s.saturating_sub(rebuild.start_s)),
                rebuild.errors,
                at(rebuild.end_s)
            );
        }
        ProgressState::Canceled => {
            *text += &format!(
                "  scan: resilver ({name}) canceled on {}\n",
                at(rebuild.end_s)
            );
        }
        ProgressState::Active => {
            let started = at(rebuild.start_s);
            *text += &format!("  scan: resilver ({name}) in progress since {started}\n");
            let elapsed_s = (rebuild.pass_time_ms / 1000).max(1);
            progress(
                text,
                &Progress {
                    scanned: rebuild.scanned_bytes,
                    total: rebuild.estimated_bytes,
                    skipped: rebuild.skipped_bytes,
                    issued: rebuild.issued_bytes,
                    processed: rebuild.rebuilt_bytes,
                    scan_rate: rebuild.pass_scanned_bytes / elapsed_s,
                    issue_rate: rebuild.pass_issued_bytes / elapsed_s,
                    is_paused: false,
                    is_scrub: false,
                    is_suspended: pool.suspended.is_some(),
                },
            );
        }
    }
}

fn removing(text: &mut String, pool: &PoolInfo, removal: &RemovalInfo, around: Surroundings) {
    let at = |time_s| date::ctime(time_s, around.zone);
    let name = top_level(pool, removal.top_id)
        .map_or_else(|| removal.top_id.to_string(), |vdev| around.naming.of(vdev));
    match removal.state {
        ProgressState::None => return,
        ProgressState::Finished => {
            let elapsed_m = removal.end_s.saturating_sub(removal.start_s) / 60;
            *text += &format!(
                "remove: Removal of vdev {} copied {} in {}h{}m, completed on {}\n",
                removal.top_id,
                count(removal.copied_bytes),
                elapsed_m / 60,
                elapsed_m % 60,
                at(removal.end_s)
            );
        }
        ProgressState::Canceled => {
            *text += &format!(
                "remove: Removal of {name} canceled on {}\n",
                at(removal.end_s)
            );
        }
        ProgressState::Active => {
            let elapsed_s = around.now_s.saturating_sub(removal.start_s).max(1);
            let (copied, total) = (removal.copied_bytes.max(1), removal.to_copy_bytes.max(1));
            let rate = (copied / elapsed_s).max(1);
            let left_m = total.saturating_sub(copied) / rate / 60;
            let done = copied as f64 / total as f64 * 100.0;
            let estimate = if left_m / 60 < HOURS_MAX {
                format!(", {}h{}m to go", left_m / 60, left_m % 60)
            } else {
                ", (copy is slow, no estimated time)".into()
            };
            *text += &format!(
                "remove: Evacuation of {name} in progress since {}\n\t{} copied out of {} at {}/s, {done:.2}% done{estimate}\n",
                at(removal.start_s),
                count(copied),
                count(total),
                count(rate),
            );
        }
    }
    if removal.mapping_bytes > 0 {
        let mapping = count(removal.mapping_bytes);
        *text += &format!("\t{mapping} memory used for removed device mappings\n");
    }
}

fn checkpointed(text: &mut String, checkpoint: CheckpointInfo, zone: &TimeZone) {
    let space = count(checkpoint.space_bytes);
    *text += &if checkpoint.is_discarding {
        format!("checkpoint: discarding, {space} remaining.\n")
    } else {
        let created = date::ctime(checkpoint.start_s, zone);
        format!("checkpoint: created {created}, consumes {space}\n")
    };
}

fn expanding(text: &mut String, pool: &PoolInfo, expansion: &ExpansionInfo, around: Surroundings) {
    let at = |time_s| date::ctime(time_s, around.zone);
    let name = top_level(pool, expansion.top_id).map_or_else(
        || expansion.top_id.to_string(),
        |vdev| Naming::default().of(vdev),
    );
    match expansion.state {
        ProgressState::None | ProgressState::Canceled => {}
        ProgressState::Finished => {
            *text += &format!(
                "expand: expanded {name} copied {} in {}, on {}\n",
                count(expansion.reflowed_bytes),
                date::duration(expansion.end_s.saturating_sub(expansion.start_s)),
                at(expansion.end_s)
            );
        }
        ProgressState::Active => {
            let elapsed_s = around.now_s.saturating_sub(expansion.start_s).max(1);
            let copied = expansion.reflowed_bytes.max(1);
            let total = expansion.to_reflow_bytes.max(1);
            let rate = (copied / elapsed_s).max(1);
            let left_s = total.saturating_sub(copied) / rate;
            let done = copied as f64 / total as f64 * 100.0;
            let estimate = if expansion.is_waiting_for_resilver {
                ", paused for resilver or clear".into()
            } else if left_s / 3600 < HOURS_MAX {
                format!(", {} to go", date::duration(left_s))
            } else {
                ", (copy is slow, no estimated time)".into()
            };
            *text += &format!(
                "expand: expansion of {name} in progress since {}\n\t{} / {} copied at {}/s, {done:.2}% done{estimate}\n",
                at(expansion.start_s),
                count(copied),
                count(total),
                count(rate),
            );
        }
    }
}

/// The top-level vdev with this id; `None` for a hole.
pub fn top_level(pool: &PoolInfo, id: u64) -> Option<&VdevInfo> {
    pool.root
        .children
        .iter()
        .find(|vdev| vdev.id == id && vdev.kind != VdevKind::Hole)
}

/// Below this number of bytes per second, the remaining time is not estimated.
const ESTIMABLE_RATE: u64 = 10 << 20;
/// From this number of hours on, the remaining time is not shown.
const HOURS_MAX: u64 = 30 * 24;

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(pool: &PoolInfo, now_s: u64) -> String {
        let zone = TimeZone::UTC;
        let naming = Naming::default();
        lines(
            pool,
            Surroundings {
                zone: &zone,
                now_s,
                naming,
            },
        )
    }

    const NOON: u64 = 1_795_262_400;

    #[test]
    fn what_cannot_be_freed_is_told_with_a_remedy() {
        let pool = PoolInfo {
            stuck_freeing: Some(StuckFreeing {
                datasets: 2,
                reason: "no good copy".to_owned(),
            }),
            ..PoolInfo::default()
        };
        let text = text_of(&pool, NOON);
        assert!(text.contains("freeing: stuck at 2 destroyed datasets: no good copy\n"));
        assert!(text.contains("zfs_free_leak_on_eio"));
        assert!(!text_of(&PoolInfo::default(), NOON).contains("freeing"));
    }

    #[test]
    fn a_running_scrub_shows_rate_and_estimate() {
        let mut pool = PoolInfo {
            scan: Some(ScanInfo {
                function: ScanFunction::Scrub,
                state: ProgressState::Active,
                start_s: NOON,
                pass_start_s: NOON,
                to_examine_bytes: 10 << 30,
                examined_bytes: 4 << 30,
                pass_examined_bytes: 4 << 30,
                issued_bytes: 2 << 30,
                pass_issued_bytes: 2 << 30,
                ..ScanInfo::default()
            }),
            ..PoolInfo::default()
        };
        assert_eq!(
            text_of(&pool, NOON + 64),
            "  scan: scrub in progress since Sat Nov 21 12:00:00 2026\n\
             \t4G / 10G scanned at 64M/s, 2G / 10G issued at 32M/s\n\
             \t0B repaired, 20.00% done, 00:04:16 to go\n"
        );
        // One mebibyte per second is too slow for an estimate.
        assert!(text_of(&pool, NOON + 2048).ends_with(", no estimated completion time\n"));
        // A suspended pool has no estimate.
        pool.suspended = Some(millpond_control::SuspendReason::IoWait);
        assert!(text_of(&pool, NOON + 64).ends_with(", no estimated completion time\n"));
    }

    #[test]
    fn a_running_expansion_shows_its_progress() {
        let raidz = VdevInfo {
            kind: VdevKind::RaidZ { parity: 1 },
            ..VdevInfo::default()
        };
        let pool = PoolInfo {
            root: VdevInfo {
                children: vec![raidz],
                ..VdevInfo::default()
            },
            expansion: Some(ExpansionInfo {
                state: ProgressState::Active,
                start_s: NOON,
                to_reflow_bytes: 100 << 20,
                reflowed_bytes: 10 << 20,
                ..ExpansionInfo::default()
            }),
            ..PoolInfo::default()
        };
        assert_eq!(
            text_of(&pool, NOON + 10),
            "expand: expansion of raidz1-0 in progress since Sat Nov 21 12:00:00 2026\n\
             \t10M / 100M copied at 1M/s, 10.00% done, 00:01:30 to go\n"
        );
    }
}
