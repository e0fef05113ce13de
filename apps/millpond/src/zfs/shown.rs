//! Formats property values of datasets.

use crate::text::terminal::one_line;
use crate::text::{date, number};
use jiff::tz::TimeZone;
use millpond_control::properties::{Form, NumberForm, Shape};
use millpond_control::properties::{PropertyName, QuotaSubject};
use millpond_control::{DatasetInfo, Property, Source, Value};
use std::borrow::Cow;

/// Shown for a missing value.
pub const NOTHING: &str = "-";

/// The dataset's property, if it applies. Name, kind and creation txg need no query.
pub fn find<'a>(info: &'a DatasetInfo, name: &PropertyName) -> Option<Cow<'a, Property>> {
    if let PropertyName::Native(native) = name
        && !native.kinds.contains(info.kind)
    {
        return None;
    }
    if let Some(property) = info.property(name.text()) {
        return Some(Cow::Borrowed(property));
    }
    let own = match name.text() {
        "name" => Value::Text(info.name.clone()),
        "type" => Value::Text(info.kind.word().into()),
        "createtxg" => Value::Number(info.created_txg),
        _ => return None,
    };
    Some(Cow::Owned(Property::new(
        name.text(),
        Some(own),
        Source::None,
    )))
}

/// The value in human-readable form, or with `is_exact` in parsable form.
pub fn value(
    name: &PropertyName,
    value: Option<&Value>,
    is_exact: bool,
    zone: &TimeZone,
) -> String {
    match (value, name) {
        (None, _) => NOTHING.into(),
        (Some(Value::Text(text)), _) => one_line(text).into_owned(),
        (Some(Value::Number(n)), PropertyName::Native(native)) => {
            of_shape(&native.shape, *n, is_exact, zone)
        }
        (Some(Value::Number(n)), PropertyName::PerOwner { subject, .. }) => match subject {
            QuotaSubject::BytesLimit | QuotaSubject::ObjectsLimit if *n == 0 => {
                if is_exact {
                    "0".into()
                } else {
                    "none".into()
                }
            }
            _ if is_exact => n.to_string(),
            QuotaSubject::BytesUsed | QuotaSubject::BytesLimit => number::bytes(*n),
            QuotaSubject::ObjectsUsed | QuotaSubject::ObjectsLimit => number::count(*n),
        },
        (Some(Value::Number(n)), PropertyName::WrittenSince { .. }) if !is_exact => {
            number::bytes(*n)
        }
        (Some(Value::Number(n)), _) => n.to_string(),
    }
}

fn of_shape(shape: &Shape, n: u64, is_exact: bool, zone: &TimeZone) -> String {
    let form = match shape.form {
        Form::Text => return n.to_string(),
        Form::Words(_) => {
            return shape
                .word_of(n)
                .map_or_else(|| n.to_string(), str::to_string);
        }
        Form::Number(form) => form,
    };
    match form {
        NumberForm::CountOrNone if n == u64::MAX => "none".into(),
        NumberForm::Ratio if is_exact => number::exact_ratio(n),
        _ if is_exact => n.to_string(),
        NumberForm::Ratio => number::ratio(n),
        NumberForm::BytesOrNone if n == 0 => "none".into(),
        NumberForm::Bytes | NumberForm::BytesOrNone => number::bytes(n),
        NumberForm::Date => date::minutes(n, zone),
        NumberForm::DateSeconds => date::seconds(n, zone),
        NumberForm::Digits => n.to_string(),
        _ => number::count(n),
    }
}

/// The text of a property source.
pub fn source(source: &Source) -> String {
    match source {
        Source::None => NOTHING.into(),
        Source::Default => "default".into(),
        Source::Local => "local".into(),
        Source::Inherited(from) => format!("inherited from {from}"),
        Source::Received => "received".into(),
        Source::Temporary => "temporary".into(),
    }
}

/// The minimum column width of the property.
pub fn least_width(name: &PropertyName) -> usize {
    match name {
        PropertyName::Native(native) => shape_width(&native.shape),
        _ => name.text().len(),
    }
}

/// The minimum column width of any native property.
pub fn shape_width(shape: &Shape) -> usize {
    let header = shape.header.len();
    match shape.form {
        Form::Number(NumberForm::State) => header.max(8),
        Form::Number(_) => header.max(5),
        Form::Text => header,
        Form::Words(words) => words
            .iter()
            .map(|(word, _)| word.len())
            .fold(header, usize::max),
    }
}

/// Whether the column width is independent of the values.
pub fn is_fixed_width(name: &PropertyName) -> bool {
    match name {
        PropertyName::Native(native) => native.shape.is_fixed_width(),
        PropertyName::PerOwner { .. } | PropertyName::WrittenSince { .. } => true,
        PropertyName::User(_) => false,
    }
}
