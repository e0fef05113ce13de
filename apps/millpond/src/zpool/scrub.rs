//! `zpool scrub` and `zpool resilver`.

use super::change_text::{Verb, failure};
use super::manage::{each, require};
use super::wait;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_control::{PoolChange, ScrubAction};

/// Starts, pauses or cancels scrubs.
pub fn scrub(session: &mut Session, parsed: &Parsed) -> Ending {
    let has = |option| parsed.has(option);
    let exclusive = |one: &str, other: &str| {
        let text =
            format!("invalid option combination: -{one} and -{other} are mutually exclusive");
        Err(Failure::Usage(text))
    };
    for (one, other) in [("s", "p"), ("s", "e"), ("s", "C"), ("p", "C"), ("e", "C")] {
        if has(one) && has(other) {
            return exclusive(one, other);
        }
    }
    if has("w") && (has("s") || has("p")) {
        let text = "invalid option combination: -w cannot be used with -p or -s";
        return Err(Failure::Usage(text.into()));
    }
    let (action, verb) = match () {
        () if has("s") => (ScrubAction::Cancel, "cancel scrubbing"),
        () if has("p") => (ScrubAction::Pause, "pause scrubbing"),
        () if has("e") => (ScrubAction::StartErrors, "scrub"),
        () => {
            let since_last = has("C");
            (ScrubAction::Start { since_last }, "scrub")
        }
    };
    let names = parsed.operands.clone();
    let mut changes = vec![PoolChange::Scrub(action)];
    let is_served = session.daemon().is_ok();
    if has("w") && !is_served {
        // Nothing else scans a pool that is opened for one command.
        changes.push(PoolChange::FinishScan);
    }
    let status = each(session, &names, |session, name| {
        require(session, name)?;
        let done = session.service()?.change(name, &changes, &parsed.line);
        let action = format!("cannot {verb} {name}");
        done.map_err(|failed| failure(Verb::Other, &action, &failed.error))?;
        Ok(())
    })?;
    if status == 0 && has("w") && is_served {
        for name in &names {
            wait::until_over(session, name, "scrub")?;
        }
    }
    Ok(status)
}

/// Starts resilvers, from the beginning.
pub fn resilver(session: &mut Session, parsed: &Parsed) -> Ending {
    let names = parsed.operands.clone();
    each(session, &names, |session, name| {
        require(session, name)?;
        let change = PoolChange::Resilver;
        let done = session.service()?.change(name, &[change], &parsed.line);
        let action = format!("cannot restart resilver on {name}");
        done.map_err(|failed| failure(Verb::Other, &action, &failed.error))?;
        Ok(())
    })
}
