//! The commands of `millpond`, which read and change pools without a kernel module.
//!
//! They are called as `millpond -d DIR VERB …`. [`Global`] holds the options that all commands share. Each
//! command is a module with `command`, which defines its options, and `run`.

mod acl_text;
pub mod address;
mod arcstat;
mod attributes;
mod cat;
mod check;
mod content;
mod cp;
mod entry_text;
mod find;
mod global;
mod history;
mod import;
mod imported;
mod inspect;
mod json;
mod keys;
mod kstat;
mod ln;
mod ls;
mod mkdir;
mod mkimage;
mod mount;
mod mv;
mod name_text;
pub mod plan;
mod pools;
mod rm;
mod stat;
mod stream;
mod top;
mod tree;
mod tunable;
mod undelete;
mod verdict;
mod verify;
mod walk;
mod writing;

pub use global::Global;

use crate::family::Family;
use crate::finish;
use crate::session::{Ending, Failure, Session};
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use std::ffi::OsString;
use std::io;

/// Defines an option without a value.
fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .help(help)
        .action(ArgAction::SetTrue)
}

/// The options of a command.
fn parse<O: FromArgMatches>(matches: &ArgMatches) -> Result<O, Failure> {
    O::from_arg_matches(matches).map_err(|error| Failure::Usage(error.to_string()))
}

/// Prints a refusal and notes it in the exit status. Other failures end the command.
fn unless_refused<T>(
    session: &mut Session,
    outcome: Result<T, Failure>,
    status: &mut u8,
) -> Result<Option<T>, Failure> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(Failure::Refused(text)) => {
            writeln!(session.err, "{text}")?;
            *status = 1;
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

/// A command: its definition and its function.
struct Verb {
    command: fn() -> Command,
    run: fn(&mut Session, &Global, &ArgMatches) -> Ending,
}

const VERBS: &[Verb] = &[
    Verb {
        command: import::command,
        run: import::run,
    },
    Verb {
        command: ls::command,
        run: ls::run,
    },
    Verb {
        command: tree::command,
        run: tree::run,
    },
    Verb {
        command: find::command,
        run: find::run,
    },
    Verb {
        command: stat::command,
        run: stat::run,
    },
    Verb {
        command: cat::command,
        run: cat::run,
    },
    Verb {
        command: cp::command,
        run: cp::run,
    },
    Verb {
        command: mkimage::command,
        run: mkimage::run,
    },
    Verb {
        command: mkdir::command,
        run: mkdir::run,
    },
    Verb {
        command: rm::command,
        run: rm::run,
    },
    Verb {
        command: mv::command,
        run: mv::run,
    },
    Verb {
        command: ln::command,
        run: ln::run,
    },
    Verb {
        command: attributes::touch_command,
        run: attributes::touch,
    },
    Verb {
        command: attributes::chmod_command,
        run: attributes::chmod,
    },
    Verb {
        command: attributes::chown_command,
        run: attributes::chown,
    },
    Verb {
        command: mount::command,
        run: mount::run,
    },
    Verb {
        command: history::command,
        run: history::run,
    },
    Verb {
        command: undelete::command,
        run: undelete::run,
    },
    Verb {
        command: top::command,
        run: top::run,
    },
    Verb {
        command: arcstat::command,
        run: arcstat::run,
    },
    Verb {
        command: kstat::command,
        run: kstat::run,
    },
    Verb {
        command: tunable::command,
        run: tunable::run,
    },
    Verb {
        command: verify::command,
        run: verify::run,
    },
    Verb {
        command: check::command,
        run: check::run,
    },
    Verb {
        command: inspect::command,
        run: inspect::run,
    },
    Verb {
        command: plan::command,
        run: plan::run,
    },
    Verb {
        command: stream::command,
        run: stream::run,
    },
];

/// The words that select another program: `zpool`, `zfs` and `daemon`. Each comes first, or right after `-d DIR`.
pub const PROGRAMS: [&str; 3] = ["zpool", "zfs", "daemon"];

/// Defines a word of [`PROGRAMS`], for the help. What follows it is not read here.
fn program(name: &'static str) -> Command {
    let family = |family: &Family, what: &str| {
        let missing: Vec<&str> = family.unbuilt().collect();
        match missing.is_empty() {
            true => what.to_owned(),
            false => format!("{what} (not implemented yet: {})", missing.join(", ")),
        }
    };
    let about = match name {
        "zpool" => family(
            &crate::zpool::FAMILY,
            "Create and manage pools, as OpenZFS's zpool",
        ),
        "zfs" => family(
            &crate::zfs::FAMILY,
            "Create and manage datasets, as OpenZFS's zfs",
        ),
        _ => "Run the daemon millpondd, which keeps pools imported and mounted".to_owned(),
    };
    Command::new(name).about(about).disable_help_flag(true).arg(
        Arg::new("words")
            .value_name("ARGUMENT")
            .num_args(0..)
            .allow_hyphen_values(true)
            .trailing_var_arg(true),
    )
}

/// Defines all commands with their shared options.
pub fn command() -> Command {
    let command = Command::new("millpond")
        .about("Read and change ZFS pools on devices and images without a kernel module")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .args(global::arguments())
        .subcommands(VERBS.iter().map(|verb| (verb.command)()))
        .subcommands(PROGRAMS.map(program));
    command.after_help(
        "Addresses:
  POOL/DATASET[@SNAPSHOT]:/PATH  a file or directory; POOL/DATASET alone is its root
  POOL/VOLUME[@SNAPSHOT]         a volume
POOL can be a name or a guid. POOL/DATASET:/.zfs/snapshot/NAME/PATH works too.

millpond help COMMAND explains a command; millpond help zpool|zfs [COMMAND] those of zpool and zfs.
Exit status: 0 success, 1 something was missing or could not be read, 2 wrong usage.",
    )
}

/// Runs a command. The first argument is the program's name.
pub fn run(session: &mut Session, arguments: &[OsString]) -> io::Result<u8> {
    let arguments = name_standard_input(arguments);
    let matches = match command().try_get_matches_from(&arguments) {
        Ok(matches) => matches,
        // Requested help is not an error; `use_stderr` distinguishes the two.
        Err(error) if error.use_stderr() => {
            write!(session.err, "{error}")?;
            return Ok(2);
        }
        Err(help) => {
            write!(session.out, "{help}")?;
            return Ok(0);
        }
    };
    let ending = Global::from_matches(&matches).and_then(|global| {
        let chosen = matches.subcommand().and_then(|(name, options)| {
            let verb = VERBS
                .iter()
                .find(|verb| (verb.command)().get_name() == name)?;
            Some((verb, options))
        });
        match chosen {
            Some((verb, options)) => {
                let ending = (verb.run)(session, &global, options);
                if matches!(ending, Ok(1..))
                    && let Err(Failure::Refused(text)) = global.check_kept()
                {
                    writeln!(session.err, "{text}")?;
                }
                ending
            }
            None => Err(Failure::Usage(format!(
                "'{}' comes first, or right after -d DIR",
                matches.subcommand_name().unwrap_or_default()
            ))),
        }
    });
    finish(session, ending, |session, message| {
        writeln!(session.err, "millpond: {message}")
    })
}

/// Parses permissions in octal digits.
fn octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| "permissions are octal digits, like 644".to_owned())
}

