//! `inspect spacemaps`: shows metaslabs and the headers of their space maps.

use super::items::Items;
use crate::session::{Ending, Session};
use crate::text::number;
use crate::verbs::Global;
use crate::verbs::global::refused;
use clap::ArgMatches;
use millpond_inspect::{Metaslab, PoolSpaceMaps, ondisk::SpaceMapPhys};
use serde_json::{Value, json};

/// Runs the subcommand.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let pool = super::open_pool(global, matches)?;
    let maps = PoolSpaceMaps::load(pool.inner()).map_err(refused)?;
    let head = format!(
        "{:>5} {:>8} {:>16} {:>7} {:>8} {:>8} {:>7}",
        "VDEV", "METASLAB", "OFFSET", "SIZE", "MAP", "LENGTH", "FREE"
    );
    let mut items = Items::begin(session, global.is_json, &head)?;
    for vdev in maps.geometries().into_keys() {
        match maps.headers(vdev) {
            Ok(headers) => {
                for (metaslab, header) in &headers {
                    items.item(
                        || value(metaslab, header.as_ref()),
                        || text(metaslab, header.as_ref()),
                    )?;
                }
            }
            Err(error) => items.failure(error)?,
        }
    }
    Ok(items.end()?)
}

/// Free bytes according to the space map's header alone, without the changes still in the log space maps.
fn free_bytes(metaslab: &Metaslab, header: Option<&SpaceMapPhys>) -> i64 {
    let size = metaslab.range.end.saturating_sub(metaslab.range.start);
    let size = i64::try_from(size).unwrap_or(i64::MAX);
    size.saturating_sub(header.map_or(0, |header| header.allocated_bytes))
}

fn text(metaslab: &Metaslab, header: Option<&SpaceMapPhys>) -> String {
    let size = metaslab.range.end.saturating_sub(metaslab.range.start);
    let map = header.and_then(|header| header.object);
    format!(
        "{:>5} {:>8} {:>16x} {:>7} {:>8} {:>8} {:>7}",
        metaslab.id.vdev.0,
        metaslab.id.index,
        metaslab.range.start,
        number::count(size),
        map.map_or("-".into(), |map| map.0.to_string()),
        header.map_or(0, |header| header.length_bytes),
        u64::try_from(free_bytes(metaslab, header)).map_or("?".into(), number::count),
    )
}

fn value(metaslab: &Metaslab, header: Option<&SpaceMapPhys>) -> Value {
    json!({
        "vdev": metaslab.id.vdev.0,
        "metaslab": metaslab.id.index,
        "offset": metaslab.range.start,
        "size": metaslab.range.end.saturating_sub(metaslab.range.start),
        "map": header.map(|header| json!({
            "object": header.object.map(|id| id.0),
            "length": header.length_bytes,
            "allocated": header.allocated_bytes,
            "histogram": header.histogram.as_ref().map(|histogram| histogram.buckets.to_vec()),
        })),
        "free": free_bytes(metaslab, header),
    })
}
