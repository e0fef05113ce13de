//! `zpool checkpoint`.

use super::change_text::{Verb, failure};
use super::manage::require;
use super::wait;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_control::PoolChange;

/// Takes a checkpoint, or discards it.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let discards = parsed.has("d");
    if parsed.has("w") && !discards {
        let text = "--wait only valid when --discard also specified";
        return Err(Failure::Usage(text.into()));
    }
    let [name] = parsed.operands.as_slice() else {
        return Err(Failure::Usage("too many arguments".into()));
    };
    require(session, name)?;
    let is_served = session.daemon().is_ok();
    let (mut changes, action) = match discards {
        false => (
            vec![PoolChange::TakeCheckpoint],
            format!("cannot checkpoint '{name}'"),
        ),
        true => (
            vec![PoolChange::DiscardCheckpoint],
            format!("cannot discard checkpoint in '{name}'"),
        ),
    };
    if discards && !is_served {
        // Nothing else discards it in a pool that is opened for one command.
        changes.push(PoolChange::FinishDiscard);
    }
    let done = session.service()?.change(name, &changes, &parsed.line);
    done.map_err(|failed| failure(Verb::Other, &action, &failed.error))?;
    if parsed.has("w") && is_served {
        wait::until_over(session, name, "discard")?;
    }
    Ok(0)
}
