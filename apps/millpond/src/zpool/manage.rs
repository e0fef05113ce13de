//! Short commands that change a whole pool: `destroy`, `export`, `set`, `labelclear`, `reguid`, `sync`, `freeze`.

use super::change_text::{Verb, failure, message, reason};
use super::create::plain_number;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_control::{ChangeError, DeviceInUse, DeviceProblem, PoolChange};

/// The names of the existing pools.
pub fn known(session: &Session) -> Result<Vec<String>, Failure> {
    let pools = session.service()?.pools();
    pools.map_err(|error| Failure::Refused(error.to_string()))
}

pub(super) fn require(session: &Session, name: &str) -> Result<(), Failure> {
    if known(session)?.iter().any(|pool| pool == name) {
        return Ok(());
    }
    Err(Failure::Refused(super::no_such_pool(name)))
}

/// Destroys a pool.
pub fn destroy(session: &mut Session, parsed: &Parsed) -> Ending {
    let [name] = parsed.operands.as_slice() else {
        return Err(Failure::Usage("too many arguments".into()));
    };
    require(session, name)?;
    let mut done = session
        .service()?
        .change(name, &[PoolChange::Destroy], &parsed.line);
    if let Err(failed) = &done
        && matches!(failed.error, ChangeError::ReadOnlyPool(_))
    {
        // OpenZFS does so too, and says nothing.
        done = (session.service()?).change(name, &[PoolChange::Export], &parsed.line);
        if done.is_ok() {
            let text = "it was imported read-only, so it is only exported: nothing is destroyed";
            writeln!(session.err, "warning: '{name}': {text}")?;
        }
    }
    let action = format!("cannot destroy '{name}'");
    done.map_err(
        |failed| match failure(Verb::Other, &action, &failed.error) {
            Failure::Refused(text) if matches!(failed.error, ChangeError::Mounted { .. }) => {
                Failure::Refused(format!(
                    "{text}\ncould not destroy '{name}': could not unmount datasets"
                ))
            }
            other => other,
        },
    )?;
    Ok(0)
}

/// Exports pools.
pub fn export(session: &mut Session, parsed: &Parsed) -> Ending {
    let mut names = parsed.operands.clone();
    if parsed.has("a") {
        if !names.is_empty() {
            return Err(Failure::Usage("too many arguments".into()));
        }
        names = known(session)?;
    } else if names.is_empty() {
        return Err(Failure::Usage("missing pool argument".into()));
    }
    each(session, &names, |session, name| {
        require(session, name)?;
        let mut changes = vec![];
        // Only a forced export discards the unwritten changes of a suspended pool.
        if parsed.has("f") || parsed.has("F") {
            changes.push(PoolChange::Abandon);
        }
        // With `-F` OpenZFS does not take it out of its cache file, so that another system can take it over with that.
        if parsed.has("F") {
            changes.push(PoolChange::KeepCacheFile);
        }
        changes.push(PoolChange::Export);
        let done = session.service()?.change(name, &changes, &parsed.line);
        let action = format!("cannot export '{name}'");
        done.map_err(|failed| failure(Verb::Other, &action, &failed.error))?;
        Ok(())
    })
}

/// Runs an action for each pool. Failures are reported and do not stop the others.
pub(super) fn each(
    session: &mut Session,
    names: &[String],
    mut run: impl FnMut(&mut Session, &str) -> Result<(), Failure>,
) -> Ending {
    let mut status = 0;
    for name in names {
        match run(session, name) {
            Ok(()) => {}
            Err(Failure::Refused(text)) => {
                writeln!(session.err, "{text}")?;
                status = 1;
            }
            Err(other) => return Err(other),
        }
    }
    Ok(status)
}

/// Commits a txg of each pool.
pub fn sync(session: &mut Session, parsed: &Parsed) -> Ending {
    let names = match parsed.operands.is_empty() {
        true => known(session)?,
        false => parsed.operands.clone(),
    };
    let forced = parsed.has("f");
    each(session, &names, |session, name| {
        require(session, name)?;
        let done = session
            .service()?
            .change(name, &[PoolChange::Sync { forced }], &parsed.line);
        let action = format!("cannot sync '{name}'");
        done.map_err(|failed| failure(Verb::Other, &action, &failed.error))?;
        Ok(())
    })
}

/// Commits nothing more of a pool, until it is imported again.
pub fn freeze(session: &mut Session, name: &str) -> Ending {
    require(session, name)?;
    let line = format!("zpool freeze {name}");
    let done = session
        .service()?
        .change(name, &[PoolChange::Freeze], &line);
    let action = format!("cannot freeze '{name}'");
    done.map_err(|failed| failure(Verb::Other, &action, &failed.error))?;
    Ok(0)
}

/// A guid in digits. One with a sign counts down from 2^64, as with OpenZFS.
fn guid_of(text: &str) -> Option<u64> {
    match text.strip_prefix('-') {
        Some(digits) => digits.parse().ok().map(u64::wrapping_neg),
        None => text.parse().ok(),
    }
}

