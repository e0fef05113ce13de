//! Replays recorded `list`, `get` and `status` commands on a model.
//!
//! The model is built from other output of the same session in the same state.

mod support;

use millpond_cli::text::number;
use millpond_control::{
    DatasetInfo, PoolInfo, Property, SpareUse, SuspendReason, Value, VdevClass, VdevInfo, VdevKind,
    VdevState,
};
use support::recording::{self, Recorded};
use support::{FakeService, kind_of, model, run};

/// The result of a replay: the number of equal outputs, and the others.
#[derive(Default)]
struct Score {
    equal: usize,
    different: Vec<(String, String, String)>,
}

impl Score {
    fn add(&mut self, command: &str, theirs: String, ours: String) {
        if ours == theirs {
            self.equal += 1;
        } else {
            self.different.push((command.to_string(), theirs, ours));
        }
    }

    fn report(&self, what: &str) {
        let all = self.equal + self.different.len();
        println!("{what}: {} of {all} equal", self.equal);
        for (command, theirs, ours) in self.different.iter().take(12) {
            println!("--- {command}\n<<< theirs\n{theirs}\n>>> ours\n{ours}");
        }
        assert!(
            self.different.is_empty(),
            "{what}: {} of {all} differ",
            self.different.len()
        );
        // If the recordings are available, there must be at least one.
        assert!(all > 0 || recording::golden().is_none());
    }
}

const SESSIONS: [&str; 17] = [
    "busy.json",
    "create-errors.json",
    "devices.json",
    "devices2.json",
    "devices3.json",
    "health.json",
    "import.json",
    "maint.json",
    "misc.json",
    "progress.json",
    "props-get.json",
    "props-set.json",
    "replication.json",
    "sendrecv.json",
    "snapshots.json",
    "status2.json",
    "topologies.json",
];

fn all_sessions() -> impl Iterator<Item = (&'static str, Vec<Recorded>)> {
    SESSIONS
        .into_iter()
        .filter_map(|name| Some((name, recording::session(name)?)))
}

/// Whether this is a `status` without options that add text, so that the tree can be parsed.
fn is_plain_status(words: &[String]) -> bool {
    words.len() >= 2
        && words[0] == "zpool"
        && words[1] == "status"
        && words[2..].iter().all(|word| {
            !word.starts_with('-') || ["-v", "-x", "-P", "-L", "-g", "-xv"].contains(&word.as_str())
        })
}

#[test]
fn recorded_states_print_unchanged() {
    let mut score = Score::default();
    for (name, session) in all_sessions() {
        for entry in session {
            let Some(words) = recording::words(&entry.command) else {
                continue;
            };
            if !is_plain_status(&words) || !entry.printed.stdout.contains("config:") {
                continue;
            }
            // The progress of running operations depends on the clock; other tests cover these lines.
            let is_timed = |line: &&str| line.contains("Evacuation of ") || line.contains(" to go");
            if entry
                .printed
                .stdout
                .lines()
                .any(|line| is_timed(&line) || line.ends_with("/s") || line.contains(" issued at "))
            {
                continue;
            }
            let control = FakeService {
                pools: model::pools_from_status(&entry.printed.stdout),
                ..Default::default()
            };
            let ours = run(&control, &words);
            score.add(
                &format!("{name}: {}", entry.command),
                entry.printed.stdout,
                ours.stdout,
            );
        }
    }
    score.report("zpool status");
}

