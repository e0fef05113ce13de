//! The vdev layout of images, and the size that they need for their content.

use std::path::PathBuf;

use millpond_engine::PoolBuilder;

/// The vdev layout of the images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Layout {
    /// One image.
    Single,
    /// Data is spread over the images, without redundancy.
    Stripe,
    /// Every image has all data.
    Mirror,
    /// One image may be missing.
    Raidz1,
    /// Two images may be missing.
    Raidz2,
    /// Three images may be missing.
    Raidz3,
}

impl Layout {
    /// The default layout: one image is a single device, two are a mirror, more are RAID-Z1.
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

    /// Says why this number of images does not suit the layout; `None` if it does.
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
            false => format!("{name} needs {least} to {most} images, not {images}"),
        })
    }

    /// Adds the images to a pool plan.
    pub fn plan(self, plan: PoolBuilder, images: &[PathBuf]) -> PoolBuilder {
        match self {
            Self::Single | Self::Stripe => images.iter().fold(plan, PoolBuilder::single),
            Self::Mirror => plan.mirror(images),
            Self::Raidz1 => plan.raidz(1, images),
            Self::Raidz2 => plan.raidz(2, images),
            Self::Raidz3 => plan.raidz(3, images),
        }
    }
}

/// Adds up the space that files need.
#[derive(Debug, Clone, Copy)]
pub struct Need {
    layout: Layout,
    images: u64,
    /// The sector size in bytes.
    sector_bytes: u64,
    record_bytes: u64,
    /// Total bytes on all images.
    bytes: u64,
}

impl Need {
    /// Creates an empty sum.
    pub fn new(layout: Layout, images: usize, ashift: u8, record_bytes: u64) -> Self {
        Self {
            layout,
            images: images as u64,
            sector_bytes: 1 << ashift,
            record_bytes: record_bytes.max(512),
            bytes: 0,
        }
    }

    /// Adds a file of any kind with this many bytes of data (without holes).
    pub fn add(&mut self, data_bytes: u64) {
        let whole = data_bytes / self.record_bytes;
        let rest = data_bytes % self.record_bytes;
        let mut bytes = self.block(self.record_bytes).saturating_mul(whole);
        if rest > 0 {
            // The last block of a multi-block file has the full record size; a file of one block has a
            // smaller block.
            bytes = bytes.saturating_add(self.block(rest));
        }
        // Dnodes, directory entries and attributes are stored in two or three copies. Compression is
        // ignored.
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

    /// Bytes that a block takes on all images together.
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

    /// The size of each image: the space for the files, the pool's own needs and a margin.
    pub fn image_bytes(&self) -> u64 {
        let of_one = self.bytes.div_ceil(self.images.max(1));
        // The pool reserves 1/32 of its space, at least 128 MiB. Metaslabs do not use the last bytes of a
        // device. Freed space becomes available only after two txgs.
        let with_margin = of_one / 100 * 115 + KEPT_BYTES;
        with_margin.next_multiple_of(1 << 20)
    }
}

/// Bytes of metadata per file.
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
        // One data sector and one parity sector.
        assert_eq!(need(Layout::Raidz1, 4).block(4096), 8192);
        // 32 data sectors in 11 rows of 3, and 11 parity sectors: 43, rounded up to 44.
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
