//! Keys of the ZAP of delegated permissions.

/// Whom a permission is given to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermissionHolder<'a> {
    /// The user with this id.
    User(u64),
    /// The group with this id.
    Group(u64),
    /// Everyone.
    Everyone,
    /// Whoever creates a dataset below, in the new dataset.
    Creator,
    /// This is the definition of a set; its name begins with `@`.
    Set(&'a [u8]),
}

/// Where a permission holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermissionReach {
    /// In the dataset itself.
    Local,
    /// In its descendants.
    Descendant,
    /// Neither applies: definitions of sets and create-time permissions.
    NotApplicable,
}

/// A key of the outer permission ZAP, such as `ul$1001`. Page `docs/format/dsl-directory.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermissionKey<'a> {
    /// Whom the permissions are given to.
    pub holder: PermissionHolder<'a>,
    /// Where they hold.
    pub reach: PermissionReach,
    /// The entries of the inner ZAP are names of sets instead of permissions.
    pub names_sets: bool,
}

impl<'a> PermissionKey<'a> {
    /// Reads a key, or `None` if it is none of the known forms (ignored by readers).
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
