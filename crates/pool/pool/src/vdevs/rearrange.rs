//! Changes of the vdev tree: attaching a leaf beside another, and taking one out. Pure functions over
//! configurations.
//!
//! Page `docs/format/vdev-tree.md`, "Attaching and detaching".

use crate::CheckpointRefusal;
use crate::vdevs::grow::{child_bytes, used_bytes};
use millpond_ondisk::{Guid, ObjectId, VdevId};
use millpond_vdev::{DraidGeometry, VdevConfig, VdevType};

/// What the new leaf is to the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachKind {
    /// Another side of a mirror.
    Mirror,
    /// Its replacement, which takes its place when it is complete.
    Replacement,
    /// A hot spare that steps in for it.
    Spare,
}

/// Why a leaf cannot be attached to another. The texts are those of `zpool attach` and `zpool replace`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachRefusal {
    /// The pool has a checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointRefusal),
    /// The pool has no such leaf.
    #[error("no such device in pool")]
    NoSuchLeaf,
    /// The leaf is below RAID-Z or another vdev that takes no more leaves.
    #[error("can only attach to mirrors and top-level disks")]
    NotMirror,
    /// The leaf is being replaced, or a spare is in use for it.
    #[error("already in replacing/spare config; wait for completion or use 'zpool detach'")]
    AlreadyReplaced,
    /// The new device is smaller than the vdev needs.
    #[error("device is too small")]
    TooSmall,
    /// The new device has larger sectors than the vdev.
    #[error(
        "new device has a different optimal sector size; use the option '-o ashift=N' to override the optimal size"
    )]
    SectorSize,
    /// A spare does not stand in for a leaf of a log vdev.
    #[error("cannot replace a log with a spare")]
    LogSpare,
    /// The labels of the device are not those of a free spare.
    #[error("the device is not labelled as a free hot spare; see 'zpool status'")]
    NotSpare,
    /// The sides of the vdev do not have the same content.
    #[error("only mirror and dRAID vdevs support sequential reconstruction")]
    NotSequential,
    /// The pool cannot record sequential resilvers.
    #[error("device_rebuild feature must be enabled in order to use sequential reconstruction")]
    NoRebuilds,
    /// A resilver runs.
    #[error("currently resilvering")]
    Resilvering,
    /// A sequential resilver runs.
    #[error("currently sequentially resilvering")]
    Rebuilding,
    /// A distributed spare of another dRAID vdev.
    #[error("dRAID spares can only replace child devices in their parent's dRAID vdev")]
    OtherDraid,
    /// The pool cannot record expansions.
    #[error("raidz_expansion feature must be enabled in order to attach a device to raidz")]
    NoExpansions,
    /// A RAID-Z vdev is being expanded.
    #[error("raidz expansion in progress")]
    Expanding,
    /// A child of the vdev is not in use, is being replaced, or lacks something.
    #[error("raidz vdev has devices that are are offline or being replaced")]
    NotWhole,
    /// The boot areas of the children, or the vdev, have no space for the first rows: it has many children, or large sectors.
    #[error("the raidz vdev has too many devices, or is too small, to be expanded")]
    TooWide,
    /// A vdev is being removed: a resilver would not find the copies made so far.
    #[error("busy, or device removal is in progress")]
    Removing,
}

/// Why a leaf cannot be detached. The texts are those of `zpool detach`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DetachRefusal {
    /// The pool has a checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointRefusal),
    /// The pool has no such leaf.
    #[error("no such device in pool")]
    NoSuchLeaf,
    /// The leaf has no sibling with the same content.
    #[error("only applicable to mirror and replacing vdevs")]
    NotMirror,
    /// Without the leaf, data would have no replica.
    #[error("no valid replicas")]
    Required,
    /// Its vdev is being removed.
    #[error("busy, or device removal is in progress")]
    Removing,
}

/// Why a pool cannot be split. The texts are those of `zpool split`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SplitRefusal {
    /// The pool has a checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointRefusal),
    /// A vdev is no mirror of devices.
    #[error("Source pool must be composed only of mirrors")]
    NotMirrors,
    /// Not one side of each mirror was named.
    #[error("Device list must include at most one disk from each mirror")]
    OneOfEach,
}

