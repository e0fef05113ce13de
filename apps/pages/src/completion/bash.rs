//! Completions for bash.

use super::{DATASET_VERBS, Operands, POOL_VERBS, Tool, VDEV_WORDS, Verb, known};
use clap::Command;

/// The functions for a program. `TOOL` stands for its name, `CALL` for what runs it.
const FRAME: &str = r#"
_millpond_TOOL_heads() {
    CALL list -H -o name "$@" 2>/dev/null
}

_millpond_TOOL() {
    local line=${COMP_LINE:0:COMP_POINT} verb cur prev options= operands= property=none
    local -a words
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    cur=${words[-1]}
    COMPREPLY=()
    if ((${#words[@]} <= 2)); then
        mapfile -t COMPREPLY < <(compgen -W "VERBS" -- "$cur")
        return
    fi
    verb=${words[1]} prev=${words[-2]}
    case $verb in
CASES    esac
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
        return
    fi
    local candidates= first=
    # The first operand of set, get and inherit is a property, that of most others a pool.
    local word
    for word in "${words[@]:2:${#words[@]}-3}"; do
        [[ -n $first || $word == -* || $word == *=* ]] || first=$word
    done
    if [[ $property != none && -z $first && $cur != */* ]]; then
        [[ $property == = ]] && compopt -o nospace
        candidates=$(printf "%s$property\n" PROPERTIES)
    elif [[ $prev == -o || $prev == -s || $prev == -S ]]; then
        candidates=$(printf '%s\n' PROPERTIES)
    else
        case $operands in
OPERANDS        esac
    fi
    mapfile -t COMPREPLY < <(compgen -W "$candidates" -- "$cur")
    _millpond_shorten "$cur"
}

# Bash replaces only what follows the last of these characters.
_millpond_shorten() {
    local mark part=$1 i
    for mark in @ = :; do
        [[ $COMP_WORDBREAKS == *"$mark"* ]] && part=${part##*"$mark"}
    done
    local lead=${1%"$part"}
    for i in "${!COMPREPLY[@]}"; do
        COMPREPLY[i]=${COMPREPLY[i]#"$lead"}
    done
}
"#;

/// How operands of pools are found. A pool is followed by its devices, or by words for new vdevs; files come from bash.
const POOLS: &str = r#"        pools)
            candidates=$(_millpond_TOOL_heads)
            ;;
        devices | both)
            if [[ -z $first ]]; then
                candidates=$(_millpond_TOOL_heads)
            else
                candidates=$(CALL list -H -v "$first" 2>/dev/null | sed -n 's/^\t\([^\t]*\)\t.*/\1/p')
            fi
            ;;
        vdevs)
            [[ -n $first ]] && candidates="VDEV_WORDS"
            ;;
        addable)
            if [[ -z $first ]]; then
                candidates=$(_millpond_TOOL_heads)
            else
                candidates="VDEV_WORDS"
            fi
            ;;
        importable)
            candidates=$(CALL import 2>/dev/null | sed -n 's/^ *pool: //p')
            ;;
"#;

/// How operands of datasets are found. Snapshots of one dataset only: there can be very many.
const DATASETS: &str = r#"        heads | snapshots)
            if [[ $cur == *@* ]]; then
                candidates=$(_millpond_TOOL_heads -t snapshot -d 1 "${cur%%@*}")
            elif [[ $operands == snapshots ]]; then
                compopt -o nospace
                candidates=$(_millpond_TOOL_heads -t filesystem,volume | sed 's/$/@/')
            else
                candidates=$(_millpond_TOOL_heads -t filesystem,volume)
            fi
            ;;
"#;

/// For `millpond`: its own commands are clap's. Their operands are pools or datasets, and what follows `zpool` or `zfs` is
/// completed as by these programs.
const MILLPOND: &str = r#"
# Asks in the places that the line names.
_millpond_ask() {
    millpond "${_millpond_places[@]}" "$@"
}

_millpond_millpond() {
    local line=${COMP_LINE:0:COMP_POINT} cur at=1
    local -a words _millpond_places=()
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    cur=${words[-1]}
    while [[ ${words[at]} == -d* ]] && ((at < ${#words[@]} - 1)); do
        if [[ ${words[at]} == -d ]]; then
            _millpond_places+=(-d "${words[at + 1]}")
            at=$((at + 2))
        else
            _millpond_places+=("${words[at]}")
            at=$((at + 1))
        fi
    done
    if ((at < ${#words[@]} - 1)); then
        local COMP_LINE="${words[*]:at}"
        local COMP_POINT=${#COMP_LINE}
        case ${words[at]} in
        zpool) _millpond_zpool; return ;;
        zfs) _millpond_zfs; return ;;
        DATASET_VERBS)
            if [[ $cur != -* && $cur != *:* && $cur != /* && $cur != .* ]]; then
                local -a found=()
                if [[ $cur == *@* ]]; then
                    mapfile -t found < <(_millpond_zfs_heads -t snapshot -d 1 "${cur%%@*}")
                else
                    mapfile -t found < <(_millpond_zfs_heads -t filesystem,volume)
                fi
                mapfile -t COMPREPLY < <(compgen -W "${found[*]}" -- "$cur")
                _millpond_shorten "$cur"
                return
            fi
            ;;
        POOL_VERBS)
            if [[ $cur != -* ]]; then
                mapfile -t COMPREPLY < <(compgen -W "$(_millpond_zpool_heads)" -- "$cur")
                return
            fi
            ;;
        esac
    fi
    _millpond "$@"
}

complete -o nosort -o bashdefault -o default -F _millpond_millpond millpond
"#;

/// The script of a program.
pub fn script(tool: &Tool) -> String {
    let name = tool.name;
    format!(
        "# Completions of {name} for bash.\n{}\ncomplete -o default -F _millpond_{name} {name}\n",
        functions(tool, name)
    )
}

/// What the script of `millpond` has beside clap's.
pub fn millpond(command: &Command, tools: &[Tool]) -> String {
    let mut text = String::new();
    for tool in tools {
        text += &functions(tool, &format!("_millpond_ask {}", tool.name));
    }
    text + &MILLPOND
        .replace("DATASET_VERBS", &known(command, &DATASET_VERBS).join(" | "))
        .replace("POOL_VERBS", &known(command, &POOL_VERBS).join(" | "))
}

/// The functions for a program that `call` runs.
fn functions(tool: &Tool, call: &str) -> String {
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
    let property = verb.property.map(|after| format!(" property={after}"));
    format!(
        "    {})\n        options=\"{}\" operands={operands}{}\n        ;;\n",
        verb.names.join(" | "),
        verb.options.join(" "),
        property.unwrap_or_default()
    )
}
