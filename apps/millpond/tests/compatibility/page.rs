//! The page: names with the program's answers.

use crate::names::{Name, Section, Verdict, sections};
use millpond_cli::command::{Command, Run};
use millpond_dataset::properties::{PropertyName, by_name};
use millpond_ondisk::{FEATURES, Feature, FeatureSupport};
use millpond_pool::properties::{table, vdev_table};
use std::collections::BTreeMap;
use std::fmt::Write;

/// What a reader of the page learns about a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Support {
    Full,
    Partial,
    ReadOnly,
    NoEffect,
    Refused,
    Missing,
}

impl Support {
    const ALL: [Support; 6] = [
        Support::Full,
        Support::Partial,
        Support::ReadOnly,
        Support::NoEffect,
        Support::Refused,
        Support::Missing,
    ];

    fn word(self) -> &'static str {
        match self {
            Support::Full => "full",
            Support::Partial => "partial",
            Support::ReadOnly => "read-only",
            Support::NoEffect => "no effect",
            Support::Refused => "refused",
            Support::Missing => "missing",
        }
    }
}

/// The command with this name; `None` if the program does not know it.
pub fn command(program: &str, name: &str) -> Option<&'static Command> {
    let commands = match program {
        "zpool" => millpond_cli::zpool::COMMANDS,
        _ => millpond_cli::zfs::COMMANDS,
    };
    commands.iter().find(|command| command.name == name)
}

/// The options that a command's table has, with their dashes.
pub fn options(command: &Command) -> Vec<String> {
    let Some(set) = command.options else {
        return vec![];
    };
    let letters = set.letters.chars().filter(|letter| *letter != ':');
    let longs = set.longs.iter().map(|long| format!("--{}", long.name));
    letters
        .map(|letter| format!("-{letter}"))
        .chain(longs)
        .collect()
}

/// Combines what the program's tables say with the verdict in the file.
///
/// # Panics
/// If they contradict each other.
fn combine(what: &str, name: &Name, is_known: bool, is_built: bool) -> Support {
    match (is_known, is_built, name.verdict) {
        (false, _, None) => Support::Missing,
        (true, false, None) => Support::Refused,
        (true, true, None) => Support::Full,
        (true, true, Some((Verdict::Partial, _))) => Support::Partial,
        (true, true, Some((Verdict::NoEffect, _))) => Support::NoEffect,
        (true, true, Some((Verdict::Refused, _))) => Support::Refused,
        (_, _, Some(verdict)) => panic!(
            "{what} {}: openzfs.txt says {verdict:?}, but the program has no such thing",
            name.text
        ),
    }
}

pub fn of_feature(name: &Name) -> Support {
    let support = Feature::by_guid(name.text).map(|feature| feature.support);
    match support {
        Some(FeatureSupport::Writes) if matches!(name.verdict, Some((Verdict::Partial, _))) => {
            Support::Partial
        }
        Some(FeatureSupport::Writes) => Support::Full,
        Some(FeatureSupport::Reads) => Support::ReadOnly,
        Some(FeatureSupport::Refuses) => Support::Refused,
        None => Support::Missing,
    }
}

/// Whether the tables know a property. A name that ends with `@` or `#` takes an argument.
fn has_property(section: &str, name: &str) -> bool {
    match section {
        "pool properties" => {
            table::find(name).is_some_and(|shape| shape.name == name)
                // Matched by their beginning; `zpool/property.rs`.
                || matches!(name, "feature@" | "unsupported@")
        }
        "vdev properties" => vdev_table::find(name).is_some_and(|shape| shape.name == name),
        _ if name.ends_with(['@', '#']) => by_name(&format!("{name}0")).is_some(),
        _ => matches!(by_name(name), Some(PropertyName::Native(found)) if found.shape.name == name),
    }
}

pub fn of_property(section: &str, name: &Name) -> Support {
    combine(section, name, has_property(section, name.text), true)
}

/// The support of a command, and of each of its options in the order of the file.
pub fn of_command(section: &Section) -> (Support, Vec<(Support, &Name)>) {
    let title = &section.title;
    let (program, word) = title.text.split_once(' ').expect(title.text);
    // `help` is not in the tables; `family.rs` answers it.
    let is_help = word == "help";
    let found = command(program, word);
    let is_built = is_help || found.is_some_and(|found| matches!(found.run, Run::Built(_)));
    let own = combine("command", title, is_help || found.is_some(), is_built);
    let known = found.map(options).unwrap_or_default();
    let options = section.names.iter().map(|name| {
        let is_known = known.iter().any(|option| option == name.text);
        let support = combine(title.text, name, is_known, is_built);
        (support, name)
    });
    (own, options.collect())
}

