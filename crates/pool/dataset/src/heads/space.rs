//! Space arithmetic: how a change of a directory propagates to its parents.
//!
//! Pure functions; `docs/format/space-accounting.md` has the rules.

use millpond_ondisk::{DecodeError, DslDirectoryFlags, DslDirectoryPhys};

/// Converts a stored size to a signed number. Sizes on disk stay far below 2^63; larger values saturate.
pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Returns `stored` changed by `delta`.
///
/// # Errors
/// If the result would be negative: the space accounting on disk then contradicts the blocks.
pub(crate) fn changed(stored: u64, delta: i64, what: &'static str) -> Result<u64, DecodeError> {
    stored
        .checked_add_signed(delta)
        .ok_or_else(|| DecodeError::new("space accounting", what, 0))
}

/// The categories of a directory's used space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Space of the head that is not referenced by snapshots alone.
    Head,
    /// Space that only snapshots reference.
    Snapshots,
    /// Space charged by children.
    Children,
    /// Unused parts of children's reservations.
    ChildrenReserved,
    /// The unused part of the directory's own refreservation.
    RefReserved,
}

/// Charges changes of use to one directory. Returns the changes to charge to its parent, under
/// [`Use::Children`] and [`Use::ChildrenReserved`].
///
/// # Errors
/// If a value would become negative.
pub(crate) fn charge_directory(
    directory: &mut DslDirectoryPhys,
    uses: &[(Use, i64)],
    compressed: i64,
    uncompressed: i64,
) -> Result<[(Use, i64); 2], DecodeError> {
    let total = uses
        .iter()
        .fold(0i64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let before = directory.used_bytes.max(directory.reserved_bytes);
    directory.used_bytes = changed(directory.used_bytes, total, "used bytes below 0")?;
    directory.compressed_bytes = changed(
        directory.compressed_bytes,
        compressed,
        "compressed bytes below 0",
    )?;
    directory.uncompressed_bytes = changed(
        directory.uncompressed_bytes,
        uncompressed,
        "uncompressed bytes below 0",
    )?;
    if directory.flags.contains(DslDirectoryFlags::USED_BREAKDOWN) {
        let parts = &mut directory.used_breakdown;
        for (used_for, bytes) in uses {
            let (part, what) = match used_for {
                Use::Head => (&mut parts.head_bytes, "head's part below 0"),
                Use::Snapshots => (&mut parts.snapshots_bytes, "snapshots' part below 0"),
                Use::Children => (&mut parts.children_bytes, "children's part below 0"),
                Use::ChildrenReserved => (
                    &mut parts.children_reserved_bytes,
                    "children's reservations below 0",
                ),
                Use::RefReserved => (
                    &mut parts.ref_reserved_bytes,
                    "refreservation's part below 0",
                ),
            };
            *part = changed(*part, *bytes, what)?;
        }
    }
    let after = directory.used_bytes.max(directory.reserved_bytes);
    let rise = signed(after).saturating_sub(signed(before));
    Ok([
        (Use::Children, total),
        (Use::ChildrenReserved, rise.saturating_sub(total)),
    ])
}

/// The increase of a directory's used space when `unique` bytes become `unique_after` under a
/// refreservation.
///
/// The unused part of a refreservation is already charged. The second number is the change of that unused
/// part.
pub(crate) fn head_rise(unique: u64, unique_after: u64, ref_reserved: u64) -> (i64, i64) {
    let data = signed(unique_after).saturating_sub(signed(unique));
    let rise =
        signed(unique_after.max(ref_reserved)).saturating_sub(signed(unique.max(ref_reserved)));
    (data, rise.saturating_sub(data))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn directory(used: u64, reserved: u64) -> DslDirectoryPhys {
        let mut phys = DslDirectoryPhys {
            used_bytes: used,
            reserved_bytes: reserved,
            flags: DslDirectoryFlags::USED_BREAKDOWN,
            ..DslDirectoryPhys::default()
        };
        phys.used_breakdown.head_bytes = used;
        phys
    }

    fn sum(phys: &DslDirectoryPhys) -> u64 {
        let parts = phys.used_breakdown;
        parts.head_bytes
            + parts.snapshots_bytes
            + parts.children_bytes
            + parts.children_reserved_bytes
            + parts.ref_reserved_bytes
    }

    #[test]
    fn space_within_a_reservation_moves_to_children_in_the_parent() {
        let mut child = directory(0, 1000);
        let up = charge_directory(&mut child, &[(Use::Head, 300)], 0, 0).unwrap();
        assert_eq!(up, [(Use::Children, 300), (Use::ChildrenReserved, -300)]);
        let up = charge_directory(&mut child, &[(Use::Head, 900)], 0, 0).unwrap();
        assert_eq!(up, [(Use::Children, 900), (Use::ChildrenReserved, -700)]);
        assert_eq!(child.used_bytes, 1200);
    }

    #[test]
    fn a_charge_below_zero_is_an_error() {
        let mut child = directory(100, 0);
        assert!(charge_directory(&mut child, &[(Use::Head, -101)], 0, 0).is_err());
        assert!(changed(u64::MAX, 1, "x").is_err());
    }

    #[test]
    fn unique_bytes_below_the_refreservation_cost_nothing_more() {
        // 1 MiB reserved, as in the page's example: 30720 unique bytes leave 1017856.
        assert_eq!(head_rise(0, 30720, 1 << 20), (30720, -30720));
        assert_eq!(
            head_rise(30720, (1 << 20) + 5, 1 << 20),
            (1017861, -1017856)
        );
        assert_eq!(head_rise(10, 0, 0), (-10, 0));
    }

    proptest! {
        #[test]
        fn the_space_breakdown_sums_to_used(
            reserved in 0u64..1 << 20,
            steps in proptest::collection::vec((0u8..5, -(1i64 << 16)..1 << 16), 1..40),
        ) {
            let mut child = directory(0, reserved);
            let mut parent = directory(0, 0);
            parent.used_breakdown.children_reserved_bytes = reserved;
            parent.used_bytes = reserved;
            for (which, bytes) in steps {
                let used_for = [Use::Head, Use::Snapshots, Use::Children, Use::ChildrenReserved, Use::RefReserved][usize::from(which)];
                let mut next = child.clone();
                let Ok(up) = charge_directory(&mut next, &[(used_for, bytes)], 0, 0) else { continue };
                child = next;
                charge_directory(&mut parent, &up, 0, 0).unwrap();
                prop_assert_eq!(sum(&child), child.used_bytes);
                prop_assert_eq!(sum(&parent), parent.used_bytes);
                prop_assert_eq!(parent.used_bytes, child.used_bytes.max(reserved));
                prop_assert_eq!(parent.used_breakdown.children_bytes, child.used_bytes);
            }
        }
    }
}
