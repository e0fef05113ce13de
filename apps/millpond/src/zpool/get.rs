//! `zpool get`, for pools and vdevs.

use super::groups;
use super::list::{json_head, json_key};
use super::property::{PoolProperty, of_shape};
use super::vdev_name::Naming;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use crate::text::json::{self, Style};
use crate::text::property_columns::{Column, PropertyTable, columns_named, widest};
use crate::text::terminal::one_line;
use crate::zfs::{json_value, shape_width, source_word};
use millpond_control::properties::{Shape, vdev_table};
use millpond_control::{PoolInfo, Property, Source, Value, VdevInfo};
use serde_json::{Map, Value as Json};

/// Prints properties, one per line.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let ask = Args::read(parsed)?;
    let operands = parsed.operands.get(1..).unwrap_or_default();
    let known = session
        .service()?
        .pools()
        .map_err(|e| Failure::Refused(e.to_string()))?;
    let is_pool = |name: &String| known.contains(name);
    if let Some(stranger) = operands.iter().find(|name| !is_pool(name)) {
        if !operands.first().is_some_and(is_pool) {
            let text = format!("Cannot get properties of {stranger}: no such pool available.");
            return Err(Failure::Refused(text));
        }
        return of_vdevs(session, &ask, &operands[0], &operands[1..]);
    }
    of_pools(session, &ask, operands)
}

struct Args {
    is_script: bool,
    is_json: bool,
    is_keyed_by_guid: bool,
    style: Style,
    columns: Vec<Column>,
    words: String,
}

impl Args {
    fn read(parsed: &Parsed) -> Result<Args, Failure> {
        let mut columns = Column::DEFAULT.to_vec();
        for (_, words) in parsed.options.iter().filter(|(option, _)| option == "o") {
            columns = columns_named(words.as_deref().unwrap_or_default(), &Column::DEFAULT)?;
        }
        let Some(words) = parsed.operands.first() else {
            return Err(Failure::Usage("missing property argument".into()));
        };
        let ask = Args {
            is_script: parsed.has("H"),
            is_json: parsed.has("j"),
            is_keyed_by_guid: parsed.has("json-pool-key-guid"),
            style: Style::read(parsed)?,
            columns,
            words: words.clone(),
        };
        Ok(ask)
    }
}

/// One line before formatting.
struct Line {
    owner: String,
    property: String,
    value: String,
    source: Source,
}

fn bad_property(word: &str) -> Failure {
    Failure::Usage(format!("bad property list: invalid property '{word}'"))
}

fn of_pools(session: &mut Session, ask: &Args, operands: &[String]) -> Ending {
    let mut names = Vec::new();
    if ask.words != "all" {
        for word in ask.words.split(',') {
            names.push(PoolProperty::by_name(word).ok_or_else(|| bad_property(word))?);
        }
    }
    let (pools, _) = super::list::pools_named(session, operands)?;
    let is_all = ask.words == "all";
    if is_all {
        names = PoolProperty::all(&pools);
    }
    let mut value_width = 5;
    for name in &names {
        value_width = value_width.max(name.least_width());
    }
    let mut lines = Vec::new();
    let mut all = Map::new();
    for pool in &pools {
        let mut properties = Map::new();
        for name in &names {
            let Some(property) = name.find(pool) else {
                continue;
            };
            let is_missing_user = property.value.is_none() && property.name.contains(':');
            if is_all && is_missing_user {
                continue;
            }
            let value = name.value(property.value.as_ref(), ask.style.is_exact);
            if !name.is_fixed_width() || ask.style.is_exact {
                value_width = value_width.max(value.len());
            }
            let json = json_number(ask.style, &value);
            properties.insert(name.text().into(), json_value(json, &property.source));
            lines.push(Line {
                owner: pool.name.clone(),
                property: name.text().into(),
                value,
                source: property.source.clone(),
            });
        }
        let mut object = json_head(pool, ask.style, true);
        object.insert("properties".into(), properties.into());
        all.insert(json_key(pool, ask.is_keyed_by_guid), object.into());
    }
    if ask.is_json {
        let mut document = json::document("zpool get");
        document.insert("pools".into(), all.into());
        writeln!(session.out, "{}", Json::Object(document))?;
        return Ok(0);
    }
    let owner_width = widest(pools.iter().map(|pool| pool.name.as_str()), 4);
    let property_width = widest(names.iter().map(PoolProperty::text), 8);
    let widths = [owner_width, property_width, value_width];
    print(session, ask, &lines, widths)
}

