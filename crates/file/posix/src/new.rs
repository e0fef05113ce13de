//! Creates file systems. Page `docs/format/file-system.md`.

use crate::Case;
use crate::attributes::{AttributeForm, AttributeTables, make_zap, zap};
use crate::create::file_object;
use crate::error::FileError;
use crate::file_system::{MASTER_NODE, VERSION};
use crate::names::NameRules;
use crate::nfs4_acl;
use crate::state::{Lists, NodeState};
use crate::version::{FUIDS, OWNER_QUOTAS};
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_object::ObjectSet;
use millpond_ondisk::ObjectType;
use millpond_ondisk::dsl::keys::master_node as key;
use millpond_sa::{FileFlags, Fuid, Timestamp, create_sa_master};
use millpond_txg::Transaction;
use millpond_zap::{NewZap, ZapShape, new_salt};

/// The properties of a new file system. The rules for comparing names never change afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewFileSystem {
    /// The version, 1 to 5. The property `version`. Other rules for names than the usual ones need version 3.
    pub version: u64,
    /// The Unicode normalization form for comparing names: 0 none, 0x10 D, 0x20 KD, 0x50 C, 0x60 KC. The
    /// property `normalization`.
    pub normalisation: u64,
    /// Whether names must be valid UTF-8. Always so if names are normalized.
    pub is_utf8_only: bool,
    /// How names compare upper and lower case.
    pub case: Case,
    /// Whether the pool accounts for projects. The root directory then gets a project.
    pub has_projects: bool,
    /// The number of 512-byte slots of the root directory's dnode, 1 to 32.
    pub dnode_slots: u8,
    /// The default quotas, which OpenZFS 2.4 writes into every new file system: bytes of user, group and
    /// project, then objects of the three. `None` omits them, as earlier versions do.
    pub default_quotas: Option<[u64; 6]>,
    /// The uid of the root directory.
    pub uid: u32,
    /// The gid of the root directory.
    pub gid: u32,
}

impl Default for NewFileSystem {
    fn default() -> Self {
        Self {
            version: VERSION,
            normalisation: 0,
            is_utf8_only: false,
            case: Case::Sensitive,
            has_projects: true,
            dnode_slots: 1,
            default_quotas: Some([0; 6]),
            uid: 0,
            gid: 0,
        }
    }
}

/// Creates an empty file system in an empty object set of kind "file system": master node, attribute tables,
/// unlinked set and root directory.
///
/// # Errors
/// [`FileError::Invalid`] for an unknown version or normalization form; [`FileError::OldVersion`] for names or quotas
/// that the version does not have; if objects cannot be created.
pub fn create_file_system(
    set: &Arc<ObjectSet>,
    tx: &Transaction,
    env: &Env,
    new: &NewFileSystem,
) -> Result<(), FileError> {
    if millpond_zap::Normalisation::from_normflags(new.normalisation).is_none()
        || new.normalisation & 2 != 0
    {
        return Err(FileError::invalid("no such normal form"));
    }
    check_version(new)?;
    let form = AttributeForm::of_version(new.version);
    let plain = || NewZap::plain(new_salt(env));
    let master = set.allocate_at(
        tx,
        MASTER_NODE,
        ZapShape::USUAL.object(ObjectType::MASTER_NODE),
    )?;
    let master = zap(&master, tx);
    master.create(&plain())?;
    let is_utf8_only = new.is_utf8_only || new.normalisation != 0;
    let case = match new.case {
        Case::Sensitive => 0,
        Case::Insensitive => 1,
        Case::Mixed => 2,
    };
    master.insert_u64(key::NORMALIZATION.as_bytes(), new.normalisation)?;
    master.insert_u64(key::UTF8_ONLY.as_bytes(), u64::from(is_utf8_only))?;
    master.insert_u64(key::CASE_SENSITIVITY.as_bytes(), case)?;
    if let Some(quotas) = new.default_quotas
        && new.version >= OWNER_QUOTAS
    {
        let keys = key::DEFAULT_QUOTAS
            .iter()
            .chain(&key::DEFAULT_OBJECT_QUOTAS);
        for (key, quota) in keys.zip(quotas) {
            master.insert_u64(key.as_bytes(), quota)?;
        }
    }
    master.insert_u64(key::VERSION.as_bytes(), new.version)?;
    if form == AttributeForm::System {
        let attributes = create_sa_master(set, tx, env)?;
        master.insert_u64(key::SYSTEM_ATTRIBUTES.as_bytes(), attributes.0)?;
    }
    let tables = AttributeTables::open(set, env)?;
    let unlinked = make_zap(set, tx, ObjectType::DELETE_QUEUE, &plain())?;
    master.insert_u64(key::DELETE_QUEUE.as_bytes(), unlinked.id().0)?;

    let slots = new.dnode_slots.clamp(1, 32);
    let root = set.allocate(tx, file_object(ObjectType::DIRECTORY, slots, form))?;
    zap(&root, tx).create(&NewZap {
        normalisation: NameRules::new(new.case, new.normalisation, is_utf8_only).folding(),
        ..plain()
    })?;
    let ns = env.clock.wall_ns();
    let now = Timestamp {
        seconds: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        nanoseconds: ns % 1_000_000_000,
    };
    let mode = 0o040_755;
    let acl = nfs4_acl::trivial_acl(mode, true);
    let mut flags = FileFlags::ARCHIVE
        | FileFlags::AV_MODIFIED
        | FileFlags::ACL_AUTO_INHERIT
        | nfs4_acl::hints(&acl);
    let has_projects = new.has_projects && form == AttributeForm::System;
    if has_projects {
        flags |= FileFlags::PROJECT_ID;
    }
    let mut state = NodeState {
        mode,
        size: 2,
        generation: tx.txg().0,
        uid: Fuid(u64::from(new.uid)),
        gid: Fuid(u64::from(new.gid)),
        parent: root.id(),
        flags,
        atime: now,
        mtime: now,
        ctime: now,
        crtime: now,
        links: 2,
        project: has_projects.then_some(0),
        rdev: None,
        xattr_directory: None,
    };
    state.keep_to_version(new.version, FileFlags::empty());
    tables.write_new(tx, &root, &state.all(&Lists::of_acl(acl)), form)?;
    master.insert_u64(key::ROOT.as_bytes(), root.id().0)?;
    Ok(())
}

/// Checks that a file system of the wanted version can have the wanted properties.
fn check_version(new: &NewFileSystem) -> Result<(), FileError> {
    let version = new.version;
    if !(1..=VERSION).contains(&version) {
        return Err(FileError::invalid("no file system is of this version"));
    }
    let needs = |needed, is_wanted| match is_wanted && version < needed {
        true => Err(FileError::OldVersion { version, needed }),
        false => Ok(()),
    };
    let has_rules = new.normalisation != 0 || new.is_utf8_only || new.case != Case::Sensitive;
    needs(FUIDS, has_rules)?;
    let has_quotas = new.default_quotas.is_some_and(|quotas| quotas != [0; 6]);
    needs(OWNER_QUOTAS, has_quotas)
}
