//! Pools that another system used while the daemon did not run.

use crate::{Stage, client, gone};
use millpond_control::{ImportError, PoolChange, Service};
use millpond_daemon::Daemon;
use std::sync::Arc;

fn stop(daemon: Arc<Daemon>) {
    daemon.stop();
    gone(daemon);
}

/// What the other system did with the pool at last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    StillUsesIt,
    Exported,
    Destroyed,
}

#[test]
fn a_pool_that_another_system_took_is_not_imported_at_the_start() {
    if millpond_env::host::hostid() != 0 {
        // Both daemons would have the host id of the machine.
        println!("skipped: this machine has a host id");
        return;
    }
    for last in [Use::StillUsesIt, Use::Exported, Use::Destroyed] {
        let stage = Stage::new();
        let one = stage.start("one");
        client(&one, 0)
            .create_pool(&stage.request("tank", "a"), "zpool create tank a")
            .unwrap();
        stop(one);
        // No other system took the pool: the daemon imports it again.
        let one = stage.start("one");
        assert_eq!(client(&one, 0).pools().unwrap().len(), 1);
        stop(one);

        let two = stage.start("two");
        let asked = client(&two, 0);
        let mut request = stage.import("tank");
        let refused = asked.import(&request, "");
        assert!(
            matches!(refused, Err(ImportError::InUseElsewhere { .. })),
            "{refused:?}"
        );
        request.force = true;
        asked.import(&request, "zpool import -f tank").unwrap();
        let change = match last {
            Use::StillUsesIt => None,
            Use::Exported => Some(PoolChange::Export),
            Use::Destroyed => Some(PoolChange::Destroy),
        };
        if let Some(change) = change {
            asked.change("tank", &[change], "zpool").unwrap();
        }
        drop(asked);
        stop(two);

        let one = stage.start("one");
        let asked = client(&one, 0);
        assert!(asked.pools().unwrap().is_empty(), "{last:?}");
        // It can be imported by hand, like any other pool.
        let mut request = stage.import("tank");
        request.destroyed = last == Use::Destroyed;
        let imported = asked.import(&request, "");
        match last {
            Use::StillUsesIt => {
                assert!(
                    matches!(imported, Err(ImportError::InUseElsewhere { .. })),
                    "{imported:?}"
                );
                request.force = true;
                asked.import(&request, "").unwrap();
            }
            Use::Exported | Use::Destroyed => assert_eq!(imported.unwrap().name, "tank"),
        }
        drop(asked);
        stop(one);
        // Now it is ours again.
        let one = stage.start("one");
        assert_eq!(client(&one, 0).pools().unwrap().len(), 1, "{last:?}");
        stop(one);
    }
}
