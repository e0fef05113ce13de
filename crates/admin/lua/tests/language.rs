//! The language: small scripts and what they return.
#![forbid(unsafe_code)]

mod common;

use common::run;

/// Each script returns what stands beside it.
fn check(cases: &[(&str, &str)]) {
    for (source, expected) in cases {
        assert_eq!(run(source), *expected, "{source}");
    }
}

#[test]
fn numbers_are_integers_that_wrap_around() {
    check(&[
        (
            "return 7 / 2, -7 / 2, 7 / -2, 7 % 3, -7 % 3, 7 % -3",
            "3 -3 -3 1 -1 1",
        ),
        (
            "return 2 ^ 10, 2 ^ 63, 2 ^ 64, 2 ^ -1, (-2) ^ 3, -2 ^ 2, 2 ^ 3 ^ 2",
            "1024 -9223372036854775808 0 0 -8 -4 512",
        ),
        (
            "return 9223372036854775807 + 1, -9223372036854775807 - 2",
            "-9223372036854775808 9223372036854775807",
        ),
        (
            "return (-9223372036854775807 - 1) / -1, (-9223372036854775807 - 1) % -1",
            "-9223372036854775808 0",
        ),
        (
            "return 0xff, 0XFF, 18446744073709551615, 99999999999999999999999",
            "255 255 -1 200376420520689663",
        ),
        (
            "return '10' + 5, '0x10' * 1, ' 7 ' - 1, 10 .. '', 1 .. 2",
            "15 16 6 '10' '12'",
        ),
        (
            "return 1 == '1', 1 < 2, 'a' < 'b', 'a' < 'B', '' < '\\0', 'Z' <= 'Z'",
            "false true true false true true",
        ),
        (
            "local n = 0 for i = 3, 1, -1 do n = n * 10 + i end return n",
            "321",
        ),
        ("for i = '1', 1 do return i end", "1"),
        ("for i = 2, 1 do return i end", ""),
    ]);
}

#[test]
fn expressions_and_assignments() {
    check(&[
        ("local a, b, c = 1, 2 a, b = b, a return a, b, c", "2 1 nil"),
        (
            "local i, t = 1, {} i, t[i] = i + 1, 20 return i, t[1], t[2]",
            "2 20 nil",
        ),
        (
            "local t = {} t.x, t.y, t.z = (function() return 1, 2 end)() return t.x, t.y, t.z",
            "1 2 nil",
        ),
        (
            "local a, b = ((function() return 1, 2 end)()) return a, b",
            "1 nil",
        ),
        (
            "local t = {1, 2, (function() return 3, 4 end)()} return #t",
            "4",
        ),
        (
            "local t = {(function() return 3, 4 end)(), 1} return #t",
            "2",
        ),
        ("local t = {(function() return 3, 4 end)(),} return #t", "2"),
        ("local t = {(function() return 3, 4 end)();} return #t", "2"),
        (
            "return #{1, 2, nil, 4}, #{nil, nil, 3}, #{n = 1}, #{1, nil, nil}",
            "4 3 0 1",
        ),
        (
            "return {[1] = 'a', 'b'}[1]",
            "syntax: [string \"channel program\"]:1: <eof> expected near '['",
        ),
        (
            "local t = {[1] = 'a', 'b'} local n = 0 for _ in pairs(t) do n = n + 1 end return t[1], n",
            "'b' 1",
        ),
        (
            "return nil and 1, false or 2, 1 and 2, nil or false, 1 or error('x')",
            "nil 2 2 false 1",
        ),
        (
            "local a = 1 local b = a and (a > 0 and 'yes' or 'no') return b, not a, not not a",
            "'yes' false true",
        ),
        (
            "return 1 + 2 * 3 - 4 / 2, (1 + 2) * 3, -3 ^ 2, not 1 == 2, 'a' .. 'b' .. 1 + 1",
            "5 9 -9 false 'ab2'",
        ),
        ("return 1 < 2 == true, 'x' == 'x' and 1 ~= 2", "true true"),
        (
            "local s = [[\nline\n]] return s, #s, [==[ ]] ]==]",
            "'line\n' 5 ' ]] '",
        ),
        ("return '\\65\\x41\\z   \\n\\\\', \"\\'\"", "'AA\n\\' '''"),
        ("return #'a\\\nb'", "3"),
        ("x = 5 return x, _G.x, _ENV.x, _G._G == _G", "5 5 5 true"),
        ("local _ENV = {y = 7} return y", "7"),
        (
            "local function f() local _ENV = {z = 3} return function() return z end end return f()()",
            "3",
        ),
        ("return (...)", "nil"),
        ("return select('#', ...)", "0"),
        (
            "return ('x'):rep(3), #'abc', ('%d'):format(5)",
            "'xxx' 3 '5'",
        ),
        (
            "local t = {f = function(self, x) return self.n + x end, n = 10} return t:f(5)",
            "15",
        ),
        (
            "local t = {a = {b = {}}} function t.a.b.c(x) return x end function t.a.b:d(x) return self == t.a.b and x end return t.a.b.c(1), t.a.b:d(2)",
            "1 2",
        ),
        ("--[==[ comment\n]] ]==] return 1 -- end", "1"),
        (";;; return 1;", "1"),
    ]);
}

