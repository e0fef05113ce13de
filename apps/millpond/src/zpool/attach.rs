//! `zpool attach`, `zpool detach` and `zpool replace`.

use super::change_text::{Verb, message};
use super::create::{ashift_of, resolve};
use super::device_state::find;
use super::manage::require;
use super::wait;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_control::{ChangeError, NewSide, PoolChange, VdevInfo, VdevKind};

/// The status of a failure that is found after the command line was understood.
const REFUSED: u8 = 255;

/// Attaches a device to a mirror or a single disk, or expands a RAID-Z vdev by it.
pub fn attach(session: &mut Session, parsed: &Parsed) -> Ending {
    let [name, old, new] = parsed.operands.as_slice() else {
        return Err(Failure::Usage("too many arguments".into()));
    };
    let action = format!("cannot attach {new} to {old}");
    new_side(session, parsed, &action, [name, old, new], false)
}

/// Replaces a device by another one, or by the one that is now at its path.
pub fn replace(session: &mut Session, parsed: &Parsed) -> Ending {
    let (name, old, new) = match parsed.operands.as_slice() {
        [name, old] => (name, old, old),
        [name, old, new] => (name, old, new),
        _ => return Err(Failure::Usage("too many arguments".into())),
    };
    let action = match parsed.operands.len() {
        2 => format!("cannot replace {old}"),
        _ => format!("cannot replace {old} with {new}"),
    };
    new_side(session, parsed, &action, [name, old, new], true)
}

fn new_side(
    session: &mut Session,
    parsed: &Parsed,
    action: &str,
    [name, old, new]: [&String; 3],
    is_replacement: bool,
) -> Ending {
    check_options(parsed)?;
    require(session, name)?;
    let is_spare = |vdev: &VdevInfo| matches!(vdev.kind, VdevKind::DistributedSpare { .. });
    let path = match find(session, name, new)?.filter(is_spare) {
        // Its path is its name.
        Some(spare) => spare.path.unwrap_or_default(),
        None => {
            let found = resolve(session.service()?, new);
            found.map_err(Failure::Refused)?.path
        }
    };
    let Some(leaf) = find(session, name, old)? else {
        return refused(session, action, &ChangeError::NoSuchDevice);
    };
    let is_expansion = !is_replacement && matches!(leaf.kind, VdevKind::RaidZ { .. });
    if !leaf.children.is_empty() && !is_expansion {
        let why = "can only attach to mirrors and top-level disks".to_owned();
        return refused(session, action, &ChangeError::Failed(why));
    }
    let change = PoolChange::Attach(NewSide {
        old: leaf.guid,
        path,
        is_replacement,
        may_take_used: parsed.has("f"),
        is_sequential: parsed.has("s"),
    });
    let done = session.service()?.change(name, &[change], &parsed.line);
    match done {
        Ok(_) => {}
        Err(failed) if matches!(failed.error, ChangeError::InUse { .. }) => {
            let text = message(Verb::Add, action, &failed.error);
            return Err(Failure::Refused(text));
        }
        Err(failed) => return refused(session, action, &failed.error),
    }
    if parsed.has("w") {
        let activity = match (is_replacement, is_expansion) {
            (true, _) => "replace",
            (false, true) => "raidz_expand",
            (false, false) => "resilver",
        };
        wait::until_over(session, name, activity)?;
    }
    Ok(0)
}

fn refused(session: &mut Session, action: &str, error: &ChangeError) -> Ending {
    let text = message(Verb::Other, action, error);
    writeln!(session.err, "{text}")?;
    Err(Failure::Status(REFUSED))
}

/// Only `ashift` may be set, to a value that vdevs can have; the sectors of the vdev stay as they are.
fn check_options(parsed: &Parsed) -> Result<(), Failure> {
    for option in parsed.values("o") {
        let Some(value) = option.strip_prefix("ashift=") else {
            return Err(Failure::Usage(String::new()));
        };
        ashift_of(value)?;
    }
    Ok(())
}

/// Detaches a device from a mirror, or from what it replaces. Further operands are ignored, as by OpenZFS.
pub fn detach(session: &mut Session, parsed: &Parsed) -> Ending {
    let [name, device, ..] = parsed.operands.as_slice() else {
        return Err(Failure::Usage("missing <device> specification".into()));
    };
    let action = format!("cannot detach {device}");
    require(session, name)?;
    let found: Option<VdevInfo> = find(session, name, device)?;
    let Some(leaf) = found else {
        return refused(session, &action, &ChangeError::NoSuchDevice);
    };
    if !leaf.children.is_empty() {
        let why = "only applicable to mirror and replacing vdevs".to_owned();
        return refused(session, &action, &ChangeError::Failed(why));
    }
    let change = PoolChange::Detach { leaf: leaf.guid };
    let done = session.service()?.change(name, &[change], &parsed.line);
    match done {
        Ok(_) => Ok(0),
        Err(failed) => refused(session, &action, &failed.error),
    }
}
