//! Converts the engine's vdevs into the form that is shown.

use millpond_alloc::AllocationClass;
use millpond_control::{PoolInfo, SpareUse, VdevAux, VdevClass, VdevInfo, VdevKind, VdevState};
use millpond_nvlist::NvList;
use millpond_pool::VdevSpace;
use millpond_pool::import::{self, Assembly, NodeHealth};
use millpond_vdev::{VdevConfig, VdevType};

/// Converts the whole tree. The configuration decoder bounds its depth.
pub fn root(assembly: &Assembly) -> VdevInfo {
    let mut nodes = assembly.nodes.iter();
    let mut root = vdev(&assembly.root, &mut nodes, VdevClass::Normal, 0);
    measure(&mut root, assembly);
    for top in &mut root.children {
        set_class(top);
    }
    root
}

/// Converts the pool's lists of caches or spares.
pub fn aside(lists: &[NvList], class: VdevClass) -> Vec<VdevInfo> {
    let configs = lists
        .iter()
        .filter_map(|list| VdevConfig::from_nvlist(list).ok());
    configs
        .enumerate()
        .map(|(at, config)| {
            let mut info = vdev(&config, &mut [].iter(), class, at as u64);
            info.spare_use = (class == VdevClass::Spare).then_some(SpareUse::Available);
            info
        })
        .collect()
}

/// The path at which a device was found, and its size in bytes.
pub type Located = (String, u64);

/// The path and size of the device with a guid.
pub fn located(found: &import::Found, guid: u64) -> Option<Located> {
    let leaf = found.leaves().iter().find(|leaf| leaf.guid().0 == guid)?;
    Some((leaf.path(), leaf.device().size_bytes()))
}

/// Fills in the path and size of a cache or spare.
pub fn locate(vdev: &mut VdevInfo, located: &dyn Fn(u64) -> Option<Located>) {
    if !vdev.kind.is_device() {
        return;
    }
    match located(vdev.guid) {
        Some((path, size_bytes)) => {
            vdev.path = Some(path);
            vdev.physical_bytes = size_bytes;
        }
        None => (vdev.state, vdev.aux) = (VdevState::CannotOpen, VdevAux::OpenFailed),
    }
}

/// Marks the spares that appear in the tree as in use.
pub fn mark_spares_in_use(info: &mut PoolInfo) {
    let mut used = Vec::new();
    let mut stack = vec![&info.root];
    while let Some(vdev) = stack.pop() {
        used.push(vdev.guid);
        stack.extend(&vdev.children);
    }
    for spare in info
        .spares
        .iter_mut()
        .filter(|spare| used.contains(&spare.guid))
    {
        spare.spare_use = Some(SpareUse::InThisPool);
    }
}

fn vdev<'a>(
    config: &VdevConfig,
    nodes: &mut impl Iterator<Item = &'a NodeHealth>,
    class: VdevClass,
    at: u64,
) -> VdevInfo {
    let health = nodes.next();
    let id = config.id.unwrap_or(at);
    let class = if config.is_log { VdevClass::Log } else { class };
    VdevInfo {
        kind: kind(config),
        id,
        guid: config.guid.0,
        path: config.path.clone(),
        phys_path: config.phys_path.clone(),
        devid: config.devid.clone(),
        is_whole_disk: config.whole_disk.unwrap_or(false),
        class,
        state: health.map_or(VdevState::Healthy, shown_state),
        aux: health.map_or(VdevAux::None, |health| aux(health.aux)),
        missed_txgs: health.map_or(0, |health| health.missed_txgs),
        is_absent: config.not_present,
        configured_ashift: config.ashift,
        is_resilver_deferred: config.resilver_deferred,
        is_removing: config.removing,
        is_non_allocating: config.non_allocating && !config.removing,
        children: config
            .children
            .iter()
            .enumerate()
            .map(|(at, child)| vdev(child, nodes, class, at as u64))
            .collect(),
        ..VdevInfo::default()
    }
}

fn kind(config: &VdevConfig) -> VdevKind {
    let byte = |number: Option<u64>| number.and_then(|n| u8::try_from(n).ok()).unwrap_or(0);
    match config.kind {
        VdevType::Root => VdevKind::Root,
        VdevType::Disk => VdevKind::Disk,
        VdevType::File => VdevKind::File,
        VdevType::Mirror => VdevKind::Mirror,
        VdevType::Replacing => VdevKind::Replacing,
        VdevType::Spare => VdevKind::Spare,
        VdevType::Raidz => VdevKind::RaidZ {
            parity: byte(config.nparity.or(Some(1))),
        },
        VdevType::Draid => VdevKind::Draid {
            parity: byte(config.nparity),
            data: byte(config.draid_ndata),
            children: u16::try_from(config.children.len()).unwrap_or(u16::MAX),
            spares: byte(config.draid_nspares),
        },
        VdevType::DraidSpare => VdevKind::DistributedSpare {
            parity: dspare_parity(config),
            top_id: dspare_top(config),
            spare_id: config.spare_id.unwrap_or(0),
        },
        VdevType::Indirect => VdevKind::Indirect,
        VdevType::Hole => VdevKind::Hole,
        // An unknown type, from later software.
        _ => VdevKind::Missing,
    }
}

