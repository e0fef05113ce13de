//! The instructions. A register is a place in the frame of the function.

use crate::heap::VALUE_BYTES;

/// A register, or a constant: those from [`FIRST_CONSTANT`] on.
pub(crate) type Operand = u16;

pub(crate) const FIRST_CONSTANT: Operand = 256;

/// A place that an instruction's `count` may have: as many values as there are.
pub(crate) const ALL: u8 = u8::MAX;

/// An operation on two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Pow,
}

/// A comparison; the others swap operands or negate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
}

/// An instruction. `to` is the register of the result, `target` the instruction to continue at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Move {
        to: u8,
        from: u8,
    },
    Constant {
        to: u8,
        constant: u32,
    },
    Boolean {
        to: u8,
        value: bool,
    },
    /// Sets `count` registers to nil.
    Nil {
        to: u8,
        count: u8,
    },
    GetUpvalue {
        to: u8,
        upvalue: u8,
    },
    SetUpvalue {
        upvalue: u8,
        from: u8,
    },
    /// A field of a shared variable: mostly a global variable.
    GetField {
        to: u8,
        upvalue: u8,
        key: Operand,
    },
    SetField {
        upvalue: u8,
        key: Operand,
        value: Operand,
    },
    Get {
        to: u8,
        table: u8,
        key: Operand,
    },
    Set {
        table: u8,
        key: Operand,
        value: Operand,
    },
    NewTable {
        to: u8,
    },
    /// Prepares a method call: the function, then the object itself.
    Method {
        to: u8,
        object: u8,
        key: Operand,
    },
    Arithmetic {
        op: Arithmetic,
        to: u8,
        left: Operand,
        right: Operand,
    },
    Negate {
        to: u8,
        from: u8,
    },
    Not {
        to: u8,
        from: u8,
    },
    Length {
        to: u8,
        from: u8,
    },
    Concat {
        to: u8,
        left: Operand,
        right: Operand,
    },
    Compare {
        op: Comparison,
        to: u8,
        left: Operand,
        right: Operand,
    },
    /// Closes shared variables from the register `close - 1` on, unless `close` is 0.
    Jump {
        close: u8,
        target: u32,
    },
    JumpIf {
        register: u8,
        is: bool,
        target: u32,
    },
    /// Calls the function in `base` with the `arguments` behind it.
    Call {
        base: u8,
        arguments: u8,
        results: u8,
    },
    TailCall {
        base: u8,
        arguments: u8,
    },
    Return {
        base: u8,
        count: u8,
    },
    ForPrepare {
        base: u8,
        target: u32,
    },
    ForLoop {
        base: u8,
        target: u32,
    },
    /// Calls the iterator; its results go to the registers from `base + 3` on.
    IteratorCall {
        base: u8,
        results: u8,
    },
    IteratorLoop {
        base: u8,
        target: u32,
    },
    /// Sets `count` items of the table in `base`, from the number `first` on.
    SetItems {
        base: u8,
        count: u8,
        first: u32,
    },
    Close {
        from: u8,
    },
    Closure {
        to: u8,
        proto: u32,
    },
    Varargs {
        to: u8,
        count: u8,
    },
}

// Larger instructions would make the accounts of memory wrong by half.
const _: () = assert!(size_of::<Op>() <= 8 && VALUE_BYTES == 16);
