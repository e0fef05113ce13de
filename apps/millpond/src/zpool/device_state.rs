//! The commands that take devices offline and bring them online: `offline`, `online`, `clear`, `reopen`.

use super::change_text::{Verb, failure, message};
use super::groups;
use super::manage::{each, known, require};
use super::vdev_name::Naming;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_control::{
    ChangeError, ControlError, PoolChange, PoolInfo, VdevClass, VdevInfo, VdevState,
};

/// Clears device errors and resumes a suspended pool.
pub fn clear(session: &mut Session, parsed: &Parsed) -> Ending {
    let [name, devices @ ..] = parsed.operands.as_slice() else {
        return Err(Failure::Usage("missing pool name".into()));
    };
    require(session, name)?;
    let leaves = match devices {
        [] => None,
        _ => Some(leaves_of(session, name, devices)?),
    };
    // An imported pool has been opened, so there are no txgs to discard: `-F` has no effect. With `-n`,
    // which only tests `-F`, there is nothing to do.
    if parsed.has("n") {
        return Ok(0);
    }
    let change = PoolChange::Clear { leaves };
    let done = session.service()?.change(name, &[change], &parsed.line);
    let action = format!("cannot clear errors for {name}");
    done.map_err(|failed| match &failed.error {
        ChangeError::Suspended(_) => Failure::Refused(format!("{action}: I/O error")),
        other => failure(Verb::Other, &action, other),
    })?;
    Ok(0)
}

/// The status of `zpool offline --power` without an enclosure.
///
/// It is the system's error number for an invalid slot.
const NO_SLOT: u8 = 57;

/// Takes devices offline.
pub fn offline(session: &mut Session, parsed: &Parsed) -> Ending {
    let (name, devices) = pool_and_devices(session, parsed)?;
    let mut status = 0;
    for device in devices {
        let action = format!("cannot offline {device}");
        let found = find(session, name, device)?;
        let Some(vdev) = found else {
            writeln!(session.err, "{action}: no such device in pool")?;
            status = 1;
            continue;
        };
        if parsed.has("power") {
            let guid = vdev.guid;
            writeln!(
                session.err,
                "unable to power off slot for {device} {NO_SLOT}\n\
                 cannot set REMOVED {guid}: pool already exists"
            )?;
            return Err(Failure::Status(NO_SLOT));
        }
        if let Some(why) = not_administered(&vdev) {
            writeln!(session.err, "{action}: {why}")?;
            status = 1;
            continue;
        }
        let change = PoolChange::Offline {
            leaf: vdev.guid,
            is_fault: parsed.has("f"),
            is_temporary: parsed.has("t"),
        };
        let done = session.service()?.change(name, &[change], &parsed.line);
        if let Err(failed) = done {
            writeln!(
                session.err,
                "{}",
                message(Verb::Other, &action, &failed.error)
            )?;
            status = 1;
        }
    }
    Ok(status)
}

/// Brings devices online that were offline or lost.
pub fn online(session: &mut Session, parsed: &Parsed) -> Ending {
    let (name, devices) = pool_and_devices(session, parsed)?;
    let mut status = 0;
    for device in devices {
        let Some(vdev) = find(session, name, device)? else {
            writeln!(
                session.err,
                "couldn't find device \"{device}\" in pool \"{name}\""
            )?;
            status = 1;
            continue;
        };
        let expands = parsed.has("e");
        if expands && vdev.class == VdevClass::Cache {
            let line = format!("cannot expand {device}: cannot expand cache devices");
            writeln!(session.err, "{line}")?;
            status = 1;
            continue;
        }
        let action = match expands {
            true => format!("cannot expand {device}"),
            false => format!("cannot online {device}"),
        };
        if let Some(why) = not_administered(&vdev) {
            writeln!(session.err, "{action}: {why}")?;
            status = 1;
            continue;
        }
        let change = PoolChange::Online {
            leaves: vec![vdev.guid],
            expand: expands,
        };
        let done = session.service()?.change(name, &[change], &parsed.line);
        done.map_err(|failed| failure(Verb::Other, &action, &failed.error))?;
        let now = find(session, name, device)?.map(|vdev| vdev.state);
        let remedy = match now {
            Some(VdevState::Faulted) => "use 'zpool clear' to restore a faulted device",
            Some(VdevState::CannotOpen) => {
                "use 'zpool replace' to replace devices that are no longer present"
            }
            _ => continue,
        };
        writeln!(
            session.out,
            "warning: device '{device}' onlined, but remains in faulted state\n{remedy}"
        )?;
    }
    Ok(status)
}

