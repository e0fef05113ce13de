//! `inspect config`: shows the pool configuration stored in the MOS.

use super::items::plain;
use super::pointer;
use crate::session::{Ending, Session};
use crate::verbs::Global;
use clap::ArgMatches;

/// Runs the subcommand.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let pool = super::open_pool(global, matches)?;
    let config = pool.inner().config();
    if global.is_json {
        writeln!(session.out, "{:#}", pointer::list(config))?;
    } else {
        write!(session.out, "{}", plain(&config.to_string()))?;
    }
    Ok(0)
}
