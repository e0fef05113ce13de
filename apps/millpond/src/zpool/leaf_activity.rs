//! `zpool initialize` and `zpool trim`: work on the free space of devices.

use super::change_text::{Verb, message};
use super::device_state::find;
use super::{no_such_pool, wait};
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use crate::text::size;
use millpond_control::{ActivityAction, LeafActivity, Note, PoolChange, VdevInfo, VdevState};

/// The status of every failure that is found after the command line was understood.
const REFUSED: u8 = 255;

/// `zpool initialize`.
pub fn initialize(session: &mut Session, parsed: &Parsed) -> Ending {
    run(session, parsed, LeafActivity::Initialize)
}

/// `zpool trim`.
pub fn trim(session: &mut Session, parsed: &Parsed) -> Ending {
    run(session, parsed, LeafActivity::Trim)
}

/// Its name in messages.
fn verb(activity: LeafActivity) -> &'static str {
    match activity {
        LeafActivity::Initialize => "initialize",
        LeafActivity::Trim => "trim",
    }
}

fn run(session: &mut Session, parsed: &Parsed, activity: LeafActivity) -> Ending {
    let action = action(parsed, activity)?;
    let pools: Vec<String> = match (parsed.has("a"), parsed.operands.split_first()) {
        (true, Some(_)) => {
            let pools = match activity {
                LeafActivity::Initialize => "pools",
                LeafActivity::Trim => "zpools",
            };
            let text = format!("-a cannot be combined with individual {pools} or vdevs");
            return Err(Failure::Usage(text));
        }
        (true, None) => {
            let pools = session.service()?.pools();
            pools.map_err(|error| Failure::Refused(error.to_string()))?
        }
        (false, None) => return Err(Failure::Usage("missing pool name argument".into())),
        (false, Some((name, devices))) => {
            return of_pool(session, parsed, (activity, action), name, devices);
        }
    };
    let mut status = 0;
    for name in pools {
        let one = of_pool(session, parsed, (activity, action), &name, &[])?;
        status = status.max(one);
    }
    Ok(status)
}

/// Starts, suspends, cancels or resets an activity on devices of a pool, or on all.
fn of_pool(
    session: &mut Session,
    parsed: &Parsed,
    (activity, action): (LeafActivity, ActivityAction),
    name: &str,
    devices: &[String],
) -> Ending {
    let verb = verb(activity);
    let info = match session.service()?.pool(name) {
        Ok(info) => info,
        Err(_) => return refused(session, &no_such_pool(name)),
    };
    let mut chosen: Vec<(String, u64)> = vec![];
    let mut status = 0;
    if devices.is_empty() {
        collect(&info.root, &mut chosen);
    }
    for device in devices {
        let found: Option<VdevInfo> = find(session, name, device)?;
        let why = match found {
            None => "no such device in pool",
            Some(vdev) if !vdev.children.is_empty() => "it is not a device; name its devices",
            Some(vdev) => {
                chosen.push((device.clone(), vdev.guid));
                continue;
            }
        };
        writeln!(session.err, "cannot {verb} '{device}': {why}")?;
        status = REFUSED;
    }
    if chosen.is_empty() {
        return Ok(status);
    }
    let leaves: Vec<u64> = chosen.iter().map(|(_, guid)| *guid).collect();
    let mut changes = vec![PoolChange::LeafActivity {
        leaves: leaves.clone(),
        activity,
        action,
    }];
    let is_served = session.daemon().is_ok();
    if parsed.has("w") && !is_served {
        // Nothing else works on a pool that is opened for one command.
        changes.push(PoolChange::FinishLeafActivity(activity));
    }
    let done = session.service()?.change(name, &changes, &parsed.line);
    let changed = match done {
        Ok(changed) => changed,
        Err(failed) => {
            let action = format!("cannot {verb} '{name}'");
            return refused(session, &message(Verb::Other, &action, &failed.error));
        }
    };
    for note in &changed.notes {
        let Note::NoActivity { leaf, why } = note else {
            continue;
        };
        let device = chosen.iter().find(|(_, guid)| guid == leaf);
        let device = device.map_or("", |(device, _)| device);
        writeln!(session.err, "cannot {verb} '{device}': {why}")?;
        status = REFUSED;
    }
    if status == 0 && parsed.has("w") && is_served {
        wait::until_leaves_rest(session, name, activity, &leaves)?;
    }
    Ok(status)
}

fn action(parsed: &Parsed, activity: LeafActivity) -> Result<ActivityAction, Failure> {
    let given: Vec<&str> = ["c", "s", "u", "w"]
        .into_iter()
        .filter(|option| parsed.has(option))
        .collect();
    if let [one, other, ..] = given.as_slice() {
        let text =
            format!("invalid option combination: -{one} and -{other} are mutually exclusive");
        return Err(Failure::Usage(text));
    }
    let (mut rate_bytes, mut is_secure) = (0, false);
    if activity == LeafActivity::Trim {
        is_secure = parsed.has("d");
        if let Some(rate) = parsed.value("r") {
            let bad = |why| Failure::Usage(format!("invalid value for rate: {why}"));
            rate_bytes = size::parse(rate).map_err(bad)?;
        }
    }
    Ok(match given.first() {
        Some(&"c") => ActivityAction::Cancel,
        Some(&"s") => ActivityAction::Suspend,
        Some(&"u") => ActivityAction::Reset,
        _ => ActivityAction::Start {
            rate_bytes,
            is_secure,
        },
    })
}

/// The devices in use that hold data, below a vdev.
fn collect(vdev: &VdevInfo, chosen: &mut Vec<(String, u64)>) {
    let is_usable = matches!(vdev.state, VdevState::Healthy | VdevState::Degraded);
    if let (true, Some(path)) = (vdev.children.is_empty() && is_usable, &vdev.path) {
        chosen.push((path.clone(), vdev.guid));
    }
    for child in &vdev.children {
        collect(child, chosen);
    }
}

fn refused(session: &mut Session, line: &str) -> Ending {
    writeln!(session.err, "{line}")?;
    Ok(REFUSED)
}
