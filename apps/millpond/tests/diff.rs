//! `zfs diff` of mounted file systems, with the output that OpenZFS printed for the same changes.
//!
//! Needs root and /dev/fuse; skipped otherwise.

#[path = "support/shell.rs"]
mod shell;

use shell::Shell;

struct Stage(Shell);

impl Drop for Stage {
    fn drop(&mut self) {
        self.0
            .run("zpool export -af; kill -TERM $(cat HERE/state/lock)");
    }
}

impl Stage {
    /// Returns `None`, with a message, if nothing can be mounted.
    fn new() -> Option<Self> {
        let shell = Shell::new()?;
        shell.image("disk", 128);
        shell.done("zpool create -m none tank HERE/disk");
        shell.done("zfs create -o mountpoint=HERE/df tank/df && zfs create tank/fs");
        shell.done(
            "cd HERE/df; mkdir dir; echo a >keep; echo b >mod; echo c >del; echo d >ren; ln -s x sym; \
             echo e > 'sp ace'; mkfifo fifo; zfs snapshot tank/df@1",
        );
        shell.done(
            "cd HERE/df; echo more >>mod; rm del; mv ren dir/renamed; echo new >new; ln keep link; mkdir nd; \
             echo x >>'sp ace'; echo x > caf$'\\xc3\\xa9'; zfs snapshot tank/df@2",
        );
        Some(Self(shell))
    }

    /// The output of a line, with `/` for the mount point.
    fn lines(&self, line: &str) -> String {
        let here = self.0.folder.path().to_string_lossy();
        self.0.done(line).replace(&format!("{here}/df/"), "/")
    }

    fn refused(&self, line: &str) -> (i32, String) {
        let output = self.0.run(line);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap_or(-1), text)
    }
}

const PLAIN: &str = "+\t/caf\\0303\\0251\n+\t/nd\n+\t/new\n-\t/del\nM\t/\nM\t/dir\nM\t/keep\t(+1)\nM\t/mod\n\
                     M\t/sp\\0040ace\nR\t/ren -> /dir/renamed\n";

#[test]
fn changes_are_printed_as_by_openzfs() {
    let Some(stage) = Stage::new() else { return };
    for targets in [
        "tank/df@1 tank/df@2",
        "tank/df@1 @2",
        "tank/df@1",
        "tank/df@1 tank/df",
    ] {
        let lines = stage.lines(&format!("zfs diff {targets} | LC_ALL=C sort"));
        assert_eq!(lines, PLAIN, "{targets}");
    }
    let lines = stage.lines("zfs diff -FH tank/df@1 tank/df@2 | LC_ALL=C sort");
    assert_eq!(
        lines,
        "+\t/\t/nd\n+\tF\t/caf\\0303\\0251\n+\tF\t/new\n-\tF\t/del\nM\t/\t/\nM\t/\t/dir\nM\tF\t/keep\t(+1)\nM\tF\t/mod\n\
         M\tF\t/sp\\0040ace\nR\tF\t/ren\t/dir/renamed\n"
    );
    let lines = stage.lines("zfs diff -h tank/df@1 tank/df@2 | LC_ALL=C sort");
    let raw = PLAIN
        .replace("\\0303\\0251", "\u{e9}")
        .replace("\\0040", " ");
    assert_eq!(lines, raw);
    let lines =
        stage.lines("zfs diff -t tank/df@1 tank/df@2 | grep -c '^[0-9]\\{10\\}\\.[0-9]\\{9\\}\t'");
    assert_eq!(lines, "10\n");
    let time = stage.lines("zfs diff -t tank/df@1 tank/df@2 | grep /new | cut -f1");
    assert_eq!(time, stage.lines("date +%s.%N -r HERE/df/new"));
}

#[test]
fn content_of_now_is_compared_and_no_snapshot_stays() {
    let Some(stage) = Stage::new() else { return };
    assert_eq!(stage.lines("zfs diff tank/df@2"), "");
    stage.0.done("echo x > HERE/df/late; chmod 600 HERE/df/mod");
    let lines = stage.lines("zfs diff tank/df@2 | LC_ALL=C sort");
    assert_eq!(lines, "+\t/late\nM\t/\nM\t/mod\n");
    assert_eq!(
        stage.0.done("zfs list -Hro name -t snapshot tank"),
        "tank/df@1\ntank/df@2\n"
    );
    // A clone, at its own mount point.
    stage
        .0
        .done("zfs clone -o mountpoint=HERE/cl tank/df@2 tank/cl; rm HERE/cl/new");
    let here = stage.0.folder.path().to_string_lossy().into_owned();
    let lines = stage.0.done("zfs diff tank/df@2 tank/cl | LC_ALL=C sort");
    assert_eq!(lines.replace(&here, ""), "-\t/cl/new\nM\t/cl/\n");
}

#[test]
fn names_are_refused_as_by_openzfs() {
    let Some(stage) = Stage::new() else { return };
    for (targets, text) in [
        (
            "tank/df@2 tank/df@1",
            "Unable to obtain diffs: \n   Not an earlier snapshot from the same fs\n",
        ),
        (
            "tank/df@1 tank/df@nosuch",
            "Unable to obtain diffs: No such file or directory\n",
        ),
        (
            "tank/df@nosuch",
            "Unable to obtain diffs: No such file or directory\n",
        ),
        (
            "tank/df",
            "Badly formed snapshot name tank/df: missing '@' delimiter in snapshot name\n",
        ),
        (
            "tank/df@1 tank/fs",
            "Not an earlier snapshot from the same fs: invalid name\n",
        ),
        (
            "tank/df@1 tank/df@1",
            "Unable to obtain diffs: \n   Not an earlier snapshot from the same fs\n",
        ),
    ] {
        assert_eq!(
            stage.refused(&format!("zfs diff {targets}")),
            (1, text.to_owned())
        );
    }
}

/// A file records one of its directories, which may be gone, and whose number another object may have.
#[test]
fn a_link_in_a_removed_directory_hides_nothing_else() {
    let Some(stage) = Stage::new() else { return };
    stage.0.done(
        "cd HERE/df; mkdir d; echo x >f; ln f d/m; zfs snapshot tank/df@3; rm -r d; echo n >other; \
         zfs snapshot tank/df@4; echo y >>f; touch other; rm new; zfs snapshot tank/df@5",
    );
    let lines = stage.lines("zfs diff tank/df@3 tank/df@4 | LC_ALL=C sort");
    assert_eq!(lines, "+\t/other\n-\t/d\nM\t/\nM\t/d/m\t(-1)\n");
    // In neither state its name can be found.
    let lines = stage.lines("zfs diff tank/df@4 tank/df@5 | LC_ALL=C sort");
    let (first, rest) = lines.split_at(lines.find("M\t/<object").unwrap());
    assert_eq!(first, "-\t/new\nM\t/\n");
    assert!(rest.ends_with("\nM\t/other\n"), "{rest}");
}
