//! `zfs allow` and `zfs unallow`.

use super::assign::owner_number;
use super::change_text::failure;
use super::lookup::{self, heads, pool_of};
use super::usage;
use crate::command::Parsed;
use crate::session::{Ending, Environment, Failure, Session};
use millpond_control::{
    DatasetChange, DatasetPermissions, PermissionGrant, PermissionHolder, PermissionReach,
    PoolChange, is_permission, is_permission_set,
};
use millpond_engine::OwnerKind;
use std::collections::{BTreeMap, BTreeSet};

/// The columns that the line above the permissions of a dataset fills.
const RULE_COLUMNS: usize = 70;

/// Which of the two commands runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Allow,
    Unallow,
}

/// Shows or grants permissions.
pub fn allow(session: &mut Session, parsed: &Parsed) -> Ending {
    if parsed.options.is_empty()
        && let [name] = parsed.operands.as_slice()
    {
        return show(session, name);
    }
    change(session, parsed, Verb::Allow)
}

/// Removes permissions.
pub fn unallow(session: &mut Session, parsed: &Parsed) -> Ending {
    change(session, parsed, Verb::Unallow)
}

/// The usage of both commands has its own form, with an error at its end.
fn usage_text(verb: Verb) -> String {
    let (name, is_unallow) = match verb {
        Verb::Allow => ("allow", false),
        Verb::Unallow => ("unallow", true),
    };
    let synopsis = crate::usage::synopsis(usage::LISTING, name);
    let options = usage::allow_options(is_unallow);
    let permissions = include_str!("permissions.txt");
    format!("Usage: {synopsis}\nOptions:\n{options}\n{permissions}")
}

fn complaint(verb: Verb, text: &str) -> Failure {
    Failure::Complaint(format!("{}zfs: error: {text}\n", usage_text(verb)))
}

/// The operands of a command, by what they mean.
struct Operands<'p> {
    /// Who, or the name of a set.
    who: Option<&'p str>,
    /// `None` to remove everything.
    permissions: Option<&'p str>,
    dataset: &'p str,
}

/// Checks the options, and tells the operands apart.
fn operands<'p>(parsed: &'p Parsed, verb: Verb) -> Result<Operands<'p>, Failure> {
    let given = |letters: &[&str]| letters.iter().filter(|one| parsed.has(one)).count();
    let refuse = |text: &str| Err(complaint(verb, text));
    if given(&["u", "g", "e"]) > 1 {
        return refuse("-u, -g, and -e are mutually exclusive");
    }
    if parsed.has("c") && given(&["l", "d", "u", "g", "e", "s"]) > 0 {
        return refuse("-c is mutually exclusive with -l, -d, -u, -g, -e, and -s");
    }
    if parsed.has("s") && given(&["l", "d", "u", "g", "e"]) > 0 {
        return refuse("-s is mutually exclusive with -l, -d, -u, -g, and -e");
    }
    let has_who = !parsed.has("c") && !parsed.has("e");
    let all = parsed.operands.as_slice();
    let (who, rest) = match all {
        [who, rest @ ..] if has_who => (Some(who.as_str()), rest),
        rest => (None, rest),
    };
    match rest {
        [permissions, dataset] if has_who == who.is_some() => Ok(Operands {
            who,
            permissions: Some(permissions),
            dataset,
        }),
        [dataset] if has_who == who.is_some() && verb == Verb::Unallow => Ok(Operands {
            who,
            permissions: None,
            dataset,
        }),
        _ => refuse("wrong number of parameters"),
    }
}

