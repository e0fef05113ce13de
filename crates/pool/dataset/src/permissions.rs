//! Delegated permissions: which users may do what with a dataset.
//!
//! Page `docs/format/dsl-directory.md`, "Delegation".

use crate::error::Named;
use crate::properties::table::DATASET_PROPERTIES;
use crate::{DatasetError, Directory};
use millpond_env::sync::Arc;
use millpond_ondisk::ObjectId;
use millpond_ondisk::dsl::{PermissionHolder, PermissionKey, PermissionReach};
use millpond_pool::PoolView;
use millpond_pool::properties::{Edit, Release};
use millpond_zap::{Zap, ZapEntry};
use std::collections::{BTreeMap, BTreeSet};

/// The longest name of a permission set, in bytes, with its `@`.
const SET_NAME_BYTES_MAX: usize = 63;

/// The permissions that are not named after a property. `zfs allow` lists all but `receive:append`.
pub const PERMISSIONS: [&str; 32] = [
    "allow",
    "clone",
    "create",
    "destroy",
    "diff",
    "hold",
    "mount",
    "promote",
    "receive",
    "receive:append",
    "release",
    "rename",
    "rollback",
    "send",
    "share",
    "snapshot",
    "bookmark",
    "load-key",
    "change-key",
    "groupquota",
    "groupused",
    "userprop",
    "userquota",
    "userused",
    "userobjquota",
    "userobjused",
    "groupobjquota",
    "groupobjused",
    "projectused",
    "projectquota",
    "projectobjused",
    "projectobjquota",
];

/// Whether a permission can be granted by this name: one of [`PERMISSIONS`], a property that can be set, or `@` and
/// the name of a set.
#[must_use]
pub fn is_permission(name: &str) -> bool {
    let is_property = || {
        let mut properties = DATASET_PROPERTIES.iter();
        properties.any(|property| {
            property.shape.name == name
                && property.shape.is_listed
                && property.shape.edit != Edit::ReadOnly
                && property.since == Release::V2_3
        })
    };
    PERMISSIONS.contains(&name) || is_property() || is_permission_set(name)
}

/// Whether this is the name of a permission set: `@` and a component of a dataset's name.
#[must_use]
pub fn is_permission_set(name: &str) -> bool {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.: ".contains(&byte);
    name.len() <= SET_NAME_BYTES_MAX
        && name
            .strip_prefix('@')
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(is_legal))
}

/// Permissions of one holder at one dataset.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(try_from = "text::Grant", into = "text::Grant")
)]
pub struct PermissionGrant {
    /// Who has them.
    pub holder: PermissionHolder,
    /// For which datasets.
    pub reach: PermissionReach,
    /// Names of permissions, and of permission sets with their `@`.
    pub permissions: BTreeSet<String>,
}

impl PermissionGrant {
    /// A grant of these permissions.
    #[must_use]
    pub fn new(holder: PermissionHolder, reach: PermissionReach, permissions: &[&str]) -> Self {
        let names = permissions.iter().map(|name| (*name).to_owned());
        Self {
            holder,
            reach,
            permissions: names.collect(),
        }
    }

    /// The key of the permissions, or of the names of sets among them.
    pub(crate) fn key(&self, names_sets: bool) -> PermissionKey {
        PermissionKey {
            holder: self.holder.clone(),
            reach: self.reach,
            names_sets,
        }
    }
}

/// The form in which a grant travels: its holder and reach are the stored key.
#[cfg(feature = "serde")]
mod text {
    use super::{BTreeSet, PermissionGrant, PermissionKey};

    #[derive(serde::Serialize, serde::Deserialize)]
    pub(super) struct Grant {
        who: String,
        permissions: BTreeSet<String>,
    }

    impl From<PermissionGrant> for Grant {
        fn from(grant: PermissionGrant) -> Self {
            Self {
                who: grant.key(false).to_string(),
                permissions: grant.permissions,
            }
        }
    }

    impl TryFrom<Grant> for PermissionGrant {
        type Error = &'static str;
        fn try_from(grant: Grant) -> Result<Self, Self::Error> {
            match PermissionKey::parse(grant.who.as_bytes()) {
                Some(key) if !key.names_sets => Ok(Self {
                    holder: key.holder,
                    reach: key.reach,
                    permissions: grant.permissions,
                }),
                _ => Err("not a holder of permissions"),
            }
        }
    }
}

/// The permissions granted at one dataset, by holder and reach.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PermissionTable(BTreeMap<(PermissionHolder, PermissionReach), BTreeSet<String>>);

