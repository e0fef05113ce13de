//! Checks dataset names.

use millpond_control::properties::{DatasetKind, Kinds};

/// Checks a name against the allowed kinds of dataset. The error is the reason.
pub fn check(name: &str, kinds: Kinds) -> Result<(), String> {
    if name.len() >= NAME_BYTES_MAX {
        return Err("name is too long".into());
    }
    if name.contains('@') && !kinds.contains(DatasetKind::Snapshot) {
        return Err("snapshot delimiter '@' is not expected here".into());
    }
    if name.contains('#') && !kinds.contains(DatasetKind::Bookmark) {
        return Err("bookmark delimiter '#' is not expected here".into());
    }
    let is_plain = !name.contains(['@', '#']);
    if is_plain && Kinds::only(&[DatasetKind::Snapshot]) == kinds {
        return Err("missing '@' delimiter in snapshot name".into());
    }
    if is_plain && Kinds::only(&[DatasetKind::Bookmark]) == kinds {
        return Err("missing '#' delimiter in bookmark name".into());
    }
    components(name)
}

fn components(name: &str) -> Result<(), String> {
    if name.starts_with('/') {
        return Err("leading slash in name".into());
    }
    if name.is_empty() {
        return Err("empty component or misplaced '@' or '#' delimiter in name".into());
    }
    if name.matches(['@', '#']).count() > 1 {
        return Err("multiple '@' and/or '#' delimiters in name".into());
    }
    if let Some(bad) = name.chars().find(|c| !is_legal(*c)) {
        return Err(format!("invalid character '{bad}' in name"));
    }
    if name.ends_with('/') {
        return Err("trailing slash in name".into());
    }
    let (path, tail) = match name.find(['@', '#']) {
        Some(at) => (&name[..at], Some(&name[at + 1..])),
        None => (name, None),
    };
    if tail.is_some_and(|tail| tail.contains('/')) {
        return Err("trailing slash in name".into());
    }
    for part in path.split('/').chain(tail) {
        match part {
            "" => return Err("empty component or misplaced '@' or '#' delimiter in name".into()),
            "." => return Err("self reference, '.' is found in name".into()),
            ".." => return Err("parent reference, '..' is found in name".into()),
            _ => {}
        }
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err("pool doesn't begin with a letter".into());
    }
    Ok(())
}

fn is_legal(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "-_.: %/@#".contains(letter)
}

/// A complete name, with snapshot or bookmark, has fewer bytes than this.
const NAME_BYTES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_name_gets_a_specific_message() {
        for (name, reason) in [
            ("tank/", "trailing slash in name"),
            ("/tank", "leading slash in name"),
            (
                "tank//x",
                "empty component or misplaced '@' or '#' delimiter in name",
            ),
            ("tank/bad*name", "invalid character '*' in name"),
            ("tank/.", "self reference, '.' is found in name"),
            ("tank/..", "parent reference, '..' is found in name"),
            (
                "tank/fs@",
                "empty component or misplaced '@' or '#' delimiter in name",
            ),
            ("tank/fs@a@b", "multiple '@' and/or '#' delimiters in name"),
            ("tank/fs@bad/name", "trailing slash in name"),
            ("1tank", "pool doesn't begin with a letter"),
        ] {
            assert_eq!(check(name, Kinds::ALL), Err(reason.into()), "{name}");
        }
        assert_eq!(check("tank/with space@s:1", Kinds::ALL), Ok(()));
        assert_eq!(
            check(&"n".repeat(256), Kinds::ALL),
            Err("name is too long".into())
        );
        let files = Kinds::only(&[DatasetKind::Filesystem]);
        assert!(
            check("tank@x", files)
                .unwrap_err()
                .starts_with("snapshot delimiter")
        );
    }
}
