//! The layouts that a number of disks can have.

use std::fmt;

/// How wide mirrors are planned at most.
const MIRROR_SIDES_MAX: u64 = 4;
/// RAID-Z vdevs with more disks take too long to rebuild.
const RAIDZ_DISKS_MAX: u64 = 16;
/// Disks that are left over and become hot spares, at most.
const SPARES_MAX: u64 = 3;

/// The layout of each top-level vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VdevLayout {
    /// Single disks.
    Stripe,
    /// Mirrors of this many sides.
    Mirror {
        /// Disks in each mirror.
        sides: u64,
    },
    /// RAID-Z.
    Raidz {
        /// Disks in each vdev.
        disks: u64,
        /// 1 to 3.
        parity: u64,
    },
}

impl VdevLayout {
    /// Disks in each vdev.
    #[must_use]
    pub fn disks(self) -> u64 {
        match self {
            Self::Stripe => 1,
            Self::Mirror { sides } => sides,
            Self::Raidz { disks, .. } => disks,
        }
    }

    /// Failed disks that each vdev survives.
    #[must_use]
    pub fn parity(self) -> u64 {
        match self {
            Self::Stripe => 0,
            Self::Mirror { sides } => sides.saturating_sub(1),
            Self::Raidz { parity, .. } => parity,
        }
    }

    /// Disks that hold different data.
    #[must_use]
    pub fn data_disks(self) -> u64 {
        self.disks().saturating_sub(self.parity()).max(1)
    }

    /// Disks that a rebuild reads, each as much as the failed disk held.
    pub(crate) fn rebuild_sources(self) -> u64 {
        match self {
            Self::Stripe => 0,
            Self::Mirror { .. } => 1,
            Self::Raidz { .. } => self.data_disks(),
        }
    }

    /// Disks that give one reader of a long file different parts.
    pub(crate) fn stream_readers(self) -> u64 {
        match self {
            Self::Mirror { sides } => sides,
            _ => self.data_disks(),
        }
    }

    /// Disks that serve small reads independently of each other.
    pub(crate) fn random_readers(self) -> u64 {
        match self {
            Self::Mirror { sides } => sides,
            Self::Stripe | Self::Raidz { .. } => 1,
        }
    }

    /// How it grows, in a sentence.
    #[must_use]
    pub fn growth(self) -> &'static str {
        match self {
            Self::Stripe => "disk by disk; each can become a mirror (`zpool add`, `attach`)",
            Self::Mirror { .. } => {
                "by one more mirror, or when all sides are replaced by larger disks"
            }
            Self::Raidz { .. } => {
                "by one more vdev, or when all its disks are replaced by larger ones"
            }
        }
    }
}

impl fmt::Display for VdevLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stripe => f.write_str("stripe"),
            Self::Mirror { sides } => write!(f, "mirror of {sides}"),
            Self::Raidz { disks, parity } => write!(f, "raidz{parity} of {disks}"),
        }
    }
}

/// Equal top-level vdevs, and hot spares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Each vdev.
    pub kind: VdevLayout,
    /// How many.
    pub vdevs: u64,
    /// Disks that are left over, as hot spares.
    pub spares: u64,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, self.vdevs) {
            (VdevLayout::Stripe, 1) => f.write_str("one disk")?,
            (VdevLayout::Stripe, count) => write!(f, "stripe of {count}")?,
            (kind, 1) => write!(f, "{kind}")?,
            (kind, count) => write!(f, "{count} x {kind}")?,
        }
        match self.spares {
            0 => Ok(()),
            1 => f.write_str(", 1 spare"),
            count => write!(f, ", {count} spares"),
        }
    }
}

impl Layout {
    /// All sensible layouts of `disks` disks.
    #[must_use]
    pub fn all(disks: u64) -> Vec<Self> {
        let mut all = vec![];
        let mut add = |kind: VdevLayout| {
            let width = kind.disks();
            let (vdevs, spares) = (disks / width, disks % width);
            // With many spares another width is better.
            if vdevs > 0 && spares <= SPARES_MAX && spares < width {
                all.push(Self {
                    kind,
                    vdevs,
                    spares,
                });
            }
        };
        add(VdevLayout::Stripe);
        for sides in 2..=MIRROR_SIDES_MAX {
            add(VdevLayout::Mirror { sides });
        }
        for parity in 1..=3 {
            for disks in parity + 2..=RAIDZ_DISKS_MAX {
                add(VdevLayout::Raidz { disks, parity });
            }
        }
        all
    }

    /// The arguments of `zpool create` after the pool's name, with `disk1` and so on as disks.
    #[must_use]
    pub fn create_arguments(&self) -> String {
        let mut words = vec![];
        let mut next = 1;
        let mut disks = |count: u64, words: &mut Vec<String>| {
            for _ in 0..count {
                words.push(format!("disk{next}"));
                next += 1;
            }
        };
        for _ in 0..self.vdevs {
            match self.kind {
                VdevLayout::Stripe => {}
                VdevLayout::Mirror { .. } => words.push("mirror".into()),
                VdevLayout::Raidz { parity, .. } => words.push(format!("raidz{parity}")),
            }
            disks(self.kind.disks(), &mut words);
        }
        if self.spares > 0 {
            words.push("spare".into());
            disks(self.spares, &mut words);
        }
        words.join(" ")
    }
}