/// How many names of each kind have each support.
type Counts = Vec<(&'static str, [usize; 6])>;

fn count(counts: &mut Counts, kind: &'static str, support: Support) {
    let at = counts.iter().position(|(name, _)| *name == kind);
    let at = at.unwrap_or_else(|| {
        counts.push((kind, [0; 6]));
        counts.len() - 1
    });
    counts[at].1[support as usize] += 1;
}

/// The text of COMPATIBILITY.md.
pub fn page() -> String {
    let mut body = String::new();
    let mut counts = Counts::new();
    let all = sections();
    for program in ["zpool", "zfs"] {
        commands(&mut body, &mut counts, program, &all);
    }
    for (title, kind) in [
        ("pool properties", "Pool properties"),
        ("vdev properties", "Vdev properties"),
        ("dataset properties", "Dataset properties"),
    ] {
        let section = all.iter().find(|section| section.title.text == title);
        properties(&mut body, &mut counts, kind, section.expect(title));
    }
    let section = all.iter().find(|section| section.title.text == "features");
    features(&mut body, &mut counts, section.expect("features"));
    let mut page = INTRODUCTION.to_owned();
    page.push_str("| |");
    for support in Support::ALL {
        let _ = write!(page, " {} |", support.word());
    }
    page.push_str("\n|---|---|---|---|---|---|---|\n");
    for (kind, counts) in counts {
        let _ = write!(page, "| {kind} |");
        for count in counts {
            let _ = write!(page, " {count} |");
        }
        page.push('\n');
    }
    page + &body
}

const INTRODUCTION: &str = "\
# Compatibility with OpenZFS

Every command, option, property and feature of OpenZFS 2.3 and 2.4, and what Millpond does with it. A name that 2.4
added is marked *(2.4)*. What differs in output and behaviour is in [docs/cli.md](docs/cli.md), what was tested in
[docs/status.md](docs/status.md).

| word | meaning |
|---|---|
| full | works; of a property: shown, and set where OpenZFS allows it; of a feature: read and written |
| partial | works with the exception that the note names |
| read-only | of a feature: a pool in which it is active opens read-only |
| no effect | accepted, and properties are stored and shown, but nothing else happens |
| refused | fails with a message that names it. Of a command that is not implemented, every option is parsed and the command refused |
| missing | unknown: the answer is OpenZFS's for an unknown name |

`cargo xtask compatibility` writes this page from a list of OpenZFS's names and from Millpond's own tables. A test fails
when the page is out of date, and sets every property that can be set.

";

fn since(name: &Name) -> &'static str {
    match name.release {
        "2.4" => " *(2.4)*",
        "later" => " *(after 2.4)*",
        _ => "",
    }
}

fn noted(name: &Name) -> String {
    match name.verdict {
        Some((_, note)) if !note.is_empty() => format!("`{}` ({note})", name.text),
        _ => format!("`{}`{}", name.text, since(name)),
    }
}

fn commands(out: &mut String, counts: &mut Counts, program: &'static str, all: &[Section]) {
    let (kind, options_kind) = match program {
        "zpool" => ("Commands of `zpool`", "Options of `zpool` commands"),
        _ => ("Commands of `zfs`", "Options of `zfs` commands"),
    };
    let _ = write!(
        out,
        "\n## {kind}\n\n| command | | options |\n|---|---|---|\n"
    );
    let mut undocumented = vec![];
    for section in all {
        let Some((_, word)) = section
            .title
            .text
            .split_once(' ')
            .filter(|(first, _)| *first == program)
        else {
            continue;
        };
        let (own, options) = of_command(section);
        count(counts, kind, own);
        let mut support_text = own.word().to_owned();
        if let Some((_, note)) = section.title.verdict {
            let _ = write!(support_text, ": {note}");
        }
        let mut groups: BTreeMap<Support, Vec<String>> = BTreeMap::new();
        for (support, name) in options {
            if name.release == "undocumented" {
                undocumented.push(format!("`{word} {}`", name.text));
                continue;
            }
            count(counts, options_kind, support);
            groups.entry(support).or_default().push(noted(name));
        }
        let mut cell = vec![];
        for (support, names) in groups {
            let names = names.join(" ");
            match support {
                Support::Full => cell.push(names),
                Support::Refused if own == Support::Refused => cell.push(names),
                Support::Missing if own == Support::Missing => cell.push(names),
                other => cell.push(format!("{}: {names}", other.word())),
            }
        }
        let alias = section.alias.map(|alias| format!(", `{alias}`"));
        let _ = writeln!(
            out,
            "| `{word}`{}{} | {support_text} | {} |",
            alias.unwrap_or_default(),
            since(&section.title),
            cell.join("; ")
        );
    }
    let _ = write!(
        out,
        "\nAlso accepted, as by OpenZFS, which does not document them: {}.\n",
        undocumented.join(", ")
    );
}

fn properties(out: &mut String, counts: &mut Counts, kind: &'static str, section: &Section) {
    let _ = write!(out, "\n## {kind}\n\n| | properties |\n|---|---|\n");
    let mut groups: BTreeMap<Support, Vec<String>> = BTreeMap::new();
    for name in &section.names {
        let support = of_property(section.title.text, name);
        count(counts, kind, support);
        groups.entry(support).or_default().push(noted(name));
    }
    for (support, names) in groups {
        let _ = writeln!(out, "| {} | {} |", support.word(), names.join(", "));
    }
    out.push_str("\nUser properties are shown and set.\n");
}

fn features(out: &mut String, counts: &mut Counts, section: &Section) {
    let kind = "Features";
    let _ = write!(out, "\n## {kind}\n\n| | features |\n|---|---|\n");
    let mut groups: BTreeMap<Support, Vec<String>> = BTreeMap::new();
    for name in &section.names {
        let support = of_feature(name);
        count(counts, kind, support);
        let short = name.text.split(':').next_back().unwrap_or_default();
        let note = match name.verdict {
            Some((_, note)) if !note.is_empty() => format!(" ({note})"),
            _ => String::new(),
        };
        let text = format!("`{short}`{}{note}", since(name));
        groups.entry(support).or_default().push(text);
    }
    for (support, names) in groups {
        let _ = writeln!(out, "| {} | {} |", support.word(), names.join(", "));
    }
    let _ = write!(
        out,
        "\nMillpond knows {} features. A feature that is enabled and not active hinders nothing. An active feature that Millpond\n\
         does not know makes a pool read-only if the pool's list of features permits it; otherwise the pool is refused.\n",
        FEATURES.len()
    );
}
