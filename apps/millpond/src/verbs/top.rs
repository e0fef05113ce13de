//! `millpond top`: shows the activity of pools, devices and datasets at regular intervals.

use super::Global;
use crate::session::{Ending, Failure, Session};
use crate::text::number::{bytes, count, percent_of, time};
use clap::{Arg, ArgMatches, Command, value_parser};
use millpond_control::properties::{DatasetKind, Kinds, by_name};
use millpond_control::{
    ControlError, DatasetQuery, EngineInfo, IoCounters, IoWaits, Latencies, PoolInfo, READ,
    Service, Value, VdevInfo, WRITE, Wanted,
};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::Duration;

/// Maximum number of datasets shown, those that grew most first.
const SHOWN_MAX: usize = 20;
/// Maximum number of datasets of a pool that are queried per interval.
const LOOKED_AT_MAX: usize = 1000;
/// Moves the cursor to the top left corner and clears everything below it.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Defines the command.
pub fn command() -> Command {
    let seconds = Arg::new("interval")
        .value_name("SECONDS")
        .help("Interval between updates")
        .default_value("2")
        .value_parser(value_parser!(u32).range(1..));
    let rounds = Arg::new("count")
        .short('n')
        .value_name("COUNT")
        .help("Number of updates (default: unlimited on a terminal, otherwise one)")
        .value_parser(value_parser!(u64).range(1..));
    Command::new("top")
        .about("Show the activity of the daemon's pools, devices and datasets, with rates of the last interval")
        .arg(seconds)
        .arg(rounds)
}

/// Shows the activity at each interval. Requires pools that stay imported.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let interval_s = matches.get_one::<u32>("interval").copied().unwrap_or(2);
    let is_live = !global.is_json && std::io::stdout().is_terminal();
    let endless = if is_live { u64::MAX } else { 1 };
    let rounds = matches.get_one::<u64>("count").copied().unwrap_or(endless);
    // Pools opened for a single command show no activity between two intervals.
    session.daemon()?;
    let mut before = Sample::look(session.service()?).map_err(refused)?;
    for _ in 0..rounds {
        (session.environment.pause)(Duration::from_secs(interval_s.into()));
        let now = Sample::look(session.service()?).map_err(refused)?;
        let page = Page::of(&before, &now, interval_s);
        let text = match (global.is_json, is_live) {
            (true, _) => format!("{}\n", page.json()),
            (false, true) => format!("{CLEAR}{}", page.text()),
            (false, false) => page.text(),
        };
        session.out.write_all(text.as_bytes())?;
        session.out.flush()?;
        before = now;
    }
    Ok(0)
}

fn refused(error: ControlError) -> Failure {
    Failure::Refused(error.to_string())
}

/// The state of all pools at one time.
struct Sample {
    pools: Vec<PoolInfo>,
    /// Used bytes by name.
    datasets: BTreeMap<String, u64>,
}

impl Sample {
    fn look(control: &dyn Service) -> Result<Self, ControlError> {
        let (mut pools, mut datasets) = (vec![], BTreeMap::new());
        for name in control.pools()? {
            match control.pool(&name) {
                Ok(pool) => pools.push(pool),
                // Exported in the meantime.
                Err(ControlError::NoSuchPool) => continue,
                Err(error) => return Err(error),
            }
            let query = DatasetQuery {
                root: name,
                depth: DatasetQuery::WHOLE_TREE,
                kinds: Kinds::only(&[DatasetKind::Filesystem, DatasetKind::Volume]),
                wanted: Wanted::Named(by_name("used").into_iter().collect()),
                names_damaged: false,
            };
            let mut looked_at = 0;
            // Devices are shown even if the datasets of their pool cannot be read.
            let _ = control.datasets(&query, &mut |info| {
                let used = info.property("used").and_then(|used| used.value.as_ref());
                let used_bytes = used.and_then(Value::number).unwrap_or(0);
                datasets.insert(info.name, used_bytes);
                looked_at += 1;
                match looked_at < LOOKED_AT_MAX {
                    true => Ok(()),
                    false => Err(ControlError::Stopped),
                }
            });
        }
        Ok(Self { pools, datasets })
    }

    fn devices(&self) -> BTreeMap<(&str, u64), &VdevInfo> {
        let mut all = BTreeMap::new();
        for pool in &self.pools {
            for leaf in leaves(pool) {
                all.insert((pool.name.as_str(), leaf.guid), leaf);
            }
        }
        all
    }

    fn engine(&self, pool: &str) -> Option<&EngineInfo> {
        let mut pools = self.pools.iter();
        pools.find(|known| known.name == pool)?.engine.as_ref()
    }
}

