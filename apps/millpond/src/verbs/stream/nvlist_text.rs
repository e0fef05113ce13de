//! nvlists as OpenZFS's tools print them.

use millpond_inspect::nvlist::{NvList, NvValue};
use std::fmt::LowerHex;

/// The lines of a list whose names are indented by `depth` tabs.
pub fn text(list: &NvList, depth: usize) -> String {
    let indent = "\t".repeat(depth);
    let mut text = format!(
        "{}nvlist version: 0\n",
        "\t".repeat(depth.saturating_sub(1))
    );
    for pair in list.iter() {
        let name = pair.name.to_string_lossy();
        match &pair.value {
            NvValue::List(inner) => {
                text += &format!("{indent}{name} = (embedded nvlist)\n");
                text += &self::text(inner, depth + 1);
                text += &format!("{indent}(end {name})\n\n");
            }
            NvValue::ListArray(lists) => {
                text += &format!("{indent}{name} = (array of embedded nvlists)\n");
                for (number, inner) in lists.iter().enumerate() {
                    text += &format!("{indent}(start {name}[{number}])\n");
                    text += &self::text(inner, depth + 1);
                    text += &format!("{indent}(end {name}[{number}])\n");
                }
            }
            value => text += &format!("{indent}{name} = {}\n", scalar(value)),
        }
    }
    text
}

fn hex<T: LowerHex>(values: &[T]) -> String {
    let words: Vec<String> = values.iter().map(|value| format!("{value:#x}")).collect();
    words.join(" ")
}

fn scalar(value: &NvValue) -> String {
    match value {
        NvValue::Boolean => "1".to_owned(),
        NvValue::BooleanValue(value) => u8::from(*value).to_string(),
        NvValue::Byte(value) | NvValue::Uint8(value) => format!("{value:#x}"),
        NvValue::Int8(value) => format!("{value:#x}"),
        NvValue::Int16(value) => format!("{value:#x}"),
        NvValue::Uint16(value) => format!("{value:#x}"),
        NvValue::Int32(value) => format!("{value:#x}"),
        NvValue::Uint32(value) => format!("{value:#x}"),
        NvValue::Int64(value) | NvValue::HrTime(value) => format!("{value:#x}"),
        NvValue::Uint64(value) => format!("{value:#x}"),
        NvValue::Double(bits) => f64::from_bits(*bits).to_string(),
        NvValue::String(text) => text.to_string_lossy().into_owned(),
        NvValue::StringArray(all) => {
            let all: Vec<String> = all
                .iter()
                .map(|one| one.to_string_lossy().into_owned())
                .collect();
            all.join(" ")
        }
        NvValue::BooleanArray(all) => {
            let all: Vec<String> = all.iter().map(|one| u8::from(*one).to_string()).collect();
            all.join(" ")
        }
        NvValue::ByteArray(all) | NvValue::Uint8Array(all) => hex(all),
        NvValue::Int8Array(all) => hex(all),
        NvValue::Int16Array(all) => hex(all),
        NvValue::Uint16Array(all) => hex(all),
        NvValue::Int32Array(all) => hex(all),
        NvValue::Uint32Array(all) => hex(all),
        NvValue::Int64Array(all) => hex(all),
        NvValue::Uint64Array(all) => hex(all),
        NvValue::List(_) | NvValue::ListArray(_) => String::new(),
    }
}
