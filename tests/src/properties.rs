//! Defines which properties must be equal, and which change with every transaction group.

use crate::reader::Properties;

/// How a property is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Value and source are equal.
    Equal,
    /// A comma-separated list, in any order.
    SameSet,
    /// A space counter, which must be approximately equal.
    ///
    /// The record was taken before the last transaction groups.
    Close,
    /// A ratio of space counters.
    CloseRatio,
    /// A resume token: only the version and the length of the content are compared.
    ///
    /// Its bytes depend on the compressor.
    Token,
    /// Depends on the state of a live system.
    Ignored,
}

/// Differences between a dataset's properties and the recorded ones.
///
/// Only pools with extensible datasets store the time of the last snapshot change; other pools keep it in
/// memory.
pub fn of_dataset(recorded: &Properties, found: &Properties, is_extensible: bool) -> Vec<String> {
    compare(recorded, found, |name| match name {
        "snapshots_changed" if !is_extensible => Rule::Ignored,
        "mounted" => Rule::Ignored,
        "receive_resume_token" => Rule::Token,
        "clones" | "redact_snaps" => Rule::SameSet,
        "compressratio" | "refcompressratio" => Rule::CloseRatio,
        "used" | "available" | "referenced" | "written" | "logicalused" | "logicalreferenced" => {
            Rule::Close
        }
        name if name.starts_with("usedby") || name.starts_with("written@") => Rule::Close,
        _ => Rule::Equal,
    })
}

/// Differences between a pool's properties and the recorded ones.
pub fn of_pool(recorded: &Properties, found: &Properties) -> Vec<String> {
    // A read-only import by the kernel does not compute the allocated space.
    let is_uncounted = recorded
        .get("allocated")
        .is_some_and(|(value, _)| value == "0");
    let mut found = found.clone();
    // Features that are newer than the recording release are not in the record.
    found.retain(|name, (value, _)| {
        recorded.contains_key(name) || !name.starts_with("feature@") || value != "disabled"
    });
    compare(recorded, &found, |name| match name {
        "allocated" | "free" if is_uncounted => Rule::Ignored,
        "dedupratio" | "bcloneratio" => Rule::CloseRatio,
        "size" | "allocated" | "free" | "bcloneused" | "bclonesaved" | "dedup_table_size" => {
            Rule::Close
        }
        // Specific to the import, or different in each transaction group.
        "altroot" | "cachefile" | "readonly" | "health" | "load_guid" | "capacity"
        | "fragmentation" | "freeing" | "leaked" | "expandsize" | "checkpoint" | "dedupused"
        | "dedupsaved" => Rule::Ignored,
        _ => Rule::Equal,
    })
}

fn compare(recorded: &Properties, found: &Properties, rule: impl Fn(&str) -> Rule) -> Vec<String> {
    let mut differences = Vec::new();
    for (name, (value, source)) in recorded {
        let rule = rule(name);
        // Values set temporarily by a mount option or a read-only import are not stored in the pool.
        if rule == Rule::Ignored || source == "temporary" {
            continue;
        }
        let Some((found_value, found_source)) = found.get(name) else {
            differences.push(format!("property {name} is missing; it should be {value}"));
            continue;
        };
        let is_same = match rule {
            Rule::Equal | Rule::Ignored => value == found_value,
            Rule::Token => token_shape(value) == token_shape(found_value),
            Rule::SameSet => sorted(value) == sorted(found_value),
            Rule::Close => is_close(value, found_value, 0.1, CLOSE_BYTES),
            Rule::CloseRatio => is_close(value, found_value, 0.1, 0.05),
        };
        if !is_same {
            differences.push(format!("property {name} is {found_value}, not {value}"));
        } else if source != found_source {
            differences.push(format!(
                "property {name} comes from {found_source}, not {source}"
            ));
        }
    }
    for name in found.keys().filter(|name| !recorded.contains_key(*name)) {
        if rule(name) != Rule::Ignored {
            differences.push(format!("property {name} should not be listed"));
        }
    }
    differences
}

/// Version and uncompressed length of a token `VERSION-CHECKSUM-LENGTH-CONTENT`.
fn token_shape(token: &str) -> Option<(&str, &str)> {
    let mut parts = token.split('-');
    Some((parts.next()?, parts.nth(1)?))
}

fn sorted(list: &str) -> Vec<&str> {
    let mut items: Vec<&str> = list.split(',').collect();
    items.sort_unstable();
    items
}

/// Whether two numbers differ by at most the fraction `part` of the larger one, or by at most `much`.
fn is_close(a: &str, b: &str, part: f64, much: f64) -> bool {
    if a == b {
        return true;
    }
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => (a - b).abs() <= (a.abs().max(b.abs()) * part).max(much),
        _ => false,
    }
}

/// The metadata of a few transaction groups.
const CLOSE_BYTES: f64 = 1_048_576.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(list: &[(&str, &str, &str)]) -> Properties {
        list.iter()
            .map(|(name, value, source)| {
                (
                    (*name).to_owned(),
                    ((*value).to_owned(), (*source).to_owned()),
                )
            })
            .collect()
    }

    #[test]
    fn values_must_be_equal_and_space_values_close() {
        let recorded = properties(&[
            ("quota", "1", "local"),
            ("used", "10000000", "-"),
            ("mounted", "yes", "-"),
            ("clones", "a,b", "-"),
        ]);
        let equal = properties(&[
            ("quota", "1", "local"),
            ("used", "10500000", "-"),
            ("mounted", "no", "-"),
            ("clones", "b,a", "-"),
        ]);
        assert!(of_dataset(&recorded, &equal, true).is_empty());
        for (changed, count) in [
            (("quota", "2", "local"), 1),
            (("quota", "1", "default"), 1),
            (("used", "20000000", "-"), 1),
            (("clones", "a", "-"), 1),
            (("extra", "1", "-"), 1),
        ] {
            let mut found = equal.clone();
            found.extend(properties(&[changed]));
            assert_eq!(
                of_dataset(&recorded, &found, true).len(),
                count,
                "{changed:?}"
            );
        }
        let mut found = equal.clone();
        found.remove("quota");
        assert_eq!(of_dataset(&recorded, &found, true).len(), 1);
    }
}
