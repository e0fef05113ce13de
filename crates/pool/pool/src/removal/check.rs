//! Decides whether a data vdev can be removed.

use super::DEVICE_REMOVAL;
use super::objects::MappingObjects;
use crate::pool::Pool;
use crate::space::maps::SPACE_MAP_V2;
use crate::space::vdev_map::holds_all_offsets;
use crate::vdevs::attach::is_resilvering;
use crate::vdevs::rearrange::{leaves_of, path_to};
use crate::vdevs::remove::RemoveError;
use crate::{PoolError, PoolView};
use millpond_alloc::{AllocationClass, SlopShare, VdevUsage, deflated_bytes};
use millpond_ondisk::{Guid, VdevId};
use millpond_vdev::{VdevConfig, VdevType};

/// A vdev that can be removed.
#[derive(Debug)]
pub(super) struct Removable {
    pub(super) vdev: VdevId,
    /// Its name for people.
    pub(super) name: String,
}

/// The name of a top-level vdev in the history.
pub(super) fn name_of(top: &VdevConfig) -> String {
    let id = top.id.unwrap_or_default();
    (top.path.clone()).unwrap_or_else(|| format!("{}-{id}", top.kind.name()))
}

/// The mapping that a configuration names.
pub(super) fn objects_of(top: &VdevConfig) -> Option<MappingObjects> {
    Some(MappingObjects {
        mapping: top.indirect_mapping?,
        births: top.indirect_births?,
    })
}

/// Checks in the order in which OpenZFS does. `view` is the last committed state.
pub(super) fn removable(pool: &Pool, view: &PoolView, top: Guid) -> Result<Removable, RemoveError> {
    let root = pool.state.read().config.root.clone();
    let mut tops = (0u32..).map(VdevId).zip(&root.children);
    let found = tops.find(|(_, vdev)| vdev.guid == top && top.0 != 0);
    let (vdev, config) = match found {
        Some((_, vdev)) if vdev.is_log => return Err(RemoveError::Unsupported),
        Some((id, vdev)) if is_concrete(vdev) => (id, vdev),
        // A side of a mirror is detached instead.
        None if path_to(&root, top).is_some() => return Err(RemoveError::Unsupported),
        _ => return Err(RemoveError::NoSuchDevice),
    };
    if !pool.feature_is_enabled(DEVICE_REMOVAL) {
        return Err(RemoveError::Unsupported);
    }
    if let Some(refusal) = pool.checkpoint_refusal() {
        return Err(refusal.into());
    }
    match pool.removal.removing_vdev() {
        Some(other) if other == vdev => return Err(RemoveError::AlreadyRemoving),
        Some(_) => return Err(RemoveError::InUse),
        None => {}
    }
    let has_two_words = view.features().is_active(SPACE_MAP_V2);
    let geometry = pool.maps.geometries().get(&vdev).copied();
    if geometry.is_some_and(|vdev| !holds_all_offsets(&vdev, has_two_words)) {
        return Err(RemoveError::TooLarge);
    }
    check_space(pool, view, vdev)?;
    check_devices(pool, &root)?;
    check_layout(&root)?;
    Ok(Removable {
        vdev,
        name: name_of(config),
    })
}

fn is_concrete(top: &VdevConfig) -> bool {
    !matches!(
        top.kind,
        VdevType::Indirect | VdevType::Hole | VdevType::Missing
    )
}

/// What is used must fit into the pool without the vdev, beside the slop: the limit that `available` shows.
fn check_space(pool: &Pool, view: &PoolView, vdev: VdevId) -> Result<(), RemoveError> {
    let space = view.space()?;
    let one = |id: VdevId| space.vdev(id).map(|space| space.usage);
    let Some(usage) = one(vdev) else {
        return Err(RemoveError::NoSuchDevice);
    };
    let limit = space.usage.limit(SlopShare::All);
    let available = limit.limit_bytes.saturating_sub(view.root_used_bytes()?);
    let deflated = |usage: &VdevUsage, bytes: u64| deflated_bytes(bytes, usage.deflate_ratio);
    let allocated = deflated(&usage, usage.allocated_bytes);
    let is_normal = usage.class == AllocationClass::Normal;
    // What does not count towards the pool's space need only find a place.
    let lost = match is_normal && !usage.is_non_allocating {
        true => deflated(&usage, usage.space_bytes),
        false => allocated,
    };
    let others = space.vdevs.iter().filter(|other| {
        let class = other.usage.class;
        let takes = class == AllocationClass::Normal || class == usage.class;
        other.vdev != vdev && takes && !other.usage.is_non_allocating
    });
    let free = others
        .map(|other| {
            other
                .usage
                .space_bytes
                .saturating_sub(other.usage.allocated_bytes)
        })
        .fold(0, u64::saturating_add);
    let has_room = available >= lost && free > usage.allocated_bytes && !pool.allocator.is_short();
    match has_room {
        true => Ok(()),
        false => Err(RemoveError::OutOfSpace),
    }
}

/// All leaves must be in use and lack nothing, and nothing may be attached or replaced: a resilver does not know the
/// copies of a removal under way.
fn check_devices(pool: &Pool, root: &VdevConfig) -> Result<(), RemoveError> {
    let in_use = pool.leaves_in_use();
    let is_whole = |leaf: &&VdevConfig| {
        let state = pool.state.read();
        let missed = state.missed.get(&leaf.guid);
        in_use.contains(&leaf.guid) && missed.is_none_or(|missed| missed.ranges().is_empty())
    };
    let mut tops = root
        .children
        .iter()
        .filter(|top| is_concrete(top) && !top.is_log);
    let is_ready = tops.all(|top| {
        let is_still = top.children.iter().all(|child| child.kind.is_device());
        leaves_of(top).iter().all(is_whole) && (is_still || top.kind != VdevType::Mirror)
    });
    match is_ready && !pool.has_rebuild() && !pool.scan.with(|scan| is_resilvering(scan)) {
        true => Ok(()),
        false => Err(RemoveError::InUse),
    }
}

/// Blocks are copied without their boundaries, so every vdev must store bytes as they are, in sectors of one size.
fn check_layout(root: &VdevConfig) -> Result<(), RemoveError> {
    let tops = root.children.iter();
    let mut tops = tops
        .filter(|top| is_concrete(top) && !top.is_log)
        .peekable();
    let ashift = tops.peek().map(|top| top.ashift);
    let is_plain = |top: &VdevConfig| {
        let is_mirror = top.kind == VdevType::Mirror;
        let of_leaves = top.children.iter().all(|child| child.kind.is_device());
        top.kind.is_device() || is_mirror && of_leaves
    };
    match tops.all(|top| is_plain(top) && Some(top.ashift) == ashift) {
        true => Ok(()),
        false => Err(RemoveError::Layout),
    }
}

impl Pool {
    /// The memory that the mapping of a vdev would take after its removal, in bytes: 24 for each piece.
    ///
    /// # Errors
    /// [`RemoveError::NoSuchDevice`]; if the space maps cannot be read.
    pub fn removal_memory_bytes(&self, top: Guid) -> Result<u64, RemoveError> {
        let tops = self.state.read().config.root.children.clone();
        let mut tops = (0u32..).map(VdevId).zip(&tops);
        let found = tops.find(|(_, vdev)| vdev.guid == top && top.0 != 0 && is_concrete(vdev));
        let (vdev, _) = found.ok_or(RemoveError::NoSuchDevice)?;
        let pieces = self.allocator.owned_pieces(vdev).map_err(PoolError::from)?;
        Ok(pieces.saturating_mul(24))
    }
}
