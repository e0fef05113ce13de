//! What a host does: its functions, values that it holds, limits.
#![forbid(unsafe_code)]

mod common;

use common::{LIMITS, run_in, show};
use millpond_lua::{Error, Limits, Lua, Value};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

fn results(lua: &mut Lua<'_>, source: &str) -> String {
    match run_in(lua, source.as_bytes()) {
        Ok(values) => values
            .iter()
            .map(|value| show(lua, value))
            .collect::<Vec<_>>()
            .join(" "),
        Err(error) => common::error_text(&error),
    }
}

#[test]
fn functions_of_the_host_take_and_return_values() {
    let calls = Cell::new(0);
    let mut lua = Lua::new(LIMITS).unwrap();
    let add = lua
        .function("add", |lua, arguments| match arguments {
            [Value::Integer(left), Value::Integer(right)] => {
                calls.set(calls.get() + 1);
                Ok(vec![Value::Integer(left + right)])
            }
            _ => Err(lua.error("two numbers are needed")),
        })
        .unwrap();
    lua.set_global("add", add).unwrap();
    assert_eq!(results(&mut lua, "return add(1, add(2, 3))"), "6");
    assert_eq!(
        results(&mut lua, "\nadd('x')"),
        "[string \"channel program\"]:2: two numbers are needed\nstack traceback:\n\t[C]: in function 'add'\n\t[string \"channel program\"]:2: in main chunk"
    );
    assert_eq!(
        results(
            &mut lua,
            "return select(2, coroutine.resume(coroutine.create(function() add() end)))"
        ),
        "'[string \"channel program\"]:1: two numbers are needed'"
    );
    assert_eq!(results(&mut lua, "return add(1, 2)"), "3");
    drop(lua);
    assert_eq!(calls.get(), 3);
}

