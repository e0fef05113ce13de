//! Formats block pointers and nvlists as text and as JSON.

use millpond_inspect::{nvlist::NvList, nvlist::NvValue, ondisk::BlockPointer, ondisk::Endian};
use serde_json::{Map, Value, json};

/// Formats a block pointer on one line.
///
/// Its addresses `<vdev:offset:asize>` come first, in hexadecimal bytes, then its other fields.
pub fn text(pointer: &BlockPointer) -> String {
    if pointer.is_hole() {
        return match pointer.birth().0 {
            0 => "hole".into(),
            birth => format!("hole, birth {birth}"),
        };
    }
    let mut words = vec![];
    if pointer.is_embedded() {
        words.push("embedded".to_owned());
    }
    for dva in pointer.dvas() {
        let gang = if dva.is_gang { "gang:" } else { "" };
        words.push(format!(
            "<{gang}{}:{:x}:{:x}>",
            dva.vdev, dva.offset_bytes, dva.asize_bytes
        ));
    }
    words.push(format!("L{}", pointer.level()));
    words.push(format!("[{}]", pointer.object_type().name()));
    if !pointer.is_embedded() {
        words.push(checksum(pointer).to_owned());
    }
    words.push(compression(pointer).to_owned());
    if pointer.is_encrypted() {
        words.push("encrypted".into());
    } else if pointer.has_crypt_bit() {
        words.push("authenticated".into());
    }
    if pointer.is_dedup() {
        words.push("dedup".into());
    }
    if pointer.endian() == Endian::Big {
        words.push("big-endian".into());
    }
    words.push(format!(
        "{:x}L/{:x}P",
        pointer.lsize_bytes(),
        pointer.psize_bytes()
    ));
    words.push(format!("birth {}", births(pointer)));
    if !pointer.is_embedded() {
        words.push(format!("fill {}", pointer.fill()));
    }
    words.join(" ")
}

fn births(pointer: &BlockPointer) -> String {
    let (logical, physical) = (pointer.birth(), pointer.physical_birth());
    if pointer.is_embedded() || logical == physical {
        logical.to_string()
    } else {
        format!("{logical}/{physical}")
    }
}

fn checksum(pointer: &BlockPointer) -> &'static str {
    pointer
        .checksum_kind()
        .map_or("unknown", |kind| kind.name())
}

fn compression(pointer: &BlockPointer) -> &'static str {
    pointer.compression().map_or("unknown", |kind| kind.name())
}

/// A block pointer with all its fields.
pub fn value(pointer: &BlockPointer) -> Value {
    if pointer.is_hole() {
        return json!({ "hole": true, "birth": pointer.birth().0 });
    }
    let dvas: Vec<Value> = pointer
        .dvas()
        .map(|dva| {
            json!({
                "vdev": dva.vdev.0,
                "offset": dva.offset_bytes,
                "asize": dva.asize_bytes,
                "gang": dva.is_gang,
            })
        })
        .collect();
    json!({
        "dvas": dvas,
        "embedded": pointer.is_embedded(),
        "level": pointer.level().0,
        "type": pointer.object_type().name(),
        "checksum": if pointer.is_embedded() { Value::Null } else { checksum(pointer).into() },
        "compression": compression(pointer),
        "encrypted": pointer.is_encrypted(),
        "dedup": pointer.is_dedup(),
        "big_endian": pointer.endian() == Endian::Big,
        "lsize": pointer.lsize_bytes(),
        "psize": pointer.psize_bytes(),
        "birth": pointer.birth().0,
        "physical_birth": pointer.physical_birth().0,
        "fill": pointer.fill(),
        "checksum_words": pointer
            .checksum_words()
            .map(|word| format!("{word:016x}")),
    })
}

/// An nvlist as JSON. The decoder has already limited the nesting.
pub fn list(list: &NvList) -> Value {
    let mut map = Map::new();
    for pair in list {
        map.insert(pair.name.to_string_lossy().into_owned(), one(&pair.value));
    }
    Value::Object(map)
}

fn one(value: &NvValue) -> Value {
    match value {
        NvValue::Boolean => Value::Bool(true),
        NvValue::BooleanValue(flag) => (*flag).into(),
        NvValue::Byte(v) | NvValue::Uint8(v) => (*v).into(),
        NvValue::Int8(v) => (*v).into(),
        NvValue::Int16(v) => (*v).into(),
        NvValue::Uint16(v) => (*v).into(),
        NvValue::Int32(v) => (*v).into(),
        NvValue::Uint32(v) => (*v).into(),
        NvValue::Int64(v) | NvValue::HrTime(v) => (*v).into(),
        NvValue::Uint64(v) => (*v).into(),
        NvValue::Double(bits) => f64::from_bits(*bits).into(),
        NvValue::String(v) => v.to_string_lossy().into(),
        NvValue::StringArray(items) => items.iter().map(|v| v.to_string_lossy()).collect(),
        NvValue::ByteArray(v) | NvValue::Uint8Array(v) => v.iter().copied().collect(),
        NvValue::Int8Array(v) => v.iter().copied().collect(),
        NvValue::Int16Array(v) => v.iter().copied().collect(),
        NvValue::Uint16Array(v) => v.iter().copied().collect(),
        NvValue::Int32Array(v) => v.iter().copied().collect(),
        NvValue::Uint32Array(v) => v.iter().copied().collect(),
        NvValue::Int64Array(v) => v.iter().copied().collect(),
        NvValue::Uint64Array(v) => v.iter().copied().collect(),
        NvValue::BooleanArray(v) => v.iter().copied().collect(),
        NvValue::List(v) => list(v),
        NvValue::ListArray(items) => items.iter().map(list).collect(),
    }
}
