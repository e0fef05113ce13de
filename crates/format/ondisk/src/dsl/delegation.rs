//! Keys of the ZAP of delegated permissions.

/// The grantee of a permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermissionHolder<'a> {
    /// The user with this id.
    User(u64),
    /// The group with this id.
    Group(u64),
    /// Everyone.
    Everyone,
    /// The creator of a descendant dataset, in the new dataset.
    Creator,
    /// The definition of a permission set; its name begins with `@`.
    Set(&'a [u8]),
}

/// The datasets to which a permission applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermissionReach {
    /// The dataset itself.
    Local,
    /// Its descendants.
    Descendant,
    /// Not applicable: permission sets and create-time permissions.
    NotApplicable,
}

/// A key of the outer permission ZAP, such as `ul$1001`. Page `docs/format/dsl-directory.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermissionKey<'a> {
    /// The grantee.
    pub holder: PermissionHolder<'a>,
    /// The datasets to which the permissions apply.
    pub reach: PermissionReach,
    /// Whether the inner ZAP contains names of permission sets instead of permissions.
    pub names_sets: bool,
}

impl<'a> PermissionKey<'a> {
    /// Parses a key; `None` if it has an unknown form, which readers ignore.
    #[must_use]
    pub fn parse(key: &'a [u8]) -> Option<Self> {
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
            b's' if !scoped && rest.first() == Some(&b'@') => PermissionHolder::Set(rest),
            _ => return None,
        };
        Some(Self {
            holder,
            reach,
            names_sets: kind.is_ascii_uppercase(),
        })
    }
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let text = core::str::from_utf8(digits).ok()?;
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}
