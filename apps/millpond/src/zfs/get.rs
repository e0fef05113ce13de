//! `zfs get`.

use super::collect::{Request, collect, default_depth, depth_named, kinds_named};
use super::shown::{self, NOTHING};
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use crate::text::json::{self, Style};
use crate::text::property_columns::{Column, PropertyTable, columns_named, widest};
use millpond_control::properties::Release;
use millpond_control::properties::{DATASET_PROPERTIES, DatasetKind, Kinds, PropertyName, by_name};
use millpond_control::{DatasetInfo, DatasetQuery, Property, Source, Wanted};
use serde_json::{Map, Value as Json};
use std::borrow::Cow;

/// Prints properties, one per line.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let ask = Args::read(parsed)?;
    let found = collect(
        session,
        &Request {
            operands: &parsed.operands[1..],
            depth: ask.depth,
            is_depth_given: parsed.has("d"),
            kinds: ask.kinds,
            // A bookmark that is named is shown, with `-r` too.
            also_named: match parsed.has("t") {
                true => Kinds::NONE,
                false => Kinds::only(&[DatasetKind::Bookmark]),
            },
            heeds_listsnapshots: false,
            wanted: match &ask.names {
                None => Wanted::All,
                Some(names) => Wanted::Named(names.clone()),
            },
            sort: &[],
        },
    )?;
    let names = ask
        .names
        .clone()
        .unwrap_or_else(|| every_name(&found.datasets));
    if ask.is_json {
        if !found.has_failed {
            print_json(session, "zfs get", &found.datasets, ask.style, |info| {
                lines(&ask, info, &names)
            })?;
        }
    } else {
        print(session, &ask, &found.datasets, &names)?;
    }
    Ok(u8::from(found.has_failed))
}

/// The parsed command line.
struct Args {
    is_script: bool,
    is_json: bool,
    style: Style,
    depth: u32,
    kinds: Kinds,
    columns: Vec<Column>,
    sources: Vec<&'static str>,
    /// `None` stands for all.
    names: Option<Vec<PropertyName>>,
}

impl Args {
    fn read(parsed: &Parsed) -> Result<Args, Failure> {
        let mut ask = Args {
            is_script: parsed.has("H"),
            is_json: parsed.has("j"),
            style: Style::default(),
            depth: default_depth(parsed.operands.get(1..).unwrap_or_default()),
            kinds: Kinds::ALL,
            columns: Column::DEFAULT.to_vec(),
            sources: SOURCES.to_vec(),
            names: None,
        };
        let mut has_kinds = false;
        for (option, value) in &parsed.options {
            let value = value.as_deref().unwrap_or_default();
            match option.as_str() {
                // `-d` says how deep, before it or after it.
                "r" if !parsed.has("d") => ask.depth = DatasetQuery::WHOLE_TREE,
                "d" => ask.depth = depth_named(value).map_err(Failure::Usage)?,
                "o" => {
                    ask.columns = columns_named(value, &Column::OF_DATASETS)?;
                    if ask.columns.len() > COLUMNS_MAX {
                        let text = "too many fields given to -o option";
                        return Err(Failure::Usage(text.into()));
                    }
                }
                "s" => ask.sources = sources_named(value)?,
                "t" => {
                    ask.kinds = kinds_named(value).map_err(Failure::Usage)?;
                    has_kinds = true;
                }
                _ => {}
            }
        }
        if !has_kinds && ask.depth > 0 {
            // Bookmarks are shown only if they are named or selected by `-t`.
            ask.kinds = Kinds::only(&[
                DatasetKind::Filesystem,
                DatasetKind::Volume,
                DatasetKind::Snapshot,
            ]);
        }
        let Some(words) = parsed.operands.first() else {
            return Err(Failure::Usage("missing property argument".into()));
        };
        ask.style = Style::read(parsed)?;
        if words != "all" {
            ask.names = Some(words.split(',').map(required).collect::<Result<_, _>>()?);
        }
        Ok(ask)
    }
}

