//! Types of the rows in the property tables.

/// The words of an indexed property, with the number stored on disk for each.
///
/// Several words may share a number; the first of them is printed.
pub type WordTable = &'static [(&'static str, u64)];

/// The type of a property's value, which determines how it is stored and printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Text, stored and printed verbatim.
    Text,
    /// One of a fixed set of words, stored as a number.
    Words(WordTable),
    /// A number.
    Number(NumberForm),
}

/// How a number is printed. `-p` prints digits, with the exceptions listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberForm {
    /// Scaled, `0` for none: `1.50K`.
    Count,
    /// Scaled with `B` below one kibibyte: `512B`.
    Bytes,
    /// Like [`NumberForm::Bytes`], `none` for 0.
    BytesOrNone,
    /// Like [`NumberForm::Bytes`], `-` for 0, with `-p` too.
    BytesOrUnset,
    /// Like [`NumberForm::Count`], `none` for 2^64-1, with `-p` too.
    CountOrNone,
    /// Hundredths: `1.50x`; with `-p` `1.50`.
    Ratio,
    /// Always digits.
    Digits,
    /// Seconds since 1970: `Sat Nov 21 10:00 2026`.
    Date,
    /// Seconds since 1970: `Sat Nov 21 10:00:05 2026`.
    DateSeconds,
    /// `9%`; with `-p` `9`.
    Percent,
    /// Like [`NumberForm::Percent`], `-` for 2^64-1 (no histogram kept).
    PercentOrUnknown,
    /// The number of a state, printed as its word.
    State,
    /// A pool version; `-` for 5000 (feature flags).
    Version,
    /// Quota of the deduplication table: 0 `none`, 2^64-1 `auto`.
    TableQuota,
    /// A limit on events or seconds; `-` for 2^64-1.
    Limit,
}

/// The default value of a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// No default: the property is computed or absent.
    Unset,
    /// A number.
    Number(u64),
    /// A text, or the word of an indexed property.
    Text(&'static str),
}

/// Whether and when a property can be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edit {
    /// Never.
    ReadOnly,
    /// At any time; children do not inherit it.
    Settable,
    /// At any time; children inherit it.
    Inheritable,
    /// Only when the dataset is created.
    Once,
    /// When the dataset is created, later only by changing its key.
    OnceByKey,
}

impl Edit {
    /// Whether usage texts list the property as editable.
    pub fn is_editable(self) -> bool {
        matches!(self, Edit::Settable | Edit::Inheritable)
    }

    /// Whether usage texts list the property as inheritable.
    pub fn is_inheritable(self) -> bool {
        matches!(self, Edit::Inheritable | Edit::Once)
    }
}

/// The first release of OpenZFS that has a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// 2.3 or earlier.
    V2_3,
    /// 2.4.
    V2_4,
}

/// The description that every kind of property (dataset, pool, vdev) has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The name, as stored and as printed.
    pub name: &'static str,
    /// The title of its column in `list`; its lower-case form is an alias of the name.
    pub header: &'static str,
    /// The type of its values.
    pub form: Form,
    /// Whether `list` aligns it to the right.
    pub is_right_aligned: bool,
    /// Whether and when it can be changed.
    pub edit: Edit,
    /// The default value.
    pub preset: Preset,
    /// Whether `get all` and usage texts list it.
    pub is_listed: bool,
    /// The allowed values, as usage texts describe them.
    pub values: &'static str,
}

impl Shape {
    /// Whether `word` names this property, by its name or by its column title.
    ///
    /// Names are case-sensitive: `Used` matches no property.
    pub fn is_named(&self, word: &str) -> bool {
        self.name == word
            || (self.header.len() == word.len()
                && self
                    .header
                    .bytes()
                    .zip(word.bytes())
                    .all(|(title, given)| title.to_ascii_lowercase() == given))
    }

    /// The number stored for `word`; `None` unless this is an indexed property with that word.
    pub fn number_of(&self, word: &str) -> Option<u64> {
        match self.form {
            Form::Words(words) => words.iter().find(|(w, _)| *w == word).map(|(_, n)| *n),
            _ => None,
        }
    }

    /// The word printed for a stored number; `None` unless this is an indexed property with that number.
    pub fn word_of(&self, number: u64) -> Option<&'static str> {
        match self.form {
            Form::Words(words) => words.iter().find(|(_, n)| *n == number).map(|(w, _)| *w),
            _ => None,
        }
    }

    /// Whether a column of this property has a fixed width for all values.
    pub fn is_fixed_width(&self) -> bool {
        match self.form {
            Form::Text | Form::Words(_) => false,
            Form::Number(NumberForm::Digits | NumberForm::Date | NumberForm::DateSeconds) => false,
            Form::Number(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        name: "available",
        header: "AVAIL",
        form: Form::Words(&[("restricted", 4), ("secure", 4)]),
        is_right_aligned: true,
        edit: Edit::ReadOnly,
        preset: Preset::Unset,
        is_listed: true,
        values: "",
    };

    #[test]
    fn a_property_matches_only_its_name_and_lower_case_title() {
        assert!(SHAPE.is_named("available"));
        assert!(SHAPE.is_named("avail"));
        assert!(!SHAPE.is_named("AVAIL"));
        assert!(!SHAPE.is_named("Available"));
        assert!(!SHAPE.is_named("avai"));
        assert!(!SHAPE.is_named(""));
    }

    #[test]
    fn of_two_words_for_one_number_the_first_is_printed() {
        assert_eq!(SHAPE.word_of(4), Some("restricted"));
        assert_eq!(SHAPE.number_of("secure"), Some(4));
        assert_eq!(SHAPE.word_of(5), None);
    }
}

/// Marks a property that `get all` shows.
#[allow(non_upper_case_globals)] // reads as a word of the tables
pub(super) const Listed: bool = true;
/// Marks a property that is shown only when requested by name.
#[allow(non_upper_case_globals)] // reads as a word of the tables
pub(super) const Hidden: bool = false;

/// One row of a table.
#[allow(clippy::too_many_arguments)] // read as columns
pub(super) const fn row(
    name: &'static str,
    header: &'static str,
    form: Form,
    is_right_aligned: bool,
    edit: Edit,
    preset: Preset,
    is_listed: bool,
    values: &'static str,
) -> Shape {
    Shape {
        name,
        header,
        form,
        is_right_aligned,
        edit,
        preset,
        is_listed,
        values,
    }
}

#[cfg(test)]
pub(super) mod check {
    use super::{Form, Preset, Shape};

    pub(crate) fn names_are_unique(table: &[Shape]) {
        for (at, shape) in table.iter().enumerate() {
            for word in [shape.name.to_string(), shape.header.to_ascii_lowercase()] {
                let owner = table.iter().position(|other| other.is_named(&word));
                assert_eq!(owner, Some(at), "{word}");
            }
        }
    }

    pub(crate) fn presets_are_words(table: &[Shape]) {
        for shape in table {
            if let (Form::Words(_), Preset::Text(word)) = (shape.form, shape.preset) {
                assert!(shape.number_of(word).is_some(), "{}", shape.name);
            }
        }
    }
}
