//! `zpool ddtprune` and `zpool prefetch`: the dedup tables.

use super::change_text::{Verb, failure};
use super::manage::require;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_control::{PoolChange, PruneAmount};

/// Removes old entries.
pub fn prune(session: &mut Session, parsed: &Parsed) -> Ending {
    let usage = |text: &str| Failure::Usage(text.to_owned());
    let amount = match (parsed.value("d"), parsed.value("p")) {
        (None, None) => return Err(usage("missing amount option (-d|-p <value>)")),
        (Some(_), Some(_)) => {
            return Err(usage("-d cannot be combined with -p"));
        }
        (Some(days), None) => match days.parse() {
            Ok(days) if days > 0 => PruneAmount::Days(days),
            _ => return Err(usage("invalid days value")),
        },
        (None, Some(percent)) => match percent.parse() {
            Ok(percent @ 1..=100) => PruneAmount::Percent(percent),
            _ => return Err(usage("invalid percentage value")),
        },
    };
    let change = PoolChange::PruneDedup(amount);
    one_pool(session, parsed, change, "prune dedup table in")
}

/// Reads the tables into the cache.
pub fn prefetch(session: &mut Session, parsed: &Parsed) -> Ending {
    match parsed.value("t") {
        // OpenZFS 2.4 does not require a type.
        None | Some("ddt") => {}
        Some(_) => return Err(Failure::Usage("unsupported prefetch type".to_owned())),
    }
    one_pool(
        session,
        parsed,
        PoolChange::PrefetchDedup,
        "prefetch ddt in",
    )
}

fn one_pool(session: &mut Session, parsed: &Parsed, change: PoolChange, verb: &str) -> Ending {
    let name = match parsed.operands.as_slice() {
        [name] => name,
        [] => return Err(Failure::Usage("missing pool name argument".to_owned())),
        _ => return Err(Failure::Usage("too many arguments".to_owned())),
    };
    require(session, name)?;
    let done = (session.service()?).change(name, &[change], &parsed.line);
    let action = format!("cannot {verb} '{name}'");
    done.map_err(|failed| failure(Verb::Other, &action, &failed.error))?;
    Ok(0)
}
