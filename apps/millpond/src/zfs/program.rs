//! `zfs program`.

use super::change_text::reason;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_control::{ProgramProblem, ProgramRequest, ProgramValue, Reply, Request};
use millpond_engine::{PROGRAM_INSTRUCTIONS, PROGRAM_MEMORY_BYTES};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;

/// Runs a channel program, and prints the value that it returns.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let [pool, path, words @ ..] = parsed.operands.as_slice() else {
        return Err(Failure::Usage("invalid number of arguments".into()));
    };
    let limit = |letter: &str, default: u64| match parsed.value(letter) {
        None => Ok(default),
        Some(word) => number(word),
    };
    let request = ProgramRequest {
        pool: pool.clone(),
        arguments: arguments(words),
        instructions: limit("t", PROGRAM_INSTRUCTIONS)?,
        memory_bytes: limit("m", PROGRAM_MEMORY_BYTES)?,
        is_read_only: parsed.has("n"),
    };
    let service = session.service()?;
    let pools = service.pools();
    let pools = pools.map_err(|error| Failure::Refused(error.to_string()))?;
    if !pools.contains(pool) {
        let text = format!("cannot open '{pool}': no such pool\ncannot open pool '{pool}'");
        return Err(Failure::Refused(text));
    }
    let script = script(path).map_err(|error| {
        let why = crate::text::errors::words_of(&error);
        Failure::Refused(format!("cannot open '{path}': {why}"))
    })?;
    let request = Request::RunProgram {
        request,
        command: parsed.line.clone(),
    };
    let value = match service.transfer(&request, script, &|| false) {
        Ok(Reply::RunProgram(value)) => value,
        Ok(_) => return Err(refused(&millpond_control::Failure::other_reply().into())),
        Err(millpond_control::Failure::Change(error)) => {
            let text = format!("cannot open pool '{pool}': {}", reason(&error));
            return Err(Failure::Refused(text));
        }
        Err(failure) => return Err(refused(&failure.into())),
    };
    match parsed.has("j") {
        true => write!(session.out, "{}", json(&value))?,
        false => print(&mut *session.out, &value)?,
    }
    Ok(0)
}

fn number(word: &str) -> Result<u64, Failure> {
    let refused = |_| Failure::Refused(format!("invalid argument '{word}': expected integer"));
    let number: u64 = word.parse().map_err(refused)?;
    // The limits have a sign in OpenZFS, which then says this.
    match i64::try_from(number) {
        Ok(_) => Ok(number),
        Err(_) => Err(self::refused(&ProgramProblem::TooLarge)),
    }
}

/// The table that the script gets: the words of the command line are in `argv`.
fn arguments(words: &[String]) -> ProgramValue {
    let words = words.iter().cloned().map(ProgramValue::Text);
    let list = ProgramValue::List(words.collect());
    ProgramValue::Table(vec![("argv".to_owned(), list)])
}

/// A file in memory with the script from a path, or from standard input for `-`. It is read here, as the user
/// who gave the command.
fn script(path: &str) -> io::Result<OwnedFd> {
    let mut input: Box<dyn Read> = match path {
        "-" => Box::new(io::stdin()),
        path => Box::new(File::open(path)?),
    };
    let mut memory = File::from(memfd_create("script", MemfdFlags::CLOEXEC)?);
    io::copy(
        &mut input.by_ref().take(ProgramRequest::SCRIPT_BYTES_MAX + 1),
        &mut memory,
    )?;
    memory.rewind()?;
    Ok(memory.into())
}

fn refused(problem: &ProgramProblem) -> Failure {
    let failed = "Channel program execution failed:\n";
    Failure::Refused(match problem {
        ProgramProblem::Denied => {
            format!("{failed}Permission denied. Channel programs must be run as root.")
        }
        ProgramProblem::NoPool => format!("{failed}no such pool"),
        ProgramProblem::Limits => format!("{failed}Invalid instruction or memory limit."),
        ProgramProblem::Memory => format!("{failed}Memory limit exhausted."),
        ProgramProblem::TooLarge => format!("{failed}Return value too large."),
        ProgramProblem::Script {
            text,
            instructions: Some(count),
        } => format!("{failed}{text}\n{count} Lua instructions"),
        ProgramProblem::Script { text, .. } | ProgramProblem::Failed(text) => {
            format!("{failed}{text}")
        }
    })
}

fn print(out: &mut dyn Write, value: &ProgramValue) -> io::Result<()> {
    if *value == ProgramValue::Nil {
        let text = "Channel program fully executed and did not produce output.";
        return writeln!(out, "{text}");
    }
    writeln!(out, "Channel program fully executed and produced output:")?;
    put(out, "return", value, 1)
}

/// Prints a pair as nvlists are printed. The depth of a table is limited by the service.
fn put(out: &mut dyn Write, key: &str, value: &ProgramValue, depth: usize) -> io::Result<()> {
    write!(out, "{:1$}{key}", "", 4 * depth)?;
    match value {
        ProgramValue::Nil => writeln!(out),
        ProgramValue::Boolean(boolean) => writeln!(out, ": {boolean}"),
        ProgramValue::Integer(number) => writeln!(out, ": {number}"),
        ProgramValue::Text(text) => writeln!(out, ": '{text}'"),
        ProgramValue::List(items) => {
            writeln!(out, ":")?;
            let mut items = (1..).zip(items);
            items.try_for_each(|(at, item)| put(out, &i64::to_string(&at), item, depth + 1))
        }
        ProgramValue::Table(entries) => {
            writeln!(out, ":")?;
            let mut entries = entries.iter();
            entries.try_for_each(|(key, item)| put(out, key, item, depth + 1))
        }
    }
}

fn json(value: &ProgramValue) -> serde_json::Value {
    let mut document = serde_json::Map::new();
    if *value != ProgramValue::Nil {
        document.insert("return".to_owned(), json_of(value));
    }
    document.into()
}

fn json_of(value: &ProgramValue) -> serde_json::Value {
    match value {
        ProgramValue::Nil => serde_json::Value::Null,
        ProgramValue::Boolean(boolean) => (*boolean).into(),
        ProgramValue::Integer(number) => (*number).into(),
        ProgramValue::Text(text) => text.as_str().into(),
        ProgramValue::List(items) => items.iter().map(json_of).collect::<Vec<_>>().into(),
        ProgramValue::Table(entries) => {
            let entries = entries
                .iter()
                .map(|(key, item)| (key.clone(), json_of(item)));
            serde_json::Value::Object(entries.collect())
        }
    }
}
