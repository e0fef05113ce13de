//! `zpool iostat`: I/O requests per second of devices, latencies and queue lengths.

mod histogram;
mod stats;
mod table;

use super::every::Rounds;
use super::groups::{self, TITLED};
use super::list::pools_named;
use super::scripts::{self, Columns, Request};
use super::vdev_name::Naming;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_control::{PoolInfo, VdevClass, VdevInfo};
use millpond_env::Env;
use stats::{Sample, VdevStats};
use std::time::Duration;
use table::Table;

/// Prints statistics of pools or vdevs, once or repeatedly.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let mut operands = parsed.operands.clone();
    let rounds = Rounds::read(parsed, &mut operands)?;
    let known = super::known(session)?;
    if known.is_empty() && operands.is_empty() {
        return Err(Failure::Refused("no pools available".into()));
    }
    let ask = Args::read(parsed, session)?;
    let scripts = Request::read(session, parsed)?;
    if let Request::List = scripts {
        scripts::list(session, "iostat")?;
        return Ok(0);
    }
    let chosen = choose(session, &operands, &known, ask.naming)?;
    let skips_first = parsed.has("y") && rounds.interval_s().is_some();
    let clock = Env::real().clock;
    let mut before = Sample::default();
    let mut last_ns = clock.monotonic_ns();
    if skips_first {
        before = Sample::of(&infos(session, &chosen)?);
        let interval_s = rounds.interval_s().unwrap_or(1.0);
        let interval = Duration::try_from_secs_f64(interval_s).unwrap_or(Duration::MAX);
        (session.environment.pause)(interval);
    }
    let mut lines_since_head = None;
    rounds.run(session, |session, done| {
        let pools = infos(session, &chosen)?;
        let now_ns = clock.monotonic_ns();
        let seconds = now_ns.saturating_sub(last_ns) as f64 / 1e9;
        last_ns = now_ns;
        let since = (done > 0 || skips_first).then_some(seconds);
        let columns = scripts.columns(&pools);
        let report = Report {
            ask: &ask,
            columns: columns.as_ref(),
            chosen: &chosen,
            pools: &pools,
            since: since.map(|seconds| (seconds, &before)),
            now_s: session.environment.now(),
        };
        // The header is printed first, and again whenever a screen is full.
        let is_full = |lines: usize| ask.screen_lines.is_some_and(|screen| lines >= screen);
        let has_head = lines_since_head.is_none_or(is_full);
        let mut text = String::new();
        report.print(&mut text, has_head);
        session.out.write_all(text.as_bytes())?;
        let lines = text.lines().count();
        lines_since_head = Some(match has_head {
            true => lines,
            false => lines_since_head.unwrap_or(0) + lines,
        });
        before = Sample::of(&pools);
        Ok(0)
    })
}

/// The histograms that replace the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Histograms {
    /// `-w`.
    Waits,
    /// `-r`.
    Sizes,
}

/// The parsed command line.
pub(crate) struct Args {
    is_script: bool,
    is_exact: bool,
    is_verbose: bool,
    has_latencies: bool,
    has_queues: bool,
    histograms: Option<Histograms>,
    naming: Naming,
    /// The header repeats after this many lines.
    screen_lines: Option<usize>,
}

impl Args {
    fn read(parsed: &Parsed, session: &Session) -> Result<Self, Failure> {
        let histograms = match (parsed.has("w"), parsed.has("r")) {
            (true, false) => Some(Histograms::Waits),
            (false, true) => Some(Histograms::Sizes),
            (false, false) => None,
            (true, true) => return Err(Failure::Usage("-w and -r exclude each other".into())),
        };
        let (has_latencies, has_queues) = (parsed.has("l"), parsed.has("q"));
        if histograms.is_some() && (has_latencies || has_queues || parsed.has("c")) {
            return Err(Failure::Usage(
                "[-r|-w] isn't allowed with [-c|-l|-q]".into(),
            ));
        }
        Ok(Self {
            is_script: parsed.has("H"),
            is_exact: parsed.has("p"),
            is_verbose: parsed.has("v") || parsed.has("c"),
            has_latencies,
            has_queues,
            histograms,
            naming: Naming::read(parsed, session.environment),
            screen_lines: if parsed.has("n") {
                None
            } else {
                session.environment.screen_lines
            },
        })
    }
}

/// What to show: whole pools, or some vdevs.
struct Chosen {
    pools: Vec<String>,
    vdevs: Option<Vec<String>>,
}

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

/// The output of one interval.
struct Report<'a> {
    ask: &'a Args,
    columns: Option<&'a Columns>,
    chosen: &'a Chosen,
    pools: &'a [PoolInfo],
    /// Seconds since the previous interval, and its statistics.
    ///
    /// `None` for statistics since the pools were imported.
    since: Option<(f64, &'a Sample)>,
    now_s: u64,
}

impl Report<'_> {
    fn print(&self, text: &mut String, has_head: bool) {
        let (ask, chosen) = (self.ask, self.chosen);
        let width = name_width(ask, chosen, self.pools);
        if let Some(kind) = ask.histograms {
            self.each_vdev(&mut |pool, vdev, name| {
                let (stats, _) = self.counted(pool, vdev);
                histogram::block(text, ask, kind, (name, width), &stats);
            });
            return;
        }
        let table = Table::new(ask, width, self.columns);
        if has_head && !ask.is_script {
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

    /// Calls `each` for the shown vdevs with their names.
    fn each_vdev(&self, each: &mut dyn FnMut(&PoolInfo, &VdevInfo, &str)) {
        let ask = self.ask;
        for pool in self.pools {
            if self.chosen.vdevs.is_none() {
                each(pool, &pool.root, &pool.name);
                if !ask.is_verbose {
                    continue;
                }
            }
            for (vdev, _) in groups::walk(pool) {
                if (self.chosen.vdevs.iter().flatten())
                    .any(|name| is_called(vdev, name, ask.naming))
                    || (self.chosen.vdevs.is_none() && vdev.class != VdevClass::Spare)
                {
                    each(pool, vdev, &ask.naming.of(vdev));
                }
            }
        }
    }

    fn pool(&self, text: &mut String, table: &Table<'_>, pool: &PoolInfo) {
        let ask = self.ask;
        let row = |text: &mut String, vdev: &VdevInfo, name: &str, depth: usize| {
            let (stats, seconds) = self.counted(pool, vdev);
            table.row(text, vdev, name, depth, (&stats, seconds));
        };
        if let Some(wanted) = &self.chosen.vdevs {
            for (vdev, _) in groups::walk(pool) {
                if wanted.iter().any(|name| is_called(vdev, name, ask.naming)) {
                    row(text, vdev, &ask.naming.of(vdev), 0);
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

    /// The statistics of a vdev, and the seconds that they cover.
    fn counted(&self, pool: &PoolInfo, vdev: &VdevInfo) -> (VdevStats, f64) {
        let now = VdevStats::of(vdev);
        let Some((seconds, before)) = self.since else {
            let imported_s = self.now_s.saturating_sub(pool.imported_since_s).max(1);
            return (now, imported_s as f64);
        };
        let since = match before.get(&pool.name, vdev.guid) {
            Some(before) => now.since(before),
            None => now,
        };
        (since, seconds)
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

fn name_width(ask: &Args, chosen: &Chosen, pools: &[PoolInfo]) -> usize {
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
