//! Checks the direction of dependencies.

use crate::Report;
use crate::folders;
use crate::metadata::Package;
use std::collections::{BTreeMap, BTreeSet};

/// Checks the members of the workspace.
pub fn check(packages: &[Package]) -> Report {
    let mut report = Report::default();
    let local: BTreeMap<&str, &Package> = packages
        .iter()
        .map(|package| (package.name.as_str(), package))
        .collect();
    for package in packages {
        report.examined += 1;
        let Some(level) = level(&package.folder) else {
            report.errors.push(format!(
                "{} lies in no known folder: {}",
                package.name, package.folder
            ));
            continue;
        };
        if !package.inherits_lints {
            report.errors.push(format!(
                "{}/Cargo.toml does not say `[lints] workspace = true`",
                package.folder
            ));
        }
        for dependency in &package.dependencies {
            report.examined += 1;
            if !dependency.is_local {
                check_outside(
                    package,
                    dependency.is_for_tests,
                    &dependency.name,
                    &mut report,
                );
                continue;
            }
            let Some(target) = local.get(dependency.name.as_str()) else {
                report
                    .errors
                    .push(format!("{} uses unknown {}", package.name, dependency.name));
                continue;
            };
            // The programs are tested on golden pools, which the harness unpacks.
            let is_harness = folders::is_in(&target.folder, "tests");
            if dependency.is_for_tests && is_harness && folders::is_in(&package.folder, "apps") {
                continue;
            }
            match self::level(&target.folder) {
                Some(below) if below <= level && is_usable(&target.folder) => {
                    if !dependency.is_for_tests && !may_app_use(&package.folder, &target.folder) {
                        report.errors.push(format!(
                            "{} ({}) reaches past the admin layer to {} ({})",
                            package.name, package.folder, target.name, target.folder
                        ));
                    }
                }
                _ => report.errors.push(format!(
                    "{} ({}) depends upwards on {} ({})",
                    package.name, package.folder, target.name, target.folder
                )),
            }
        }
    }
    for name in local.keys() {
        if let Some(cycle) = cycle_from(name, &local) {
            report
                .errors
                .push(format!("a cycle: {}", cycle.join(" → ")));
            break;
        }
    }
    report
}

fn check_outside(package: &Package, is_for_tests: bool, name: &str, report: &mut Report) {
    let is_pure = folders::PURE
        .iter()
        .any(|prefix| folders::is_in(&package.folder, prefix));
    let is_allowed = folders::PURE_MAY_USE.contains(&name)
        || folders::PURE_EXCEPTIONS.contains(&(package.name.as_str(), name));
    if is_pure && !is_for_tests && !is_allowed {
        report.errors.push(format!(
            "{} is pure, and {name} is not on the list of what pure crates may use",
            package.name
        ));
    }
}

/// The layer of a folder; folders outside the product are above all layers.
fn level(folder: &str) -> Option<usize> {
    if folders::OUTSIDE
        .iter()
        .any(|prefix| folders::is_in(folder, prefix))
    {
        return Some(folders::LAYERS.len());
    }
    folders::LAYERS
        .iter()
        .position(|prefix| folders::is_in(folder, prefix))
}

/// Whether a package may use a folder, as far as it is a program.
fn may_app_use(folder: &str, target: &str) -> bool {
    !folders::is_in(folder, "apps")
        || folders::APPS_MAY_USE
            .iter()
            .any(|prefix| folders::is_in(target, prefix))
}

fn is_usable(folder: &str) -> bool {
    !folders::OUTSIDE.iter().any(|prefix| folders::is_in(folder, prefix))
        // The outside crates share the fuzz targets and the harness.
        || folders::is_in(folder, "fuzz")
        || folders::is_in(folder, "tests")
}

