//! Validates names read from disk before they are used in paths, command lines and tables.

use millpond_dataset::Directory;
use millpond_engine::View;
use millpond_env::sync::Arc;
use std::collections::BTreeSet;

/// The longest name of a dataset, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Why no pool, dataset or snapshot created by OpenZFS can have this component in its name; `None` if one
/// can.
///
/// This is more lenient than the check of new names: names that old versions allowed stay usable.
pub fn refuse_component(name: &str) -> Option<&'static str> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Some("it is empty or too long");
    }
    if matches!(name, "." | "..") {
        return Some("it would lead elsewhere in a path");
    }
    if name.contains(['/', '@', '#']) {
        return Some("it has a character in it that separates names");
    }
    // Bytes that are not UTF-8 were decoded to the replacement character.
    let is_odd = |c: char| c.is_control() || c == '\u{fffd}' || (c.is_whitespace() && c != ' ');
    name.contains(is_odd)
        .then_some("it has characters in it that are no text")
}

/// The first invalid name in a pool, with the reason. Skips what cannot be read.
pub fn refuse_datasets(pool: &View) -> Option<(String, &'static str)> {
    let root = Directory::root(pool.inner()).ok()?;
    let mut todo: Vec<Arc<Directory>> = vec![Arc::clone(&root)];
    // A forged tree may contain a cycle.
    let mut seen = BTreeSet::from([root.id().0]);
    while let Some(directory) = todo.pop() {
        let is_hidden = |name: &str| name.starts_with(['$', '%']);
        if let Ok(Some(head)) = directory.head()
            && let Ok(snapshots) = head.snapshot_entries()
        {
            for (name, _) in snapshots {
                if let Some(why) = refuse_component(&name) {
                    return Some((format!("{}@{name}", directory.name()), why));
                }
            }
        }
        for (component, id) in directory.child_entries().unwrap_or_default() {
            if is_hidden(&component) {
                continue;
            }
            if let Some(why) = refuse_component(&component) {
                return Some((format!("{}/{component}", directory.name()), why));
            }
            if seen.insert(id.0)
                && let Ok(child) = directory.open_child(&component, id)
            {
                todo.push(child);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_folder_are_ignored() {
        for name in ["a", "a b", "X-1_2.3:4", "übung", "mirror", "%recv"] {
            assert_eq!(refuse_component(name), None, "{name}");
        }
        let long = "x".repeat(256);
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "../../etc",
            "a@b",
            "a#b",
            "a\n",
            "\x1b[2J",
            "\u{9b}",
            "\u{85}",
            "a\u{fffd}",
            &long,
        ] {
            assert!(refuse_component(name).is_some(), "{name:?}");
        }
    }
}
