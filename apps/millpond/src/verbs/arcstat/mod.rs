//! `millpond arcstat`: shows how the daemon's cache is used, in the columns of `arcstat`.

mod fields;
#[cfg(test)]
mod tests;

use super::Global;
use crate::session::{Ending, Failure, Session};
use crate::text::date;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use fields::{DEFAULT, EXTENDED, FIELDS, Field, Measure};
use jiff::tz::TimeZone;
use millpond_control::{ArcInfo, ControlError};
use serde_json::{Map, Value as Json};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// The header is printed again after this many lines, where the output is not a terminal.
const HEADER_LINES: usize = 20;

/// Defines the command.
pub fn command() -> Command {
    let flag = |name: &'static str, short, help: &'static str| {
        let arg = Arg::new(name).short(short).help(help);
        arg.action(ArgAction::SetTrue)
    };
    Command::new("arcstat")
        .about("Show how the cache of the daemon is used, in the columns of arcstat")
        .arg(flag("all", 'a', "All fields"))
        .arg(flag("list", 'v', "List the fields, and what each is"))
        .arg(flag("extended", 'x', "The extended fields"))
        .arg(flag("parsable", 'p', "Plain numbers, without units"))
        .arg(
            Arg::new("fields")
                .short('f')
                .value_name("FIELD,...")
                .value_delimiter(',')
                .help("These fields"),
        )
        .arg(
            Arg::new("output")
                .short('o')
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Print into this file"),
        )
        .arg(
            Arg::new("separator")
                .short('s')
                .value_name("TEXT")
                .default_value("  ")
                .allow_hyphen_values(true)
                .help("What separates the columns"),
        )
        .arg(
            Arg::new("interval")
                .value_name("SECONDS")
                .value_parser(value_parser!(u32).range(1..))
                .help("Seconds between two lines; without it, one line since the daemon started"),
        )
        .arg(
            Arg::new("count")
                .value_name("COUNT")
                .value_parser(value_parser!(u64).range(1..))
                .help("Number of lines (default: unlimited)"),
        )
}

/// Shows the statistics. Requires the daemon: a pool opened for one command has a cache of its own.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    if matches.get_flag("list") {
        for field in FIELDS {
            writeln!(session.out, "{:>11}: {}", field.name, field.help)?;
        }
        return Ok(0);
    }
    let table = Table {
        fields: chosen(matches)?,
        separator: matches.get_one::<String>("separator").cloned(),
        is_parsable: matches.get_flag("parsable"),
        is_json: global.is_json,
        zone: session.environment.zone.clone(),
    };
    let interval_s = matches.get_one::<u32>("interval").copied();
    let count = match (interval_s, matches.get_one::<u64>("count")) {
        (None, _) => 1,
        (Some(_), count) => count.copied().unwrap_or(u64::MAX),
    };
    let mut file = match matches.get_one::<PathBuf>("output") {
        Some(path) => Some(
            File::create(path)
                .map_err(|error| Failure::Refused(format!("{}: {error}", path.display())))?,
        ),
        None => None,
    };
    session.daemon()?;
    let look = |session: &Session| {
        let answer = session.service()?.arc_statistics();
        answer.map_err(|error: ControlError| Failure::Refused(error.to_string()))
    };
    let header_lines = session
        .environment
        .screen_lines
        .map_or(HEADER_LINES, |lines| lines.saturating_sub(2).max(1)) as u64;
    let mut before = match interval_s {
        Some(_) => Some(look(session)?),
        None => None,
    };
    for line in 0..count {
        if let Some(seconds) = interval_s {
            (session.environment.pause)(Duration::from_secs(seconds.into()));
        }
        let now = look(session)?;
        let row = Row {
            before: before.as_ref(),
            now: &now,
            seconds: interval_s.unwrap_or(1),
            time_s: session.environment.now(),
        };
        let mut text = String::new();
        if !table.is_json && line.is_multiple_of(header_lines) {
            text = table.header();
        }
        text += &table.line(&row);
        match &mut file {
            Some(file) => file.write_all(text.as_bytes())?,
            None => {
                session.out.write_all(text.as_bytes())?;
                session.out.flush()?;
            }
        }
        before = interval_s.map(|_| now);
    }
    Ok(0)
}

