//! Checks rules of the source that reviewers would otherwise have to check.

use crate::Report;
use crate::folders;
use crate::source::{self, Line, has_word};
use crate::words;
use anyhow::Result;
use std::path::Path;

/// Files longer than this (without tests) cause a warning.
const LINES_MAX: usize = 600;

/// Maximum distance of the reason above `unsafe`, in lines.
const REASON_WITHIN_LINES: usize = 12;

/// Checks every text file of the workspace.
///
/// # Errors
/// If files cannot be read.
pub fn check(root: &Path) -> Result<Report> {
    let mut report = Report::default();
    for file in source::text_files(root)? {
        report.examined += 1;
        words::check(&file.path, &file.text, &mut report);
        if file.path.ends_with(".rs") {
            check_rust(&file.path, &file.text, &mut report);
        }
    }
    Ok(report)
}

fn check_rust(path: &str, text: &str, report: &mut Report) {
    let lines = source::lines(text);
    let tests_begin = first_line_of_tests(path, &lines);
    if tests_begin > LINES_MAX {
        report.warnings.push(format!(
            "{path} has {tests_begin} lines; look for the second idea"
        ));
    }
    check_root(path, &lines, report);
    check_unsafe(path, &lines, report);
    let product = lines.get(..tests_begin).unwrap_or(&lines);
    check_environment(path, product, report);
    check_talking(path, product, report);
    check_async(path, &lines, report);
}

/// The first line of a file's tests.
///
/// Tests are at the end of a file, so everything from the first `#[cfg(test)]` followed by a module counts
/// as tests.
pub(crate) fn first_line_of_tests(path: &str, lines: &[Line]) -> usize {
    let name = path.rsplit('/').next().unwrap_or(path);
    if path.contains("/tests/")
        || path.contains("/benches/")
        || matches!(name, "tests.rs" | "build.rs")
    {
        return 0;
    }
    lines
        .windows(2)
        .position(|pair| match pair {
            [first, second] => {
                first.code.trim() == "#[cfg(test)]"
                    && (second.code.contains("mod ") && second.code.contains('{')
                        || second.code.trim().starts_with("#["))
            }
            _ => false,
        })
        .unwrap_or(lines.len())
}

/// Every crate root must forbid `unsafe`, or deny it except in its permitted module.
fn check_root(path: &str, lines: &[Line], report: &mut Report) {
    if !path.ends_with("/src/lib.rs") && !path.ends_with("/src/main.rs") {
        return;
    }
    // A reserved crate is still empty.
    if lines.iter().all(|line| line.code.trim().is_empty()) {
        return;
    }
    let may_have_unsafe = folders::UNSAFE_PATHS.iter().any(|folder| {
        path.rsplit_once('/')
            .is_some_and(|(src, _)| folders::is_in(folder, src))
    });
    let has = |attribute: &str| lines.iter().any(|line| line.code.contains(attribute));
    if !(has("#![forbid(unsafe_code)]") || may_have_unsafe && has("#![deny(unsafe_code)]")) {
        report
            .errors
            .push(format!("{path} does not say #![forbid(unsafe_code)]"));
    }
}

fn check_unsafe(path: &str, lines: &[Line], report: &mut Report) {
    for (number, line) in lines.iter().enumerate() {
        let allows = line.code.contains("allow(unsafe_code)");
        if !has_word(&line.code, "unsafe") && !allows {
            continue;
        }
        let at = format!("{path}:{}", number + 1);
        if !folders::UNSAFE_PATHS
            .iter()
            .any(|folder| folders::is_in(path, folder))
        {
            // The crate root may permit `unsafe` in its module.
            let opens_unsafe = allows
                && folders::UNSAFE_PATHS.iter().any(|folder| {
                    path.rsplit_once('/')
                        .is_some_and(|(src, _)| folders::is_in(folder, src))
                });
            if !opens_unsafe {
                report
                    .errors
                    .push(format!("{at}: unsafe outside the modules named for it"));
            }
            continue;
        }
        if !allows && !has_reason(lines, number) {
            report
                .errors
                .push(format!("{at}: unsafe without its // SAFETY: comment"));
        }
    }
}

