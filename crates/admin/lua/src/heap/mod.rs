//! The objects of a program, in slabs.

mod collect;
mod function;
mod slab;
mod table;

pub(crate) use function::{
    Capture, Code, Function, HostBody, LocalName, Native, NativeRun, Proto, Source,
};
pub(crate) use slab::Slab;
pub(crate) use table::{Growth, Table, VALUE_BYTES};

use crate::value::{FunctionId, StringId, TableId, ThreadId, UpvalueId, Value};
use crate::vm::{Thread, Upvalue};
use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// The end of a chain of strings.
const END: u32 = u32::MAX;
/// Bytes of an object beside those of its parts: its place in the slab and in lists.
const OBJECT_BYTES: usize = 24;
/// A collection that is not forced happens at this size or later.
const THRESHOLD_MIN: usize = 1 << 18;

/// Steps of a search that are not counted as work.
const PROBES_FREE: usize = 32;

/// A string. There is only one with the same bytes.
pub(crate) struct Text {
    pub(crate) bytes: Box<[u8]>,
    hash: u64,
    /// The next string in the chain of its bucket.
    next: u32,
}

/// An object whose references are still to be marked.
enum Object {
    Table(TableId),
    Function(FunctionId),
    Thread(ThreadId),
}

/// All objects and the bytes that they use.
pub(crate) struct Heap<'h> {
    pub(crate) strings: Slab<Text>,
    buckets: Vec<u32>,
    tables: Slab<Table>,
    functions: Slab<Function<'h>>,
    pub(crate) threads: Slab<Thread>,
    pub(crate) upvalues: Slab<Upvalue>,
    /// Bytes in use.
    pub(crate) used: usize,
    /// The bytes at which the next collection is due.
    pub(crate) threshold: usize,
    /// Slots of tables that were looked at in vain; they count as work of the program.
    pub(crate) probes: Cell<usize>,
    /// The name `__mode`, once it is known.
    pub(crate) mode_name: Option<StringId>,
    gray: RefCell<Vec<Object>>,
    weak: RefCell<Vec<(TableId, collect::Weak)>>,
    epoch: u64,
    /// Without a random key, so that a program always takes the same number of instructions.
    hasher: BuildHasherDefault<DefaultHasher>,
}

impl<'h> Heap<'h> {
    pub(crate) fn new() -> Self {
        Self {
            strings: Slab::default(),
            buckets: Vec::new(),
            tables: Slab::default(),
            functions: Slab::default(),
            threads: Slab::default(),
            upvalues: Slab::default(),
            used: 0,
            threshold: THRESHOLD_MIN,
            probes: Cell::new(0),
            mode_name: None,
            gray: RefCell::default(),
            weak: RefCell::default(),
            epoch: 0,
            hasher: BuildHasherDefault::new(),
        }
    }

    /// Counts the steps of a search that took long: a program may choose keys that collide.
    fn count_probes(&self, steps: usize) {
        if steps > PROBES_FREE {
            self.probes.set(self.probes.get() + steps);
        }
    }

    pub(crate) fn hash_bytes(&self, bytes: &[u8]) -> u64 {
        self.hasher.hash_one(bytes)
    }

    /// The bytes that a new string will use.
    pub(crate) fn string_bytes(length: usize) -> usize {
        size_of::<Text>() + OBJECT_BYTES + length
    }

    /// The string with these bytes, if it exists.
    pub(crate) fn find_string(&self, bytes: &[u8], hash: u64) -> Option<StringId> {
        let bucket = hash as usize & self.buckets.len().wrapping_sub(1);
        let mut at = self.buckets.get(bucket).copied().unwrap_or(END);
        let (mut steps, mut found) = (0, None);
        while at != END && found.is_none() {
            let text = self.strings.get(at);
            if text.hash == hash && *text.bytes == *bytes {
                found = Some(StringId(at));
            }
            at = text.next;
            steps += 1;
        }
        self.count_probes(steps);
        found
    }

    /// Adds a string that does not exist, and for which [`Heap::string_bytes`] were granted.
    pub(crate) fn add_string(&mut self, bytes: Box<[u8]>, hash: u64) -> StringId {
        self.used += Self::string_bytes(bytes.len());
        if self.strings.count() >= self.buckets.len() {
            self.buckets = vec![END; (self.buckets.len() * 2).max(256)];
            self.link_strings();
        }
        let bucket = hash as usize & (self.buckets.len() - 1);
        let next = self.buckets[bucket];
        let id = self.strings.add(Text { bytes, hash, next });
        self.buckets[bucket] = id;
        StringId(id)
    }

