//! `zpool remove`, for hot spares and cache devices.

use super::change_text::{Verb, message};
use super::device_state::find;
use super::manage::require;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_control::{ChangeError, PoolChange, VdevClass};

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
    session: &Session,
    parsed: &Parsed,
    name: &str,
    device: &str,
) -> Result<Result<(), ChangeError>, Failure> {
    let Some(vdev) = find(session, name, device)? else {
        return Ok(Err(ChangeError::NoSuchDevice));
    };
    if !matches!(vdev.class, VdevClass::Spare | VdevClass::Cache) {
        let what = "removing devices other than hot spares and cache devices";
        return Ok(Err(ChangeError::NotBuilt(what.into())));
    }
    // With -n nothing is done; the mapping that would need memory is that of other vdevs.
    if parsed.has("n") {
        return Ok(Ok(()));
    }
    let change = PoolChange::RemoveAuxiliary { guid: vdev.guid };
    let done = session.service()?.change(name, &[change], &parsed.line);
    Ok(done.map(drop).map_err(|failed| failed.error))
}
