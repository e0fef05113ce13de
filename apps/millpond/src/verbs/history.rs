//! `millpond history`: the older states of a pool that can still be read.

use super::Global;
use super::global::refused;
use super::pools::explained;
use crate::session::{Ending, Session};
use crate::text::date;
use clap::{Arg, ArgMatches, Command};
use millpond_engine::{LostMetadata, PastState, PoolCandidate, Survey, View, past_states};
use serde_json::{Value, json};

/// Defines the command.
pub fn command() -> Command {
    Command::new("history")
        .about("List the committed states that can still be read, and what is whole in each")
        .arg(
            Arg::new("pool")
                .value_name("POOL")
                .help("The pool (default: the only one)"),
        )
        .after_help(NOTES)
}

/// Lists the states, newest first.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let global = &global.reading_once();
    let name = global.named(matches, "pool")?;
    let pool = View::find(&global.search, &name).map_err(|error| refused(explained(&error)))?;
    let states = past_states(&pool).map_err(refused)?;
    if !global.is_json {
        let head = format!("{:>12}  {:<24}  {:>6}  STATE", "TXG", "TIME", "LABELS");
        writeln!(session.out, "{head}")?;
    }
    let mut survey = Survey::default();
    for state in states {
        let found = Found::of(global, &pool, &state, &mut survey);
        match global.is_json {
            true => writeln!(session.out, "{}", found.value(&state))?,
            false => {
                let time = date::ctime(state.time_s, &session.environment.zone);
                let (txg, labels) = (state.txg.0, state.labels);
                let text = found.text();
                writeln!(session.out, "{txg:>12}  {time:<24}  {labels:>6}  {text}")?;
            }
        }
        session.out.flush()?;
    }
    Ok(0)
}

/// What was found in a state.
enum Found {
    /// It cannot be opened.
    Unreadable(String),
    /// How many datasets it has, and which are not whole.
    Datasets {
        count: u64,
        lost: Vec<(String, LostMetadata)>,
    },
}

impl Found {
    fn of(global: &Global, pool: &PoolCandidate, state: &PastState, survey: &mut Survey) -> Self {
        let view = match View::open_candidate(pool, &global.at(state.txg).open) {
            Ok(view) => view,
            Err(error) => return Self::Unreadable(error.to_string()),
        };
        let (mut count, mut lost) = (0, vec![]);
        for dataset in view.datasets() {
            count += 1;
            match dataset {
                Ok(dataset) => {
                    let of_this = survey.of(&dataset);
                    if of_this.blocks > 0 {
                        lost.push((dataset.name().to_owned(), of_this));
                    }
                }
                Err(error) => {
                    let reason = Some(error.to_string());
                    let unknown = LostMetadata { blocks: 1, reason };
                    lost.push(("a dataset".to_owned(), unknown));
                }
            }
        }
        Self::Datasets { count, lost }
    }

    fn text(&self) -> String {
        match self {
            // Why it cannot be opened is in the JSON.
            Self::Unreadable(_) => "gone".to_owned(),
            Self::Datasets { count: 1, lost } if lost.is_empty() => "whole, 1 dataset".to_owned(),
            Self::Datasets { count, lost } if lost.is_empty() => {
                format!("whole, {count} datasets")
            }
            Self::Datasets { count, lost } => {
                let named = |(name, lost): &(String, LostMetadata)| {
                    let plural = if lost.blocks == 1 { "" } else { "s" };
                    format!("{name} ({} block{plural} of metadata)", lost.blocks)
                };
                let names: Vec<String> = lost.iter().take(NAMED_MAX).map(named).collect();
                let more = match lost.len().saturating_sub(NAMED_MAX) {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                let whole = count - lost.len() as u64;
                let names = names.join(", ");
                format!("{whole} of {count} datasets whole; damaged: {names}{more}")
            }
        }
    }

    fn value(&self, state: &PastState) -> Value {
        let mut value = json!({
            "txg": state.txg.0, "timestamp": state.time_s, "labels": state.labels,
        });
        match self {
            Self::Unreadable(reason) => value["problem"] = json!(reason),
            Self::Datasets { count, lost } => {
                value["datasets"] = json!(count);
                let lost = lost.iter().map(|(name, lost)| {
                    json!({ "name": name, "blocks": lost.blocks, "reason": lost.reason })
                });
                value["damaged"] = lost.collect();
            }
        }
        value
    }
}

/// The most damaged datasets named in a line.
const NAMED_MAX: usize = 3;

const NOTES: &str = "\
A state stays readable until its blocks are used again; then it is gone (--json says why). Every command that reads opens one with -T TXG:
millpond -T TXG ls, cp, mount and so on. Read is all metadata of each dataset; contents of files are
not, so a file of a whole state may still be damaged. Every read is verified.
millpond undelete finds the newest state that has a file whole.";
