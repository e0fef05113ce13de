//! The library: results and error texts as OpenZFS 2.3 gives them, also where Lua 5.2 differs.
#![forbid(unsafe_code)]

mod common;

use common::run;

fn check(cases: &[(&str, &str)]) {
    for (source, expected) in cases {
        assert_eq!(run(source), *expected, "{source}");
    }
}

/// The first line of each script's error, without the position.
fn check_errors(cases: &[(&str, &str)]) {
    for (source, expected) in cases {
        let shown = run(source);
        let first = shown.lines().next().unwrap_or_default();
        let message = first
            .strip_prefix("[string \"channel program\"]:1: ")
            .unwrap_or(first);
        assert_eq!(message, *expected, "{source}");
    }
}

#[test]
fn the_functions_are_those_of_channel_programs() {
    let names = |table: &str| {
        run(&format!(
            "local r = {{}} for k in pairs({table}) do r[#r + 1] = k end table.sort(r) return table.concat(r, ' ')"
        ))
    };
    assert_eq!(
        names("_G"),
        "'_G _VERSION assert collectgarbage coroutine error getmetatable ipairs next pairs rawequal rawget rawlen rawset select setmetatable string table tonumber tostring type'"
    );
    assert_eq!(
        names("string"),
        "'byte char find format gmatch gsub len lower match rep reverse sub upper'"
    );
    assert_eq!(names("table"), "'concat insert pack remove sort unpack'");
    assert_eq!(
        names("coroutine"),
        "'create resume running status wrap yield'"
    );
    assert_eq!(run("return _VERSION"), "'Lua 5.2'");
}

#[test]
fn basic_functions() {
    check(&[
        (
            "return select(-1, 1, 2), select('#'), select(2, 'a', 'b')",
            "2 0 'b'",
        ),
        (
            "return tonumber('z', 36), tonumber('7fffffffffffffff', 16), tonumber('1e1'), tonumber(nil)",
            "35 9223372036854775807 nil nil",
        ),
        (
            "return tonumber('0x1p4'), tonumber('0x.1'), tonumber('0x1p'), tonumber('9223372036854775808')",
            "16 0 nil -9223372036854775808",
        ),
        (
            "return next({}), next({5}), rawlen('abc'), rawlen({1}), rawequal('a', 'a')",
            "nil 1 3 1 true",
        ),
        (
            "return tostring(nil), tostring(true), tostring(-5), tostring('x')",
            "'nil' 'true' '-5' 'x'",
        ),
        (
            "return tostring({}):match('^table: %x+$') ~= nil, tostring(next):match('^function: %x+$') ~= nil",
            "true true",
        ),
        (
            "return tostring(setmetatable({}, {__tostring = function() return 5 end}))",
            "'5'",
        ),
        (
            "return collectgarbage('count') > 0, collectgarbage(), collectgarbage('isrunning')",
            "true 0 true",
        ),
        ("return assert(1, 2, 3)", "1 2 3"),
    ]);
    check_errors(&[
        (
            "tonumber()",
            "bad argument #1 to 'tonumber' (value expected)",
        ),
        (
            "tonumber('10', 99)",
            "bad argument #2 to 'tonumber' (base out of range)",
        ),
        (
            "select(0)",
            "bad argument #1 to 'select' (index out of range)",
        ),
        (
            "setmetatable(1, {})",
            "bad argument #1 to 'setmetatable' (table expected, got number)",
        ),
        (
            "setmetatable({}, 1)",
            "bad argument #2 to 'setmetatable' (nil or table expected)",
        ),
        (
            "ipairs()",
            "bad argument #1 to 'ipairs' (table expected, got internal_type_error)",
        ),
        (
            "pairs(nil)",
            "bad argument #1 to 'pairs' (table expected, got nil)",
        ),
        (
            "collectgarbage('bad')",
            "bad argument #1 to 'collectgarbage' (invalid option 'bad')",
        ),
        ("rawset({}, nil, 1)", "table index is nil"),
        (
            "rawlen(5)",
            "bad argument #1 to 'rawlen' (table or string expected)",
        ),
        ("next({}, 'x')", "invalid key to 'next'"),
        ("assert()", "assertion failed!"),
        (
            "coroutine.resume(5)",
            "bad argument #1 to 'resume' (coroutine expected)",
        ),
        (
            "coroutine.create(5)",
            "bad argument #1 to 'create' (function expected, got number)",
        ),
        (
            "coroutine.yield()",
            "attempt to yield from outside a coroutine",
        ),
    ]);
}