fn of_vdevs(session: &mut Session, ask: &Args, pool: &str, words: &[String]) -> Ending {
    let mut names: Vec<VdevProperty> = Vec::new();
    let is_all = ask.words == "all";
    if !is_all {
        for word in ask.words.split(',') {
            names.push(VdevProperty::by_name(word).ok_or_else(|| bad_property(word))?);
        }
    }
    let info = session
        .service()?
        .pool(pool)
        .map_err(|e| Failure::Refused(format!("cannot open '{pool}': {e}")))?;
    let vdevs = vdevs_named(&info, words)?;
    let mut found: Vec<(String, &VdevInfo, Vec<Property>)> = Vec::new();
    for vdev in vdevs {
        let properties = session
            .service()?
            .vdev_properties(pool, vdev.guid)
            .map_err(|e| Failure::Refused(format!("cannot open '{pool}': {e}")))?;
        found.push((vdev_name(vdev), vdev, properties));
    }
    if is_all {
        names = VdevProperty::all(&found);
    }
    let mut value_width = names
        .iter()
        .map(VdevProperty::least_width)
        .fold(5, usize::max);
    let mut lines = Vec::new();
    let mut all = Map::new();
    for (owner, vdev, properties) in &found {
        let mut members = Map::new();
        for name in &names {
            let property = properties
                .iter()
                .find(|property| property.name == name.text());
            if is_all && property.is_none() {
                continue;
            }
            let (value, source) = name.look(&info, vdev, property, ask.style.is_exact);
            if !name.is_fixed_width() || ask.style.is_exact {
                value_width = value_width.max(value.len());
            }
            let json = json_number(ask.style, &value);
            members.insert(name.text().into(), json_value(json, &source));
            lines.push(Line {
                owner: owner.clone(),
                property: name.text().into(),
                value,
                source,
            });
        }
        let mut object = json_vdev(vdev, owner, ask.style);
        object.insert("properties".into(), members.into());
        all.insert(owner.clone(), object.into());
    }
    if ask.is_json {
        let mut document = json::document("zpool get");
        document.insert("pool".into(), json_head(&info, ask.style, false).into());
        document.insert("vdevs".into(), all.into());
        writeln!(session.out, "{}", Json::Object(document))?;
        return Ok(0);
    }
    // With `all-vdevs`, the first name alone sets the column width.
    let is_whole = words.iter().any(|word| word == "all-vdevs");
    let measured = if is_whole {
        &found[..found.len().min(1)]
    } else {
        &found[..]
    };
    let owner_width = widest(measured.iter().map(|(owner, ..)| owner.as_str()), 4);
    let property_width = widest(names.iter().map(VdevProperty::text), 8);
    let widths = [owner_width, property_width, value_width];
    print(session, ask, &lines, widths)
}

fn print(session: &mut Session, ask: &Args, lines: &[Line], widths: [usize; 3]) -> Ending {
    let [name_width, property_width, value_width] = widths;
    let table = PropertyTable {
        columns: &ask.columns,
        is_script: ask.is_script,
        name_width,
        property_width,
        value_width,
        received_width: 0,
    };
    if !lines.is_empty() {
        table.print_titles(session)?;
    }
    for line in lines {
        table.print(session, |column| match column {
            Column::Name => line.owner.clone(),
            Column::Property => line.property.clone(),
            Column::Value => line.value.clone(),
            Column::Source => source_word(&line.source),
            Column::Received => String::new(),
        })?;
    }
    Ok(0)
}

/// Numbers of `zpool get` in JSON are signed and saturate at 2^63-1.
fn json_number(style: Style, text: &str) -> Json {
    let value = style.value(text);
    match value.as_u64() {
        Some(number) => Json::from(number.min(i64::MAX as u64)),
        None => value,
    }
}

