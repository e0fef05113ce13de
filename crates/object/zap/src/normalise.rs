//! Conversion of names to the form that is hashed and compared.
//!
//! Page `docs/format/name-normalisation.md`.

use crate::unicode_5_0::{is_assigned, simple_upper};
use std::borrow::Cow;
use unicode_normalization::UnicodeNormalization;

/// The four Unicode normal forms. Page `docs/format/name-normalisation.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnicodeForm {
    /// Canonical decomposition.
    D,
    /// Canonical decomposition, then composition.
    C,
    /// Compatibility decomposition.
    Kd,
    /// Compatibility decomposition, then composition.
    Kc,
}

/// The steps applied to a name before it is hashed or compared. Page `docs/format/name-normalisation.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Normalisation {
    /// First map characters to upper case.
    pub folds_case: bool,
    /// Then convert to this form.
    pub form: Option<UnicodeForm>,
}

const FOLD: u64 = 0x02;

impl Normalisation {
    /// Decodes a ZAP's `normflags` word. `None` for a combination that does not exist.
    #[must_use]
    pub fn from_normflags(normflags: u64) -> Option<Self> {
        let form = match normflags & !FOLD {
            0 => None,
            0x10 => Some(UnicodeForm::D),
            0x20 => Some(UnicodeForm::Kd),
            0x50 => Some(UnicodeForm::C),
            0x60 => Some(UnicodeForm::Kc),
            _ => return None,
        };
        Some(Self {
            folds_case: normflags & FOLD != 0,
            form,
        })
    }
    /// The `normflags` word.
    #[must_use]
    pub fn normflags(self) -> u64 {
        let form = match self.form {
            None => 0,
            Some(UnicodeForm::D) => 0x10,
            Some(UnicodeForm::Kd) => 0x20,
            Some(UnicodeForm::C) => 0x50,
            Some(UnicodeForm::Kc) => 0x60,
        };
        form | if self.folds_case { FOLD } else { 0 }
    }
    /// The same without case folding.
    #[must_use]
    pub fn keeping_case(self) -> Self {
        Self {
            folds_case: false,
            ..self
        }
    }
    /// Whether names stay unchanged.
    #[must_use]
    pub fn is_identity(self) -> bool {
        self == Self::default()
    }

    /// Converts a name to the form that is hashed. `None` if a normal form is required and the name is not
    /// UTF-8; such a ZAP cannot contain such a name. Allocates at most about 20 times the name's length.
    #[must_use]
    pub fn apply(self, name: &[u8]) -> Option<Cow<'_, [u8]>> {
        if self.is_identity() {
            return Some(Cow::Borrowed(name));
        }
        if name.is_ascii() {
            return Some(if self.folds_case {
                Cow::Owned(name.to_ascii_uppercase())
            } else {
                Cow::Borrowed(name)
            });
        }
        let Some(form) = self.form else {
            return Some(Cow::Owned(fold_units(name)));
        };
        let text = std::str::from_utf8(name).ok()?;
        let formed = if self.folds_case {
            normal_form(&text.chars().map(simple_upper).collect::<String>(), form)
        } else {
            normal_form(text, form)
        };
        Some(Cow::Owned(formed.into_bytes()))
    }
}

/// Converts text to a normal form of Unicode 5.0. Characters assigned later stay unchanged, and no characters
/// combine across them.
fn normal_form(text: &str, form: UnicodeForm) -> String {
    let mut formed = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let known = rest
            .find(|character| !is_assigned(character))
            .unwrap_or(rest.len());
        let (segment, after) = rest.split_at(known);
        match form {
            UnicodeForm::D => formed.extend(segment.nfd()),
            UnicodeForm::C => formed.extend(segment.nfc()),
            UnicodeForm::Kd => formed.extend(segment.nfkd()),
            UnicodeForm::Kc => formed.extend(segment.nfkc()),
        }
        let mut characters = after.chars();
        formed.extend(characters.next());
        rest = characters.as_str();
    }
    formed
}

