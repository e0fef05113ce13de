//! Completions for zsh.

use super::{Operands, Tool, VDEV_WORDS, Verb};

const FRAME: &str = r#"#compdef TOOL
# Completions of TOOL for zsh.

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

_millpond_TOOL "$@"
"#;

const POOLS: &str = r#"    (pools)
        candidates=(${(f)"$(TOOL list -H -o name 2>/dev/null)"})
        compadd -- $candidates
        _files
        ;;
    (devices|both|addable|vdevs)
        for word in $words[3,CURRENT-1]; do
            [[ -n $pool || $word == -* || $word == *=* ]] || pool=$word
        done
        if [[ -z $pool ]]; then
            [[ $operands == vdevs ]] && return
            candidates=(${(f)"$(TOOL list -H -o name 2>/dev/null)"})
            compadd -- $candidates
        elif [[ $operands == (devices|both) ]]; then
            candidates=(${(f)"$(TOOL list -H -v $pool 2>/dev/null | sed -n 's/^\t\([^\t]*\)\t.*/\1/p')"})
            compadd -- $candidates
            [[ $operands == both ]] && _files
        else
            compadd -- VDEV_WORDS
            _files
        fi
        ;;
    (importable)
        candidates=(${(f)"$(TOOL import 2>/dev/null | sed -n 's/^ *pool: //p')"})
        compadd -- $candidates
        ;;
"#;

const DATASETS: &str = r#"    (heads|snapshots)
        if [[ $PREFIX == *@* ]]; then
            candidates=(${(f)"$(TOOL list -H -o name -t snapshot -d 1 ${PREFIX%%@*} 2>/dev/null)"})
            compadd -- $candidates
        else
            candidates=(${(f)"$(TOOL list -H -o name -t filesystem,volume 2>/dev/null)"})
            if [[ $operands == snapshots ]]; then
                compadd -S @ -- $candidates
            else
                compadd -- $candidates
            fi
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
        .replace("VDEV_WORDS", VDEV_WORDS)
        .replace("TOOL", tool.name)
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
