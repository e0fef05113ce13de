//! The layouts that a number of disks can have.

use std::fmt;

/// How wide mirrors are planned at most.
const MIRROR_SIDES_MAX: u64 = 4;
/// RAID-Z vdevs with more disks take too long to rebuild.
const RAIDZ_DISKS_MAX: u64 = 16;
/// Disks that are left over and become hot spares, at most.
const SPARES_MAX: u64 = 3;
/// With fewer disks, a dRAID has no advantage over RAID-Z.
const DRAID_DISKS_MIN: u64 = 8;
/// The most children of a dRAID.
const DRAID_DISKS_MAX: u64 = 255;
/// Data columns of a dRAID group that are planned. The first is what `zpool create` takes.
const DRAID_DATA: [u64; 2] = [8, 4];
/// Distributed spares that are planned.
const DRAID_SPARES: [u64; 2] = [1, 2];

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
    /// dRAID.
    Draid {
        /// Disks in each vdev.
        disks: u64,
        /// 1 to 3.
        parity: u64,
        /// Data columns of a group.
        data: u64,
        /// Distributed spares, each with the space of a disk.
        spares: u64,
    },
}

impl VdevLayout {
    /// Disks in each vdev.
    #[must_use]
    pub fn disks(self) -> u64 {
        match self {
            Self::Stripe => 1,
            Self::Mirror { sides } => sides,
            Self::Raidz { disks, .. } | Self::Draid { disks, .. } => disks,
        }
    }

    /// Distributed spares of each vdev.
    #[must_use]
    pub fn distributed_spares(self) -> u64 {
        match self {
            Self::Draid { spares, .. } => spares,
            _ => 0,
        }
    }

    /// Failed disks that each vdev survives.
    #[must_use]
    pub fn parity(self) -> u64 {
        match self {
            Self::Stripe => 0,
            Self::Mirror { sides } => sides.saturating_sub(1),
            Self::Raidz { parity, .. } | Self::Draid { parity, .. } => parity,
        }
    }

    /// How many disks' worth of different data each vdev holds.
    #[must_use]
    pub fn data_disks(self) -> f64 {
        let disks = self.disks().saturating_sub(self.distributed_spares()) as f64;
        match self {
            Self::Draid { parity, data, .. } => disks * data as f64 / (data + parity) as f64,
            _ => (disks - self.parity() as f64).max(1.0),
        }
    }

    /// Disks that a rebuild reads, each as much as the failed disk held. On dRAID this is spread over all disks.
    pub(crate) fn rebuild_sources(self) -> f64 {
        match self {
            Self::Stripe => 0.0,
            Self::Mirror { .. } => 1.0,
            Self::Raidz { .. } => self.data_disks(),
            Self::Draid { data, .. } => data as f64,
        }
    }

    /// How many times as fast as one disk is written a rebuild can be. With a distributed spare all disks that are left read
    /// and write; otherwise the new disk is the limit.
    pub(crate) fn rebuild_writers(self) -> f64 {
        match self {
            Self::Draid {
                disks,
                data,
                spares: 1..,
                ..
            } => disks.saturating_sub(1) as f64 / (data + 1) as f64,
            _ => 1.0,
        }
    }

    /// Disks that give one reader of a long file different parts.
    pub(crate) fn stream_readers(self) -> f64 {
        match self {
            Self::Mirror { sides } => sides as f64,
            _ => self.data_disks(),
        }
    }

    /// How many small reads are served at the same time.
    pub(crate) fn random_readers(self) -> f64 {
        match self {
            Self::Mirror { sides } => sides as f64,
            Self::Stripe | Self::Raidz { .. } => 1.0,
            // Each reads the data columns of one group.
            Self::Draid {
                disks,
                parity,
                data,
                spares,
            } => disks.saturating_sub(spares) as f64 / (data + parity) as f64,
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
            Self::Raidz { .. } | Self::Draid { .. } => {
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
            Self::Draid {
                disks,
                parity,
                data,
                spares,
            } => write!(f, "draid{parity}:{data}d:{disks}c:{spares}s"),
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
        let vdevs = disks.div_ceil(DRAID_DISKS_MAX).max(1);
        let disks = disks / vdevs;
        for parity in (1..=3).filter(|_| disks >= DRAID_DISKS_MIN) {
            for spares in DRAID_SPARES {
                let room = disks.saturating_sub(parity + spares);
                let mut widths = DRAID_DATA.map(|data| data.min(room)).to_vec();
                widths.dedup();
                for data in widths {
                    add(VdevLayout::Draid {
                        disks,
                        parity,
                        data,
                        spares,
                    });
                }
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
                VdevLayout::Draid { .. } => words.push(self.kind.to_string()),
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