/// Maps characters to upper case in a name that need not be UTF-8. Lead bytes alone split the name into
/// units, regardless of the bytes that follow. Only a unit that is a character with an upper case changes.
fn fold_units(name: &[u8]) -> Vec<u8> {
    let mut folded = Vec::with_capacity(name.len().saturating_add(8));
    let mut rest = name;
    while let Some(&lead) = rest.first() {
        let length = match lead {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => 1,
        };
        let (unit, after) = rest.split_at(length.min(rest.len()));
        match std::str::from_utf8(unit) {
            Ok(text) => {
                for character in text.chars() {
                    let mut buffer = [0u8; 4];
                    let upper = simple_upper(character).encode_utf8(&mut buffer);
                    folded.extend_from_slice(upper.as_bytes());
                }
            }
            Err(_) => folded.extend_from_slice(unit),
        }
        rest = after;
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upper(name: &[u8]) -> Vec<u8> {
        let folding = Normalisation::from_normflags(2).unwrap();
        folding.apply(name).unwrap().into_owned()
    }
    fn form(normflags: u64, name: &str) -> String {
        let normalisation = Normalisation::from_normflags(normflags).unwrap();
        let bytes = normalisation.apply(name.as_bytes()).unwrap().into_owned();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn normflags_are_one_form_and_folding_or_do_not_exist() {
        for flags in 0..=0x1ffu64 {
            let known = matches!(flags & !2, 0 | 0x10 | 0x20 | 0x50 | 0x60);
            let read = Normalisation::from_normflags(flags);
            assert_eq!(read.is_some(), known, "{flags:x}");
            if let Some(read) = read {
                assert_eq!(read.normflags(), flags);
            }
        }
    }

    #[test]
    fn folding_cuts_names_that_are_not_utf8_by_lead_byte() {
        assert_eq!(upper(b"\xff\xfebad"), b"\xff\xfeBAD");
        assert_eq!(upper(b"\xe9-latin1"), b"\xe9-lATIN1");
        assert_eq!(upper(b"\xc3abc"), b"\xc3aBC");
        assert_eq!(upper(b"ab\xe9x"), b"AB\xe9x");
    }

    #[test]
    fn upper_case_is_one_to_one() {
        assert_eq!(upper("straße".as_bytes()), "STRAßE".as_bytes());
        assert_eq!(upper("ǆ ŉ ﬁ ΐ".as_bytes()), "Ǆ ŉ ﬁ ΐ".as_bytes());
        assert_eq!(upper("éàΩωж".as_bytes()), "ÉÀΩΩЖ".as_bytes());
        assert_eq!(upper("ᾳ".as_bytes()), "ᾼ".as_bytes());
        assert_eq!(upper("ÿ".as_bytes()), "Ÿ".as_bytes());
    }

    #[test]
    fn upper_case_matches_std_for_old_one_to_one_characters() {
        let mut compared = 0;
        for character in (0..0x11_0000).filter_map(char::from_u32) {
            let mut full = character.to_uppercase();
            let (Some(single), None) = (full.next(), full.next()) else {
                continue;
            };
            let expected = if is_assigned(character) && is_assigned(single) {
                single
            } else {
                character
            };
            assert_eq!(simple_upper(character), expected, "{character:?}");
            compared += u32::from(expected != character);
        }
        assert!(compared > 850, "{compared}");
    }

    #[test]
    fn characters_newer_than_unicode_5_are_unchanged() {
        // Georgian got capitals in Unicode 11. U+A7C8 was added in 12 and 14, the capital of U+0250 in 5.1.
        for young in ["ა", "\u{a7c8}", "\u{250}"] {
            assert_eq!(upper(young.as_bytes()), young.as_bytes());
        }
        // U+1133E never decomposes. U+114BB + U+114BA compose since Unicode 7, U+11131 U+11127 since 6.1.
        let young = "\u{11131}\u{11127}";
        assert_eq!(form(0x50, young), young);
        assert_eq!(form(0x10, "\u{1112e}"), "\u{1112e}");
    }

    #[test]
    fn marks_do_not_move_over_an_unknown_character() {
        // A mark of class 220 moves before a mark of class 230. An unknown character between them keeps both
        // in place (U+1DF9 is class 220 since Unicode 9).
        assert_eq!(form(0x10, "a\u{301}\u{323}"), "a\u{323}\u{301}");
        let apart = "a\u{301}\u{1df9}\u{323}";
        assert_eq!(form(0x10, apart), apart);
    }

    #[test]
    fn the_four_normal_forms_match_unicode() {
        assert_eq!(form(0x10, "é"), "e\u{301}");
        assert_eq!(form(0x50, "e\u{301}"), "é");
        assert_eq!(form(0x20, "ﬁ"), "fi");
        assert_eq!(form(0x60, "ﬁe\u{301}"), "fié");
        assert_eq!(form(0x50, "ﬁ"), "ﬁ");
        assert_eq!(form(0x10, "한"), "\u{1112}\u{1161}\u{11ab}");
        assert_eq!(form(0x52, "stra\u{df}e e\u{301}"), "STRA\u{df}E É");
    }

    #[test]
    fn a_name_that_is_not_utf8_has_no_normal_form() {
        let normalisation = Normalisation::from_normflags(0x50).unwrap();
        assert_eq!(normalisation.apply(b"\xff"), None);
        assert_eq!(normalisation.apply(b"plain").unwrap(), &b"plain"[..]);
    }

    proptest::proptest! {
        #[test]
        fn forms_are_stable_under_repetition(name in "\\PC{0,40}", which in 0usize..4) {
            let flags = [0x10, 0x20, 0x50, 0x60][which];
            let once = form(flags, &name);
            proptest::prop_assert_eq!(form(flags, &once), once.clone());
        }
        #[test]
        fn folding_any_bytes_never_panics(name in proptest::collection::vec(proptest::num::u8::ANY, 0..80)) {
            let _ = upper(&name);
        }
    }
}
