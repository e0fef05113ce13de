//! `zpool events`: the events of pools since the daemon started.

use super::create::check_name;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use crate::text::date;
use crate::text::terminal::one_line;
use millpond_control::{Event, EventValue};

/// How long `-f` lets the daemon wait for the next event.
const FOLLOW_MS: u64 = 1000;

/// Prints or clears events.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    if parsed.has("c") && (parsed.has("f") || parsed.has("v")) {
        return Err(Failure::Usage("invalid options combined with -c".into()));
    }
    if parsed.operands.len() > usize::from(!parsed.has("c")) {
        return Err(Failure::Usage("too many arguments".into()));
    }
    let to_error = |error: millpond_control::ControlError| Failure::Refused(error.to_string());
    if parsed.has("c") {
        let count = session.daemon()?.clear_events().map_err(to_error)?;
        writeln!(session.out, "cleared {count} events")?;
        return Ok(0);
    }
    if let Some(pool) = parsed.operands.first() {
        let open = |reason| Failure::Refused(format!("cannot open '{pool}': {reason}"));
        check_name(pool).map_err(open)?;
    }
    if !parsed.has("H") {
        writeln!(session.out, "{:<30} CLASS", "TIME")?;
    }
    let pool = parsed.operands.first();
    let (mut after, mut wait_ms) = (0, 0);
    loop {
        let events = session.daemon()?.events(after, wait_ms);
        let events = events.map_err(to_error)?;
        for event in &events {
            after = event.id;
            if pool.is_none_or(|pool| *pool == event.pool) {
                print(session, parsed, event)?;
            }
        }
        if !parsed.has("f") {
            return Ok(0);
        }
        session.out.flush()?;
        wait_ms = FOLLOW_MS;
    }
}

fn print(session: &mut Session, parsed: &Parsed, event: &Event) -> Result<(), Failure> {
    let seconds = event.time_ns / 1_000_000_000;
    let time = date::event(
        seconds,
        event.time_ns % 1_000_000_000,
        &session.environment.zone,
    );
    let out = &mut *session.out;
    match parsed.has("H") {
        true => writeln!(out, "{time}\t{}", event.class)?,
        false => writeln!(out, "{time:<30} {}", event.class)?,
    }
    if !parsed.has("v") {
        return Ok(());
    }
    for (name, value) in &event.values {
        let value = match value {
            EventValue::Number(number) => format!("{number:#x}"),
            EventValue::Numbers(numbers) => numbers
                .iter()
                .map(|number| format!("{number:#x} "))
                .collect(),
            EventValue::Text(text) => format!("\"{}\"", one_line(text)),
        };
        writeln!(out, "        {name} = {value}")?;
    }
    writeln!(out)?;
    Ok(())
}
