//! Pool layouts for simulated runs.

use millpond_engine::{DraidShape, NewLayout};
use millpond_vdev::AllocationClass;
use std::collections::BTreeSet;

/// A pool layout.
#[derive(Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its top-level vdevs: class, layout, leaves.
    pub tops: &'static [(AllocationClass, NewLayout, usize)],
    /// log2 of the sector size.
    pub ashift: u8,
    /// Whether its root file system is encrypted, and so all datasets.
    pub is_encrypted: bool,
    /// Whether all datasets deduplicate.
    pub is_deduplicated: bool,
    /// Whether data vdevs are removed and added, or RAID-Z vdevs expanded.
    pub is_reshaped: bool,
}

use AllocationClass::{Log, Normal, Special};
use NewLayout::{Draid, Mirror, Raidz, Single};

const fn draid(parity: u8, data: u8, spares: u8) -> NewLayout {
    Draid(DraidShape {
        parity,
        data,
        spares,
    })
}

/// All shapes.
pub const SHAPES: &[Shape] = &[
    Shape {
        name: "single",
        tops: &[(Normal, Single, 1)],
        ashift: 12,
        is_encrypted: false,
        is_deduplicated: false,
        is_reshaped: false,
    },
    Shape {
        name: "stripe",
        tops: &[(Normal, Single, 1), (Normal, Single, 1)],
        ashift: 9,
        is_encrypted: false,
        is_deduplicated: false,
        is_reshaped: false,
    },
    Shape {
        name: "mirror2",
        tops: &[(Normal, Mirror, 2)],
        ashift: 12,
        is_encrypted: false,
        is_deduplicated: false,
        is_reshaped: false,
    },
    Shape {
        name: "mirror3",
        tops: &[(Normal, Mirror, 3)],
        ashift: 9,
        is_encrypted: false,
        is_deduplicated: false,
        is_reshaped: false,
    },
    Shape {
        name: "raidz1",
        tops: &[(Normal, Raidz(1), 3)],
        ashift: 9,
        is_encrypted: false,
        is_deduplicated: false,
        is_reshaped: false,
    },
    Shape {
        name: "raidz2",
        tops: &[(Normal, Raidz(2), 5)],
        ashift: 12,
        is_encrypted: false,
        is_deduplicated: false,
        is_reshaped: false,
    },
    Shape {
        name: "raidz3",
        tops: &[(Normal, Raidz(3), 6)],
        ashift: 9,
        is_encrypted: false,
        is_deduplicated: false,
        is_reshaped: false,
    },
    Shape {
        name: "classes",
        tops: &[(Normal, Mirror, 2), (Special, Mirror, 2), (Log, Single, 1)],
        ashift: 12,
        is_encrypted: false,
        is_deduplicated: false,
        is_reshaped: false,
    },
    Shape {
        name: "log",
        tops: &[(Normal, Single, 1), (Log, Single, 1)],
        ashift: 9,
        is_encrypted: false,
        is_deduplicated: false,
        is_reshaped: false,
    },
    Shape {
        name: "logmirror",
        tops: &[(Normal, Raidz(1), 3), (Log, Mirror, 2)],
        ashift: 12,
        is_encrypted: false,
        is_deduplicated: false,
        is_reshaped: false,
    },
    Shape {
        name: "draid1",
        tops: &[(Normal, draid(1, 3, 1), 6)],
        ashift: 9,
        is_encrypted: false,
        is_deduplicated: false,
        is_reshaped: false,
    },
    Shape {
        name: "draid2",
        tops: &[(Normal, draid(2, 2, 2), 7)],
        ashift: 12,
        is_encrypted: false,
        is_deduplicated: false,
        is_reshaped: false,
    },
    Shape {
        name: "locked",
        tops: &[(Normal, Mirror, 2)],
        ashift: 9,
        is_encrypted: true,
        is_deduplicated: false,
        is_reshaped: false,
    },
    Shape {
        name: "lockedlog",
        tops: &[(Normal, Raidz(1), 3), (Log, Mirror, 2)],
        ashift: 12,
        is_encrypted: true,
        is_deduplicated: false,
        is_reshaped: false,
    },
    Shape {
        name: "dedup",
        tops: &[(Normal, Mirror, 2)],
        ashift: 9,
        is_encrypted: false,
        is_deduplicated: true,
        is_reshaped: false,
    },
    Shape {
        name: "deduplocked",
        tops: &[(Normal, Raidz(1), 3), (Log, Mirror, 2)],
        ashift: 9,
        is_encrypted: true,
        is_deduplicated: true,
        is_reshaped: false,
    },
    Shape {
        name: "removed",
        tops: &[
            (Normal, Single, 1),
            (Normal, Single, 1),
            (Normal, Single, 1),
        ],
        ashift: 9,
        is_encrypted: false,
        is_deduplicated: false,
        is_reshaped: true,
    },
    Shape {
        name: "removedmirror",
        tops: &[
            (Normal, Mirror, 2),
            (Normal, Mirror, 2),
            (Special, Mirror, 2),
            (Log, Single, 1),
        ],
        ashift: 12,
        is_encrypted: false,
        is_deduplicated: false,
        is_reshaped: true,
    },
    Shape {
        name: "removedlocked",
        tops: &[(Normal, Mirror, 2), (Normal, Single, 1), (Log, Mirror, 2)],
        ashift: 9,
        is_encrypted: true,
        is_deduplicated: true,
        is_reshaped: true,
    },
    Shape {
        name: "expanded",
        tops: &[(Normal, Raidz(1), 3)],
        ashift: 9,
        is_encrypted: false,
        is_deduplicated: false,
        is_reshaped: true,
    },
    Shape {
        name: "expandedlocked",
        tops: &[(Normal, Raidz(2), 4), (Log, Mirror, 2)],
        ashift: 12,
        is_encrypted: true,
        is_deduplicated: true,
        is_reshaped: true,
    },
];

impl Shape {
    /// Finds the shape with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        SHAPES.iter().find(|shape| shape.name == name)
    }
    /// Number of disks.
    #[must_use]
    pub fn disks(&self) -> usize {
        self.tops.iter().map(|(.., leaves)| leaves).sum()
    }
    /// Whether it has a log vdev with redundancy.
    #[must_use]
    pub fn has_mirrored_log(&self) -> bool {
        let mut tops = self.tops.iter();
        tops.any(|(class, layout, _)| (*class, *layout) == (Log, Mirror))
    }
    /// Log devices without redundancy.
    #[must_use]
    pub fn single_logs(&self) -> BTreeSet<usize> {
        let mut disks = BTreeSet::new();
        let mut first = 0;
        for (class, _, leaves) in self.tops {
            if *class == Log && *leaves == 1 {
                disks.insert(first);
            }
            first += leaves;
        }
        disks
    }
}
