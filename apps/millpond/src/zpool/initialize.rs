//! `zpool initialize`: fills the free space of devices with a pattern.

use super::change_text::{Verb, message};
use super::device_state::find;
use super::{no_such_pool, wait};
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_control::{InitializeAction, Note, PoolChange, VdevInfo, VdevState};

/// The status of every failure that is found after the command line was understood.
const REFUSED: u8 = 255;

/// Starts, suspends, cancels or resets initializations.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let [name, devices @ ..] = parsed.operands.as_slice() else {
        return Err(Failure::Usage("missing pool name argument".into()));
    };
    let action = action(parsed)?;
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
        writeln!(session.err, "cannot initialize '{device}': {why}")?;
        status = REFUSED;
    }
    if chosen.is_empty() {
        return Ok(status);
    }
    let leaves = chosen.iter().map(|(_, guid)| *guid).collect();
    let mut changes = vec![PoolChange::Initialize { leaves, action }];
    let is_served = session.daemon().is_ok();
    if parsed.has("w") && !is_served {
        // Nothing else works on a pool that is opened for one command.
        changes.push(PoolChange::FinishInitialize);
    }
    let done = session.service()?.change(name, &changes, &parsed.line);
    let changed = match done {
        Ok(changed) => changed,
        Err(failed) => {
            let action = format!("cannot initialize '{name}'");
            return refused(session, &message(Verb::Other, &action, &failed.error));
        }
    };
    for note in &changed.notes {
        let Note::NotInitialized { leaf, why } = note else {
            continue;
        };
        let device = chosen.iter().find(|(_, guid)| guid == leaf);
        let device = device.map_or("", |(device, _)| device);
        writeln!(session.err, "cannot initialize '{device}': {why}")?;
        status = REFUSED;
    }
    if status == 0 && parsed.has("w") && is_served {
        wait::until_over(session, name, "initialize")?;
    }
    Ok(status)
}

fn action(parsed: &Parsed) -> Result<InitializeAction, Failure> {
    let given: Vec<&str> = ["c", "s", "u", "w"]
        .into_iter()
        .filter(|option| parsed.has(option))
        .collect();
    if let [one, other, ..] = given.as_slice() {
        let text =
            format!("invalid option combination: -{one} and -{other} are mutually exclusive");
        return Err(Failure::Usage(text));
    }
    Ok(match given.first() {
        Some(&"c") => InitializeAction::Cancel,
        Some(&"s") => InitializeAction::Suspend,
        Some(&"u") => InitializeAction::Reset,
        _ => InitializeAction::Start,
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
