//! Numbered kinds: checksum functions, compression functions, object types.
//!
//! Pages `docs/format/block-pointer.md` and `docs/format/object-types.md`.

/// A checksum function, by its number in block pointers, dnodes and properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(
    missing_docs,
    reason = "the names are the documentation; the page has the table"
)]
pub enum ChecksumKind {
    Inherit = 0,
    On = 1,
    Off = 2,
    Label = 3,
    GangHeader = 4,
    Zilog = 5,
    Fletcher2 = 6,
    Fletcher4 = 7,
    Sha256 = 8,
    Zilog2 = 9,
    NoParity = 10,
    Sha512 = 11,
    Skein = 12,
    Edonr = 13,
    Blake3 = 14,
}

impl ChecksumKind {
    /// Every function, in numerical order.
    pub const ALL: [ChecksumKind; 15] = [
        Self::Inherit,
        Self::On,
        Self::Off,
        Self::Label,
        Self::GangHeader,
        Self::Zilog,
        Self::Fletcher2,
        Self::Fletcher4,
        Self::Sha256,
        Self::Zilog2,
        Self::NoParity,
        Self::Sha512,
        Self::Skein,
        Self::Edonr,
        Self::Blake3,
    ];
    /// The function with this number; `None` if it is unknown.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
    /// The number stored on disk.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }
    /// The name in dedup table names, in properties and in `zdb` output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Inherit => "inherit",
            Self::On => "on",
            Self::Off => "off",
            Self::Label => "label",
            Self::GangHeader => "gang_header",
            Self::Zilog => "zilog",
            Self::Fletcher2 => "fletcher2",
            Self::Fletcher4 => "fletcher4",
            Self::Sha256 => "sha256",
            Self::Zilog2 => "zilog2",
            Self::NoParity => "noparity",
            Self::Sha512 => "sha512",
            Self::Skein => "skein",
            Self::Edonr => "edonr",
            Self::Blake3 => "blake3",
        }
    }
    /// Strong enough to identify a block without comparing its content in dedup. (Edonr is excluded.)
    #[must_use]
    pub fn is_dedup_strong(self) -> bool {
        matches!(
            self,
            Self::Sha256 | Self::Sha512 | Self::Skein | Self::Blake3
        )
    }
    /// Whether blocks with equal checksums are equal. Edonr is only because of the pool's salt, which a forger of blocks does
    /// not know.
    #[must_use]
    pub fn identifies_content(self) -> bool {
        self.is_dedup_strong() || self == Self::Edonr
    }
    /// Keyed with the pool's checksum salt.
    #[must_use]
    pub fn is_salted(self) -> bool {
        matches!(self, Self::Skein | Self::Edonr | Self::Blake3)
    }
    /// Stored inside the block that it covers.
    #[must_use]
    pub fn is_embedded(self) -> bool {
        matches!(
            self,
            Self::Label | Self::GangHeader | Self::Zilog | Self::Zilog2
        )
    }
}

/// A compression function, by its number in block pointers and dnodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(
    missing_docs,
    reason = "the names are the documentation; the page has the table"
)]
pub enum CompressionKind {
    Inherit,
    On,
    Off,
    Lzjb,
    Empty,
    /// zlib with this level, 1 to 9.
    Gzip(u8),
    Zle,
    Lz4,
    /// The level is in the block's own header, not in the pointer.
    Zstd,
}

impl CompressionKind {
    /// The function with this number; `None` if it is unknown (17 and above).
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Inherit,
            1 => Self::On,
            2 => Self::Off,
            3 => Self::Lzjb,
            4 => Self::Empty,
            5..=13 => Self::Gzip(number.saturating_sub(4)),
            14 => Self::Zle,
            15 => Self::Lz4,
            16 => Self::Zstd,
            _ => return None,
        })
    }
    /// The number stored on disk.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Inherit => 0,
            Self::On => 1,
            Self::Off => 2,
            Self::Lzjb => 3,
            Self::Empty => 4,
            Self::Gzip(level) => level.clamp(1, 9).saturating_add(4),
            Self::Zle => 14,
            Self::Lz4 => 15,
            Self::Zstd => 16,
        }
    }
    /// The name in `zdb` output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Inherit => "inherit",
            Self::On => "on",
            Self::Off => "uncompressed",
            Self::Lzjb => "lzjb",
            Self::Empty => "empty",
            Self::Gzip(level) => match level {
                1 => "gzip-1",
                2 => "gzip-2",
                3 => "gzip-3",
                4 => "gzip-4",
                5 => "gzip-5",
                6 => "gzip-6",
                7 => "gzip-7",
                8 => "gzip-8",
                _ => "gzip-9",
            },
            Self::Zle => "zle",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// How to convert the content of a block from the other byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(
    missing_docs,
    reason = "the names are the documentation; the page has the table"
)]
pub enum ByteswapClass {
    U8,
    U16,
    U32,
    U64,
    Zap,
    Dnode,
    ObjectSet,
    Znode,
    OldAcl,
    Acl,
}

