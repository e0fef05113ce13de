//! The vocabulary that the property tables are written in.

/// The words of an indexed property with the number that the disk holds for each.
///
/// Several words may share a number; the first is the one that is printed.
pub type WordTable = &'static [(&'static str, u64)];

/// What a property's value is, and so how it is stored and shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Text, stored and shown as it is.
    Text,
    /// One of a few words, stored as a number.
    Words(WordTable),
    /// A number.
    Number(NumberForm),
}

/// How a number is shown to people. With `-p` it is shown in digits, but for the exceptions named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberForm {
    /// Scaled, `0` for none: `1.50K`.
    Count,
    /// Scaled with `B` below one kibibyte: `512B`.
    Bytes,
    /// As [`NumberForm::Bytes`], `none` for 0.
    BytesOrNone,
    /// As [`NumberForm::Bytes`], `-` for 0, with `-p` too.
    BytesOrUnset,
    /// As [`NumberForm::Count`], `none` for 2^64-1, with `-p` too.
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
    /// As [`NumberForm::Percent`], `-` for 2^64-1 (no histogram kept).
    PercentOrUnknown,
    /// A state's number, shown as its word.
    State,
    /// A pool version; `-` once feature flags took over (5000).
    Version,
    /// Limit of the deduplication table: 0 `none`, 2^64-1 `auto`.
    TableQuota,
    /// A limit on events or seconds; `-` for 2^64-1.
    Limit,
}

/// The value in force where nobody set one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// There is none: the property is computed, or simply absent.
    Unset,
    /// A number.
    Number(u64),
    /// A text, or the word of an indexed property.
    Text(&'static str),
}

/// Who may change a property, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edit {
    /// Nobody.
    ReadOnly,
    /// At any time; not passed on to children.
    Settable,
    /// At any time; children inherit it.
    Inheritable,
    /// When the dataset is made, and never again.
    Once,
    /// When the dataset is made, afterwards only by changing its key.
    OnceByKey,
}

impl Edit {
    /// Whether usage texts say that the property can be edited.
    pub fn is_editable(self) -> bool {
        matches!(self, Edit::Settable | Edit::Inheritable)
    }

    /// Whether usage texts say that children inherit the property.
    pub fn is_inheritable(self) -> bool {
        matches!(self, Edit::Inheritable | Edit::Once)
    }
}

/// The first release of OpenZFS that has a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// 2.3 or before.
    V2_3,
    /// 2.4.
    V2_4,
}

/// What every kind of property (dataset, pool, vdev) has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The name, as stored and as shown.
    pub name: &'static str,
    /// The title of its column in `list`; in lower case, an alias of the name.
    pub header: &'static str,
    /// What its values are.
    pub form: Form,
    /// Whether `list` aligns it to the right.
    pub is_right_aligned: bool,
    /// Who may change it.
    pub edit: Edit,
    /// The value where none is set.
    pub preset: Preset,
    /// Whether `get all` and usage texts name it.
    pub is_listed: bool,
    /// The values as usage texts describe them.
    pub values: &'static str,
}

impl Shape {
    /// Whether `word` names this property, by its name or by its column's title.
    ///
    /// Names are exact and their case counts: `Used` names nothing.
    pub fn is_named(&self, word: &str) -> bool {
        self.name == word
            || (self.header.len() == word.len()
                && self
                    .header
                    .bytes()
                    .zip(word.bytes())
                    .all(|(title, given)| title.to_ascii_lowercase() == given))
    }

    /// The number that the disk holds for `word`, if this is an indexed property that knows it.
    pub fn number_of(&self, word: &str) -> Option<u64> {
        match self.form {
            Form::Words(words) => words.iter().find(|(w, _)| *w == word).map(|(_, n)| *n),
            _ => None,
        }
    }

    /// The word that is printed for the stored number, if this is an indexed property that knows it.
    pub fn word_of(&self, number: u64) -> Option<&'static str> {
        match self.form {
            Form::Words(words) => words.iter().find(|(_, n)| *n == number).map(|(w, _)| *w),
            _ => None,
        }
    }

    /// Whether a column of this property keeps its width whatever the values are.
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
    fn a_property_answers_to_its_name_and_to_its_title_in_lower_case_only() {
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

/// A property that `get all` shows.
#[allow(non_upper_case_globals)] // reads as a word of the tables
pub(super) const Listed: bool = true;
/// A property that only its name asks for.
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
