//! Checks the pages that the code cites, and links between documents.

use crate::Report;
use crate::source;
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::Path;

/// Checks that cited pages and linked files exist.
///
/// These are every `docs/format/….md` named in the source and every relative link of a document.
///
/// # Errors
/// If files cannot be read.
pub fn check(root: &Path) -> Result<Report> {
    let mut report = Report::default();
    // Each missing page once, with one of the places that name it.
    let mut missing: BTreeMap<String, String> = BTreeMap::new();
    for file in source::text_files(root)? {
        for (number, line) in file.text.lines().enumerate() {
            let at = format!("{}:{}", file.path, number + 1);
            let mut named = Vec::new();
            if file.path.ends_with(".rs") {
                named.extend(pages_named(line));
            } else if file.path.ends_with(".md") {
                let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
                named.extend(links(line).map(|link| format!("{folder}/{link}")));
            }
            for page in named {
                report.examined += 1;
                if !root.join(page.trim_start_matches('/')).exists() {
                    missing.entry(page).or_insert(at.clone());
                }
            }
        }
    }
    report.errors = missing
        .into_iter()
        .map(|(page, at)| {
            format!(
                "{at} names {}, which does not exist",
                page.trim_start_matches('/')
            )
        })
        .collect();
    Ok(report)
}

fn pages_named(line: &str) -> impl Iterator<Item = String> {
    line.match_indices(FOLDER).filter_map(|(at, _)| {
        let name = &line[at + FOLDER.len()..];
        let end = name
            .find(|c: char| !(c.is_alphanumeric() || c == '-'))
            .unwrap_or(name.len());
        let (name, rest) = name.split_at(end);
        (!name.is_empty() && rest.starts_with(".md")).then(|| format!("{FOLDER}{name}.md"))
    })
}

/// Targets of `[text](target)` inside the repository.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("](").filter_map(|(at, _)| {
        let target = line[at + 2..].split([')', '#', ' ']).next()?;
        let is_local =
            !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:");
        is_local.then_some(target)
    })
}

const FOLDER: &str = concat!("docs/", "format/");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_links_are_found() {
        let line = format!("/// See `{FOLDER}dnode.md` and {FOLDER}zap-leaf.md.");
        let pages: Vec<String> = pages_named(&line).collect();
        assert_eq!(
            pages,
            [format!("{FOLDER}dnode.md"), format!("{FOLDER}zap-leaf.md")]
        );
        let line = "[a](b.md) [c](https://x) [d](e.md#f) [g](#h)";
        assert_eq!(links(line).collect::<Vec<_>>(), ["b.md", "e.md"]);
    }
}
