//! `millpond kstat`: shows statistics of the daemon that OpenZFS has in `/proc/spl/kstat/zfs`.

use super::Global;
use crate::session::{Ending, Failure, Session};
use clap::{Arg, ArgMatches, Command};
use millpond_control::ImportProgress;

/// The number of OpenZFS's load state for a pool that is being imported.
const LOAD_STATE_IMPORT: u64 = 2;

/// Defines the command.
pub fn command() -> Command {
    Command::new("kstat")
        .about("Show statistics that OpenZFS has in /proc/spl/kstat/zfs")
        .arg(
            Arg::new("name")
                .value_name("NAME")
                .required(true)
                .value_parser(["import_progress"])
                .help("import_progress: a line for each import that has not ended"),
        )
}

/// Shows the statistics. Requires the daemon: another process imports nothing.
pub fn run(session: &mut Session, global: &Global, _: &ArgMatches) -> Ending {
    session.daemon()?;
    let imports = session.service()?.import_progress();
    let imports = imports.map_err(|error| Failure::Refused(error.to_string()))?;
    if global.is_json {
        let text = serde_json::to_string(&imports);
        let text = text.map_err(|error| Failure::Refused(error.to_string()))?;
        writeln!(session.out, "{text}")?;
        return Ok(0);
    }
    session.out.write_all(table(&imports).as_bytes())?;
    Ok(0)
}

fn table(imports: &[ImportProgress]) -> String {
    let mut text = line([
        "pool_guid",
        "load_state",
        "multihost_secs",
        "max_txg",
        "pool_name",
        "notes",
    ]);
    for import in imports {
        text += &line([
            &import.pool_guid.to_string(),
            &LOAD_STATE_IMPORT.to_string(),
            &import.multihost_s.to_string(),
            &import.max_txg.to_string(),
            &import.pool_name,
            &import.notes,
        ]);
    }
    text
}

fn line([guid, state, seconds, txg, name, notes]: [&str; 6]) -> String {
    format!("{guid:<20} {state:<14} {seconds:<14} {txg:<12} {name:<16} {notes}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_import_has_a_line_below_the_header() {
        let import = ImportProgress {
            pool_guid: 1 << 60,
            multihost_s: 9,
            max_txg: 0,
            pool_name: "tank".into(),
            notes: "Replaying the intent log of tank/a".into(),
            ..ImportProgress::default()
        };
        let text = table(&[import]);
        let rows: Vec<Vec<&str>> = (text.lines())
            .map(|line| line.split_whitespace().collect())
            .collect();
        let head = "pool_guid load_state multihost_secs max_txg pool_name notes";
        assert_eq!(rows[0].join(" "), head);
        assert_eq!(
            rows[1].join(" "),
            "1152921504606846976 2 9 0 tank Replaying the intent log of tank/a"
        );
        assert_eq!(table(&[]).lines().count(), 1);
    }
}