/// The new pool of [`split`].
#[derive(Debug)]
pub(crate) struct Split {
    /// Its tree, still with the guid of the old root.
    pub(crate) root: VdevConfig,
    /// The leaves that stay with the old pool, those of log vdevs too.
    pub(crate) left: Vec<VdevConfig>,
    /// The log vdevs, which stay with the old pool.
    pub(crate) logs: Vec<VdevConfig>,
}

/// The tree of the pool that has only these sides, one of each mirror. Each keeps its guid. Log vdevs become holes. Removed
/// vdevs stay: both pools have their mappings.
pub(crate) fn split(root: &VdevConfig, sides: &[Guid]) -> Result<Split, SplitRefusal> {
    let mut split = Split {
        root: root.clone(),
        left: vec![],
        logs: vec![],
    };
    let mut used = 0;
    for top in &mut split.root.children {
        if matches!(top.kind, VdevType::Hole | VdevType::Indirect) {
            continue;
        }
        if top.is_log {
            split.left.extend(leaves_of(top).into_iter().cloned());
            let mut hole = VdevConfig::new(VdevType::Hole, Guid(0));
            hole.id = top.id;
            split.logs.push(std::mem::replace(top, hole));
            continue;
        }
        let is_plain = top.children.iter().all(|child| child.kind.is_device());
        if top.kind != VdevType::Mirror || top.children.len() < 2 || !is_plain || top.removing {
            return Err(SplitRefusal::NotMirrors);
        }
        let mut mirror = top.clone();
        let (mut chosen, left): (Vec<_>, Vec<_>) =
            (mirror.children.drain(..)).partition(|child| sides.contains(&child.guid));
        let (Some(mut side), true) = (chosen.pop(), chosen.is_empty()) else {
            return Err(SplitRefusal::OneOfEach);
        };
        side.id = mirror.id;
        move_top(&mut mirror, &mut side);
        split.left.extend(left);
        *top = side;
        used += 1;
    }
    match used == sides.len() {
        true => Ok(split),
        false => Err(SplitRefusal::OneOfEach),
    }
}

/// The tree without a top-level vdev, and the vdev. Vdevs behind it keep their numbers: a hole takes its place.
pub(crate) fn without_top(root: &VdevConfig, vdev: VdevId) -> Option<(VdevConfig, VdevConfig)> {
    let mut root = root.clone();
    let place = vdev.0 as usize;
    if place + 1 == root.children.len() {
        let gone = root.children.pop()?;
        return Some((root, gone));
    }
    let top = root.children.get_mut(place)?;
    let mut hole = VdevConfig::hole();
    hole.id = Some(vdev.0.into());
    let gone = std::mem::replace(top, hole);
    Some((root, gone))
}

/// The leaves at or below a vdev.
pub(crate) fn leaves_of(vdev: &VdevConfig) -> Vec<&VdevConfig> {
    match vdev.kind.is_leaf() {
        true => vec![vdev],
        false => vdev.children.iter().flat_map(leaves_of).collect(),
    }
}

/// The indices that lead from the root to a leaf.
pub(crate) fn path_to(root: &VdevConfig, leaf: Guid) -> Option<Vec<usize>> {
    if root.kind.is_leaf() {
        return (root.guid == leaf).then(Vec::new);
    }
    let mut found = root.children.iter().enumerate();
    found.find_map(|(index, child)| {
        let mut path = path_to(child, leaf)?;
        path.insert(0, index);
        Some(path)
    })
}

/// The bytes that a device needs to be this leaf: its part of the whole metaslabs of the top-level vdev. Beyond those
/// nothing is allocated.
pub(crate) fn needed_bytes(root: &VdevConfig, leaf: Guid) -> Option<u64> {
    let path = path_to(root, leaf)?;
    let top = root.children.get(*path.first()?)?;
    if top.kind == VdevType::Draid {
        let geometry = DraidGeometry::of(top, top.children.len()).ok()?;
        return Some(geometry.child_bytes(used_bytes(top)));
    }
    Some(child_bytes(top))
}

