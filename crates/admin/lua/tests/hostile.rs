//! Scripts that try to crash, to hang, or to use more than they may. All run on a stack of 2 MiB.
#![forbid(unsafe_code)]

mod common;

use common::{LIMITS, run_within};
use millpond_lua::Limits;

const STACK_BYTES: usize = 2 << 20;

/// Runs a script on a small stack.
fn run_small(limits: Limits, source: &str) -> String {
    let source = source.as_bytes().to_vec();
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    let running = thread.spawn(move || run_within(limits, &source)).unwrap();
    running.join().unwrap()
}

/// The script fails with a message that has this text.
fn fails(source: &str, expected: &str) {
    let outcome = run_small(LIMITS, source);
    let shown: String = source.chars().take(80).collect();
    assert!(outcome.contains(expected), "{shown}: {outcome}");
}

#[test]
fn nested_source_is_refused() {
    let nested = |open: &str, middle: &str, close: &str, count: usize| {
        format!("{}{middle}{}", open.repeat(count), close.repeat(count))
    };
    for count in [250, 100_000] {
        for source in [
            nested("do ", "x = 1", " end", count),
            nested("if x then ", "x = 1", " end", count),
            nested("while true do ", "break", " end", count),
            nested("repeat ", "x = 1", " until true", count),
            nested("f = function() ", "x = 1", " end", count),
            format!("x = {}", nested("(", "1", ")", count)),
            format!("x = {}", nested("{", "1", "}", count)),
            format!("x = {}", nested("a[", "1", "]", count)),
            format!("x = {}", nested("f(", "1", ")", count)),
            format!("x = {}", nested("not ", "1", "", count)),
            format!("x = {}", nested("- ", "1", "", count)),
            format!("x = {}", nested("1 ^ ", "1", "", count)),
            format!("x = {}", nested("'a' .. ", "1", "", count)),
            format!(
                "x = {}",
                nested("(function() return ", "1", " end)()", count)
            ),
            format!("x = {}", nested("{a = ", "1", "}", count)),
            format!("{}a = 1", "a, ".repeat(count)),
        ] {
            fails(&source, "too many C levels (limit is 200)");
        }
    }
}

#[test]
fn long_source_is_compiled_or_refused() {
    let count = 100_000;
    let sum = format!("return 1{}", " + 1".repeat(count));
    assert_eq!(run_small(LIMITS, &sum), "100001");
    let chosen = format!("return nil{}", " or nil".repeat(count));
    assert_eq!(run_small(LIMITS, &chosen), "nil");
    let fields = format!("return a{}", ".a".repeat(count));
    assert!(run_small(LIMITS, &fields).contains("attempt to index"));
    let calls = format!("local function f() return f end f{}", "()".repeat(count));
    assert_eq!(run_small(LIMITS, &calls), "");
    let list = format!("local t = {{{}}} return #t", "1,".repeat(count));
    assert_eq!(run_small(LIMITS, &list), "100000");
    let statements = "x = 1 ".repeat(count);
    assert_eq!(run_small(LIMITS, &statements), "");
    let constants: String = (0..count)
        .map(|number| format!("x = '{number}' "))
        .collect();
    let large = Limits {
        memory_bytes: 100 << 20,
        ..LIMITS
    };
    assert_eq!(
        run_small(large, &format!("{constants} return x")),
        "'99999'"
    );
    assert_eq!(run_small(LIMITS, &constants), "memory");
    fails(&format!("f({})", vec!["1"; 300].join(",")), "too complex");
    fails(
        &format!("return {}", vec!["a"; 300].join(",")),
        "too complex",
    );
    let locals: String = (0..300).map(|number| format!("local a{number} ")).collect();
    fails(
        &locals,
        "too many local variables (limit is 200) in main function",
    );
    let shared: String = (0..30)
        .map(|function| {
            let names: Vec<_> = (0..10).map(|name| format!("v{function}_{name}")).collect();
            format!("local {} local function f{function}() ", names.join(","))
        })
        .collect();
    let uses: Vec<_> = (0..30)
        .flat_map(|function| (0..10).map(move |name| format!("v{function}_{name}")))
        .collect();
    let source = format!(
        "{shared} local function g() return {{{}}} end {}",
        uses.join(","),
        "end ".repeat(30)
    );
    fails(
        &source,
        "too many upvalues (limit is 255) in function at line 1",
    );
}

