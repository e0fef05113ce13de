//! Sizes and reservations of volumes.
//!
//! The reservation of a volume that is not sparse covers the most that its data and indirect blocks can
//! take. The formula is in page `docs/format/volume.md`.

use super::assign::{Assignment, Meaning};
use super::lookup::{number, one, pool_of, text};
use crate::session::{Failure, Session};
use millpond_control::{PoolInfo, PoolVersion, Value, VdevClass, VdevInfo, VdevKind};

/// The default block size of volumes, in bytes.
pub const BLOCK_BYTES: u64 = 16 << 10;
/// The block size that the deflation ratio is based on, in bytes.
const MEASURE_BYTES: u64 = 128 << 10;
/// Levels of indirection of the object set.
const SET_LEVELS: u64 = 7;
/// Pointers per indirect block.
const FAN_OUT: u64 = 1024;

/// The values for a new volume.
pub struct Plan {
    /// The size in bytes, a multiple of the block size.
    pub size_bytes: u64,
    /// The property that reserves its space, and the bytes; `None` for a sparse volume.
    pub reservation: Option<(&'static str, u64)>,
    /// A warning about an inefficient block size.
    pub warning: Option<String>,
}

/// Computes the values for a new volume.
pub fn plan(
    session: &Session,
    name: &str,
    size_bytes: u64,
    assignments: &[Assignment],
    is_sparse: bool,
) -> Result<Plan, Failure> {
    let number = |wanted| given(assignments, wanted);
    let block = number("volblocksize").unwrap_or(BLOCK_BYTES).max(1);
    let size_bytes = size_bytes
        .checked_next_multiple_of(block)
        .unwrap_or(size_bytes);
    let copies = number("copies").unwrap_or(1);
    let reservation = match number("refreservation") {
        Some(bytes) => Some(("refreservation", bytes)),
        None if is_sparse && !assignments.iter().any(Assignment::is_auto) => None,
        None => {
            let info = session.service()?.pool(pool_of(name));
            let info = info.map_err(|error| Failure::Refused(error.to_string()))?;
            let bytes = reservation(&info, size_bytes, block, copies);
            Some((reserving_property(&info), bytes))
        }
    };
    let warning = (block < BLOCK_BYTES).then(|| {
        format!(
            "Warning: volblocksize ({block}) is less than the default minimum block size ({BLOCK_BYTES}).\n\
             To reduce wasted space a volblocksize of {BLOCK_BYTES} is recommended."
        )
    });
    Ok(Plan {
        size_bytes,
        reservation,
        warning,
    })
}

/// The number that a property is set to, if it is.
fn given(assignments: &[Assignment], wanted: &str) -> Option<u64> {
    let one = assignments.iter().find(|one| one.name == wanted)?;
    match &one.meaning {
        Meaning::Native(_, Value::Number(number)) => Some(*number),
        Meaning::Native(_, Value::Text(text)) => text.parse().ok(),
        _ => None,
    }
}

/// The property and value that reserve all space of a clone of a volume, for `refreservation=auto`.
///
/// The block size is that of the volume of the snapshot, the number of copies that of the clone.
pub fn of_clone(
    session: &Session,
    snapshot: &str,
    name: &str,
    size_bytes: u64,
    assignments: &[Assignment],
) -> Result<(String, Value), Failure> {
    let found = |name: &str, property| -> Result<Option<u64>, Failure> {
        let Some(info) = one(session, name, &[property])? else {
            return Ok(None);
        };
        let of_word = || text(&info, property).and_then(|word| word.parse().ok());
        Ok(number(&info, property).or_else(of_word))
    };
    let volume = snapshot.split('@').next().unwrap_or_default();
    let block = found(volume, "volblocksize")?.unwrap_or(BLOCK_BYTES);
    let copies = match given(assignments, "copies") {
        Some(copies) => copies,
        None => {
            let parent = name.rsplit_once('/').map_or(name, |(parent, _)| parent);
            found(parent, "copies")?.unwrap_or(1)
        }
    };
    let info = session.service()?.pool(pool_of(name));
    let info = info.map_err(|error| Failure::Refused(error.to_string()))?;
    let bytes = reservation(&info, size_bytes, block, copies);
    Ok((reserving_property(&info).into(), Value::Number(bytes)))
}

/// The property that reserves the space of a volume. Pools before version 9 have only one that includes its
/// snapshots.
pub fn reserving_property(pool: &PoolInfo) -> &'static str {
    match PoolVersion(pool.version).has_exact_unique_bytes() {
        true => "refreservation",
        false => "reservation",
    }
}

/// The most that a volume of this size can take, in bytes.
pub fn reservation(pool: &PoolInfo, size_bytes: u64, block_bytes: u64, copies: u64) -> u64 {
    let blocks = size_bytes / block_bytes.max(1);
    let data = data_bytes(pool, blocks, block_bytes);
    let mut indirect = SET_LEVELS;
    let mut left = blocks;
    while left > 1 {
        left = left.div_ceil(FAN_OUT);
        indirect = indirect.saturating_add(left);
    }
    let indirect = indirect
        .saturating_mul(copies.saturating_add(1).min(3))
        .saturating_mul(MEASURE_BYTES);
    data.saturating_mul(copies).saturating_add(indirect)
}

/// Bytes of data with the parity and padding of the least efficient vdev, as deflated space.
fn data_bytes(pool: &PoolInfo, blocks: u64, block_bytes: u64) -> u64 {
    let plain = blocks.saturating_mul(block_bytes);
    let tops = pool.root.children.iter();
    let normal = tops.filter(|top| top.class == VdevClass::Normal);
    normal
        .filter_map(|top| {
            let whole = allocated(top, block_bytes)?;
            let measure = (allocated(top, MEASURE_BYTES)? / 512).max(1);
            let scaled = u128::from(blocks) * u128::from(whole) / u128::from(measure);
            Some(u64::try_from(scaled.saturating_mul(256)).unwrap_or(u64::MAX))
        })
        .max()
        .unwrap_or(plain)
}

/// Bytes that a block takes on a vdev with parity.
fn allocated(top: &VdevInfo, bytes: u64) -> Option<u64> {
    let VdevKind::RaidZ { parity } = top.kind else {
        return None;
    };
    let of_leaf = top
        .children
        .first()
        .map_or(0, |leaf| leaf.configured_ashift);
    let ashift = u32::try_from(top.configured_ashift.max(of_leaf)).ok()?;
    let parity = u64::from(parity);
    let data = (top.children.len() as u64)
        .checked_sub(parity)
        .filter(|d| *d > 0)?;
    let sectors = bytes.div_ceil(1u64.checked_shl(ashift)?);
    let sectors = sectors.checked_add(parity.checked_mul(sectors.div_ceil(data))?)?;
    sectors
        .checked_next_multiple_of(parity + 1)?
        .checked_shl(ashift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_are_those_of_openzfs() {
        let plain = PoolInfo::default();
        for (size, block, copies, bytes) in [
            (16 << 20, 8192, 1, 19_398_656),
            (16 << 20, 16384, 1, 18_874_368),
            (1 << 30, 16384, 1, 1_092_616_192),
            (1 << 30, 8192, 1, 1_109_393_408),
            (1 << 30, 16384, 2, 2_175_795_200),
            (16 << 20, 512, 1, 27_262_976),
        ] {
            assert_eq!(
                reservation(&plain, size, block, copies),
                bytes,
                "{size} {block} {copies}"
            );
        }
    }
}
