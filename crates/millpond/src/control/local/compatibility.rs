//! Which features property `compatibility` asks for.

use crate::control::RequestedFeatures;

/// Where systems with OpenZFS keep the sets that `compatibility` names, first the administrator's own.
const COMPATIBILITY_FOLDERS: [&str; 2] =
    ["/etc/zfs/compatibility.d", "/usr/share/zfs/compatibility.d"];
/// The largest file of a set that is read, in bytes.
const COMPATIBILITY_BYTES_MAX: u64 = 16 << 10;

/// What the files that `compatibility` names have in common; sets that OpenZFS ships are known without
/// their files.
pub(in crate::control) fn requested(compatibility: Option<&str>) -> RequestedFeatures {
    let names = match compatibility {
        None | Some("off" | "") => return RequestedFeatures::All,
        Some("legacy") => return RequestedFeatures::Legacy,
        Some(names) => names,
    };
    let mut common: Option<Vec<String>> = None;
    for name in names.split(',') {
        let Some(set) = compatibility_set(name) else {
            return RequestedFeatures::Unreadable;
        };
        common = Some(match common {
            None => set,
            Some(common) => common
                .into_iter()
                .filter(|word| set.contains(word))
                .collect(),
        });
    }
    RequestedFeatures::Listed(common.unwrap_or_default())
}

/// Those of the names in a list that no set can be read for, with commas between.
pub(in crate::control) fn unreadable(names: &str) -> String {
    let unreadable = names
        .split(',')
        .filter(|name| compatibility_set(name).is_none());
    unreadable.collect::<Vec<_>>().join(",")
}

fn compatibility_set(name: &str) -> Option<Vec<String>> {
    use millpond_pool::properties::compatibility::{known_set, listed};
    use std::io::Read;
    // The name comes from the pool: it may not lead out of the folders.
    if name.is_empty() || name.starts_with('.') || name.contains('/') {
        return None;
    }
    for folder in COMPATIBILITY_FOLDERS {
        let Ok(file) = std::fs::File::open(std::path::Path::new(folder).join(name)) else {
            continue;
        };
        let mut text = String::new();
        file.take(COMPATIBILITY_BYTES_MAX)
            .read_to_string(&mut text)
            .ok()?;
        return Some(listed(&text));
    }
    Some(known_set(name)?.into_iter().map(str::to_owned).collect())
}
