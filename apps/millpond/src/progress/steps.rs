//! Progress of operations in steps, as an import is one.

use super::{Progress, Report, Style};
use crate::session::{Environment, Session};
use crate::text::date;
use millpond_control::Service;
use millpond_env::Env;
use millpond_env::sync::Mutex;
use serde_json::{Value, json};
use std::io::IsTerminal;

const SECOND_NS: u64 = 1_000_000_000;

/// Quick operations show nothing.
const WAIT_NS: u64 = 2 * SECOND_NS;

/// Shows the steps of an operation that the daemon is about to begin, until the result is dropped. `ask` asks for the
/// present one over a connection of its own.
pub fn show_steps(
    session: &Session,
    ask: impl Fn(&dyn Service) -> Step + Send + 'static,
) -> Option<Progress> {
    let style = style_of(session.environment);
    if style == Style::Hidden {
        return None;
    }
    let daemon = session.pools.second()?;
    let steps = OfSteps::default();
    let progress = Progress::start_after(style, WAIT_NS, move || steps.report(ask(&*daemon)));
    Some(progress)
}

/// How `zpool` and `zfs` show progress: in a line on the terminal, or as `MILLPOND_PROGRESS` says.
fn style_of(environment: &Environment) -> Style {
    let asked = environment.variables.get("MILLPOND_PROGRESS");
    match asked.map(String::as_str) {
        Some("lines") => Style::Lines,
        Some("json") => Style::Json,
        Some("none") => Style::Hidden,
        _ if std::io::stderr().is_terminal() => Style::Bar,
        _ => Style::Hidden,
    }
}

/// The step that an operation is at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// What it does, as a person reads it.
    pub words: String,
    /// How much of it is done.
    pub done: u64,
    /// How much there is to do; 0 if that is not known.
    pub total: u64,
    /// After how many seconds it ends, if that is known before.
    pub left_s: Option<u64>,
}

/// Remembers when the present step began.
#[derive(Debug, Default)]
struct OfSteps(Mutex<Begun>);

#[derive(Debug, Default)]
struct Begun {
    words: String,
    at_ns: u64,
    /// How much was done when the step was first seen.
    done: u64,
}

/// A step with what was seen of it before.
#[derive(Debug)]
struct StepReport {
    step: Step,
    /// Since when it is seen.
    seen_ns: u64,
    /// How much was done since then.
    seen_done: u64,
}

impl OfSteps {
    /// Adds to a step what is known of it from earlier calls.
    fn report(&self, step: Step) -> StepReport {
        self.report_at(step, Env::real().clock.monotonic_ns())
    }

    fn report_at(&self, step: Step, now_ns: u64) -> StepReport {
        let mut begun = self.0.lock();
        if begun.words != step.words {
            begun.words.clone_from(&step.words);
            (begun.at_ns, begun.done) = (now_ns, step.done);
        }
        StepReport {
            seen_ns: now_ns.saturating_sub(begun.at_ns),
            seen_done: step.done.saturating_sub(begun.done),
            step,
        }
    }
}

impl StepReport {
    /// The total, unless it turned out to be too small.
    fn total(&self) -> Option<u64> {
        let total = self.step.total;
        (total > 0 && total >= self.step.done).then_some(total)
    }

    /// Seconds until the end of the step at the present rate.
    fn left_s(&self) -> Option<u64> {
        if self.step.left_s.is_some() {
            return self.step.left_s;
        }
        let left = u128::from(self.total()? - self.step.done);
        let left_ns = (left * u128::from(self.seen_ns)).checked_div(self.seen_done.into())?;
        u64::try_from(left_ns / u128::from(SECOND_NS)).ok()
    }

    fn per_second(&self) -> u64 {
        let rate = u128::from(self.seen_done) * u128::from(SECOND_NS);
        let rate = rate.checked_div(self.seen_ns.into()).unwrap_or(0);
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

impl Report for StepReport {
    fn position(&self) -> (u64, Option<u64>) {
        (self.step.done, None)
    }

    fn text(&self, _: u64) -> String {
        let mut text = self.step.words.clone();
        if let Some(total) = self.total() {
            let done = self.step.done;
            let per_cent = done as f64 * 100.0 / total as f64;
            let rate = self.per_second();
            text += &format!(": {done} / {total} at {rate}/s, {per_cent:.2}% done");
        }
        if let Some(left_s) = self.left_s() {
            text += &format!(", {} to go", date::duration(left_s));
        }
        text
    }

    fn value(&self, elapsed_ns: u64) -> Value {
        json!({ "progress": {
            "action": self.step.words,
            "done": self.step.done,
            "total": self.total(),
            "per_second": self.per_second(),
            "seconds": elapsed_ns / SECOND_NS,
            "seconds_left": self.left_s(),
        }})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(done: u64) -> Step {
        Step {
            words: "Replaying the intent log of tank".into(),
            done,
            total: 1000,
            left_s: None,
        }
    }

    #[test]
    fn rate_and_time_to_go_are_those_of_the_step() {
        let steps = OfSteps::default();
        let search = Step {
            words: "Searching for devices".into(),
            ..Step::default()
        };
        let first = steps.report_at(search, 0);
        assert_eq!(first.text(0), "Searching for devices");
        steps.report_at(replay(100), 60 * SECOND_NS);
        let later = steps.report_at(replay(200), 70 * SECOND_NS);
        assert_eq!(
            later.text(70 * SECOND_NS),
            "Replaying the intent log of tank: 200 / 1000 at 10/s, 20.00% done, 00:01:20 to go"
        );
        let value = later.value(70 * SECOND_NS);
        assert_eq!(value["progress"]["seconds_left"], 80);
        assert_eq!(value["progress"]["seconds"], 70);
    }

    #[test]
    fn a_known_end_is_shown_and_a_wrong_total_is_not() {
        let steps = OfSteps::default();
        let watch = Step {
            words: "Checking".into(),
            left_s: Some(9),
            ..Step::default()
        };
        let shown = steps.report_at(watch, 0).text(0);
        assert_eq!(shown, "Checking, 00:00:09 to go");
        let over = steps.report_at(replay(2000), SECOND_NS);
        assert_eq!(over.text(0), "Replaying the intent log of tank");
        assert_eq!(over.value(0)["progress"]["total"], Value::Null);
    }
}