/// Standard input with a path, a snapshot or a dataset in it begins with `-`, as options do. It gets its other name.
fn name_standard_input(arguments: &[OsString]) -> Vec<OsString> {
    let mut is_of_streams = false;
    let mut ends_options = false;
    let named = arguments.iter().map(|argument| {
        let word = argument.to_string_lossy();
        is_of_streams |= word == "stream";
        ends_options |= word == "--";
        let rest = word
            .strip_prefix('-')
            .filter(|rest| rest.starts_with([':', '@', '/']));
        match rest {
            Some(rest) if is_of_streams && !ends_options => format!("/dev/stdin{rest}").into(),
            _ => argument.clone(),
        }
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_all_verbs_fit_together() {
        command().debug_assert();
    }

    #[test]
    fn standard_input_with_a_path_is_no_option() {
        let named = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let named = name_standard_input(&words);
            let named = named.iter().map(|word| word.to_string_lossy().into_owned());
            named.collect::<Vec<String>>().join(" ")
        };
        for (line, expected) in [
            (
                "millpond stream cat -:/a",
                "millpond stream cat /dev/stdin:/a",
            ),
            (
                "millpond stream ls -l -/b@c",
                "millpond stream ls -l /dev/stdin/b@c",
            ),
            ("millpond stream cat -- -:/a", "millpond stream cat -- -:/a"),
            ("millpond stream cat -", "millpond stream cat -"),
            ("millpond ls -:/a", "millpond ls -:/a"),
        ] {
            assert_eq!(named(line), expected);
        }
    }
}
