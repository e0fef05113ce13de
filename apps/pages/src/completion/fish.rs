//! Completions for fish.

use super::{DATASET_VERBS, Operands, POOL_VERBS, Tool, VDEV_WORDS, Verb, known};
use clap::Command;
use std::fmt::Write;

/// The functions of the script of `millpond`.
const MILLPOND: &str = r#"
# Asks in the places that the line names.
function __millpond_ask
    set -l places
    set -l is_place no
    for word in (commandline -opc)[2..-1]
        if test $is_place = yes
            set -a places $word
            set is_place no
        else if test $word = -d
            set -a places $word
            set is_place yes
        else if string match -q -- '-d*' $word
            set -a places $word
        else
            break
        end
    end
    millpond $places $argv 2>/dev/null
end

# Whether the first word that is no place is one of these.
function __millpond_runs
    set -l is_place no
    for word in (commandline -opc)[2..-1]
        if test $is_place = yes
            set is_place no
        else if test $word = -d
            set is_place yes
        else if not string match -q -- '-d*' $word
            contains -- $word $argv
            return
        end
    end
    return 1
end

# Whether the word may be the name of a dataset: it is neither a path of the host nor one in a dataset.
function __millpond_names_dataset
    not string match -qr -- '^[-/.]|:' (commandline -ct)
end

"#;

/// The script of a program.
pub fn script(tool: &Tool) -> String {
    let name = tool.name;
    let mut text = format!("# Completions of {name} for fish.\n\ncomplete -c {name} -f\n");
    complete(&mut text, tool, name, "__fish_use_subcommand", "");
    text
}

/// What the script of `millpond` has beside clap's.
pub fn millpond(command: &Command, tools: &[Tool]) -> String {
    let mut text = MILLPOND.to_owned();
    let list = "__millpond_ask zpool list -H -o name";
    let verbs = known(command, &POOL_VERBS).join(" ");
    put(
        &mut text,
        "millpond",
        &format!("-n '__millpond_runs {verbs}' -f -a '({list})'"),
    );
    let dataset = "(string split -f 1 @ -- (commandline -ct))";
    let lists = [
        "__millpond_ask zfs list -H -o name -t filesystem,volume".to_owned(),
        format!(
            "string match -q \"*@*\" -- (commandline -ct); and __millpond_ask zfs list -H -o name -t snapshot -d 1 {dataset}"
        ),
    ];
    let verbs = known(command, &DATASET_VERBS).join(" ");
    for list in lists {
        let when = format!("'__millpond_runs {verbs}; and __millpond_names_dataset'");
        put(&mut text, "millpond", &format!("-n {when} -a '({list})'"));
    }
    for tool in tools {
        let name = tool.name;
        let names = names(tool).join(" ");
        let first =
            format!("'__millpond_runs {name}; and not __fish_seen_subcommand_from {names}'");
        put(
            &mut text,
            "millpond",
            &format!("-n '__millpond_runs {name}' -f"),
        );
        complete(
            &mut text,
            tool,
            "millpond",
            &first,
            &format!("__millpond_runs {name}; and "),
        );
    }
    text
}

fn names(tool: &Tool) -> Vec<&'static str> {
    let verbs = tool.verbs.iter();
    verbs.flat_map(|verb| verb.names.clone()).collect()
}

fn put(text: &mut String, program: &str, what: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "complete -c {program} {what}");
}

/// Completes the commands of a tool, which `program` runs. `first` says when its command is due, `also` what must hold for
/// what follows it.
fn complete(text: &mut String, tool: &Tool, program: &str, first: &str, also: &str) {
    let call = match program == tool.name {
        true => program.to_owned(),
        false => format!("__millpond_ask {}", tool.name),
    };
    let mut line = |what: std::fmt::Arguments<'_>| put(text, program, &what.to_string());
    line(format_args!("-n {first} -a '{}'", names(tool).join(" ")));
    for verb in &tool.verbs {
        let names = verb.names.join(" ");
        let seen = format!("-n '{also}__fish_seen_subcommand_from {names}'");
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
        if matches!(verb.operands, Operands::Files | Operands::PoolsAndBoth) {
            line(format_args!("{seen} -F"));
        }
        if let Operands::Vdevs | Operands::PoolsAndVdevs = verb.operands {
            line(format_args!("{seen} -F -a '{VDEV_WORDS}'"));
        }
        if let Some(list) = list(verb, &call) {
            line(format_args!("{seen} -a '({list})'"));
        }
    }
}

/// The command that lists the operands of a command.
fn list(verb: &Verb, call: &str) -> Option<String> {
    Some(match verb.operands {
        Operands::Files | Operands::Vdevs => return None,
        Operands::Pools | Operands::PoolsAndVdevs => {
            format!("{call} list -H -o name 2>/dev/null")
        }
        // Pools, and the devices of all of them.
        Operands::PoolsAndDevices | Operands::PoolsAndBoth => {
            format!("{call} list -H -v 2>/dev/null | string trim -l | string split -f 1 \\t")
        }
        Operands::Importable => {
            format!("{call} import 2>/dev/null | string replace -rf \"^ *pool: \" \"\"")
        }
        Operands::Heads => format!("{call} list -H -o name -t filesystem,volume 2>/dev/null"),
        Operands::Snapshots => {
            let dataset = "(string split -f 1 @ -- (commandline -ct))";
            format!("{call} list -H -o name -t filesystem,snapshot -d 1 {dataset} 2>/dev/null")
        }
    })
}
