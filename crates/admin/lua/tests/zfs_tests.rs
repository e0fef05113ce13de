//! The scripts of OpenZFS's own tests, read where `make oracle` puts them.
#![forbid(unsafe_code)]

mod common;

use common::{CHUNK, LIMITS, error_text, run_in, run_within};
use millpond_lua::{Error, Limits, Lua, Value};
use std::path::PathBuf;

/// The folder of the scripts; `None` if they are absent, which is printed.
fn scripts() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    let oracle = set("MILLPOND_ORACLE").or_else(|| Some(cache()?.join("millpond/oracle")))?;
    let inside = "root/usr/share/zfs/zfs-tests/tests/functional/channel_program/lua_core";
    let folder = oracle.join(inside);
    if !folder.is_dir() {
        println!(
            "OpenZFS's scripts are absent ({}); `make oracle` fetches them",
            folder.display()
        );
        return None;
    }
    Some(folder)
}

/// Runs a script of the folder with the arguments that `zfs program` would pass.
fn run_script(name: &str, limits: Limits, arguments: &[&str]) -> Option<Result<String, Error>> {
    let source =
        String::from_utf8_lossy(&std::fs::read(scripts()?.join(name)).unwrap()).into_owned();
    // The recorded errors are older than the first line.
    let source = match source.split_once('\n') {
        Some((first, rest)) if first.starts_with("-- SPDX") => rest.to_owned(),
        _ => source,
    };
    let mut lua = Lua::new(limits).unwrap();
    let (table, list) = (lua.table().unwrap(), lua.table().unwrap());
    for (number, argument) in (1..).zip(arguments) {
        let argument = lua.string(argument.as_bytes()).unwrap();
        lua.set(&list, Value::Integer(number), argument).unwrap();
    }
    let key = lua.string(b"argv").unwrap();
    lua.set(&table, key, list).unwrap();
    let results = lua
        .load(source.as_bytes(), CHUNK)
        .and_then(|program| lua.call(&program, &[table]));
    Some(results.map(|values| {
        let shown: Vec<_> = values
            .iter()
            .map(|value| common::show(&lua, value))
            .collect();
        shown.join(" ")
    }))
}

fn succeeds(name: &str, limits: Limits, arguments: &[&str], expected: &str) {
    match run_script(name, limits, arguments) {
        Some(Ok(results)) => assert_eq!(results, expected, "{name}"),
        Some(Err(error)) => panic!("{name}: {}", error_text(&error)),
        None => {}
    }
}

/// The error of a script is the one in the file beside it.
fn fails_as_recorded(name: &str, record: &str) {
    let Some(outcome) = run_script(name, LIMITS, &[]) else {
        return;
    };
    let recorded = std::fs::read_to_string(scripts().unwrap().join(record)).unwrap();
    let error = error_text(&outcome.expect_err(name));
    let shown = format!("Channel program execution failed:\n{error}");
    assert_eq!(shown.trim_end(), recorded.trim_end(), "{name}");
}

#[test]
fn the_library_passes_its_own_tests() {
    let large = Limits {
        memory_bytes: 40_000_000,
        ..LIMITS
    };
    succeeds("tst.lib_base.lua", LIMITS, &[], "'OK'");
    succeeds("tst.lib_coroutine.lua", LIMITS, &[], "'OK'");
    succeeds("tst.lib_strings.lua", LIMITS, &[], "'OK'");
    succeeds("tst.lib_table.lua", large, &[], "'OK'");
}

#[test]
fn scripts_end_as_recorded() {
    succeeds("tst.args_to_lua.zcp", LIMITS, &["foo", "bar"], "");
    succeeds("tst.nested_pos.zcp", LIMITS, &[], "17");
    succeeds("tst.recursive.zcp", LIMITS, &["10000"], "10000");
    succeeds("tst.large_prog.zcp", LIMITS, &[], "");
    fails_as_recorded("tst.divide_by_zero.zcp", "tst.divide_by_zero.err");
    fails_as_recorded("tst.stack_gsub.zcp", "tst.stack_gsub.err");
}

#[test]
fn scripts_fail_as_the_tests_expect() {
    let Some(nested) = run_script("tst.nested_neg.zcp", LIMITS, &[]) else {
        return;
    };
    let message = error_text(&nested.unwrap_err());
    assert!(message.contains("too many C levels"), "{message}");
    let recursive = run_script("tst.recursive.zcp", LIMITS, &["10000000"]);
    assert_eq!(recursive, Some(Err(Error::Memory)));
    assert_eq!(
        run_script("tst.timeout.zcp", LIMITS, &[]),
        Some(Err(Error::Instructions))
    );
    // A table that contains itself is a result like any other.
    let folder = scripts().unwrap();
    let source = std::fs::read(folder.join("tst.return_recursive_table.zcp")).unwrap();
    let mut lua = Lua::new(LIMITS).unwrap();
    let table = run_in(&mut lua, &source).unwrap()[0];
    let key = lua.string(b"self").unwrap();
    assert_eq!(lua.get(&table, &key), table);
}

/// What the other tests pass on the command line.
#[test]
fn programs_of_one_line_end_as_the_tests_expect() {
    let run = |source: &str| common::run(source);
    for number in ["1.0", "1.5", "-1.5"] {
        let message = run(&format!("return {number}"));
        assert!(message.contains("malformed number"), "{message}");
    }
    assert_eq!(
        run("assert(18446744073709551615 + 1 == (-18446744073709551616))"),
        ""
    );
    for source in ["", "assert(true)", "x = 1 + 1"] {
        assert_eq!(run(source), "");
    }
    for source in ["{]", "retrn 1"] {
        assert!(run(source).starts_with("syntax: "), "{source}");
    }
    for source in ["abc = nil; abc.deref", "abc = nil; abc()", "assert(false)"] {
        let message = run(source);
        assert!(!message.is_empty(), "{source}");
    }
    for value in ["0", "\"string\"", "true", "{}", "nil", "{val=0}", "assert"] {
        let message = run(&format!("error({value})"));
        assert!(message.contains("in function 'error'"), "{message}");
    }
}

#[test]
fn memory_is_limited_as_the_tests_expect() {
    let endless = b"a = {} i = 0 while true do i = i + 1 a[i] = 'Here is the ' .. i .. 'th entry of a' end return a";
    let simple = b"s = 'teststring' s = s .. s .. s .. s return s";
    let limits = |memory_bytes| Limits {
        instructions: 100_000_000,
        memory_bytes,
    };
    assert_eq!(run_within(limits(10 << 20), endless), "memory");
    assert_eq!(run_within(limits(100_000), endless), "memory");
    assert_eq!(
        run_within(limits(100_000), simple),
        format!("'{}'", "teststring".repeat(4))
    );
    assert_eq!(run_within(limits(1), simple), "memory");
}

#[test]
fn instructions_are_counted_up_to_the_limit() {
    for instructions in [1000, 10_000, 100_000, 1_000_000, 2_000_000] {
        let mut lua = Lua::new(Limits {
            instructions,
            ..LIMITS
        })
        .unwrap();
        let outcome = run_in(&mut lua, b"i = 1; while true do i = i + 1 end; return i");
        assert_eq!(outcome, Err(Error::Instructions));
        let used = lua.instructions_used();
        assert!(
            used.abs_diff(instructions) <= 100,
            "{used} of {instructions}"
        );
    }
}
