//! The display order of a pool's vdevs.

use millpond_control::{PoolInfo, VdevClass, VdevInfo, VdevKind};

/// Top-level vdevs of one class, in the order of their ids.
pub fn of_class(pool: &PoolInfo, class: VdevClass) -> impl Iterator<Item = &VdevInfo> {
    pool.root
        .children
        .iter()
        .filter(move |vdev| vdev.class == class && vdev.kind != VdevKind::Hole)
        // A vdev removed from a special class is not shown.
        .filter(move |vdev| class == VdevClass::Normal || vdev.kind != VdevKind::Indirect)
}

/// The classes with a title of their own, in order, and their titles.
pub const TITLED: [(VdevClass, &str); 3] = [
    (VdevClass::Dedup, "dedup"),
    (VdevClass::Special, "special"),
    (VdevClass::Log, "logs"),
];

/// Every vdev below the root, including caches and spares, with its indentation (two blanks per level).
pub fn walk(pool: &PoolInfo) -> Vec<(&VdevInfo, usize)> {
    let mut all = Vec::new();
    for vdev in pool
        .root
        .children
        .iter()
        .chain(&pool.caches)
        .chain(&pool.spares)
    {
        below(vdev, 2, &mut all);
    }
    all
}

fn below<'a>(vdev: &'a VdevInfo, depth: usize, all: &mut Vec<(&'a VdevInfo, usize)>) {
    all.push((vdev, depth));
    for child in &vdev.children {
        below(child, depth + 2, all);
    }
}

/// The state of a spare or any other vdev.
pub fn state_word(vdev: &VdevInfo) -> &'static str {
    use millpond_control::{SpareUse, VdevState};
    match &vdev.spare_use {
        Some(SpareUse::Available) if vdev.state == VdevState::Healthy => "AVAIL",
        Some(SpareUse::InThisPool | SpareUse::InOtherPool(_))
            if vdev.state == VdevState::Healthy =>
        {
            "INUSE"
        }
        _ => vdev.state.word(vdev.aux),
    }
}
