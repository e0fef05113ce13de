//! The table of all `zpool` sub-commands with their options and usage.

use super::{
    attach, checkpoint, create, dedup, device_state, events, get, history, import, iostat,
    leaf_activity, list, manage, remove, scrub, split, status, upgrade, wait,
};
use crate::command::{Command, Parsed, built, letters, long, with_longs};
use crate::getopt::Long;
use crate::session::Failure;

/// All sub-commands.
pub const COMMANDS: &[Command] = &[
    built(
        "version",
        with_longs("j", &[long("json", "j")]),
        &[],
        |session, parsed| Ok(crate::version::run(session, "zpool", parsed.has("j"))?),
    ),
    built(
        "create",
        letters("fndR:m:o:O:t:"),
        &["missing pool name argument", "missing vdev specification"],
        create::create,
    ),
    built(
        "destroy",
        letters("f"),
        &["missing pool argument"],
        manage::destroy,
    ),
    built(
        "add",
        with_longs(
            "fgLnPo:",
            &[
                long("allow-in-use", "allow-in-use"),
                long("allow-replication-mismatch", "allow-replication-mismatch"),
                long("allow-ashift-mismatch", "allow-ashift-mismatch"),
            ],
        ),
        &["missing pool name argument", "missing vdev specification"],
        create::add,
    ),
    built(
        "remove",
        letters("npsw"),
        &["missing pool name argument"],
        remove::run,
    ),
    built(
        "labelclear",
        letters("f"),
        &["missing vdev name"],
        manage::labelclear,
    ),
    built(
        "checkpoint",
        with_longs("dw", &[long("discard", "d"), long("wait", "w")]),
        &["missing pool argument"],
        checkpoint::run,
    ),
    built(
        "prefetch",
        letters("t:"),
        &["missing pool name argument"],
        dedup::prefetch,
    ),
    built("list", with_longs("gHjLo:pPT:v", JSON), &[], list::run),
    built("iostat", letters("c::gLPT:vyhplqrwnH"), &[], iostat::run),
    built(
        "status",
        with_longs("c::dDegiLpPstT:vxj", STATUS),
        &[],
        status::run,
    ),
    built(
        "online",
        with_longs("e", &[long("power", "power")]),
        &["missing pool name", "missing device name"],
        device_state::online,
    ),
    built(
        "offline",
        with_longs("ft", &[long("power", "power")]),
        &["missing pool name", "missing device name"],
        device_state::offline,
    ),
    built(
        "clear",
        with_longs("nFX", &[long("power", "power")]),
        &["missing pool name"],
        device_state::clear,
    ),
    built("reopen", letters("n"), &[], device_state::reopen),
    built(
        "attach",
        letters("fo:sw"),
        &[
            "missing pool name argument",
            "missing <device> specification",
            "missing <new_device> specification",
        ],
        attach::attach,
    ),
    built(
        "detach",
        letters(""),
        &[
            "missing pool name argument",
            "missing <device> specification",
        ],
        attach::detach,
    ),
    built(
        "replace",
        letters("fo:sw"),
        &[
            "missing pool name argument",
            "missing <device> specification",
        ],
        attach::replace,
    ),
    built(
        "split",
        letters("gLnPlR:o:"),
        &["Missing pool name", "Missing new pool name"],
        split::split,
    ),
    built(
        "initialize",
        with_longs("acsuw", ACTIVITY),
        &[],
        leaf_activity::initialize,
    ),
    built(
        "resilver",
        letters(""),
        &["missing pool name argument"],
        scrub::resilver,
    ),
    built(
        "scrub",
        letters("spweC"),
        &["missing pool name argument"],
        scrub::scrub,
    ),
    built(
        "trim",
        with_longs("acdr:sw", ACTIVITY),
        &[],
        leaf_activity::trim,
    ),
    built(
        "import",
        with_longs("aCc:d:DEfFlmnNo:R:stT:VX", IMPORT),
        &[],
        import::run,
    ),
    built("export", letters("aFf"), &[], manage::export),
    built("upgrade", letters("avV:"), &[], upgrade::run),
    built(
        "reguid",
        letters("g:"),
        &["missing pool name"],
        manage::reguid,
    ),
    built("history", letters("il"), &[], history::run),
    built("events", letters("vHfc"), &[], events::run),
    built("get", with_longs("Hjo:p", JSON), &[], get::run),
    built("set", letters(""), &[], |session, parsed| {
        check_set(parsed)?;
        manage::set(session, parsed)
    }),
    built("sync", letters("f"), &[], manage::sync),
    built(
        "wait",
        letters("HpT:t:"),
        &["missing 'pool' argument"],
        wait::run,
    ),
    built("ddtprune", letters("d:p:"), &[], dedup::prune),
];

const JSON: &[Long] = &[
    long("json", "j"),
    long("json-int", "json-int"),
    long("json-pool-key-guid", "json-pool-key-guid"),
];

const STATUS: &[Long] = &[
    long("json", "j"),
    long("json-int", "json-int"),
    long("json-flat-vdevs", "json-flat-vdevs"),
    long("json-pool-key-guid", "json-pool-key-guid"),
    long("power", "power"),
];

const IMPORT: &[Long] = &[long("rewind-to-checkpoint", "rewind-to-checkpoint")];

const ACTIVITY: &[Long] = &[
    long("all", "a"),
    long("cancel", "c"),
    long("suspend", "s"),
    long("uninit", "u"),
    long("secure", "d"),
    long("wait", "w"),
    Long {
        name: "rate",
        means: "r",
        has_value: true,
    },
];

fn check_set(parsed: &Parsed) -> Result<(), Failure> {
    let message = match parsed.operands.as_slice() {
        [] => "missing property=value argument",
        [_] => "missing pool name",
        [assignment, ..] if !assignment.contains('=') => "missing value in property=value argument",
        [_, _, _, _, ..] => "too many pool names",
        _ => return Ok(()),
    };
    Err(Failure::Usage(message.into()))
}
