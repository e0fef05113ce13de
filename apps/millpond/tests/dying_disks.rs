//! Programs on a mounted pool while its disks die and are replaced: no error reaches them, and nothing is lost.
//!
//! Disks are removed, overwritten, cut short, taken offline or lose their labels, at most one at a time. Meanwhile fio, git,
//! SQLite and PostgreSQL work, as far as they are installed.
//!
//! Needs root and /dev/fuse.

#[path = "support/shell.rs"]
mod shell;

use shell::Shell;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// How a disk dies.
const DEATHS: [&str; 5] = ["removed", "overwritten", "cut", "offline", "unlabelled"];
const IMAGE_MIB: u64 = 1024;

/// A program that works on the mount until the time has passed: its name and a script, which fails at the first error. The file
/// `HERE/over` tells it to end.
const PROGRAMS: [(&str, &str); 4] = [
    (
        "fio",
        "mkdir HERE/mnt/fio; cd HERE; while [ ! -e HERE/over ]; do
             fio --name=v --directory=HERE/mnt/fio --rw=randwrite --bsrange=4k-128k --size=48m --numjobs=2 \
                 --verify=crc32c --verify_fatal=1 --fsync=16 --minimal > HERE/fio.log 2>&1 || { cat HERE/fio.log; exit 1; }
         done",
    ),
    (
        "git",
        "mkdir HERE/mnt/git; cd HERE/mnt/git; export HOME=HERE; git init -q .; git config user.email a@b; git config user.name a
         n=0; while [ ! -e HERE/over ]; do
             for k in 1 2 3 4 5; do head -c 20000 /dev/urandom | base64 > f$((n % 50)).$k || exit 1; done
             git add -A && git commit -qm $n || exit 1
             n=$((n + 1))
         done
         git fsck --full --strict && git status --porcelain",
    ),
    (
        "sqlite3",
        "mkdir HERE/mnt/sq; n=0; while [ ! -e HERE/over ]; do
             sqlite3 HERE/mnt/sq/db 'create table if not exists t(a integer primary key, b blob);
                 begin; insert into t(b) values(randomblob(3000)); insert into t(b) values(randomblob(30000)); commit;' || exit 1
             n=$((n + 2))
         done
         [ \"$(sqlite3 HERE/mnt/sq/db 'pragma integrity_check; select count(*) from t;' | tr '\\n' ' ')\" = \"ok $n \" ]",
    ),
    (
        "pgbench",
        "b=$(dirname $(ls /usr/lib/postgresql/*/bin/initdb | tail -1)); mkdir HERE/mnt/pg; run=$(mktemp -d); chown postgres HERE/mnt/pg $run
         as() { setpriv --reuid postgres --regid postgres --clear-groups env HOME=/tmp \"$@\"; }
         as $b/initdb -D HERE/mnt/pg/data >/dev/null || exit 1
         as $b/pg_ctl -D HERE/mnt/pg/data -o \"-k $run -c listen_addresses=\" -l HERE/mnt/pg/log -w start >/dev/null || exit 1
         as createdb -h $run bank && as pgbench -h $run -i -s 2 -q bank 2>/dev/null || exit 1
         s=0; while [ ! -e HERE/over ]; do as pgbench -h $run -c 2 -T 3 bank >/dev/null 2>&1 || { s=1; break; }; done
         same=$(as psql -h $run -At bank -c 'select (select sum(abalance) from pgbench_accounts) = (select sum(tbalance) from pgbench_tellers)')
         as $b/pg_ctl -D HERE/mnt/pg/data -m fast -w stop >/dev/null
         [ $s = 0 ] && [ \"$same\" = t ] || { tail -5 HERE/mnt/pg/log; exit 1; }",
    ),
];

struct Stage {
    shell: Shell,
    /// The images that are in the pool, by place.
    disks: Vec<String>,
    made: usize,
}

impl std::ops::Deref for Stage {
    type Target = Shell;
    fn deref(&self) -> &Shell {
        &self.shell
    }
}

impl Stage {
    fn new(layout: &str, count: usize) -> Option<Self> {
        let mut stage = Self {
            shell: Shell::new()?,
            disks: vec![],
            made: 0,
        };
        std::fs::create_dir(stage.path("d")).unwrap();
        stage.disks = (0..count).map(|_| stage.another()).collect();
        let disks = stage.disks.join(" HERE/");
        stage.done(&format!(
            "zpool create -m HERE/mnt tank {layout} HERE/{disks}"
        ));
        Some(stage)
    }

    /// A new image.
    fn another(&mut self) -> String {
        self.made += 1;
        let name = format!("d/{}", self.made);
        self.image(&name, IMAGE_MIB);
        name
    }

    /// Lets the disk at a place die, waits a while, and brings it back or replaces it.
    fn kill_and_mend(&mut self, place: usize, death: &str) {
        let disk = self.disks[place].clone();
        let file = || {
            let mut options = std::fs::File::options();
            options.write(true).open(self.path(&disk)).unwrap()
        };
        match death {
            "removed" => std::fs::remove_file(self.path(&disk)).unwrap(),
            "overwritten" => {
                let noise = vec![0xa5; 1 << 20];
                (8..200).for_each(|mib| file().write_all_at(&noise, mib << 20).unwrap());
            }
            "cut" => file().set_len(20 << 20).unwrap(),
            "offline" => drop(self.done(&format!("zpool offline tank HERE/{disk}"))),
            _ => file().write_all_at(&[0; 4 << 20], 0).unwrap(),
        }
        std::thread::sleep(Duration::from_secs(3));
        match death {
            "overwritten" => {
                // It may run already.
                self.run("zpool scrub tank");
                self.done("zpool wait -t scrub tank; zpool clear tank");
            }
            "offline" => drop(self.done(&format!("zpool online tank HERE/{disk}"))),
            _ => {
                let new = self.another();
                self.done(&format!("zpool replace -f tank HERE/{disk} HERE/{new}"));
                self.disks[place] = new;
            }
        }
        self.done("timeout 120 zpool wait -t resilver,replace tank");
        let status = self.done("zpool status tank");
        assert!(
            status.contains("errors: No known data errors"),
            "{death}: {status}"
        );
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.run("touch HERE/over; zpool export -f tank; kill -TERM $(cat HERE/state/lock); while kill -0 $(cat HERE/state/lock) 2>/dev/null; do sleep 0.05; done");
        self.run("umount -l HERE/mnt 2>/dev/null");
    }
}

fn disks_die_under_programs(layout: &str, count: usize, seconds: u64) {
    let Some(mut stage) = Stage::new(layout, count) else {
        return;
    };
    let begun = Instant::now();
    let root = stage.path("");
    std::thread::scope(|scope| {
        let programs: Vec<_> = (PROGRAMS.into_iter())
            .filter(|(name, _)| stage.run(&format!("which {name}")).status.success())
            .map(|(name, script)| {
                let script = script.replace("HERE/", &root.to_string_lossy());
                let run = move || {
                    let mut command = std::process::Command::new("bash");
                    (name, command.args(["-c", &script]).output().unwrap())
                };
                scope.spawn(run)
            })
            .collect();
        let mut round = 0;
        while begun.elapsed().as_secs() < seconds {
            let place = round * 7 % count;
            stage.kill_and_mend(place, DEATHS[round % DEATHS.len()]);
            round += 1;
        }
        stage.done("touch HERE/over");
        for program in programs {
            let (name, output) = program.join().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{layout}: {name}: {text}{error}");
            println!("{layout}: {name} met no error in {round} deaths");
        }
    });
    stage.run("zpool scrub tank");
    stage.done("zpool wait -t scrub tank; zpool export tank");
    let verdict = stage.done("millpond -d HERE/d verify tank");
    assert!(verdict.contains("verdict: sound"), "{verdict}");
    let verdict = stage.done("millpond -d HERE/d check tank");
    assert!(verdict.contains("verdict: sound"), "{verdict}");
}

#[test]
#[ignore = "takes a minute"]
fn disks_of_a_mirror_die_under_programs() {
    disks_die_under_programs("mirror", 2, 60);
}

#[test]
#[ignore = "takes a minute"]
fn disks_of_a_raidz_die_under_programs() {
    disks_die_under_programs("raidz1", 4, 60);
}

#[test]
#[ignore = "takes a minute"]
fn disks_of_a_raidz2_die_under_programs() {
    disks_die_under_programs("raidz2", 5, 60);
}
