//! Evaluates property `compatibility`: the features that it requests.

use millpond_control::RequestedFeatures;

/// Where systems with OpenZFS keep the feature sets that `compatibility` names. The administrator's directory
/// comes first.
const COMPATIBILITY_FOLDERS: [&str; 2] =
    ["/etc/zfs/compatibility.d", "/usr/share/zfs/compatibility.d"];
/// The largest feature set file that is read, in bytes.
const COMPATIBILITY_BYTES_MAX: u64 = 16 << 10;

/// The features that all sets named by `compatibility` have in common. The sets that OpenZFS ships are built
/// in, so their files are not needed.
pub(crate) fn requested(compatibility: Option<&str>) -> RequestedFeatures {
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

/// The names in a list whose sets cannot be read, separated by commas.
pub(crate) fn unreadable(names: &str) -> String {
    let unreadable = names
        .split(',')
        .filter(|name| compatibility_set(name).is_none());
    unreadable.collect::<Vec<_>>().join(",")
}

fn compatibility_set(name: &str) -> Option<Vec<String>> {
    use millpond_pool::properties::compatibility::{known_set, listed};
    use std::io::Read;
    // The name comes from the pool, so it must not escape the directories.
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