fn dspare_parity(config: &VdevConfig) -> u8 {
    let name = config.path.as_deref().unwrap_or_default();
    let digits = name
        .strip_prefix("draid")
        .and_then(|rest| rest.split('-').next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// The top-level vdev id of a distributed spare. Its path is its name, `draid1-0-2`: parity, dRAID, spare.
fn dspare_top(config: &VdevConfig) -> u64 {
    let name = config.path.as_deref().unwrap_or_default();
    name.split('-')
        .nth(1)
        .and_then(|id| id.parse().ok())
        .unwrap_or(0)
}

fn measure(root: &mut VdevInfo, assembly: &Assembly) {
    let mut stack = vec![root];
    while let Some(vdev) = stack.pop() {
        let leaf = assembly.leaves.iter().find(|leaf| leaf.guid.0 == vdev.guid);
        if let Some(device) = leaf.and_then(|leaf| leaf.device.as_ref()) {
            vdev.physical_bytes = device.size_bytes();
        }
        stack.extend(&mut vdev.children);
    }
}

/// Gives all descendants the class of their top-level vdev.
fn set_class(vdev: &mut VdevInfo) {
    let class = vdev.class;
    for child in &mut vdev.children {
        child.class = class;
        set_class(child);
    }
}

/// Fills in the usage of a top-level vdev.
pub fn space(vdev: &mut VdevInfo, space: &VdevSpace) {
    let usage = &space.usage;
    vdev.class = match usage.class {
        AllocationClass::Normal => VdevClass::Normal,
        AllocationClass::Log => VdevClass::Log,
        AllocationClass::Special => VdevClass::Special,
        AllocationClass::Dedup => VdevClass::Dedup,
    };
    set_class(vdev);
    let deflated = |bytes: u64| (bytes >> 9).saturating_mul(usage.deflate_ratio);
    vdev.total_bytes = usage.space_bytes;
    vdev.deflated_bytes = deflated(usage.space_bytes).min(usage.space_bytes);
    vdev.allocated_bytes = usage.allocated_bytes;
    vdev.fragmentation_percent = space.fragmentation_percent.map(u64::from);
    vdev.checkpoint_bytes = space.checkpoint_bytes;
}

/// Sums the usage of the top-level vdevs that datasets use.
pub fn sum(root: &mut VdevInfo) {
    let counted = root
        .children
        .iter()
        .filter(|top| top.class != VdevClass::Log);
    let (mut allocated, mut total, mut deflated) = (0u64, 0u64, 0u64);
    for top in counted {
        allocated = allocated.saturating_add(top.allocated_bytes);
        total = total.saturating_add(top.total_bytes);
        deflated = deflated.saturating_add(top.deflated_bytes);
    }
    (root.allocated_bytes, root.total_bytes, root.deflated_bytes) = (allocated, total, deflated);
}

/// A leaf that only lacks txgs is online and being resilvered, as OpenZFS shows it. The vdevs above it stay degraded.
fn shown_state(health: &NodeHealth) -> VdevState {
    let is_outdated = health.missed_txgs > 0 && health.aux == import::VdevAux::None;
    match health.state {
        import::VdevState::Degraded if is_outdated => VdevState::Healthy,
        import::VdevState::Offline => VdevState::Offline,
        import::VdevState::Removed => VdevState::Removed,
        import::VdevState::CannotOpen => VdevState::CannotOpen,
        import::VdevState::Faulted => VdevState::Faulted,
        import::VdevState::Degraded => VdevState::Degraded,
        import::VdevState::Healthy => VdevState::Healthy,
    }
}

fn aux(aux: import::VdevAux) -> VdevAux {
    match aux {
        import::VdevAux::None => VdevAux::None,
        import::VdevAux::OpenFailed => VdevAux::OpenFailed,
        import::VdevAux::CorruptData => VdevAux::CorruptData,
        import::VdevAux::NoReplicas => VdevAux::NoReplicas,
        import::VdevAux::BadGuidSum => VdevAux::BadGuidSum,
        import::VdevAux::TooSmall => VdevAux::TooSmall,
        import::VdevAux::BadLabel => VdevAux::BadLabel,
        import::VdevAux::VersionNewer => VdevAux::VersionNewer,
        import::VdevAux::UnsupportedFeature => VdevAux::UnsupportedFeature,
        import::VdevAux::ErrorsExceeded => VdevAux::ErrorsExceeded,
        import::VdevAux::External => VdevAux::External,
        import::VdevAux::SplitPool => VdevAux::SplitPool,
        import::VdevAux::BadAshift => VdevAux::BadAshift,
        import::VdevAux::ChildrenOffline => VdevAux::ChildrenOffline,
        import::VdevAux::Diverged => VdevAux::Diverged,
    }
}
