//! One sub-command of `zpool` or `zfs`: its arguments are parsed and checked before it runs.

use crate::getopt::{Found, IN_ORDER, Long, OptionSet, Options, Refused};
use crate::session::{Ending, Failure, Session};

/// A sub-command.
#[derive(Debug, Clone, Copy)]
pub struct Command {
    /// Its name, as the usage text spells it.
    pub name: &'static str,
    /// Other names.
    pub aliases: &'static [&'static str],
    /// The options it understands; `None` for one that takes every word as an operand.
    pub options: Option<OptionSet>,
    /// The error text if the first, second, … operand is missing. Operands beyond these are optional.
    pub missing: &'static [&'static str],
    /// What it does.
    pub run: Run,
}

/// The action of a sub-command.
#[derive(Debug, Clone, Copy)]
pub enum Run {
    /// The function that implements it.
    Built(fn(&mut Session, &Parsed) -> Ending),
    /// Not implemented yet; the function only checks the arguments.
    NotBuilt(fn(&Parsed) -> Result<(), Failure>),
}

/// Parsed arguments.
#[derive(Debug, Clone, Default)]
pub struct Parsed {
    /// Options in the order given.
    pub options: Vec<Found>,
    /// The operands, in the order given.
    pub operands: Vec<String>,
    /// The whole command line, as recorded in the pool history.
    pub line: String,
}

impl Parsed {
    /// Whether an option was given.
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|(name, _)| name == option)
    }

    /// The option's last value.
    pub fn value(&self, option: &str) -> Option<&str> {
        self.options
            .iter()
            .rev()
            .find(|(name, _)| name == option)?
            .1
            .as_deref()
    }
}

impl Parsed {
    /// Every value of an option, in the order given.
    pub fn values(&self, option: &str) -> impl Iterator<Item = &str> {
        let given = self.options.iter().filter(move |(name, _)| name == option);
        given.map(|(_, value)| value.as_deref().unwrap_or_default())
    }
}

impl Command {
    /// Whether `word` names this command.
    pub fn is_named(&self, word: &str) -> bool {
        self.name == word || self.aliases.contains(&word)
    }

    /// Parses the arguments and runs the command. `program` is `zpool` or `zfs`.
    pub fn run(&self, program: &str, session: &mut Session, arguments: &[String]) -> Ending {
        let is_in_order = session.environment.variables.contains_key(IN_ORDER);
        let mut parsed = match self.options {
            Some(set) => parse(set, arguments, is_in_order).map_err(|failure| match failure {
                // `create` describes this option by its meaning instead of its letter.
                Failure::Usage(text) if self.name == "create" && text == MISSING_SIZE => {
                    Failure::Usage("missing size argument".into())
                }
                other => other,
            })?,
            None => Parsed {
                options: Vec::new(),
                operands: arguments.to_vec(),
                ..Parsed::default()
            },
        };
        parsed.line = [program, self.name].join(" ");
        for word in arguments {
            parsed.line.push(' ');
            parsed.line.push_str(word);
        }
        match self.run {
            Run::Built(run) => {
                self.require_operands(&parsed)?;
                run(session, &parsed)
            }
            Run::NotBuilt(check) => {
                check(&parsed)?;
                self.require_operands(&parsed)?;
                let name = self.name;
                if program == "zpool" {
                    require_pools(session, name, &parsed)?;
                }
                Err(Failure::Refused(format!(
                    "millpond: '{program} {name}' is not implemented yet"
                )))
            }
        }
    }

    /// Refuses a call with too few operands.
    pub fn require_operands(&self, parsed: &Parsed) -> Result<(), Failure> {
        match self.missing.get(parsed.operands.len()) {
            Some(text) => Err(Failure::Usage((*text).to_string())),
            None => Ok(()),
        }
    }
}

/// Reports a missing pool before any other error.
fn require_pools(session: &Session, command: &str, parsed: &Parsed) -> Result<(), Failure> {
    let Ok(known) = session.service()?.pools() else {
        return Ok(());
    };
    // Only these commands take several pools. For other commands, devices follow the first pool name.
    let is_about_pools = matches!(command, "scrub" | "reopen" | "resilver");
    let names = match is_about_pools {
        true => parsed.operands.as_slice(),
        false => parsed.operands.get(..1).unwrap_or_default(),
    };
    match names.iter().find(|name| !known.contains(name)) {
        Some(name) => {
            let mut text = crate::zpool::no_such_pool(name);
            if matches!(command, "online" | "offline") {
                text.push_str(&format!("\nfailed to open pool \"{name}\""));
            }
            Err(Failure::Refused(text))
        }
        None => Ok(()),
    }
}

/// The error for `zfs create -V` without a size.
const MISSING_SIZE: &str = "missing argument for 'V' option";

fn parse(set: OptionSet, arguments: &[String], is_in_order: bool) -> Result<Parsed, Failure> {
    let mut walk = Options::new(set, arguments).in_order(is_in_order);
    let mut options = Vec::new();
    while let Some(option) = walk.next_option() {
        match option {
            Ok(found) => options.push(found),
            Err(refused) => return Err(Failure::Usage(refusal(&refused))),
        }
    }
    Ok(Parsed {
        options,
        operands: walk.operands(),
        ..Parsed::default()
    })
}

fn refusal(refused: &Refused) -> String {
    match refused {
        Refused::Unknown(letter) => format!("invalid option '{letter}'"),
        Refused::UnknownLong(word) => format!("invalid option '{word}'"),
        Refused::MissingValue(letter) => format!("missing argument for '{letter}' option"),
    }
}

/// For command tables: an option set of letters only.
pub const fn letters(letters: &'static str) -> Option<OptionSet> {
    Some(OptionSet {
        letters,
        longs: &[],
    })
}

/// For command tables: an option set of letters and long names.
pub const fn with_longs(letters: &'static str, longs: &'static [Long]) -> Option<OptionSet> {
    Some(OptionSet { letters, longs })
}

/// For command tables: a long option without a value.
pub const fn long(name: &'static str, means: &'static str) -> Long {
    Long {
        name,
        means,
        has_value: false,
    }
}

/// For command tables: a command that is not implemented.
pub const fn not_built(
    name: &'static str,
    options: Option<OptionSet>,
    missing: &'static [&'static str],
) -> Command {
    command(name, options, missing, Run::NotBuilt(|_| Ok(())))
}

/// For command tables: a command that is implemented.
pub const fn built(
    name: &'static str,
    options: Option<OptionSet>,
    missing: &'static [&'static str],
    run: fn(&mut Session, &Parsed) -> Ending,
) -> Command {
    command(name, options, missing, Run::Built(run))
}

const fn command(
    name: &'static str,
    options: Option<OptionSet>,
    missing: &'static [&'static str],
    run: Run,
) -> Command {
    Command {
        name,
        aliases: &[],
        options,
        missing,
        run,
    }
}
