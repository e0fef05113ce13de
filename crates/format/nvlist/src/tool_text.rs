//! The text in which `zstream`, and `zfs send -v` with a resume token, print lists.

use crate::{NvList, NvValue};
use std::fmt::LowerHex;

impl NvList {
    /// The lines of the list, each name behind `depth` tabs. A head line comes first, with one tab less.
    #[must_use]
    pub fn to_tool_text(&self, depth: usize) -> String {
        let head = "\t".repeat(depth.saturating_sub(1));
        let mut text = format!("{head}nvlist version: 0\n");
        let (indent, below) = ("\t".repeat(depth), depth.saturating_add(1));
        for pair in self.iter() {
            let name = pair.name.to_string_lossy();
            text += &match &pair.value {
                NvValue::List(list) => {
                    let list = list.to_tool_text(below);
                    format!("{indent}{name} = (embedded nvlist)\n{list}{indent}(end {name})\n\n")
                }
                NvValue::ListArray(lists) => {
                    let lists = lists.iter().enumerate().map(|(number, list)| {
                        let list = list.to_tool_text(below);
                        format!("{indent}(start {name}[{number}])\n{list}{indent}(end {name}[{number}])\n")
                    });
                    let lists: String = lists.collect();
                    format!("{indent}{name} = (array of embedded nvlists)\n{lists}")
                }
                value => format!("{indent}{name} = {}\n", value.to_tool_text()),
            };
        }
        text
    }
}

impl NvValue {
    /// The value; nothing for lists.
    #[must_use]
    pub fn to_tool_text(&self) -> String {
        match self {
            Self::Boolean => "1".to_owned(),
            Self::BooleanValue(value) => u8::from(*value).to_string(),
            Self::Byte(value) | Self::Uint8(value) => hex(&[*value]),
            Self::Int8(value) => hex(&[*value]),
            Self::Int16(value) => hex(&[*value]),
            Self::Uint16(value) => hex(&[*value]),
            Self::Int32(value) => hex(&[*value]),
            Self::Uint32(value) => hex(&[*value]),
            Self::Int64(value) | Self::HrTime(value) => hex(&[*value]),
            Self::Uint64(value) => hex(&[*value]),
            Self::Double(bits) => f64::from_bits(*bits).to_string(),
            Self::String(text) => text.to_string_lossy().into_owned(),
            Self::StringArray(all) => joined(all.iter().map(|one| one.to_string_lossy())),
            Self::BooleanArray(all) => joined(all.iter().map(|one| u8::from(*one).to_string())),
            Self::ByteArray(all) | Self::Uint8Array(all) => hex(all),
            Self::Int8Array(all) => hex(all),
            Self::Int16Array(all) => hex(all),
            Self::Uint16Array(all) => hex(all),
            Self::Int32Array(all) => hex(all),
            Self::Uint32Array(all) => hex(all),
            Self::Int64Array(all) => hex(all),
            Self::Uint64Array(all) => hex(all),
            Self::List(_) | Self::ListArray(_) => String::new(),
        }
    }
}

fn hex<T: LowerHex>(values: &[T]) -> String {
    joined(values.iter().map(|value| format!("{value:#x}")))
}

fn joined(words: impl Iterator<Item = impl AsRef<str>>) -> String {
    words.fold(String::new(), |mut text, word| {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(word.as_ref());
        text
    })
}
