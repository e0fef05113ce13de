//! stub
#![allow(unused, missing_docs)]
pub struct Limits {
    pub instructions: u64,
    pub memory_bytes: usize,
}
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StringId(u32);
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    Nil,
    Boolean(bool),
    Integer(i64),
    String(StringId),
    Table(StringId),
    Function(StringId),
    Thread(StringId),
}
impl Value {
    pub fn type_name(&self) -> &'static str {
        ""
    }
}
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("")]
    Syntax(String),
    #[error("")]
    Runtime { message: String, traceback: String },
    #[error("")]
    Memory,
    #[error("")]
    Instructions,
    #[error("")]
    Stopped,
}
pub struct Lua<'h>(std::marker::PhantomData<std::cell::Cell<Option<Box<dyn Fn() + 'h>>>>);
impl<'h> Lua<'h> {
    pub fn new(limits: Limits) -> Result<Self, Error> {
        todo!()
    }
    pub fn stop_when(&mut self, is_stopped: impl Fn() -> bool + 'h) {}
    pub fn load(&mut self, source: &[u8], chunk_name: &str) -> Result<Value, Error> {
        todo!()
    }
    pub fn call(&mut self, function: &Value, arguments: &[Value]) -> Result<Vec<Value>, Error> {
        todo!()
    }
    pub fn string(&mut self, bytes: &[u8]) -> Result<Value, Error> {
        todo!()
    }
    pub fn table(&mut self) -> Result<Value, Error> {
        todo!()
    }
    pub fn function(
        &mut self,
        name: &str,
        body: impl FnMut(&mut Lua<'h>, &[Value]) -> Result<Vec<Value>, Error> + 'h,
    ) -> Result<Value, Error> {
        todo!()
    }
    pub fn get(&self, table: &Value, key: &Value) -> Value {
        todo!()
    }
    pub fn set(&mut self, table: &Value, key: Value, value: Value) -> Result<(), Error> {
        todo!()
    }
    pub fn entries(&self, table: &Value) -> Vec<(Value, Value)> {
        todo!()
    }
    pub fn bytes<'a>(&'a self, value: &'a Value) -> Option<&'a [u8]> {
        todo!()
    }
    pub fn set_global(&mut self, name: &str, value: Value) -> Result<(), Error> {
        todo!()
    }
    pub fn error(&self, message: impl Into<String>) -> Error {
        todo!()
    }
    pub fn instructions_used(&self) -> u64 {
        0
    }
}