#[test]
fn blocks_loops_and_jumps() {
    check(&[
        (
            "local n = 0 while true do n = n + 1 if n == 5 then break end end return n",
            "5",
        ),
        (
            "local n = 0 repeat local done = n == 3 n = n + 1 until done return n",
            "4",
        ),
        (
            "for i = 1, 3 do for j = 1, 3 do if j == 2 then goto next end if i == 3 then return i, j end ::next:: end end",
            "3 1",
        ),
        (
            "do goto done end ::back:: do return 'back' end ::done:: goto back",
            "'back'",
        ),
        (
            "local n = 0 ::top:: n = n + 1 if n < 10 then goto top end return n",
            "10",
        ),
        (
            "local f = {} for i = 1, 3 do f[i] = function() return i end end return f[1](), f[2](), f[3]()",
            "1 2 3",
        ),
        (
            "local f = {} for _, v in ipairs{'a', 'b'} do f[#f + 1] = function() v = v .. '!' return v end end return f[1](), f[1](), f[2]()",
            "'a!' 'a!!' 'b!'",
        ),
        (
            "local f = {} local i = 0 while i < 3 do i = i + 1 local x = i f[i] = function() x = x + 1 return x end end return f[1](), f[1](), f[3]()",
            "2 3 4",
        ),
        (
            "local f = {} local i = 0 repeat i = i + 1 local x = i f[i] = function() return x end until x == 3 return f[1](), f[2](), f[3]()",
            "1 2 3",
        ),
        (
            "local f do local x = 1 f = function() x = x + 1 return x end end local y = 100 return f(), f(), y",
            "2 3 100",
        ),
        (
            "local f local n = 0 ::top:: local x = n n = n + 1 local g = function() return x end if n == 1 then f = g goto top end return f(), g()",
            "0 1",
        ),
        (
            "local f for i = 1, 5 do local x = i f = f or function() return x end if i == 3 then break end end return f()",
            "1",
        ),
        ("do goto l1 local a ::l1:: ; end return 1", "1"),
        (
            "goto l1 local a ::l1:: return a",
            "syntax: [string \"channel program\"]:1: <goto l1> at line 1 jumps into the scope of local 'a'",
        ),
        (
            "goto nowhere",
            "syntax: [string \"channel program\"]:1: no visible label 'nowhere' for <goto> at line 1",
        ),
        (
            "::a:: ::a::",
            "syntax: [string \"channel program\"]:1: label 'a' already defined on line 1",
        ),
        (
            "break",
            "syntax: [string \"channel program\"]:1: <break> at line 1 not inside a loop",
        ),
    ]);
}

