//! Words that comments and pages must not use.
//!
//! They belong to a mannered style that readers stumble over. `docs/glossary.md` has the project's terms, and
//! `CONTRIBUTING.md` says how sentences should read.

use crate::Report;

/// Phrases that are errors wherever they stand as whole words.
const DENIED: [&str; 26] = [
    "whoever",
    "whichever",
    "somebody",
    "anybody",
    "everybody",
    "so many",
    "goes on",
    "went on",
    "go on with",
    "may be had",
    "can be had",
    "to be had",
    "was had",
    "knows nothing",
    "must not know",
    "gives back",
    "given back",
    "errand",
    "dawdle",
    "had better",
    "lies behind",
    "stands for itself",
    "as it stands",
    "let go",
    "lets go",
    "called back",
];

/// Checks the comments of a Rust file, or the whole of a page.
pub fn check(path: &str, text: &str, report: &mut Report) {
    // A record of the past keeps its words, and this file lists them.
    if matches!(path, "CHANGELOG.md" | "xtask/src/words.rs") {
        return;
    }
    let is_rust = path.ends_with(".rs");
    if !is_rust && !path.ends_with(".md") {
        return;
    }
    for (number, line) in text.lines().enumerate() {
        if is_rust && !line.trim_start().starts_with("//") {
            continue;
        }
        if let Some(phrase) = denied(line) {
            report.errors.push(format!(
                "{path}:{}: {phrase:?}: say it in plain words (CONTRIBUTING.md, \"Style\")",
                number + 1
            ));
        }
    }
}

/// The first denied phrase in a line. Parts of identifiers do not count.
fn denied(line: &str) -> Option<&'static str> {
    let lower = line.to_lowercase();
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '`');
    DENIED.into_iter().find(|phrase| {
        lower.match_indices(phrase).any(|(at, found)| {
            let (before, after) = (&lower[..at], &lower[at + found.len()..]);
            !before.ends_with(is_part) && !after.starts_with(is_part)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_of_comments_and_pages_are_denied() {
        assert_eq!(denied("Whoever waits, reads."), Some("whoever"));
        assert_eq!(denied("the file lets go."), Some("lets go"));
        assert_eq!(denied("`whoever` and whoever_else"), None);
        let mut report = Report::default();
        let code = "let somebody = 1;\n// somebody reads\n";
        check("crates/x/src/lib.rs", code, &mut report);
        check("docs/page.md", "everybody\n", &mut report);
        check("CHANGELOG.md", "everybody\n", &mut report);
        check("data.txt", "everybody\n", &mut report);
        assert_eq!(report.errors.len(), 2, "{:?}", report.errors);
        assert!(report.errors[0].starts_with("crates/x/src/lib.rs:2: \"somebody\""));
    }
}