/// The vdev at the end of a path.
pub(crate) fn at_mut<'a>(root: &'a mut VdevConfig, path: &[usize]) -> Option<&'a mut VdevConfig> {
    let mut vdev = root;
    for index in path {
        vdev = vdev.children.get_mut(*index)?;
    }
    Some(vdev)
}

/// The tree with a new leaf beside `old`. `group` is the guid of the vdev that takes the place of `old`, if one is
/// needed.
pub(crate) fn attach(
    root: &VdevConfig,
    old: Guid,
    mut new: VdevConfig,
    kind: AttachKind,
    group: Guid,
) -> Result<VdevConfig, AttachRefusal> {
    let path = path_to(root, old).ok_or(AttachRefusal::NoSuchLeaf)?;
    let (place, above) = path.split_last().ok_or(AttachRefusal::NoSuchLeaf)?;
    let top = path.first().and_then(|index| root.children.get(*index));
    if root.children.iter().any(|top| top.removing) {
        return Err(AttachRefusal::Removing);
    }
    if kind == AttachKind::Spare && top.is_some_and(|top| top.is_log) {
        return Err(AttachRefusal::LogSpare);
    }
    let mut root = root.clone();
    let parent = at_mut(&mut root, above).ok_or(AttachRefusal::NoSuchLeaf)?;
    let parent_kind = parent.kind;
    // The leaf for which a spare stands in may be replaced.
    let is_spared = parent_kind == VdevType::Spare && *place == 0;
    let may_be_grouped = is_spared && kind == AttachKind::Replacement;
    if matches!(parent_kind, VdevType::Replacing | VdevType::Spare) && !may_be_grouped {
        return Err(AttachRefusal::AlreadyReplaced);
    }
    if new.kind == VdevType::DraidSpare && top.map(|top| top.guid) != new.top_guid {
        return Err(AttachRefusal::OtherDraid);
    }
    let group_kind = match kind {
        AttachKind::Mirror if parent_kind == VdevType::Mirror => {
            let old = parent.children.get(*place);
            new.create_txg = old.and_then(|old| old.create_txg);
            new.id = Some(parent.children.len() as u64);
            parent.children.push(new);
            return Ok(root);
        }
        AttachKind::Mirror if parent_kind == VdevType::Root => VdevType::Mirror,
        AttachKind::Mirror => return Err(AttachRefusal::NotMirror),
        AttachKind::Replacement => VdevType::Replacing,
        AttachKind::Spare => VdevType::Spare,
    };
    let old = parent
        .children
        .get_mut(*place)
        .ok_or(AttachRefusal::NoSuchLeaf)?;
    *old = grouped(old, new, group_kind, group);
    Ok(root)
}

/// A vdev of two leaves in the place of the first.
fn grouped(old: &VdevConfig, mut new: VdevConfig, kind: VdevType, guid: Guid) -> VdevConfig {
    let mut first = old.clone();
    let mut group = VdevConfig::new(kind, guid);
    group.id = old.id;
    group.create_txg = old.create_txg;
    if kind != VdevType::Mirror {
        group.whole_disk = Some(false);
    }
    move_top(&mut first, &mut group);
    new.create_txg = old.create_txg;
    first.id = Some(0);
    new.id = Some(1);
    group.children = vec![first, new];
    group
}

/// Moves what a top-level vdev has to the vdev that takes its place.
fn move_top(from: &mut VdevConfig, to: &mut VdevConfig) {
    to.metaslab_array = std::mem::take(&mut from.metaslab_array);
    to.metaslab_shift = std::mem::take(&mut from.metaslab_shift);
    to.ashift = std::mem::take(&mut from.ashift);
    to.asize_bytes = std::mem::take(&mut from.asize_bytes);
    to.is_log = std::mem::take(&mut from.is_log);
    to.min_alloc_bytes = from.min_alloc_bytes.take();
    to.non_allocating = std::mem::take(&mut from.non_allocating);
    to.zap_top = from.zap_top.take();
}

