//! `zpool list`.

use super::every::Rounds;
use super::groups::{self, TITLED};
use super::no_such_pool;
use super::property::PoolProperty;
use super::vdev_name::Naming;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use crate::text::columns::{self, pad_left, pad_right};
use crate::text::json::{self, Style};
use crate::text::number;
use crate::zfs::json_value;
use millpond_control::{
    ControlError, PoolInfo, PoolVersion, Source, VdevClass, VdevInfo, VdevKind,
};
use serde_json::{Map, Value as Json};

/// Lists pools as a table.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let mut operands = parsed.operands.clone();
    let style = Style::read(parsed)?;
    let rounds = Rounds::read(parsed, &mut operands)?;
    let words = parsed.value("o").unwrap_or(DEFAULT_COLUMNS);
    let ask = Args {
        is_script: parsed.has("H"),
        is_json: parsed.has("j"),
        is_verbose: parsed.has("v"),
        is_keyed_by_guid: parsed.has("json-pool-key-guid"),
        style,
        naming: Naming::read(parsed, session.environment),
        columns: columns_named(words)?,
    };
    rounds.run(session, |session, done| {
        round(session, &ask, &operands, done == 0)
    })
}

struct Args {
    is_script: bool,
    is_json: bool,
    is_verbose: bool,
    is_keyed_by_guid: bool,
    style: Style,
    naming: Naming,
    columns: Vec<PoolProperty>,
}

fn columns_named(words: &str) -> Result<Vec<PoolProperty>, Failure> {
    if words == "all" {
        let mut columns = vec![required("name")?];
        columns.extend(PoolProperty::all(&[]));
        return Ok(columns);
    }
    words.split(',').map(required).collect()
}

fn required(word: &str) -> Result<PoolProperty, Failure> {
    PoolProperty::by_name(word)
        .ok_or_else(|| Failure::Usage(format!("bad property list: invalid property '{word}'")))
}

/// Returns the named pools, or all. Reports missing pools; the flag says whether any is missing.
pub fn pools_named(
    session: &mut Session,
    operands: &[String],
) -> Result<(Vec<PoolInfo>, bool), Failure> {
    let control = session.service()?;
    let mut names = if operands.is_empty() {
        control
            .pools()
            .map_err(|e| Failure::Refused(e.to_string()))?
    } else {
        operands.to_vec()
    };
    if operands.is_empty() {
        names.sort();
    }
    let mut pools: Vec<PoolInfo> = Vec::new();
    let mut has_failed = false;
    for name in names {
        if pools.iter().any(|pool| pool.name == name) {
            continue;
        }
        match session.service()?.pool(&name) {
            Ok(pool) => pools.push(pool),
            Err(ControlError::NoSuchPool) => {
                writeln!(session.err, "{}", no_such_pool(&name))?;
                has_failed = true;
            }
            Err(error) => {
                writeln!(session.err, "cannot open '{name}': {error}")?;
                has_failed = true;
            }
        }
    }
    pools.sort_by(|left, right| left.name.cmp(&right.name));
    Ok((pools, has_failed))
}

fn round(session: &mut Session, ask: &Args, operands: &[String], is_first: bool) -> Ending {
    let (pools, has_failed) = pools_named(session, operands)?;
    let status = u8::from(has_failed);
    if ask.is_json {
        // Without any pool, JSON output is empty too.
        if !has_failed && (!pools.is_empty() || !operands.is_empty()) {
            print_json(session, ask, &pools)?;
        }
        return Ok(status);
    }
    if pools.is_empty() {
        if !has_failed && !ask.is_script {
            writeln!(session.out, "no pools available")?;
        }
        return Ok(status);
    }
    let widths = widths(ask, &pools);
    if !ask.is_script && is_first {
        let titles: Vec<String> = ask.columns.iter().map(header).collect();
        put(session, ask, &titles, &widths)?;
    }
    for pool in &pools {
        let cells: Vec<String> = ask
            .columns
            .iter()
            .map(|name| cell(ask, pool, name))
            .collect();
        put(session, ask, &cells, &widths)?;
        if ask.is_verbose {
            print_vdevs(session, ask, pool, widths[0])?;
        }
    }
    Ok(status)
}

fn header(name: &PoolProperty) -> String {
    match name {
        PoolProperty::Native(shape) => shape.header.to_string(),
        other => other.text().to_ascii_uppercase(),
    }
}

fn cell(ask: &Args, pool: &PoolInfo, name: &PoolProperty) -> String {
    match name.find(pool) {
        Some(property) => name.value(property.value.as_ref(), ask.style.is_exact),
        None => "-".into(),
    }
}

