//! `zfs list`.

use super::collect::{Request, collect, default_depth, depth_named, kinds_named};
use super::order::SortKey;
use super::shown::{self, NOTHING};
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use crate::text::columns;
use crate::text::json::Style;
use millpond_control::properties::Release;
use millpond_control::properties::{DatasetKind, Kinds, PropertyName, by_name};
use millpond_control::{DatasetInfo, DatasetQuery, Wanted};

/// Lists datasets as a table.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let ask = Args::read(parsed)?;
    let mut wanted = ask.columns.clone();
    wanted.extend(ask.sort.iter().map(|key| key.property.clone()));
    let found = collect(
        session,
        &Request {
            operands: &parsed.operands,
            depth: ask.depth,
            is_depth_given: ask.is_depth_given,
            kinds: ask.kinds,
            also_named: ask.also_named,
            heeds_listsnapshots: ask.heeds_listsnapshots,
            wanted: Wanted::Named(wanted),
            sort: &ask.sort,
        },
    )?;
    let status = u8::from(found.has_failed);
    if ask.is_json {
        if !found.has_failed {
            super::get::print_json(session, "zfs list", &found.datasets, ask.style, |info| {
                let columns = ask.columns.iter().filter(|name| name.text() != "name");
                let found = columns.map(|name| (name, shown::find(info, name)));
                found.collect()
            })?;
        }
    } else if !found.datasets.is_empty() {
        print(session, &ask, &found.datasets)?;
    }
    if found.datasets.is_empty() && !found.has_failed && !ask.is_script {
        writeln!(session.err, "no datasets available")?;
    }
    Ok(status)
}

/// The parsed command line.
struct Args {
    is_script: bool,
    is_json: bool,
    style: Style,
    depth: u32,
    is_depth_given: bool,
    kinds: Kinds,
    also_named: Kinds,
    heeds_listsnapshots: bool,
    columns: Vec<PropertyName>,
    sort: Vec<SortKey>,
}

impl Args {
    fn read(parsed: &Parsed) -> Result<Args, Failure> {
        let default_kinds = Kinds::only(&[DatasetKind::Filesystem, DatasetKind::Volume]);
        let mut ask = Args {
            is_script: parsed.has("H"),
            is_json: parsed.has("j"),
            style: Style::default(),
            depth: default_depth(&parsed.operands),
            is_depth_given: parsed.has("d"),
            kinds: default_kinds,
            also_named: Kinds::only(&[DatasetKind::Snapshot]),
            heeds_listsnapshots: true,
            columns: Vec::new(),
            sort: Vec::new(),
        };
        let mut columns = None;
        let mut kinds = None;
        for (option, value) in &parsed.options {
            let value = value.as_deref().unwrap_or_default();
            match option.as_str() {
                // `-d` says how deep, before it or after it.
                "r" if !parsed.has("d") => ask.depth = DatasetQuery::WHOLE_TREE,
                "d" => ask.depth = depth_named(value).map_err(Failure::Usage)?,
                "o" => columns = Some(value.to_string()),
                "t" => kinds = Some(kinds_named(value).map_err(Failure::Usage)?),
                "s" | "S" => ask.sort.push(SortKey {
                    property: sort_property(value)?,
                    is_descending: option == "S",
                }),
                _ => {}
            }
        }
        ask.style = Style::read(parsed)?;
        if let Some(kinds) = kinds {
            ask.kinds = kinds;
            ask.also_named = Kinds::NONE;
            ask.heeds_listsnapshots = false;
        }
        if columns.as_deref() == Some("space") && kinds.is_none() {
            ask.heeds_listsnapshots = false;
        }
        ask.columns = columns_named(columns.as_deref().unwrap_or(DEFAULT_COLUMNS))?;
        Ok(ask)
    }
}

fn sort_property(word: &str) -> Result<PropertyName, Failure> {
    by_name(word).ok_or_else(|| Failure::Usage(format!("invalid property '{word}'")))
}

fn columns_named(words: &str) -> Result<Vec<PropertyName>, Failure> {
    match words {
        "space" => return columns_named(SPACE_COLUMNS),
        "all" => {
            let listed = millpond_control::properties::DATASET_PROPERTIES
                .iter()
                .filter(|p| p.shape.is_listed && p.since == Release::V2_3);
            let mut columns = vec![required("name")?];
            columns.extend(listed.map(PropertyName::Native));
            return Ok(columns);
        }
        _ => {}
    }
    words.split(',').map(required).collect()
}

fn required(word: &str) -> Result<PropertyName, Failure> {
    by_name(word)
        .ok_or_else(|| Failure::Usage(format!("bad property list: invalid property '{word}'")))
}

fn print(session: &mut Session, ask: &Args, datasets: &[DatasetInfo]) -> Result<(), Failure> {
    let zone = &session.environment.zone;
    let cells: Vec<Vec<String>> = datasets
        .iter()
        .map(|info| {
            ask.columns
                .iter()
                .map(|name| cell(info, name, ask.style.is_exact, zone))
                .collect()
        })
        .collect();
    if ask.is_script {
        for row in &cells {
            writeln!(session.out, "{}", row.join("\t"))?;
        }
        return Ok(());
    }
    let widths: Vec<usize> = ask
        .columns
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let longest = cells.iter().map(|row| row[at].len()).max().unwrap_or(0);
            let is_fixed = shown::is_fixed_width(name) && !ask.style.is_exact;
            let least = shown::least_width(name);
            if is_fixed { least } else { least.max(longest) }
        })
        .collect();
    let headers: Vec<String> = ask.columns.iter().map(header).collect();
    for row in std::iter::once(&headers).chain(&cells) {
        let line = columns::row(row, &widths, |at| is_right_aligned(&ask.columns[at]));
        writeln!(session.out, "{line}")?;
    }
    Ok(())
}

fn cell(
    info: &DatasetInfo,
    name: &PropertyName,
    is_exact: bool,
    zone: &jiff::tz::TimeZone,
) -> String {
    match shown::find(info, name) {
        Some(property) => shown::value(name, property.value.as_ref(), is_exact, zone),
        None => NOTHING.into(),
    }
}

fn header(name: &PropertyName) -> String {
    match name {
        PropertyName::Native(native) => native.shape.header.to_string(),
        other => other.text().to_ascii_uppercase(),
    }
}

fn is_right_aligned(name: &PropertyName) -> bool {
    match name {
        PropertyName::Native(native) => native.shape.is_right_aligned,
        PropertyName::PerOwner { .. } | PropertyName::WrittenSince { .. } => true,
        PropertyName::User(_) => false,
    }
}

const DEFAULT_COLUMNS: &str = "name,used,available,referenced,mountpoint";
const SPACE_COLUMNS: &str =
    "name,available,used,usedbysnapshots,usedbydataset,usedbyrefreservation,usedbychildren";
