//! `zfs userspace`, `groupspace` and `projectspace`.

use super::{lookup, paths};
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use crate::text::columns;
use crate::text::number as numbers;
use millpond_control::properties::{DatasetKind, Kinds};
use millpond_engine::{OwnerKind, OwnerSpace};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Type,
    Name,
    Used,
    Quota,
    Objects,
    ObjectsQuota,
}

const FIELDS: [(Field, &str); 6] = [
    (Field::Type, "type"),
    (Field::Name, "name"),
    (Field::Used, "used"),
    (Field::Quota, "quota"),
    (Field::Objects, "objused"),
    (Field::ObjectsQuota, "objquota"),
];

/// One owner, before formatting.
struct Row {
    kind: &'static str,
    name: String,
    space: OwnerSpace,
}

/// Runs `zfs userspace`.
pub fn users(session: &mut Session, parsed: &Parsed) -> Ending {
    run(session, parsed, &[OwnerKind::User])
}

/// Runs `zfs groupspace`.
pub fn groups(session: &mut Session, parsed: &Parsed) -> Ending {
    run(session, parsed, &[OwnerKind::Group])
}

/// Runs `zfs projectspace`.
pub fn projects(session: &mut Session, parsed: &Parsed) -> Ending {
    run(session, parsed, &[OwnerKind::Project])
}

fn refuse(word: &str, option: char, session: &mut Session) -> Failure {
    let text = format!("invalid type '{word}' for -{option} option");
    match writeln!(session.err, "{text}") {
        Ok(()) => Failure::Status(255),
        Err(error) => Failure::Output(error),
    }
}

fn field_named(word: &str) -> Option<Field> {
    FIELDS
        .iter()
        .find(|(_, name)| *name == word)
        .map(|(field, _)| *field)
}

fn run(session: &mut Session, parsed: &Parsed, preset: &[OwnerKind]) -> Ending {
    let is_project = preset == [OwnerKind::Project];
    let mut fields: Vec<Field> = FIELDS.iter().map(|(field, _)| *field).collect();
    if let Some(words) = parsed.value("o") {
        fields.clear();
        for word in words.split(',') {
            match field_named(word) {
                Some(field) => fields.push(field),
                None => return Err(refuse(word, 'o', session)),
            }
        }
    }
    let mut owners = preset.to_vec();
    if let (Some(words), false) = (parsed.value("t"), is_project) {
        owners.clear();
        for word in words.split(',') {
            match word {
                "posixuser" => owners.push(OwnerKind::User),
                "posixgroup" => owners.push(OwnerKind::Group),
                "all" => owners.extend([OwnerKind::User, OwnerKind::Group]),
                // These kinds do not exist here.
                "smbuser" | "smbgroup" => {}
                other => return Err(refuse(other, 't', session)),
            }
        }
    }
    let mut keys: Vec<(Field, bool)> = vec![];
    for (option, word) in &parsed.options {
        let is_descending = match option.as_str() {
            "s" => false,
            "S" => true,
            _ => continue,
        };
        let word = word.as_deref().unwrap_or_default();
        match field_named(word) {
            Some(field) => keys.push((field, is_descending)),
            None => return Err(refuse(word, if is_descending { 'S' } else { 's' }, session)),
        }
    }
    keys.extend([(Field::Type, false), (Field::Name, false)]);
    let [name] = parsed.operands.as_slice() else {
        return Err(Failure::Usage(if parsed.operands.is_empty() {
            String::new()
        } else {
            "too many arguments".into()
        }));
    };
    let named = paths::dataset_of(name);
    let named = named.map_err(|why| Failure::Refused(format!("cannot open '{name}': {why}")))?;
    let name = &named;
    let kinds = Kinds::only(&[DatasetKind::Filesystem, DatasetKind::Snapshot]);
    lookup::open(session, name, kinds, &[])?;
    let is_numeric = parsed.has("n") || is_project;
    let mut rows = vec![];
    for owner in owners {
        let result = session.service()?.space_by_owner(name, owner);
        let result =
            result.map_err(|error| Failure::Refused(format!("cannot open '{name}': {error}")))?;
        for space in result {
            let (kind, names) = match owner {
                OwnerKind::User => ("POSIX User", &session.environment.users),
                OwnerKind::Group => ("POSIX Group", &session.environment.groups),
                OwnerKind::Project => ("Project", &session.environment.groups),
            };
            let known = names.get(&space.id).filter(|_| !is_numeric);
            let name = known.cloned().unwrap_or_else(|| space.id.to_string());
            rows.push(Row { kind, name, space });
        }
    }
    rows.sort_by(|a, b| {
        let each = keys.iter().map(|(field, is_descending)| {
            let order = compare(*field, a, b, is_numeric);
            if *is_descending {
                order.reverse()
            } else {
                order
            }
        });
        each.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
    });
    print(session, parsed, &fields, &rows)
}

