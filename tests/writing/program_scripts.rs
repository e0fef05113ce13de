//! Channel programs through the engine: what scripts read, change and return.

use crate::cloning::judged_by_zdb;
use crate::sim;
use millpond_dataset::ProgramValue;
use millpond_engine::{
    NewLayout, PROGRAM_INSTRUCTIONS, Pool, Program, ProgramError, PropertyValue,
};
use millpond_sim::World;

fn run_as(pool: &Pool, source: &str, is_read_only: bool) -> Result<ProgramValue, ProgramError> {
    let argv = ["tank/a", "x"].map(|word| ProgramValue::Text(word.into()));
    let program = Program {
        source: source.as_bytes(),
        arguments: ProgramValue::Table(vec![("argv".into(), ProgramValue::List(argv.to_vec()))]),
        instructions: PROGRAM_INSTRUCTIONS,
        memory_bytes: 10 << 20,
        is_read_only,
    };
    pool.run_program(&program, &|| false)
}

fn run(pool: &Pool, source: &str) -> ProgramValue {
    run_as(pool, source, false).unwrap_or_else(|error| panic!("{source}: {error}"))
}

/// The error text of a script.
fn fails(pool: &Pool, source: &str) -> String {
    match run_as(pool, source, false) {
        Err(ProgramError::Script { text, .. }) => text,
        other => panic!("{source}: {other:?}"),
    }
}

fn text(words: &str) -> ProgramValue {
    ProgramValue::Text(words.to_owned())
}

fn table(entries: &[(&str, ProgramValue)]) -> ProgramValue {
    let entries = entries
        .iter()
        .map(|(key, value)| ((*key).to_owned(), value.clone()));
    ProgramValue::Table(entries.collect())
}

fn pool() -> (World, Pool) {
    let world = World::without_journal(31);
    let pool = sim::create(&world, &[(NewLayout::Single, 1)], 128);
    for name in ["tank/a", "tank/a/b", "tank/a/c"] {
        pool.datasets().create_filesystem(name, &[]).unwrap();
    }
    (world, pool)
}

#[test]
fn a_script_sees_what_it_changed() {
    let (world, pool) = pool();
    let listed = run(
        &pool,
        "local argv = (...)['argv']
         local function all(root)
             assert(zfs.sync.snapshot(root .. '@' .. argv[2]) == 0)
             for child in zfs.list.children(root) do all(child) end
         end
         all(argv[1])
         assert(zfs.sync.snapshot(argv[1] .. '@y') == EAGAIN)
         assert(zfs.sync.rename_snapshot('tank/a/c', 'x', 'z') == 0)
         assert(zfs.sync.bookmark('tank/a/b@x', 'tank/a/b#mark') == 0)
         assert(zfs.sync.destroy('tank/a/b@x') == 0)
         assert(zfs.sync.set_prop('tank/a', 'org:note', 'hello') == 0)
         local found = {}
         for _, name in ipairs{'tank/a', 'tank/a/b', 'tank/a/c'} do
             found[name] = {}
             for snapshot in zfs.list.snapshots(name) do table.insert(found[name], snapshot) end
             for mark in zfs.list.bookmarks(name) do table.insert(found[name], mark) end
         end
         found.note, found.source = zfs.get_prop('tank/a/b', 'org:note')
         return found",
    );
    let one = |name: &str| table(&[("1", text(name))]);
    let expected = table(&[
        ("note", text("hello")),
        ("source", text("tank/a")),
        ("tank/a", one("tank/a@x")),
        ("tank/a/b", one("tank/a/b#mark")),
        ("tank/a/c", one("tank/a/c@z")),
    ]);
    assert_eq!(listed, expected);
    // All of it is on stable storage.
    let view = pool.committed().unwrap();
    let snapshots = view.dataset("tank/a/c").unwrap().snapshots().unwrap();
    assert_eq!(snapshots[0].name(), "tank/a/c@z");
    drop(view);
    pool.export().unwrap();
    judged_by_zdb(&world, "changed by a program");
}

