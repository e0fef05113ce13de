//! `zpool remove`, for hot spares, cache devices and log vdevs.

use super::change_text::{Verb, message};
use super::device_state::find;
use super::manage::require;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_control::{ChangeError, CheckpointRefusal, PoolChange, VdevClass};

/// Removes devices. Each failure is reported and does not stop the others.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let [name, devices @ ..] = parsed.operands.as_slice() else {
        return Err(Failure::Usage("missing pool name argument".into()));
    };
    if parsed.has("s") {
        require(session, name)?;
        let text = "cannot cancel removal: operation is not in progress";
        return Err(Failure::Refused(text.into()));
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
    Ok(status)
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
        _ => {
            if let Some(why) = kept_by_checkpoint(session, name)? {
                return Ok(Err(ChangeError::Failed(why)));
            }
            let what = "removing devices that hold data";
            return Ok(Err(ChangeError::NotBuilt(what.into())));
        }
    };
    if parsed.has("n") {
        // A log needs no mapping of where its blocks are now.
        if vdev.class == VdevClass::Log {
            match parsed.has("p") {
                true => writeln!(session.out, "{device} 0")?,
                false => writeln!(
                    session.out,
                    "Memory that will be used after removing {device}: 0"
                )?,
            }
        }
        return Ok(Ok(()));
    }
    // With -w too nothing is left to wait for: the device is gone when the change returns.
    let done = session.service()?.change(name, &[change], &parsed.line);
    Ok(done.map(drop).map_err(|failed| failed.error))
}

/// Why a pool with a checkpoint keeps its vdevs, if it has one.
fn kept_by_checkpoint(session: &Session, name: &str) -> Result<Option<String>, Failure> {
    let info = session.service()?.pool(name);
    let info = info.map_err(|error| Failure::Refused(error.to_string()))?;
    Ok(info.checkpoint.map(|checkpoint| {
        let why = match checkpoint.is_discarding {
            true => CheckpointRefusal::Discarding,
            false => CheckpointRefusal::Exists,
        };
        why.to_string()
    }))
}