fn required(word: &str) -> Result<PropertyName, Failure> {
    by_name(word)
        .ok_or_else(|| Failure::Usage(format!("bad property list: invalid property '{word}'")))
}

fn sources_named(words: &str) -> Result<Vec<&'static str>, Failure> {
    words
        .split(',')
        .map(|word| {
            SOURCES
                .iter()
                .find(|source| **source == word)
                .copied()
                .ok_or_else(|| Failure::Usage(format!("invalid source '{word}'")))
        })
        .collect()
}

/// The properties of `all`: every listed native property, then each user property of any of the datasets.
///
/// A property that only newer pools support is included if it has a value.
fn every_name(datasets: &[DatasetInfo]) -> Vec<PropertyName> {
    let mut names: Vec<PropertyName> = DATASET_PROPERTIES
        .iter()
        .filter(|property| property.shape.is_listed)
        .filter(|property| {
            property.since == Release::V2_3
                || datasets
                    .iter()
                    .any(|info| info.property(property.shape.name).is_some())
        })
        .map(PropertyName::Native)
        .collect();
    let mut seen = std::collections::HashSet::new();
    for property in datasets.iter().flat_map(|info| &info.properties) {
        if !seen.contains(property.name.as_str())
            && let Some(name @ PropertyName::User(_)) = by_name(&property.name)
        {
            seen.insert(property.name.as_str());
            names.push(name);
        }
    }
    names
}

/// A property by its name, with its value if the dataset has one.
pub type Line<'a> = (&'a PropertyName, Option<Cow<'a, Property>>);

/// The lines of one dataset: the requested properties that pass the filter.
fn lines<'a>(ask: &Args, info: &'a DatasetInfo, names: &'a [PropertyName]) -> Vec<Line<'a>> {
    let is_all = ask.names.is_none();
    let user_order = |name: &PropertyName| match name {
        PropertyName::User(name) => info
            .properties
            .iter()
            .position(|property| property.name == *name),
        _ => None,
    };
    let mut lines: Vec<_> = names
        .iter()
        .map(|name| (name, shown::find(info, name)))
        .filter(|(_, property)| !is_all || property.as_ref().is_some_and(|p| p.value.is_some()))
        .filter(|(_, property)| {
            let source = property.as_ref().map_or(&Source::None, |p| &p.source);
            ask.sources.contains(&source_word(source))
        })
        .collect();
    if is_all {
        // The sort is stable: native properties stay in front of user properties.
        lines.sort_by_key(|(name, _)| user_order(name));
    }
    lines
}

fn print(
    session: &mut Session,
    ask: &Args,
    datasets: &[DatasetInfo],
    names: &[PropertyName],
) -> Result<(), Failure> {
    let zone = &session.environment.zone;
    let value_width = |column, pick: fn(&Property) -> Option<&millpond_control::Value>, least| {
        if !ask.columns.contains(&column) {
            return least;
        }
        names
            .iter()
            .map(|name| {
                let widest = shown::least_width(name);
                if shown::is_fixed_width(name) {
                    return widest;
                }
                datasets
                    .iter()
                    .filter_map(|info| shown::find(info, name))
                    .map(|property| shown::value(name, pick(&property), false, zone).len())
                    .fold(widest, usize::max)
            })
            .fold(least, usize::max)
    };
    let table = PropertyTable {
        columns: &ask.columns,
        is_script: ask.is_script,
        name_width: widest(datasets.iter().map(|info| info.name.as_str()), 4),
        property_width: widest(names.iter().map(PropertyName::text), 8),
        value_width: value_width(Column::Value, |p| p.value.as_ref(), 5),
        received_width: value_width(Column::Received, |p| p.received.as_ref(), 8),
    };
    let mut is_first = true;
    for info in datasets {
        for (name, property) in lines(ask, info, names) {
            if is_first {
                table.print_titles(session)?;
            }
            is_first = false;
            let property = property.as_deref();
            table.print(session, |column| match column {
                Column::Name => info.name.clone(),
                Column::Property => name.text().to_string(),
                Column::Value => {
                    let value = property.and_then(|p| p.value.as_ref());
                    shown::value(name, value, ask.style.is_exact, zone)
                }
                Column::Received => {
                    let value = property.and_then(|p| p.received.as_ref());
                    shown::value(name, value, ask.style.is_exact, zone)
                }
                Column::Source => {
                    property.map_or_else(|| NOTHING.into(), |p| shown::source(&p.source))
                }
            })?;
        }
    }
    Ok(())
}

