//! `zpool iostat`: what devices were asked to do, a second.

use super::every::Rounds;
use super::groups::{self, TITLED};
use super::list::pools_named;
use super::vdev_name::Naming;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use crate::text::columns::{pad_left, pad_right};
use crate::text::number;
use millpond::control::{IoCounters, PoolInfo, VdevClass, VdevInfo};
use millpond_env::Env;
use std::collections::BTreeMap;

/// Prints figures of pools or vdevs, once or again and again.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let mut operands = parsed.operands.clone();
    let rounds = Rounds::read(parsed, &mut operands)?;
    let known = super::known(session)?;
    if known.is_empty() && operands.is_empty() {
        return Err(Failure::Refused("no pools available".into()));
    }
    for option in ["l", "q", "w", "r", "c"] {
        if parsed.has(option) {
            return Err(Failure::Refused(format!(
                "millpond: zpool iostat -{option} is not built yet: latencies and queues are not \
                 measured; without it operations and bytes are shown"
            )));
        }
    }
    let ask = Ask {
        is_script: parsed.has("H"),
        is_exact: parsed.has("p"),
        is_verbose: parsed.has("v"),
        naming: Naming::read(parsed, session.environment),
    };
    let chosen = choose(session, &operands, &known, ask.naming)?;
    let has_interval = parsed.operands.len() > operands.len();
    let skips_first = parsed.has("y") && has_interval;
    let clock = Env::real().clock;
    let mut before: Before = BTreeMap::new();
    let mut last_ns = clock.monotonic_ns();
    if skips_first {
        for pool in infos(session, &chosen)? {
            remember(&pool, &mut before);
        }
        (session.environment.pause)(std::time::Duration::from_secs_f64(
            operands_interval(&parsed.operands, operands.len()).unwrap_or(1.0),
        ));
    }
    rounds.run(session, |session, done| {
        let pools = infos(session, &chosen)?;
        let now_ns = clock.monotonic_ns();
        let seconds = now_ns.saturating_sub(last_ns) as f64 / 1e9;
        last_ns = now_ns;
        let since = (done > 0 || skips_first).then_some(seconds);
        let report = Report {
            ask: &ask,
            chosen: &chosen,
            pools: &pools,
            since: since.map(|seconds| (seconds, &before)),
            now_s: session.environment.now(),
        };
        let mut text = String::new();
        report.print(&mut text, done == 0);
        session.out.write_all(text.as_bytes())?;
        for pool in &pools {
            remember(pool, &mut before);
        }
        Ok(0)
    })
}

fn operands_interval(all: &[String], kept: usize) -> Option<f64> {
    all.get(kept)?.parse().ok()
}

struct Ask {
    is_script: bool,
    is_exact: bool,
    is_verbose: bool,
    naming: Naming,
}

/// What is shown: whole pools, or some vdevs.
struct Chosen {
    pools: Vec<String>,
    vdevs: Option<Vec<String>>,
}

/// Counters by pool's name and vdev's guid.
type Before = BTreeMap<(String, u64), IoCounters>;

fn has_vdev(pool: &PoolInfo, name: &str, naming: Naming) -> bool {
    let mut all = groups::walk(pool).into_iter();
    all.any(|(vdev, _)| is_called(vdev, name, naming))
}

fn is_called(vdev: &VdevInfo, name: &str, naming: Naming) -> bool {
    naming.of(vdev) == name || vdev.path.as_deref() == Some(name) || vdev.guid.to_string() == name
}

fn choose(
    session: &mut Session,
    operands: &[String],
    known: &[String],
    naming: Naming,
) -> Result<Chosen, Failure> {
    let is_pool = |name: &String| known.contains(name);
    let (first, rest) = match operands.split_first() {
        None => {
            return Ok(Chosen {
                pools: known.to_vec(),
                vdevs: None,
            });
        }
        Some(both) => both,
    };
    if operands.iter().all(is_pool) {
        return Ok(Chosen {
            pools: operands.to_vec(),
            vdevs: None,
        });
    }
    if is_pool(first) {
        let (pools, _) = pools_named(session, std::slice::from_ref(first))?;
        for word in rest {
            if !pools.iter().any(|pool| has_vdev(pool, word, naming)) {
                return Err(Failure::Usage(format!(
                    "Expected either a list of pools, or list of vdevs in \"{first}\", but got:\n\
                     \t{word} (unknown)\n"
                )));
            }
        }
        return Ok(Chosen {
            pools: vec![first.clone()],
            vdevs: Some(rest.to_vec()),
        });
    }
    let (pools, _) = pools_named(session, known)?;
    let is_vdev = |word: &String| pools.iter().any(|pool| has_vdev(pool, word, naming));
    if operands.iter().all(is_vdev) {
        return Ok(Chosen {
            pools: known.to_vec(),
            vdevs: Some(operands.to_vec()),
        });
    }
    Err(Failure::Refused(
        "Unable to parse pools/vdevs list.\n".into(),
    ))
}

