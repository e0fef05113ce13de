//! Checks the licences of dependencies against the list in `deny.toml`.
//!
//! `make lint` runs `cargo deny`, which checks more, where it is installed. This check needs no installed tool
//! and reads the same list, so that every test run detects a licence that is not allowed.

use crate::Report;
use crate::metadata::Package;
use anyhow::{Context, Result, ensure};
use spdx::{Expression, ParseMode};
use std::path::Path;

/// Checks every package against `deny.toml`.
///
/// # Errors
/// If `deny.toml` cannot be read or contains no list.
pub fn check(root: &Path, packages: &[Package]) -> Result<Report> {
    let path = root.join("deny.toml");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let allowed = allowed_in(&text)?;
    let mut report = Report {
        examined: packages.len(),
        ..Report::default()
    };
    for package in packages {
        let Package {
            name,
            version,
            licence,
            ..
        } = package;
        match licence
            .as_deref()
            .map(|expression| is_allowed(expression, &allowed))
        {
            Some(Ok(true)) => {}
            Some(Ok(false)) => report.errors.push(format!(
                "{name} {version}: {} is not on the list in deny.toml",
                licence.as_deref().unwrap_or_default()
            )),
            Some(Err(error)) => report.errors.push(format!("{name} {version}: {error:#}")),
            None => report
                .errors
                .push(format!("{name} {version} states no licence")),
        }
    }
    Ok(report)
}

/// The strings of `allow = [ … ]` in the section `[licenses]`.
fn allowed_in(deny: &str) -> Result<Vec<String>> {
    let section = deny
        .split("[licenses]")
        .nth(1)
        .context("deny.toml has no [licenses]")?;
    let list = section
        .split("allow = [")
        .nth(1)
        .context("deny.toml has no allow list")?;
    let list = list.split(']').next().unwrap_or_default();
    let allowed: Vec<String> = list
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default())
        .flat_map(|line| line.split(','))
        .map(|item| item.trim().trim_matches('"').to_owned())
        .filter(|item| !item.is_empty())
        .collect();
    ensure!(!allowed.is_empty(), "deny.toml allows nothing");
    Ok(allowed)
}

/// Whether the allowed licences satisfy an SPDX expression. Before SPDX expressions, packages wrote OR as a
/// slash; that is accepted too.
fn is_allowed(expression: &str, allowed: &[String]) -> Result<bool> {
    let expression = Expression::parse_mode(expression, ParseMode::LAX)?;
    Ok(expression.evaluate(|licence| allowed.contains(&licence.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(expression: &str) -> bool {
        let allowed = [
            "MIT",
            "Apache-2.0",
            "Apache-2.0 WITH LLVM-exception",
            "Unicode-3.0",
        ]
        .map(str::to_owned);
        is_allowed(expression, &allowed).unwrap()
    }

    #[test]
    fn one_allowed_side_of_an_or_is_enough_and_an_and_needs_both() {
        assert!(verdict("MIT OR Apache-2.0"));
        assert!(verdict("GPL-2.0-only OR MIT"));
        assert!(verdict("MIT/Apache-2.0"));
        assert!(verdict("(MIT OR Apache-2.0) AND Unicode-3.0"));
        assert!(verdict("Apache-2.0 WITH LLVM-exception OR GPL-3.0-only"));
        assert!(!verdict("GPL-2.0-only"));
        assert!(!verdict("CDDL-1.0"));
        assert!(!verdict("MIT AND GPL-2.0-only"));
        assert!(!verdict("(MIT AND CDDL-1.0) OR GPL-2.0-or-later"));
    }

    #[test]
    fn an_expression_that_cannot_be_read_is_an_error() {
        assert!(is_allowed("(MIT", &["MIT".to_owned()]).is_err());
        assert!(is_allowed("MIT Apache-2.0", &["MIT".to_owned()]).is_err());
        assert!(is_allowed("", &["MIT".to_owned()]).is_err());
    }

    #[test]
    fn the_list_is_read_from_deny_toml() {
        let deny = "[graph]\n[licenses]\n# why\nallow = [\n  \"MIT\", # short\n  \"ISC\",\n]\n";
        assert_eq!(allowed_in(deny).unwrap(), ["MIT", "ISC"]);
        assert!(allowed_in("[licenses]\nallow = []\n").is_err());
    }
}