#[test]
fn functions_closures_and_varargs() {
    check(&[
        (
            "local function f(a, b, ...) return select('#', ...), a, b, ... end return f(1, 2, 3, nil)",
            "2 1 2 3 nil",
        ),
        (
            "local function f(...) local a, b = ... return a, b end return f(1)",
            "1 nil",
        ),
        (
            "local function f(...) return {...}, (...) end local t, x = f(7, 8) return #t, x",
            "2 7",
        ),
        (
            "local function f(...) return ... end return f(), 1, f(2, 3)",
            "nil 1 2 3",
        ),
        (
            "local function count(n) if n == 0 then return 'done' end return count(n - 1) end return count(100000)",
            "'done'",
        ),
        (
            "local function even(n) if n == 0 then return true end return odd(n - 1) end function odd(n) if n == 0 then return false end return even(n - 1) end return even(1001)",
            "false",
        ),
        (
            "local function make() local n = 0 return function() n = n + 1 return n end, function() return n end end local up, get = make() up() up() return get()",
            "2",
        ),
        (
            "local function f(n) if n == 0 then return 0 end return 1 + f(n - 1) end return f(20000)",
            "20000",
        ),
        ("local function f(a, a) return a end return f(1, 2)", "2"),
        (
            "return (function(...) local t = {} for i = 1, select('#', ...) do t[i] = (select(i, ...)) end return #t end)(1, 2, 3)",
            "3",
        ),
        (
            "local t = setmetatable({}, {__call = function(self, a, b) return a, b, self ~= nil end}) return t(1, 2)",
            "1 2 true",
        ),
        (
            "local t = setmetatable({}, {__call = function(self, a) return a end}) local function f() return t(5) end return f()",
            "5",
        ),
    ]);
}

#[test]
fn metamethods() {
    check(&[
        (
            "local t = setmetatable({}, {__index = function(t, k) return k .. '!' end}) return t.x, t[1]",
            "'x!' '1!'",
        ),
        (
            "local base = {x = 1} local t = setmetatable({}, {__index = setmetatable({y = 2}, {__index = base})}) return t.x, t.y, t.z, rawget(t, 'x')",
            "1 2 nil nil",
        ),
        (
            "local log = {} local t = setmetatable({}, {__newindex = log}) t.x = 1 return rawget(t, 'x'), log.x",
            "nil 1",
        ),
        (
            "local V = {} V.__index = V V.__add = function(a, b) return a.v + b.v end V.__eq = function(a, b) return a.v == b.v end V.__lt = function(a, b) return a.v < b.v end V.__le = function(a, b) return a.v <= b.v end V.__len = function(a) return a.v end V.__unm = function(a) return -a.v end V.__concat = function(a, b) return 'cat' end local a, b = setmetatable({v = 1}, V), setmetatable({v = 2}, V) return a + b, a == b, a ~= b, a < b, a <= b, a > b, a >= b, #a, -a, a .. 'x', 'x' .. a, 1 .. a",
            "3 false true true true false false 1 -1 'cat' 'cat' 'cat'",
        ),
        (
            "local t = setmetatable({}, {__lt = function() return true end}) return t <= t, t < t",
            "false true",
        ),
        (
            "return tostring(setmetatable({}, {__tostring = function() return 'me' end}))",
            "'me'",
        ),
        (
            "local t = setmetatable({}, {__metatable = 'locked'}) return getmetatable(t)",
            "'locked'",
        ),
        (
            "local t = setmetatable({}, {__pairs = function() return function(_, k) if not k then return 1, 2 end end, nil, nil end}) for k, v in pairs(t) do return k, v end",
            "1 2",
        ),
        (
            "local t = setmetatable({}, {__len = function() return 3 end}) return select('#', table.unpack(t))",
            "3",
        ),
        (
            "local mt = {__eq = function() return true end} return setmetatable({}, mt) == setmetatable({}, mt), setmetatable({}, mt) == 1, {} == {}",
            "true false false",
        ),
        (
            "return getmetatable('').__index == string, ('x').len == string.len",
            "true true",
        ),
    ]);
}

