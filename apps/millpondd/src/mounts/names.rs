//! Names of datasets and paths, one inside the other.

/// Whether a path or a dataset is `root` or inside it. Snapshots are not inside their dataset.
pub(super) fn is_within(name: &str, root: &str) -> bool {
    name.strip_prefix(root)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a dataset is `root`, or a snapshot or descendant of it.
pub(crate) fn is_of(name: &str, root: &str) -> bool {
    name.strip_prefix(root)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
}

/// The name of a dataset after `from` was renamed to `to`; `None` if it keeps its own. With `recursively`, a snapshot was
/// renamed in all descendants too.
pub(super) fn renamed(name: &str, (from, to): (&str, &str), recursively: bool) -> Option<String> {
    let Some((head, old)) = from.split_once('@') else {
        let rest = name.get(from.len()..).filter(|_| is_of(name, from))?;
        return Some(format!("{to}{rest}"));
    };
    let (own_head, own) = name.split_once('@')?;
    let is_meant = own_head == head || (recursively && is_within(own_head, head));
    let new = to.rsplit('@').next().unwrap_or(to);
    (own == old && is_meant).then(|| format!("{own_head}@{new}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_belong_to_their_dataset_and_neighbours_do_not() {
        assert!(is_within("tank/a", "tank") && !is_within("tank/a@s", "tank/a"));
        for name in ["tank/a", "tank/a@s", "tank/a/b", "tank/a/b@s"] {
            assert!(is_of(name, "tank/a"), "{name}");
        }
        assert!(!is_of("tank/ab", "tank/a") && !is_of("tank", "tank/a"));
    }

    #[test]
    fn a_new_name_reaches_what_is_below_it() {
        let new = |name, recursively| renamed(name, ("tank/a", "tank/z"), recursively);
        assert_eq!(new("tank/a/b", false).as_deref(), Some("tank/z/b"));
        assert_eq!(new("tank/a@s", false).as_deref(), Some("tank/z@s"));
        assert_eq!(new("tank/ab", false), None);
        for to in ["tank/a@t", "@t"] {
            let new = |name, recursively| renamed(name, ("tank/a@s", to), recursively);
            assert_eq!(new("tank/a@s", false).as_deref(), Some("tank/a@t"));
            assert_eq!(new("tank/a/b@s", false), None);
            assert_eq!(new("tank/a/b@s", true).as_deref(), Some("tank/a/b@t"));
            assert_eq!(new("tank/a@other", true), None);
            assert_eq!(new("tank/a", true), None);
            assert_eq!(new("tank@s", true), None);
        }
    }
}