fn has_reason(lines: &[Line], number: usize) -> bool {
    let first = number.saturating_sub(REASON_WITHIN_LINES);
    lines
        .get(first..=number)
        .into_iter()
        .flatten()
        .any(|line| line.comment.contains("SAFETY:") || line.comment.contains("# Safety"))
}

/// Locks, threads, time and randomness must come from one crate, so that a simulator can replace it.
fn check_environment(path: &str, lines: &[Line], report: &mut Report) {
    let is_outside = folders::OUTSIDE
        .iter()
        .any(|folder| folders::is_in(path, folder));
    let is_example = folders::is_in(path, folders::EXAMPLES);
    if folders::is_in(path, folders::ENVIRONMENT) || is_outside || is_example {
        return;
    }
    // Times of files are this type in the interface for programs. Nothing there asks for the current time.
    let is_interface =
        |word: &str| word == "SystemTime" && folders::is_in(path, folders::INTERFACE);
    for (number, statement) in statements(lines) {
        let found = if statement.contains("std::") || statement.contains("core::") {
            FROM_STD.iter().find(|word| has_word(&statement, word))
        } else {
            None
        };
        let found = found.or_else(|| PACKAGES.iter().find(|word| has_word(&statement, word)));
        if let Some(word) = found.filter(|word| !is_interface(word)) {
            report
                .errors
                .push(format!("{path}:{number}: {word} belongs to millpond_env"));
        }
    }
}

/// Code that names items of `std`: whole `use` statements and single lines, with line numbers.
fn statements(lines: &[Line]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in lines.iter().enumerate() {
        let code = line.code.trim();
        match &mut open {
            Some((_, statement)) => {
                statement.push(' ');
                statement.push_str(code);
            }
            None if code.starts_with("use ") || code.starts_with("pub use ") => {
                open = Some((number + 1, code.to_owned()));
            }
            None => found.push((number + 1, only_std_paths(code))),
        }
        if let Some(statement) = open.take_if(|(_, statement)| statement.contains(';')) {
            found.push(statement);
        }
    }
    found
}

/// The paths of a line that start with `std::`, and the names of packages.
///
/// Without this filter, `millpond_env::sync::Mutex` on the same line would count as part of std.
fn only_std_paths(code: &str) -> String {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
        .filter(|path| {
            path.starts_with("std::")
                || path.starts_with("core::")
                || PACKAGES.iter().any(|package| path.starts_with(package))
        })
        .collect::<Vec<_>>()
        .join(" ")
}

fn check_talking(path: &str, lines: &[Line], report: &mut Report) {
    let is_example = folders::is_in(path, folders::EXAMPLES);
    if is_example
        || folders::TALKING
            .iter()
            .any(|folder| folders::is_in(path, folder))
    {
        return;
    }
    for (number, line) in lines.iter().enumerate() {
        if let Some(word) = PRINTING.iter().find(|word| has_word(&line.code, word)) {
            report
                .errors
                .push(format!("{path}:{}: {word} in a library", number + 1));
        }
    }
}

/// The engine is threads; a runtime stays at the edge.
fn check_async(path: &str, lines: &[Line], report: &mut Report) {
    if folders::is_in(path, folders::ASYNC) {
        return;
    }
    for (number, line) in lines.iter().enumerate() {
        if let Some(word) = ASYNC_WORDS.iter().find(|word| has_word(&line.code, word)) {
            report.errors.push(format!(
                "{path}:{}: {word} outside {}",
                number + 1,
                folders::ASYNC
            ));
        }
    }
}

