//! Newtypes for ids and indices, so that for instance a txg cannot be confused with an object id.

use core::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
        impl From<$inner> for $name {
            fn from(value: $inner) -> Self { Self(value) }
        }
    };
}

number!(
    /// A transaction group number. 0 is "never". Page `docs/format/uberblock.md`.
    Txg(u64)
);
number!(
    /// A random 64-bit identity of a pool, vdev, dataset or snapshot.
    Guid(u64)
);
number!(
    /// An object id in its object set. 0 is the meta-dnode. Page `docs/format/dnode.md`.
    ObjectId(u64)
);
number!(
    /// The index of a top-level vdev in its pool. Page `docs/format/vdev-tree.md`.
    VdevId(u32)
);
number!(
    /// The index of a block in its object, at one level of the block tree. Page `docs/format/dnode.md`.
    BlockId(u64)
);
number!(
    /// Height in a block tree; 0 holds data. Page `docs/format/dnode.md`.
    Level(u8)
);
number!(
    /// log2 of a vdev's smallest allocation in bytes, 9 to 16. Page `docs/format/vdev-tree.md`.
    Ashift(u8)
);

impl ObjectId {
    /// A pseudo id for the object of space used by user, which is in the object set block and has no id.
    pub const USER_USED: Self = Self(u64::MAX);
    /// As [`Self::USER_USED`], by group.
    pub const GROUP_USED: Self = Self(u64::MAX - 1);
    /// As [`Self::USER_USED`], by project.
    pub const PROJECT_USED: Self = Self(u64::MAX - 2);

    /// The referenced object of a field on disk; `None` for 0.
    #[must_use]
    pub fn some(self) -> Option<Self> {
        (self.0 != 0).then_some(self)
    }
    /// The field on disk for a reference; 0 for `None`.
    #[must_use]
    pub fn number(reference: Option<Self>) -> u64 {
        reference.map_or(0, |object| object.0)
    }
}

impl Ashift {
    /// The allocation unit in bytes; saturates at 2^63 for impossible shifts.
    #[must_use]
    pub fn bytes(self) -> u64 {
        1u64.checked_shl(u32::from(self.0)).unwrap_or(1 << 63)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_unit_is_a_power_of_two() {
        let units: Vec<u64> = [0, 9, 12, 16, 63, 64, 255]
            .map(|ashift| Ashift(ashift).bytes())
            .to_vec();
        assert_eq!(units, [1, 512, 4096, 65_536, 1 << 63, 1 << 63, 1 << 63]);
    }

    #[test]
    fn object_0_is_no_object_and_the_last_three_have_no_number() {
        assert_eq!(
            (ObjectId(0).some(), ObjectId(7).some()),
            (None, Some(ObjectId(7)))
        );
        assert_eq!(ObjectId::number(None), 0);
        assert_eq!(ObjectId::number(Some(ObjectId(7))), 7);
        let numbers = [
            ObjectId::USER_USED,
            ObjectId::GROUP_USED,
            ObjectId::PROJECT_USED,
        ];
        assert_eq!(numbers.map(|object| u64::MAX - object.0), [0, 1, 2]);
        assert_eq!((Txg(5).to_string(), Txg::from(5)), ("5".to_owned(), Txg(5)));
    }
}
