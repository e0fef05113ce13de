//! Usage errors, and commands on a machine without pools.
//!
//! The output must equal that of OpenZFS word for word.

mod support;

use millpond_control::properties::DatasetKind;
use millpond_control::{DatasetInfo, PermissionHolder, PermissionReach};
use std::collections::BTreeMap;
use support::recording;
use support::{FakeService, Granted, run};

/// Replays a session. Each command must match in every byte, or report that it is not implemented.
fn replay(name: &str) {
    let Some(session) = recording::session(name) else {
        return;
    };
    let (mut equal, mut not_built, mut elsewhere, mut all) = (0, 0, 0, 0);
    let mut different = Vec::new();
    for entry in &session {
        let Some(words) = recording::words(&entry.command) else {
            continue;
        };
        all += 1;
        let mut printed = run(&FakeService::default(), &words);
        printed.stdout = printed.stdout.replace(VERSION, "2.3.2-2~bpo12+2");
        if printed == entry.printed {
            equal += 1;
        } else if printed.stderr.ends_with(" is not implemented yet\n") && printed.status == 1 {
            not_built += 1;
        } else if printed.stderr.ends_with("with MILLPOND_SEARCH unset\n") && printed.status == 1 {
            // The test `sessions` replays these with the pools of a daemon.
            elsewhere += 1;
        } else {
            different.push((entry.command.clone(), entry.printed.clone(), printed));
        }
    }
    println!(
        "{name}: {equal} of {all} equal, {not_built} not implemented, {elsewhere} for the daemon"
    );
    for (command, theirs, ours) in different.iter().take(20) {
        println!("--- {command}\ntheirs: {theirs:?}\nours:   {ours:?}");
    }
    assert!(different.is_empty(), "{} of {all} differ", different.len());
}

const VERSION: &str = concat!("2.3.2-millpond-", env!("CARGO_PKG_VERSION"));

#[test]
fn every_usage_error_is_answered_as_openzfs_answers_it() {
    replay("usage.json");
}

#[test]
fn without_a_pool_every_command_prints_as_openzfs() {
    replay("nopool.json");
}

#[test]
fn recorded_permissions_are_granted_removed_and_shown_as_by_openzfs() {
    let Some(session) = recording::session("misc.json") else {
        return;
    };
    let head = |name: &str| DatasetInfo {
        name: name.into(),
        kind: DatasetKind::Filesystem,
        created_txg: 1,
        properties: vec![],
    };
    let control = FakeService {
        datasets: vec![head("tank"), head("tank/fs")],
        ..FakeService::default()
    };
    let mut count = 0;
    for entry in session.iter().filter(|entry| entry.note == "allow") {
        // Two users of that machine have one uid: it shows them by the other name.
        let command = entry.command.replace("bob", "user1");
        let Some(words) = recording::words(&command) else {
            continue;
        };
        assert_eq!(run(&control, &words), entry.printed, "{command}");
        count += 1;
    }
    assert_eq!(count, 30);
}

#[test]
fn permissions_of_several_datasets_and_unknown_ids_are_shown() {
    let granted = |grants: &[(PermissionReach, PermissionHolder, &str)]| -> Granted {
        let grants = grants.iter().cloned();
        grants
            .map(|(reach, holder, name)| (holder, reach, name.to_owned()))
            .collect()
    };
    let (local, below) = (PermissionReach::Local, PermissionReach::Descendant);
    let user = || PermissionHolder::User(4321);
    let own = granted(&[
        (local, user(), "send"),
        (local, user(), "hold"),
        (below, user(), "hold"),
        (below, user(), "diff"),
    ]);
    let above = granted(&[(below, PermissionHolder::Everyone, "snapshot")]);
    let control = FakeService {
        datasets: vec![DatasetInfo {
            name: "tank/fs".into(),
            kind: DatasetKind::Filesystem,
            created_txg: 1,
            properties: vec![],
        }],
        permissions: [("tank".into(), above), ("tank/fs".into(), own)]
            .into_iter()
            .collect::<BTreeMap<_, _>>()
            .into(),
        ..FakeService::default()
    };
    let words = ["zfs", "allow", "tank/fs"].map(str::to_owned);
    let wanted = "\
---- Permissions on tank/fs ------------------------------------------
Local permissions:
\tuser (unknown: 4321) send
Descendent permissions:
\tuser (unknown: 4321) diff
Local+Descendent permissions:
\tuser (unknown: 4321) hold
---- Permissions on tank ---------------------------------------------
Descendent permissions:
\teveryone snapshot
";
    assert_eq!(run(&control, &words).stdout, wanted);
}

#[test]
fn wrong_forms_of_unallow_are_usage_errors() {
    for line in [
        "-c -l create tank",
        "-c -e tank",
        "-c -s @s tank",
        "-u -e tank",
        "-s -l @s tank",
        "-u -g alice create tank",
        "tank",
        "alice create hold tank",
    ] {
        let mut words = vec!["zfs".to_owned(), "unallow".to_owned()];
        words.extend(line.split(' ').map(str::to_owned));
        let printed = run(&FakeService::default(), &words);
        assert_eq!(printed.status, 2, "{line}");
        assert!(printed.stderr.starts_with("Usage: \tunallow "), "{line}");
    }
}