#[test]
fn recorded_datasets_are_listed_again_word_for_word() {
    let Some(session) = recording::session("props-get.json") else {
        return;
    };
    let fresh: Vec<Recorded> = session
        .into_iter()
        .filter(|entry| !entry.note.starts_with("setup"))
        .take_while(|entry| !entry.command.starts_with("zfs set"))
        .filter(|entry| entry.command.starts_with("zfs "))
        .collect();
    let mut control = FakeService::default();
    for entry in &fresh {
        learn_datasets(&mut control, entry);
    }
    let root = control
        .datasets
        .iter()
        .find(|info| info.name == "tank")
        .expect("tank");
    assert!(root.properties.len() > 60, "{}", root.properties.len());
    let pool = PoolInfo {
        name: "tank".into(),
        is_loaded: true,
        ..Default::default()
    };
    control.pools.push(pool);
    let mut score = Score::default();
    for entry in &fresh {
        let Some(words) = recording::words(&entry.command) else {
            continue;
        };
        if !["list", "get"].contains(&words[1].as_str()) || UNKNOWABLE.contains(&&*entry.command) {
            continue;
        }
        let ours = run(&control, &words);
        let shape = |p: &support::Printed| format!("{}\n{}\n{}", p.status, p.stderr, p.stdout);
        score.add(&entry.command, shape(&entry.printed), shape(&ours));
    }
    score.report("zfs list and get");
}

/// Commands for which the session lacks information.
///
/// These are the exact creation time of some datasets, and the space used one minute later.
const UNKNOWABLE: [&str; 2] = [
    "zfs list -s creation -t all -o name",
    "zfs list -j --json-int",
];

/// Adds the output of `zfs get` or `zfs list` to the model. Exact values replace rounded ones.
fn learn_datasets(control: &mut FakeService, entry: &Recorded) {
    let Some(words) = recording::words(&entry.command) else {
        return;
    };
    let flags: String = words
        .iter()
        .filter(|word| word.starts_with('-'))
        .cloned()
        .collect();
    let is_exact = flags.contains('p');
    if words[1] == "get" && !flags.contains('o') && !flags.contains('j') {
        let mut columns: Vec<usize> = Vec::new();
        for line in entry.printed.stdout.lines() {
            let fields: Vec<String> = if flags.contains('H') {
                line.split('\t').map(str::to_string).collect()
            } else if line.starts_with("NAME ") {
                columns = ["NAME", "PROPERTY", "VALUE", "SOURCE"]
                    .map(|title| line.find(title).expect("a title"))
                    .into();
                continue;
            } else {
                cut(line, &columns)
            };
            let [name, property, value, source] = fields.as_slice() else {
                panic!("{line:?}")
            };
            learn(control, name, property, value, source, is_exact);
        }
    }
    if words[1] == "list" && is_exact && flags.contains('H') && words.iter().any(|w| w == "-o") {
        for line in entry.printed.stdout.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            for (property, value) in ["used", "available", "referenced", "mountpoint"]
                .iter()
                .zip(&fields[1..])
            {
                learn(control, fields[0], property, value, "-", true);
            }
        }
    }
    if words[1] == "list" && flags.is_empty() && entry.printed.status == 0 {
        for line in entry.printed.stdout.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            for (property, value) in ["used", "available", "referenced", "mountpoint"]
                .iter()
                .zip(&fields[1..])
            {
                learn(control, fields[0], property, value, "-", false);
            }
        }
    }
    if words[1] == "list"
        && !flags.contains('H')
        && !flags.contains('j')
        && words.iter().any(|w| w.contains("usedsnap") || w == "space")
    {
        for line in entry.printed.stdout.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let names = [
                "available",
                "used",
                "usedbysnapshots",
                "usedbydataset",
                "usedbyrefreservation",
                "usedbychildren",
            ];
            for (property, value) in names.iter().zip(&fields[1..]) {
                learn(control, fields[0], property, value, "-", false);
            }
        }
    }
    if words[1] == "list" && entry.command.contains(" -o name,createtxg") {
        for line in entry.printed.stdout.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            learn(control, fields[0], "createtxg", fields[1], "-", true);
        }
    }
}

fn cut(line: &str, columns: &[usize]) -> Vec<String> {
    let mut fields = Vec::new();
    for (at, start) in columns.iter().enumerate() {
        let end = columns
            .get(at + 1)
            .copied()
            .unwrap_or(line.len())
            .min(line.len());
        fields.push(
            line.get(*start..end)
                .unwrap_or_default()
                .trim_end()
                .to_string(),
        );
    }
    fields
}

