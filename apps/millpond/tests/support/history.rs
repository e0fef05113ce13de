//! Parses history records from the output of `zpool history`.

use super::model::time;
use millpond_control::{HistoryEvent, HistoryRecord, HistoryValue};

/// The records of `zpool history -il`.
pub fn records(text: &str) -> Vec<HistoryRecord> {
    let mut records: Vec<HistoryRecord> = Vec::new();
    let mut lines = text.lines().skip(1).peekable();
    while let Some(line) = lines.next() {
        let Some((date, rest)) = line.split_once(' ') else {
            continue;
        };
        let Some(time_s) = time(date) else {
            panic!("no record: {line:?}")
        };
        let mut record = HistoryRecord {
            time_s,
            txg: None,
            elapsed_ms: None,
            uid: None,
            host: None,
            zone: None,
            event: HistoryEvent::Command(String::new()),
        };
        let mut rest = rest.to_string();
        if let Some((elapsed, after)) = rest.strip_prefix('(').and_then(|r| r.split_once("ms) ")) {
            record.elapsed_ms = elapsed.parse().ok();
            rest = after.to_string();
        }
        if let Some(name) = rest.strip_prefix("ioctl ") {
            let name = name.to_string();
            let mut body = Vec::new();
            while lines.peek().is_some_and(|line| line.starts_with("    ")) {
                body.extend(lines.next());
            }
            let tail = lines.peek().filter(|line| line.starts_with(" [")).copied();
            if let Some(tail) = tail {
                lines.next();
                origin(&mut record, tail);
            }
            record.event = call(name, &body);
            records.push(record);
            continue;
        }
        if let Some(at) = rest.rfind(" [").filter(|_| rest.ends_with(']')) {
            origin(&mut record, &rest[at..]);
            rest.truncate(at);
        }
        record.event = match rest.strip_prefix("[txg:") {
            Some(internal) => {
                let (txg, what) = internal.split_once("] ").expect("a txg");
                record.txg = txg.parse().ok();
                let (event, text) = what.split_once(' ').expect("an event");
                HistoryEvent::Internal {
                    event: event.into(),
                    dataset: None,
                    text: text.into(),
                }
            }
            None => HistoryEvent::Command(rest),
        };
        records.push(record);
    }
    records
}

fn origin(record: &mut HistoryRecord, text: &str) {
    let inner = text.trim_start_matches(" [").trim_end_matches(']');
    if let Some(user) = inner.strip_prefix("user ") {
        record.uid = user.split(' ').next().and_then(|uid| uid.parse().ok());
    }
    if let Some((_, place)) = inner.rsplit_once("on ") {
        let (host, zone) = match place.split_once(':') {
            Some((host, zone)) => (host, Some(zone.to_string())),
            None => (place, None),
        };
        record.host = Some(host.into());
        record.zone = zone;
    }
}

fn call(name: String, body: &[&str]) -> HistoryEvent {
    let (mut input, mut output, mut errno) = (None, None, None);
    let mut at = 0;
    while at < body.len() {
        let title = body[at].trim();
        at += 1;
        if let Some(number) = title.strip_prefix("errno: ") {
            errno = number.parse().ok();
            continue;
        }
        let end = at
            + body[at..]
                .iter()
                .take_while(|line| line.starts_with("        "))
                .count();
        let list = Some(nested(&body[at..end], 8));
        match title {
            "input:" => input = list,
            "output:" => output = list,
            other => panic!("{other:?} in a call"),
        }
        at = end;
    }
    HistoryEvent::Call {
        name,
        input,
        output,
        errno,
    }
}

fn nested(lines: &[&str], indent: usize) -> Vec<(String, HistoryValue)> {
    let mut list = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let text = &lines[at][indent..];
        at += 1;
        let deeper = lines[at..]
            .iter()
            .take_while(|line| line.len() > indent && line[indent..].starts_with("    "))
            .count();
        if let Some(name) = text.strip_suffix(':') {
            let inner = nested(&lines[at..at + deeper], indent + 4);
            list.push((name.to_string(), HistoryValue::List(inner)));
            at += deeper;
        } else if let Some((name, value)) = text.split_once(": ") {
            let value = match value.strip_prefix('\'').and_then(|v| v.strip_suffix('\'')) {
                Some(text) => HistoryValue::Text(text.into()),
                None => value.parse().map_or_else(
                    |_| HistoryValue::Texts(vec![value.to_string()]),
                    HistoryValue::Number,
                ),
            };
            list.push((name.to_string(), value));
        } else {
            list.push((text.to_string(), HistoryValue::Flag));
        }
    }
    list
}
