//! `millpond tunable`: shows and changes settings of the daemon that OpenZFS has as module parameters.

use super::Global;
use crate::session::{Ending, Failure, Session};
use clap::{Arg, ArgMatches, Command};
use millpond_control::{ControlError, TunableInfo};

/// The exit status for a value that the setting cannot have: as `EINVAL`.
const INVALID: u8 = 22;

/// Defines the command.
pub fn command() -> Command {
    Command::new("tunable")
        .about("Show or change settings of the daemon, named as OpenZFS's module parameters")
        .arg(
            Arg::new("name")
                .value_name("NAME")
                .help("Show only this one"),
        )
        .arg(
            Arg::new("value")
                .value_name("VALUE")
                .allow_hyphen_values(true)
                .help("Change it until the daemon ends"),
        )
}

/// Shows all settings, one, or changes one.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    session.daemon()?;
    let name = matches.get_one::<String>("name");
    let refused = |name: &str, error: ControlError| Failure::Refused(format!("{name}: {error}"));
    if let (Some(name), Some(value)) = (name, matches.get_one::<String>("value")) {
        // As the module parameter would be: a number below 0 is an invalid value, no wrong usage.
        let Ok(number) = value.parse() else {
            writeln!(
                session.err,
                "millpond: {name}: '{value}' is not a number from 0 on"
            )?;
            return Ok(INVALID);
        };
        return match session.service()?.set_tunable(name, number) {
            Ok(()) => Ok(0),
            Err(error @ ControlError::TunableValue { .. }) => {
                writeln!(session.err, "millpond: {name}: {error}")?;
                Ok(INVALID)
            }
            Err(error) => Err(refused(name, error)),
        };
    }
    let all = session.service()?.tunables();
    let all = all.map_err(|error| Failure::Refused(error.to_string()))?;
    if let Some(name) = name {
        let one = all.iter().find(|tunable| tunable.name == *name);
        let one = one.ok_or_else(|| refused(name, ControlError::NoSuchTunable))?;
        writeln!(session.out, "{}", one.value)?;
        return Ok(0);
    }
    if global.is_json {
        let text = serde_json::to_string(&all);
        let text = text.map_err(|error| Failure::Refused(error.to_string()))?;
        writeln!(session.out, "{text}")?;
        return Ok(0);
    }
    for TunableInfo {
        name, value, help, ..
    } in &all
    {
        writeln!(session.out, "{name:<28} {value:>8}  {help}")?;
    }
    Ok(0)
}
