//! Collects the datasets that a command applies to.

use super::assign::owner_number;
use super::names;
use super::order::{SortKey, compare};
use super::paths;
use crate::session::{Failure, Session};
use millpond_control::properties::{DatasetKind, Kinds, PropertyName, by_name};
use millpond_control::{ControlError, DatasetInfo, DatasetQuery, Service, Wanted};
use std::collections::HashMap;

/// What to collect.
#[derive(Debug)]
pub struct Request<'a> {
    /// Names; none stands for all pools with all their datasets.
    pub operands: &'a [String],
    /// Number of levels below each operand.
    pub depth: u32,
    /// Whether the depth was given. Otherwise a list of snapshots of a dataset has its own ones.
    pub is_depth_given: bool,
    /// The kinds to show.
    pub kinds: Kinds,
    /// Further kinds that an operand may name.
    pub also_named: Kinds,
    /// Whether a pool's property `listsnapshots` adds snapshots.
    pub heeds_listsnapshots: bool,
    /// The properties to read.
    pub wanted: Wanted,
    /// The sort keys.
    pub sort: &'a [SortKey],
}

/// The collected datasets.
#[derive(Debug, Default)]
pub struct Found {
    /// The datasets in sorted order, without duplicates.
    pub datasets: Vec<DatasetInfo>,
    /// Whether an operand could not be opened. The error is already printed.
    pub has_failed: bool,
}

/// Collects and sorts datasets.
///
/// The properties may refer to owners by name, and the results show these names.
pub fn collect(session: &mut Session, request: &Request) -> Result<Found, Failure> {
    let Wanted::Named(names) = &request.wanted else {
        return collect_as(session, request);
    };
    let mut by_number = HashMap::new();
    let numbered = names.iter().map(|name| match name {
        PropertyName::PerOwner {
            name: full,
            owner_kind,
            owner,
            ..
        } => owner_number(session.environment, *owner_kind, owner)
            .and_then(|number| by_name(&format!("{}{number}", full.strip_suffix(owner.as_str())?)))
            .inspect(|numbered| {
                by_number.insert(numbered.text().to_owned(), full.clone());
            })
            .unwrap_or_else(|| name.clone()),
        name => name.clone(),
    });
    let mut wanted: Vec<PropertyName> = numbered.collect();
    // The request uses the owners' ids; the results get the names back.
    let named = names.iter().filter(|name| !wanted.contains(name)).cloned();
    let named: Vec<PropertyName> = named.collect();
    wanted.extend(named);
    let wanted = Wanted::Named(wanted);
    let mut found = collect_as(
        session,
        &Request {
            wanted,
            operands: request.operands,
            sort: request.sort,
            ..*request
        },
    )?;
    for info in &mut found.datasets {
        let mut named = vec![];
        for property in &info.properties {
            let name = by_number.get(&property.name);
            if let Some(name) = name.filter(|name| info.property(name).is_none()) {
                let mut other = property.clone();
                other.name.clone_from(name);
                named.push(other);
            }
        }
        info.properties.extend(named);
    }
    Ok(found)
}

fn collect_as(session: &mut Session, request: &Request) -> Result<Found, Failure> {
    let mut found = Found::default();
    let mut damaged = vec![];
    if request.operands.is_empty() {
        let control = session.service()?;
        let pools = control
            .pools()
            .map_err(|e| Failure::Refused(e.to_string()))?;
        for pool in pools {
            let kinds = kinds_in(control, &pool, request);
            let query = query(&pool, request.depth, kinds, request);
            match gather(control, &query, &mut found.datasets) {
                Ok(()) => {}
                Err(ControlError::Damaged(names)) => damaged.extend(names),
                Err(e) => return Err(Failure::Refused(format!("cannot open '{pool}': {e}"))),
            }
        }
    }
    tell_damaged(session, &mut found, &damaged)?;
    for operand in request.operands {
        let operand = match paths::dataset_of(operand) {
            Ok(name) => &name.clone(),
            Err(reason) => {
                writeln!(session.err, "cannot open '{operand}': {reason}")?;
                found.has_failed = true;
                continue;
            }
        };
        if let Err(reason) = gather_operand(session, operand, request, &mut found)? {
            writeln!(session.err, "cannot open '{operand}': {reason}")?;
            found.has_failed = true;
        }
    }
    found
        .datasets
        .sort_by(|left, right| compare(left, right, request.sort));
    found.datasets.dedup_by(|next, kept| next.name == kept.name);
    if request.operands.len() > 1 {
        // With sort keys, two entries of the same dataset need not be adjacent.
        let mut seen = std::collections::HashSet::new();
        found.datasets.retain(|info| seen.insert(info.name.clone()));
    }
    Ok(found)
}