fn widths(ask: &Args, pools: &[PoolInfo]) -> Vec<usize> {
    let mut widths: Vec<usize> = ask
        .columns
        .iter()
        .map(|name| {
            let least = name.least_width();
            if name.is_fixed_width() && !ask.style.is_exact {
                return least;
            }
            pools
                .iter()
                .map(|pool| cell(ask, pool, name).len())
                .fold(least, usize::max)
        })
        .collect();
    if ask.is_verbose
        && let Some(first) = widths.first_mut()
    {
        let names = pools.iter().flat_map(|pool| {
            let vdevs = groups::walk(pool)
                .into_iter()
                .map(|(vdev, depth)| ask.naming.of(vdev).len() + depth)
                .collect::<Vec<_>>();
            std::iter::once(pool.name.len()).chain(vdevs)
        });
        *first = names.fold(9, usize::max);
    }
    widths
}

fn put(
    session: &mut Session,
    ask: &Args,
    cells: &[String],
    widths: &[usize],
) -> Result<(), Failure> {
    if ask.is_script {
        writeln!(session.out, "{}", cells.join("\t"))?;
        return Ok(());
    }
    let is_right =
        |at: usize| matches!(ask.columns[at], PoolProperty::Native(s) if s.is_right_aligned);
    let mut line = columns::row(cells, widths, is_right);
    if ask.is_verbose && cells.len() == 1 {
        // Vdevs follow in the same column.
        pad_right(&mut line, "", widths[0].saturating_sub(cells[0].len()));
    }
    writeln!(session.out, "{line}")?;
    Ok(())
}

fn print_vdevs(
    session: &mut Session,
    ask: &Args,
    pool: &PoolInfo,
    width: usize,
) -> Result<(), Failure> {
    for vdev in groups::of_class(pool, VdevClass::Normal) {
        print_vdev(session, ask, vdev, 2, width)?;
    }
    let groups = TITLED
        .iter()
        .map(|(class, title)| (*title, groups::of_class(pool, *class).collect::<Vec<_>>()))
        .chain([
            ("cache", pool.caches.iter().collect::<Vec<_>>()),
            ("spare", pool.spares.iter().collect()),
        ]);
    for (title, members) in groups.filter(|(_, members)| !members.is_empty()) {
        let mut line = String::new();
        pad_right(&mut line, title, width);
        writeln!(session.out, "{line}{TITLE_REST}")?;
        for vdev in members {
            print_vdev(session, ask, vdev, 2, width)?;
        }
    }
    Ok(())
}

fn print_vdev(
    session: &mut Session,
    ask: &Args,
    vdev: &VdevInfo,
    depth: usize,
    width: usize,
) -> Result<(), Failure> {
    let name = ask.naming.of(vdev);
    let cells = vdev_cells(vdev, depth == 2, ask.style.is_exact);
    if ask.is_script {
        writeln!(session.out, "\t{name}\t{}", cells.join("\t"))?;
    } else {
        let mut line = " ".repeat(depth);
        pad_right(&mut line, &name, width.saturating_sub(depth));
        for (cell, width) in cells.iter().zip(VDEV_WIDTHS) {
            line.push_str("  ");
            pad_left(&mut line, cell, width);
        }
        writeln!(session.out, "{line}")?;
    }
    for child in &vdev.children {
        print_vdev(session, ask, child, depth + 2, width)?;
    }
    Ok(())
}

/// The columns SIZE ALLOC FREE CKPOINT EXPANDSZ FRAG CAP DEDUP HEALTH of a vdev.
fn vdev_cells(vdev: &VdevInfo, is_top: bool, is_exact: bool) -> [String; 9] {
    let bytes = |n: u64| {
        if is_exact {
            n.to_string()
        } else {
            number::count(n)
        }
    };
    let or_dash = |n: u64| if n == 0 { "-".into() } else { bytes(n) };
    let dash = || "-".to_string();
    let is_spare = vdev.spare_use.is_some();
    let size = match vdev.kind.is_leaf() && vdev.physical_bytes > 0 {
        true => vdev.physical_bytes,
        false => vdev.total_bytes,
    };
    // The content of a cache device is unknown if it was not opened for writing.
    let is_unknown = vdev.class == VdevClass::Cache && vdev.total_bytes == 0;
    let has_space = is_top && !is_spare && !is_unknown && vdev.kind != VdevKind::Indirect;
    let fragmentation = match vdev.fragmentation_percent {
        Some(percent) if has_space && is_exact => percent.to_string(),
        Some(percent) if has_space => format!("{percent}%"),
        _ => dash(),
    };
    let capacity = match (has_space, is_exact) {
        (false, _) => dash(),
        (true, true) => {
            number::whole_percent_of(vdev.allocated_bytes, vdev.total_bytes).to_string()
        }
        (true, false) => number::percent_of(vdev.allocated_bytes, vdev.total_bytes),
    };
    let space = |n: u64| if has_space { bytes(n) } else { dash() };
    [
        if vdev.kind == VdevKind::Indirect {
            dash()
        } else {
            or_dash(size)
        },
        space(vdev.allocated_bytes),
        space(vdev.total_bytes.saturating_sub(vdev.allocated_bytes)),
        if has_space {
            or_dash(vdev.checkpoint_bytes)
        } else {
            dash()
        },
        or_dash(vdev.expandable_bytes),
        fragmentation,
        capacity,
        dash(),
        groups::state_word(vdev).to_string(),
    ]
}

