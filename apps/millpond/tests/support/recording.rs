//! Recordings of the OpenZFS programs: commands and their output.

use super::Printed;
use serde_json::Value;
use std::path::PathBuf;

/// One recorded command.
#[derive(Debug, Clone)]
pub struct Recorded {
    pub command: String,
    pub note: String,
    pub printed: Printed,
}

/// The directory of golden pools: `MILLPOND_GOLDEN`, or the one next to the workspace.
pub fn golden() -> Option<PathBuf> {
    let folder = std::env::var_os("MILLPOND_GOLDEN").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden"),
        PathBuf::from,
    );
    if folder.is_dir() {
        return Some(folder);
    }
    println!(
        "no golden pools in {}: set MILLPOND_GOLDEN; passed over",
        folder.display()
    );
    None
}

/// Loads a recorded session. Returns `None`, with a message, if the set is absent.
///
/// A status that is not a number (a command that never ended) counts as 255.
pub fn session(name: &str) -> Option<Vec<Recorded>> {
    let file = golden()?.join("../golden-cli").join(name);
    let Ok(text) = std::fs::read_to_string(&file) else {
        println!("no recording {}; passed over", file.display());
        return None;
    };
    let Value::Array(entries) = serde_json::from_str(&text).expect("a recording is JSON") else {
        panic!("a recording is a list");
    };
    let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_string();
    Some(
        entries
            .iter()
            .map(|entry| Recorded {
                command: text(entry, "cmd"),
                note: text(entry, "note"),
                printed: Printed {
                    stdout: text(entry, "stdout"),
                    stderr: text(entry, "stderr"),
                    status: entry["rc"].as_u64().map_or(255, |n| n as u8),
                },
            })
            .collect(),
    )
}

/// The words of a command that uses no shell syntax except quotes; `None` for other commands.
pub fn words(command: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for letter in command.chars() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (None, '|' | ';' | '>' | '<' | '$' | '&' | '(' | '{' | '*' | '`' | '\\') => {
                return None;
            }
            (None, _) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    let is_ours = matches!(words.first().map(String::as_str), Some("zpool" | "zfs"));
    (is_ours && quote.is_none()).then_some(words)
}
