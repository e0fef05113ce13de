//! Shows how far a long change of a pool is.

use super::{OfSteps, Progress, Step, Style, style_of};
use crate::session::Session;
use millpond_control::ChangeProgress;

/// Quick changes show nothing.
const WAIT_NS: u64 = 2_000_000_000;

/// Shows the progress of a change of this pool that is about to begin, until the result is dropped.
pub fn show_change(session: &Session, pool: &str) -> Option<Progress> {
    let style = style_of(session.environment);
    if style == Style::Hidden {
        return None;
    }
    let daemon = session.pools.second()?;
    let (pool, steps) = (pool.to_owned(), OfSteps::default());
    let progress = Progress::start_after(style, WAIT_NS, move || {
        let changes = daemon.change_progress(&pool).unwrap_or_default();
        steps.report(step(changes))
    });
    Some(progress)
}

/// The step of the first change. One that has ended, or not begun, waits for the pool's txg.
fn step(changes: Vec<ChangeProgress>) -> Step {
    let Some(change) = changes.into_iter().next() else {
        return Step {
            words: "Waiting for the pool".into(),
            ..Step::default()
        };
    };
    Step {
        words: change.action,
        done: change.done,
        total: change.total,
        left_s: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_change_is_shown() {
        let change = ChangeProgress {
            action: "Destroying datasets".into(),
            done: 3,
            total: 9,
        };
        let shown = step(vec![change]);
        assert_eq!((shown.done, shown.total), (3, 9));
        assert_eq!(step(vec![]).words, "Waiting for the pool");
    }
}
