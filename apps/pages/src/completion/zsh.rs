//! Completions for zsh.

use super::{DATASET_VERBS, Operands, POOL_VERBS, Tool, VDEV_WORDS, Verb, known};
use clap::Command;

/// The function for a program. `TOOL` stands for its name, `CALL` for what runs it.
const FRAME: &str = r#"
_millpond_TOOL() {
    local -a options candidates
    local operands= property=none word first=yes pool=
    if ((CURRENT == 2)); then
        compadd -- VERBS
        return
    fi
    case $words[2] in
CASES    esac
    if [[ $PREFIX == -* ]]; then
        compadd -- $options
        return
    fi
    for word in $words[3,CURRENT-1]; do
        [[ $word == -* ]] || first=no
    done
    if [[ $property != none && $first == yes ]]; then
        compadd -S "$property" -- PROPERTIES
        return
    fi
    case $operands in
OPERANDS    (files)
        _files
        ;;
    esac
}
"#;

const POOLS: &str = r#"    (pools)
        candidates=(${(f)"$(CALL list -H -o name 2>/dev/null)"})
        compadd -- $candidates
        _files
        ;;
    (devices|both|addable|vdevs)
        for word in $words[3,CURRENT-1]; do
            [[ -n $pool || $word == -* || $word == *=* ]] || pool=$word
        done
        if [[ -z $pool ]]; then
            [[ $operands == vdevs ]] && return
            candidates=(${(f)"$(CALL list -H -o name 2>/dev/null)"})
            compadd -- $candidates
        elif [[ $operands == (devices|both) ]]; then
            candidates=(${(f)"$(CALL list -H -v $pool 2>/dev/null | sed -n 's/^\t\([^\t]*\)\t.*/\1/p')"})
            compadd -- $candidates
            [[ $operands == both ]] && _files
        else
            compadd -- VDEV_WORDS
            _files
        fi
        ;;
    (importable)
        candidates=(${(f)"$(CALL import 2>/dev/null | sed -n 's/^ *pool: //p')"})
        compadd -- $candidates
        ;;
"#;

const DATASETS: &str = r#"    (heads|snapshots)
        if [[ $PREFIX == *@* ]]; then
            candidates=(${(f)"$(CALL list -H -o name -t snapshot -d 1 ${PREFIX%%@*} 2>/dev/null)"})
            compadd -- $candidates
        else
            candidates=(${(f)"$(CALL list -H -o name -t filesystem,volume 2>/dev/null)"})
            if [[ $operands == snapshots ]]; then
                compadd -S @ -- $candidates
            else
                compadd -- $candidates
            fi
        fi
        ;;
"#;

/// How the function that clap writes begins.
const OWN_BEGIN: &str = "\n_millpond() {";
/// What clap writes behind all functions.
const OWN_END: &str = "\nif [ \"$funcstack[1]\" = \"_millpond\" ]; then";

/// For `millpond`: its own commands are clap's. Their operands are pools or datasets, and what follows `zpool` or `zfs` is
/// completed as by these programs.
const MILLPOND: &str = r#"
# Asks in the places that the line names.
_millpond_ask() {
    millpond $_millpond_places "$@"
}

_millpond() {
    local -a _millpond_places candidates
    local at=2 tool
    while [[ $words[at] == -d* ]] && ((at < CURRENT)); do
        if [[ $words[at] == -d ]]; then
            _millpond_places+=(-d "$words[at+1]")
            ((at += 2))
        else
            _millpond_places+=("$words[at]")
            ((at += 1))
        fi
    done
    if ((at < CURRENT)); then
        case $words[at] in
        (zpool|zfs)
            tool=$words[at]
            words=($tool "${(@)words[at+1,-1]}")
            ((CURRENT -= at - 1))
            _millpond_$tool
            return
            ;;
        (DATASET_VERBS)
            if [[ $PREFIX != -* && $PREFIX != *:* && $PREFIX != /* && $PREFIX != .* ]]; then
                if [[ $PREFIX == *@* ]]; then
                    candidates=(${(f)"$(_millpond_ask zfs list -H -o name -t snapshot -d 1 ${PREFIX%%@*} 2>/dev/null)"})
                else
                    candidates=(${(f)"$(_millpond_ask zfs list -H -o name -t filesystem,volume 2>/dev/null)"})
                fi
                compadd -- $candidates
                return
            fi
            ;;
        (POOL_VERBS)
            if [[ $PREFIX != -* ]]; then
                candidates=(${(f)"$(_millpond_ask zpool list -H -o name 2>/dev/null)"})
                compadd -- $candidates
                return
            fi
            ;;
        esac
    fi
    _millpond_own "$@"
}
"#;

/// The script of a program.
pub fn script(tool: &Tool) -> String {
    let name = tool.name;
    format!(
        "#compdef {name}\n# Completions of {name} for zsh.\n{}\n_millpond_{name} \"$@\"\n",
        function(tool, name)
    )
}

/// The script of `millpond`: clap's, and what completes names. `None` if clap's has another form than expected.
pub fn millpond(own: &str, command: &Command, tools: &[Tool]) -> Option<String> {
    let (head, tail) = own.split_once(OWN_BEGIN)?;
    let (body, end) = tail.split_once(OWN_END)?;
    let mut text = format!("{head}\n_millpond_own() {{{body}");
    for tool in tools {
        text += &function(tool, &format!("_millpond_ask {}", tool.name));
    }
    text += &MILLPOND
        .replace("DATASET_VERBS", &known(command, &DATASET_VERBS).join("|"))
        .replace("POOL_VERBS", &known(command, &POOL_VERBS).join("|"));
    Some(text + OWN_END + end)
}

/// The function for a program that `call` runs.
fn function(tool: &Tool, call: &str) -> String {
    let names: Vec<&str> = tool
        .verbs
        .iter()
        .flat_map(|verb| verb.names.clone())
        .collect();
    let cases: String = tool.verbs.iter().map(case).collect();
    let operands = match tool.name {
        "zpool" => POOLS,
        _ => DATASETS,
    };
    FRAME
        .replace("VERBS", &names.join(" "))
        .replace("CASES", &cases)
        .replace("OPERANDS", operands)
        .replace("PROPERTIES", &tool.properties.join(" "))
        .replace("VDEV_WORDS", VDEV_WORDS)
        .replace("TOOL", tool.name)
        .replace("CALL", call)
}

fn case(verb: &Verb) -> String {
    let operands = match verb.operands {
        Operands::Files => "files",
        Operands::Pools => "pools",
        Operands::PoolsAndDevices => "devices",
        Operands::PoolsAndBoth => "both",
        Operands::PoolsAndVdevs => "addable",
        Operands::Vdevs => "vdevs",
        Operands::Importable => "importable",
        Operands::Heads => "heads",
        Operands::Snapshots => "snapshots",
    };
    let property = verb.property.map(|after| format!("; property='{after}'"));
    format!(
        "    ({})\n        options=({}); operands={operands}{}\n        ;;\n",
        verb.names.join("|"),
        verb.options.join(" "),
        property.unwrap_or_default()
    )
}