#[test]
fn coroutines() {
    check(&[
        (
            "local co = coroutine.create(function(a, b) local c = coroutine.yield(a + b) local d, e = coroutine.yield(c * 2) return d + e end) return select(2, coroutine.resume(co, 1, 2)), select(2, coroutine.resume(co, 10)), coroutine.resume(co, 3, 4)",
            "3 20 true 7",
        ),
        (
            "local co = coroutine.wrap(function() for i = 1, 3 do coroutine.yield(i) end end) return co(), co(), co(), co()",
            "1 2 3",
        ),
        (
            "local co = coroutine.create(function() error({code = 5}) end) local ok, e = coroutine.resume(co) return ok, e.code, coroutine.status(co)",
            "false 5 'dead'",
        ),
        (
            "local co = coroutine.create(function() local t = setmetatable({}, {__index = function(_, k) return coroutine.yield(k) end}) return t.x .. t.y end) coroutine.resume(co) coroutine.resume(co, 'a') return coroutine.resume(co, 'b')",
            "true 'ab'",
        ),
        (
            "local co = coroutine.wrap(function() for x in coroutine.yield do if x == 'end' then return 'over' end end end) co() co(1) return co('end')",
            "'over'",
        ),
        (
            "return coroutine.wrap(function() return coroutine.wrap(function() return coroutine.yield(1) end)() end)()",
            "1",
        ),
        (
            "local f = coroutine.wrap(function(...) return select('#', ...) end) return f(nil, nil)",
            "2",
        ),
        (
            "local co = coroutine.wrap(coroutine.yield) return co(1, 2), co(3)",
            "1 3",
        ),
        (
            "local co = coroutine.create(coroutine.resume) return coroutine.resume(co, coroutine.create(function(x) return x end), 9)",
            "true true 9",
        ),
        ("return coroutine.isyieldable", "nil"),
    ]);
}

#[test]
fn errors_name_what_is_wrong() {
    let first_line = |source: &str| run(source).lines().next().unwrap_or_default().to_owned();
    for (source, expected) in [
        ("abc.x = 1", "attempt to index global 'abc' (a nil value)"),
        (
            "local t = {} t.a.b = 1",
            "attempt to index field 'a' (a nil value)",
        ),
        (
            "local t t.a = 1",
            "attempt to index local 't' (a nil value)",
        ),
        (
            "local t local function f() t.a = 1 end f()",
            "attempt to index upvalue 't' (a nil value)",
        ),
        (
            "local t = {} t:go()",
            "attempt to call method 'go' (a nil value)",
        ),
        (
            "local t = {} t.go()",
            "attempt to call field 'go' (a nil value)",
        ),
        ("go()", "attempt to call global 'go' (a nil value)"),
        ("for x in 5 do end", "attempt to call a number value"),
        (
            "return 1 + {}",
            "attempt to perform arithmetic on a table value",
        ),
        (
            "local s = 'x' return s * 2",
            "attempt to perform arithmetic on local 's' (a string value)",
        ),
        (
            "return -{}",
            "attempt to perform arithmetic on a table value",
        ),
        ("return 'a' .. {}", "attempt to concatenate a table value"),
        (
            "return x .. 'a'",
            "attempt to concatenate global 'x' (a nil value)",
        ),
        ("return #nil", "attempt to get length of a nil value"),
        ("return {} < {}", "attempt to compare two table values"),
        ("return 1 < 'x'", "attempt to compare number with string"),
        ("return 1 / 0", "attempt to divide by zero"),
        ("return 1 % 0", "attempt to perform 'n%0'"),
        ("for i = 1, {} do end", "'for' limit must be a number"),
        (
            "for i = {}, 1 do end",
            "'for' initial value must be a number",
        ),
        ("for i = 1, 1, {} do end", "'for' step must be a number"),
        ("local t = {} t[nil] = 1", "table index is nil"),
        ("error('boom')", "boom"),
        ("error(5)", "5"),
        ("assert(false)", "assertion failed!"),
        ("assert(nil, 'told')", "told"),
        (
            "setmetatable(setmetatable({}, {__metatable = 1}), {})",
            "cannot change a protected metatable",
        ),
    ] {
        let expected = format!("[string \"channel program\"]:1: {expected}");
        assert_eq!(first_line(source), expected, "{source}");
    }
    assert_eq!(first_line("error('boom', 0)"), "boom");
    assert_eq!(first_line("error('boom', 2)"), "boom");
    assert_eq!(first_line("error({})"), "stack traceback:");
}