/// The tree without a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Detached {
    pub(crate) root: VdevConfig,
    /// The leaf that is gone.
    pub(crate) leaf: VdevConfig,
    /// The ZAP of a vdev that is gone too.
    pub(crate) group_zap: Option<ObjectId>,
    /// A leaf that got the guid of the top-level vdev whose place it took: its guid before and after.
    pub(crate) renamed: Option<(Guid, Guid)>,
    /// The guid in the list of spares of a spare that keeps the place of the leaf. It is no spare any more.
    pub(crate) kept_spare: Option<Guid>,
}

/// Takes a leaf out of a mirror, or of a vdev that replaces it. If one sibling is left, it takes the place of their
/// parent.
pub(crate) fn detach(root: &VdevConfig, leaf: Guid) -> Result<Detached, DetachRefusal> {
    let path = path_to(root, leaf).ok_or(DetachRefusal::NoSuchLeaf)?;
    let top = path.first().and_then(|index| root.children.get(*index));
    if top.is_some_and(|top| top.removing) {
        return Err(DetachRefusal::Removing);
    }
    let (place, above) = path.split_last().ok_or(DetachRefusal::NoSuchLeaf)?;
    let mut root = root.clone();
    let parent = at_mut(&mut root, above).ok_or(DetachRefusal::NoSuchLeaf)?;
    if !parent.kind.is_mirror_like() || parent.children.len() < 2 {
        return Err(DetachRefusal::NotMirror);
    }
    let was_replacing = parent.kind == VdevType::Replacing;
    let gone = parent.children.remove(*place);
    for (index, child) in (0u64..).zip(&mut parent.children) {
        child.id = Some(index);
    }
    let mut renamed = None;
    let mut group_zap = None;
    let mut kept_spare = None;
    if parent.children.len() == 1
        && let Some(mut last) = parent.children.pop()
    {
        let is_top = above.len() == 1;
        last.id = parent.id;
        // A distributed spare stays one: it is in use until its child is replaced.
        if parent.kind == VdevType::Spare
            && last.kind != VdevType::DraidSpare
            && std::mem::take(&mut last.is_spare)
        {
            kept_spare = Some(last.guid);
        }
        if is_top {
            let before = last.guid;
            group_zap = last.zap_top.take();
            move_top(parent, &mut last);
            // Otherwise an import that misses the other leaf would see two top-level vdevs.
            if last.kind.is_leaf() {
                last.guid = parent.guid;
                renamed = Some((before, last.guid));
            }
        }
        if was_replacing
            && let (Some(path), Some(own)) = (&gone.path, &last.path)
            && own.strip_suffix("/old") == Some(path)
        {
            // The replacement at the same path was given up.
            last.path = Some(path.clone());
        }
        last.unspare = false;
        *parent = last;
        if was_replacing && let Some((_, higher)) = above.split_last() {
            unspare(&mut root, higher);
        }
    }
    Ok(Detached {
        root,
        leaf: gone,
        group_zap,
        renamed,
        kept_spare,
    })
}

/// Marks the spare of the vdev at this path, if it is one with a spare: its leaf was replaced.
fn unspare(root: &mut VdevConfig, path: &[usize]) {
    if let Some(group) = at_mut(root, path)
        && group.kind == VdevType::Spare
        && let Some(spare) = group.children.last_mut()
    {
        spare.unspare = true;
    }
}

