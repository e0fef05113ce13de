//! Tests of what requests need, without a pool.

use super::needs::{Scope, needs};
use millpond_control::{
    DatasetChange, PermissionGrant, PermissionHolder, PermissionReach, PoolChange, ReceiveNaming,
    ReceiveStream, Request, SendPackage, SendStream, Value,
};

/// What a request needs, as text; `None` if only the superuser may make it.
fn of(request: &Request) -> Option<String> {
    let words = needs(request)?.into_iter().map(|need| {
        let scope = match need.scope() {
            Scope::Here => "",
            Scope::Below => " below",
            Scope::Tree => " and below",
            Scope::Parent => " parent",
            Scope::HereOrParent => " or parent",
            Scope::New => " new",
            Scope::Origin => " origin",
        };
        format!("{}@{}{scope}", need.permission(), need.dataset())
    });
    Some(words.collect::<Vec<_>>().join(", "))
}

fn of_change(change: DatasetChange) -> Option<String> {
    of(&Request::Change {
        pool: "t".into(),
        changes: vec![PoolChange::Dataset(change)],
        command: String::new(),
    })
}

fn text(name: &str, value: &str) -> (String, Value) {
    (name.into(), Value::Text(value.into()))
}

fn set(properties: &[(String, Value)]) -> Option<String> {
    of_change(DatasetChange::Set {
        name: "t/a".into(),
        properties: properties.to_vec(),
        mount: true,
    })
}

#[test]
fn pools_mounts_and_empty_commands_are_the_superusers() {
    let change = |changes: Vec<PoolChange>| Request::Change {
        pool: "t".into(),
        changes,
        command: "zpool sync".into(),
    };
    let nothing = [
        DatasetChange::Snapshot {
            names: vec![],
            properties: vec![],
        },
        DatasetChange::DestroyInOrder {
            names: vec![],
            before_rollback: None,
        },
        DatasetChange::Hold {
            names: vec![],
            tag: "x".into(),
        },
        DatasetChange::Allow {
            name: "t".into(),
            grants: vec![],
        },
    ];
    for empty in nothing {
        let request = change(vec![PoolChange::Dataset(empty)]);
        assert_eq!(of(&request), None, "{request:?}");
    }
    let refused = [
        change(vec![]),
        change(vec![PoolChange::Sync { forced: true }]),
        change(vec![PoolChange::Destroy]),
        Request::Unmount {
            dataset: "t".into(),
            force: false,
        },
        Request::History { pool: "t".into() },
        Request::ClearEvents {},
    ];
    for request in refused {
        assert_eq!(of(&request), None, "{request:?}");
    }
    // One change among many is enough.
    let hold = PoolChange::Dataset(DatasetChange::Hold {
        names: vec!["t@1".into()],
        tag: "x".into(),
    });
    assert_eq!(of(&change(vec![hold, PoolChange::Export])), None);
    assert_eq!(of(&Request::Pools {}).as_deref(), Some(""));
}

#[test]
fn what_the_daemon_would_do_for_a_user_by_itself_is_refused() {
    for harmful in [
        text("mountpoint", "/etc"),
        text("keylocation", "file:///etc/shadow"),
        text("keylocation", "https://example.org/key"),
        text("written@x", "1"),
        text("userquota@7", "1"),
        text("nonsense", "1"),
    ] {
        assert_eq!(
            set(&[text("atime", "off"), harmful.clone()]),
            None,
            "{harmful:?}"
        );
        let create = of_change(DatasetChange::CreateFileSystem {
            name: "t/a".into(),
            properties: vec![harmful],
            mount: true,
            key: None,
        });
        assert_eq!(create, None);
    }
    let harmless = [text("mountpoint", "legacy"), text("keylocation", "prompt")];
    assert_eq!(
        set(&harmless).as_deref(),
        Some("mountpoint@t/a, keylocation@t/a")
    );
    let inherit = |property: &str, to_received| {
        of_change(DatasetChange::Inherit {
            name: "t/a".into(),
            property: property.into(),
            to_received,
        })
    };
    assert_eq!(inherit("mountpoint", false), None);
    assert_eq!(inherit("atime", true), None);
    assert_eq!(inherit("atime", false).as_deref(), Some("atime@t/a"));
    assert_eq!(inherit("org:x", false).as_deref(), Some("userprop@t/a"));
}