impl PermissionTable {
    /// Reads the tables of a directory. `entries` reads a ZAP. Keys of an unknown form are ignored.
    pub(crate) fn read<E>(
        outer: ObjectId,
        entries: impl Fn(ObjectId) -> Result<Vec<ZapEntry>, E>,
    ) -> Result<Self, E> {
        let mut table = Self::default();
        for entry in entries(outer)? {
            let key = PermissionKey::parse(&entry.name);
            let inner = entry.value.first().and_then(|id| ObjectId(id).some());
            let (Some(key), Some(inner)) = (key, inner) else {
                continue;
            };
            let names = table.0.entry((key.holder, key.reach)).or_default();
            for permission in entries(inner)? {
                // Each kind of key holds names of its own kind.
                if permission.name.starts_with(b"@") == key.names_sets
                    && let Ok(name) = String::from_utf8(permission.name)
                {
                    names.insert(name);
                }
            }
        }
        Ok(table)
    }

    /// The grants, ordered by holder and reach.
    pub fn grants(&self) -> impl Iterator<Item = PermissionGrant> + '_ {
        let all = self.0.iter().filter(|(_, names)| !names.is_empty());
        all.map(|((holder, reach), permissions)| PermissionGrant {
            holder: holder.clone(),
            reach: *reach,
            permissions: permissions.clone(),
        })
    }

    /// Adds permissions.
    pub fn add(&mut self, grant: &PermissionGrant) {
        let key = (grant.holder.clone(), grant.reach);
        let names = self.0.entry(key).or_default();
        names.extend(grant.permissions.iter().cloned());
    }

    fn of(&self, holder: PermissionHolder, reach: PermissionReach) -> &BTreeSet<String> {
        static NONE: BTreeSet<String> = BTreeSet::new();
        self.0.get(&(holder, reach)).unwrap_or(&NONE)
    }
}

/// A user, as permissions see one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PermissionSubject {
    /// The uid.
    pub user: u32,
    /// All groups: gids.
    pub groups: Vec<u32>,
}

impl PermissionSubject {
    fn holders(&self) -> Vec<PermissionHolder> {
        let groups = self.groups.iter().map(|id| u64::from(*id));
        let mut holders: Vec<_> = groups.map(PermissionHolder::Group).collect();
        holders.push(PermissionHolder::User(self.user.into()));
        holders.push(PermissionHolder::Everyone);
        holders
    }
}

/// The user who makes a change, and to whom new datasets belong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Creator {
    /// The user, as permissions see one.
    pub subject: PermissionSubject,
    /// The gid of the primary group.
    pub group: u32,
}

/// The tables that count for a dataset: its own and those of its ancestors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PermissionChain {
    /// Full names of datasets with their tables, the dataset itself first, the root last.
    tables: Vec<(String, PermissionTable)>,
}

impl PermissionChain {
    /// Makes a chain of tables, that of the dataset itself first.
    #[must_use]
    pub fn new(tables: Vec<(String, PermissionTable)>) -> Self {
        Self { tables }
    }

    /// Full names of datasets with their tables, the dataset itself first.
    #[must_use]
    pub fn tables(&self) -> &[(String, PermissionTable)] {
        &self.tables
    }

    /// The chain of a child without a table of its own.
    #[must_use]
    pub fn of_child(&self) -> Self {
        let mut tables = vec![(String::new(), PermissionTable::default())];
        tables.extend(self.tables.iter().cloned());
        Self { tables }
    }

    /// The permissions that a user has for the dataset, with the names of the sets that give them.
    ///
    /// A set is what the nearest of the dataset where it is granted, and the ancestors of that, defines it to be. What
    /// those further up define is masked.
    #[must_use]
    pub fn permissions_of(&self, subject: &PermissionSubject) -> BTreeSet<String> {
        let holders = subject.holders();
        let mut has: BTreeSet<String> = BTreeSet::new();
        // Sets that no dataset has defined yet.
        let mut open: BTreeSet<String> = BTreeSet::new();
        for (depth, (_, table)) in self.tables.iter().enumerate() {
            let reach = match depth {
                0 => PermissionReach::Local,
                _ => PermissionReach::Descendant,
            };
            let granted = holders
                .iter()
                .flat_map(|holder| table.of(holder.clone(), reach));
            for name in granted {
                if has.insert(name.clone()) && is_set(name) {
                    open.insert(name.clone());
                }
            }
            // Sets can be members of sets: each is looked up once.
            let mut asked: Vec<String> = open.iter().cloned().collect();
            while let Some(name) = asked.pop() {
                let set = PermissionHolder::Set(name.clone());
                let members = table.of(set, PermissionReach::NotApplicable);
                if members.is_empty() {
                    continue;
                }
                open.remove(&name);
                for member in members {
                    if has.insert(member.clone()) && is_set(member) {
                        open.insert(member.clone());
                        asked.push(member.clone());
                    }
                }
            }
        }
        has
    }
}

