//! Values and the handles of objects.

/// A handle of a string. Equal strings have equal handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StringId(pub(crate) u32);

/// A handle of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TableId(pub(crate) u32);

/// A handle of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FunctionId(pub(crate) u32);

/// A handle of a coroutine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ThreadId(pub(crate) u32);

/// A handle of a variable that closures share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct UpvalueId(pub(crate) u32);

/// A value of Lua. Two values are equal if Lua's `rawequal` says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Value {
    /// `nil`.
    #[default]
    Nil,
    /// `true` or `false`.
    Boolean(bool),
    /// A number; there are only integers.
    Integer(i64),
    /// A string of bytes.
    String(StringId),
    /// A table.
    Table(TableId),
    /// A function of the program, of the library or of the host.
    Function(FunctionId),
    /// A coroutine.
    Thread(ThreadId),
}

impl Value {
    /// The name of the value's type, as the function `type` returns it.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Boolean(_) => "boolean",
            Self::Integer(_) => "number",
            Self::String(_) => "string",
            Self::Table(_) => "table",
            Self::Function(_) => "function",
            Self::Thread(_) => "thread",
        }
    }

    /// Whether a condition takes the value for true: all but `nil` and `false`.
    #[must_use]
    pub fn is_true(&self) -> bool {
        !matches!(self, Self::Nil | Self::Boolean(false))
    }
}
