//! Converts the nvlists of a pool's history into records.

use millpond_control::{HistoryEvent, HistoryRecord, HistoryValue};
use millpond_nvlist::{NvList, NvValue};

/// Converts a record; `None` if it has nothing that is ever shown.
pub fn record(list: &NvList) -> Option<HistoryRecord> {
    let text = |name: &str| match list.get(name) {
        Some(NvValue::String(text)) => Some(text.to_string_lossy().into_owned()),
        _ => None,
    };
    let event = if let Some(command) = text("history command") {
        HistoryEvent::Command(command)
    } else if let Some(name) = text("ioctl") {
        HistoryEvent::Call {
            name,
            input: nested(list, "in_nvl"),
            output: nested(list, "out_nvl"),
            errno: match list.get("errno") {
                Some(NvValue::Int64(errno)) => Some(*errno),
                _ => None,
            },
        }
    } else {
        let dataset = text("dsname").map(|name| (name, number(list, "dsid").unwrap_or(0)));
        HistoryEvent::Internal {
            event: text("internal_name")?,
            dataset,
            text: text("history internal str").unwrap_or_default(),
        }
    };
    Some(HistoryRecord {
        time_s: number(list, "history time").unwrap_or(0),
        txg: number(list, "history txg"),
        elapsed_ms: number(list, "elapsed_ns").map(|nanoseconds| nanoseconds / 1_000_000),
        uid: number(list, "history who"),
        host: text("history hostname"),
        zone: text("history zone"),
        event,
    })
}

fn number(list: &NvList, name: &str) -> Option<u64> {
    match list.get(name)? {
        NvValue::Uint64(number) => Some(*number),
        NvValue::Int64(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

fn nested(list: &NvList, name: &str) -> Option<Vec<(String, HistoryValue)>> {
    match list.get(name)? {
        NvValue::List(inner) => Some(pairs(inner)),
        _ => None,
    }
}

/// Converts the pairs of a list. The nvlist decoder bounds the depth of the recursion.
fn pairs(list: &NvList) -> Vec<(String, HistoryValue)> {
    list.iter()
        .map(|pair| (pair.name.to_string_lossy().into_owned(), value(&pair.value)))
        .collect()
}

fn value(value: &NvValue) -> HistoryValue {
    match value {
        NvValue::Boolean => HistoryValue::Flag,
        NvValue::BooleanValue(flag) => HistoryValue::Bool(*flag),
        NvValue::Byte(n) | NvValue::Uint8(n) => HistoryValue::Number(u64::from(*n)),
        NvValue::Uint16(n) => HistoryValue::Number(u64::from(*n)),
        NvValue::Uint32(n) => HistoryValue::Number(u64::from(*n)),
        NvValue::Uint64(n) => HistoryValue::Number(*n),
        NvValue::Int8(n) => HistoryValue::Signed(i64::from(*n)),
        NvValue::Int16(n) => HistoryValue::Signed(i64::from(*n)),
        NvValue::Int32(n) => HistoryValue::Signed(i64::from(*n)),
        NvValue::Int64(n) | NvValue::HrTime(n) => HistoryValue::Signed(*n),
        NvValue::String(text) => HistoryValue::Text(text.to_string_lossy().into_owned()),
        NvValue::Uint64Array(numbers) => HistoryValue::Numbers(numbers.clone()),
        NvValue::StringArray(texts) => HistoryValue::Texts(
            texts
                .iter()
                .map(|t| t.to_string_lossy().into_owned())
                .collect(),
        ),
        NvValue::List(inner) => HistoryValue::List(pairs(inner)),
        NvValue::ListArray(lists) => HistoryValue::Lists(lists.iter().map(pairs).collect()),
        other => HistoryValue::Text(format!("<{}>", other.value_type().name())),
    }
}