fn is_set(name: &str) -> bool {
    name.starts_with('@')
}

impl Directory {
    /// The permissions granted here.
    ///
    /// # Errors
    /// If their tables cannot be read.
    pub fn permissions(&self) -> Result<PermissionTable, DatasetError> {
        let Some(outer) = self.phys().delegation else {
            return Ok(PermissionTable::default());
        };
        PermissionTable::read(outer, |id| entries(self.pool(), id, self.name()))
    }

    /// The permissions granted here and at all ancestors.
    ///
    /// # Errors
    /// If their tables cannot be read.
    pub fn permission_chain(self: &Arc<Self>) -> Result<PermissionChain, DatasetError> {
        let mut tables = vec![];
        let mut at = Some(self);
        while let Some(directory) = at {
            tables.push((directory.name().to_owned(), directory.permissions()?));
            at = directory.parent();
        }
        Ok(PermissionChain { tables })
    }
}

/// All entries of a ZAP. Memory is bounded by its size.
fn entries(pool: &Arc<PoolView>, id: ObjectId, name: &str) -> Result<Vec<ZapEntry>, DatasetError> {
    let object = pool.mos().object(id).named(name)?;
    let zap = Zap::open(object).named(name)?;
    zap.iter().map(|entry| entry.named(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(grants: &[(PermissionHolder, PermissionReach, &[&str])]) -> PermissionTable {
        let mut table = PermissionTable::default();
        for (holder, reach, names) in grants {
            table.add(&PermissionGrant::new(holder.clone(), *reach, names));
        }
        table
    }

    fn chain(tables: Vec<PermissionTable>) -> PermissionChain {
        let named = tables.into_iter().map(|table| (String::new(), table));
        PermissionChain::new(named.collect())
    }

    fn set(name: &str) -> PermissionHolder {
        PermissionHolder::Set(name.to_owned())
    }

    fn has(chain: &PermissionChain, user: u32, groups: &[u32]) -> String {
        let groups = groups.to_vec();
        let names = chain.permissions_of(&PermissionSubject { user, groups });
        names.into_iter().collect::<Vec<_>>().join(",")
    }

    use PermissionHolder::{Everyone, Group, User};
    use PermissionReach::{Descendant, Local, NotApplicable};

    #[test]
    fn local_grants_end_where_those_of_descendants_begin() {
        let top = table(&[
            (User(7), Local, &["send"]),
            (User(7), Descendant, &["hold"]),
            (Group(50), Descendant, &["destroy"]),
            (Everyone, Local, &["diff"]),
        ]);
        assert_eq!(has(&chain(vec![top.clone()]), 7, &[50]), "diff,send");
        let below = chain(vec![PermissionTable::default(), top.clone()]);
        assert_eq!(has(&below, 7, &[50]), "destroy,hold");
        assert_eq!(has(&below, 8, &[]), "");
        assert_eq!(chain(vec![top]).of_child(), below);
    }

    #[test]
    fn a_set_is_what_the_nearest_dataset_from_the_grant_upwards_defines() {
        let define = |names: &[&str]| table(&[(set("@s"), NotApplicable, names)]);
        let granted = table(&[(User(7), Local, &["@s"])]);
        // The definition below the grant does not count.
        let mut both = granted.clone();
        both.add(&define(&["hold"]).grants().next().unwrap());
        let all = chain(vec![both, define(&["send"])]);
        assert_eq!(has(&all, 7, &[]), "@s,hold");
        // A grant further up does not bring back what is masked.
        let mut again = define(&["send"]);
        again.add(&PermissionGrant::new(User(7), Descendant, &["@s"]));
        let all = chain(vec![all.tables()[0].1.clone(), again]);
        assert_eq!(has(&all, 7, &[]), "@s,hold");
        let from_above = table(&[(User(7), Descendant, &["@s"])]);
        let all = chain(vec![define(&["destroy"]), from_above, define(&["send"])]);
        assert_eq!(has(&all, 7, &[]), "@s,send");
    }

    #[test]
    fn sets_of_sets_end_although_they_form_a_circle() {
        let own = table(&[
            (User(7), Local, &["@a"]),
            (set("@a"), NotApplicable, &["@b", "send"]),
            (set("@b"), NotApplicable, &["@a", "hold"]),
        ]);
        assert_eq!(has(&chain(vec![own]), 7, &[]), "@a,@b,hold,send");
    }

    #[test]
    fn create_time_permissions_and_definitions_are_nobodys_own() {
        let own = table(&[
            (PermissionHolder::Creator, NotApplicable, &["destroy"]),
            (set("@a"), NotApplicable, &["send"]),
        ]);
        assert_eq!(has(&chain(vec![own]), 7, &[7]), "");
    }

    #[test]
    fn only_known_names_are_permissions() {
        let known = [
            "allow",
            "compression",
            "@s",
            "volsize",
            "keylocation",
            "userprop",
        ];
        assert!(known.iter().all(|name| is_permission(name)));
        let long = format!("@{}", "s".repeat(63));
        let unknown = [
            "used",
            "all",
            "boguspriv",
            "",
            "@",
            "@a/b",
            "s",
            "send:raw",
            &long,
        ];
        for name in unknown {
            assert!(!is_permission(name), "{name}");
        }
        assert!(is_permission_set(&long[..63]));
    }

    fn some_table() -> impl Strategy<Value = PermissionTable> {
        let holder = prop_oneof![
            (7u64..9).prop_map(User),
            (50u64..52).prop_map(Group),
            Just(Everyone),
            Just(set("@a")),
            Just(set("@b")),
        ];
        let name = prop::sample::select(vec!["send", "hold", "diff", "@a", "@b"]);
        let grants = prop::collection::vec((holder, any::<bool>(), name), 0..8);
        grants.prop_map(|grants| {
            let grants = grants.into_iter().map(|(holder, is_local, name)| {
                let reach = match (&holder, is_local) {
                    (PermissionHolder::Set(_), _) => NotApplicable,
                    (_, true) => Local,
                    (_, false) => Descendant,
                };
                (holder, reach, [name])
            });
            let mut table = PermissionTable::default();
            for (holder, reach, names) in grants {
                table.add(&PermissionGrant::new(holder, reach, &names));
            }
            table
        })
    }

    /// Whether the user has one permission, told by a search from it to the grants.
    fn is_given(
        tables: &[PermissionTable],
        name: &str,
        depth: usize,
        subject: &PermissionSubject,
    ) -> bool {
        fn search(
            tables: &[PermissionTable],
            name: &str,
            below: usize,
            subject: &PermissionSubject,
            seen: &mut Vec<(String, usize)>,
        ) -> bool {
            // `below`: the permission counts if it is granted at this depth or nearer.
            if seen.contains(&(name.to_owned(), below)) {
                return false;
            }
            seen.push((name.to_owned(), below));
            let granted = (0..=below.min(tables.len() - 1)).any(|at| {
                let mut grants = tables[at].grants();
                grants.any(|grant| {
                    let is_here = match grant.reach {
                        Local => at == 0,
                        Descendant => at > 0,
                        NotApplicable => false,
                    };
                    let is_for = match grant.holder {
                        User(id) => id == u64::from(subject.user),
                        Group(id) => subject.groups.iter().any(|group| u64::from(*group) == id),
                        Everyone => true,
                        _ => false,
                    };
                    is_here && is_for && grant.permissions.contains(name)
                })
            });
            // A set that the user has is not looked up above the nearest definition.
            let is_masked = |set: &String, at: usize| {
                (0..at).any(|nearer| {
                    let mut grants = tables[nearer].grants();
                    grants.any(|grant| grant.holder == PermissionHolder::Set(set.clone()))
                        && search(tables, set, nearer, subject, &mut vec![])
                })
            };
            granted
                || (0..=below.min(tables.len() - 1)).any(|at| {
                    tables[at].grants().any(|grant| match &grant.holder {
                        PermissionHolder::Set(set) if grant.permissions.contains(name) => {
                            search(tables, set, at, subject, seen) && !is_masked(set, at)
                        }
                        _ => false,
                    })
                })
        }
        search(tables, name, depth, subject, &mut vec![])
    }

    proptest! {
        #[test]
        fn rights_are_those_of_a_search_in_the_other_direction(
            tables in prop::collection::vec(some_table(), 1..4),
            user in 7u32..9,
            groups in prop::collection::vec(50u32..52, 0..2),
        ) {
            let subject = PermissionSubject { user, groups };
            let has = chain(tables.clone()).permissions_of(&subject);
            for name in ["send", "hold", "diff", "@a", "@b"] {
                let given = is_given(&tables, name, tables.len() - 1, &subject);
                prop_assert_eq!(has.contains(name), given, "{}", name);
            }
        }
    }
}
