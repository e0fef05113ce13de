//! Real programs, if they are installed. Only with `MILLPOND_MOUNT=full`.

use crate::rig::{Rig, is_full};
use std::path::Path;
use std::process::Command;

/// Runs a script in a directory of the mount; `None` if a required program is missing.
fn script(rig: &Rig, needs: &[&str], text: &str) -> Option<()> {
    for program in needs {
        let found = Command::new("sh")
            .args(["-c", &format!("command -v {program}")])
            .output();
        if !found.is_ok_and(|output| output.status.success()) {
            eprintln!("not tried: there is no {program}");
            return None;
        }
    }
    let folder = rig.path("work");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).unwrap();
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", text])
        .env("SOURCE", workspace)
        .current_dir(&folder)
        .output()
        .unwrap();
    let text_of = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        text.chars()
            .rev()
            .take(4000)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .collect::<String>()
    };
    assert!(
        output.status.success(),
        "{text}\n{}\n{}",
        text_of(&output.stdout),
        text_of(&output.stderr)
    );
    if let Some(last) = text_of(&output.stdout).trim_end().lines().last() {
        println!("{last}");
    }
    Some(())
}

fn rig() -> Option<Rig> {
    if !is_full() {
        eprintln!("not tried: MILLPOND_MOUNT is not `full`");
        return None;
    }
    Rig::new(&[("acltype", "posix"), ("xattr", "sa")])
}

#[test]
fn git_finds_its_objects_again() {
    let Some(rig) = rig() else { return };
    script(
        &rig,
        &["git"],
        "git clone -q --no-local \"$SOURCE\" repository && cd repository
         git fsck --full --no-dangling
         git config user.email a@b && git config user.name a
         git checkout -q -b side && for n in $(seq 20); do echo $n > f$n; git add f$n; git commit -qm $n; done
         git gc -q && git fsck --full --no-dangling && test -z \"$(git status --porcelain)\"",
    );
    rig.finish();
}

#[test]
fn trees_copied_by_tar_cp_and_rsync_are_equal() {
    let Some(rig) = rig() else { return };
    script(
        &rig,
        &["tar", "cp", "diff"],
        "mkdir a && tar -cf - -C \"$SOURCE\" crates docs tests | tar -xf - -C a
         for d in crates docs tests; do diff -r \"$SOURCE\"/$d a/$d; done
         cp -a a b && diff -r a b
         dd if=/dev/urandom of=a/sparse bs=4k count=3 seek=1000 status=none
         cp --sparse=always a/sparse a/sparse2 && cmp a/sparse a/sparse2",
    );
    script(
        &rig,
        &["rsync"],
        "rsync -aHAX \"$SOURCE\"/docs/ r/ && test -z \"$(rsync -aHAXcni --delete \"$SOURCE\"/docs/ r/)\"",
    );
    rig.finish();
}

#[test]
fn databases_stay_whole() {
    let Some(rig) = rig() else { return };
    script(
        &rig,
        &["sqlite3"],
        "for mode in wal delete truncate; do
           test \"$(sqlite3 $mode.db \"pragma journal_mode=$mode; create table t(a integer primary key, b text);
             with recursive c(x) as (select 1 union all select x+1 from c where x<20000) insert into t select x, hex(randomblob(40)) from c;
             create index i on t(b); delete from t where a%3=0; vacuum; pragma integrity_check;\" | tail -1)\" = ok
         done",
    );
    rig.finish();
}

/// PostgreSQL is killed during its benchmark and started again. Every table and index is then checked.
#[test]
fn postgresql_under_load_and_killed_has_whole_tables() {
    let Some(rig) = rig() else { return };
    script(
        &rig,
        &["pg_config", "runuser", "pgbench"],
        "id postgres > /dev/null && bin=$(pg_config --bindir)
         as() { runuser -u postgres -- env -i PATH=\"$bin:$PATH\" PGHOST=\"$run\" \"$@\"; }
         run=$(mktemp -d) && chown postgres \"$run\" . && chmod 711 .. && chmod 700 .
         trap 'as pg_ctl -D data -m immediate stop > /dev/null 2>&1 || true; rm -rf \"$run\"' EXIT
         start() { as pg_ctl -D data -w -l \"$run/log\" -o \"-c listen_addresses= -k $run\" start > /dev/null || { cat \"$run/log\"; exit 1; }; }
         as initdb -D data --data-checksums > /dev/null
         start
         as createdb bench && as psql -qc 'create extension amcheck' bench
         as pgbench -q -i -s 5 bench 2> /dev/null
         as pgbench -c 4 -j 2 -t 400 bench > \"$run/first\"
         # In the middle of the second round all of it is killed.
         as pgbench -n -c 4 -j 2 -T 60 bench > /dev/null 2>&1 & bench=$!
         sleep 4
         kill -9 $(head -1 data/postmaster.pid)
         wait $bench || true
         sleep 1; rm -f data/postmaster.pid \"$run\"/.s.*; start
         sum=$(as psql -qtAc 'select (select sum(abalance) from pgbench_accounts) - (select sum(delta) from pgbench_history)' bench)
         test \"$sum\" = 0 || { echo \"accounts and history differ by $sum\"; exit 1; }
         as pg_amcheck --all --heapallindexed --parent-check
         as pg_ctl -D data -m fast -w stop > /dev/null
         as pg_checksums --check -D data > /dev/null",
    );
    rig.finish();
}

#[test]
fn fio_verifies_what_it_wrote() {
    let Some(rig) = rig() else { return };
    script(
        &rig,
        &["fio"],
        "common='--directory=. --size=32M --verify=crc32c --do_verify=1 --verify_fatal=1'
         fio --name=psync $common --rw=randwrite --bs=4k-64k --ioengine=psync --numjobs=2
         fio --name=mmap $common --rw=randwrite --bs=4k --ioengine=mmap
         fio --name=direct $common --rw=randwrite --bs=4k-32k --direct=1 --ioengine=psync
         fio --name=aio $common --rw=randrw --bs=4k-32k --direct=1 --ioengine=libaio --iodepth=16
         fio --name=sync $common --size=2M --rw=write --bs=64k --ioengine=psync --fsync=4",
    );
    rig.finish();
}

#[test]
fn a_small_program_is_built() {
    let Some(rig) = rig() else { return };
    script(
        &rig,
        &["cargo", "rustc"],
        "cargo new --quiet --vcs none small && cd small
         CARGO_TARGET_DIR=target cargo run --quiet --offline | grep -q Hello
         echo 'pub fn f() -> u8 { 7 }' > src/lib.rs && CARGO_TARGET_DIR=target cargo test --quiet --offline",
    );
    rig.finish();
}

/// A suite of POSIX calls, `cargo install pjdfstest`. `MILLPOND_PJDFSTEST` names the program.
#[test]
fn posix_calls_have_the_effects_and_errors_of_posix() {
    let Some(rig) = rig() else { return };
    let program = std::env::var("MILLPOND_PJDFSTEST").unwrap_or_else(|_| "pjdfstest".to_owned());
    let settings = Path::new(env!("CARGO_MANIFEST_DIR")).join("mount/pjdfstest.toml");
    let run = format!("{program} -c {} -p .", settings.display());
    script(&rig, &[&program], &run);
    rig.finish();
}
