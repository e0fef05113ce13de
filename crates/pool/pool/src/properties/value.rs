//! A property's value, its source, and its form for programs.

use crate::properties::shape::{Form, NumberForm, Shape};
use millpond_ondisk::zap::ZapValue;

/// A property's raw value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PropertyValue {
    /// Sizes, counts, times, hundredths, and the numbers of indexed words.
    Number(u64),
    /// Text without its terminating NUL.
    Text(String),
}

impl From<&ZapValue> for PropertyValue {
    fn from(value: &ZapValue) -> Self {
        match value.integer_bytes {
            1 => Self::Text(value.text()),
            _ => Self::Number(value.first().unwrap_or(0)),
        }
    }
}

/// Where a property's value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PropertySource {
    /// Set on this dataset or pool.
    Local,
    /// Set by a received stream.
    Received,
    /// Set on this ancestor.
    Inherited(String),
    /// Not set.
    Default,
    /// Not a setting (statistics, identities).
    None,
}

impl PropertySource {
    /// The word in the SOURCE column.
    #[must_use]
    pub fn word(&self) -> String {
        match self {
            Self::Local => "local".into(),
            Self::Received => "received".into(),
            Self::Inherited(from) => format!("inherited from {from}"),
            Self::Default => "default".into(),
            Self::None => "-".into(),
        }
    }
}

/// One property of one pool or dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Property {
    /// The full name: `compression`, `com.example:note`.
    pub name: String,
    /// The value; `None` shows as `-`.
    pub value: Option<PropertyValue>,
    /// Where it comes from.
    pub source: PropertySource,
    /// The value from a received stream, even if another value is in effect.
    pub received: Option<PropertyValue>,
}

impl Property {
    /// Creates a property without a received value.
    #[must_use]
    pub fn new(name: &str, value: Option<PropertyValue>, source: PropertySource) -> Self {
        Self {
            name: name.to_owned(),
            value,
            source,
            received: None,
        }
    }
    /// Creates a read-only number such as a statistic.
    #[must_use]
    pub fn numeric(name: &str, number: u64) -> Self {
        Self::new(
            name,
            Some(PropertyValue::Number(number)),
            PropertySource::None,
        )
    }
    /// The value as `get -p` prints it. `shape` is the property's table row, if it has one.
    #[must_use]
    pub fn literal(&self, shape: Option<&Shape>) -> String {
        match (&self.value, shape) {
            (None, _) => "-".into(),
            (Some(PropertyValue::Text(text)), _) => text.clone(),
            (Some(PropertyValue::Number(number)), None) => number.to_string(),
            (Some(PropertyValue::Number(number)), Some(shape)) => shape.literal(*number),
        }
    }
}

impl Shape {
    /// Formats a number as `get -p` prints it: words for indexed properties, digits for most others.
    #[must_use]
    pub fn literal(&self, number: u64) -> String {
        let form = match self.form {
            Form::Text => return number.to_string(),
            Form::Words(_) => {
                let word = self.word_of(number);
                return word.map_or_else(|| number.to_string(), str::to_owned);
            }
            Form::Number(form) => form,
        };
        match form {
            NumberForm::BytesOrUnset if number == 0 => "-".into(),
            NumberForm::CountOrNone if number == u64::MAX => "none".into(),
            NumberForm::PercentOrUnknown | NumberForm::Limit if number == u64::MAX => "-".into(),
            NumberForm::TableQuota if number == u64::MAX => "auto".into(),
            NumberForm::Version if number >= 5000 => "-".into(),
            NumberForm::Ratio => format!("{}.{:02}", number / 100, number % 100),
            NumberForm::State => match number {
                7 => "ONLINE".into(),
                6 => "DEGRADED".into(),
                5 => "FAULTED".into(),
                3 => "REMOVED".into(),
                1 | 2 => "OFFLINE".into(),
                _ => "UNAVAIL".into(),
            },
            _ => number.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::properties::table::find;

    #[test]
    fn numbers_look_to_programs_as_the_commands_print_them() {
        for (name, number, text) in [
            ("dedupratio", 235, "2.35"),
            ("bcloneratio", 100, "1.00"),
            ("version", 5000, "-"),
            ("version", 28, "28"),
            ("expandsize", 0, "-"),
            ("checkpoint", 1_544_192, "1544192"),
            ("fragmentation", u64::MAX, "-"),
            ("dedup_table_quota", u64::MAX, "auto"),
            ("dedup_table_quota", 0, "0"),
            ("health", 6, "DEGRADED"),
            ("failmode", 1, "continue"),
            ("failmode", 9, "9"),
        ] {
            assert_eq!(find(name).unwrap().literal(number), text, "{name} {number}");
        }
    }
}