#[test]
fn functions_for_strings() {
    check(&[
        (
            "return ('hello'):sub(2, -2), ('hello'):sub(-3), ('hello'):sub(10), ('x'):rep(-1)",
            "'ell' 'llo' '' ''",
        ),
        (
            "return ('abc'):byte(1, -1), string.char(65, 66), ('abc'):reverse(), ('aB'):upper()",
            "97 'AB' 'cba' 'AB'",
        ),
        (
            "return ('abc'):find('b'), ('abc'):find('b', -10), ('abc'):find('', 4), ('abc'):find('', 5)",
            "2 2 4 nil",
        ),
        (
            "return ('a.c'):find('.', 1, true), ('a)c'):find(')')",
            "2 2 2",
        ),
        (
            "return ('  trim  '):match('^%s*(.-)%s*$'), ('f(a(b)c)d'):match('%b()'), ('THE (quick) fox'):match('%f[%a]%a+', 2)",
            "'trim' '(a(b)c)' 'quick'",
        ),
        ("return ('hello'):match('()ll()')", "3 5"),
        (
            "return ('abcabc'):match('(abc)%1'), (']abc'):match('[]]'), ('a-c'):match('[a-]+'), ('x^y'):match('[x^]+')",
            "'abc' ']' 'a-' 'x^'",
        ),
        (
            "return ('a$c'):match('a$c'), ('a\\0b'):match('a%zb') ~= nil",
            "'a$c' true",
        ),
        ("return ('abc'):gsub('', '-')", "'-a-b-c-' 4"),
        ("return ('abc'):gsub('b*', 'x')", "'xaxxcx' 4"),
        (
            "return ('hello world'):gsub('(%w+)', '<%1>', 1)",
            "'<hello> world' 1",
        ),
        (
            "return ('abc'):gsub('%w', '%0%0'), ('abc'):gsub('b', 'x', -1)",
            "'aabbcc' 'axc' 1",
        ),
        (
            "local r = {} for k, v in ('a=1, b=2'):gmatch('(%w+)=(%w+)') do r[#r + 1] = k .. v end return table.concat(r, ' ')",
            "'a1 b2'",
        ),
        (
            "return ('%5s|%-5s|%.2s|%05d|%+d|% d|%x|%X|%#x|%o|%i|%u'):format('a', 'b', 'xyz', 42, 5, 5, 255, 255, 255, 8, 7, -1)",
            "'    a|b    |xy|00042|+5| 5|ff|FF|0xff|10|7|18446744073709551615'",
        ),
        (
            "return ('%5.3d|%-5.3d|%05.3d|%.0d|%#x'):format(7, 7, 7, 0, 0)",
            "'  007|007  |00007|0|0x0'",
        ),
        (
            "return ('%q'):format('a\\0b\\r\\n\"\\\\\\1272'), ('%d'):format('10'), ('%c%%'):format(65)",
            "'\"a\\0b\\13\\\n\\\"\\\\\\1272\"' '10' 'A%'",
        ),
        ("return ('a'):rep(300):find(('a?'):rep(150))", "1 150"),
    ]);
}

