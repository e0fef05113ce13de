//! The snapshots of a pool in the order in which they can be sent and received.

use super::Life;
use std::collections::BTreeMap;

/// A snapshot of the model, and the one that its stream is sent from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// Its full name.
    pub name: String,
    /// The full name of the older snapshot; `None` if everything is sent.
    pub from: Option<String>,
}

/// All snapshots, each after the one that it is sent from.
///
/// # Panics
/// If origins form a circle.
#[must_use]
pub fn in_order(life: &Life) -> Vec<Sent> {
    let mut names: BTreeMap<u64, String> = BTreeMap::new();
    for (head, state) in &life.model.heads {
        for snapshot in &state.snapshots {
            names.insert(snapshot.id, format!("{head}@{}", snapshot.name));
        }
    }
    let mut sent: Vec<Sent> = vec![];
    let mut left: Vec<_> = life.model.heads.iter().collect();
    while !left.is_empty() {
        let before = left.len();
        left.retain(|(head, state)| {
            let is_sent = |name: &str| sent.iter().any(|sent| sent.name == name);
            let origin = state.origin.map(|id| names[&id].clone());
            let origin_waits = origin.as_deref().is_some_and(|origin| !is_sent(origin));
            if origin_waits {
                return true;
            }
            let mut from = origin;
            for snapshot in &state.snapshots {
                let name = format!("{head}@{}", snapshot.name);
                let from = from.replace(name.clone());
                sent.push(Sent { name, from });
            }
            false
        });
        assert!(left.len() < before, "a cycle of origins");
    }
    sent
}