/// The fields that the options select.
fn chosen(matches: &ArgMatches) -> Result<Vec<&'static Field>, Failure> {
    if matches.get_flag("all") {
        return Ok(FIELDS.iter().collect());
    }
    let named = matches.get_many::<String>("fields");
    let names: Vec<&str> = match named {
        Some(names) => names.map(String::as_str).collect(),
        None if matches.get_flag("extended") => EXTENDED.to_vec(),
        None => DEFAULT.to_vec(),
    };
    let unknown = |name: &str| {
        let message =
            format!("arcstat: there is no field '{name}': millpond arcstat -v lists them");
        Failure::Complaint(message)
    };
    let found = names
        .into_iter()
        .map(|name| fields::find(name).ok_or_else(|| unknown(name)));
    found.collect()
}

/// The state at two times.
struct Row<'r> {
    /// `None`: counts are those since the daemon started.
    before: Option<&'r ArcInfo>,
    now: &'r ArcInfo,
    seconds: u32,
    time_s: u64,
}

/// A value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Time(u64),
    Count(u64),
    Percent(u64),
    Bytes(i128),
    Missing,
}

impl Row<'_> {
    /// The events of a counter in the interval. A daemon that was restarted counts from 0 again.
    fn since(&self, count: fn(&ArcInfo) -> u64) -> u64 {
        let before = self.before.map_or(0, count);
        count(self.now)
            .checked_sub(before)
            .unwrap_or(count(self.now))
    }

    fn value(&self, field: &Field) -> Value {
        match field.measure {
            Measure::Time => Value::Time(self.time_s),
            Measure::Count(count) => {
                Value::Count(self.since(count) / u64::from(self.seconds.max(1)))
            }
            Measure::Share(part, whole) => {
                let (part, whole) = (self.since(part), self.since(whole).max(1));
                let percent = u128::from(part) * 100 / u128::from(whole);
                Value::Percent(u64::try_from(percent).unwrap_or(100))
            }
            Measure::Bytes(bytes) => bytes(self.now).map_or(Value::Missing, Value::Bytes),
            Measure::Number(number) => number(self.now).map_or(Value::Missing, Value::Count),
            Measure::Missing => Value::Missing,
        }
    }
}

/// How lines are printed.
struct Table {
    fields: Vec<&'static Field>,
    separator: Option<String>,
    is_parsable: bool,
    is_json: bool,
    zone: TimeZone,
}

impl Table {
    fn joined(&self, texts: impl Iterator<Item = String>) -> String {
        let cells = self.fields.iter().zip(texts);
        let cells = cells.map(|(field, text)| format!("{text:>width$}", width = field.width));
        let separator = self.separator.as_deref().unwrap_or("  ");
        cells.collect::<Vec<_>>().join(separator) + "\n"
    }

    fn header(&self) -> String {
        self.joined(self.fields.iter().map(|field| field.name.to_owned()))
    }

    fn line(&self, row: &Row<'_>) -> String {
        if self.is_json {
            return format!("{}\n", self.json(row));
        }
        self.joined(self.fields.iter().map(|field| self.text(row.value(field))))
    }

    fn text(&self, value: Value) -> String {
        match value {
            Value::Time(time_s) => date::clock(time_s, &self.zone),
            Value::Count(number) if !self.is_parsable => scaled(number.into(), 1000),
            Value::Bytes(bytes) if !self.is_parsable => scaled(bytes, 1024),
            Value::Count(number) | Value::Percent(number) => number.to_string(),
            Value::Bytes(bytes) => bytes.to_string(),
            Value::Missing => "-".to_owned(),
        }
    }

    /// One object for a line. Values that are not measured are `null`; the time is in seconds since 1970.
    fn json(&self, row: &Row<'_>) -> Json {
        let pairs = self.fields.iter().map(|field| {
            let value = match row.value(field) {
                Value::Time(number) | Value::Count(number) | Value::Percent(number) => {
                    number.into()
                }
                Value::Bytes(bytes) => i64::try_from(bytes).map_or(Json::Null, Json::from),
                Value::Missing => Json::Null,
            };
            (field.name.to_owned(), value)
        });
        Json::Object(pairs.collect::<Map<_, _>>())
    }
}

/// A number with a unit: one decimal below ten, else none.
fn scaled(number: i128, base: u32) -> String {
    let mut quotient = number as f64;
    let mut units = ["", "K", "M", "G", "T", "P", "E"].iter();
    let mut unit = units.next().copied().unwrap_or_default();
    while quotient.abs() >= f64::from(base) {
        let Some(next) = units.next() else { break };
        (quotient, unit) = (quotient / f64::from(base), next);
    }
    match unit.is_empty() || quotient.abs() >= 9.95 {
        true => format!("{quotient:.0}{unit}"),
        false => format!("{quotient:.1}{unit}"),
    }
}
