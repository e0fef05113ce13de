//! The names of pool and vdev properties, and the format of their values.

use crate::text::number;
use crate::text::terminal::one_line;
use crate::zfs::shape_width;
use millpond_control::properties::{Edit, Form, NumberForm, Shape, table};
use millpond_control::{PoolInfo, PoolVersion, Property, Source, Value, VdevAux, VdevState};
use std::borrow::Cow;

/// A well-formed name of a pool property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolProperty {
    /// A native property.
    Native(&'static Shape),
    /// `feature@NAME`, as the full name.
    Feature(String),
    /// `unsupported@GUID`, as the full name.
    Unsupported(String),
    /// A user property: a name with a colon.
    User(String),
}

impl PoolProperty {
    /// Finds the property with this name.
    pub fn by_name(word: &str) -> Option<PoolProperty> {
        if let Some(shape) = table::find(word) {
            return Some(PoolProperty::Native(shape));
        }
        if word.starts_with("feature@") {
            return Some(PoolProperty::Feature(word.into()));
        }
        if word.starts_with("unsupported@") {
            return Some(PoolProperty::Unsupported(word.into()));
        }
        crate::zfs::is_user_property(word).then(|| PoolProperty::User(word.into()))
    }

    /// The full name.
    pub fn text(&self) -> &str {
        match self {
            PoolProperty::Native(shape) => shape.name,
            PoolProperty::Feature(name)
            | PoolProperty::Unsupported(name)
            | PoolProperty::User(name) => name,
        }
    }

    /// The minimum column width of the property.
    pub fn least_width(&self) -> usize {
        match self {
            PoolProperty::Native(shape) => shape_width(shape),
            other => other.text().len(),
        }
    }

    /// Whether the column width is independent of the values.
    pub fn is_fixed_width(&self) -> bool {
        matches!(self, PoolProperty::Native(shape) if shape.is_fixed_width())
    }

    /// The value in human-readable form, or with `is_exact` in parsable form.
    pub fn value(&self, value: Option<&Value>, is_exact: bool) -> String {
        match self {
            PoolProperty::Native(shape) => of_shape(shape, value, is_exact),
            _ => match value {
                None => "-".into(),
                Some(Value::Text(text)) => one_line(text).into_owned(),
                Some(Value::Number(number)) => number.to_string(),
            },
        }
    }

    /// The pool's value of this property. `None` if the pool cannot have it: no line is shown.
    pub fn find<'a>(&self, pool: &'a PoolInfo) -> Option<Cow<'a, Property>> {
        let text = |text: &str| Some(Value::Text(text.to_string()));
        let owned = |value, source| Some(Cow::Owned(Property::new(self.text(), value, source)));
        match self {
            PoolProperty::Native(shape) => {
                match shape.name {
                    "name" => return owned(text(&pool.name), Source::None),
                    "health" => return owned(text(pool.health()), Source::None),
                    "guid" => return owned(Some(Value::Number(pool.guid)), Source::None),
                    _ => {}
                }
                if let Some(property) = pool.property(shape.name) {
                    return Some(Cow::Borrowed(property));
                }
                let is_settable = shape.edit != Edit::ReadOnly && shape.name != "readonly";
                owned(
                    None,
                    if is_settable {
                        Source::Default
                    } else {
                        Source::None
                    },
                )
            }
            PoolProperty::Feature(name) => {
                let short = name.strip_prefix("feature@")?;
                let feature = pool.features.iter().find(|feature| feature.name == short)?;
                owned(text(feature.state.word()), Source::Local)
            }
            PoolProperty::Unsupported(name) => {
                let guid = name.strip_prefix("unsupported@")?;
                let feature = pool
                    .unsupported
                    .iter()
                    .find(|feature| feature.guid == guid)?;
                owned(
                    text(if feature.is_active {
                        "readonly"
                    } else {
                        "inactive"
                    }),
                    Source::Local,
                )
            }
            PoolProperty::User(name) => match pool.property(name) {
                Some(property) => Some(Cow::Borrowed(property)),
                None => owned(None, Source::Default),
            },
        }
    }

    /// The properties of `all`: native properties, features, unsupported features, user properties.
    pub fn all(pools: &[PoolInfo]) -> Vec<PoolProperty> {
        let mut names: Vec<PoolProperty> = table::POOL_PROPERTIES
            .iter()
            .filter(|shape| shape.is_listed)
            .map(PoolProperty::Native)
            .collect();
        let mut add = |name: PoolProperty| {
            if !names.contains(&name) {
                names.push(name);
            }
        };
        for feature in pools.iter().flat_map(|pool| &pool.features) {
            add(PoolProperty::Feature(format!("feature@{}", feature.name)));
        }
        for feature in pools.iter().flat_map(|pool| &pool.unsupported) {
            add(PoolProperty::Unsupported(format!(
                "unsupported@{}",
                feature.guid
            )));
        }
        for property in pools.iter().flat_map(|pool| &pool.properties) {
            if property.name.contains(':') {
                add(PoolProperty::User(property.name.clone()));
            }
        }
        names
    }
}

/// Formats the value of a native property of a pool or vdev.
pub fn of_shape(shape: &Shape, value: Option<&Value>, is_exact: bool) -> String {
    let number = match value {
        None => return "-".into(),
        Some(Value::Text(text)) => return one_line(text).into_owned(),
        Some(Value::Number(number)) => *number,
    };
    let form = match shape.form {
        Form::Text => return number.to_string(),
        Form::Words(_) => {
            return shape
                .word_of(number)
                .map_or_else(|| number.to_string(), str::to_string);
        }
        Form::Number(form) => form,
    };
    match form {
        NumberForm::Version if PoolVersion(number).has_features() => "-".into(),
        NumberForm::BytesOrUnset if number == 0 => "-".into(),
        NumberForm::PercentOrUnknown | NumberForm::Limit if number == u64::MAX => "-".into(),
        NumberForm::TableQuota if number == u64::MAX => "auto".into(),
        NumberForm::Percent if is_exact && shape.name == "fragmentation" => format!("{number}%"),
        NumberForm::Ratio if is_exact => number::exact_ratio(number),
        NumberForm::State if !is_exact => state_word(number).to_string(),
        NumberForm::Limit => number.to_string(),
        _ if is_exact => number.to_string(),
        NumberForm::TableQuota if number == 0 => "none".into(),
        NumberForm::Percent | NumberForm::PercentOrUnknown => format!("{number}%"),
        NumberForm::Ratio => number::ratio(number),
        NumberForm::BytesOrUnset => number::bytes(number),
        NumberForm::Version | NumberForm::Digits => number.to_string(),
        _ => number::count(number),
    }
}

fn state_word(number: u64) -> &'static str {
    [
        VdevState::Unknown,
        VdevState::Closed,
        VdevState::Offline,
        VdevState::Removed,
        VdevState::CannotOpen,
        VdevState::Faulted,
        VdevState::Degraded,
        VdevState::Healthy,
    ]
    .into_iter()
    .find(|state| state.number() == number)
    .unwrap_or(VdevState::Unknown)
    .word(VdevAux::None)
}