/// Looks at the devices of pools again; without operands, of all.
pub fn reopen(session: &mut Session, parsed: &Parsed) -> Ending {
    let names = match parsed.operands.is_empty() {
        true => known(session)?,
        false => parsed.operands.clone(),
    };
    each(session, &names, |session, name| {
        require(session, name)?;
        let change = PoolChange::Reopen {
            resilver_now: !parsed.has("n"),
        };
        let done = session.service()?.change(name, &[change], &parsed.line);
        let action = format!("cannot reopen '{name}'");
        done.map_err(|failed| failure(Verb::Other, &action, &failed.error))?;
        Ok(())
    })
}

/// The operands: an existing pool, and devices.
fn pool_and_devices<'a>(
    session: &Session,
    parsed: &'a Parsed,
) -> Result<(&'a String, &'a [String]), Failure> {
    let [name, devices @ ..] = parsed.operands.as_slice() else {
        return Err(Failure::Usage("missing pool name".into()));
    };
    if devices.is_empty() {
        return Err(Failure::Usage("missing device name".into()));
    }
    if !known(session)?.contains(name) {
        return Err(Failure::Refused(format!(
            "{}\nfailed to open pool \"{name}\"",
            super::no_such_pool(name)
        )));
    }
    Ok((name, devices))
}

/// The reason why this vdev cannot be taken offline or brought online by itself.
fn not_administered(vdev: &VdevInfo) -> Option<&'static str> {
    match (vdev.class, vdev.kind) {
        (VdevClass::Spare, _) => Some("device is reserved as a hot spare"),
        (VdevClass::Cache, _) => Some("operation not supported on this type of pool"),
        (_, kind) if kind.is_device() => None,
        _ => Some("operation not supported on this type of pool"),
    }
}

/// Finds the vdev with this name.
pub(super) fn find(
    session: &Session,
    pool: &str,
    device: &str,
) -> Result<Option<VdevInfo>, Failure> {
    let to_error = |error: ControlError| Failure::Refused(error.to_string());
    let info: PoolInfo = session.service()?.pool(pool).map_err(to_error)?;
    let mut all = groups::walk(&info).into_iter();
    let found = all.find(|(vdev, _)| is_called(vdev, device));
    Ok(found.map(|(vdev, _)| vdev.clone()))
}

/// The guids of the leaves that are these devices or below them.
fn leaves_of(session: &Session, name: &str, devices: &[String]) -> Result<Vec<u64>, Failure> {
    let info = session.service()?.pool(name);
    let info = info.map_err(|error| Failure::Refused(error.to_string()))?;
    let mut leaves = vec![];
    for device in devices {
        let mut all = groups::walk(&info).into_iter();
        let Some((vdev, _)) = all.find(|(vdev, _)| is_called(vdev, device)) else {
            return Err(Failure::Refused(format!(
                "cannot clear errors for {device}: no such device in pool"
            )));
        };
        // A spare in use is found below its vdev first.
        if vdev.class == VdevClass::Spare {
            return Err(Failure::Refused(format!(
                "cannot clear errors for {device}: device is reserved as a hot spare"
            )));
        }
        let mut stack = vec![vdev];
        while let Some(vdev) = stack.pop() {
            if vdev.children.is_empty() {
                leaves.push(vdev.guid);
            }
            stack.extend(&vdev.children);
        }
    }
    Ok(leaves)
}

fn is_called(vdev: &VdevInfo, name: &str) -> bool {
    vdev.path.as_deref() == Some(name)
        || vdev.guid.to_string() == name
        || Naming::default().of(vdev) == name
}
