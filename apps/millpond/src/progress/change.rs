//! Shows how far a long change of a pool is.

use super::{Progress, Step, show_steps};
use crate::session::Session;
use millpond_control::ChangeProgress;

/// Shows the progress of a change of this pool that is about to begin, until the result is dropped.
pub fn show_change(session: &Session, pool: &str) -> Option<Progress> {
    let pool = pool.to_owned();
    show_steps(session, move |daemon| {
        step(daemon.change_progress(&pool).unwrap_or_default())
    })
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