fn leaves(pool: &PoolInfo) -> Vec<&VdevInfo> {
    let mut stack = vec![&pool.root];
    let mut leaves = vec![];
    while let Some(vdev) = stack.pop() {
        stack.extend(vdev.children.iter().rev());
        if vdev.kind.is_leaf() {
            leaves.push(vdev);
        }
    }
    leaves.extend(&pool.caches);
    leaves
}

/// Counts per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Rates {
    reads: u64,
    writes: u64,
    read_bytes: u64,
    written_bytes: u64,
}

impl Rates {
    /// The counters of a pool that was imported again in between restart at 0.
    fn of(old: IoCounters, new: IoCounters, seconds: u32) -> Self {
        let rate = |old: u64, new: u64| new.saturating_sub(old) / u64::from(seconds.max(1));
        Self {
            reads: rate(old.reads, new.reads),
            writes: rate(old.writes, new.writes),
            read_bytes: rate(old.read_bytes, new.read_bytes),
            written_bytes: rate(old.written_bytes, new.written_bytes),
        }
    }

    fn add(&mut self, other: Self) {
        self.reads = self.reads.saturating_add(other.reads);
        self.writes = self.writes.saturating_add(other.writes);
        self.read_bytes = self.read_bytes.saturating_add(other.read_bytes);
        self.written_bytes = self.written_bytes.saturating_add(other.written_bytes);
    }

    fn json(self) -> Json {
        json!({
            "reads_per_second": self.reads, "writes_per_second": self.writes,
            "read_bytes_per_second": self.read_bytes, "written_bytes_per_second": self.written_bytes,
        })
    }
}

/// Latencies of an interval: reads, then writes.
type Times = [Latencies; 2];

/// Latencies of a device in the interval; empty if the device was absent before.
fn times(old: Option<&VdevInfo>, new: &IoWaits) -> Times {
    let Some(old) = old else {
        return Times::default();
    };
    [READ, WRITE].map(|way| new.total[way].since(&old.waits.total[way]))
}

/// Mean and 99th percentile.
fn times_json(times: &Latencies) -> Json {
    json!({
        "count": times.count(), "mean_ns": times.mean_ns(), "p99_ns": times.quantile_ns(990),
    })
}

/// Activity of a pool's engine in the interval, and its current state.
struct Engine<'r> {
    now: &'r EngineInfo,
    hits: u64,
    misses: u64,
    fsync: Latencies,
}

impl<'r> Engine<'r> {
    fn of(old: Option<&EngineInfo>, now: &'r EngineInfo) -> Self {
        let old = old.unwrap_or(now);
        Self {
            now,
            hits: now.cache_hits.saturating_sub(old.cache_hits),
            misses: now.cache_misses.saturating_sub(old.cache_misses),
            fsync: now.fsync.since(&old.fsync),
        }
    }

    fn text(&self) -> String {
        let asked = self.hits.saturating_add(self.misses);
        let hits = match asked {
            0 => "-".to_owned(),
            asked => percent_of(self.hits, asked),
        };
        format!(
            "  txg {} (written {}), dirty {}, cache {}, hits {hits}, fsync {} {}",
            self.now.open_txg,
            self.now.synced_txg,
            bytes(self.now.dirty_bytes),
            bytes(self.now.cache_bytes),
            count(self.fsync.count()),
            both(&self.fsync)
        )
    }

    fn json(&self) -> Json {
        json!({
            "open_txg": self.now.open_txg, "synced_txg": self.now.synced_txg,
            "dirty_bytes": self.now.dirty_bytes, "cache_bytes": self.now.cache_bytes,
            "cache_hits": self.hits, "cache_misses": self.misses, "fsync": times_json(&self.fsync),
        })
    }
}

/// `3ms/16ms`: mean and 99th percentile.
fn both(times: &Latencies) -> String {
    match (times.mean_ns(), times.quantile_ns(990)) {
        (Some(mean), Some(p99)) => format!("{}/{}", time(mean), time(p99)),
        _ => "-".to_owned(),
    }
}

struct PoolLines<'r> {
    pool: &'r PoolInfo,
    rates: Rates,
    times: Times,
    engine: Option<Engine<'r>>,
    devices: Vec<Device<'r>>,
}

struct Device<'r> {
    name: String,
    state: &'static str,
    errors: [u64; 3],
    rates: Rates,
    times: Times,
    vdev: &'r VdevInfo,
}

struct Page<'r> {
    pools: Vec<PoolLines<'r>>,
    /// Name, used bytes, and growth in bytes per second; shrinking counts as 0.
    datasets: Vec<(&'r str, u64, u64)>,
}

