//! Completions for bash.

use super::{Operands, Tool, Verb};

/// The parts that do not depend on the commands. `TOOL` stands for the program.
const FRAME: &str = r#"# Completions of TOOL for bash.

_millpond_TOOL_heads() {
    TOOL list -H -o name "$@" 2>/dev/null
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
    local candidates=
    # The first operand of set, get and inherit is a property.
    local word first=yes
    for word in "${words[@]:2:${#words[@]}-3}"; do
        [[ $word == -* ]] || first=no
    done
    if [[ $property != none && $first == yes && $cur != */* ]]; then
        [[ $property == = ]] && compopt -o nospace
        candidates=$(printf "%s$property\n" PROPERTIES)
    elif [[ $prev == -o || $prev == -s || $prev == -S ]]; then
        candidates=$(printf '%s\n' PROPERTIES)
    else
        case $operands in
OPERANDS        esac
    fi
    mapfile -t COMPREPLY < <(compgen -W "$candidates" -- "$cur")
    # Bash replaces only what follows the last of these characters.
    local mark part=$cur
    for mark in @ = :; do
        [[ $COMP_WORDBREAKS == *"$mark"* ]] && part=${part##*"$mark"}
    done
    local lead=${cur%"$part"} i
    for i in "${!COMPREPLY[@]}"; do
        COMPREPLY[i]=${COMPREPLY[i]#"$lead"}
    done
}

complete -o default -F _millpond_TOOL TOOL
"#;

/// How operands of pools are found.
const POOLS: &str = r#"        pools)
            candidates=$(_millpond_TOOL_heads)
            ;;
        importable)
            candidates=$(TOOL import 2>/dev/null | sed -n 's/^ *pool: //p')
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

/// The script of a program.
pub fn script(tool: &Tool) -> String {
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
        .replace("TOOL", tool.name)
}

fn case(verb: &Verb) -> String {
    let operands = match verb.operands {
        Operands::Files => "files",
        Operands::Pools | Operands::PoolsAndFiles => "pools",
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
