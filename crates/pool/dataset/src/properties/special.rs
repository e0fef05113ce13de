//! Parses property names from users: native properties, and those whose name carries an argument
//! (`userquota@alice`, `written@monday`, `com.example:note`).

use crate::properties::table::{self, DatasetProperty};

/// The kind of owner whose space or objects are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum OwnerKind {
    /// A user.
    User,
    /// A group.
    Group,
    /// A project.
    Project,
}

/// What a per-owner property counts or limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaSubject {
    /// `userused@`: bytes charged.
    BytesUsed,
    /// `userobjused@`: objects charged.
    ObjectsUsed,
    /// `userquota@`: quota in bytes; 0 for none.
    BytesLimit,
    /// `userobjquota@`: quota in objects; 0 for none.
    ObjectsLimit,
}

/// A well-formed property name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "String", try_from = "String"))]
pub enum PropertyName {
    /// A native property.
    Native(&'static DatasetProperty),
    /// `userused@W` or one of its eleven siblings. The owner `W` is unresolved.
    PerOwner {
        /// The whole name.
        name: String,
        /// User, group or project.
        owner_kind: OwnerKind,
        /// The counted or limited quantity.
        subject: QuotaSubject,
        /// The part after `@`.
        owner: String,
    },
    /// `written@SNAP` or `written#MARK`; `since` includes the `@` or `#`.
    WrittenSince {
        /// The whole name.
        name: String,
        /// The part after `written`.
        since: String,
    },
    /// A user property; its name contains a colon.
    User(String),
}

#[cfg(feature = "serde")]
impl From<PropertyName> for String {
    fn from(name: PropertyName) -> Self {
        name.text().to_owned()
    }
}

#[cfg(feature = "serde")]
impl TryFrom<String> for PropertyName {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        crate::properties::by_name(&text).ok_or_else(|| format!("no property is called '{text}'"))
    }
}

impl PropertyName {
    /// The name to print: the full name of a native property, otherwise the name as given.
    pub fn text(&self) -> &str {
        match self {
            PropertyName::Native(property) => property.shape.name,
            PropertyName::PerOwner { name, .. } | PropertyName::WrittenSince { name, .. } => name,
            PropertyName::User(name) => name,
        }
    }
}

/// Parses a property name. `None` if `word` is not a name, an alias, a form with an argument, or a valid
/// user property.
///
/// Accepts words of any length and allocates no more than the word itself.
pub fn by_name(word: &str) -> Option<PropertyName> {
    if let Some(property) = table::find(word) {
        return Some(PropertyName::Native(property));
    }
    if let Some((prefix, owner)) = word.split_once('@')
        && let Some(&(_, owner_kind, subject)) = PER_OWNER.iter().find(|(p, _, _)| *p == prefix)
    {
        let (name, owner) = (word.to_string(), owner.to_string());
        return Some(PropertyName::PerOwner {
            name,
            owner_kind,
            subject,
            owner,
        });
    }
    if let Some(since) = word.strip_prefix("written")
        && since.starts_with(['@', '#'])
    {
        return Some(PropertyName::WrittenSince {
            name: word.into(),
            since: since.into(),
        });
    }
    is_user_property(word).then(|| PropertyName::User(word.to_string()))
}

fn is_user_property(word: &str) -> bool {
    word.contains(':')
        && word.bytes().all(|b| {
            b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b':' | b'-' | b'.' | b'_')
        })
}

const PER_OWNER: [(&str, OwnerKind, QuotaSubject); 12] = [
    ("userused", OwnerKind::User, QuotaSubject::BytesUsed),
    ("userquota", OwnerKind::User, QuotaSubject::BytesLimit),
    ("groupused", OwnerKind::Group, QuotaSubject::BytesUsed),
    ("groupquota", OwnerKind::Group, QuotaSubject::BytesLimit),
    ("userobjused", OwnerKind::User, QuotaSubject::ObjectsUsed),
    ("userobjquota", OwnerKind::User, QuotaSubject::ObjectsLimit),
    ("groupobjused", OwnerKind::Group, QuotaSubject::ObjectsUsed),
    (
        "groupobjquota",
        OwnerKind::Group,
        QuotaSubject::ObjectsLimit,
    ),
    ("projectused", OwnerKind::Project, QuotaSubject::BytesUsed),
    ("projectquota", OwnerKind::Project, QuotaSubject::BytesLimit),
    (
        "projectobjused",
        OwnerKind::Project,
        QuotaSubject::ObjectsUsed,
    ),
    (
        "projectobjquota",
        OwnerKind::Project,
        QuotaSubject::ObjectsLimit,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_aliases_and_names_with_arguments_differ() {
        assert_eq!(by_name("refer").unwrap().text(), "referenced");
        assert_eq!(
            by_name("userquota@alice").unwrap().text(),
            "userquota@alice"
        );
        assert!(
            matches!(by_name("written#b1"), Some(PropertyName::WrittenSince { since, .. }) if since == "#b1")
        );
        assert!(matches!(
            by_name("com.example:x"),
            Some(PropertyName::User(_))
        ));
        for bad in [
            "", "refres", "bogus", "Com.X:y", "all", "nosuch@x", "writtenX",
        ] {
            assert_eq!(by_name(bad), None, "{bad}");
        }
    }
}
