//! `zpool wait`: waits until background activities have ended.

use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use crate::text::columns::pad_left;
use crate::text::number;
use millpond_control::{
    ActivityState, ControlError, LeafActivity, PoolInfo, ProgressState, ScanFunction, Value,
    VdevActivity, VdevInfo, VdevKind,
};
use std::time::Duration;

/// Polling interval if no interval is given.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The activities to wait for, with their column titles.
const ACTIVITIES: [(&str, &str); 9] = [
    ("discard", "DISCARD"),
    ("free", "FREE"),
    ("initialize", "INITIALIZE"),
    ("replace", "REPLACE"),
    ("remove", "REMOVE"),
    ("resilver", "RESILVER"),
    ("scrub", "SCRUB"),
    ("trim", "TRIM"),
    ("raidz_expand", "RAIDZ_EXPAND"),
];

/// Waits for the selected activities.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let mut chosen: Vec<(&str, &str)> = vec![];
    for word in parsed.values("t").flat_map(|words| words.split(',')) {
        let known = ACTIVITIES.iter().find(|(name, _)| *name == word);
        let known = known.ok_or_else(|| Failure::Usage(format!("invalid activity '{word}'")))?;
        chosen.push(*known);
    }
    if chosen.is_empty() {
        chosen = ACTIVITIES.to_vec();
    }
    let (pool, interval) = match parsed.operands.as_slice() {
        [] => return Err(Failure::Usage("missing 'pool' argument".into())),
        [pool] => (pool, None),
        [pool, word] => match word.parse::<f64>() {
            Ok(seconds) if seconds > 0.0 => (pool, Some(Duration::from_secs_f64(seconds.min(1e6)))),
            _ => return Err(Failure::Usage(format!("invalid interval '{word}'"))),
        },
        _ => return Err(Failure::Usage("too many arguments".into())),
    };
    if interval.is_some() && !parsed.has("H") {
        let mut line = String::new();
        for (_, title) in &chosen {
            pad_left(&mut line, title, title.len().max(6) + 2);
        }
        writeln!(session.out, "{line}")?;
    }
    loop {
        let info = session.service()?.pool(pool).map_err(|error| match error {
            ControlError::NoSuchPool => Failure::Refused(super::no_such_pool(pool)),
            other => Failure::Refused(format!("cannot wait for '{pool}': {other}")),
        })?;
        let left: Vec<Option<u64>> = chosen
            .iter()
            .map(|(name, _)| left_of(&info, name))
            .collect();
        if interval.is_some() {
            let mut line = String::new();
            for (at, ((_, title), bytes)) in chosen.iter().zip(&left).enumerate() {
                let bytes = bytes.unwrap_or(0);
                let text = match parsed.has("p") {
                    true => bytes.to_string(),
                    false => number::count(bytes),
                };
                match parsed.has("H") {
                    true if at > 0 => line += &format!("\t{text}"),
                    true => line += &text,
                    false => pad_left(&mut line, &text, title.len().max(6) + 2),
                }
            }
            writeln!(session.out, "{line}")?;
            session.out.flush()?;
        }
        if left.iter().all(Option::is_none) {
            return Ok(0);
        }
        (session.environment.pause)(interval.unwrap_or(LOOK_EVERY));
    }
}

/// Waits until one activity of a pool has ended.
pub(super) fn until_over(session: &mut Session, pool: &str, activity: &str) -> Result<(), Failure> {
    until(session, pool, &|info| left_of(info, activity).is_none())
}

/// Waits until an activity on these leaves has ended, whatever others do.
pub(super) fn until_leaves_rest(
    session: &mut Session,
    pool: &str,
    activity: LeafActivity,
    named: &[u64],
) -> Result<(), Failure> {
    let of = |vdev: &VdevInfo| match activity {
        _ if !named.contains(&vdev.guid) => VdevActivity::default(),
        LeafActivity::Initialize => vdev.initialize,
        LeafActivity::Trim => vdev.trim,
    };
    until(session, pool, &|info| leaves(&info.root, &of).is_none())
}