fn learn(
    control: &mut FakeService,
    name: &str,
    property: &str,
    text: &str,
    source: &str,
    is_exact: bool,
) {
    let kind = match name {
        name if name.contains('@') => "snapshot",
        name if name.contains('#') => "bookmark",
        name if name.ends_with("vol") => "volume",
        _ => "filesystem",
    };
    let at = match control.datasets.iter().position(|info| info.name == name) {
        Some(at) => at,
        None => {
            control.datasets.push(DatasetInfo {
                name: name.into(),
                kind: kind_of(kind),
                created_txg: 0,
                properties: Vec::new(),
            });
            control.datasets.len() - 1
        }
    };
    let info = &mut control.datasets[at];
    let mut shown: Property = model::dataset_property(property, text, source);
    if property == "createtxg" {
        info.created_txg = shown.value.as_ref().and_then(Value::number).expect("a txg");
    }
    // Name and kind are known already.
    if ["name", "type"].contains(&property) || (text == "-" && source == "-") {
        return;
    }
    match info
        .properties
        .iter_mut()
        .find(|known| known.name == property)
    {
        None => info.properties.push(shown),
        Some(known) => {
            if !is_exact {
                shown.value = known.value.clone();
            }
            if source == "-" {
                shown.source = known.source.clone();
            }
            *known = shown;
        }
    }
}

#[test]
fn recorded_pools_are_listed_again_word_for_word() {
    let mut score = Score::default();
    for (name, session) in all_sessions() {
        for entry in session {
            let Some(words) = recording::words(&entry.command) else {
                continue;
            };
            let is_list = words.len() >= 2 && words[0] == "zpool" && words[1] == "list";
            let is_legible = !words
                .iter()
                .any(|w| w.contains('j') || w.starts_with("-o") || w.starts_with("-T"));
            let text = &entry.printed.stdout;
            if !is_list || !is_legible || !text.starts_with("NAME") {
                continue;
            }
            let control = FakeService {
                pools: pools_from_list(text),
                ..Default::default()
            };
            let ours = run(&control, &words);
            score.add(
                &format!("{name}: {}", entry.command),
                text.clone(),
                ours.stdout,
            );
        }
    }
    score.report("zpool list");
}

