//! What properties make of a file system.

/// Where extended attributes are put. The property `xattr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XattrPlace {
    /// Nowhere: user attributes are refused.
    Off,
    /// Each in a file of a hidden directory.
    Directory,
    /// Among the file's other attributes as long as they fit.
    #[default]
    Attributes,
}

/// Which access control lists programs can set. The property `acltype`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AclKind {
    /// None.
    #[default]
    Off,
    /// POSIX lists, as extended attributes `system.posix_acl_*`.
    Posix,
    /// NFSv4 lists. They are kept and inherited; nothing here sets them.
    Nfs4,
}

/// What a change of mode does to an NFSv4 list. The property `aclmode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AclMode {
    /// The list becomes the one that the mode means.
    #[default]
    Discard,
    /// Other entries stay, allowing no more than the group may.
    GroupMask,
    /// Other entries stay.
    Passthrough,
    /// Refused unless the list says no more than the mode.
    Restricted,
}

/// What new files inherit of an NFSv4 list. The property `aclinherit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AclInherit {
    /// Nothing.
    Discard,
    /// Denials only.
    NoAllow,
    /// Everything; the mode follows the list.
    Passthrough,
    /// Everything, without the rights to change list and owner.
    #[default]
    Restricted,
    /// As [`AclInherit::Passthrough`]; execution only where the creator asks for it.
    PassthroughExecute,
}

/// How access times are kept. The properties `atime` and `relatime`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Atime {
    /// Not at all.
    Off,
    /// When they are not newer than the last change, or a day old.
    #[default]
    Relative,
    /// With every read.
    Always,
}

/// Settings that may change while the file system is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Nothing is written.
    pub is_read_only: bool,
    /// Largest size of a file's blocks in bytes, a power of two. The property `recordsize`.
    pub record_bytes: u32,
    /// Slots of 512 bytes of a new file's dnode, 1 to 32. The property `dnodesize`.
    pub dnode_slots: u8,
    /// Property `atime` with `relatime`.
    pub atime: Atime,
    /// Property `xattr`.
    pub xattr: XattrPlace,
    /// Property `acltype`.
    pub acl_kind: AclKind,
    /// Property `aclmode`.
    pub acl_mode: AclMode,
    /// Property `aclinherit`.
    pub acl_inherit: AclInherit,
    /// Names of up to 1023 bytes may be made. The property `longname`, with its feature enabled.
    pub allows_long_names: bool,
    /// The pool keeps account of projects: new files and directories get a project.
    pub has_projects: bool,
    /// `.zfs` is listed in the root directory. The property `snapdir`.
    pub shows_snapshot_directory: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            is_read_only: false,
            record_bytes: 128 << 10,
            dnode_slots: 1,
            atime: Atime::default(),
            xattr: XattrPlace::default(),
            acl_kind: AclKind::default(),
            acl_mode: AclMode::default(),
            acl_inherit: AclInherit::default(),
            allows_long_names: false,
            has_projects: true,
            shows_snapshot_directory: false,
        }
    }
}

/// Who asks. Permissions are judged by the front end (for FUSE the kernel); this decides owners,
/// and the few rules that file systems judge themselves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group that new files get.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// May do what only the superuser may (on Linux: the matching capability).
    pub is_privileged: bool,
}

impl Caller {
    /// The superuser.
    #[must_use]
    pub fn root() -> Self {
        Self {
            is_privileged: true,
            ..Self::default()
        }
    }
    /// An ordinary user.
    #[must_use]
    pub fn user(uid: u32, gid: u32) -> Self {
        Self {
            uid,
            gid,
            groups: vec![],
            is_privileged: false,
        }
    }
    pub(crate) fn is_in_group(&self, gid: u64) -> bool {
        u64::from(self.gid) == gid || self.groups.iter().any(|group| u64::from(*group) == gid)
    }
}