/// Changes the guid of a pool.
pub fn reguid(session: &mut Session, parsed: &Parsed) -> Ending {
    let name = match parsed.operands.as_slice() {
        [name] => name,
        _ => return Err(Failure::Usage("too many arguments".into())),
    };
    let guid = match parsed.value("g") {
        None => None,
        Some(text) => match guid_of(text) {
            Some(guid) if guid != 0 => Some(guid),
            _ => return Err(Failure::Usage(format!("invalid GUID: {text}"))),
        },
    };
    require(session, name)?;
    let done = session
        .service()?
        .change(name, &[PoolChange::Reguid { guid }], &parsed.line);
    let Err(failed) = done else { return Ok(0) };
    let action = format!("cannot reguid '{name}'");
    writeln!(
        session.err,
        "{}",
        message(Verb::Other, &action, &failed.error)
    )?;
    Err(Failure::Status(255))
}

/// Sets a property of a pool.
pub fn set(session: &mut Session, parsed: &Parsed) -> Ending {
    let [assignment, name, rest @ ..] = parsed.operands.as_slice() else {
        return Err(Failure::Usage("missing pool name".into()));
    };
    let Some((property, value)) = assignment.split_once('=') else {
        let text = "missing value in property=value argument";
        return Err(Failure::Usage(text.into()));
    };
    if !known(session)?.contains(name) {
        writeln!(session.err, "cannot open '{name}': is not a pool")?;
        return Err(Failure::Status(22));
    }
    if !rest.is_empty() {
        return set_of_vdev(session, (property, value), name, (rest, &parsed.line));
    }
    let action = format!("cannot set property for '{name}'");
    let refuse = |text: &str| Failure::Refused(format!("{action}: {text}"));
    match property {
        "dedupditto" => {
            writeln!(
                session.out,
                "Note: property 'dedupditto' no longer has any effect"
            )?;
            return Ok(0);
        }
        "version" if value == "5000" => {
            return Err(refuse("invalid argument for this pool operation"));
        }
        "version" => {
            let info = session.service()?.pool(name);
            let info = info.map_err(|error| Failure::Refused(error.to_string()))?;
            let is_below = |number: u64| number < info.version;
            if value.parse().is_ok_and(is_below) {
                return Err(refuse(&format!(
                    "property 'version' number {value} is invalid."
                )));
            }
        }
        "tname" => return Err(refuse("property 'tname' can only be set at creation time")),
        "cachefile" => {
            check_cache_file(value).map_err(|reason| refuse(&reason))?;
        }
        "bootfs" if !value.is_empty() && value.split(['/', '@']).next() != Some(name) => {
            return Err(refuse(&format!("'{value}' is an invalid name")));
        }
        _ => {}
    }
    let change = PoolChange::Set {
        name: property.to_owned(),
        value: plain_number(property, value),
    };
    let done = session.service()?.change(name, &[change], &parsed.line);
    done.map_err(|failed| failure(Verb::Other, &action, &failed.error))?;
    if property == "compatibility" {
        warn_of_features(session, name)?;
    }
    Ok(0)
}

/// Converts a limit with a suffix (`1.5K`) to digits; other values are unchanged.
fn plain_limit(property: &str, value: &str) -> String {
    use millpond_control::properties::{Form, NumberForm, vdev_table};
    let is_limit = vdev_table::find(property)
        .is_some_and(|shape| matches!(shape.form, Form::Number(NumberForm::Limit)));
    match crate::text::size::parse(value) {
        Ok(number) if is_limit => number.to_string(),
        _ => value.to_owned(),
    }
}

/// Sets a property of a vdev.
fn set_of_vdev(
    session: &mut Session,
    (property, value): (&str, &str),
    name: &str,
    (vdevs, line): (&[String], &str),
) -> Ending {
    let to_error = |error: millpond_control::ControlError| Failure::Refused(error.to_string());
    let info = session.service()?.pool(name).map_err(to_error)?;
    let [device] = vdevs else {
        return Err(Failure::Usage("too many pool names".into()));
    };
    let found = match device.as_str() {
        "all-vdevs" => None,
        _ => super::get::vdevs_named(&info, vdevs).ok(),
    };
    let Some([vdev]) = found.as_deref() else {
        writeln!(
            session.err,
            "cannot find '{device}' in '{name}': device not in pool"
        )?;
        return Err(Failure::Status(22));
    };
    let action = format!("cannot set property {property} for {device} on {name}");
    let refuse = |reason: &str| Failure::Refused(format!("{action}: {reason}"));
    if let Some(reason) = unfit_of_vdev(property, value) {
        return Err(refuse(&reason));
    }
    let is_last = info.root.children.len() < 2;
    match (property, value) {
        ("path", _) => return Err(refuse("invalid argument for this pool operation")),
        ("allocating", "on") if !vdev.is_non_allocating => return Ok(0),
        ("allocating", "off") if is_last => {
            return Err(refuse("invalid argument for this pool operation"));
        }
        ("allocating", _) => {
            return Err(Failure::Refused(
                "millpond: changing 'allocating' is not implemented yet".into(),
            ));
        }
        _ => {}
    }
    let change = PoolChange::SetVdev {
        guid: vdev.guid,
        name: property.to_owned(),
        value: plain_limit(property, value),
    };
    let done = session.service()?.change(name, &[change], line);
    done.map_err(|failed| failure(Verb::Other, &action, &failed.error))?;
    Ok(0)
}