#[test]
fn iterators_of_the_host_are_functions_made_in_functions() {
    let mut lua = Lua::new(LIMITS).unwrap();
    let dropped = Rc::new(Cell::new(0));
    struct Guard(Rc<Cell<u32>>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let counted = Rc::clone(&dropped);
    let list = lua
        .function("list", move |lua, _| {
            let guard = Guard(Rc::clone(&counted));
            let mut names = ["a", "b", "c"].into_iter();
            let step = lua.function("step", move |lua, _| {
                let _ = &guard;
                match names.next() {
                    Some(name) => Ok(vec![lua.string(name.as_bytes())?]),
                    None => Ok(vec![]),
                }
            })?;
            Ok(vec![step])
        })
        .unwrap();
    lua.set_global("list", list).unwrap();
    let source = "local all = '' for name in list() do collectgarbage() all = all .. name end collectgarbage() return all";
    assert_eq!(results(&mut lua, source), "'abc'");
    assert_eq!(
        results(&mut lua, "for i = 1, 100 do list() end collectgarbage()"),
        ""
    );
    assert!(dropped.get() >= 99, "{}", dropped.get());
    drop(lua);
    assert_eq!(dropped.get(), 101);
}

#[test]
fn values_that_the_host_holds_stay_alive() {
    let mut lua = Lua::new(LIMITS).unwrap();
    let held = lua.string(b"held by the host").unwrap();
    let table = lua.table().unwrap();
    lua.set(&table, Value::Integer(1), held).unwrap();
    let make = lua
        .function("make", |lua, arguments| {
            let table = lua.table()?;
            for number in 1..=100 {
                let text = lua.string(format!("item {number}").as_bytes())?;
                lua.set(&table, Value::Integer(number), text)?;
                // The program collects while the host holds these values.
                lua.call(&arguments[0], &[])?;
            }
            Ok(vec![table])
        })
        .unwrap();
    lua.set_global("make", make).unwrap();
    let source = "local t = make(collectgarbage) return t[1], t[100], #t";
    assert_eq!(results(&mut lua, source), "'item 1' 'item 100' 100");
    let kept = run_in(&mut lua, b"return {'a', x = {y = 'b'}}").unwrap();
    run_in(&mut lua, b"collectgarbage()").unwrap();
    assert_eq!(show(&lua, &kept[0]), "{1='a' x={y='b'}}");
    assert_eq!(lua.bytes(&held), Some(&b"held by the host"[..]));
    assert_eq!(lua.get(&table, &Value::Integer(1)), held);
    assert_eq!(lua.get(&held, &Value::Integer(1)), Value::Nil);
    assert_eq!(lua.entries(&table), vec![(Value::Integer(1), held)]);
    assert!(lua.set(&held, Value::Integer(1), held).is_err());
    assert!(lua.set(&table, Value::Nil, held).is_err());
}

#[test]
fn errors_pass_through_the_host() {
    let seen = RefCell::new(Vec::new());
    let mut lua = Lua::new(LIMITS).unwrap();
    let through = lua
        .function("through", |lua, arguments| lua.call(&arguments[0], &[]))
        .unwrap();
    let catch = lua
        .function("catch", |lua, arguments| {
            if let Err(error) = lua.call(&arguments[0], &[]) {
                seen.borrow_mut().push(error.to_string());
            }
            Ok(vec![])
        })
        .unwrap();
    lua.set_global("through", through).unwrap();
    lua.set_global("catch", catch).unwrap();
    let shown = results(&mut lua, "through(function()\n error('inside')\nend)");
    assert_eq!(
        shown,
        "[string \"channel program\"]:2: inside\nstack traceback:\n\t[C]: in function 'error'\n\t[string \"channel program\"]:2: in function <[string \"channel program\"]:1>\n\t[C]: in function 'through'\n\t[string \"channel program\"]:1: in main chunk"
    );
    let source = "local co = coroutine.create(function() through(function() error({code = 7}) end) end) local _, e = coroutine.resume(co) return e.code";
    assert_eq!(results(&mut lua, source), "7");
    assert_eq!(
        results(&mut lua, "catch(function() error('caught') end) return 1"),
        "1"
    );
    let shown = results(
        &mut lua,
        "catch(function() error('caught') end)\n error('after')",
    );
    assert!(
        shown.contains(":2: in main chunk") && !shown.contains("caught"),
        "{shown}"
    );
    assert_eq!(seen.borrow().len(), 2);
    let shown = results(&mut lua, "error({code = 3})");
    assert_eq!(
        shown,
        "stack traceback:\n\t[C]: in function 'error'\n\t[string \"channel program\"]:1: in main chunk"
    );
    let value = lua.error_value().unwrap();
    assert_eq!(show(&lua, &value), "{code=3}");
    let shown = results(&mut lua, "local function f() through(f) end f()");
    assert!(
        shown.starts_with("[string \"channel program\"]:1: the function is running already"),
        "{shown}"
    );
}

#[test]
fn the_host_can_stop_a_program() {
    let asked = Cell::new(0);
    let mut lua = Lua::new(Limits {
        instructions: u64::MAX,
        ..LIMITS
    })
    .unwrap();
    lua.stop_when(|| {
        asked.set(asked.get() + 1);
        asked.get() > 10
    });
    assert_eq!(run_in(&mut lua, b"while true do end"), Err(Error::Stopped));
    assert!(lua.traceback().unwrap().contains("in main chunk"));
    let search = b"return (('a'):rep(30)):find(('a?'):rep(30) .. ('a'):rep(30) .. 'b')";
    asked.set(0);
    assert_eq!(run_in(&mut lua, search), Err(Error::Stopped));
    // A coroutine cannot catch it.
    asked.set(0);
    let hidden =
        b"coroutine.resume(coroutine.create(function() while true do end end)) while true do end";
    assert_eq!(run_in(&mut lua, hidden), Err(Error::Stopped));
    assert_eq!(asked.get(), 11);
}

#[test]
fn limits_count_the_same_each_time() {
    let source = b"local t = {} for i = 1, 1000 do t['k' .. i] = {i} end table.sort({3, 2, 1}) return tostring(t)";
    let counts: Vec<_> = (0..3)
        .map(|_| {
            let mut lua = Lua::new(LIMITS).unwrap();
            run_in(&mut lua, source).unwrap();
            (lua.instructions_used(), lua.memory_bytes())
        })
        .collect();
    assert_eq!(counts[0], counts[1]);
    assert_eq!(counts[1], counts[2]);
    assert!(
        counts[0].0 > 1000 && counts[0].1 > 50_000,
        "{:?}",
        counts[0]
    );
}

#[test]
fn memory_that_nothing_refers_to_is_used_again() {
    let mut lua = Lua::new(LIMITS).unwrap();
    run_in(&mut lua, b"collectgarbage()").unwrap();
    let before = lua.memory_bytes();
    let source = b"for i = 1, 100 do
        local t = {} t.t = t t.f = function() return t end
        t.co = coroutine.create(function() coroutine.yield(t) end) coroutine.resume(t.co)
        for j = 1, 1000 do t[j] = 'text ' .. j t['key' .. j] = {j} end
    end collectgarbage()";
    run_in(&mut lua, source).unwrap();
    let after = lua.memory_bytes();
    assert!(after < before + 20_000, "{before} {after}");
}