/// The type byte of an object: one of the 54 named types, or a self-describing type from 0x80 up.
///
/// It can hold any byte, so that unknown types can be shown; [`ObjectType::is_valid`] checks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ObjectType(pub u8);

macro_rules! object_types {
    ($($number:literal $konst:ident $class:ident $md:literal $enc:literal $name:literal;)*) => {
        impl ObjectType {
            $(#[doc = $name] pub const $konst: ObjectType = ObjectType($number);)*
        }
        const TABLE: &[(&str, ByteswapClass, bool, bool)] =
            &[$(($name, ByteswapClass::$class, $md == 1, $enc == 1)),*];
    };
}

object_types! {
    0 NONE U8 1 0 "unallocated";
    1 OBJECT_DIRECTORY Zap 1 0 "object directory";
    2 OBJECT_ARRAY U64 1 0 "object array";
    3 PACKED_NVLIST U8 1 0 "packed nvlist";
    4 PACKED_NVLIST_SIZE U64 1 0 "packed nvlist size";
    5 BPOBJ U64 1 0 "bpobj";
    6 BPOBJ_HEADER U64 1 0 "bpobj header";
    7 SPACE_MAP_HEADER U64 1 0 "SPA space map header";
    8 SPACE_MAP U64 1 0 "SPA space map";
    9 INTENT_LOG U64 1 1 "ZIL intent log";
    10 DNODE Dnode 1 1 "DMU dnode";
    11 OBJECT_SET ObjectSet 1 0 "DMU objset";
    12 DSL_DIRECTORY U64 1 0 "DSL directory";
    13 DSL_DIRECTORY_CHILD_MAP Zap 1 0 "DSL directory child map";
    14 DSL_DATASET_SNAP_MAP Zap 1 0 "DSL dataset snap map";
    15 DSL_PROPS Zap 1 0 "DSL props";
    16 DSL_DATASET U64 1 0 "DSL dataset";
    17 ZNODE Znode 1 0 "ZFS znode";
    18 OLD_ACL OldAcl 1 1 "ZFS V0 ACL";
    19 PLAIN_FILE U8 0 1 "ZFS plain file";
    20 DIRECTORY Zap 1 1 "ZFS directory";
    21 MASTER_NODE Zap 1 0 "ZFS master node";
    22 DELETE_QUEUE Zap 1 1 "ZFS delete queue";
    23 ZVOL U8 0 1 "zvol object";
    24 ZVOL_PROP Zap 1 0 "zvol prop";
    25 OTHER_U8 U8 0 1 "other uint8[]";
    26 OTHER_U64 U64 0 1 "other uint64[]";
    27 OTHER_ZAP Zap 1 0 "other ZAP";
    28 ERROR_LOG Zap 1 0 "persistent error log";
    29 HISTORY U8 1 0 "SPA history";
    30 HISTORY_OFFSETS U64 1 0 "SPA history offsets";
    31 POOL_PROPS Zap 1 0 "Pool properties";
    32 DSL_PERMISSIONS Zap 1 0 "DSL permissions";
    33 ACL Acl 1 1 "ZFS ACL";
    34 SYSACL U8 1 1 "ZFS SYSACL";
    35 FUID U8 1 1 "FUID table";
    36 FUID_SIZE U64 1 0 "FUID table size";
    37 NEXT_CLONES Zap 1 0 "DSL dataset next clones";
    38 SCAN_QUEUE Zap 1 0 "scan work queue";
    39 USER_GROUP_USED Zap 1 1 "ZFS user/group/project used";
    40 USER_GROUP_QUOTA Zap 1 1 "ZFS user/group/project quota";
    41 USER_REFS Zap 1 0 "snapshot refcount tags";
    42 DDT_ZAP Zap 1 0 "DDT ZAP algorithm";
    43 DDT_STATS Zap 1 0 "DDT statistics";
    44 SA U8 1 1 "System attributes";
    45 SA_MASTER Zap 1 1 "SA master node";
    46 SA_REGISTRATION Zap 1 1 "SA attr registration";
    47 SA_LAYOUTS Zap 1 1 "SA attr layouts";
    48 SCAN_XLATE Zap 1 0 "scan translations";
    49 DEDUP U8 0 1 "deduplicated block";
    50 DEADLIST Zap 1 0 "DSL deadlist map";
    51 DEADLIST_HEADER U64 1 0 "DSL deadlist map hdr";
    52 DSL_CLONES Zap 1 0 "DSL dir clones";
    53 BPOBJ_SUBOBJ U64 1 0 "bpobj subobj";
}

const BYTESWAP_CLASSES: [ByteswapClass; 10] = [
    ByteswapClass::U8,
    ByteswapClass::U16,
    ByteswapClass::U32,
    ByteswapClass::U64,
    ByteswapClass::Zap,
    ByteswapClass::Dnode,
    ByteswapClass::ObjectSet,
    ByteswapClass::Znode,
    ByteswapClass::OldAcl,
    ByteswapClass::Acl,
];

impl ObjectType {
    /// Self-describing array of 64-bit metadata words (block pointer trees, mappings, logs).
    pub const METADATA_U64: ObjectType = ObjectType(0xc3);
    /// An array of 32-bit numbers, metadata.
    pub const METADATA_U32: ObjectType = ObjectType(0xc2);
    /// Self-describing ZAP metadata (feature tables, vdev ZAPs, bookmarks).
    pub const METADATA_ZAP: ObjectType = ObjectType(0xc4);

    /// Whether the type is self-describing (bit 7).
    #[must_use]
    pub fn is_self_describing(self) -> bool {
        self.0 & 0x80 != 0
    }
    fn row(self) -> Option<&'static (&'static str, ByteswapClass, bool, bool)> {
        TABLE.get(usize::from(self.0))
    }
    /// Whether a correct writer could have written this byte.
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.byteswap().is_some()
    }
    /// How to convert content from the other byte order; `None` if the type is not valid.
    #[must_use]
    pub fn byteswap(self) -> Option<ByteswapClass> {
        if self.is_self_describing() {
            BYTESWAP_CLASSES.get(usize::from(self.0 & 0x1f)).copied()
        } else {
            self.row().map(|row| row.1)
        }
    }
    /// Whether the metadata policy (extra copies, own checksum) applies to its data blocks.
    #[must_use]
    pub fn is_metadata(self) -> bool {
        if self.is_self_describing() {
            self.0 & 0x40 != 0
        } else {
            self.row().is_none_or(|row| row.2)
        }
    }
    /// Whether the data blocks of this type are encrypted in encrypted datasets.
    #[must_use]
    pub fn is_encrypted(self) -> bool {
        if self.is_self_describing() {
            self.0 & 0x20 != 0
        } else {
            self.row().is_some_and(|row| row.3)
        }
    }
    /// The name in `zdb` output.
    #[must_use]
    pub fn name(self) -> &'static str {
        if !self.is_self_describing() {
            return self.row().map_or("UNKNOWN", |row| row.0);
        }
        match self.0 & !0x20 {
            0x80 => "bswap u8 data",
            0x81 => "bswap u16 data",
            0x82 => "bswap u32 data",
            0x83 => "bswap u64 data",
            0x84 => "bswap ZAP data",
            0xc0 => "bswap u8 metadata",
            0xc1 => "bswap u16 metadata",
            0xc2 => "bswap u32 metadata",
            0xc3 => "bswap u64 metadata",
            0xc4 => "bswap ZAP metadata",
            _ => "bswap other",
        }
    }
}

#[cfg(test)]
mod tests;
