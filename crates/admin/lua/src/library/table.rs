//! Functions for tables.

use super::Entry;
use crate::heap::NativeRun::Plain;
use crate::value::{TableId, Value};
use crate::vm::{Args, Event, Lua, Throw};

pub(super) const FUNCTIONS: &[Entry] = &[
    ("table.concat", Plain(concat)),
    ("table.insert", Plain(insert)),
    ("table.pack", Plain(pack)),
    ("table.remove", Plain(remove)),
    ("table.sort", Plain(sort)),
    ("table.unpack", Plain(unpack)),
];

/// Values that one call can return.
const UNPACK_MAX: i64 = 1_000_000;

/// The table of the first argument and its length, which a metamethod may say.
fn table_and_length(lua: &mut Lua<'_>, args: Args) -> Result<(TableId, i64), Throw> {
    let table = lua.table_arg(args, 1)?;
    let handler = lua.metamethod(Value::Table(table), Event::Len);
    if handler == Value::Nil {
        return Ok((table, lua.heap.length(table)));
    }
    let length = lua.call_for_one(handler, &[Value::Table(table)])?;
    match lua.to_number(length) {
        Some(length) => Ok((table, length)),
        None => Err(lua.fail("object length is not a number")),
    }
}

impl Lua<'_> {
    fn item(&self, table: TableId, number: i64) -> Value {
        self.heap.get(table, Value::Integer(number))
    }

    fn set_item(&mut self, table: TableId, number: i64, value: Value) -> Result<(), Throw> {
        self.raw_set(table, Value::Integer(number), value)
    }
}

fn concat(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let table = lua.table_arg(args, 1)?;
    let separator = match lua.arg(args, 2) {
        Value::Nil => Vec::new(),
        _ => {
            let separator = lua.string_arg(args, 2)?;
            lua.heap.bytes(separator).to_vec()
        }
    };
    let first = lua.optional_integer(args, 3, 1)?;
    let last = match lua.arg(args, 4) {
        Value::Nil => table_and_length(lua, args)?.1,
        _ => lua.integer_arg(args, 4)?,
    };
    let mut text = Vec::new();
    let mut granted = 0;
    let mut number = first;
    while number <= last {
        lua.work(1)?;
        let item = lua.item(table, number);
        if !lua.append_text(&mut text, item) {
            let type_name = item.type_name();
            let message =
                format!("invalid value ({type_name}) at index {number} in table for 'concat'");
            return Err(lua.fail(&message));
        }
        if number == last {
            break;
        }
        text.extend_from_slice(&separator);
        lua.check_buffer(&text, &mut granted)?;
        number += 1;
    }
    lua.push_string(&text)?;
    Ok(1)
}

fn insert(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let (table, length) = table_and_length(lua, args)?;
    let end = length.wrapping_add(1);
    let place = match args.count {
        2 => end,
        3 => {
            let place = lua.integer_arg(args, 2)?;
            if place < 1 || place > end {
                return Err(lua.argument_error(2, "position out of bounds"));
            }
            let mut number = end;
            while number > place {
                lua.work(1)?;
                let value = lua.item(table, number - 1);
                lua.set_item(table, number, value)?;
                number -= 1;
            }
            place
        }
        _ => return Err(lua.fail("wrong number of arguments to 'insert'")),
    };
    let value = lua.arg(args, args.count);
    lua.set_item(table, place, value)?;
    Ok(0)
}

fn remove(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let (table, length) = table_and_length(lua, args)?;
    let mut place = lua.optional_integer(args, 2, length)?;
    let is_inside = place >= 1 && place <= length.saturating_add(1) || length == 0 && place == 0;
    if args.count > 1 && !is_inside {
        return Err(lua.argument_error(1, "position out of bounds"));
    }
    let value = lua.item(table, place);
    lua.push(value)?;
    while place < length {
        lua.work(1)?;
        let next = lua.item(table, place + 1);
        lua.set_item(table, place, next)?;
        place += 1;
    }
    lua.set_item(table, place, Value::Nil)?;
    Ok(1)
}

fn pack(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let table = lua.new_table()?;
    lua.append_items(table, 1, args.base, args.count)?;
    lua.work(args.count / 4)?;
    let name = lua.new_string(b"n")?;
    lua.raw_set(table, name, Value::Integer(args.count as i64))?;
    lua.result(Value::Table(table))
}