/// The members at the start of every pool's JSON object.
pub fn json_head(pool: &PoolInfo, style: Style, has_type: bool) -> Map<String, Json> {
    let mut object = Map::new();
    object.insert("name".into(), pool.name.clone().into());
    if has_type {
        object.insert("type".into(), "POOL".into());
    }
    object.insert("state".into(), pool.health().into());
    object.insert("pool_guid".into(), style.digits(pool.guid));
    object.insert("txg".into(), style.digits(pool.config_txg));
    object.insert("spa_version".into(), style.digits(PoolVersion::FEATURES.0));
    object.insert("zpl_version".into(), style.digits(ZPL_VERSION));
    object
}

/// The key of a pool in JSON output.
pub fn json_key(pool: &PoolInfo, is_keyed_by_guid: bool) -> String {
    if is_keyed_by_guid {
        pool.guid.to_string()
    } else {
        pool.name.clone()
    }
}

fn print_json(session: &mut Session, ask: &Args, pools: &[PoolInfo]) -> Result<(), Failure> {
    let mut all = Map::new();
    for pool in pools {
        let mut object = json_head(pool, ask.style, true);
        let mut properties = Map::new();
        for name in ask.columns.iter().filter(|name| name.text() != "name") {
            let source = name
                .find(pool)
                .map_or(Source::None, |property| property.source.clone());
            let value = ask.style.value(&cell(ask, pool, name));
            properties.insert(name.text().into(), json_value(value, &source));
        }
        object.insert("properties".into(), properties.into());
        if ask.is_verbose {
            let mut vdevs = Map::new();
            for vdev in groups::of_class(pool, VdevClass::Normal) {
                vdevs.insert(ask.naming.of(vdev), json_vdev(ask, vdev, 2));
            }
            object.insert("vdevs".into(), vdevs.into());
            let others = TITLED
                .iter()
                .map(|(class, title)| (*title, groups::of_class(pool, *class).collect::<Vec<_>>()))
                .chain([
                    ("l2cache", pool.caches.iter().collect::<Vec<_>>()),
                    ("spares", pool.spares.iter().collect()),
                ]);
            for (title, members) in others.filter(|(_, members)| !members.is_empty()) {
                let members: Map<String, Json> = members
                    .into_iter()
                    .map(|vdev| (ask.naming.of(vdev), json_vdev(ask, vdev, 2)))
                    .collect();
                object.insert(title.into(), members.into());
            }
        }
        all.insert(json_key(pool, ask.is_keyed_by_guid), object.into());
    }
    let mut document = json::document("zpool list");
    document.insert("pools".into(), all.into());
    writeln!(session.out, "{}", Json::Object(document))?;
    Ok(())
}

fn json_vdev(ask: &Args, vdev: &VdevInfo, depth: usize) -> Json {
    let mut object = super::status::json_identity(ask.naming, vdev, ask.style);
    let cells = vdev_cells(vdev, depth == 2, ask.style.is_exact);
    let mut properties = Map::new();
    for (name, cell) in VDEV_COLUMNS.iter().zip(cells) {
        properties.insert(
            (*name).into(),
            json_value(ask.style.value(&cell), &Source::None),
        );
    }
    object.insert("properties".into(), properties.into());
    if !vdev.children.is_empty() {
        let children: Map<String, Json> = vdev
            .children
            .iter()
            .map(|child| (ask.naming.of(child), json_vdev(ask, child, depth + 2)))
            .collect();
        object.insert("vdevs".into(), children.into());
    }
    object.into()
}

const DEFAULT_COLUMNS: &str = "name,size,allocated,free,checkpoint,expandsize,fragmentation,\
    capacity,dedupratio,health,altroot";
const VDEV_COLUMNS: [&str; 9] = [
    "size",
    "allocated",
    "free",
    "checkpoint",
    "expandsize",
    "fragmentation",
    "capacity",
    "dedupratio",
    "health",
];
/// The widths do not change with `-p`; longer numbers overflow.
const VDEV_WIDTHS: [usize; 9] = [5, 5, 5, 7, 8, 5, 5, 5, 8];
/// The rest of a title line for a group of vdevs.
const TITLE_REST: &str = "      -      -      -        -         -      -      -      -         -";
/// The newest version of file systems.
const ZPL_VERSION: u64 = 5;