    /// Links all strings into buckets that are empty.
    fn link_strings(&mut self) {
        let mask = self.buckets.len() - 1;
        for (id, text) in self.strings.iter_mut() {
            let bucket = text.hash as usize & mask;
            text.next = std::mem::replace(&mut self.buckets[bucket], id);
        }
    }

    pub(crate) fn bytes(&self, id: StringId) -> &[u8] {
        &self.strings.get(id.0).bytes
    }

    pub(crate) fn table_bytes() -> usize {
        size_of::<Table>() + OBJECT_BYTES
    }

    pub(crate) fn add_table(&mut self) -> TableId {
        self.used += Self::table_bytes();
        TableId(self.tables.add(Table::default()))
    }

    pub(crate) fn table(&self, id: TableId) -> &Table {
        self.tables.get(id.0)
    }

    pub(crate) fn table_mut(&mut self, id: TableId) -> &mut Table {
        self.tables.get_mut(id.0)
    }

    pub(crate) fn function_bytes(function: &Function<'_>) -> usize {
        size_of::<Function<'_>>() + OBJECT_BYTES + function.part_bytes()
    }

    pub(crate) fn add_function(&mut self, function: Function<'h>) -> FunctionId {
        self.used += Self::function_bytes(&function);
        FunctionId(self.functions.add(function))
    }

    pub(crate) fn function(&self, id: FunctionId) -> &Function<'h> {
        self.functions.get(id.0)
    }

    pub(crate) fn function_mut(&mut self, id: FunctionId) -> &mut Function<'h> {
        self.functions.get_mut(id.0)
    }

    pub(crate) fn thread_bytes() -> usize {
        size_of::<Thread>() + OBJECT_BYTES
    }

    pub(crate) fn add_thread(&mut self, thread: Thread) -> ThreadId {
        self.used += Self::thread_bytes() + thread.stack.bytes();
        ThreadId(self.threads.add(thread))
    }

    pub(crate) fn upvalue_bytes() -> usize {
        size_of::<Upvalue>() + OBJECT_BYTES
    }

    pub(crate) fn add_upvalue(&mut self, upvalue: Upvalue) -> UpvalueId {
        self.used += Self::upvalue_bytes();
        UpvalueId(self.upvalues.add(upvalue))
    }

    /// The hash of a key.
    pub(crate) fn hash(&self, key: Value) -> u64 {
        match key {
            Value::String(id) => self.strings.get(id.0).hash,
            _ => self.hasher.hash_one(key),
        }
    }

    /// The value of a key of a table, without metamethods.
    pub(crate) fn get(&self, table: TableId, key: Value) -> Value {
        let table = self.table(table);
        if let Value::Integer(number) = key {
            let place = usize::try_from(number.wrapping_sub(1));
            if let Some(value) = place.ok().and_then(|place| table.array().get(place)) {
                return *value;
            }
        }
        if table.entries().is_empty() {
            return Value::Nil;
        }
        let (value, steps) = table.get(key, self.hash(key));
        self.count_probes(steps);
        value
    }

    /// Sets the value of a key that the table has; whether it has it.
    pub(crate) fn replace(&mut self, table: TableId, key: Value, value: Value) -> bool {
        let hash = self.hash(key);
        let (is_there, steps) = self.table_mut(table).replace(key, hash, value);
        self.count_probes(steps);
        is_there
    }

    /// The length of a table, without metamethods.
    pub(crate) fn length(&self, table: TableId) -> i64 {
        self.table(table).length(|key| self.hash(key))
    }

    /// Makes space in a table that [`Table::growth`] asked for and that was granted.
    pub(crate) fn grow(&mut self, id: TableId, growth: &Growth) {
        let mut table = std::mem::take(self.table_mut(id));
        let before = table.bytes();
        table.grow(growth, |key| self.hash(key));
        self.used = self.used + table.bytes() - before.min(self.used);
        *self.table_mut(id) = table;
    }

    /// Inserts a key for which there is space.
    pub(crate) fn insert(&mut self, id: TableId, key: Value, value: Value) {
        let mut table = std::mem::take(self.table_mut(id));
        table.insert(key, value, |key| self.hash(key));
        *self.table_mut(id) = table;
    }
}
