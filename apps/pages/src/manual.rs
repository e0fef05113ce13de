//! Manual pages: those of `millpond` and its verbs from their definitions, the others as they were written.

use crate::put;
use clap::Command;
use clap_mangen::Man;
use std::io;
use std::path::Path;

/// Pages of section 8 that no definition has enough text for.
const WRITTEN: [(&str, &str); 3] = [
    (
        "millpondd.8",
        include_str!("../../../packaging/man/millpondd.8"),
    ),
    (
        "millpond-zpool.8",
        include_str!("../../../packaging/man/millpond-zpool.8"),
    ),
    (
        "millpond-zfs.8",
        include_str!("../../../packaging/man/millpond-zfs.8"),
    ),
];

/// Writes all pages below a folder.
pub fn write(folder: &Path) -> io::Result<()> {
    for (name, text) in WRITTEN {
        let text = match name {
            "millpond-zpool.8" => text.replace(LISTING, &listing(millpond_cli::zpool::listing())),
            "millpond-zfs.8" => text.replace(LISTING, &listing(millpond_cli::zfs::listing())),
            _ => text.to_owned(),
        };
        put(&folder.join("man8"), name, text.as_bytes())?;
    }
    let mut all = without_help(millpond_cli::verbs::command());
    // These have pages of section 8.
    for name in millpond_cli::verbs::PROGRAMS {
        all = all.mut_subcommand(name, |program| program.hide(true));
    }
    all.build();
    pages(&folder.join("man1"), &all, "millpond")
}

/// Stands for the usage text in the pages.
const LISTING: &str = "LISTING\n";

/// A usage text as a literal block.
fn listing(text: String) -> String {
    let lines: String = text
        .lines()
        .map(|line| {
            // A line break and a dot would begin a request; nothing else is special but backslashes and dashes.
            let line = line.replace('\\', "\\e").replace('-', "\\-");
            format!("\\&{}\n", line.replace('\t', "    "))
        })
        .collect();
    format!(".Bd -literal\n{lines}.Ed\n")
}

/// Takes away the words `help`, which have no pages.
fn without_help(command: Command) -> Command {
    let command = command.disable_help_subcommand(true);
    command.mut_subcommands(without_help)
}

fn pages(folder: &Path, command: &Command, name: &str) -> io::Result<()> {
    // The macro of a page's title takes the name as one word.
    let page = command
        .clone()
        .name(&*name.to_owned().leak())
        .version(env!("CARGO_PKG_VERSION"));
    let mut text = vec![];
    Man::new(page).manual("Millpond").render(&mut text)?;
    put(folder, &format!("{name}.1"), &text)?;
    for below in command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
    {
        pages(folder, below, &format!("{name}-{}", below.get_name()))?;
    }
    Ok(())
}
