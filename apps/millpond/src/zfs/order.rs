//! The sort order of dataset lists.

use millpond_control::properties::{DatasetKind, PropertyName};
use millpond_control::{DatasetInfo, Value};
use std::cmp::Ordering;

/// One key of `-s` (ascending) or `-S` (descending).
#[derive(Debug, Clone)]
pub struct SortKey {
    /// The property to compare.
    pub property: PropertyName,
    /// `-S`.
    pub is_descending: bool,
}

/// Compares by the keys in turn, then by the default order.
pub fn compare(left: &DatasetInfo, right: &DatasetInfo, keys: &[SortKey]) -> Ordering {
    keys.iter()
        .map(|key| by_key(left, right, key))
        .find(|order| order.is_ne())
        .unwrap_or_else(|| default(left, right))
}

/// The default order: by name up to `@`, a dataset before its snapshots, snapshots by their txg.
///
/// A bookmark is compared by its complete name.
fn default(left: &DatasetInfo, right: &DatasetInfo) -> Ordering {
    let head = |name: &str| name.find('@').map_or(name.len(), |at| at);
    let (left_head, right_head) = (head(&left.name), head(&right.name));
    left.name.as_bytes()[..left_head]
        .cmp(&right.name.as_bytes()[..right_head])
        .then_with(|| {
            let is_snapshot = |info: &DatasetInfo| info.kind == DatasetKind::Snapshot;
            match (is_snapshot(left), is_snapshot(right)) {
                (true, true) => left.created_txg.cmp(&right.created_txg),
                (left, right) => left.cmp(&right),
            }
        })
        .then_with(|| left.name.cmp(&right.name))
}

fn by_key(left: &DatasetInfo, right: &DatasetInfo, key: &SortKey) -> Ordering {
    let name = key.property.text();
    if name == "name" {
        let order = left.name.cmp(&right.name);
        return if key.is_descending {
            order.reverse()
        } else {
            order
        };
    }
    let value = |info: &'_ DatasetInfo| info.property(name).and_then(|p| p.value.clone());
    let named = |number: u64| match &key.property {
        PropertyName::Native(native) => native.shape.word_of(number),
        _ => None,
    };
    let order = match (value(left), value(right)) {
        (None, None) => return Ordering::Equal,
        // Missing values come last in either direction.
        (None, Some(_)) => return Ordering::Greater,
        (Some(_), None) => return Ordering::Less,
        (Some(Value::Number(a)), Some(Value::Number(b))) => match (named(a), named(b)) {
            (Some(a), Some(b)) => a.cmp(b),
            _ => a.cmp(&b),
        },
        (Some(a), Some(b)) => word(&key.property, a).cmp(&word(&key.property, b)),
    };
    if key.is_descending {
        order.reverse()
    } else {
        order
    }
}

fn word(property: &PropertyName, value: Value) -> String {
    match (value, property) {
        (Value::Text(text), _) => text,
        (Value::Number(number), PropertyName::Native(native)) => native
            .shape
            .word_of(number)
            .map_or_else(|| number.to_string(), str::to_string),
        (Value::Number(number), _) => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_control::properties::DatasetKind::*;

    fn info(name: &str, kind: DatasetKind, created_txg: u64) -> DatasetInfo {
        DatasetInfo {
            name: name.into(),
            kind,
            created_txg,
            properties: Vec::new(),
        }
    }

    #[test]
    fn a_dataset_sorts_before_its_snapshots_by_age() {
        let sorted = [
            info("tank", Filesystem, 1),
            info("tank/fs", Filesystem, 2),
            info("tank/fs@z-first", Snapshot, 3),
            info("tank/fs@a-second", Snapshot, 4),
            info("tank/fs#b1", Bookmark, 3),
            info("tank/fs-old", Filesystem, 9),
            info("tank/fs/child", Filesystem, 5),
            info("tank/fs2", Filesystem, 4),
        ];
        let mut shuffled = sorted.to_vec();
        shuffled.reverse();
        shuffled.sort_by(|a, b| compare(a, b, &[]));
        assert_eq!(shuffled, sorted);
    }
}