fn change(session: &mut Session, parsed: &Parsed, verb: Verb) -> Ending {
    if parsed.has("h") {
        write!(session.out, "{}", usage_text(verb))?;
        return Ok(0);
    }
    let operands = operands(parsed, verb)?;
    if parsed.has("s") {
        check_set(operands.who.unwrap_or_default(), verb)?;
    }
    open(session, operands.dataset)?;
    let action = format!("cannot set permissions on '{}'", operands.dataset);
    let mut permissions = BTreeSet::new();
    for name in operands.permissions.iter().flat_map(|all| all.split(',')) {
        if !is_permission(name) {
            let text = format!("{action}: operation not applicable to datasets of this type");
            return Err(Failure::Refused(text));
        }
        permissions.insert(name.to_owned());
    }
    let holders = match holders(session.environment, parsed, operands.who) {
        Ok(holders) => holders,
        Err(who) => {
            write!(session.out, "{}", usage_text(verb))?;
            writeln!(session.out, "zfs: error: invalid user/group {who}")?;
            return Ok(0);
        }
    };
    let mut grants = vec![];
    for holder in holders {
        for reach in reaches(&holder, parsed) {
            grants.push(PermissionGrant {
                holder: holder.clone(),
                reach,
                permissions: permissions.clone(),
            });
        }
    }
    let name = operands.dataset.to_owned();
    let change = PoolChange::Dataset(match verb {
        Verb::Allow => DatasetChange::Allow { name, grants },
        Verb::Unallow => DatasetChange::Unallow {
            name,
            recursively: parsed.has("r"),
            removals: grants,
        },
    });
    let pool = pool_of(operands.dataset);
    let done = session.service()?.change(pool, &[change], &parsed.line);
    done.map_err(|failed| failure(&action, &failed))?;
    Ok(0)
}

fn check_set(name: &str, verb: Verb) -> Result<(), Failure> {
    if !name.starts_with('@') {
        return Err(complaint(verb, "invalid set name: missing '@' prefix"));
    }
    match is_permission_set(name) {
        true => Ok(()),
        false => Err(complaint(verb, &format!("invalid set name: '{name}'"))),
    }
}

/// Opens the dataset, or fails with the messages and the status of these commands.
fn open(session: &mut Session, name: &str) -> Result<(), Failure> {
    match lookup::open(session, name, heads(), &[]) {
        Ok(_) => Ok(()),
        Err(Failure::Refused(text)) => {
            writeln!(session.err, "{text}\nFailed to open dataset: {name}")?;
            Err(Failure::Status(255))
        }
        Err(other) => Err(other),
    }
}

/// The holders that the operand names. Without `-u` or `-g`, a word is `everyone`, a user, or else a group.
///
/// # Errors
/// A word that is none of these.
fn holders<'p>(
    environment: &Environment,
    parsed: &Parsed,
    who: Option<&'p str>,
) -> Result<Vec<PermissionHolder>, &'p str> {
    let Some(who) = who else {
        return Ok(vec![match parsed.has("c") {
            true => PermissionHolder::Creator,
            false => PermissionHolder::Everyone,
        }]);
    };
    if parsed.has("s") {
        return Ok(vec![PermissionHolder::Set(who.to_owned())]);
    }
    let (only_user, only_group) = (parsed.has("u"), parsed.has("g"));
    let user = |word| owner_number(environment, OwnerKind::User, word).map(PermissionHolder::User);
    let group =
        |word| owner_number(environment, OwnerKind::Group, word).map(PermissionHolder::Group);
    who.split(',')
        .map(|word| {
            let found = match word {
                "" => None,
                "everyone" if !only_user && !only_group => Some(PermissionHolder::Everyone),
                word if only_user => user(word),
                word if only_group => group(word),
                word => user(word).or_else(|| group(word)),
            };
            found.ok_or(word)
        })
        .collect()
}

/// For which datasets: both kinds, unless only one was asked for.
fn reaches(holder: &PermissionHolder, parsed: &Parsed) -> Vec<PermissionReach> {
    if matches!(holder, PermissionHolder::Creator | PermissionHolder::Set(_)) {
        return vec![PermissionReach::NotApplicable];
    }
    match (parsed.has("l"), parsed.has("d")) {
        (true, false) => vec![PermissionReach::Local],
        (false, true) => vec![PermissionReach::Descendant],
        _ => vec![PermissionReach::Local, PermissionReach::Descendant],
    }
}

/// Prints the permissions that count for a dataset: its own and those of its ancestors.
fn show(session: &mut Session, name: &str) -> Ending {
    open(session, name)?;
    let found = session.service()?.permissions(name);
    let found =
        found.map_err(|error| Failure::Refused(format!("cannot open '{name}': {error}")))?;
    for own in found.iter().filter(|own| !own.grants.is_empty()) {
        let text = text_of(session.environment, own);
        session.out.write_all(text.as_bytes())?;
    }
    Ok(0)
}

