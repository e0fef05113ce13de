//! The text form of a list: indented lines, as in `zdb -l`.

use crate::{NvList, NvString, NvValue};
use std::fmt;

impl fmt::Display for NvList {
    /// Writes one line per value, with the name before a colon and strings in single quotes. Nested lists are
    /// indented by four spaces. Flags are written as the name alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, self, 0)
    }
}

fn write_list(f: &mut fmt::Formatter<'_>, list: &NvList, indent: usize) -> fmt::Result {
    let inner = indent.saturating_add(4);
    for pair in list {
        let name = pair.name.to_string_lossy();
        match &pair.value {
            NvValue::Boolean => writeln!(f, "{:indent$}{name}", "")?,
            NvValue::List(list) => {
                writeln!(f, "{:indent$}{name}:", "")?;
                write_list(f, list, inner)?;
            }
            NvValue::ListArray(lists) => {
                for (index, list) in lists.iter().enumerate() {
                    writeln!(f, "{:indent$}{name}[{index}]:", "")?;
                    write_list(f, list, inner)?;
                }
            }
            NvValue::Byte(v) | NvValue::Uint8(v) => writeln!(f, "{:indent$}{name}: {v}", "")?,
            NvValue::Int8(v) => writeln!(f, "{:indent$}{name}: {v}", "")?,
            NvValue::Int16(v) => writeln!(f, "{:indent$}{name}: {v}", "")?,
            NvValue::Uint16(v) => writeln!(f, "{:indent$}{name}: {v}", "")?,
            NvValue::Int32(v) => writeln!(f, "{:indent$}{name}: {v}", "")?,
            NvValue::Uint32(v) => writeln!(f, "{:indent$}{name}: {v}", "")?,
            NvValue::Int64(v) | NvValue::HrTime(v) => writeln!(f, "{:indent$}{name}: {v}", "")?,
            NvValue::Uint64(v) => writeln!(f, "{:indent$}{name}: {v}", "")?,
            NvValue::BooleanValue(v) => writeln!(f, "{:indent$}{name}: {v}", "")?,
            NvValue::Double(bits) => {
                writeln!(f, "{:indent$}{name}: {}", "", f64::from_bits(*bits))?;
            }
            NvValue::String(v) => {
                writeln!(f, "{:indent$}{name}: '{}'", "", v.to_string_lossy())?;
            }
            NvValue::StringArray(items) => {
                each(f, indent, &name, items.iter().map(quoted))?;
            }
            NvValue::ByteArray(items) | NvValue::Uint8Array(items) => {
                each(f, indent, &name, items.iter())?;
            }
            NvValue::Int8Array(items) => each(f, indent, &name, items.iter())?,
            NvValue::Int16Array(items) => each(f, indent, &name, items.iter())?,
            NvValue::Uint16Array(items) => each(f, indent, &name, items.iter())?,
            NvValue::Int32Array(items) => each(f, indent, &name, items.iter())?,
            NvValue::Uint32Array(items) => each(f, indent, &name, items.iter())?,
            NvValue::Int64Array(items) => each(f, indent, &name, items.iter())?,
            NvValue::Uint64Array(items) => each(f, indent, &name, items.iter())?,
            NvValue::BooleanArray(items) => each(f, indent, &name, items.iter())?,
        }
    }
    Ok(())
}

fn quoted(string: &NvString) -> String {
    format!("'{}'", string.to_string_lossy())
}

fn each<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    indent: usize,
    name: &str,
    items: impl Iterator<Item = T>,
) -> fmt::Result {
    for (index, item) in items.enumerate() {
        writeln!(f, "{:indent$}{name}[{index}]: {item}", "")?;
    }
    Ok(())
}