#[test]
fn endless_work_reaches_the_instruction_limit() {
    for source in [
        "while true do end",
        "repeat until false",
        "goto a ::a:: goto a",
        "::a:: do goto a end",
        "for i = 1, 9223372036854775807 do end",
        "for i = 2, 1, 0 do end",
        "local function f() return f() end f()",
        "local t = {} while true do t[1] = 1 t[1] = nil end",
        "local t = setmetatable({}, {__index = function(t, k) return k end}) while true do t = t and t end",
        "while true do ('x'):rep(100000) end",
        "while true do collectgarbage() end",
        "local s = ('a'):rep(1000000) while true do s:find('b', 1, true) end",
        "local s = ('a'):rep(1000000) while true do s:upper() end",
        "local s = ('a'):rep(10000) return s:find(('a'):rep(5000) .. 'b', 1, true), s:rep(200):find(('a'):rep(5000) .. 'b', 1, true)",
        "return (('a'):rep(30)):find(('a?'):rep(30) .. ('a'):rep(30) .. 'b')",
        "return (('a'):rep(100000)):find('.-.-.-.-b')",
        "return (('a'):rep(100000)):find('.*.*.*.*b')",
        "return (('x'):rep(100000)):gsub('(.-)(.-)(.-)y', '')",
        "return (('('):rep(1000000)):find('%b()%b()')",
        "return (('a'):rep(1000000)):find('[' .. ('b'):rep(100000) .. ']')",
        "local t = setmetatable({}, {__len = function() return 2^60 end}) table.insert(t, 1, 1)",
        "local t = setmetatable({}, {__len = function() return 2^60 end}) return table.remove(t, 1)",
        "local t = {} for i = 1, 10000 do t[i] = i end while true do table.sort(t) end",
        "for w in (('a'):rep(100000)):gmatch('a-b') do end",
        "local co = coroutine.wrap(function() while true do coroutine.yield() end end) while true do co() end",
        "while true do coroutine.create(function() end) end",
        "while true do local x = {} x.x = x end",
        "while true do local x x = function() return x end end",
        "local function f(...) return select('#', ...) end local t = {} for i = 1, 10000 do t[i] = i end while true do f(table.unpack(t)) end",
    ] {
        let limits = Limits {
            instructions: 1_000_000,
            ..LIMITS
        };
        assert_eq!(run_small(limits, source), "instructions", "{source}");
    }
}

#[test]
fn growth_reaches_the_memory_limit() {
    for source in [
        "return ('x'):rep(1000000000)",
        "return ('x'):rep(9223372036854775807)",
        "return ('x'):rep(1000, ('y'):rep(1000000))",
        "local s = 'x' while true do s = s .. s end",
        "local t = {} while true do t[#t + 1] = t end",
        "local t = {} local i = 0 while true do i = i + 1 t[-i] = i end",
        "local t = {} while true do t = {t} end",
        "local t = {} local n = 0 while true do n = n + 1 t[n] = function() return t end end",
        "local t = {} local n = 0 while true do n = n + 1 t[n] = coroutine.create(print or next) end",
        "local function f() return 1 + f() end f()",
        "local function f(...) return f(1, ...) + 1 end f()",
        "local t = setmetatable({}, {}) getmetatable(t).__index = function(t, k) return t[k + 1] .. 'x' end return t[1]",
        "return (('x'):rep(1000000)):gsub('x', ('y'):rep(1000))",
        "return ('%s'):rep(1000):format(table.unpack((function() local t = {} for i = 1, 1000 do t[i] = ('x'):rep(100000) end return t end)()))",
        "local t = {} for i = 1, 1000 do t[i] = i .. ('x'):rep(100000) end",
        "return table.concat({1, 2}, ('x'):rep(9000000))",
        "local s = ('x'):rep(4000000) local t = {s, s, s, s} return table.concat(t)",
        "local n, last = 0 while true do n = n + 1 local before = last last = coroutine.wrap(function() return before end) end",
    ] {
        let outcome = run_small(LIMITS, source);
        assert_eq!(outcome, "memory", "{source}");
    }
}

#[test]
fn native_recursion_is_limited() {
    for source in [
        "local t = setmetatable({}, {}) getmetatable(t).__tostring = function() return tostring(t) end tostring(t)",
        "local function f() table.sort({2, 1}, f) end f()",
        "local function f() return (('a'):gsub('a', f)) end f()",
        "local t = setmetatable({}, {}) getmetatable(t).__pairs = function() return pairs(t) end pairs(t)",
        "local t = setmetatable({}, {}) getmetatable(t).__len = function() return table.unpack(t) end table.unpack(t)",
        "local t = setmetatable({}, {}) getmetatable(t).__lt = function(a, b) table.sort({a, b}) end table.sort({t, t})",
        "local t = setmetatable({}, {}) getmetatable(t).__index = function(_, k) return (k:gsub('.', t)) end return (('a'):gsub('.', t))",
        "local t = setmetatable({}, {}) getmetatable(t).__tostring = function() return ('%s'):format(t) end return ('%s'):format(t)",
        "local function f() assert(coroutine.resume(coroutine.create(f))) end f()",
        "local function f() coroutine.wrap(f)() end f()",
    ] {
        fails(source, "C stack overflow");
    }
    // Coroutines whose function is `resume` itself.
    let chain = "local list = {coroutine.create(function() end)}
        for i = 2, 1000 do list[i] = coroutine.create(coroutine.resume) end
        local reversed = {} for i = #list, 1, -1 do reversed[#reversed + 1] = list[i] end
        local result = table.pack(coroutine.resume(table.unpack(reversed)))
        return result[1], result[result.n]";
    assert_eq!(run_small(LIMITS, chain), "true 'C stack overflow'");
    // Deep native recursion, at each level a search that nests as deeply as it may.
    let mixed = "local s, p = ('a'):rep(190), ('a?'):rep(190)
        local function f() s:find(p) table.sort({2, 1}, f) end f()";
    fails(mixed, "C stack overflow");
}

