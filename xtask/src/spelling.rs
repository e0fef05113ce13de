//! Checks wording: the text describes the project, not the machine or the way it was written.

use crate::Report;

/// Checks one text file, line by line.
pub fn check(path: &str, text: &str, report: &mut Report) {
    for (number, line) in text.lines().enumerate() {
        let lower = line.to_lowercase();
        for reversed in BACKWARDS {
            let phrase: String = reversed.chars().rev().collect();
            if has_phrase(&lower, &phrase) {
                report.errors.push(format!(
                    "{path}:{}: {phrase:?} does not belong here",
                    number + 1
                ));
            }
        }
    }
}

/// Whether the line contains the phrase, not as a part of a longer word or path.
fn has_phrase(line: &str, phrase: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '$' | '}' | ')' | '-');
    line.match_indices(phrase).any(|(at, found)| {
        let rest = &line[at + found.len()..];
        let ends =
            phrase.ends_with('/') || !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        !line[..at].ends_with(is_part) && ends
    })
}

// Spelt backwards, so that this file passes its own check.
const BACKWARDS: [&str; 12] = [
    "/krow/",
    "/toor/",
    "tnega",
    "stnega",
    "tnegabus",
    "stnegabus",
    "tpircsnart noisses",
    "ledom egaugnal",
    "mll",
    "tpgtahc",
    "edualc",
    "toilpoc",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_are_found_as_whole_words_only() {
        let phrase: String = BACKWARDS[2].chars().rev().collect();
        assert!(has_phrase(&format!("an {phrase}, then"), &phrase));
        assert!(!has_phrase(&format!("re{phrase}"), &phrase));
        let path: String = BACKWARDS[0].chars().rev().collect();
        assert!(has_phrase(&format!("see {path}x"), &path));
        assert!(!has_phrase(&format!("target{path}x"), &path));
    }
}