impl<'r> Page<'r> {
    fn of(before: &Sample, now: &'r Sample, seconds: u32) -> Self {
        let known = before.devices();
        let pools = now.pools.iter().map(|pool| {
            let (mut sum, mut all) = (Rates::default(), Times::default());
            let devices = leaves(pool).into_iter().map(|vdev| {
                let old = known.get(&(pool.name.as_str(), vdev.guid)).copied();
                // A device that was absent before has no rate yet.
                let rates = Rates::of(old.unwrap_or(vdev).io, vdev.io, seconds);
                sum.add(rates);
                let times = times(old, &vdev.waits);
                for (all, one) in all.iter_mut().zip(&times) {
                    all.add(one);
                }
                Device {
                    name: vdev.path.clone().unwrap_or_else(|| vdev.guid.to_string()),
                    state: vdev.state.word(vdev.aux),
                    errors: [vdev.read_errors, vdev.write_errors, vdev.checksum_errors],
                    rates,
                    times,
                    vdev,
                }
            });
            let devices = devices.collect();
            let engine = pool.engine.as_ref();
            PoolLines {
                pool,
                rates: sum,
                times: all,
                engine: engine.map(|now| Engine::of(before.engine(&pool.name), now)),
                devices,
            }
        });
        let pools = pools.collect();
        let datasets = now.datasets.iter().map(|(name, used)| {
            let old = before.datasets.get(name).unwrap_or(used);
            let more = used.saturating_sub(*old) / u64::from(seconds.max(1));
            (name.as_str(), *used, more)
        });
        let mut datasets: Vec<_> = datasets.collect();
        datasets.sort_by_key(|(name, used, more)| (std::cmp::Reverse((*more, *used)), *name));
        datasets.truncate(SHOWN_MAX);
        Self { pools, datasets }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let rates = |rates: &Rates, times: &Times| {
            format!(
                "{:>7} {:>7} {:>7} {:>7} {:>11} {:>11}",
                count(rates.reads),
                count(rates.writes),
                bytes(rates.read_bytes),
                bytes(rates.written_bytes),
                both(&times[READ]),
                both(&times[WRITE])
            )
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:<40} {:<9} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>11} {:>11}",
            "POOL / DEVICE",
            "STATE",
            "ALLOC",
            "FREE",
            "READ/s",
            "WRITE/s",
            "READ B",
            "WRITE B",
            "READ avg/99",
            "WRITE avg/99"
        );
        for lines in &self.pools {
            let pool = lines.pool;
            let root = &pool.root;
            let free = root.total_bytes.saturating_sub(root.allocated_bytes);
            let _ = writeln!(
                text,
                "{:<40} {:<9} {:>7} {:>7} {}",
                pool.name,
                pool.health(),
                bytes(root.allocated_bytes),
                bytes(free),
                rates(&lines.rates, &lines.times)
            );
            if let Some(engine) = &lines.engine {
                let _ = writeln!(text, "{}", engine.text());
            }
            for device in &lines.devices {
                let name = printable(&device.name);
                let _ = write!(
                    text,
                    "  {name:<38} {:<9} {:>15} {}",
                    device.state,
                    "",
                    rates(&device.rates, &device.times)
                );
                if device.errors != [0; 3] {
                    let [read, write, checksum] = device.errors;
                    let _ = write!(
                        text,
                        "  errors: {read} read, {write} write, {checksum} checksum"
                    );
                }
                text.push('\n');
            }
        }
        let _ = writeln!(text, "\n{:<40} {:>7} {:>9}", "DATASET", "USED", "MORE/s");
        for (name, used, more) in &self.datasets {
            let _ = writeln!(
                text,
                "{:<40} {:>7} {:>9}",
                printable(name),
                bytes(*used),
                bytes(*more)
            );
        }
        text
    }

    /// One object per interval, on one line.
    fn json(&self) -> Json {
        let pools = self.pools.iter().map(|lines| {
            let pool = lines.pool;
            let devices = lines.devices.iter().map(|device| {
                let [read, write, checksum] = device.errors;
                json!({
                    "device": device.name, "guid": device.vdev.guid.to_string(), "state": device.state,
                    "read_errors": read, "write_errors": write, "checksum_errors": checksum,
                    "rates": device.rates.json(), "read_time": times_json(&device.times[READ]),
                    "write_time": times_json(&device.times[WRITE]),
                })
            });
            json!({
                "pool": pool.name, "state": pool.health(),
                "allocated_bytes": pool.root.allocated_bytes, "size_bytes": pool.root.total_bytes,
                "rates": lines.rates.json(), "read_time": times_json(&lines.times[READ]),
                "write_time": times_json(&lines.times[WRITE]),
                "engine": lines.engine.as_ref().map(Engine::json),
                "devices": devices.collect::<Vec<_>>(),
            })
        });
        let datasets = self.datasets.iter().map(|(name, used, more)| {
            json!({ "dataset": name, "used_bytes": used, "more_bytes_per_second": more })
        });
        json!({
            "pools": pools.collect::<Vec<_>>(), "datasets": datasets.collect::<Vec<_>>(),
        })
    }
}

