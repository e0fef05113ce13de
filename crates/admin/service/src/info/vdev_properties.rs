//! The properties of one vdev (`zpool get all POOL VDEV`).

use millpond_control::{IoCounters, PoolInfo, Property, Source, Value, VdevInfo, VdevKind};
use millpond_ondisk::Guid;
use millpond_pool::PoolView;
use millpond_pool::properties::{Preset, PropertyValue, vdev_table};

/// Space that labels and the boot block occupy on each device, in bytes: two labels and the boot block at the
/// start, two labels at the end.
const LABEL_BYTES: u64 = (4 << 20) + (512 << 10);

/// The properties of the vdev with this guid, user properties last; `None` if there is no such vdev. Stored
/// properties that cannot be read are omitted.
pub fn properties(pool: &PoolView, info: &PoolInfo, guid: u64) -> Option<Vec<Property>> {
    let mut all = statistics(info, guid)?;
    let stored = pool.stored_vdev_properties(Guid(guid)).unwrap_or_default();
    for (name, value) in stored {
        set(&mut all, name, value);
    }
    Some(all)
}

/// Replaces a default by the stored value.
fn set(all: &mut Vec<Property>, name: String, value: PropertyValue) {
    // The configuration determines whether the vdev allocates and where the device is.
    if matches!(name.as_str(), "allocating" | "path") {
        return;
    }
    let shape = vdev_table::find(&name);
    let value = match value {
        PropertyValue::Text(text) => Value::Text(text),
        PropertyValue::Number(number) => match shape.and_then(|shape| shape.word_of(number)) {
            Some(word) => Value::Text(word.to_owned()),
            None => Value::Number(number),
        },
    };
    // A value equal to the default counts as not set.
    let is_preset = shape.is_some_and(|shape| match (&value, shape.preset) {
        (Value::Number(number), Preset::Number(preset)) => *number == preset,
        (Value::Text(word), Preset::Text(preset)) => word == preset,
        _ => false,
    });
    if is_preset {
        return;
    }
    let own = Property::new(&name, Some(value), Source::Local);
    match all.iter_mut().find(|property| property.name == name) {
        Some(property) => *property = own,
        None => all.push(own),
    }
}

/// The properties that do not come from the vdev's ZAP.
pub fn statistics(pool: &PoolInfo, guid: u64) -> Option<Vec<Property>> {
    let aside = pool.caches.iter().chain(&pool.spares);
    let mut stack: Vec<(&VdevInfo, Option<&VdevInfo>)> = aside.map(|vdev| (vdev, None)).collect();
    stack.push((&pool.root, None));
    let (vdev, parent) = loop {
        let (vdev, parent) = stack.pop()?;
        if vdev.guid == guid {
            break (vdev, parent);
        }
        stack.extend(vdev.children.iter().map(|child| (child, Some(vdev))));
    };
    Some(of(pool, vdev, parent))
}

fn of(pool: &PoolInfo, vdev: &VdevInfo, parent: Option<&VdevInfo>) -> Vec<Property> {
    let number = |name, n| Property::new(name, Some(Value::Number(n)), Source::None);
    let preset = |name, value: Option<&str>| {
        let value = value.map(|text| Value::Text(text.to_owned()));
        Property::new(name, value, Source::Default)
    };
    let text = |name, value: Option<String>| match value {
        Some(text) => Property::new(name, Some(Value::Text(text)), Source::None),
        None => preset(name, None),
    };
    let word = |name, word: &str| Property::new(name, Some(Value::Text(word.into())), Source::None);
    let switch = |name, is_on: bool| word(name, if is_on { "on" } else { "off" });
    let is_leaf = vdev.kind.is_leaf();
    let is_top = parent.is_some_and(|parent| parent.kind == VdevKind::Root);
    let io = match vdev.kind {
        VdevKind::Root => IoCounters::default(),
        _ => io(vdev),
    };
    let capacity = vdev.allocated_bytes.saturating_mul(100) / vdev.total_bytes.max(1);
    // Without parity, as datasets see it.
    let size = match is_top {
        true => vdev.deflated_bytes,
        false => vdev.total_bytes,
    };
    let children = vdev.children.iter().map(|child| shown_name(pool, child));
    let children = children.collect::<Vec<_>>().join(",");
    let mut all = vec![
        number("capacity", capacity),
        number("state", vdev.state.number()),
        number("guid", vdev.guid),
        number("asize", allocatable_bytes(vdev)),
        number("psize", vdev.physical_bytes),
        number("ashift", vdev.configured_ashift),
        number("size", size),
        number("free", size.saturating_sub(vdev.allocated_bytes)),
        number("allocated", vdev.allocated_bytes),
        preset("comment", None),
        number("expandsize", vdev.expandable_bytes),
        number("fragmentation", vdev.fragmentation_percent.unwrap_or(0)),
        Property::new("bootsize", Some(Value::Number(0)), Source::Default),
        number("parity", parity(vdev.kind)),
        text("path", vdev.path.clone()),
        text("devid", vdev.devid.clone()),
        text("physpath", vdev.phys_path.clone()),
        preset("encpath", None),
        preset("fru", None),
        text("parent", parent.map(|parent| shown_name(pool, parent))),
        text("children", (!children.is_empty()).then_some(children)),
        number("numchildren", vdev.children.len() as u64),
        number("read_errors", vdev.read_errors),
        number("write_errors", vdev.write_errors),
        number("checksum_errors", vdev.checksum_errors),
        number("initialize_errors", vdev.initialize.errors),
        number("null_ops", 0),
        number("read_ops", io.reads),
        number("write_ops", io.writes),
        number("free_ops", 0),
        number("claim_ops", 0),
        number("trim_ops", io.trims),
        number("null_bytes", 0),
        number("read_bytes", io.read_bytes),
        number("write_bytes", io.written_bytes),
        number("free_bytes", 0),
        number("claim_bytes", 0),
        number("trim_bytes", io.trimmed_bytes),
        switch("removing", vdev.is_removing),
        match vdev.is_non_allocating {
            true => switch("allocating", false),
            false => preset("allocating", Some("on")),
        },
        preset("failfast", Some("on")),
        preset("checksum_n", None),
        preset("checksum_t", None),
        preset("io_n", None),
        preset("io_t", None),
    ];
    if matches!(vdev.kind, VdevKind::RaidZ { .. }) {
        let expansion = pool.expansion.as_ref();
        let is_expanding = expansion.is_some_and(|expansion| {
            expansion.state == millpond_control::ProgressState::Active
                && expansion.top_id == vdev.id
        });
        all.push(switch("raidz_expanding", is_expanding));
    }
    all.extend([
        preset("slow_io_n", None),
        preset("slow_io_t", None),
        match is_leaf {
            true => switch("trim_support", !vdev.is_trim_unsupported),
            false => Property::new("trim_support", None, Source::None),
        },
        number("trim_errors", vdev.trim.errors),
        number("slow_ios", vdev.slow_ios),
    ]);
    all
}

