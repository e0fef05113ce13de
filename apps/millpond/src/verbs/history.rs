//! `millpond history`: the older states of a pool that can still be read.

use super::Global;
use super::global::refused;
use crate::session::{Ending, Session};
use crate::text::{date, number};
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
    let pool = global.find(&name)?;
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
    /// How many datasets it has, which are not whole, and of which that cannot be told without a key.
    Datasets {
        count: u64,
        lost: Vec<(String, LostMetadata)>,
        locked: Vec<String>,
    },
}

impl Found {
    fn of(global: &Global, pool: &PoolCandidate, state: &PastState, survey: &mut Survey) -> Self {
        let view = match View::open_candidate(pool, &global.at(state.txg).open) {
            Ok(view) => view,
            Err(error) => return Self::Unreadable(error.to_string()),
        };
        let (mut count, mut lost, mut locked) = (0, vec![], vec![]);
        for dataset in view.datasets() {
            count += 1;
            match dataset {
                // Its dnodes are encrypted, so most of its metadata is not found.
                Ok(dataset) if dataset.is_locked().unwrap_or(false) => {
                    locked.push(dataset.name().to_owned());
                }
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
        Self::Datasets {
            count,
            lost,
            locked,
        }
    }

    fn text(&self) -> String {
        match self {
            // Why it cannot be opened is in the JSON.
            Self::Unreadable(_) => "gone".to_owned(),
            Self::Datasets {
                count,
                lost,
                locked,
            } if lost.is_empty() && locked.is_empty() => {
                format!("whole, {}", number::of(*count, "dataset", "datasets"))
            }
            Self::Datasets {
                count,
                lost,
                locked,
            } => {
                let named = |(name, lost): &(String, LostMetadata)| {
                    let blocks = number::of(lost.blocks, "block", "blocks");
                    format!("{name} ({blocks} of metadata)")
                };
                let whole = count - lost.len() as u64 - locked.len() as u64;
                let mut text = format!(
                    "{whole} of {} whole",
                    number::of(*count, "dataset", "datasets")
                );
                let lost: Vec<String> = lost.iter().map(named).collect();
                for (what, names) in [("damaged", &lost), ("locked", locked)] {
                    let shown: Vec<&str> =
                        names.iter().take(NAMED_MAX).map(String::as_str).collect();
                    if shown.is_empty() {
                        continue;
                    }
                    text.push_str(&format!("; {what}: {}", shown.join(", ")));
                    match names.len().saturating_sub(NAMED_MAX) {
                        0 => {}
                        more => text.push_str(&format!(" and {more} more")),
                    }
                }
                text
            }
        }
    }

    fn value(&self, state: &PastState) -> Value {
        let mut value = json!({
            "txg": state.txg.0, "timestamp": state.time_s, "labels": state.labels,
        });
        match self {
            Self::Unreadable(reason) => value["problem"] = json!(reason),
            Self::Datasets {
                count,
                lost,
                locked,
            } => {
                value["datasets"] = json!(count);
                let lost = lost.iter().map(|(name, lost)| {
                    json!({ "name": name, "blocks": lost.blocks, "reason": lost.reason })
                });
                value["damaged"] = lost.collect();
                value["locked"] = json!(locked);
            }
        }
        value
    }
}

/// The most damaged or locked datasets named in a line.
const NAMED_MAX: usize = 3;

const NOTES: &str = "\
A state stays readable until its blocks are used again; then it is gone (--json says why). Every command that reads opens one with -T TXG:
millpond -T TXG ls, cp, mount and so on. Read is all metadata of each dataset; contents of files are
not, so a file of a whole state may still be damaged. Every read is verified. The metadata of a locked dataset can be read
only with its key.
millpond undelete finds the newest state that has a file whole.";