fn cycle_from<'a>(start: &'a str, local: &BTreeMap<&'a str, &'a Package>) -> Option<Vec<&'a str>> {
    fn visit<'a>(
        name: &'a str,
        start: &str,
        local: &BTreeMap<&'a str, &'a Package>,
        seen: &mut BTreeSet<&'a str>,
        way: &mut Vec<&'a str>,
    ) -> bool {
        way.push(name);
        for dependency in local
            .get(name)
            .into_iter()
            .flat_map(|package| &package.dependencies)
        {
            if dependency.name == start {
                way.push(&dependency.name);
                return true;
            }
            if local.contains_key(dependency.name.as_str())
                && seen.insert(&dependency.name)
                && visit(&dependency.name, start, local, seen, way)
            {
                return true;
            }
        }
        way.pop();
        false
    }
    let mut way = Vec::new();
    visit(start, start, local, &mut BTreeSet::new(), &mut way).then_some(way)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Dependency;

    fn package(name: &str, folder: &str, uses: &[(&str, bool)]) -> Package {
        Package {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            folder: folder.to_owned(),
            licence: None,
            dependencies: uses
                .iter()
                .map(|(name, is_local)| Dependency {
                    name: (*name).to_owned(),
                    is_for_tests: false,
                    is_local: *is_local,
                })
                .collect(),
            inherits_lints: true,
        }
    }

    #[test]
    fn a_crate_that_uses_a_higher_one_is_found() {
        let report = check(&[
            package("low", "crates/format/low", &[("high", true)]),
            package("high", "crates/pool/high", &[]),
        ]);
        assert_eq!(
            report.errors,
            ["low (crates/format/low) depends upwards on high (crates/pool/high)"]
        );
    }

    #[test]
    fn two_crates_of_one_folder_that_use_each_other_are_found() {
        let report = check(&[
            package("a", "crates/pool/a", &[("b", true)]),
            package("b", "crates/pool/b", &[("a", true)]),
        ]);
        assert_eq!(report.errors, ["a cycle: a → b → a"]);
    }

    #[test]
    fn a_pure_crate_that_uses_a_library_not_on_the_list_is_found() {
        let report = check(&[package("low", "crates/codec/low", &[("tokio", false)])]);
        assert_eq!(report.errors.len(), 1);
        assert!(report.errors[0].contains("tokio"));
        // An exception holds for its own crate only.
        let exception = |name| check(&[package(name, "crates/codec/x", &[("memmap2", false)])]);
        assert_eq!(exception("millpond-crypt").errors, Vec::<String>::new());
        assert_eq!(exception("millpond-parity").errors.len(), 1);
        assert!(
            check(&[package("up", "crates/serve/up", &[("tokio", false)])])
                .errors
                .is_empty()
        );
    }

    #[test]
    fn a_program_that_reaches_past_the_admin_layer_is_found() {
        let packages = [
            package(
                "app",
                "apps/app",
                &[("service", true), ("pool", true), ("env", true)],
            ),
            package("service", "crates/admin/service", &[("pool", true)]),
            package("pool", "crates/pool/pool", &[("env", true)]),
            package("env", "crates/machine/env", &[]),
        ];
        let expected = ["app (apps/app) reaches past the admin layer to pool (crates/pool/pool)"];
        assert_eq!(check(&packages).errors, expected);
    }

    #[test]
    fn the_tests_of_a_program_may_use_the_harness() {
        let mut app = package("app", "apps/app", &[("harness", true)]);
        app.dependencies[0].is_for_tests = true;
        let report = check(&[app, package("harness", "tests", &[])]);
        assert_eq!(report.errors, Vec::<String>::new());
        let mut lower = package("lower", "crates/pool/pool", &[("harness", true)]);
        lower.dependencies[0].is_for_tests = true;
        let report = check(&[lower, package("harness", "tests", &[])]);
        assert_eq!(report.errors.len(), 1);
    }

    #[test]
    fn product_crates_may_not_use_the_tests() {
        let report = check(&[
            package("app", "apps/app", &[("harness", true)]),
            package("harness", "tests", &[]),
        ]);
        assert_eq!(report.errors.len(), 1);
    }
}