#[test]
fn errors_of_functions_for_strings() {
    check_errors(&[
        (
            "string.rep()",
            "bad argument #1 to 'rep' (string expected, got internal_type_error)",
        ),
        (
            "('x'):rep({})",
            "bad argument #1 to 'rep' (number expected, got table)",
        ),
        (
            "string.rep({})",
            "bad argument #1 to 'rep' (string expected, got table)",
        ),
        ("('x'):bad()", "attempt to call method 'bad' (a nil value)"),
        (
            "string.char(256)",
            "bad argument #1 to 'char' (value out of range)",
        ),
        (
            "('%d'):format('x')",
            "bad argument #1 to 'format' (number expected, got string)",
        ),
        ("('%d'):format()", "bad argument #1 to 'format' (no value)"),
        ("('%f'):format(1)", "invalid option '%f' to 'format'"),
        (
            "('%123d'):format(1)",
            "invalid format (width or precision too long)",
        ),
        ("('%------d'):format(1)", "invalid format (repeated flags)"),
        ("('a'):find('[')", "malformed pattern (missing ']')"),
        ("('a'):find('%')", "malformed pattern (ends with '%')"),
        ("('a'):find('(')", "unfinished capture"),
        ("('a'):match(')')", "invalid pattern capture"),
        ("('a'):find('%1')", "invalid capture index %1"),
        ("('a'):find('%f')", "missing '[' after '%f' in pattern"),
        (
            "('a'):find('%b')",
            "malformed pattern (missing arguments to '%b')",
        ),
        ("('a'):find(('('):rep(40))", "too many captures"),
        ("('abc'):gsub('b', '%2')", "invalid capture index"),
        (
            "('abc'):gsub('b', '%x')",
            "invalid use of '%' in replacement string",
        ),
        (
            "('abc'):gsub('b', function() return {} end)",
            "invalid replacement value (a table)",
        ),
        (
            "('abc'):gsub('b', true)",
            "bad argument #2 to 'gsub' (string/function/table expected)",
        ),
        ("('a'):rep(300):find(('a?'):rep(300))", "C stack overflow"),
    ]);
}

#[test]
fn functions_for_tables() {
    check(&[
        (
            "return table.concat({1, 2, 3}, ', '), table.concat({1, 2, 3}, ', ', 2), table.concat({}, 'x')",
            "'1, 2, 3' '2, 3' ''",
        ),
        (
            "local t = {1, 2, 3} table.insert(t, 4) table.insert(t, 1, 0) return table.concat(t, ' '), table.remove(t, 1), table.remove(t), #t",
            "'0 1 2 3 4' 0 4 3",
        ),
        (
            "return table.remove({}), table.unpack({1, 2, 3}, 2)",
            "nil 2 3",
        ),
        (
            "local t = table.pack(1, nil, 3) return t.n, #t, t[2]",
            "3 3 nil",
        ),
        (
            "local t = {3, 1, 2} table.sort(t) local u = {'b', 'a'} table.sort(u, function(a, b) return a > b end) return table.concat(t), table.concat(u)",
            "'123' 'ba'",
        ),
    ]);
    check_errors(&[
        (
            "table.concat({1, 2, {}}, ',')",
            "invalid value (table) at index 3 in table for 'concat'",
        ),
        (
            "table.insert({}, 5, 1)",
            "bad argument #2 to 'insert' (position out of bounds)",
        ),
        (
            "table.insert({}, 1, 2, 3)",
            "wrong number of arguments to 'insert'",
        ),
        (
            "table.remove({}, 5)",
            "bad argument #1 to 'remove' (position out of bounds)",
        ),
        (
            "table.unpack({}, 1, 10000000)",
            "too many results to unpack",
        ),
        (
            "table.sort({3, 1, 'x'})",
            "attempt to compare string with number",
        ),
        (
            "table.sort({1, 2, 3, 4}, function() return true end)",
            "invalid order function for sorting",
        ),
        (
            "table.sort(5)",
            "bad argument #1 to 'sort' (table expected, got number)",
        ),
    ]);
}