/// A well-formed name of a vdev property.
enum VdevProperty {
    Native(&'static Shape),
    User(String),
}

impl VdevProperty {
    fn by_name(word: &str) -> Option<VdevProperty> {
        if let Some(shape) = vdev_table::find(word) {
            return Some(VdevProperty::Native(shape));
        }
        crate::zfs::is_user_property(word).then(|| VdevProperty::User(word.into()))
    }

    fn all(found: &[(String, &VdevInfo, Vec<Property>)]) -> Vec<VdevProperty> {
        let listed = vdev_table::VDEV_PROPERTIES
            .iter()
            .filter(|shape| shape.is_listed);
        let mut names: Vec<VdevProperty> = listed.map(VdevProperty::Native).collect();
        for property in found.iter().flat_map(|(_, _, properties)| properties) {
            if property.name.contains(':') && !names.iter().any(|n| n.text() == property.name) {
                names.push(VdevProperty::User(property.name.clone()));
            }
        }
        names
    }

    fn text(&self) -> &str {
        match self {
            VdevProperty::Native(shape) => shape.name,
            VdevProperty::User(name) => name,
        }
    }

    fn least_width(&self) -> usize {
        match self {
            VdevProperty::Native(shape) => shape_width(shape),
            VdevProperty::User(name) => name.len(),
        }
    }

    fn is_fixed_width(&self) -> bool {
        matches!(self, VdevProperty::Native(shape) if shape.is_fixed_width())
    }

    fn look(
        &self,
        pool: &PoolInfo,
        vdev: &VdevInfo,
        property: Option<&Property>,
        is_exact: bool,
    ) -> (String, Source) {
        if self.text() == "name" {
            let name = match vdev.kind {
                millpond_control::VdevKind::Root => pool.name.clone(),
                _ => Naming::default().of(vdev),
            };
            return (name, Source::None);
        }
        let Some(property) = property else {
            return ("-".into(), Source::Default);
        };
        let value = match self {
            VdevProperty::Native(shape) => of_shape(shape, property.value.as_ref(), is_exact),
            VdevProperty::User(_) => match &property.value {
                Some(Value::Text(text)) => one_line(text).into_owned(),
                Some(Value::Number(number)) => number.to_string(),
                None => "-".into(),
            },
        };
        (value, property.source.clone())
    }
}

/// The vdevs that the words name: the root as `root` or `root-0`, all vdevs as `all-vdevs`.
pub(super) fn vdevs_named<'a>(
    pool: &'a PoolInfo,
    words: &[String],
) -> Result<Vec<&'a VdevInfo>, Failure> {
    let all: Vec<&VdevInfo> = groups::walk(pool)
        .into_iter()
        .map(|(vdev, _)| vdev)
        .filter(|vdev| vdev.kind != millpond_control::VdevKind::Indirect)
        .collect();
    let mut chosen = Vec::new();
    let mut unknown = String::new();
    for word in words {
        if word == "all-vdevs" {
            chosen.push(&pool.root);
            chosen.extend(&all);
            continue;
        }
        if ["root", "root-0"].contains(&word.as_str()) || *word == pool.root.guid.to_string() {
            chosen.push(&pool.root);
            continue;
        }
        let is_named = |vdev: &&&VdevInfo| {
            vdev.path.as_ref() == Some(word)
                || vdev.guid.to_string() == *word
                || Naming::default().of(vdev) == *word
        };
        match all.iter().find(is_named) {
            Some(vdev) => chosen.push(vdev),
            None => unknown.push_str(&format!("\t{word} (unknown)\n")),
        }
    }
    if unknown.is_empty() {
        return Ok(chosen);
    }
    let name = &pool.name;
    Err(Failure::Usage(format!(
        "Expected a list of vdevs in \"{name}\", but got:\n{unknown}"
    )))
}

fn vdev_name(vdev: &VdevInfo) -> String {
    match vdev.kind {
        millpond_control::VdevKind::Root => "root-0".into(),
        _ => Naming::default().of(vdev),
    }
}

fn json_vdev(vdev: &VdevInfo, name: &str, style: Style) -> Map<String, Json> {
    let identity = super::status::json_identity(Naming::default(), vdev, style);
    let mut object = Map::new();
    object.insert("name".into(), name.into());
    object.insert("type".into(), "VDEV".into());
    object.extend(identity.into_iter().filter(|(key, _)| key != "name"));
    object
}