/// Renames a leaf whose path its replacement takes, as after a swap of disks.
pub(crate) fn give_up_path(root: &mut VdevConfig, old: Guid, path: &str) {
    if let Some(place) = path_to(root, old)
        && let Some(leaf) = at_mut(root, &place)
        && leaf.path.as_deref() == Some(path)
    {
        leaf.path = Some(format!("{path}/old"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_ondisk::Txg;

    fn leaf(guid: u64, id: u64) -> VdevConfig {
        VdevConfig {
            id: Some(id),
            path: Some(format!("/dev/{guid}")),
            create_txg: Some(Txg(4)),
            zap_leaf: Some(ObjectId(100 + guid)),
            ..VdevConfig::new(VdevType::Disk, Guid(guid))
        }
    }
    fn top(mut vdev: VdevConfig) -> VdevConfig {
        vdev.metaslab_array = ObjectId(70);
        vdev.metaslab_shift = 24;
        vdev.ashift = 12;
        vdev.asize_bytes = 1 << 30;
        vdev.zap_top = Some(ObjectId(67));
        vdev.create_txg = Some(Txg(4));
        vdev
    }
    fn root(tops: Vec<VdevConfig>) -> VdevConfig {
        VdevConfig::root(Guid(1), tops)
    }
    fn new() -> VdevConfig {
        VdevConfig {
            create_txg: None,
            ..leaf(50, 9)
        }
    }

    #[test]
    fn a_disk_becomes_a_mirror_and_a_disk_again() {
        let before = root(vec![top(leaf(10, 0)), top(leaf(11, 1))]);
        let made = attach(&before, Guid(11), new(), AttachKind::Mirror, Guid(99)).unwrap();
        let mirror = &made.children[1];
        assert_eq!((mirror.kind, mirror.guid), (VdevType::Mirror, Guid(99)));
        assert_eq!((mirror.id, mirror.zap_top), (Some(1), Some(ObjectId(67))));
        assert_eq!((mirror.ashift, mirror.asize_bytes), (12, 1 << 30));
        let [old, new] = mirror.children.as_slice() else {
            panic!()
        };
        assert_eq!((old.guid, old.id, old.ashift), (Guid(11), Some(0), 0));
        assert_eq!((old.zap_top, old.zap_leaf), (None, Some(ObjectId(111))));
        assert_eq!((new.id, new.create_txg), (Some(1), Some(Txg(4))));

        let Detached { root, renamed, .. } = detach(&made, Guid(50)).unwrap();
        let expected = VdevConfig {
            guid: Guid(99),
            ..before.children[1].clone()
        };
        assert_eq!(root.children[1], expected);
        assert_eq!(renamed, Some((Guid(11), Guid(99))));
    }

    #[test]
    fn one_side_of_each_mirror_makes_a_pool() {
        let mirror = |guid, id, leaves: Vec<VdevConfig>| VdevConfig {
            id: Some(id),
            children: leaves,
            ..top(VdevConfig::new(VdevType::Mirror, Guid(guid)))
        };
        let log = VdevConfig {
            is_log: true,
            ..top(leaf(30, 1))
        };
        let first = mirror(20, 0, vec![leaf(10, 0), leaf(11, 1)]);
        let second = mirror(21, 2, vec![leaf(12, 0), leaf(13, 1)]);
        let before = root(vec![first.clone(), log, second]);
        let made = split(&before, &[Guid(13), Guid(10)]).unwrap();
        let [one, hole, two] = made.root.children.as_slice() else {
            panic!()
        };
        assert_eq!((one.guid, one.id, one.ashift), (Guid(10), Some(0), 12));
        assert_eq!(
            (one.zap_top, one.zap_leaf),
            (Some(ObjectId(67)), Some(ObjectId(110)))
        );
        assert_eq!((one.metaslab_shift, one.asize_bytes), (24, 1 << 30));
        assert_eq!(
            (hole.kind, hole.id, hole.guid),
            (VdevType::Hole, Some(1), Guid(0))
        );
        assert_eq!((two.guid, two.id), (Guid(13), Some(2)));
        let left: Vec<u64> = made.left.iter().map(|leaf| leaf.guid.0).collect();
        assert_eq!(left, [11, 30, 12]);
        assert_eq!(made.logs.len(), 1);
        for (sides, refusal) in [
            (vec![10], SplitRefusal::OneOfEach),
            (vec![10, 11], SplitRefusal::OneOfEach),
            (vec![10, 12, 13], SplitRefusal::OneOfEach),
            (vec![10, 12, 30], SplitRefusal::OneOfEach),
            (vec![10, 12, 99], SplitRefusal::OneOfEach),
        ] {
            let sides: Vec<Guid> = sides.into_iter().map(Guid).collect();
            assert_eq!(split(&before, &sides).unwrap_err(), refusal);
        }
        let single = root(vec![first.clone(), top(leaf(14, 1))]);
        assert_eq!(
            split(&single, &[Guid(10)]).unwrap_err(),
            SplitRefusal::NotMirrors
        );
        let replacing = attach(
            &root(vec![first]),
            Guid(11),
            new(),
            AttachKind::Replacement,
            Guid(99),
        );
        let refused = split(&replacing.unwrap(), &[Guid(10)]);
        assert_eq!(refused.unwrap_err(), SplitRefusal::NotMirrors);
    }

    #[test]
    fn a_hole_takes_the_place_of_a_vdev_before_others() {
        let before = root(vec![top(leaf(10, 0)), top(leaf(11, 1)), top(leaf(12, 2))]);
        let (made, gone) = without_top(&before, VdevId(1)).unwrap();
        assert_eq!(gone, before.children[1]);
        let hole = &made.children[1];
        assert_eq!(
            (hole.kind, hole.id, hole.guid),
            (VdevType::Hole, Some(1), Guid(0))
        );
        assert_eq!(made.children[2], before.children[2]);
        let (made, gone) = without_top(&made, VdevId(2)).unwrap();
        assert_eq!((gone.guid, made.children.len()), (Guid(12), 2));
        assert_eq!(without_top(&made, VdevId(2)), None);
    }

    #[test]
    fn a_mirror_grows_and_shrinks() {
        let mut mirror = top(VdevConfig::new(VdevType::Mirror, Guid(20)));
        mirror.id = Some(0);
        mirror.children = vec![leaf(10, 0), leaf(11, 1)];
        let before = root(vec![mirror]);
        let made = attach(&before, Guid(10), new(), AttachKind::Mirror, Guid(99)).unwrap();
        assert_eq!(made.children[0].children.len(), 3);
        assert_eq!(made.children[0].children[2].id, Some(2));
        let Detached {
            root,
            leaf,
            renamed,
            ..
        } = detach(&made, Guid(10)).unwrap();
        assert_eq!(leaf.guid, Guid(10));
        assert_eq!(renamed, None);
        let ids: Vec<_> = root.children[0]
            .children
            .iter()
            .map(|c| (c.guid.0, c.id))
            .collect();
        assert_eq!(ids, [(11, Some(0)), (50, Some(1))]);
    }

    #[test]
    fn a_column_of_raidz_is_replaced() {
        let mut raidz = top(VdevConfig::new(VdevType::Raidz, Guid(20)));
        raidz.id = Some(0);
        raidz.children = vec![leaf(10, 0), leaf(11, 1), leaf(12, 2)];
        let before = root(vec![raidz]);
        let refused = attach(&before, Guid(11), new(), AttachKind::Mirror, Guid(99));
        assert_eq!(refused, Err(AttachRefusal::NotMirror));
        let made = attach(&before, Guid(11), new(), AttachKind::Replacement, Guid(99)).unwrap();
        let replacing = &made.children[0].children[1];
        assert_eq!(
            (replacing.kind, replacing.id),
            (VdevType::Replacing, Some(1))
        );
        assert_eq!((replacing.ashift, replacing.zap_top), (0, None));
        let again = attach(&made, Guid(11), new(), AttachKind::Replacement, Guid(98));
        assert_eq!(again, Err(AttachRefusal::AlreadyReplaced));
        let done = detach(&made, Guid(11)).unwrap();
        assert_eq!(done.renamed, None);
        let column = &done.root.children[0].children[1];
        assert_eq!((column.guid, column.id), (Guid(50), Some(1)));
        let cancelled = detach(&made, Guid(50)).unwrap();
        assert_eq!(cancelled.root, before);
        assert_eq!(detach(&before, Guid(11)), Err(DetachRefusal::NotMirror));
    }
}
