//! The written pages and completions, as the programs see them that read them.

use std::path::Path;
use std::process::Command;

fn written() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_millpond-pages"))
        .arg(folder.path())
        .status();
    assert!(done.unwrap().success());
    folder
}

/// Whether a program is here. Says so if it is not.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("not tried: {program} is not here");
    }
    found
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn each_verb_has_a_page_that_can_be_formatted() {
    let folder = written();
    let verbs = names(&folder.path().join("man1"));
    for verb in [
        "millpond.1",
        "millpond-ls.1",
        "millpond-stream-cat.1",
        "millpond-undelete.1",
    ] {
        assert!(verbs.iter().any(|name| name == verb), "{verb}: {verbs:?}");
    }
    assert_eq!(
        names(&folder.path().join("man8")),
        ["millpond-zfs.8", "millpond-zpool.8", "millpondd.8"]
    );
    if !has("groff") {
        return;
    }
    for section in ["man1", "man8"] {
        for name in names(&folder.path().join(section)) {
            let page = folder.path().join(section).join(&name);
            let done = Command::new("groff")
                .args(["-mandoc", "-z", "-ww"])
                .arg(&page)
                .output();
            let done = done.unwrap();
            let complaints = String::from_utf8_lossy(&done.stderr);
            assert!(
                done.status.success() && complaints.is_empty(),
                "{name}: {complaints}"
            );
        }
    }
}

#[test]
fn the_shells_can_read_their_completions() {
    let folder = written();
    for (shell, below) in [("bash", "bash"), ("zsh", "zsh"), ("fish", "fish")] {
        if !has(shell) {
            continue;
        }
        for name in names(&folder.path().join(below)) {
            let script = folder.path().join(below).join(&name);
            let done = Command::new(shell).arg("-n").arg(script).output().unwrap();
            assert!(
                done.status.success() && done.stderr.is_empty(),
                "{name}: {done:?}"
            );
        }
    }
}

/// What bash offers at the end of a line, with programs that answer as `zpool` and `zfs` would.
fn offered(folder: &Path, line: &str) -> Vec<String> {
    let program = line.split(' ').next().unwrap();
    let script = format!(
        r#"
        zpool() {{ case $* in
            "list -H -o name") printf '%s\n' tank tone ;;
            "list -H -v tank") printf 'tank\t1G\n\tmirror-0\t1G\n\tsda\t1G\n\tsdb\t1G\n' ;;
            import) printf '   pool: %s\n     id: 1\n' away old ;;
        esac; }}
        millpond() {{
            [[ $1 == -d ]] && shift 2 && [[ $* == "zpool list -H -o name" ]] && echo there && return
            "$@"
        }}
        zfs() {{ case $* in
            "list -H -o name -t filesystem,volume") printf '%s\n' tank tank/home tank/vol ;;
            "list -H -o name -t snapshot -d 1 tank/home") printf '%s\n' tank/home@a tank/home@b ;;
        esac; }}
        compopt() {{ :; }}
        source {}
        COMP_WORDBREAKS=$' \t\n"\'@><=;|&(:'
        COMP_LINE={line:?} COMP_POINT=${{#COMP_LINE}}
        read -ra COMP_WORDS <<<"$COMP_LINE"
        [[ $COMP_LINE == *' ' ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _millpond_{program} {program} "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD - 1]}}"
        printf '%s\n' "${{COMPREPLY[@]}}"
        "#,
        folder.join("bash").join(program).display()
    );
    let done = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(
        done.stderr.is_empty(),
        "{line}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    let text = String::from_utf8(done.stdout).unwrap();
    text.lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn bash_offers_commands_options_and_names() {
    if !has("bash") {
        return;
    }
    let folder = written();
    let offers = |line: &str| offered(folder.path(), line);
    assert_eq!(offers("zfs sn"), ["snapshot", "snap"]);
    assert_eq!(offers("zpool lab"), ["labelclear"]);
    assert!(offers("zfs list --js").contains(&"--json".to_owned()));
    assert_eq!(offers("zpool status t"), ["tank", "tone"]);
    assert_eq!(offers("zpool import "), ["away", "old"]);
    assert_eq!(offers("zfs list tank/"), ["tank/home", "tank/vol"]);
    // A snapshot is found in two steps; bash replaces only what follows the @.
    assert_eq!(offers("zfs rollback tank/h"), ["tank/home@"]);
    assert_eq!(offers("zfs rollback tank/home@"), ["a", "b"]);
    assert_eq!(offers("zfs destroy -r tank/home@b"), ["b"]);
    assert_eq!(offers("zfs set recordsi"), ["recordsize="]);
    assert_eq!(offers("zfs get -H recordsi"), ["recordsize"]);
    assert_eq!(offers("zfs get recordsize tank/v"), ["tank/vol"]);
    assert_eq!(offers("zpool set autotr"), ["autotrim="]);
    assert_eq!(offers("zfs list -o mountp"), ["mountpoint"]);
    // A pool is followed by its devices, a new one by words for vdevs.
    assert_eq!(offers("zpool offline t"), ["tank", "tone"]);
    assert_eq!(offers("zpool offline tank "), ["mirror-0", "sda", "sdb"]);
    assert_eq!(offers("zpool replace -f tank sd"), ["sda", "sdb"]);
    assert_eq!(offers("zpool create x mir"), ["mirror"]);
    assert_eq!(offers("zpool create -o ashift=12 mir"), [] as [&str; 0]);
    assert_eq!(
        offers("zpool add tank dr"),
        ["draid", "draid1", "draid2", "draid3"]
    );
}

#[test]
fn bash_offers_the_operands_of_millpond() {
    if !has("bash") {
        return;
    }
    let folder = written();
    let offers = |line: &str| offered(folder.path(), line);
    assert_eq!(offers("millpond zpool li"), ["list"]);
    assert_eq!(offers("millpond -d /images zfs sn"), ["snapshot", "snap"]);
    assert_eq!(offers("millpond zpool offline tank sda"), ["sda"]);
    assert_eq!(offers("millpond ls "), ["tank", "tank/home", "tank/vol"]);
    assert_eq!(offers("millpond cat tank/home@"), ["a", "b"]);
    assert_eq!(offers("millpond verify t"), ["tank", "tone"]);
    assert_eq!(offers("millpond -d /images verify "), ["there"]);
    assert!(offers("millpond ls --js").contains(&"--json".to_owned()));
    assert!(offers("millpond ver").contains(&"verify".to_owned()));
    assert!(offers("millpond da").contains(&"daemon".to_owned()));
}

/// Lines of `millpond`, and what the shells offer at their ends with the pools and datasets of [`ANSWERS`].
const OFFERS: [(&str, &[&str]); 7] = [
    ("millpond verify ", &["tank", "tone"]),
    ("millpond -d /x check ", &["there"]),
    ("millpond ls tank/", &["tank/home"]),
    ("millpond ls tank/home@", &["tank/home@a"]),
    ("millpond zfs snaps", &["snapshot"]),
    ("millpond zfs snapshot ", &["tank", "tank/home"]),
    ("millpond -d /x zpool sta", &["status"]),
];

/// A program for all shells that answers as `millpond` would.
const ANSWERS: &str = "#!/bin/sh
case $* in
'-d /x zpool list -H -o name') echo there ;;
'zpool list -H -o name') printf '%s\\n' tank tone ;;
'zfs list -H -o name -t filesystem,volume') printf '%s\\n' tank tank/home ;;
'zfs list -H -o name -t snapshot -d 1 tank/home') echo tank/home@a ;;
esac
";