#[test]
fn metatables_that_refer_to_themselves_end_in_errors() {
    fails(
        "local t = setmetatable({}, {}) getmetatable(t).__index = t return t.x",
        "loop in gettable",
    );
    fails(
        "local t = setmetatable({}, {}) getmetatable(t).__newindex = t t.x = 1",
        "loop in settable",
    );
    fails(
        "local t = setmetatable({}, {}) getmetatable(t).__call = t t()",
        "attempt to call local 't' (a table value)",
    );
    let own = "local t = {} setmetatable(t, t) t.__index = t t.__newindex = t t.__call = t t.__eq = t t.__lt = t ";
    for use_it in [
        "t.x = t.y",
        "t()",
        "return t < t",
        "return t <= {}",
        "return t == setmetatable({}, t)",
    ] {
        let outcome = run_small(LIMITS, &format!("{own}{use_it}"));
        assert!(outcome.contains("traceback"), "{use_it}: {outcome}");
    }
}

#[test]
fn tables_changed_while_they_are_traversed_do_no_harm() {
    for source in [
        "local t = {} for i = 1, 100 do t[i] = i t['k' .. i] = i end for k in pairs(t) do t[k] = nil end return next(t)",
        "local t = {1, 2, 3} for k in pairs(t) do t[k] = nil collectgarbage() end return next(t)",
    ] {
        assert_eq!(run_small(LIMITS, source), "nil", "{source}");
    }
    let growing = "local t = {a = 1} for k in pairs(t) do for i = 1, 100 do t[k .. i] = i end if #k > 20 then break end end";
    run_small(LIMITS, growing);
    let sorted = "local t = {5, 4, 3, 2, 1} table.sort(t, function(a, b) t[#t] = nil t[1] = {} return true end)";
    run_small(LIMITS, sorted);
    fails(
        "local t = {1, 2, 3, 4} table.sort(t, function() return true end)",
        "invalid order function",
    );
    fails("next({}, 'x')", "invalid key to 'next'");
    let random =
        "local t, x = {}, 1 for i = 1, 300 do x = (x * 1103515245 + 12345) % 2^31 t[i] = x end
        table.sort(t, function(a, b) x = (x * 1103515245 + 12345) % 2^31 return x % 3 == 0 end)";
    run_small(LIMITS, random);
}

#[test]
fn coroutines_cannot_be_misused() {
    fails(
        "local co co = coroutine.wrap(function() co() end) co()",
        "cannot resume non-suspended coroutine",
    );
    fails(
        "coroutine.yield()",
        "attempt to yield from outside a coroutine",
    );
    fails(
        "coroutine.wrap(function() ('a'):gsub('a', coroutine.yield) end)()",
        "attempt to yield across a C-call boundary",
    );
    fails("local co = coroutine.wrap(next) co()", "bad argument #1");
    fails("coroutine.resume(5)", "coroutine expected");
    fails("coroutine.resume()", "coroutine expected");
    let own = "local co co = coroutine.create(function() return coroutine.resume(co) end) return coroutine.resume(co)";
    assert_eq!(
        run_small(LIMITS, own),
        "true false 'cannot resume non-suspended coroutine'"
    );
    let main = "local main = coroutine.running() return coroutine.wrap(function() return coroutine.resume(main) end)()";
    assert_eq!(
        run_small(LIMITS, main),
        "false 'cannot resume non-suspended coroutine'"
    );
}

#[test]
fn odd_bytes_are_refused() {
    for source in [
        "\0",
        "x = \0",
        "\u{1}",
        "x = 'a\0b' return #x",
        "é = 1",
        "#!/bin/lua\nreturn 1",
        "\u{1b}Lua",
    ] {
        run_small(LIMITS, source);
    }
    for bytes in [
        &b"\xff\xfe"[..],
        b"x = '\xff'",
        b"--[[\xff",
        b"'\\",
        b"'\\x",
        b"'\\1",
        b"[=[",
        b"[=",
        b"[==",
        b"x=[=a",
        b"::",
        b"goto",
        b"...",
        b"0x",
        b"'\\z",
        b"'\\\r",
    ] {
        run_within(LIMITS, bytes);
    }
}
