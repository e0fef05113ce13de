//! Scripts that run while the collector runs as often as it can.

use super::Lua;
use crate::api::{Error, Limits};
use crate::value::Value;

/// Scripts that make objects in every way. Each returns `true`.
const SCRIPTS: &[&str] = &[
    "local co = coroutine.create(function()
            local function deep() local a, b, c, d, e, f, g, h, i, j = {}, {}, {}, {}, {}, {}, {}, {}, {}, {} return 1 end
            deep() coroutine.yield()
            local function later() local s = ('x'):rep(100) for i = 1, 9 do s = s .. i end
                local a, b, c, d, e, f, g, h, i, j, k, l = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 return #s + l end
            return later() end)
        coroutine.resume(co) collectgarbage() local ok, n = coroutine.resume(co) return ok and n == 121",
    "local t = {} for i = 1, 60 do t[i] = 'v' .. i t['k' .. i] = {i} end for i = 1, 60 do
        if t[i] ~= 'v' .. i or t['k' .. i][1] ~= i then return false end end return true",
    "local t = {'a' .. 1, 'b' .. 2, {'c' .. 3}, x = 'd' .. 4, ['e' .. 5] = 'f' .. 6}
        return t[1] == 'a1' and t[3][1] == 'c3' and t.x == 'd4' and t.e5 == 'f6'",
    "local function f(...) local t = {...} return select('#', ...), t[2] .. 'x', ... end
        local n, s, a, b = f('p' .. 1, 'q' .. 2) return n == 2 and s == 'q2x' and a == 'p1' and b == 'q2'",
    "local function up(n) local x = 'x' .. n return function() x = x .. '!' return x end end
        local f, g = up(1), up(2) f() g() return f() == 'x1!!' and g() == 'x2!!'",
    "local r = {} for w, n in ('one=1 two=2'):gmatch('(%w+)=(%w+)') do r[#r + 1] = w .. n end
        return table.concat(r, ',') == 'one1,two2'",
    "return ('hello world'):gsub('o', function(o) return o .. o:upper() .. #tostring({}) end) ~= nil",
    "return (('abc'):gsub('%w', {a = 'x' .. 1, b = false})) == 'x1bc'",
    "local mt = {__index = function(t, k) return k .. k end, __concat = function(a, b) return 'c' .. 'd' end,
        __tostring = function() return 't' .. 's' end, __call = function(self, x) return x .. 'called' end,
        __newindex = function(t, k, v) rawset(t, k .. 'n', v .. 'v') end, __len = function() return 'l' .. 'en' end}
        local t = setmetatable({}, mt) t.a = 'b'
        return t.zz == 'zzzz' and t .. 1 == 'cd' and tostring(t) == 'ts' and t('x') == 'xcalled' and t.an == 'bv'
            and #t == 'len' and ('%s'):format(t) == 'ts'",
    "local t = {} for i = 1, 30 do t[i] = 's' .. (i * 7 % 31) end
        table.sort(t, function(a, b) return #(a .. 'x') < #(b .. 'x') or #a == #b and a < b end)
        for i = 2, 30 do if #t[i - 1] > #t[i] then return false end end return true",
    "local co = coroutine.create(function(a) local b = coroutine.yield(a .. 'y') error({v = b .. 'e'}) end)
        local _, y = coroutine.resume(co, 'x' .. 1) local ok, e = coroutine.resume(co, 'z' .. 2)
        return y == 'x1y' and not ok and e.v == 'z2e'",
    "local gen = coroutine.wrap(function(...) for i = 1, 5 do coroutine.yield('g' .. i, {...}) end end)
        local s = '' for i = 1, 5 do local a, b = gen('arg' .. i) s = s .. a .. b[1] end
        return s == 'g1arg1g2arg1g3arg1g4arg1g5arg1'",
    "local co = coroutine.wrap(function() local x = 'x' .. 1 coroutine.yield(function() x = x .. 'y' return x end) end)
        local f = co() co = nil collectgarbage() return f() == 'x1y' and f() == 'x1yy'",
    "local ok, e = coroutine.resume(coroutine.create(function() error('m' .. 1) end)) return e:find('m1') ~= nil",
    "local ok, e = coroutine.resume(coroutine.create(coroutine.wrap(function() error('w' .. 1) end)))
        return e:find('w1') ~= nil",
    "local weak = setmetatable({}, {__mode = 'k'}) local key = {} weak[key] = 'v' .. 1 weak[{}] = 'gone'
        collectgarbage() local n = 0 for k, v in pairs(weak) do n = n + 1 end return n == 1 and weak[key] == 'v1'",
    "local weak = setmetatable({}, {__mode = 'v'}) weak[1] = {} weak.x = {} local held = {} weak.y = held
        collectgarbage() return weak[1] == nil and weak.x == nil and weak.y == held",
    "local e = setmetatable({}, {__mode = 'k'}) local a = {} e[a] = {} e[e[a]] = {'end'} collectgarbage()
        return e[e[a]][1] == 'end'",
    "local t = table.pack(table.unpack({'a' .. 1, 'b' .. 2, 'c' .. 3})) table.insert(t, 1, 'z' .. 0)
        return table.remove(t, 1) == 'z0' and t.n == 3 and table.concat(t) == 'a1b2c3'",
    "local q = {} for i = 1, 200 do q[i] = 'q' .. i q[i - 10] = nil end
        local n = 0 for _ in pairs(q) do n = n + 1 end return n == 10 and q[200] == 'q200' and q[190] == nil",
    "return ('%s|%5s|%q|%d|%x'):format('a' .. 1, 'b', 'c\\n', 12, 255) == 'a1|    b|\"c\\\\\\n\"|12|ff'",
    "local s = '' for k, v in pairs(setmetatable({}, {__pairs = function() return next, {['p' .. 1] = 'q' .. 1} end})) do
        s = s .. k .. v end return s == 'p1q1'",
    "local function deep(n) if n == 0 then return 'd' .. 0 end return deep(n - 1) .. '' end return deep(100) == 'd0'",
];

fn run(source: &str, is_stressed: bool) -> Result<Vec<Value>, Error> {
    let mut lua = Lua::new(Limits {
        instructions: 10_000_000,
        memory_bytes: 10 << 20,
    })?;
    lua.is_stressed = is_stressed;
    let program = lua.load(source.as_bytes(), "test")?;
    lua.call(&program, &[])
}

#[test]
fn scripts_do_not_notice_collections() {
    for script in SCRIPTS {
        for is_stressed in [false, true] {
            let outcome = run(script, is_stressed);
            assert_eq!(outcome, Ok(vec![Value::Boolean(true)]), "{script}");
        }
    }
}

#[test]
fn every_memory_limit_ends_in_an_error_or_the_result() {
    for script in SCRIPTS {
        let mut limit = 1;
        loop {
            let limits = Limits {
                instructions: 10_000_000,
                memory_bytes: limit,
            };
            let outcome = Lua::new(limits).and_then(|mut lua| {
                let program = lua.load(script.as_bytes(), "test")?;
                lua.call(&program, &[])
            });
            match outcome {
                Ok(values) => {
                    assert_eq!(values, [Value::Boolean(true)], "{script} {limit}");
                    break;
                }
                Err(Error::Memory) => limit += if limit < 20_000 { 5000 } else { 97 },
                Err(other) => panic!("{script} {limit}: {other:?}"),
            }
        }
    }
}