/// Runs a script with [`ANSWERS`] as `millpond`. Returns its lines of output.
fn lines_of(shell: &str, options: &[&str], folder: &Path, script: &str) -> Vec<String> {
    use std::os::unix::fs::PermissionsExt;
    let program = folder.join("millpond");
    std::fs::write(&program, ANSWERS).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let done = Command::new(shell)
        .args(options)
        .args(["-c", script])
        .env("PATH", format!("{}:{path}", folder.display()))
        .env("HOME", folder)
        .output()
        .unwrap();
    let complaints = String::from_utf8_lossy(&done.stderr);
    assert!(complaints.is_empty(), "{script}: {complaints}");
    let text = String::from_utf8(done.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn zsh_offers_pools_and_datasets_to_millpond() {
    if !has("zsh") {
        return;
    }
    let folder = written();
    for (line, wanted) in OFFERS {
        let script = format!(
            r#"
            compdef() {{ :; }}
            compadd() {{
                while [[ $1 != -- ]]; do shift; done
                shift
                for candidate in "$@"; do
                    [[ $candidate == $PREFIX* ]] && print -r -- $candidate
                done
            }}
            _files() {{ :; }}
            source {}
            line={line:?}
            words=(${{(s: :)line}})
            [[ $line == *' ' ]] && words+=('')
            CURRENT=$#words PREFIX=$words[-1]
            _millpond
            "#,
            folder.path().join("zsh/_millpond").display()
        );
        let offered = lines_of("zsh", &["-f"], folder.path(), &script);
        assert_eq!(offered, wanted, "{line}");
    }
}

#[test]
fn fish_offers_pools_and_datasets_to_millpond() {
    if !has("fish") {
        return;
    }
    let folder = written();
    for (line, wanted) in OFFERS {
        let script = folder.path().join("fish/millpond.fish");
        let script = format!("source {}; complete -C {line:?}", script.display());
        let offered = lines_of("fish", &["--no-config"], folder.path(), &script);
        assert_eq!(offered, wanted, "{line}");
    }
}
