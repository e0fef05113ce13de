//! `millpond import`: lists the pools that can be imported, in the format of `zpool import`.

use super::Global;
use super::global::refused;
use crate::session::{Ending, Session};
use clap::{Arg, ArgAction, ArgMatches, Command};
use millpond_engine::PoolState;
use serde_json::json;

/// Defines the command.
pub fn command() -> Command {
    Command::new("import")
        .about("List the pools that can be opened, like zpool import; nothing is imported")
        .arg(
            Arg::new("destroyed")
                .short('D')
                .help("List destroyed pools only")
                .action(ArgAction::SetTrue),
        )
}

/// Lists the pools.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let is_destroyed_wanted = matches.get_flag("destroyed");
    if !global.is_json {
        let mut words = vec!["import".to_owned()];
        words.extend(is_destroyed_wanted.then(|| "-D".to_owned()));
        for place in &global.search.paths {
            words.extend(["-d".to_owned(), place.to_string_lossy().into_owned()]);
        }
        return crate::zpool::run(session, &words).map_err(Into::into);
    }
    let pools = global.search.pools();
    for pool in pools {
        let is_destroyed = pool.state == PoolState::Destroyed;
        if is_destroyed != is_destroyed_wanted {
            continue;
        }
        let leaves: Vec<serde_json::Value> = match &pool.assembly {
            Ok(assembly) => assembly
                .leaves
                .iter()
                .map(|leaf| {
                    json!({
                        "guid": leaf.guid.0.to_string(), "path": leaf.config_path,
                        "found_as": leaf.found_as, "is_present": leaf.device.is_some(),
                    })
                })
                .collect(),
            Err(error) => return Err(refused(format!("{}: {error}", pool.name))),
        };
        let line = json!({
            "name": pool.name, "guid": pool.guid.0.to_string(),
            "state": format!("{:?}", pool.state).to_lowercase(),
            "version": pool.version, "txg": pool.config_txg.0, "hostname": pool.hostname,
            "hostid": pool.hostid, "comment": pool.comment, "devices": leaves,
        });
        writeln!(session.out, "{line}")?;
    }
    Ok(0)
}
