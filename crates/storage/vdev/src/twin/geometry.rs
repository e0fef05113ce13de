//! The vdevs that property tests use.

use millpond_ondisk::Txg;
use proptest::prelude::*;

use super::{Twin, leaf, over};
use crate::{Reflow, VdevConfig, VdevType};

/// A kind of vdev that holds one block.
#[derive(Debug, Clone)]
pub(crate) enum Shape {
    Mirror {
        sides: u64,
    },
    Raidz {
        children: u64,
        parity: u64,
    },
    /// Expanded from `first` to `children`; the block was born at `width`.
    Widened {
        first: u64,
        width: u64,
        children: u64,
        parity: u64,
    },
    /// Being expanded to `children`, with rows below `moved_sectors` already moved.
    Widening {
        children: u64,
        parity: u64,
        moved_sectors: u64,
        is_scratch: bool,
    },
    Draid {
        children: u64,
        parity: u64,
        data: u64,
        spares: u64,
    },
}

impl Shape {
    /// How many leaves may fail.
    pub(crate) fn redundancy(&self) -> u64 {
        match *self {
            Shape::Mirror { sides } => sides - 1,
            Shape::Raidz { parity, .. }
            | Shape::Widened { parity, .. }
            | Shape::Widening { parity, .. }
            | Shape::Draid { parity, .. } => parity,
        }
    }

    pub(crate) fn config(&self, ashift: u64) -> VdevConfig {
        let leaves = |count: u64| (0..count).map(|at| leaf(100 + at)).collect();
        let mut config = match *self {
            Shape::Mirror { sides } => over(VdevType::Mirror, 2, leaves(sides)),
            Shape::Raidz { children, parity } => VdevConfig {
                nparity: Some(parity),
                ..over(VdevType::Raidz, 2, leaves(children))
            },
            Shape::Widened {
                first,
                width,
                children,
                parity,
            } => VdevConfig {
                nparity: Some(parity),
                // The block is born in txg 100.
                raidz_expand_txgs: (first..children)
                    .map(|at| Txg(if at < width { 10 + at } else { 200 + at }))
                    .collect(),
                ..over(VdevType::Raidz, 2, leaves(children))
            },
            Shape::Widening {
                children, parity, ..
            } => VdevConfig {
                nparity: Some(parity),
                raidz_expanding: true,
                ..over(VdevType::Raidz, 2, leaves(children))
            },
            Shape::Draid {
                children,
                parity,
                data,
                spares,
            } => {
                let (width, disks) = (data + parity, children - spares);
                let groups = (1..).find(|groups| groups * width % disks == 0).unwrap();
                VdevConfig {
                    nparity: Some(parity),
                    draid_ndata: Some(data),
                    draid_nspares: Some(spares),
                    draid_ngroups: Some(groups),
                    ..over(VdevType::Draid, 2, leaves(children))
                }
            }
        };
        config.ashift = ashift;
        config
    }

    /// The pool with `data` written near `place` (in allocation units).
    pub(crate) fn twin(&self, ashift: u64, place: u64, data: Vec<u8>) -> Twin {
        let sector = 1u64 << ashift;
        let reflow = match *self {
            Shape::Widening {
                moved_sectors,
                is_scratch,
                ..
            } => Reflow {
                offset_bytes: moved_end(moved_sectors) * sector,
                scratch_state: u16::from(is_scratch),
            },
            _ => Reflow::default(),
        };
        let mut twin = Twin::over(self.config(ashift), reflow);
        twin.range.size_bytes = data.len() as u64;
        twin.data = data;
        match *self {
            Shape::Mirror { .. } => {
                twin.range.offset_bytes = place * sector;
                twin.write_mirror(sector);
            }
            Shape::Raidz { children, parity } => {
                twin.range.offset_bytes = place * sector;
                twin.write_raidz(sector, children, parity, &|at, _| {
                    vec![(at % children, at / children, 0)]
                });
            }
            Shape::Widened {
                width,
                children,
                parity,
                ..
            } => {
                twin.range.offset_bytes = place * sector;
                twin.write_raidz(sector, width, parity, &|at, _| {
                    vec![(at % children, at / children, 0)]
                });
            }
            Shape::Widening {
                children,
                parity,
                moved_sectors,
                is_scratch,
            } => {
                twin.range.offset_bytes = (FIRST_SECTORS + place) * sector;
                twin.write_raidz(sector, children - 1, parity, &|at, row_end| {
                    let width = if row_end > moved_end(moved_sectors) {
                        children - 1
                    } else {
                        children
                    };
                    let back = if is_scratch && width == children {
                        0x38_0000
                    } else {
                        0
                    };
                    let mut places = vec![(at % width, at / width, back)];
                    // The row across the progress is read at its old place. What was moved is at the new one, too.
                    if width < children && at < moved_end(moved_sectors) && !is_scratch {
                        places.push((at % children, at / children, 0));
                    }
                    places
                });
            }
            Shape::Draid {
                children,
                parity,
                data,
                spares,
            } => {
                twin.range.offset_bytes = place * sector * (data + parity);
                twin.write_draid(sector, (children, parity, data, spares));
            }
        }
        twin
    }
}

/// What an expansion moves first, at once. Beyond it, no row has a new place that is the old place of another sector of the
/// row. Blocks of vdevs that are being expanded lie behind it.
pub(crate) const FIRST_SECTORS: u64 = 1000;

/// The end of what an expansion has moved, in sectors of the vdev: `sectors` more than the first ones, or 0.
fn moved_end(sectors: u64) -> u64 {
    match sectors {
        0 => 0,
        _ => FIRST_SECTORS + sectors,
    }
}

/// Any vdev.
pub(crate) fn any_shape() -> impl Strategy<Value = Shape> {
    prop_oneof![
        (2u64..5).prop_map(|sides| Shape::Mirror { sides }),
        (1u64..4, 1u64..6).prop_map(|(parity, data)| Shape::Raidz {
            children: parity + data,
            parity
        }),
        (1u64..4, 1u64..4, 0u64..3, 0u64..3).prop_map(|(parity, data, before, after)| {
            let first = parity + data;
            Shape::Widened {
                first,
                width: first + before,
                children: first + before + after,
                parity,
            }
        }),
        (1u64..4, 1u64..4, 0u64..90, any::<bool>()).prop_map(
            |(parity, data, moved_sectors, is_scratch)| Shape::Widening {
                children: parity + data + 1,
                parity,
                moved_sectors,
                is_scratch,
            }
        ),
        (1u64..4, 1u64..5, 0u64..3, 0u64..4).prop_map(|(parity, data, spares, more)| {
            Shape::Draid {
                children: parity + data + spares + more,
                parity,
                data,
                spares,
            }
        }),
    ]
    // A dRAID vdev with one child has no permutation map.
    .prop_filter("two children", |shape| {
        !matches!(
            shape,
            Shape::Draid {
                children: 0..=1,
                ..
            }
        )
    })
}
