//! Layer `admin`: an interpreter for the Lua of channel programs.
//!
//! The language is that of the reference manual of Lua 5.2, with one difference: a number is a signed 64-bit
//! integer, and arithmetic wraps around. The source may be hostile. Instructions and memory are limited,
//! neither Lua calls nor coroutines use the stack of the thread, and every error is a value of [`Error`].
//!
//! Source is compiled to bytecode (`parse`) and run by one loop (`vm`). Objects are in slabs (`heap`), from which a
//! collector removes those that cannot be reached. `library` has the functions of the manual, and [`Lua`] is what
//! a program that runs scripts uses.
#![forbid(unsafe_code)]

mod api;
mod heap;
mod library;
mod number;
mod parse;
mod value;
mod vm;

pub use api::{Error, Limits};
pub use value::{FunctionId, StringId, TableId, ThreadId, Value};
pub use vm::Lua;