fn compare(field: Field, a: &Row, b: &Row, is_numeric: bool) -> std::cmp::Ordering {
    match field {
        Field::Type => a.kind.cmp(b.kind),
        Field::Name if is_numeric => a.space.id.cmp(&b.space.id),
        Field::Name => a.name.cmp(&b.name),
        Field::Used => a.space.used_bytes.cmp(&b.space.used_bytes),
        Field::Quota => a.space.quota_bytes.cmp(&b.space.quota_bytes),
        Field::Objects => a.space.objects.cmp(&b.space.objects),
        Field::ObjectsQuota => a.space.objects_quota.cmp(&b.space.objects_quota),
    }
}

fn cell(field: Field, row: &Row, is_exact: bool) -> String {
    let limit = |limit: u64, text: fn(u64) -> String| match limit {
        limit if is_exact => limit.to_string(),
        0 => "none".into(),
        limit => text(limit),
    };
    match field {
        Field::Type => row.kind.into(),
        Field::Name => row.name.clone(),
        Field::Used if is_exact => row.space.used_bytes.to_string(),
        Field::Used => numbers::bytes(row.space.used_bytes),
        Field::Quota => limit(row.space.quota_bytes, numbers::bytes),
        Field::Objects => match row.space.objects {
            None => "-".into(),
            Some(count) if is_exact => count.to_string(),
            Some(count) => numbers::count(count),
        },
        Field::ObjectsQuota => match row.space.objects_quota {
            None => "-".into(),
            Some(count) => limit(count, numbers::count),
        },
    }
}

fn print(session: &mut Session, parsed: &Parsed, fields: &[Field], rows: &[Row]) -> Ending {
    let is_exact = parsed.has("p");
    let title = |field: Field| {
        let found = FIELDS.iter().find(|(known, _)| *known == field);
        found.map_or_else(String::new, |(_, name)| name.to_ascii_uppercase())
    };
    let mut lines: Vec<Vec<String>> = vec![];
    // Without rows no title: nothing is counted, as in a file system from before the feature.
    if !parsed.has("H") && !rows.is_empty() {
        lines.push(fields.iter().map(|field| title(*field)).collect());
    }
    let cells = |row: &Row| {
        fields
            .iter()
            .map(|field| cell(*field, row, is_exact))
            .collect()
    };
    lines.extend(rows.iter().map(cells));
    let width = |column: usize| {
        let widths = lines
            .iter()
            .filter_map(|line| line.get(column))
            .map(String::len);
        widths.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..fields.len()).map(width).collect();
    for line in &lines {
        if parsed.has("H") {
            writeln!(session.out, "{}", line.join("\t"))?;
            continue;
        }
        let is_right = |at: usize| !matches!(fields[at], Field::Type | Field::Name);
        let text = columns::row(line, &widths, is_right);
        writeln!(session.out, "{}", text.trim_end())?;
    }
    Ok(0)
}