fn unpack(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let table = lua.table_arg(args, 1)?;
    let first = lua.optional_integer(args, 2, 1)?;
    let last = match lua.arg(args, 3) {
        Value::Nil => table_and_length(lua, args)?.1,
        _ => lua.integer_arg(args, 3)?,
    };
    if first > last {
        return Ok(0);
    }
    let count = last
        .checked_sub(first)
        .filter(|count| *count < UNPACK_MAX - 1);
    let room = UNPACK_MAX as usize - lua.exec.top.min(UNPACK_MAX as usize);
    let Some(count) = count
        .map(|count| count as usize + 1)
        .filter(|count| *count < room)
    else {
        return Err(lua.fail("too many results to unpack"));
    };
    lua.work(count / 4)?;
    for offset in 0..count {
        let value = lua.item(table, first + offset as i64);
        lua.push(value)?;
    }
    Ok(count)
}

/// A sort that is running.
struct Sort {
    table: TableId,
    /// The function that compares, or nil.
    order: Value,
}

fn sort(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let (table, length) = table_and_length(lua, args)?;
    let order = match lua.arg(args, 2) {
        Value::Nil => Value::Nil,
        _ => lua.function_arg(args, 2)?,
    };
    let sort = Sort { table, order };
    // The smaller part is sorted first, so that few parts wait.
    let mut parts = vec![(1, length)];
    while let Some((low, high)) = parts.pop() {
        if low >= high {
            continue;
        }
        if let Some(middle) = sort.divide(lua, low, high)? {
            let (left, right) = ((low, middle - 1), (middle + 1, high));
            if middle - low < high - middle {
                parts.extend([right, left]);
            } else {
                parts.extend([left, right]);
            }
        }
    }
    Ok(0)
}

impl Sort {
    fn swap(&self, lua: &mut Lua<'_>, first: i64, second: i64) -> Result<(), Throw> {
        let (one, other) = (lua.item(self.table, first), lua.item(self.table, second));
        // Both values stay in the table or on the stack: one of them is overwritten for a moment.
        lua.keep(one);
        lua.set_item(self.table, first, other)?;
        lua.set_item(self.table, second, one)
    }

    fn is_less(&self, lua: &mut Lua<'_>, left: Value, right: Value) -> Result<bool, Throw> {
        lua.work(1)?;
        match self.order {
            Value::Nil => lua.is_less(left, right),
            order => Ok(lua.call_for_one(order, &[left, right])?.is_true()),
        }
    }

    /// Exchanges two items if they are in the wrong order.
    fn order(&self, lua: &mut Lua<'_>, first: i64, second: i64) -> Result<bool, Throw> {
        let (one, other) = (lua.item(self.table, first), lua.item(self.table, second));
        let is_wrong = self.is_less(lua, other, one)?;
        if is_wrong {
            self.swap(lua, first, second)?;
        }
        Ok(is_wrong)
    }

    /// Divides a part into smaller and larger items. Returns the place between them, or nothing if all are in order.
    fn divide(&self, lua: &mut Lua<'_>, low: i64, high: i64) -> Result<Option<i64>, Throw> {
        let kept = lua.roots.borrow().len();
        let outcome = self.divide_keeping(lua, low, high, kept);
        lua.roots.borrow_mut().truncate(kept);
        outcome
    }

    fn divide_keeping(
        &self,
        lua: &mut Lua<'_>,
        low: i64,
        high: i64,
        kept: usize,
    ) -> Result<Option<i64>, Throw> {
        self.order(lua, low, high)?;
        if high - low == 1 {
            return Ok(None);
        }
        let middle = low.midpoint(high);
        if !self.order(lua, low, middle)? {
            self.order(lua, middle, high)?;
        }
        if high - low == 2 {
            return Ok(None);
        }
        let pivot = lua.item(self.table, middle);
        self.swap(lua, middle, high - 1)?;
        let (mut left, mut right) = (low, high - 1);
        loop {
            lua.roots.borrow_mut().truncate(kept);
            lua.keep(pivot);
            left = self.search(lua, left, 1, high, |item| (item, pivot))?;
            right = self.search(lua, right, -1, low, |item| (pivot, item))?;
            if right < left {
                self.swap(lua, high - 1, left)?;
                return Ok(Some(left));
            }
            self.swap(lua, left, right)?;
        }
    }

    /// Finds the next item that is not in order with the pivot. The end of the part is one that must stop it.
    fn search(
        &self,
        lua: &mut Lua<'_>,
        mut place: i64,
        step: i64,
        end: i64,
        pair: impl Fn(Value) -> (Value, Value),
    ) -> Result<i64, Throw> {
        let kept = lua.roots.borrow().len();
        loop {
            lua.roots.borrow_mut().truncate(kept);
            place += step;
            let (left, right) = pair(lua.item(self.table, place));
            if !self.is_less(lua, left, right)? {
                return Ok(place);
            }
            if place == end || step > 0 && place > end || step < 0 && place < end {
                return Err(lua.fail("invalid order function for sorting"));
            }
        }
    }
}
