//! Repeats output at an interval (`zpool list 5 3`), with optional timestamps (`-T`).

use crate::command::Parsed;
use crate::session::{Failure, Session};
use crate::text::date;
use std::time::Duration;

/// When to print, and how often.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rounds {
    interval_s: Option<f64>,
    count: Option<u64>,
    stamp: Option<Stamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stamp {
    Date,
    Seconds,
}

impl Rounds {
    /// Takes interval and count from the end of the operands.
    ///
    /// Both are numbers, and pool names never start with a digit.
    pub fn read(parsed: &Parsed, operands: &mut Vec<String>) -> Result<Rounds, Failure> {
        let stamp = match parsed.value("T") {
            None => None,
            Some("d") => Some(Stamp::Date),
            Some("u") => Some(Stamp::Seconds),
            Some(_) => return Err(Failure::Usage(String::new())),
        };
        let mut numbers = Vec::new();
        while numbers.len() < 2
            && let Some(number) = operands.last().and_then(|word| number(word))
        {
            operands.pop();
            numbers.insert(0, number);
        }
        let interval_s = numbers.first().copied();
        if interval_s == Some(0.0) {
            return Err(Failure::Usage("interval cannot be zero".into()));
        }
        let count = numbers.get(1).map(|count| *count as u64);
        if count == Some(0) {
            return Err(Failure::Usage("interval cannot be zero".into()));
        }
        Ok(Rounds {
            interval_s,
            count,
            stamp,
        })
    }

    /// Seconds between two iterations; `None` if there is only one.
    pub fn interval_s(self) -> Option<f64> {
        self.interval_s
    }

    /// Runs `round` as often as requested, with the number of previous iterations.
    ///
    /// Stops at the first failure.
    pub fn run(
        self,
        session: &mut Session,
        mut round: impl FnMut(&mut Session, u64) -> Result<u8, Failure>,
    ) -> Result<u8, Failure> {
        let mut status = 0;
        let mut done = 0u64;
        loop {
            self.print_stamp(session)?;
            status = status.max(round(session, done)?);
            done += 1;
            let Some(interval_s) = self.interval_s else {
                return Ok(status);
            };
            if self.count.is_some_and(|count| done >= count) {
                return Ok(status);
            }
            session.out.flush()?;
            (session.environment.pause)(
                Duration::try_from_secs_f64(interval_s).unwrap_or(Duration::MAX),
            );
        }
    }

    fn print_stamp(self, session: &mut Session) -> Result<(), Failure> {
        let now_s = session.environment.now();
        match self.stamp {
            None => {}
            Some(Stamp::Seconds) => writeln!(session.out, "{now_s}")?,
            Some(Stamp::Date) => {
                writeln!(
                    session.out,
                    "{}",
                    date::with_zone(now_s, &session.environment.zone)
                )?;
            }
        }
        Ok(())
    }
}

fn number(word: &str) -> Option<f64> {
    let is_number = word.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    if is_number {
        word.parse().ok().filter(|n: &f64| n.is_finite())
    } else {
        None
    }
}
