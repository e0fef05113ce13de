//! Checks coverage marks: a test must expect each marked rare branch, and each expected mark must exist.

use crate::Report;
use crate::source::text_files;
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::Path;

/// The source file that implements marks.
const OWN_FILE: &str = "crates/machine/env/src/mark.rs";

/// Compares the marks of the engine with those that tests expect.
///
/// # Errors
/// If the repository cannot be read.
pub fn check(root: &Path) -> Result<Report> {
    let mut report = Report::default();
    let mut hit: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut expected: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in text_files(root)? {
        let is_code = file.path.ends_with(".rs") && !file.path.starts_with("xtask/");
        if !is_code || file.path == OWN_FILE {
            continue;
        }
        for (call, names) in [("mark::hit(", &mut hit), ("mark::expect(", &mut expected)] {
            for name in names_after(&file.text, call) {
                names.entry(name).or_default().push(file.path.clone());
            }
        }
    }
    report.examined = hit.len();
    for (name, places) in &hit {
        if let [one, another, ..] = places.as_slice() {
            report
                .errors
                .push(format!("mark '{name}' stands twice: {one}, {another}"));
        }
        if !expected.contains_key(name) {
            let place = &places[0];
            report
                .errors
                .push(format!("{place}: no test expects the mark '{name}'"));
        }
    }
    for (name, places) in &expected {
        if !hit.contains_key(name) {
            let place = &places[0];
            report
                .errors
                .push(format!("{place}: nothing is marked '{name}'"));
        }
    }
    Ok(report)
}

/// The literal names passed to `call`.
fn names_after(text: &str, call: &str) -> Vec<String> {
    let calls = text.match_indices(call);
    let names = calls.filter_map(|(at, _)| {
        let literal = text[at + call.len()..].trim_start().strip_prefix('"')?;
        literal.split_once('"').map(|(name, _)| name.to_owned())
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_also_on_the_next_line() {
        let text = "mark::hit(\"a-b\"); x; mark::hit(\n    \"c\"); mark::hit(name)";
        assert_eq!(names_after(text, "mark::hit("), ["a-b", "c"]);
    }
}
