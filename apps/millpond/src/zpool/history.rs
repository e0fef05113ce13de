//! `zpool history`.

use super::no_such_pool;
use crate::command::Parsed;
use crate::session::{Ending, Environment, Failure, Session};
use crate::text::date;
use crate::text::terminal::one_line;
use millpond_control::{ControlError, HistoryEvent, HistoryRecord, HistoryValue};
use std::io::{self, Write};

/// Prints the history of pools.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let ask = Args {
        has_internal: parsed.has("i"),
        is_long: parsed.has("l"),
    };
    let mut names = parsed.operands.clone();
    if names.is_empty() {
        let control = session.service()?;
        names = control
            .pools()
            .map_err(|e| Failure::Refused(e.to_string()))?;
        names.sort();
        if names.is_empty() {
            writeln!(session.err, "no pools available")?;
            return Ok(0);
        }
    }
    let mut status = 0;
    for name in names {
        if !print(session, &ask, &name)? {
            status = 1;
        }
    }
    Ok(status)
}

struct Args {
    has_internal: bool,
    is_long: bool,
}

fn print(session: &mut Session, ask: &Args, pool: &str) -> Result<bool, Failure> {
    let environment = session.environment;
    let control = session.pools.service().map_err(Failure::Refused)?;
    let mut written = Ok(());
    let mut is_first = true;
    let out = &mut *session.out;
    let asked = control.history(pool, &mut |record| {
        written = (|| {
            if is_first {
                writeln!(out, "History for '{pool}':")?;
                is_first = false;
            }
            put(out, ask, environment, &record)
        })();
        if written.is_ok() {
            Ok(())
        } else {
            Err(ControlError::Stopped)
        }
    });
    written?;
    match asked {
        Ok(()) => {
            if is_first {
                writeln!(session.out, "History for '{pool}':")?;
            }
            writeln!(session.out)?;
            Ok(true)
        }
        Err(ControlError::NoSuchPool) => {
            writeln!(session.err, "{}", no_such_pool(pool))?;
            Ok(false)
        }
        Err(error) => {
            writeln!(
                session.err,
                "cannot show history for pool '{pool}': {error}"
            )?;
            Ok(false)
        }
    }
}

fn put(
    out: &mut dyn Write,
    ask: &Args,
    environment: &Environment,
    record: &HistoryRecord,
) -> io::Result<()> {
    let is_command = matches!(record.event, HistoryEvent::Command(_));
    if !is_command && !ask.has_internal {
        return Ok(());
    }
    let mut text = date::history(record.time_s, &environment.zone);
    if let Some(elapsed_ms) = record.elapsed_ms {
        text.push_str(&format!(" ({elapsed_ms}ms)"));
    }
    match &record.event {
        HistoryEvent::Command(command) => {
            text.push(' ');
            text.push_str(&one_line(command));
        }
        HistoryEvent::Internal {
            event,
            dataset,
            text: details,
        } => {
            text.push_str(&format!(" [txg:{}] {event}", record.txg.unwrap_or(0)));
            if let Some((name, id)) = dataset {
                text.push_str(&format!(" {name} ({id})"));
            }
            text.push(' ');
            text.push_str(&one_line(details));
        }
        HistoryEvent::Call {
            name,
            input,
            output,
            errno,
        } => {
            text.push_str(&format!(" ioctl {name}\n"));
            for (title, list) in [("input", input), ("output", output)] {
                if let Some(list) = list {
                    text.push_str(&format!("    {title}:\n"));
                    dump(&mut text, list, 8);
                }
            }
            if let Some(errno) = errno {
                text.push_str(&format!("    errno: {errno}\n"));
            }
        }
    }
    if ask.is_long {
        text.push_str(&origin(environment, record));
    }
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")
}

/// Formats the recorded origin, for example ` [user 0 (root) on host:linux]`.
fn origin(environment: &Environment, record: &HistoryRecord) -> String {
    let mut parts = String::new();
    if let Some(uid) = record.uid {
        parts.push_str(&format!("user {uid} "));
        if let Some(name) = environment.users.get(&uid) {
            parts.push_str(&format!("({name}) "));
        }
    }
    if let Some(host) = &record.host {
        parts.push_str(&format!("on {}", one_line(host)));
        if let Some(zone) = &record.zone {
            parts.push_str(&format!(":{zone}"));
        }
    }
    if parts.is_empty() {
        parts
    } else {
        format!(" [{parts}]")
    }
}

fn dump(text: &mut String, list: &[(String, HistoryValue)], indent: usize) {
    let blanks = " ".repeat(indent);
    for (name, value) in list {
        match value {
            HistoryValue::Flag => text.push_str(&format!("{blanks}{name}\n")),
            HistoryValue::List(inner) => {
                text.push_str(&format!("{blanks}{name}:\n"));
                dump(text, inner, indent + 4);
            }
            HistoryValue::Lists(lists) => {
                text.push_str(&format!("{blanks}{name}:\n"));
                for inner in lists {
                    dump(text, inner, indent + 4);
                }
            }
            HistoryValue::Number(n) => text.push_str(&format!("{blanks}{name}: {n}\n")),
            HistoryValue::Signed(n) => text.push_str(&format!("{blanks}{name}: {n}\n")),
            HistoryValue::Bool(b) => text.push_str(&format!("{blanks}{name}: {b}\n")),
            HistoryValue::Text(t) => text.push_str(&format!("{blanks}{name}: '{}'\n", one_line(t))),
            HistoryValue::Numbers(ns) => {
                let joined: Vec<String> = ns.iter().map(u64::to_string).collect();
                text.push_str(&format!("{blanks}{name}: {}\n", joined.join(", ")));
            }
            HistoryValue::Texts(ts) => {
                let quoted: Vec<String> = ts.iter().map(|t| format!("'{}'", one_line(t))).collect();
                text.push_str(&format!("{blanks}{name}: {}\n", quoted.join(", ")));
            }
        }
    }
}
