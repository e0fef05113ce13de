//! `zpool remove`.

use super::change_text::{Verb, message};
use super::device_state::find;
use super::manage::require;
use super::wait;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use crate::text::number;
use millpond_control::{ChangeError, PoolChange, VdevClass};

/// Removes devices. Each failure is reported and does not stop the others.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let [name, devices @ ..] = parsed.operands.as_slice() else {
        return Err(Failure::Usage("missing pool name argument".into()));
    };
    if parsed.has("s") {
        return cancel(session, parsed, name);
    }
    if devices.is_empty() {
        return Err(Failure::Usage("missing device".into()));
    }
    require(session, name)?;
    let mut status = 0;
    for device in devices {
        let action = format!("cannot remove {device}");
        if let Err(error) = remove(session, parsed, name, device)? {
            writeln!(session.err, "{}", message(Verb::Other, &action, &error))?;
            status = 1;
        }
    }
    if status == 0 && parsed.has("w") && !parsed.has("n") {
        wait::until_over(session, name, "remove")?;
    }
    Ok(status)
}

fn cancel(session: &mut Session, parsed: &Parsed, name: &str) -> Ending {
    require(session, name)?;
    let changes = [PoolChange::CancelRemoval];
    let done = session.service()?.change(name, &changes, &parsed.line);
    match done {
        Ok(_) => Ok(0),
        Err(failed) => {
            let text = message(Verb::Other, "cannot cancel removal", &failed.error);
            writeln!(session.err, "{text}")?;
            Ok(1)
        }
    }
}

fn remove(
    session: &mut Session,
    parsed: &Parsed,
    name: &str,
    device: &str,
) -> Result<Result<(), ChangeError>, Failure> {
    let Some(vdev) = find(session, name, device)? else {
        return Ok(Err(ChangeError::NoSuchDevice));
    };
    let guid = vdev.guid;
    let change = match vdev.class {
        VdevClass::Spare | VdevClass::Cache => PoolChange::RemoveAuxiliary { guid },
        VdevClass::Log => PoolChange::RemoveLog { guid },
        _ => PoolChange::RemoveData { guid },
    };
    if parsed.has("n") {
        return estimate(session, parsed, name, device, &change);
    }
    let done = session.service()?.change(name, &[change], &parsed.line);
    Ok(done.map(drop).map_err(|failed| failed.error))
}

/// Prints the memory that the mapping of a removed vdev takes.
fn estimate(
    session: &mut Session,
    parsed: &Parsed,
    name: &str,
    device: &str,
    change: &PoolChange,
) -> Result<Result<(), ChangeError>, Failure> {
    let bytes = match change {
        PoolChange::RemoveData { guid } => {
            let changes = [PoolChange::EstimateRemoval { guid: *guid }];
            let done = session.service()?.change(name, &changes, "");
            match done {
                Ok(changed) => changed.mapping_bytes,
                Err(failed) => return Ok(Err(failed.error)),
            }
        }
        // A log needs no mapping of where its blocks are now.
        PoolChange::RemoveLog { .. } => 0,
        _ => return Ok(Ok(())),
    };
    match parsed.has("p") {
        true => writeln!(session.out, "{device} {bytes}")?,
        false => writeln!(
            session.out,
            "Memory that will be used after removing {device}: {}",
            number::count(bytes)
        )?,
    }
    Ok(Ok(()))
}