/// Escapes a name. Names come from disks and must not control the terminal.
fn printable(name: &str) -> String {
    name.chars()
        .map(|letter| if letter.is_control() { '?' } else { letter })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_control::VdevKind;

    fn sample(written_bytes: u64, used: u64) -> Sample {
        let mut pool = PoolInfo {
            name: "tank".into(),
            is_loaded: true,
            ..PoolInfo::default()
        };
        pool.root.kind = VdevKind::Root;
        pool.root.children.push(VdevInfo {
            kind: VdevKind::File,
            guid: 7,
            path: Some("/d\x1b[2J".into()),
            io: IoCounters {
                writes: written_bytes / 1000,
                written_bytes,
                ..IoCounters::default()
            },
            ..VdevInfo::default()
        });
        Sample {
            pools: vec![pool],
            datasets: [("tank".to_owned(), used)].into(),
        }
    }

    #[test]
    fn rates_are_those_of_the_interval_and_names_steer_no_terminal() {
        let (before, now) = (sample(1000, 10), sample(9000, 30));
        let page = Page::of(&before, &now, 2);
        let lines = &page.pools[0];
        let sum = lines.rates;
        assert_eq!((sum.written_bytes, sum.writes, sum.reads), (4000, 4, 0));
        assert_eq!(lines.devices[0].rates, sum);
        assert_eq!(page.datasets, [("tank", 30, 10)]);
        assert!(page.text().contains("/d?[2J"), "{}", page.text());
        assert_eq!(page.json()["pools"][0]["rates"]["writes_per_second"], 4);
    }

    #[test]
    fn times_and_engine_statistics_are_those_of_the_interval() {
        let (mut before, mut now) = (sample(1000, 10), sample(9000, 30));
        let latencies = |counts: &[u64], sum_ns| Latencies {
            counts: counts.to_vec(),
            sum_ns,
        };
        let slow = |count| {
            let mut counts = vec![0; 24];
            (counts[20], counts[23]) = (count, 2);
            latencies(&counts, 1_500_000 * count)
        };
        before.pools[0].root.children[0].waits.total[WRITE] = slow(1);
        now.pools[0].root.children[0].waits.total[WRITE] = slow(101);
        let engine = |hits, misses, fsyncs: &[u64]| EngineInfo {
            open_txg: 7,
            synced_txg: 5,
            dirty_bytes: 3 << 20,
            cache_hits: hits,
            cache_misses: misses,
            cache_bytes: 1 << 30,
            fsync: latencies(fsyncs, 0),
        };
        before.pools[0].engine = Some(engine(100, 100, &[5]));
        now.pools[0].engine = Some(engine(175, 125, &[5, 4]));
        let page = Page::of(&before, &now, 2);
        let text = page.text();
        // Both buckets are unchanged, so the mean covers only the new operations.
        assert!(text.contains("1ms/2ms"), "{text}");
        let line = "  txg 7 (written 5), dirty 3M, cache 1G, hits 75.0%, fsync 4 0ns/3ns\n";
        assert!(text.contains(line), "{text}");
        let json = page.json();
        let device = &json["pools"][0]["devices"][0];
        assert_eq!(device["write_time"]["mean_ns"], 1_500_000);
        assert_eq!(device["write_time"]["count"], 100);
        assert_eq!(json["pools"][0]["engine"]["cache_misses"], 25);
        assert_eq!(device["read_time"]["p99_ns"], Json::Null);
    }

    #[test]
    fn a_pool_opened_anew_or_just_now_has_no_rate() {
        let (before, now) = (sample(9000, 30), sample(1000, 10));
        assert_eq!(Page::of(&before, &now, 1).pools[0].rates, Rates::default());
        let none = Sample {
            pools: vec![],
            datasets: BTreeMap::new(),
        };
        let page = Page::of(&none, &now, 1);
        assert_eq!(page.pools[0].rates, Rates::default());
        assert_eq!(page.datasets, [("tank", 10, 0)]);
    }
}
