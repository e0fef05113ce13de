//! The text files of the repository, and a splitter of Rust files into code and comments.

use anyhow::{Context, Result};
use std::path::Path;

/// A text file of the repository.
#[derive(Debug, Clone)]
pub struct TextFile {
    /// Path relative to the workspace, with slashes.
    pub path: String,
    /// Its content.
    pub text: String,
}

/// One line of a Rust file, split.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line {
    /// The code; strings are emptied.
    pub code: String,
    /// The comments.
    pub comment: String,
}

/// Every text file of the workspace except build results, caches and golden data.
///
/// # Errors
/// If a directory or file cannot be read.
pub fn text_files(root: &Path) -> Result<Vec<TextFile>> {
    let mut files = Vec::new();
    collect(root, "", &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn collect(root: &Path, inside: &str, files: &mut Vec<TextFile>) -> Result<()> {
    let folder = root.join(inside);
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if inside.is_empty() {
            name.clone()
        } else {
            format!("{inside}/{name}")
        };
        let kind = entry.file_type()?;
        if kind.is_dir() {
            if !NOT_LOOKED_INTO.contains(&name.as_str()) {
                collect(root, &path, files)?;
            }
        } else if kind.is_file() && is_text(&name) {
            // A file that is not UTF-8 is data, not text.
            if let Ok(text) = std::fs::read_to_string(entry.path()) {
                files.push(TextFile { path, text });
            }
        }
    }
    Ok(())
}

fn is_text(name: &str) -> bool {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending);
    matches!(
        ending,
        None | Some("rs" | "md" | "toml" | "sh" | "txt" | "yml" | "yaml" | "py")
    )
}

/// Splits Rust source into lines of code and comment, as far as the checks require.
///
/// It recognizes both kinds of comments (nested), strings (also raw ones) and characters.
pub fn lines(text: &str) -> Vec<Line> {
    let bytes: Vec<char> = text.chars().collect();
    let mut lines = vec![Line::default()];
    let mut state = State::Code;
    let mut at = 0;
    while let Some(&now) = bytes.get(at) {
        let next = bytes.get(at + 1).copied().unwrap_or(' ');
        if now == '\n' {
            if state == State::LineComment {
                state = State::Code;
            }
            lines.push(Line::default());
            at += 1;
            continue;
        }
        let Some(line) = lines.last_mut() else { break };
        let mut step = 1;
        match state {
            State::Code => match (now, next) {
                ('/', '/') => state = State::LineComment,
                ('/', '*') => (state, step) = (State::BlockComment(1), 2),
                ('"', _) => {
                    (state, line.code) = (
                        State::Text(raw_hashes(&line.code)),
                        line.code.clone() + "\"",
                    )
                }
                ('\'', _) => {
                    // A character, or a lifetime, which has no closing quote.
                    step = character_length(&bytes[at..]);
                    line.code.push('\'');
                }
                _ => line.code.push(now),
            },
            State::LineComment => line.comment.push(now),
            State::BlockComment(depth) => match (now, next) {
                ('*', '/') if depth == 1 => (state, step) = (State::Code, 2),
                ('*', '/') => (state, step) = (State::BlockComment(depth - 1), 2),
                ('/', '*') => (state, step) = (State::BlockComment(depth + 1), 2),
                _ => line.comment.push(now),
            },
            State::Text(None) => match now {
                '\\' if next != '\n' => step = 2,
                '"' => (state, line.code) = (State::Code, line.code.clone() + "\""),
                _ => {}
            },
            State::Text(Some(hashes)) => {
                let closes = now == '"'
                    && bytes[at + 1..]
                        .iter()
                        .take(hashes)
                        .filter(|c| **c == '#')
                        .count()
                        == hashes;
                if closes {
                    (state, step) = (State::Code, 1 + hashes);
                    line.code.push('"');
                }
            }
        }
        at += step;
    }
    lines
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Code,
    LineComment,
    BlockComment(u32),
    /// A string; for a raw one, its number of hashes.
    Text(Option<usize>),
}

/// Whether the code before a quote makes it a raw string, and its number of hashes.
fn raw_hashes(code: &str) -> Option<usize> {
    let before = code.trim_end_matches('#');
    let prefix = before.strip_suffix('r')?;
    let prefix = prefix.strip_suffix(['b', 'c']).unwrap_or(prefix);
    let is_word = prefix.ends_with(|c: char| c.is_alphanumeric() || c == '_');
    (!is_word).then(|| code.len() - before.len())
}

/// The length of a character literal with its quotes; 1 for a lifetime.
fn character_length(rest: &[char]) -> usize {
    match rest {
        [_, '\\', ..] => rest
            .iter()
            .skip(3)
            .take(12)
            .position(|c| *c == '\'')
            .map_or(1, |end| end + 4),
        [_, _, '\'', ..] => 3,
        _ => 1,
    }
}

/// Whether `code` contains `word` as a whole word.
pub fn has_word(code: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        !code[..at].ends_with(is_part) && !code[at + word.len()..].starts_with(is_part)
    })
}

const NOT_LOOKED_INTO: [&str; 7] = [
    ".git",
    "target",
    ".cache",
    "testdata",
    "corpus",
    "artifacts",
    "crashes",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Vec<String> {
        lines(text).into_iter().map(|line| line.code).collect()
    }

    #[test]
    fn comments_and_strings_are_no_code() {
        assert_eq!(code("let a = 1; // unsafe"), ["let a = 1; "]);
        assert_eq!(code("a /* x /* y */ z */ b"), ["a  b"]);
        assert_eq!(code(r#"print("un\"safe"); x"#), [r#"print(""); x"#]);
        assert_eq!(code("r#\"a \" b\"#; c"), ["r#\"\"; c"]);
        assert_eq!(code("let c = '\"'; d"), ["let c = '; d"]);
        assert_eq!(code("let c = '\\''; d"), ["let c = '; d"]);
        assert_eq!(code("fn f<'a>(x: &'a str) {}"), ["fn f<'a>(x: &'a str) {}"]);
        assert_eq!(code("b\"x\\\\\"; y"), ["b\"\"; y"]);
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("unsafe {", "unsafe"));
        assert!(!has_word("deny(unsafe_code)", "unsafe"));
        assert!(!has_word("eprintln!()", "println"));
    }
}
