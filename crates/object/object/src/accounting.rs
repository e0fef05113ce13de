//! Space and object accounting by owner: how a sync changes the accounting objects.

use crate::Accounting;
use crate::core::{HeadChange, SyncedHead};
use millpond_ondisk::{DecodeError, Endian, ObjectType, Reader, sa::SaHeader};
use std::collections::BTreeMap;

/// The change of one owner's entries. Page `docs/format/object-set.md`, "Accounting".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccountingChange {
    /// The accounting object that changes.
    pub which: Accounting,
    /// The owner: a FUID for users and groups, a project id for projects. The key of the entry is this value
    /// in lower-case hex.
    pub owner: u64,
    /// Change of the bytes entry.
    pub bytes: i64,
    /// Change of the `obj-` entry.
    pub objects: i64,
}

/// The owners that an object is accounted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owners {
    /// FUID of the user.
    pub user: u64,
    /// FUID of the group.
    pub group: u64,
    /// Project id.
    pub project: u64,
}

impl Owners {
    /// Returns the owners of the object with this bonus, or `None` for objects that do not belong to a file.
    ///
    /// `attributes` is the bonus, or the spill block if the bonus is empty. Reads at fixed offsets.
    ///
    /// # Errors
    /// If the bytes are too short for their type or have a wrong magic.
    pub fn of(
        bonus_type: ObjectType,
        attributes: &[u8],
        endian: Endian,
    ) -> Result<Option<Self>, DecodeError> {
        match bonus_type {
            ObjectType::SA => Self::of_attributes(attributes).map(Some),
            ObjectType::ZNODE => {
                let mut reader = Reader::new("znode", attributes, endian);
                reader.skip(128)?;
                Ok(Some(Self {
                    user: reader.u64()?,
                    group: reader.u64()?,
                    project: 0,
                }))
            }
            _ => Ok(None),
        }
    }

    fn of_attributes(attributes: &[u8]) -> Result<Self, DecodeError> {
        // A new object has no attributes yet and counts for the owners with id 0.
        if attributes.iter().take(4).all(|byte| *byte == 0) {
            return Ok(Self::default());
        }
        let header = SaHeader::decode(attributes)?;
        let word = |offset: usize| {
            let mut reader = Reader::new("system attributes", attributes, header.endian);
            reader.skip(usize::from(header.header_bytes) + offset)?;
            reader.u64()
        };
        let has_project = word(48)? & HAS_PROJECT != 0;
        Ok(Self {
            user: word(24)?,
            group: word(32)?,
            project: if has_project { word(128)? } else { 0 },
        })
    }
}

/// The bit in a file's flags that means that it has a project id.
const HAS_PROJECT: u64 = 1 << 47;

/// The flag of an object set whose project accounting is complete.
const PROJECTS_COMPLETE: u64 = 4;

/// The objects included in project accounting before and after a sync: those with ids below the bound. Unlike
/// for user accounting, no flag of the object shows this.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ProjectBounds {
    pub(crate) before: u64,
    pub(crate) after: u64,
    /// The accounting object's present content is discarded.
    pub(crate) restarts: bool,
}

impl ProjectBounds {
    pub(crate) fn of(head: &SyncedHead, change: &HeadChange) -> Self {
        let below = |flags: u64, cursor: Option<u64>| match flags & PROJECTS_COMPLETE {
            0 => cursor.unwrap_or(0),
            _ => u64::MAX,
        };
        let cursor = change.accounting_cursor.or(head.accounting_cursor);
        Self {
            before: below(head.flags, head.accounting_cursor),
            after: below(change.flags.unwrap_or(head.flags), cursor),
            restarts: head.flags & PROJECTS_COMPLETE == 0
                && head.accounting_cursor.is_none()
                && change.accounting_cursor.is_some(),
        }
    }
}

/// Sums of changes by owner.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    sums: BTreeMap<(u8, u64), (i64, i64)>,
}

impl Ledger {
    pub(crate) fn add(&mut self, owners: Owners, with_projects: bool, bytes: i64, objects: i64) {
        let mut add = |which: u8, owner: u64| {
            let sum = self.sums.entry((which, owner)).or_default();
            sum.0 = sum.0.saturating_add(bytes);
            sum.1 = sum.1.saturating_add(objects);
        };
        add(0, owners.user);
        add(1, owners.group);
        if with_projects {
            add(2, owners.project);
        }
    }

    /// Returns the changes that are not zero, users first, sorted by owner.
    pub(crate) fn into_changes(self) -> Vec<AccountingChange> {
        let kinds = [Accounting::User, Accounting::Group, Accounting::Project];
        let changes = self.sums.into_iter().filter(|(_, sum)| *sum != (0, 0));
        changes
            .map(|((which, owner), (bytes, objects))| AccountingChange {
                which: kinds[usize::from(which)],
                owner,
                bytes,
                objects,
            })
            .collect()
    }
}
