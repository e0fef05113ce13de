//! Completions for fish.

use super::{Operands, Tool, VDEV_WORDS};
use std::fmt::Write;

/// The script of a program.
pub fn script(tool: &Tool) -> String {
    let name = tool.name;
    let names: Vec<&str> = tool
        .verbs
        .iter()
        .flat_map(|verb| verb.names.clone())
        .collect();
    let mut text = format!("# Completions of {name} for fish.\n\n");
    let mut line = |what: std::fmt::Arguments<'_>| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "complete -c {name} {what}");
    };
    line(format_args!("-f"));
    line(format_args!(
        "-n __fish_use_subcommand -a '{}'",
        names.join(" ")
    ));
    for verb in &tool.verbs {
        let seen = format!("-n '__fish_seen_subcommand_from {}'", verb.names.join(" "));
        for option in &verb.options {
            match option.strip_prefix("--") {
                Some(long) => line(format_args!("{seen} -l {long}")),
                None => line(format_args!("{seen} -s {}", option.trim_start_matches('-'))),
            }
        }
        if let Some(after) = verb.property {
            let words: Vec<String> = tool
                .properties
                .iter()
                .map(|property| format!("{property}{after}"))
                .collect();
            line(format_args!("{seen} -a '{}'", words.join(" ")));
        }
        let list = match verb.operands {
            Operands::Files => {
                line(format_args!("{seen} -F"));
                continue;
            }
            Operands::Vdevs => {
                line(format_args!("{seen} -F -a '{VDEV_WORDS}'"));
                continue;
            }
            Operands::PoolsAndVdevs => {
                line(format_args!("{seen} -F -a '{VDEV_WORDS}'"));
                format!("{name} list -H -o name 2>/dev/null")
            }
            Operands::PoolsAndDevices | Operands::PoolsAndBoth => {
                if verb.operands == Operands::PoolsAndBoth {
                    line(format_args!("{seen} -F"));
                }
                // Pools, and the devices of all of them.
                format!("{name} list -H -v 2>/dev/null | string trim -l | string split -f 1 \\t")
            }
            Operands::Pools => format!("{name} list -H -o name 2>/dev/null"),
            Operands::Importable => {
                format!("{name} import 2>/dev/null | string replace -rf \"^ *pool: \" \"\"")
            }
            Operands::Heads => format!("{name} list -H -o name -t filesystem,volume 2>/dev/null"),
            Operands::Snapshots => {
                let dataset = "(string split -f 1 @ -- (commandline -ct))";
                format!("{name} list -H -o name -t filesystem,snapshot -d 1 {dataset} 2>/dev/null")
            }
        };
        line(format_args!("{seen} -a '({list})'"));
    }
    text
}
