//! Checks the fuzzer's own lock file, which no workspace build updates or verifies.
//!
//! `fuzz/` is not a member of the workspace, because it is built with its own instrumentation, but its
//! targets are. A new dependency of a crate below the targets must also be in `fuzz/Cargo.lock`. Otherwise
//! `make fuzz`, which rarely runs, fails to build.

use crate::Report;
use crate::metadata::Package;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const TARGETS: &str = "millpond-fuzz-targets";

/// Checks that the lock file contains every crate that the fuzz targets use, with all its dependencies.
///
/// # Errors
/// If the lock file cannot be read.
pub fn check(root: &Path, packages: &[Package]) -> Result<Report> {
    let path = root.join("fuzz/Cargo.lock");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(compare(&locked(&text), packages))
}

fn compare(locked: &BTreeMap<String, BTreeSet<String>>, packages: &[Package]) -> Report {
    let mut report = Report::default();
    let (mut known, mut open) = (BTreeSet::from([TARGETS]), vec![TARGETS]);
    while let Some(name) = open.pop() {
        report.examined += 1;
        let none = BTreeSet::new();
        let has = locked.get(name).unwrap_or(&none);
        let package = packages.iter().find(|package| package.name == name);
        for wanted in package
            .into_iter()
            .flat_map(|package| &package.dependencies)
        {
            if wanted.is_for_tests {
                continue;
            }
            if !has.contains(&wanted.name) {
                report.errors.push(format!(
                    "fuzz/Cargo.lock does not know that {name} uses {}: run `cargo update --workspace` in fuzz/",
                    wanted.name
                ));
            }
            // Dependencies of external packages are not checked.
            if wanted.is_local && known.insert(&wanted.name) {
                open.push(&wanted.name);
            }
        }
    }
    report
}

/// The dependencies of each package, by name.
fn locked(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut packages = BTreeMap::new();
    for part in text.split("[[package]]").skip(1) {
        let quoted = |line: &str| {
            let inner = line.split('"').nth(1).unwrap_or_default();
            // "name version" if there are several versions of the package.
            inner.split(' ').next().unwrap_or_default().to_owned()
        };
        let name = part.lines().find(|line| line.starts_with("name = "));
        let uses = part
            .lines()
            .filter(|line| line.starts_with(" \""))
            .map(quoted);
        packages.insert(name.map(quoted).unwrap_or_default(), uses.collect());
    }
    packages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Dependency;

    fn package(name: &str, uses: &[(&str, bool)]) -> Package {
        let uses = uses.iter().map(|(name, is_for_tests)| Dependency {
            name: (*name).to_owned(),
            is_for_tests: *is_for_tests,
            is_local: true,
        });
        Package {
            name: name.to_owned(),
            version: "1".into(),
            folder: String::new(),
            licence: None,
            dependencies: uses.collect(),
            inherits_lints: true,
        }
    }

    #[test]
    fn a_crate_missing_in_the_lock_file_is_found() {
        let lock = "[[package]]\nname = \"millpond-fuzz-targets\"\ndependencies = [\n \"a\",\n]\n\n[[package]]\nname = \"a\"\ndependencies = [\n \"b 1.0.0\",\n]\n";
        let targets = package(TARGETS, &[("a", false)]);
        let good = [targets.clone(), package("a", &[("b", false), ("t", true)])];
        assert!(compare(&locked(lock), &good).errors.is_empty());
        let more = [targets, package("a", &[("b", false), ("c", false)])];
        let errors = compare(&locked(lock), &more).errors;
        assert_eq!(errors.len(), 1);
        assert!(errors[0].contains("a uses c"), "{}", errors[0]);
    }
}