/// The permissions of one dataset, as they are printed.
fn text_of(environment: &Environment, own: &DatasetPermissions) -> String {
    let mut text = format!("---- Permissions on {} ", own.dataset);
    while text.chars().count() < RULE_COLUMNS {
        text.push('-');
    }
    text.push('\n');
    let joined = |names: &BTreeSet<String>| -> String {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        names.join(",")
    };
    let mut section = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            text.push_str(title);
            text.push('\n');
        }
        for line in lines {
            text.push_str(&format!("\t{line}\n"));
        }
    };
    let grants = own.grants.iter();
    let sets = grants.clone().filter_map(|grant| match &grant.holder {
        PermissionHolder::Set(name) => Some(format!("{name} {}", joined(&grant.permissions))),
        _ => None,
    });
    section("Permission sets:", sets.collect());
    let creators = grants.filter(|grant| grant.holder == PermissionHolder::Creator);
    let creators = creators.map(|grant| joined(&grant.permissions));
    section("Create time permissions:", creators.collect());
    let (mut local, mut below, mut both) = (vec![], vec![], vec![]);
    for (who, [here, there]) in by_holder(environment, own) {
        let add = |lines: &mut Vec<String>, names: BTreeSet<String>| {
            if !names.is_empty() {
                lines.push(format!("{who} {}", joined(&names)));
            }
        };
        add(&mut local, &here - &there);
        add(&mut below, &there - &here);
        add(&mut both, &here & &there);
    }
    section("Local permissions:", local);
    section("Descendent permissions:", below);
    section("Local+Descendent permissions:", both);
    text
}

/// The permissions of users, groups and everyone, for the dataset itself and for its descendants, in the order in which they
/// are printed.
fn by_holder(
    environment: &Environment,
    own: &DatasetPermissions,
) -> Vec<(String, [BTreeSet<String>; 2])> {
    let named = |names: &BTreeMap<u64, String>, id: u64| match names.get(&id) {
        Some(name) => name.clone(),
        None => format!("(unknown: {id})"),
    };
    let mut all: BTreeMap<(u8, String), [BTreeSet<String>; 2]> = BTreeMap::new();
    for grant in &own.grants {
        let key = match &grant.holder {
            PermissionHolder::User(id) => (0, format!("user {}", named(&environment.users, *id))),
            PermissionHolder::Group(id) => {
                (1, format!("group {}", named(&environment.groups, *id)))
            }
            PermissionHolder::Everyone => (2, "everyone".to_owned()),
            PermissionHolder::Creator | PermissionHolder::Set(_) => continue,
        };
        let [here, there] = all.entry(key).or_default();
        let names = match grant.reach {
            PermissionReach::Descendant => there,
            PermissionReach::Local | PermissionReach::NotApplicable => here,
        };
        names.extend(grant.permissions.iter().cloned());
    }
    all.into_iter()
        .map(|((_, who), permissions)| (who, permissions))
        .collect()
}

#[cfg(test)]
mod tests {
    use millpond_control::properties::DATASET_PROPERTIES;
    use millpond_control::{PERMISSIONS, is_permission};

    #[test]
    fn the_listed_permissions_can_be_granted_and_no_others() {
        let lines = include_str!("permissions.txt").lines();
        // Others continue a note.
        let lines = lines.filter(|line| !line.starts_with('\t'));
        let kinds = ["subcommand", "other", "property"];
        let listed: Vec<&str> = lines
            .filter_map(|line| {
                let mut words = line.split_whitespace();
                let name = words.next()?;
                kinds.contains(&words.next()?).then_some(name)
            })
            .collect();
        assert!(listed.iter().all(|name| is_permission(name)));
        let properties = DATASET_PROPERTIES
            .iter()
            .map(|property| property.shape.name);
        let granted = properties.filter(|name| is_permission(name)).count();
        // OpenZFS accepts `receive:append`, and does not list it.
        assert_eq!(listed.len(), PERMISSIONS.len() - 1 + granted);
    }
}
