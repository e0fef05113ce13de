//! `inspect labels`: shows the four labels of each device.

use super::items::{Items, indented};
use super::pointer;
use crate::session::{Ending, Session};
use crate::verbs::Global;
use clap::ArgMatches;
use millpond_inspect::{FoundLeaf, LabelFault, LeafLabel};
use serde_json::{Value, json};

/// Runs the subcommand.
pub fn run(session: &mut Session, global: &Global, _: &ArgMatches) -> Ending {
    let found = global.search.scan();
    let mut items = Items::begin(session, global.is_json, "")?;
    for leaf in found.leaves() {
        items.item(|| leaf_value(leaf), || leaf_text(leaf))?;
    }
    for (path, faults) in &found.unlabelled {
        items.item(
            || {
                let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
                json!({ "path": path.to_string_lossy(), "labels": [], "faults": faults })
            },
            || format!("{}: no label: {}\n", path.display(), faults[0]),
        )?;
    }
    for (path, error) in &found.failures {
        items.failure(format_args!("{}: {error}", path.display()))?;
    }
    if items.count() == 0 {
        items.failure("no devices found")?;
    }
    Ok(items.end()?)
}

type Label = Result<LeafLabel, LabelFault>;

fn leaf_text(leaf: &FoundLeaf) -> String {
    let mut text = format!("{}\n", leaf.candidate.name());
    let mut shown: Vec<&LeafLabel> = vec![];
    for label in leaf.labels.iter().flatten() {
        if shown.iter().any(|known| known.config == label.config) {
            continue;
        }
        shown.push(label);
        let equal: Vec<String> = numbers(&leaf.labels, label)
            .map(|n| n.to_string())
            .collect();
        let verified = if label.is_verified {
            ""
        } else {
            ", checksum does not hold"
        };
        text += &format!("  labels {}{verified}:\n", equal.join(" "));
        text += &indented(&label.config.to_string(), 4);
    }
    for (index, label) in leaf.labels.iter().enumerate() {
        if let Err(fault) = label {
            text += &format!("  label {index}: {fault}\n");
        }
    }
    text
}

/// The numbers of the labels that are equal to `wanted`.
fn numbers<'a>(labels: &'a [Label], wanted: &'a LeafLabel) -> impl Iterator<Item = usize> + 'a {
    (0usize..)
        .zip(labels)
        .filter(|(_, label)| {
            label
                .as_ref()
                .is_ok_and(|label| label.config == wanted.config)
        })
        .map(|(index, _)| index)
}

fn leaf_value(leaf: &FoundLeaf) -> Value {
    let labels: Vec<Value> = leaf
        .labels
        .iter()
        .map(|label| match label {
            Ok(label) => json!({
                "txg": label.txg.0,
                "verified": label.is_verified,
                "config": pointer::list(&label.config),
            }),
            Err(fault) => json!({ "fault": fault.to_string() }),
        })
        .collect();
    json!({ "path": leaf.candidate.name(), "labels": labels })
}
