//! What is on stable storage when the daemon is killed.

use super::Stage;

#[test]
fn fsync_of_the_root_directory_keeps_everything() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/tank tank HERE/disk && zfs create tank/a");
    stage.done("mkdir -p HERE/tank/a/x/y && zpool sync");
    stage.done(
        "for i in $(seq 20); do echo text $i > HERE/tank/a/x/y/$i; done && \
         head -c 3M /dev/urandom > HERE/tank/a/big && \
         (cd HERE/tank/a && sha256sum big x/y/*) > HERE/sums && \
         sync HERE/tank/a && kill -KILL $(cat HERE/state/lock)",
    );
    stage.done("while ls HERE/tank/a > HERE/seen 2>&1; do sleep 0.05; done");
    // The next command starts the daemon again, which mounts everything anew.
    stage.done("zfs list && cd HERE/tank/a && sha256sum --quiet -c HERE/sums");
    stage.done("zpool export tank");
}