/// The reason why a vdev property cannot have a value.
fn unfit_of_vdev(property: &str, value: &str) -> Option<String> {
    use millpond_control::properties::{Edit, Form, NumberForm};
    let Some(shape) = millpond_control::properties::vdev_table::find(property) else {
        let is_of_user = property.contains(':');
        return (!is_of_user).then(|| format!("invalid property: '{property}'"));
    };
    if shape.edit == Edit::ReadOnly {
        return Some(format!("'{property}' is readonly"));
    }
    let is_limit = matches!(shape.form, Form::Number(NumberForm::Limit));
    let is_number = plain_limit(property, value).parse::<u64>().is_ok() || value == "none";
    if let Form::Words(_) = shape.form
        && shape.number_of(value).is_none()
    {
        return Some(format!("'{property}' must be one of '{}'", shape.values));
    }
    (is_limit && !is_number).then(|| format!("bad numeric value '{value}'"))
}

/// Checks whether this file can be a pool's cache file.
pub fn check_cache_file(value: &str) -> Result<(), String> {
    if value.is_empty() || value == "none" {
        return Ok(());
    }
    if !value.starts_with('/') {
        return Err("property 'cachefile' must be empty, an absolute path, or 'none'".into());
    }
    let folder = match value.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((folder, _)) => folder,
    };
    if !std::path::Path::new(folder).is_dir() {
        return Err(format!("'{folder}' is not a valid directory"));
    }
    Ok(())
}

fn warn_of_features(session: &mut Session, name: &str) -> Result<(), Failure> {
    use millpond_control::{FeatureState, RequestedFeatures};
    let info = session.service()?.pool(name);
    let info = info.map_err(|error| Failure::Refused(error.to_string()))?;
    let is_foreign = match &info.requested {
        RequestedFeatures::Listed(names) => info.features.iter().any(|feature| {
            feature.state != FeatureState::Disabled && !names.contains(&feature.name)
        }),
        RequestedFeatures::Legacy => info
            .features
            .iter()
            .any(|feature| feature.state != FeatureState::Disabled),
        _ => false,
    };
    if is_foreign {
        writeln!(
            session.err,
            "Warning: one or more features already enabled on pool '{name}'\n\
             are not present in this compatibility set."
        )?;
    }
    Ok(())
}

/// The full path of a device: a relative one counts from the current directory, or else from `/dev`.
fn path_of(device: &str) -> String {
    let here = std::path::absolute(device).ok();
    let here = here.filter(|path| path.exists());
    match here.as_deref().and_then(std::path::Path::to_str) {
        _ if device.starts_with('/') => device.to_owned(),
        Some(path) => path.to_owned(),
        None => format!("/dev/{device}"),
    }
}

/// Clears the labels of a device.
pub fn labelclear(session: &mut Session, parsed: &Parsed) -> Ending {
    let device = match parsed.operands.as_slice() {
        [device] => device,
        _ => return Err(Failure::Usage("too many arguments".into())),
    };
    let path = path_of(device);
    if let Err(problem) = session.service()?.device(&path) {
        let why = match problem {
            DeviceProblem::Missing => "No such file or directory".to_owned(),
            DeviceProblem::WrongKind => "not a disk or file".to_owned(),
            DeviceProblem::Unusable(why) => why,
        };
        return Err(Failure::Refused(format!("failed to open {device}: {why}")));
    }
    let Err(error) = session.service()?.clear_labels(&path, parsed.has("f")) else {
        return Ok(0);
    };
    match &error {
        ChangeError::InUse {
            devices,
            can_be_forced,
        } => {
            let by = devices.first().map(|(_, by)| by);
            let (state, pool) = match by {
                Some(DeviceInUse::Exported(pool)) => ("exported", pool.as_str()),
                Some(DeviceInUse::PotentiallyActive(pool)) => ("potentially active", pool.as_str()),
                Some(
                    DeviceInUse::Active(pool) | DeviceInUse::Spare(pool) | DeviceInUse::Cache(pool),
                ) => ("active", pool.as_str()),
                None => ("unknown", ""),
            };
            if *can_be_forced {
                return Err(Failure::Refused(format!(
                    "use '-f' to override the following error:\n\
                     {device} is a member of {state} pool \"{pool}\""
                )));
            }
            writeln!(session.out)?;
            Err(Failure::Refused(format!(
                "{device} is a member (ACTIVE) of pool \"{pool}\""
            )))
        }
        ChangeError::NoLabel => {
            writeln!(session.err, "failed to clear label for {device}")?;
            Err(Failure::Status(255))
        }
        other => Err(Failure::Refused(format!(
            "failed to clear label for {device}: {}",
            reason(Verb::Other, other)
        ))),
    }
}