#[test]
fn new_datasets_need_their_parent_and_their_properties() {
    let volume = DatasetChange::CreateVolume {
        name: "t/a/v".into(),
        properties: vec![
            ("volsize".into(), Value::Number(1)),
            ("volblocksize".into(), Value::Number(1)),
            ("refreservation".into(), Value::Number(1)),
        ],
        key: None,
    };
    let needs = "create@t/a/v parent, mount@t/a/v parent, refreservation@t/a/v new";
    assert_eq!(of_change(volume).as_deref(), Some(needs));
    let clone = DatasetChange::Clone {
        snapshot: "t/b@1".into(),
        name: "t/a/c".into(),
        properties: vec![],
        mount: true,
    };
    let needs = "clone@t/b@1, create@t/a/c parent, mount@t/a/c parent";
    assert_eq!(of_change(clone).as_deref(), Some(needs));
    let rename = |from: &str, to: &str, recursively| {
        of_change(DatasetChange::Rename {
            from: from.into(),
            to: to.into(),
            recursively,
            mount: true,
        })
    };
    let needs = "rename@t/a, mount@t/a, create@t/b/a parent, mount@t/b/a parent";
    assert_eq!(rename("t/a", "t/b/a", false).as_deref(), Some(needs));
    let needs = "rename@t/a@1 and below, mount@t/a@1 and below, create@t/a@1 and below";
    assert_eq!(rename("t/a@1", "t/a@2", true).as_deref(), Some(needs));
}

#[test]
fn streams_need_what_they_touch() {
    let mut send = SendStream {
        name: "t/a@1".into(),
        ..SendStream::default()
    };
    let plan = |send: &SendStream| {
        of(&Request::SendPlan {
            request: send.clone(),
        })
    };
    assert_eq!(plan(&send).as_deref(), Some("send@t/a@1"));
    send.package = SendPackage {
        is_recursive: true,
        ..SendPackage::default()
    };
    assert_eq!(plan(&send).as_deref(), Some("send@t/a@1 and below"));
    let mut receive = ReceiveStream {
        name: "t/a".into(),
        origin: Some("t/b@1".into()),
        properties: vec![text("atime", "off")],
        excluded: vec!["mountpoint".into(), "exec".into()],
        ..ReceiveStream::default()
    };
    let needed = |receive: &ReceiveStream| {
        of(&Request::Receive {
            request: receive.clone(),
            command: String::new(),
        })
    };
    let needs = "receive or receive:append@t/a or parent, mount@t/a or parent, create@t/a or parent, clone@t/b@1, \
                 atime@t/a or parent, exec@t/a or parent";
    assert_eq!(needed(&receive).as_deref(), Some(needs));
    receive.naming = ReceiveNaming::LastComponent;
    assert!(
        needed(&receive)
            .unwrap()
            .starts_with("receive or receive:append@t/a and below, ")
    );
    receive.is_forced = true;
    assert!(
        needed(&receive)
            .unwrap()
            .starts_with("receive@t/a and below, ")
    );
    receive.properties = vec![text("mountpoint", "/etc")];
    assert_eq!(needed(&receive), None);
}

#[test]
fn permissions_are_passed_on_only_by_name_and_never_allow_itself() {
    let grants = |holder, reach, names: &[&str]| {
        of_change(DatasetChange::Allow {
            name: "t/a".into(),
            grants: vec![PermissionGrant::new(holder, reach, names)],
        })
    };
    let (bob, local) = (PermissionHolder::User(8), PermissionReach::Local);
    assert_eq!(grants(bob.clone(), local, &["allow"]), None);
    assert_eq!(grants(bob.clone(), local, &[]), None);
    let needs = "allow@t/a, @ops@t/a, send@t/a";
    assert_eq!(
        grants(bob.clone(), local, &["send", "@ops"]).as_deref(),
        Some(needs)
    );
    let below = grants(bob.clone(), PermissionReach::Descendant, &["send"]);
    assert_eq!(below.as_deref(), Some("allow@t/a below, send@t/a below"));
    let defined = grants(
        PermissionHolder::Set("@ops".into()),
        PermissionReach::NotApplicable,
        &["send"],
    );
    assert_eq!(
        defined.as_deref(),
        Some("allow@t/a and below, send@t/a and below")
    );
    let everything = of_change(DatasetChange::Unallow {
        name: "t/a".into(),
        recursively: false,
        removals: vec![PermissionGrant::new(bob, local, &[])],
    });
    assert_eq!(everything, None);
}