const ASYNC_WORDS: [&str; 5] = ["async", "await", "axum", "hyper", "tokio"];
const FROM_STD: [&str; 9] = [
    "Instant",
    "SystemTime",
    "UNIX_EPOCH",
    "thread",
    "Mutex",
    "RwLock",
    "Condvar",
    "Barrier",
    "mpsc",
];
const PACKAGES: [&str; 4] = ["parking_lot", "crossbeam_channel", "rand", "getrandom"];
const PRINTING: [&str; 4] = ["println!", "eprintln!", "print!", "eprint!"];

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(path: &str, text: &str) -> Vec<String> {
        let mut report = Report::default();
        check_rust(path, text, &mut report);
        report.errors
    }

    #[test]
    fn unsafe_is_found_outside_its_modules_and_without_a_reason() {
        let text = "fn f() { unsafe { g() } }\n";
        assert_eq!(errors("crates/pool/pool/src/a.rs", text).len(), 1);
        assert_eq!(errors("crates/codec/parity/src/simd/x86.rs", text).len(), 1);
        let reasoned = "// SAFETY: checked above\nfn f() { unsafe { g() } }\n";
        assert!(errors("crates/codec/parity/src/simd/x86.rs", reasoned).is_empty());
        assert!(
            errors(
                "crates/pool/pool/src/a.rs",
                "// unsafe\nlet a = \"unsafe\";\n"
            )
            .is_empty()
        );
    }

    #[test]
    fn clocks_threads_and_locks_are_found_however_they_are_named() {
        for text in [
            "use std::time::Instant;",
            "use std::{\n    fmt,\n    sync::{Arc, Mutex},\n};",
            "let a = std::thread::spawn(f);",
            "fn f(m: &std::sync::Mutex<u8>) {}",
            "use parking_lot::RwLock;",
            "let x: u8 = rand::random();",
        ] {
            assert_eq!(errors("crates/pool/pool/src/a.rs", text).len(), 1, "{text}");
            assert!(errors("crates/machine/env/src/real.rs", text).is_empty());
            let in_tests = format!("#[cfg(test)]\nmod tests {{\n{text}\n}}\n");
            assert!(errors("crates/pool/pool/src/a.rs", &in_tests).is_empty());
        }
        for text in [
            "use millpond_env::sync::Mutex;",
            "use std::sync::Arc;",
            "use std::time::Duration;",
            "let m: millpond_env::sync::Mutex<std::vec::Vec<u8>> = x;",
        ] {
            assert!(
                errors("crates/pool/pool/src/a.rs", text).is_empty(),
                "{text}"
            );
        }
    }

    #[test]
    fn printing_is_for_programs() {
        let text = "println!(\"x\");";
        assert_eq!(errors("crates/pool/pool/src/a.rs", text).len(), 1);
        assert!(errors("apps/millpond/src/a.rs", text).is_empty());
    }

    #[test]
    fn async_runtimes_are_allowed_only_in_their_folder() {
        for text in ["use tokio::net::TcpListener;", "async fn f() {}"] {
            assert_eq!(errors("crates/serve/rpc/src/a.rs", text).len(), 1);
            assert_eq!(errors("apps/millpondd/src/run.rs", text).len(), 1);
            assert!(errors("apps/millpondd/src/metrics/server.rs", text).is_empty());
        }
        assert!(errors("tests/a.rs", "let case = \"async-destroy\";").is_empty());
    }

    #[test]
    fn a_crate_head_must_forbid_unsafe() {
        assert_eq!(
            errors("crates/pool/pool/src/lib.rs", "pub fn f() {}").len(),
            1
        );
        assert!(errors("crates/pool/pool/src/lib.rs", "//! reserved\n").is_empty());
        assert!(
            errors(
                "crates/pool/pool/src/lib.rs",
                "#![forbid(unsafe_code)]\npub fn f() {}"
            )
            .is_empty()
        );
        assert!(
            errors(
                "crates/machine/device/src/lib.rs",
                "#![deny(unsafe_code)]\nfn f() {}"
            )
            .is_empty()
        );
        assert_eq!(
            errors(
                "crates/pool/pool/src/lib.rs",
                "#![deny(unsafe_code)]\nfn f() {}"
            )
            .len(),
            1
        );
    }
}