fn until(
    session: &mut Session,
    pool: &str,
    is_over: &dyn Fn(&PoolInfo) -> bool,
) -> Result<(), Failure> {
    loop {
        let info = session.service()?.pool(pool).map_err(|error| match error {
            ControlError::NoSuchPool => Failure::Refused(super::no_such_pool(pool)),
            other => Failure::Refused(format!("cannot wait for '{pool}': {other}")),
        })?;
        if is_over(&info) {
            return Ok(());
        }
        (session.environment.pause)(LOOK_EVERY);
    }
}

/// Bytes left to process; `None` if the activity is not running.
fn left_of(info: &PoolInfo, activity: &str) -> Option<u64> {
    let scan = |function| {
        let scan = info.scan.filter(|scan| scan.function == function)?;
        let is_active = scan.state == ProgressState::Active && scan.paused_at_s == 0;
        is_active.then(|| scan.to_examine_bytes.saturating_sub(scan.issued_bytes))
    };
    let rebuilds = || {
        let rebuilds = info.rebuilds.iter();
        let active = rebuilds.filter(|one| one.state == ProgressState::Active);
        let left = active.map(|one| one.estimated_bytes.saturating_sub(one.scanned_bytes));
        left.reduce(u64::saturating_add)
    };
    match activity {
        "discard" => {
            let checkpoint = info
                .checkpoint
                .filter(|checkpoint| checkpoint.is_discarding)?;
            Some(checkpoint.space_bytes)
        }
        "free" => {
            let freeing = info.property("freeing")?.value.as_ref();
            freeing.and_then(Value::number).filter(|bytes| *bytes > 0)
        }
        "resilver" => scan(ScanFunction::Resilver).or_else(rebuilds),
        "replace" => is_replacing(&info.root).then(|| {
            let resilver = scan(ScanFunction::Resilver).or_else(rebuilds);
            resilver.unwrap_or_default()
        }),
        "scrub" => scan(ScanFunction::Scrub).or_else(|| {
            let scrub = info.scan?.error_scrub?;
            let is_active = scrub.state == ProgressState::Active && scrub.paused_at_s == 0;
            is_active.then_some(scrub.to_examine)
        }),
        "remove" => {
            let removal = info
                .removal
                .filter(|one| one.state == ProgressState::Active)?;
            Some(removal.to_copy_bytes.saturating_sub(removal.copied_bytes))
        }
        "raidz_expand" => {
            let one = info
                .expansion
                .filter(|one| one.state == ProgressState::Active)?;
            Some(one.to_reflow_bytes.saturating_sub(one.reflowed_bytes))
        }
        "initialize" => leaves(&info.root, &|vdev| vdev.initialize),
        "trim" => leaves(&info.root, &|vdev| vdev.trim),
        _ => None,
    }
}

/// Whether a replaced device has not left yet, or a spare lacks data of the device for which it stands in.
fn is_replacing(vdev: &VdevInfo) -> bool {
    let lacks_data = |spare: &VdevInfo| spare.missed_txgs > 0;
    match vdev.kind {
        VdevKind::Replacing => true,
        VdevKind::Spare if vdev.children.last().is_some_and(lacks_data) => true,
        _ => vdev.children.iter().any(is_replacing),
    }
}

fn leaves(vdev: &VdevInfo, activity: &dyn Fn(&VdevInfo) -> VdevActivity) -> Option<u64> {
    let own = activity(vdev);
    let own = (own.state == ActivityState::Active)
        .then(|| own.total_bytes.saturating_sub(own.done_bytes));
    let below = vdev
        .children
        .iter()
        .filter_map(|child| leaves(child, activity));
    own.into_iter().chain(below).reduce(u64::saturating_add)
}
