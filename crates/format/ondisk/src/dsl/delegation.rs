//! Keys of the ZAP of delegated permissions.

use core::fmt;

/// The grantee of a permission.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PermissionHolder {
    /// The user with this id.
    User(u64),
    /// The group with this id.
    Group(u64),
    /// Everyone.
    Everyone,
    /// The creator of a descendant dataset, in the new dataset.
    Creator,
    /// The definition of a permission set; its name begins with `@`.
    Set(String),
}

/// The datasets to which a permission applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PermissionReach {
    /// The dataset itself.
    Local,
    /// Its descendants.
    Descendant,
    /// Not applicable: permission sets and create-time permissions.
    NotApplicable,
}

/// A key of the outer permission ZAP, such as `ul$1001`. Page `docs/format/dsl-directory.md`.
///
/// Its text form ([`fmt::Display`]) is the stored one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PermissionKey {
    /// The grantee.
    pub holder: PermissionHolder,
    /// The datasets to which the permissions apply.
    pub reach: PermissionReach,
    /// Whether the inner ZAP contains names of permission sets instead of permissions.
    pub names_sets: bool,
}

impl PermissionKey {
    /// Parses a key; `None` if it has an unknown form, which readers ignore.
    #[must_use]
    pub fn parse(key: &[u8]) -> Option<Self> {
        let [kind, reach, b'$', rest @ ..] = key else {
            return None;
        };
        let reach = match reach {
            b'l' => PermissionReach::Local,
            b'd' => PermissionReach::Descendant,
            b'-' => PermissionReach::NotApplicable,
            _ => return None,
        };
        let scoped = reach != PermissionReach::NotApplicable;
        let holder = match kind.to_ascii_lowercase() {
            b'u' if scoped => PermissionHolder::User(decimal(rest)?),
            b'g' if scoped => PermissionHolder::Group(decimal(rest)?),
            b'e' if scoped && rest.is_empty() => PermissionHolder::Everyone,
            b'c' if !scoped && rest.is_empty() => PermissionHolder::Creator,
            b's' if !scoped && rest.first() == Some(&b'@') => {
                PermissionHolder::Set(core::str::from_utf8(rest).ok()?.to_owned())
            }
            _ => return None,
        };
        Some(Self {
            holder,
            reach,
            names_sets: kind.is_ascii_uppercase(),
        })
    }
}

impl fmt::Display for PermissionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.holder {
            PermissionHolder::User(_) => 'u',
            PermissionHolder::Group(_) => 'g',
            PermissionHolder::Everyone => 'e',
            PermissionHolder::Creator => 'c',
            PermissionHolder::Set(_) => 's',
        };
        let kind = match self.names_sets {
            true => kind.to_ascii_uppercase(),
            false => kind,
        };
        let reach = match self.reach {
            PermissionReach::Local => 'l',
            PermissionReach::Descendant => 'd',
            PermissionReach::NotApplicable => '-',
        };
        write!(f, "{kind}{reach}$")?;
        match &self.holder {
            PermissionHolder::User(id) | PermissionHolder::Group(id) => write!(f, "{id}"),
            PermissionHolder::Set(name) => f.write_str(name),
            PermissionHolder::Everyone | PermissionHolder::Creator => Ok(()),
        }
    }
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let text = core::str::from_utf8(digits).ok()?;
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}