fn pools_from_list(text: &str) -> Vec<PoolInfo> {
    let mut pools: Vec<PoolInfo> = Vec::new();
    let mut class = VdevClass::Normal;
    let is_verbose = text.lines().any(|line| line.starts_with("  "));
    for line in text.lines().skip(1) {
        let depth = line.len() - line.trim_start().len();
        let fields: Vec<&str> = line.split_whitespace().collect();
        if depth == 0 && fields.len() == 11 {
            let mut pool = PoolInfo {
                is_loaded: true,
                name: fields[0].into(),
                ..Default::default()
            };
            let names = [
                "size",
                "allocated",
                "free",
                "checkpoint",
                "expandsize",
                "fragmentation",
                "capacity",
                "dedupratio",
            ];
            for (name, text) in names.iter().zip(&fields[1..]) {
                model::pool_property(&mut pool, name, text, "-");
            }
            model::pool_property(&mut pool, "altroot", fields[10], "default");
            pool.root.kind = VdevKind::Root;
            pool.root.state = state(fields[9]);
            if fields[9] == "SUSPENDED" {
                pool.suspended = Some(SuspendReason::IoWait);
            }
            pools.push(pool);
            class = VdevClass::Normal;
            continue;
        }
        let pool = pools.last_mut().expect("a pool above");
        match fields[0] {
            "dedup" => class = VdevClass::Dedup,
            "special" => class = VdevClass::Special,
            "logs" => class = VdevClass::Log,
            "cache" => class = VdevClass::Cache,
            "spare" => class = VdevClass::Spare,
            _ => {}
        }
        if depth == 0 {
            continue;
        }
        let mut vdev = VdevInfo {
            class,
            ..model::vdev_named(fields[0])
        };
        vdev.state = state(fields[9]);
        vdev.spare_use = match fields[9] {
            "AVAIL" => Some(SpareUse::Available),
            "INUSE" => Some(SpareUse::InThisPool),
            _ => None,
        };
        if vdev.kind.is_leaf() {
            vdev.physical_bytes = model::number(fields[1]).unwrap_or(0);
        }
        let is_exact = fields[7].parse::<u64>().is_ok();
        if is_exact {
            let number = |at: usize| model::number(fields[at]).expect("a size");
            vdev.allocated_bytes = number(2);
            vdev.total_bytes = number(2) + number(3);
        } else if fields[7].ends_with('%') {
            (vdev.allocated_bytes, vdev.total_bytes) = space(&fields);
        }
        vdev.fragmentation_percent = model::number(fields[6].trim_end_matches('%'));
        vdev.checkpoint_bytes = model::number(fields[4]).unwrap_or(0);
        vdev.expandable_bytes = model::number(fields[5]).unwrap_or(0);
        match class {
            VdevClass::Cache if depth == 2 => pool.caches.push(vdev),
            VdevClass::Spare if depth == 2 => pool.spares.push(vdev),
            _ => {
                let mut parent = &mut pool.root;
                for _ in 1..depth / 2 {
                    parent = parent.children.last_mut().expect("a parent above");
                }
                parent.children.push(vdev);
            }
        }
    }
    if let Some(pool) = pools.first_mut().filter(|_| is_verbose) {
        hidden_vdev(pool, text);
    }
    pools
}

/// A removed vdev of a special class is not shown, but its name counts for the column width.
fn hidden_vdev(pool: &mut PoolInfo, text: &str) {
    let header = text.lines().next().expect("a header");
    let width = header.find("SIZE").expect("a title").saturating_sub(3);
    let name_end = |line: &str| {
        let start = line.len() - line.trim_start().len();
        line[start..].find(' ').map_or(line.len(), |at| start + at)
    };
    let longest = text
        .lines()
        .skip(1)
        .map(name_end)
        .max()
        .expect("a line")
        .max(9);
    if width == longest + 2 && width == "  indirect-1".len() {
        let (class, kind) = (VdevClass::Special, VdevKind::Indirect);
        pool.root.children.push(VdevInfo {
            class,
            kind,
            id: 1,
            ..Default::default()
        });
    }
}

/// Allocated and total bytes that print as the given ALLOC, FREE and CAP.
///
/// Metaslab sizes are multiples of half a mebibyte.
fn space(fields: &[&str]) -> (u64, u64) {
    let number = |at: usize| model::number(fields[at]).expect("a size");
    let (allocated, free) = (number(2), number(3));
    let around = |middle: u64, step: u64| {
        (0..400).map(move |n: u64| middle.saturating_sub(200 * step) + n * step)
    };
    let half_megabyte = 1 << 19;
    let whole = (allocated + free).next_multiple_of(half_megabyte);
    for total in around(whole, half_megabyte) {
        for exact in around(allocated, (allocated / 20_000).max(1)) {
            let is_alike = number::count(exact) == fields[2]
                && number::count(total.saturating_sub(exact)) == fields[3]
                && number::percent_of(exact, total) == fields[7];
            if is_alike {
                return (exact, total);
            }
        }
    }
    (allocated, allocated + free)
}

fn state(word: &str) -> VdevState {
    match word {
        "DEGRADED" => VdevState::Degraded,
        "OFFLINE" => VdevState::Offline,
        "REMOVED" => VdevState::Removed,
        "UNAVAIL" => VdevState::CannotOpen,
        "FAULTED" => VdevState::Faulted,
        _ => VdevState::Healthy,
    }
}
