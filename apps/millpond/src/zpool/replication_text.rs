//! The texts about mismatched replication levels of new vdevs.

use millpond_engine::{Replication, ReplicationMismatch};

/// The text of one mismatch, as `zpool` prints it.
pub fn words(mismatch: &ReplicationMismatch) -> String {
    let reason = match mismatch {
        ReplicationMismatch::DeviceSizes(vdev) => {
            return format!("{} contains devices of different sizes", vdev.kind.name());
        }
        ReplicationMismatch::FilesAndDevices(vdev) => {
            format!("{} contains both files and devices", vdev.kind.name())
        }
        ReplicationMismatch::BetweenNew(first, other) => between_new(first, other),
        ReplicationMismatch::WithPool { pool, new } => with_pool(pool, new),
    };
    format!("mismatched replication level: {reason}")
}

/// Whether a vdev of this type has parity.
fn has_parity(kind: &str) -> bool {
    matches!(kind, "raidz" | "draid")
}

/// Returns a vdev with parity and a mirror in this order, if the two are one of each.
fn mixed<'a>(a: &'a Replication, b: &'a Replication) -> Option<(&'a Replication, &'a Replication)> {
    match (a.kind.name(), b.kind.name()) {
        (one, "mirror") if has_parity(one) => Some((a, b)),
        ("mirror", other) if has_parity(other) => Some((b, a)),
        _ => None,
    }
}

fn between_new(first: &Replication, other: &Replication) -> String {
    if let Some((group, mirror)) = mixed(first, other) {
        return format!(
            "{} and mirror vdevs with different redundancy, {} vs. {} ({}-way) are present",
            group.kind.name(),
            group.parity,
            mirror.parity,
            mirror.ways
        );
    }
    let (one, two) = (first.kind.name(), other.kind.name());
    if has_parity(one) && has_parity(two) && first.parity != other.parity {
        return format!(
            "{one} and {two} vdevs with different redundancy, {} vs. {} are present",
            first.parity, other.parity
        );
    }
    if one != two {
        return format!("both {one} and {two} vdevs are present");
    }
    format!(
        "both {}-way and {}-way {one} vdevs are present",
        first.ways, other.ways
    )
}

fn with_pool(pool: &Replication, new: &Replication) -> String {
    if let Some((group, mirror)) = mixed(pool, new) {
        return format!(
            "pool and new vdev with different redundancy, {} and mirror vdevs, {} vs. {} ({}-way)",
            group.kind.name(),
            group.parity,
            mirror.parity,
            mirror.ways
        );
    }
    let (old, now) = (pool.kind.name(), new.kind.name());
    if old != now {
        return format!("pool uses {old} and new vdev is {now}");
    }
    if pool.parity != new.parity && has_parity(old) {
        return format!(
            "pool uses {} device parity and new vdev uses {}",
            pool.parity, new.parity
        );
    }
    format!(
        "pool uses {}-way {old} and new vdev uses {}-way {now}",
        pool.ways, new.ways
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_engine::VdevType;

    #[test]
    fn mixed_redundancy_is_reported_in_openzfs_words() {
        let vdev = |kind, ways, parity| Replication { kind, ways, parity };
        let file = vdev(VdevType::File, 1, 0);
        let (two, three) = (vdev(VdevType::Mirror, 2, 1), vdev(VdevType::Mirror, 3, 2));
        let (one, double) = (vdev(VdevType::Raidz, 3, 1), vdev(VdevType::Raidz, 3, 2));
        let narrow = vdev(VdevType::Raidz, 2, 1);
        let spread = vdev(VdevType::Draid, 3, 1);
        let new = |a, b| words(&ReplicationMismatch::BetweenNew(a, b));
        let level = |text: &str| format!("mismatched replication level: {text}");
        for (ours, theirs) in [
            (
                new(three, two),
                "both 3-way and 2-way mirror vdevs are present",
            ),
            (
                new(one, double),
                "raidz and raidz vdevs with different redundancy, 1 vs. 2 are present",
            ),
            (new(file, two), "both file and mirror vdevs are present"),
            (
                new(spread, double),
                "draid and raidz vdevs with different redundancy, 1 vs. 2 are present",
            ),
            (
                new(two, double),
                "raidz and mirror vdevs with different redundancy, 2 vs. 1 (2-way) are present",
            ),
        ] {
            assert_eq!(ours, level(theirs));
        }
        let with = |pool, new| words(&ReplicationMismatch::WithPool { pool, new });
        for (ours, theirs) in [
            (with(file, two), "pool uses file and new vdev is mirror"),
            (
                with(two, double),
                "pool and new vdev with different redundancy, raidz and mirror vdevs, 2 vs. 1 (2-way)",
            ),
            (
                with(two, three),
                "pool uses 2-way mirror and new vdev uses 3-way mirror",
            ),
            (
                with(one, double),
                "pool uses 1 device parity and new vdev uses 2",
            ),
            (
                with(one, narrow),
                "pool uses 3-way raidz and new vdev uses 2-way raidz",
            ),
        ] {
            assert_eq!(ours, level(theirs));
        }
        assert_eq!(
            words(&ReplicationMismatch::DeviceSizes(two)),
            "mirror contains devices of different sizes"
        );
    }
}