/// The sum of its devices' I/O counters.
fn io(vdev: &VdevInfo) -> IoCounters {
    if vdev.children.is_empty() {
        return vdev.io;
    }
    let mut sum = IoCounters::default();
    for one in vdev.children.iter().map(io) {
        sum.reads = sum.reads.saturating_add(one.reads);
        sum.writes = sum.writes.saturating_add(one.writes);
        sum.read_bytes = sum.read_bytes.saturating_add(one.read_bytes);
        sum.written_bytes = sum.written_bytes.saturating_add(one.written_bytes);
        sum.trims = sum.trims.saturating_add(one.trims);
        sum.trimmed_bytes = sum.trimmed_bytes.saturating_add(one.trimmed_bytes);
    }
    sum
}

/// Bytes available to blocks, including parity; 0 for the root.
fn allocatable_bytes(vdev: &VdevInfo) -> u64 {
    let children = || vdev.children.iter().map(allocatable_bytes);
    match vdev.kind {
        VdevKind::Root => 0,
        VdevKind::RaidZ { .. } | VdevKind::Draid { .. } => {
            let least = children().min().unwrap_or(0);
            least.saturating_mul(vdev.children.len() as u64)
        }
        kind if kind.is_leaf() => vdev.physical_bytes.saturating_sub(LABEL_BYTES),
        _ => children().min().unwrap_or(0),
    }
}

fn parity(kind: VdevKind) -> u64 {
    match kind {
        VdevKind::RaidZ { parity } | VdevKind::Draid { parity, .. } => parity.into(),
        _ => 0,
    }
}

/// The name shown to users.
fn shown_name(pool: &PoolInfo, vdev: &VdevInfo) -> String {
    let word = vdev.kind.word();
    match vdev.kind {
        VdevKind::Root => pool.name.clone(),
        kind if kind.is_leaf() => vdev.path.clone().unwrap_or_else(|| vdev.guid.to_string()),
        VdevKind::RaidZ { parity } => format!("{word}{parity}-{}", vdev.id),
        VdevKind::Draid {
            parity,
            data,
            children,
            spares,
        } => format!("{word}{parity}:{data}d:{children}c:{spares}s-{}", vdev.id),
        _ => format!("{word}-{}", vdev.id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_not_allocatable_and_the_smallest_device_counts() {
        let leaf = |guid, physical_bytes| VdevInfo {
            guid,
            kind: VdevKind::File,
            physical_bytes,
            ..VdevInfo::default()
        };
        let top = VdevInfo {
            guid: 1,
            kind: VdevKind::RaidZ { parity: 1 },
            children: vec![leaf(2, 128 << 20), leaf(3, 256 << 20), leaf(4, 128 << 20)],
            ..VdevInfo::default()
        };
        let root = VdevInfo {
            guid: 9,
            kind: VdevKind::Root,
            children: vec![top],
            ..VdevInfo::default()
        };
        let pool = PoolInfo {
            name: "tank".into(),
            root,
            ..PoolInfo::default()
        };
        let value = |guid, name: &str| {
            let all = statistics(&pool, guid).unwrap();
            let found = all.into_iter().find(|property| property.name == name);
            found.unwrap().value
        };
        let bytes = 3 * ((128 << 20) - LABEL_BYTES);
        assert_eq!(value(1, "asize"), Some(Value::Number(bytes)));
        assert_eq!(value(9, "asize"), Some(Value::Number(0)));
        assert_eq!(value(2, "parent"), Some(Value::Text("raidz1-0".into())));
        assert_eq!(value(1, "parent"), Some(Value::Text("tank".into())));
        assert_eq!(value(1, "parity"), Some(Value::Number(1)));
        assert!(statistics(&pool, 77).is_none());
    }
}
