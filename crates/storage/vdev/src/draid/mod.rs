//! dRAID: groups of columns, declustered over all children and the distributed spares.
//!
//! Page `docs/format/draid.md`.

mod map;
mod permutation;
mod seeds;
#[cfg(test)]
mod tests;

pub use map::{DraidColumn, DraidRow};

use permutation::Permutations;

use crate::tree::VdevConfig;
use crate::units::Sector;

/// Height of a row on each child, in bytes.
const ROW_BYTES: u64 = 16 << 20;
/// Reserved bytes at the end of each child, which hold no groups.
const RESERVED_BYTES: u64 = 32 << 20;
/// The most children.
const CHILDREN_MAX: u64 = 255;
/// The most distributed spares.
const SPARES_MAX: u64 = 100;

/// The validated geometry of a dRAID vdev, with its permutation map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraidGeometry {
    children: u64,
    parity: u64,
    data: u64,
    spares: u64,
    groups: u64,
    permutations: Permutations,
}

impl DraidGeometry {
    /// Makes a geometry from the values of a configuration, and generates the map.
    ///
    /// # Errors
    /// A message that says which value is invalid.
    pub fn new(
        children: usize,
        nparity: u64,
        ndata: u64,
        nspares: u64,
        ngroups: u64,
    ) -> Result<Self, &'static str> {
        let children = u8::try_from(children).map_err(|_| "more than 255 children")?;
        let permutations = Permutations::new(children).ok_or("fewer than 2 children")?;
        let children = u64::from(children);
        if !(1..=3).contains(&nparity) {
            return Err("nparity is not between 1 and 3");
        }
        if nspares > SPARES_MAX {
            return Err("more than 100 distributed spares");
        }
        if ndata == 0 || ndata > children {
            return Err("draid_ndata does not fit the children");
        }
        let width = ndata.saturating_add(nparity);
        if width.saturating_add(nspares) > children {
            return Err("data, parity and spares exceed the children");
        }
        let disks = children.saturating_sub(nspares);
        let is_whole = ngroups
            .checked_mul(width)
            .and_then(|all| all.checked_rem(disks))
            == Some(0);
        if ngroups == 0 || ngroups > disks || !is_whole {
            return Err("draid_ngroups does not fill whole rows");
        }
        Ok(Self {
            children,
            parity: nparity,
            data: ndata,
            spares: nspares,
            groups: ngroups,
            permutations,
        })
    }

    /// Makes the geometry that a configuration describes, of a vdev with this many children.
    ///
    /// # Errors
    /// A message that says which value is missing or invalid.
    pub fn of(config: &VdevConfig, children: usize) -> Result<Self, &'static str> {
        Self::new(
            children,
            config.nparity.ok_or("no nparity")?,
            config.draid_ndata.ok_or("no draid_ndata")?,
            config.draid_nspares.ok_or("no draid_nspares")?,
            config.draid_ngroups.ok_or("no draid_ngroups")?,
        )
    }

    /// Makes the geometry of a new vdev: with the fewest groups that fill whole rows.
    ///
    /// # Errors
    /// As [`DraidGeometry::new`].
    pub fn with_fewest_groups(
        children: usize,
        nparity: u64,
        ndata: u64,
        nspares: u64,
    ) -> Result<Self, &'static str> {
        let disks = u64::try_from(children).unwrap_or(0).saturating_sub(nspares);
        let width = ndata.saturating_add(nparity);
        let is_whole = |groups: &u64| {
            let all = groups.saturating_mul(width);
            all.checked_rem(disks) == Some(0)
        };
        // As many groups as there are disks always fill whole rows.
        let groups = (1..=disks.min(CHILDREN_MAX)).find(is_whole).unwrap_or(0);
        Self::new(children, nparity, ndata, nspares, groups)
    }

    /// Parity columns of a group.
    #[must_use]
    pub fn parity(&self) -> u64 {
        self.parity
    }

    /// Data columns of a group.
    #[must_use]
    pub fn data(&self) -> u64 {
        self.data
    }

    /// Distributed spares.
    #[must_use]
    pub fn spares(&self) -> u64 {
        self.spares
    }

    /// Groups of a slice.
    #[must_use]
    pub fn groups(&self) -> u64 {
        self.groups
    }

    /// Children.
    #[must_use]
    pub fn children(&self) -> u64 {
        self.children
    }

    /// Columns of a group, parity and data.
    #[must_use]
    pub fn group_width(&self) -> u64 {
        self.data.saturating_add(self.parity)
    }

    /// Children's worth of space, without the spares.
    #[must_use]
    pub fn disks(&self) -> u64 {
        self.children.saturating_sub(self.spares)
    }

    /// The geometry in the notation of `zpool status`: `draid2:3d:8c:2s`.
    #[must_use]
    pub fn name(&self) -> String {
        format!(
            "draid{}:{}d:{}c:{}s",
            self.parity, self.data, self.children, self.spares
        )
    }

    /// The child that holds the bytes of distributed spare `spare_id` at `offset_bytes` (not counting
    /// labels). The offset on that child is the same.
    #[must_use]
    pub fn spare_child(&self, spare_id: u64, offset_bytes: u64) -> Option<u64> {
        if spare_id >= self.spares {
            return None;
        }
        let slice_bytes = self
            .group_width()
            .checked_mul(ROW_BYTES)?
            .checked_mul(self.groups)?
            .checked_div(self.disks())?;
        let slice = offset_bytes.checked_div(slice_bytes)?;
        let position = self.children.checked_sub(1)?.checked_sub(spare_id)?;
        self.permutations.child(slice, position)
    }

    /// The child at `position` of slice `slice`, for tests that do their own mapping.
    #[cfg(test)]
    pub(crate) fn child_at(&self, slice: u64, position: u64) -> Option<u64> {
        self.permutations.child(slice, position)
    }

    /// The bytes that a block of `psize_bytes` takes: always whole rows of its group.
    pub(crate) fn asize(&self, psize_bytes: u64, sector: Sector) -> Option<u64> {
        let rows = sector.covering(psize_bytes).div_ceil(self.data.max(1));
        sector.to_bytes(rows.checked_mul(self.group_width())?)
    }

    /// The largest data size that fits into `asize_bytes`.
    pub(crate) fn psize_max(&self, asize_bytes: u64, sector: Sector) -> Option<u64> {
        let rows = sector.whole(asize_bytes).checked_div(self.group_width())?;
        sector.to_bytes(rows.checked_mul(self.data)?)
    }

    /// The allocatable bytes that a child needs so that the vdev has at least `asize_bytes`.
    #[must_use]
    pub fn child_bytes(&self, asize_bytes: u64) -> u64 {
        let rows = asize_bytes.div_ceil(self.disks().saturating_mul(ROW_BYTES).max(1));
        rows.saturating_mul(ROW_BYTES)
            .saturating_add(RESERVED_BYTES)
    }

    /// Allocatable bytes if the smallest child has `child_asize_bytes`.
    #[must_use]
    pub fn asize_from_children(&self, child_asize_bytes: u64) -> Option<u64> {
        let usable = child_asize_bytes.saturating_sub(RESERVED_BYTES);
        let child = crate::units::round_down(usable, ROW_BYTES)?;
        let group = self.group_width().checked_mul(ROW_BYTES)?;
        crate::units::round_down(child.checked_mul(self.disks())?, group)
    }
}