#[test]
fn syntax_errors_say_where() {
    for (source, expected) in [
        ("x = = 1", "1: unexpected symbol near '='"),
        ("x = 'abc\n", "1: unfinished string near ''abc'"),
        ("x = 'abc", "1: unfinished string near <eof>"),
        ("x = [[abc", "1: unfinished long string near <eof>"),
        ("--[[ abc", "1: unfinished long comment near <eof>"),
        ("x = 5 5", "1: unexpected symbol near '5'"),
        ("\n\nif x then", "3: 'end' expected near <eof>"),
        (
            "if x then\n\nx = 1",
            "3: 'end' expected (to close 'if' at line 1) near <eof>",
        ),
        ("f(", "1: unexpected symbol near <eof>"),
        ("local function 5", "1: <name> expected near '5'"),
        ("a.b:c = 1", "1: function arguments expected near '='"),
        ("x = @", "1: unexpected symbol near '@'"),
        ("x = 1.5", "1: malformed number near '1.5'"),
        ("x = 1a", "1: malformed number near '1a'"),
        ("x = 08", "1: malformed number near '08'"),
        ("x = [=a", "1: invalid long string delimiter near '[='"),
        ("function f(", "1: <name> or '...' expected near <eof>"),
        ("x = \"a\\qb\"", "1: invalid escape sequence near '\\q'"),
        ("x = \"\\400\"", "1: decimal escape too large near '\\400'"),
        ("f() = 1", "1: syntax error near '='"),
        ("return 1 return 2", "1: <eof> expected near 'return'"),
        (
            "function f() return ... end",
            "1: cannot use '...' outside a vararg function near '...'",
        ),
        ("for i do end", "1: '=' or 'in' expected near 'do'"),
        ("return ~1", "1: unexpected symbol near '~'"),
    ] {
        let outcome = run(source);
        let shown = outcome.strip_prefix("syntax: [string \"channel program\"]:");
        assert_eq!(shown, Some(expected), "{source}");
    }
}

#[test]
fn tracebacks_name_the_functions() {
    let shown = run(
        "local function f(n)\n if n == 0 then error('x') end\n f(n - 1)\n return 1\nend\nfunction g()\n f(30)\nend\ng()",
    );
    let mut expected =
        "[string \"channel program\"]:2: x\nstack traceback:\n\t[C]: in function 'error'\n"
            .to_owned();
    expected += "\t[string \"channel program\"]:2: in function 'f'\n";
    expected += &"\t[string \"channel program\"]:3: in function 'f'\n".repeat(8);
    expected += "\t...\n";
    expected += &"\t[string \"channel program\"]:3: in function 'f'\n".repeat(8);
    expected += "\t[string \"channel program\"]:3: in function 'f'\n";
    expected += "\t[string \"channel program\"]:7: in function 'g'\n\t[string \"channel program\"]:9: in main chunk";
    assert_eq!(shown, expected);
    for (source, line) in [
        (
            "local t = setmetatable({}, {__index = function() error('x') end}) return t.x",
            "in function '__index'",
        ),
        (
            "local t = setmetatable({}, {__add = function() error('x') end}) return t + 1",
            "in function '__add'",
        ),
        (
            "for x in function() error('x') end do end",
            "in function 'for iterator'",
        ),
        (
            "local t = {} function t:m() error('x') end t:m()",
            "in function 'm'",
        ),
        (
            "local function f() error('x') end local function g() return f() end g()",
            "(...tail calls...)",
        ),
        ("coroutine.wrap(function() error('x') end)()", "[C]: in ?"),
        ("string.rep()", "[C]: in function 'rep'"),
        (
            "table.sort({2, 1}, function() error('x') end)",
            "in function <[string \"channel program\"]:1>",
        ),
    ] {
        let shown = run(source);
        assert!(shown.contains(line), "{source}: {shown}");
    }
}
