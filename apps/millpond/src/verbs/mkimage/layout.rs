//! How images stand together, and how large they have to be for what goes into them.

use std::path::PathBuf;

use millpond::live::PoolPlan;

/// How the images stand together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Layout {
    /// One image.
    Single,
    /// Each image holds a part.
    Stripe,
    /// Each image holds everything.
    Mirror,
    /// One image may be missing.
    Raidz1,
    /// Two images may be missing.
    Raidz2,
    /// Three images may be missing.
    Raidz3,
}

impl Layout {
    /// What a number of images means when nobody says: one by itself, two a mirror, more RAID-Z1.
    pub fn usual(images: usize) -> Self {
        match images {
            0 | 1 => Self::Single,
            2 => Self::Mirror,
            _ => Self::Raidz1,
        }
    }

    fn parity(self) -> u64 {
        match self {
            Self::Raidz1 => 1,
            Self::Raidz2 => 2,
            Self::Raidz3 => 3,
            _ => 0,
        }
    }

    /// Why so many images cannot stand so; `None` if they can.
    pub fn complaint(self, images: usize) -> Option<String> {
        let (least, most) = match self {
            Self::Single => (1, 1),
            Self::Stripe => (1, 255),
            Self::Mirror => (2, 255),
            _ => (self.parity() as usize + 1, 255),
        };
        let name = format!("{self:?}").to_lowercase();
        (images < least || images > most).then(|| match least == most {
            true => format!("{name} is one image, not {images}"),
            false => format!("{name} takes {least} to {most} images, not {images}"),
        })
    }

    /// Adds the images to a plan.
    pub fn plan(self, plan: PoolPlan, images: &[PathBuf]) -> PoolPlan {
        match self {
            Self::Single | Self::Stripe => images.iter().fold(plan, PoolPlan::single),
            Self::Mirror => plan.mirror(images),
            Self::Raidz1 => plan.raidz(1, images),
            Self::Raidz2 => plan.raidz(2, images),
            Self::Raidz3 => plan.raidz(3, images),
        }
    }
}

/// Adds up what files will take.
#[derive(Debug, Clone, Copy)]
pub struct Need {
    layout: Layout,
    images: u64,
    /// The smallest write.
    sector_bytes: u64,
    record_bytes: u64,
    /// On all images together.
    bytes: u64,
}

impl Need {
    /// Nothing yet.
    pub fn new(layout: Layout, images: usize, ashift: u8, record_bytes: u64) -> Self {
        Self {
            layout,
            images: images as u64,
            sector_bytes: 1 << ashift,
            record_bytes: record_bytes.max(512),
            bytes: 0,
        }
    }

    /// A file of any kind with so many bytes that are no hole.
    pub fn add(&mut self, data_bytes: u64) {
        let whole = data_bytes / self.record_bytes;
        let rest = data_bytes % self.record_bytes;
        let mut bytes = self.block(self.record_bytes).saturating_mul(whole);
        if rest > 0 {
            // The last block of a file of several is a whole one; small files have small ones.
            bytes = bytes.saturating_add(self.block(rest));
        }
        // Dnodes, entries, attributes: twice or thrice, compressed later or not.
        let metadata = 3 * FILE_BYTES + whole * 3 * 128;
        let images = match self.layout {
            Layout::Mirror => self.images,
            _ => 1,
        };
        let metadata = match self.layout.parity() {
            0 => metadata * images,
            parity => metadata * (parity + 1),
        };
        self.bytes = self.bytes.saturating_add(bytes).saturating_add(metadata);
    }

    /// What a block takes on all images together.
    fn block(&self, bytes: u64) -> u64 {
        let sectors = bytes.div_ceil(self.sector_bytes);
        let sectors = match (self.layout, self.layout.parity()) {
            (Layout::Mirror, _) => sectors * self.images,
            (_, 0) => sectors,
            (_, parity) => {
                let data = self.images.saturating_sub(parity).max(1);
                let sectors = sectors + parity * sectors.div_ceil(data);
                sectors.next_multiple_of(parity + 1)
            }
        };
        sectors.saturating_mul(self.sector_bytes)
    }

    /// The size of each image: what files need, what a pool keeps for itself, and a margin.
    pub fn image_bytes(&self) -> u64 {
        let of_one = self.bytes.div_ceil(self.images.max(1));
        // A thirty-second is kept back, at least 128 MiB of the pool; metaslabs do not fill the last
        // bytes; frees wait for two txgs.
        let with_margin = of_one / 100 * 115 + KEPT_BYTES;
        with_margin.next_multiple_of(1 << 20)
    }
}

/// Metadata of a file.
const FILE_BYTES: u64 = 1 << 10;
const KEPT_BYTES: u64 = 224 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parity_and_padding_count() {
        let need = |layout, images| Need::new(layout, images, 12, 128 << 10);
        assert_eq!(need(Layout::Single, 1).block(1), 4096);
        assert_eq!(need(Layout::Mirror, 3).block(8192), 3 * 8192);
        // One sector, its parity.
        assert_eq!(need(Layout::Raidz1, 4).block(4096), 8192);
        // 32 sectors in 11 rows of 3, 11 of parity: 43, rounded to 44.
        assert_eq!(need(Layout::Raidz1, 4).block(128 << 10), 44 * 4096);
        assert_eq!(need(Layout::Raidz3, 4).block(4096), 4 * 4096);
    }

    #[test]
    fn numbers_of_images_are_judged() {
        assert_eq!(Layout::usual(1), Layout::Single);
        assert_eq!(Layout::usual(2), Layout::Mirror);
        assert_eq!(Layout::usual(5), Layout::Raidz1);
        assert!(Layout::Single.complaint(2).is_some());
        assert!(Layout::Raidz2.complaint(2).is_some());
        assert!(Layout::Raidz2.complaint(3).is_none());
        assert!(Layout::Stripe.complaint(1).is_none());
    }
}