#[test]
fn refusals_are_numbers_and_errors_end_the_script() {
    let (_world, pool) = pool();
    pool.datasets().snapshot(&["tank/a/b@x"], &[]).unwrap();
    pool.datasets()
        .clone_snapshot("tank/a/b@x", "tank/clone", &[])
        .unwrap();
    pool.datasets().snapshot(&["tank/clone@x"], &[]).unwrap();
    let codes = run(
        &pool,
        "local function two(...) return {...} end
         return {
             missing = zfs.sync.destroy('tank/none'),
             children = zfs.check.destroy('tank/a'),
             cloned = zfs.check.destroy('tank/a/b@x'),
             later = zfs.check.destroy{'tank/a/b@x', defer=true},
             name = zfs.sync.snapshot('tank/a'),
             exists = zfs.sync.snapshot('tank/a/b@x'),
             promote = two(zfs.sync.promote('tank/clone')),
             property = zfs.sync.set_prop('tank/a', 'mountpoint', '/x'),
             long = zfs.sync.inherit('tank/a', 'a:' .. ('x'):rep(300)),
             native = zfs.sync.inherit('tank/a', 'type'),
             none = zfs.sync.rollback('tank/a'),
             known = zfs.exists('tank/a') and not zfs.exists('tank/none'),
         }",
    );
    let number = ProgramValue::Integer;
    let expected = table(&[
        ("children", number(17)),
        ("cloned", number(17)),
        ("exists", number(17)),
        ("known", ProgramValue::Boolean(true)),
        ("later", number(0)),
        ("long", number(22)),
        ("missing", number(2)),
        ("name", number(22)),
        ("native", number(22)),
        ("none", number(22)),
        (
            "promote",
            table(&[("1", number(17)), ("2", table(&[("1", text("x"))]))]),
        ),
        ("property", number(22)),
    ]);
    assert_eq!(codes, expected);

    let usage = fails(&pool, "zfs.sync.destroy{'tank/a', defer=1}");
    assert!(
        usage.contains("destroy{dataset, [defer=true|false]}"),
        "{usage}"
    );
    let other = fails(&pool, "return zfs.exists('rpool')");
    assert!(other.contains("not in the target pool"), "{other}");
    let traced = fails(&pool, "\nerror('boom')");
    assert_eq!(
        traced,
        "[string \"channel program\"]:2: boom\nstack traceback:\n\t[C]: in function 'error'\n\t\
         [string \"channel program\"]:2: in main chunk"
    );
    let text = fails(&pool, "return zfs.list.snapshots('tank')");
    assert_eq!(text, "Invalid value type 'function' for key 'return'");
    assert!(fails(&pool, "local t = {} t.t = t return t").contains("Maximum table depth"));
    assert!(fails(&pool, "return {[1]=0, ['1']=0}").contains("Collision"));
    let sync = run_as(&pool, "zfs.sync.snapshot('tank@r')", true).unwrap_err();
    assert!(
        sync.to_string().contains("requires passing sync=TRUE"),
        "{sync}"
    );
    let kept = run_as(&pool, "return zfs.check.snapshot('tank@r')", true).unwrap();
    assert_eq!(kept, ProgramValue::Integer(0));
    assert_eq!(
        run(&pool, "return zfs.exists('tank@r')"),
        ProgramValue::Boolean(false)
    );
}

#[test]
fn a_script_without_end_is_stopped_and_its_changes_stay() {
    let (_world, pool) = pool();
    let endless = run_as(
        &pool,
        "zfs.sync.snapshot('tank@kept') while true do end",
        false,
    );
    match endless {
        Err(ProgramError::Script {
            text,
            instructions: Some(count),
        }) => {
            assert!(text.contains("timed out"), "{text}");
            assert!((PROGRAM_INSTRUCTIONS..PROGRAM_INSTRUCTIONS + 100).contains(&count));
        }
        other => panic!("{other:?}"),
    }
    let greedy = run_as(&pool, "local s = 'x' while true do s = s .. s end", false);
    assert!(matches!(greedy, Err(ProgramError::Memory)), "{greedy:?}");
    // A small table that is large when it is written out.
    let shared = "local t = {1} for i = 1, 18 do t = {t, t, t, t} end return t";
    assert!(matches!(
        run_as(&pool, shared, false),
        Err(ProgramError::TooLarge)
    ));
    assert_eq!(
        run(&pool, "return zfs.exists('tank@kept')"),
        ProgramValue::Boolean(true)
    );
}

#[test]
fn properties_have_values_and_sources() {
    let (_world, pool) = pool();
    let tasks = pool.datasets();
    let limit = ("snapshot_limit".to_owned(), PropertyValue::Number(10));
    tasks.set_properties("tank/a", &[limit]).unwrap();
    tasks.snapshot(&["tank/a@x"], &[]).unwrap();
    let found = run(
        &pool,
        "local found = {}
         for _, name in ipairs{'type', 'recordsize', 'compression', 'snapshot_limit', 'filesystem_limit',
                               'snapshot_count', 'mounted', 'origin', 'used'} do
             local value, source = zfs.get_prop('tank/a', name)
             if name == 'used' then value = value > 0 end
             found[name] = {value, source}
         end
         return found",
    );
    let pair = |value: ProgramValue, source: &str| table(&[("1", value), ("2", text(source))]);
    let alone = |value: ProgramValue| table(&[("1", value)]);
    let expected = table(&[
        ("compression", pair(text("on"), "default")),
        (
            "filesystem_limit",
            pair(ProgramValue::Integer(-1), "default"),
        ),
        ("mounted", table(&[])),
        ("origin", table(&[])),
        (
            "recordsize",
            pair(ProgramValue::Integer(128 << 10), "default"),
        ),
        ("snapshot_count", alone(ProgramValue::Integer(1))),
        ("snapshot_limit", pair(ProgramValue::Integer(10), "tank/a")),
        ("type", alone(text("filesystem"))),
        ("used", alone(ProgramValue::Boolean(true))),
    ]);
    assert_eq!(found, expected);
    for script in [
        "zfs.get_prop('tank/a', 'none')",
        "zfs.get_prop('tank/none', 'type')",
    ] {
        fails(&pool, script);
    }
}

/// Snapshots of pools before version 12 have no properties.
#[test]
fn what_an_old_pool_cannot_hold_is_refused() {
    let world = World::without_journal(32);
    let pool = sim::create_old(&world, &[(NewLayout::Single, 1)], 128, 11);
    pool.datasets().snapshot(&["tank@s"], &[]).unwrap();
    let refused = run(&pool, "return zfs.sync.set_prop('tank@s', 'org:note', 'x')");
    assert_eq!(refused, ProgramValue::Integer(22));
    let set = run(&pool, "return zfs.sync.set_prop('tank', 'org:note', 'x')");
    assert_eq!(set, ProgramValue::Integer(0));
    pool.export().unwrap();
}
