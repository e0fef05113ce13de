//! The table of all `zfs` sub-commands with their options and usage.

use super::{
    allow, create, destroy, diff, get, heads, keys, list, mount, program, project, receive, redact,
    rewrite, send, set, share, snapshots, space, upgrade, wait,
};
use crate::command::{Command, Parsed, built, letters, long, not_built, with_longs};
use crate::getopt::Long;
use crate::session::Failure;
use millpond_control::properties::Edit;
use millpond_control::properties::{PropertyName, by_name};

const SPACE_LETTERS: &str = "niHpo:rs:S:t:";

/// All sub-commands.
pub const COMMANDS: &[Command] = &[
    built(
        "version",
        with_longs("j", &[long("json", "j")]),
        &[],
        |session, parsed| Ok(crate::version::run(session, "zfs", parsed.has("j"))?),
    ),
    built(
        "create",
        letters("V:b:nPpsvuo:"),
        &["missing filesystem argument"],
        create::create,
    ),
    built(
        "destroy",
        letters("dfnpRrvs"),
        &["missing dataset argument"],
        destroy::run,
    ),
    Command {
        aliases: &["snap"],
        ..built(
            "snapshot",
            letters("ro:"),
            &["missing snapshot argument"],
            snapshots::snapshot,
        )
    },
    built(
        "rollback",
        letters("rRf"),
        &["missing dataset argument"],
        snapshots::rollback,
    ),
    built(
        "clone",
        letters("po:u"),
        &[
            "missing source dataset argument",
            "missing target dataset argument",
        ],
        create::clone,
    ),
    built(
        "promote",
        letters(""),
        &["missing clone filesystem argument"],
        heads::promote,
    ),
    built(
        "rename",
        letters("fpru"),
        &[
            "missing source dataset argument",
            "missing target dataset argument",
        ],
        heads::rename,
    ),
    built(
        "bookmark",
        letters(""),
        &["missing source argument", "missing bookmark argument"],
        snapshots::bookmark,
    ),
    built(
        "program",
        with_longs("jnt:m:", &[long("json", "j")]),
        &["invalid number of arguments", "invalid number of arguments"],
        program::run,
    ),
    built("list", with_longs("HprjS:s:o:t:d:", JSON), &[], list::run),
    built("set", letters("u"), &[], |session, parsed| {
        check_set(parsed)?;
        set::set(session, parsed)
    }),
    built("get", with_longs("Hprjd:o:s:t:", JSON), &[], get::run),
    built("inherit", letters("rS"), &[], |session, parsed| {
        check_inherit(parsed)?;
        set::inherit(session, parsed)
    }),
    built("upgrade", letters("rvaV:"), &[], upgrade::run),
    built("userspace", letters(SPACE_LETTERS), &[""], space::users),
    built("groupspace", letters(SPACE_LETTERS), &[""], space::groups),
    built(
        "projectspace",
        letters(SPACE_LETTERS),
        &[""],
        space::projects,
    ),
    built("project", letters("0Ccdkp:rs"), &[""], project::run),
    built(
        "mount",
        with_longs("ajRflvOo:", &[long("json", "j")]),
        &[],
        mount::mount,
    ),
    Command {
        aliases: &["umount"],
        ..built("unmount", letters("afu"), &[], mount::unmount)
    },
    built("share", letters("al"), &[], share::share),
    built("unshare", letters("a"), &[], share::unshare),
    built(
        "send",
        with_longs(
            "DLPRSVbcehi:I:nd:pst:vwX:",
            &[
                long("dedup", "D"),
                long("proctitle", "V"),
                long("replicate", "R"),
                long("skip-missing", "s"),
                long("props", "p"),
                long("parsable", "P"),
                long("verbose", "v"),
                long("large-block", "L"),
                long("embed", "e"),
                long("compressed", "c"),
                long("raw", "w"),
                long("backup", "b"),
                long("holds", "h"),
                long("saved", "S"),
                long("dryrun", "n"),
                Long {
                    name: "redact",
                    means: "d",
                    has_value: true,
                },
                Long {
                    name: "exclude",
                    means: "X",
                    has_value: true,
                },
            ],
        ),
        &[],
        send::run,
    ),
    Command {
        aliases: &["recv"],
        ..built(
            "receive",
            letters("AdehMnsFuvco:x:"),
            &["missing snapshot argument"],
            receive::run,
        )
    },
    built("allow", letters("lduegcsh"), &[], allow::allow),
    built("unallow", letters("lduegcsrh"), &[], allow::unallow),
    built("hold", letters("r"), &["", ""], snapshots::hold),
    built("holds", letters("rHp"), &[""], snapshots::holds),
    built("release", letters("r"), &["", ""], snapshots::release),
    built(
        "diff",
        letters("FHth"),
        &["must provide at least one snapshot name"],
        diff::run,
    ),
    built("load-key", letters("anrL:"), &[], keys::load),
    built("unload-key", letters("ar"), &[], keys::unload),
    built(
        "change-key",
        letters("ilo:"),
        &["Missing dataset argument"],
        keys::change,
    ),
    built("redact", None, &["too few arguments"; 3], redact::run),
    built("rewrite", letters("Prvxl:o:"), &[""], rewrite::run),
    built(
        "wait",
        letters("t:"),
        &["missing 'filesystem' argument"],
        wait::run,
    ),
    not_built("zone", None, &["missing argument(s)"; 2]),
    not_built("unzone", None, &["missing argument(s)"; 2]),
];

const JSON: &[crate::getopt::Long] = &[long("json", "j"), long("json-int", "json-int")];

fn check_set(parsed: &Parsed) -> Result<(), Failure> {
    match parsed.operands.as_slice() {
        [] => Err(Failure::Usage("missing arguments".into())),
        operands if operands.iter().all(|word| word.contains('=')) => {
            Err(Failure::Usage("missing dataset name(s)".into()))
        }
        // Of several words without values each counts as a dataset.
        [_] => Err(Failure::Usage("missing property=value argument(s)".into())),
        _ => Ok(()),
    }
}

fn check_inherit(parsed: &Parsed) -> Result<(), Failure> {
    let Some(word) = parsed.operands.first() else {
        return Err(Failure::Usage("missing property argument".into()));
    };
    if parsed.operands.len() < 2 {
        return Err(Failure::Usage("missing dataset argument".into()));
    }
    match by_name(word) {
        Some(PropertyName::User(_)) => Ok(()),
        Some(PropertyName::Native(property)) => match property.shape.edit {
            Edit::ReadOnly | Edit::Once | Edit::OnceByKey => Err(Failure::Refused(format!(
                "{} property is read-only",
                property.shape.name
            ))),
            Edit::Settable | Edit::Inheritable => Ok(()),
        },
        _ => Err(Failure::Usage(format!("invalid property '{word}'"))),
    }
}