fn gather_operand(
    session: &mut Session,
    operand: &str,
    request: &Request,
    found: &mut Found,
) -> Result<Result<(), String>, Failure> {
    // An operand may always be a file system or volume, because the command may apply to its descendants.
    let named = [DatasetKind::Filesystem, DatasetKind::Volume];
    let mut legal = named
        .iter()
        .fold(request.kinds, |kinds, kind| kinds.with(*kind));
    for kind in DatasetKind::ALL {
        if request.also_named.contains(kind) {
            legal = legal.with(kind);
        }
    }
    if let Err(reason) = names::check(operand, legal) {
        return Ok(Err(reason));
    }
    let is_plain = !operand.contains(['@', '#']);
    let only_leaves = !named.iter().any(|kind| request.kinds.contains(*kind));
    let depth = if is_plain && only_leaves && !request.is_depth_given {
        request.depth.max(1)
    } else {
        request.depth
    };
    let control = session.service()?;
    let pool = operand.split(['/', '@', '#']).next().unwrap_or(operand);
    let mut kinds = kinds_in(control, pool, request);
    if !is_plain {
        kinds = kinds
            .with(DatasetKind::Snapshot)
            .with(DatasetKind::Bookmark);
    }
    let query = query(operand, depth, kinds, request);
    match gather(control, &query, &mut found.datasets) {
        Ok(()) => Ok(Ok(())),
        Err(ControlError::Damaged(names)) => {
            tell_damaged(session, found, &names)?;
            Ok(Ok(()))
        }
        Err(ControlError::NoSuchPool) => Ok(Err(ControlError::NoSuchDataset.to_string())),
        Err(other) => Ok(Err(other.to_string())),
    }
}

/// Names datasets that are there, but not in the answer.
fn tell_damaged(session: &mut Session, found: &mut Found, names: &[String]) -> Result<(), Failure> {
    for name in names {
        let reason = ControlError::Damaged(vec![]);
        writeln!(session.err, "cannot open '{name}': {reason}")?;
        found.has_failed = true;
    }
    Ok(())
}

fn gather(
    control: &dyn Service,
    query: &DatasetQuery,
    datasets: &mut Vec<DatasetInfo>,
) -> Result<(), ControlError> {
    control.datasets(query, &mut |info| {
        datasets.push(info);
        Ok(())
    })
}

fn query(root: &str, depth: u32, kinds: Kinds, request: &Request) -> DatasetQuery {
    DatasetQuery {
        root: root.to_string(),
        depth,
        kinds,
        wanted: request.wanted.clone(),
        names_damaged: true,
    }
}

fn kinds_in(control: &dyn Service, pool: &str, request: &Request) -> Kinds {
    let has_snapshots = request.heeds_listsnapshots
        && control.pool(pool).is_ok_and(|info| {
            info.property("listsnapshots")
                .and_then(|p| p.value.as_ref())
                .is_some_and(|value| value.number() == Some(1) || value.text() == Some("on"))
        });
    if has_snapshots {
        request.kinds.with(DatasetKind::Snapshot)
    } else {
        request.kinds
    }
}

/// Parses the kinds of `-t`. The error is the unknown word.
pub fn kinds_named(words: &str) -> Result<Kinds, String> {
    let mut kinds = Kinds::NONE;
    for word in words.split(',') {
        kinds = match word {
            "filesystem" | "fs" => kinds.with(DatasetKind::Filesystem),
            "snapshot" | "snap" => kinds.with(DatasetKind::Snapshot),
            "volume" | "vol" => kinds.with(DatasetKind::Volume),
            "bookmark" => kinds.with(DatasetKind::Bookmark),
            "all" => Kinds::ALL,
            other => return Err(format!("invalid type '{other}'")),
        };
    }
    Ok(kinds)
}

/// The depth without `-r` and `-d`: the named datasets alone, or everything.
pub fn default_depth(operands: &[String]) -> u32 {
    match operands.is_empty() {
        true => DatasetQuery::WHOLE_TREE,
        false => 0,
    }
}

/// Parses the depth of `-d`, or returns what is wrong with it.
pub fn depth_named(word: &str) -> Result<u32, String> {
    match word.parse::<i64>() {
        Ok(depth) if depth < 0 => Err("Depth can not be negative.".into()),
        Ok(depth) => Ok(u32::try_from(depth).unwrap_or(DatasetQuery::WHOLE_TREE)),
        Err(_) => Err(format!("{word} is not an integer")),
    }
}