fn infos(session: &mut Session, chosen: &Chosen) -> Result<Vec<PoolInfo>, Failure> {
    let (pools, _) = pools_named(session, &chosen.pools)?;
    Ok(pools)
}

fn remember(pool: &PoolInfo, before: &mut Before) {
    let mut keep = |guid, counters| before.insert((pool.name.clone(), guid), counters);
    keep(pool.root.guid, counters(&pool.root));
    for (vdev, _) in groups::walk(pool) {
        keep(vdev.guid, counters(vdev));
    }
}

/// A vdev's counters: those of its devices together.
fn counters(vdev: &VdevInfo) -> IoCounters {
    if vdev.children.is_empty() {
        return vdev.io;
    }
    let mut sum = IoCounters::default();
    for child in &vdev.children {
        let one = counters(child);
        sum.reads = sum.reads.saturating_add(one.reads);
        sum.writes = sum.writes.saturating_add(one.writes);
        sum.read_bytes = sum.read_bytes.saturating_add(one.read_bytes);
        sum.written_bytes = sum.written_bytes.saturating_add(one.written_bytes);
    }
    sum
}

/// One round of figures.
struct Report<'a> {
    ask: &'a Ask,
    chosen: &'a Chosen,
    pools: &'a [PoolInfo],
    /// Seconds since the round before, and its counters; without one, figures are those since pools were opened.
    since: Option<(f64, &'a Before)>,
    now_s: u64,
}

impl Report<'_> {
    fn print(&self, text: &mut String, is_first: bool) {
        let (ask, chosen) = (self.ask, self.chosen);
        let table = Table {
            ask,
            width: name_width(ask, chosen, self.pools),
            column: if ask.is_exact { 15 } else { 5 },
        };
        if is_first && !ask.is_script {
            let what = match chosen.vdevs {
                Some(_) => "vdev",
                None => "pool",
            };
            table.head(text, what);
        }
        for pool in self.pools {
            self.pool(text, &table, pool);
        }
        let is_ended = ask.is_verbose && chosen.vdevs.is_none();
        if !is_ended && (self.pools.len() > 1 || chosen.vdevs.is_some()) {
            table.line(text);
        }
    }

    fn pool(&self, text: &mut String, table: &Table<'_>, pool: &PoolInfo) {
        let ask = self.ask;
        let row = |text: &mut String, vdev: &VdevInfo, name: &str, depth: usize| {
            let (counters, seconds) = self.counted(pool, vdev);
            table.row(text, vdev, name, depth, counters, seconds);
        };
        if let Some(wanted) = &self.chosen.vdevs {
            for (vdev, _) in groups::walk(pool) {
                if wanted.iter().any(|name| is_called(vdev, name, ask.naming)) {
                    row(text, vdev, &ask.naming.of(vdev), 2);
                }
            }
            return;
        }
        row(text, &pool.root, &pool.name, 0);
        if !ask.is_verbose {
            return;
        }
        for vdev in groups::of_class(pool, VdevClass::Normal) {
            tree(text, vdev, ask.naming, 2, &row);
        }
        for (class, title) in TITLED {
            let members: Vec<&VdevInfo> = groups::of_class(pool, class).collect();
            if !members.is_empty() {
                table.title(text, title);
            }
            for vdev in members {
                tree(text, vdev, ask.naming, 2, &row);
            }
        }
        if !pool.caches.is_empty() {
            table.title(text, "cache");
            for vdev in &pool.caches {
                row(text, vdev, &ask.naming.of(vdev), 2);
            }
        }
        table.line(text);
    }

    /// What a vdev did, and in how many seconds.
    fn counted(&self, pool: &PoolInfo, vdev: &VdevInfo) -> (IoCounters, f64) {
        let mut now = counters(vdev);
        let Some((seconds, before)) = self.since else {
            let held_s = self.now_s.saturating_sub(pool.held_since_s).max(1);
            return (now, held_s as f64);
        };
        if let Some(old) = before.get(&(pool.name.clone(), vdev.guid)) {
            now.reads = now.reads.saturating_sub(old.reads);
            now.writes = now.writes.saturating_sub(old.writes);
            now.read_bytes = now.read_bytes.saturating_sub(old.read_bytes);
            now.written_bytes = now.written_bytes.saturating_sub(old.written_bytes);
        }
        (now, seconds)
    }
}

