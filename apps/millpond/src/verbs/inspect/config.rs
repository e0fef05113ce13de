//! `inspect config`: the pool's configuration as its MOS holds it.

use super::items::plain;
use super::pointer;
use crate::session::{Ending, Session};
use crate::verbs::Global;
use clap::{ArgMatches, Command};

/// The part's options.
pub fn command() -> Command {
    Command::new("config")
        .about("Show the configuration that the pool itself holds")
        .arg(super::pool_argument())
}

/// Runs it.
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
