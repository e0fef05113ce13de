//! Raw property values, without formatting.

/// A property's value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Value {
    /// Numbers in their base unit (bytes, seconds since 1970, hundredths for ratios, per cent), and indexed
    /// properties as stored. "No limit" has its on-disk value: 0 for quotas and reservations, 2^64-1 for
    /// limits and counts.
    Number(u64),
    /// Text as stored. For an indexed property, its name is also accepted.
    Text(String),
}

impl Value {
    /// The number, if the value is a number.
    pub fn number(&self) -> Option<u64> {
        match self {
            Value::Number(number) => Some(*number),
            Value::Text(_) => None,
        }
    }

    /// The text, if the value is text.
    pub fn text(&self) -> Option<&str> {
        match self {
            Value::Number(_) => None,
            Value::Text(text) => Some(text),
        }
    }
}

/// Where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Source {
    /// Not a settable property: `-`.
    None,
    /// The default; the property is not set.
    Default,
    /// Set on this dataset or pool.
    Local,
    /// Inherited from the ancestor with this full name.
    Inherited(String),
    /// Received with a stream.
    Received,
    /// Overridden by a mount option; the stored value differs.
    Temporary,
}

/// A property with its value and source.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Property {
    /// The full name: `compression`, `feature@lz4_compress`, `com.example:note`.
    pub name: String,
    /// The value; `None` shows as `-`.
    pub value: Option<Value>,
    /// Where the value comes from.
    pub source: Source,
    /// The value received with a stream, even if another value is in effect.
    pub received: Option<Value>,
}

impl Property {
    /// A property without a received value.
    pub fn new(name: impl Into<String>, value: Option<Value>, source: Source) -> Self {
        Property {
            name: name.into(),
            value,
            source,
            received: None,
        }
    }
}
