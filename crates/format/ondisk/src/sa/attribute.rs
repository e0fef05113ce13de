//! The known attributes and their registration.
//!
//! Page `docs/format/system-attributes.md`.

use crate::DecodeError;

/// How to convert an attribute from the other byte order. Page `docs/format/system-attributes.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SaClass {
    /// Array of 64-bit integers.
    U64,
    /// Array of 32-bit integers.
    U32,
    /// Array of 16-bit integers.
    U16,
    /// No conversion.
    Bytes,
    /// Access control entries.
    Acl,
}

/// An attribute's entry in a file system's registry. Page `docs/format/system-attributes.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SaRegistration {
    /// Its number in this file system.
    pub number: u16,
    /// How to convert its byte order.
    pub class: SaClass,
    /// Length in bytes; 0 if it varies between files.
    pub length: u16,
}

impl SaRegistration {
    /// Whether each buffer stores its length.
    #[must_use]
    pub fn is_variable(&self) -> bool {
        self.length == 0
    }
    /// Decodes a value of the registry ZAP.
    ///
    /// # Errors
    /// If the class is unknown or high bits are set.
    pub fn from_word(word: u64) -> Result<Self, DecodeError> {
        let fail = |reason| DecodeError::new("attribute registration", reason, 0);
        if word >> 40 != 0 {
            return Err(fail("unknown bits"));
        }
        let [n0, n1, class, l0, l1, ..] = word.to_le_bytes();
        let class = match class {
            0 => SaClass::U64,
            1 => SaClass::U32,
            2 => SaClass::U16,
            3 => SaClass::Bytes,
            4 => SaClass::Acl,
            _ => return Err(fail("unknown class")),
        };
        Ok(Self {
            number: u16::from_le_bytes([n0, n1]),
            class,
            length: u16::from_le_bytes([l0, l1]),
        })
    }
    /// Encodes the value for the registry ZAP.
    #[must_use]
    pub fn to_word(&self) -> u64 {
        let class = match self.class {
            SaClass::U64 => 0u64,
            SaClass::U32 => 1,
            SaClass::U16 => 2,
            SaClass::Bytes => 3,
            SaClass::Acl => 4,
        };
        u64::from(self.number) | (class << 16) | (u64::from(self.length) << 24)
    }
}

macro_rules! attributes {
    ($($konst:ident $name:literal $number:literal $length:literal $class:ident $doc:literal;)*) => {
        /// A standard attribute. Page `docs/format/system-attributes.md`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum SaAttribute { $(#[doc = $doc] $konst),* }

        impl SaAttribute {
            /// All of them, in the order of their usual numbers.
            pub const ALL: [SaAttribute; 22] = [$(SaAttribute::$konst),*];
            /// The name in registries.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(SaAttribute::$konst => $name),* }
            }
            /// The registration in a new file system.
            ///
            /// Numbers 0 to 15 are the same in all file systems; the registry defines the others.
            #[must_use]
            pub fn registration(self) -> SaRegistration {
                match self { $(SaAttribute::$konst => SaRegistration {
                    number: $number, class: SaClass::$class, length: $length,
                }),* }
            }
        }
    };
}

attributes! {
    Atime "ZPL_ATIME" 0 16 U64 "Last access.";
    Mtime "ZPL_MTIME" 1 16 U64 "Last change of content.";
    Ctime "ZPL_CTIME" 2 16 U64 "Last change of anything.";
    Crtime "ZPL_CRTIME" 3 16 U64 "Creation.";
    Generation "ZPL_GEN" 4 8 U64 "The txg of creation.";
    Mode "ZPL_MODE" 5 8 U64 "`st_mode`.";
    Size "ZPL_SIZE" 6 8 U64 "Length in bytes.";
    Parent "ZPL_PARENT" 7 8 U64 "A directory that holds or held a link.";
    Links "ZPL_LINKS" 8 8 U64 "Link count.";
    Xattr "ZPL_XATTR" 9 8 U64 "The xattr directory.";
    Rdev "ZPL_RDEV" 10 8 U64 "Device number.";
    Flags "ZPL_FLAGS" 11 8 U64 "See `FileFlags`.";
    Uid "ZPL_UID" 12 8 U64 "Owner.";
    Gid "ZPL_GID" 13 8 U64 "Group.";
    Pad "ZPL_PAD" 14 32 U64 "Only in old znodes.";
    ZnodeAcl "ZPL_ZNODE_ACL" 15 88 Bytes "Only in old znodes.";
    DaclCount "ZPL_DACL_COUNT" 16 8 U64 "Number of access control entries.";
    Symlink "ZPL_SYMLINK" 17 0 Bytes "Target of a symbolic link.";
    Scanstamp "ZPL_SCANSTAMP" 18 32 Bytes "A virus scanner's mark.";
    DaclAces "ZPL_DACL_ACES" 19 0 Acl "Access control entries.";
    Dxattr "ZPL_DXATTR" 20 0 Bytes "Extended attributes, a packed name/value list.";
    ProjectId "ZPL_PROJID" 21 8 U64 "Project.";
}
