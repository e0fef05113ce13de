//! Property values as they are, not as they look.

/// A property's value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Value {
    /// Numbers in their unit (bytes, seconds since 1970, hundredths for ratios, per cent), and
    /// indexed properties as stored. "No limit" is what the disk says: 0 for quotas and
    /// reservations, 2^64-1 for limits and counts.
    Number(u64),
    /// Text as stored; also accepted for an indexed property, as its word.
    Text(String),
}

impl Value {
    /// The number, if it is one.
    pub fn number(&self) -> Option<u64> {
        match self {
            Value::Number(number) => Some(*number),
            Value::Text(_) => None,
        }
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Value::Number(_) => None,
            Value::Text(text) => Some(text),
        }
    }
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Source {
    /// Not a property that anybody sets: `-`.
    None,
    /// Nobody set it.
    Default,
    /// Set here.
    Local,
    /// Set on an ancestor, whose full name this is.
    Inherited(String),
    /// Came with a received stream.
    Received,
    /// A mount option in force differs from what is stored.
    Temporary,
}

/// One property of one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Property {
    /// The full name: `compression`, `feature@lz4_compress`, `com.example:note`.
    pub name: String,
    /// The value; `None` shows as `-`.
    pub value: Option<Value>,
    /// Where the value comes from.
    pub source: Source,
    /// The value that a received stream brought, even if another is in force.
    pub received: Option<Value>,
}

impl Property {
    /// A property that never was received.
    pub fn new(name: impl Into<String>, value: Option<Value>, source: Source) -> Self {
        Property {
            name: name.into(),
            value,
            source,
            received: None,
        }
    }
}
