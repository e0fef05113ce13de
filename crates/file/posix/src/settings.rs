//! File system settings that come from properties.

/// Where extended attributes are stored. The property `xattr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XattrPlace {
    /// Nowhere: user attributes are refused.
    Off,
    /// Each as a file in a hidden directory.
    Directory,
    /// Among the file's system attributes, as long as they fit.
    #[default]
    Attributes,
}

/// Which ACLs programs can set. The property `acltype`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AclKind {
    /// No ACLs.
    #[default]
    Off,
    /// POSIX ACLs, as extended attributes `system.posix_acl_*`.
    Posix,
    /// NFSv4 ACLs. They are stored and inherited, but cannot be set here.
    Nfs4,
}

/// What a change of mode does to an NFSv4 ACL. The property `aclmode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AclMode {
    /// The ACL is replaced by the one for the mode.
    #[default]
    Discard,
    /// Other entries stay, but grant no more than the group permissions.
    GroupMask,
    /// Other entries stay.
    Passthrough,
    /// The change is refused if the ACL expresses more than a mode.
    Restricted,
}

/// What new files inherit of an NFSv4 ACL. The property `aclinherit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AclInherit {
    /// Nothing.
    Discard,
    /// Only denials.
    NoAllow,
    /// Everything; the mode follows the ACL.
    Passthrough,
    /// Everything, except the permissions to change the ACL and the owner.
    #[default]
    Restricted,
    /// Like [`AclInherit::Passthrough`], but execute permission only if the creator requests it.
    PassthroughExecute,
}

/// How access times are updated. The properties `atime` and `relatime`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Atime {
    /// Never.
    Off,
    /// When they are not newer than the last change, or at least a day old.
    #[default]
    Relative,
    /// At every read.
    Always,
}

/// Whether the root directory has the directory `.zfs`. The property `snapdir`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SnapshotDirectory {
    /// It can be entered, but is not listed.
    #[default]
    Hidden,
    /// It can be entered, and is listed.
    Visible,
    /// There is none.
    Disabled,
}

/// Settings that can change while the file system is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Whether the file system is read-only.
    pub is_read_only: bool,
    /// The largest block size of files in bytes, a power of two. The property `recordsize`.
    pub record_bytes: u32,
    /// The number of 512-byte slots of a new file's dnode, 1 to 32. The property `dnodesize`.
    pub dnode_slots: u8,
    /// The properties `atime` and `relatime`.
    pub atime: Atime,
    /// The property `xattr`.
    pub xattr: XattrPlace,
    /// The property `acltype`.
    pub acl_kind: AclKind,
    /// The property `aclmode`.
    pub acl_mode: AclMode,
    /// The property `aclinherit`.
    pub acl_inherit: AclInherit,
    /// Whether names of up to 1023 bytes may be created. The property `longname`, with its feature enabled.
    pub allows_long_names: bool,
    /// Whether the pool accounts for projects. New files and directories then get a project.
    pub has_projects: bool,
    /// The property `snapdir`.
    pub snapshot_directory: SnapshotDirectory,
    /// Whether direct I/O must be aligned to pages. The property `direct`, when it is `standard`.
    pub aligns_direct_io: bool,
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
            snapshot_directory: SnapshotDirectory::default(),
            aligns_direct_io: true,
        }
    }
}

impl Settings {
    /// The settings of a committed state.
    pub(crate) const COMMITTED: Self = Self {
        is_read_only: true,
        record_bytes: 128 << 10,
        dnode_slots: 1,
        atime: Atime::Off,
        xattr: XattrPlace::Attributes,
        // Every extended attribute is shown.
        acl_kind: AclKind::Posix,
        acl_mode: AclMode::Discard,
        acl_inherit: AclInherit::Restricted,
        allows_long_names: false,
        has_projects: true,
        snapshot_directory: SnapshotDirectory::Hidden,
        aligns_direct_io: false,
    };
}

/// The caller of an operation.
///
/// The front end checks permissions (for FUSE, the kernel). Here the caller only determines owners and the
/// few rules that file systems check themselves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Caller {
    /// The uid.
    pub uid: u32,
    /// The gid, which new files get.
    pub gid: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
    /// Whether the caller has root's privileges (on Linux: the matching capability).
    pub is_privileged: bool,
}

impl Caller {
    /// Root.
    #[must_use]
    pub fn root() -> Self {
        Self {
            is_privileged: true,
            ..Self::default()
        }
    }
    /// An unprivileged user.
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