/// Prints one object with every dataset and the properties that `lines` picks from it.
pub fn print_json<'a>(
    session: &mut Session,
    command: &str,
    datasets: &'a [DatasetInfo],
    style: Style,
    lines: impl Fn(&'a DatasetInfo) -> Vec<Line<'a>>,
) -> Result<(), Failure> {
    let zone = &session.environment.zone;
    let mut all = Map::new();
    for info in datasets {
        let mut properties = Map::new();
        for (name, property) in lines(info) {
            properties.insert(
                name.text().into(),
                json_property(name, property.as_deref(), style, zone),
            );
        }
        all.insert(info.name.clone(), json_dataset(info, properties, style));
    }
    let mut document = json::document(command);
    document.insert("datasets".into(), all.into());
    writeln!(session.out, "{}", Json::Object(document))?;
    Ok(())
}

fn json_dataset(info: &DatasetInfo, properties: Map<String, Json>, style: Style) -> Json {
    let mut object = Map::new();
    object.insert("name".into(), info.name.clone().into());
    object.insert("type".into(), info.kind.word().to_ascii_uppercase().into());
    let pool = info.name.split(['/', '@', '#']).next().unwrap_or_default();
    object.insert("pool".into(), pool.into());
    object.insert("createtxg".into(), style.digits(info.created_txg));
    if let Some((dataset, snapshot)) = info.name.split_once('@') {
        object.insert("dataset".into(), dataset.into());
        object.insert("snapshot_name".into(), snapshot.into());
    }
    object.insert("properties".into(), properties.into());
    object.into()
}

fn json_property(
    name: &PropertyName,
    property: Option<&Property>,
    style: Style,
    zone: &jiff::tz::TimeZone,
) -> Json {
    let text = shown::value(
        name,
        property.and_then(|p| p.value.as_ref()),
        style.is_exact,
        zone,
    );
    json_value(
        style.value(&text),
        property.map_or(&Source::None, |p| &p.source),
    )
}

/// The JSON object of one property: its value and its source.
pub fn json_value(value: Json, source: &Source) -> Json {
    let (kind, data) = match source {
        Source::None => ("NONE", NOTHING),
        Source::Default => ("DEFAULT", NOTHING),
        Source::Local => ("LOCAL", NOTHING),
        Source::Inherited(from) => ("INHERITED", from.as_str()),
        Source::Received => ("RECEIVED", NOTHING),
        Source::Temporary => ("TEMPORARY", NOTHING),
    };
    let mut origin = Map::new();
    origin.insert("type".into(), kind.into());
    origin.insert("data".into(), data.into());
    let mut object = Map::new();
    object.insert("value".into(), value);
    object.insert("source".into(), origin.into());
    object.into()
}

/// The name of a source in `-s`.
fn source_word(source: &Source) -> &'static str {
    match source {
        Source::None => "none",
        Source::Default => "default",
        Source::Local => "local",
        Source::Inherited(_) => "inherited",
        Source::Received => "received",
        Source::Temporary => "temporary",
    }
}

const SOURCES: [&str; 6] = [
    "local",
    "default",
    "inherited",
    "received",
    "temporary",
    "none",
];
const COLUMNS_MAX: usize = 5;