fn tree(
    text: &mut String,
    vdev: &VdevInfo,
    naming: Naming,
    depth: usize,
    row: &dyn Fn(&mut String, &VdevInfo, &str, usize),
) {
    row(text, vdev, &naming.of(vdev), depth);
    for child in &vdev.children {
        tree(text, child, naming, depth + 2, row);
    }
}

fn name_width(ask: &Ask, chosen: &Chosen, pools: &[PoolInfo]) -> usize {
    let mut width = 10;
    for pool in pools {
        width = width.max(pool.name.len());
        if ask.is_verbose && chosen.vdevs.is_none() {
            for (vdev, depth) in groups::walk(pool) {
                width = width.max(ask.naming.of(vdev).len() + depth);
            }
        }
        for (vdev, _) in groups::walk(pool) {
            let wanted = chosen.vdevs.iter().flatten();
            if wanted.clone().any(|name| is_called(vdev, name, ask.naming)) {
                width = width.max(ask.naming.of(vdev).len());
            }
        }
    }
    width
}

struct Table<'a> {
    ask: &'a Ask,
    width: usize,
    column: usize,
}

const COLUMNS: usize = 6;

impl Table<'_> {
    fn head(&self, text: &mut String, what: &str) {
        let mut line = " ".repeat(self.width);
        for title in ["capacity", "operations", "bandwidth"] {
            let room = 2 * self.column + 2;
            let lead = (room / 2).saturating_sub(title.len() / 2);
            line += "  ";
            pad_right(&mut line, &format!("{}{title}", " ".repeat(lead)), room);
        }
        *text += &line;
        text.push('\n');
        let mut line = String::new();
        pad_right(&mut line, what, self.width);
        for title in ["alloc", "free", "read", "write", "read", "write"] {
            let lead = self.column.saturating_sub(title.len());
            line += "  ";
            line += &" ".repeat(if self.ask.is_exact {
                self.column - title.len()
            } else {
                lead
            });
            line += title;
        }
        *text += &line;
        text.push('\n');
        self.line(text);
    }

    fn line(&self, text: &mut String) {
        if self.ask.is_script {
            return;
        }
        *text += &"-".repeat(self.width);
        for _ in 0..COLUMNS {
            *text += "  ";
            *text += &"-".repeat(self.column);
        }
        text.push('\n');
    }

    fn title(&self, text: &mut String, title: &str) {
        let values = vec!["-".to_owned(); COLUMNS];
        self.put(text, title, 0, &values);
    }

    fn row(
        &self,
        text: &mut String,
        vdev: &VdevInfo,
        name: &str,
        depth: usize,
        counters: IoCounters,
        seconds: f64,
    ) {
        let number = |number: u64| match self.ask.is_exact {
            true => number.to_string(),
            false => number::count(number),
        };
        let rate = |count: u64| {
            let rate = if seconds > 0.0 {
                count as f64 / seconds
            } else {
                0.0
            };
            number(rate as u64)
        };
        // Space is taken from top-level vdevs.
        let capacity = match (vdev.total_bytes, self.ask.is_exact) {
            (0, true) => ["0".to_owned(), "0".to_owned()],
            (0, false) => ["-".to_owned(), "-".to_owned()],
            (total, _) => [
                number(vdev.allocated_bytes),
                number(total.saturating_sub(vdev.allocated_bytes)),
            ],
        };
        let mut values = capacity.to_vec();
        values.extend([
            rate(counters.reads),
            rate(counters.writes),
            rate(counters.read_bytes),
            rate(counters.written_bytes),
        ]);
        let depth = if self.ask.is_script { 0 } else { depth };
        self.put(text, name, depth, &values);
    }

    fn put(&self, text: &mut String, name: &str, depth: usize, values: &[String]) {
        let mut line = " ".repeat(depth);
        if self.ask.is_script {
            line += name;
            for value in values {
                line.push('\t');
                line += value;
            }
        } else {
            pad_right(&mut line, name, self.width.saturating_sub(depth));
            for value in values {
                line += "  ";
                pad_left(&mut line, value, self.column);
            }
        }
        *text += &line;
        text.push('\n');
    }
}
