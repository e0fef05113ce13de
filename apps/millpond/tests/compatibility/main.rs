//! COMPATIBILITY.md against the program: every name of OpenZFS 2.3 and 2.4 is on the page with what Millpond
//! does with it.
//!
//! `cargo xtask compatibility` (this test with `MILLPOND_COMPATIBILITY=write`) writes the page.

mod names;
mod page;
mod properties;

use millpond_ondisk::FEATURES;
use millpond_pool::properties::{table, vdev_table};
use names::{Section, Verdict, sections};
use page::Support;
use std::path::Path;
use std::process::{Command, Output};

#[test]
fn the_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../COMPATIBILITY.md");
    let page = page::page();
    if std::env::var("MILLPOND_COMPATIBILITY").is_ok_and(|word| word == "write") {
        std::fs::write(&path, page).unwrap();
        return;
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = written.lines().zip(page.lines()).find(|(a, b)| a != b);
    assert!(
        written == page,
        "COMPATIBILITY.md is out of date: run cargo xtask compatibility ({differs:?})"
    );
}

/// The names of a section.
fn named<'a>(all: &'a [Section], title: &str) -> Vec<&'a str> {
    let section = all.iter().find(|section| section.title.text == title);
    let section = section.unwrap_or_else(|| panic!("openzfs.txt has no [{title}]"));
    section.names.iter().map(|name| name.text).collect()
}

#[test]
fn every_command_and_option_is_on_the_page() {
    let all = sections();
    let mut absent = vec![];
    for (program, commands) in [
        ("zpool", millpond_cli::zpool::COMMANDS),
        ("zfs", millpond_cli::zfs::COMMANDS),
    ] {
        for command in commands {
            let title = format!("{program} {}", command.name);
            let names = named(&all, &title);
            let options = page::options(command);
            let unnamed = options
                .iter()
                .filter(|option| !names.contains(&option.as_str()));
            absent.extend(unnamed.map(|option| format!("{title} {option}")));
            let section = all.iter().find(|section| section.title.text == title);
            let alias = section.and_then(|section| section.alias);
            assert_eq!(command.aliases, alias.as_slice(), "{title}");
        }
    }
    let tables = [
        ("pool properties", table::POOL_PROPERTIES.as_slice()),
        ("vdev properties", vdev_table::VDEV_PROPERTIES.as_slice()),
    ];
    for (title, shapes) in tables {
        let names = named(&all, title);
        let unnamed = shapes.iter().filter(|shape| !names.contains(&shape.name));
        absent.extend(unnamed.map(|shape| format!("{title}: {}", shape.name)));
    }
    let names = named(&all, "dataset properties");
    for property in &millpond_dataset::properties::DATASET_PROPERTIES {
        if !names.contains(&property.shape.name) {
            absent.push(format!("dataset properties: {}", property.shape.name));
        }
    }
    let names = named(&all, "features");
    let unnamed = FEATURES
        .iter()
        .filter(|feature| !names.contains(&feature.guid));
    absent.extend(unnamed.map(|feature| feature.guid.to_owned()));
    assert!(absent.is_empty(), "not in openzfs.txt: {absent:#?}");
}

fn run(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millpond"))
        .args(["-d", "/nonexistent"])
        .args(words)
        .output()
        .unwrap()
}

#[test]
fn the_program_treats_each_option_as_the_page_states() {
    let mut wrong = vec![];
    for section in sections() {
        let Some((program @ ("zpool" | "zfs"), word)) = section.title.text.split_once(' ') else {
            continue;
        };
        let (own, options) = page::of_command(&section);
        for (support, name) in options {
            // The option's value or operands, with which the command gets far enough to refuse the option.
            let rest: &[&str] = match (word, name.text) {
                ("upgrade", "-V") => &["28"],
                _ => &["x", "y", "z"],
            };
            let words = [&[program, word, name.text], rest].concat();
            let message = String::from_utf8(run(&words).stderr).unwrap();
            let is_unknown =
                message.contains("invalid option '") || message.contains("unrecognized command");
            let is_refused = message.contains("not implemented yet");
            let is_as_told = match support {
                Support::Missing => is_unknown,
                Support::Refused if own == Support::Refused => !is_unknown,
                Support::Refused => is_refused,
                _ => !is_unknown && !is_refused,
            };
            if !is_as_told {
                wrong.push(format!(
                    "{} {}: {support:?}, {message}",
                    section.title.text, name.text
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_verdict_has_a_name_that_openzfs_has() {
    for section in sections() {
        for name in &section.names {
            let releases = ["2.3", "2.4", "later", "undocumented"];
            assert!(releases.contains(&name.release), "{name:?}");
            if let Some((Verdict::Partial, note)) = name.verdict {
                assert!(!note.is_empty(), "{name:?} does not say what is missing");
            }
        }
    }
}
