//! `zpool status`.

use super::condition_text;
use super::every::Rounds;
use super::groups::{self, TITLED};
use super::list::pools_named;
use super::scan_text::{self, Surroundings};
use super::scripts::{self, Columns, Request};
use super::vdev_name::Naming;
use super::vdev_note;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use crate::text::columns::{pad_left, pad_right};
use crate::text::json::Style;
use crate::text::number;
use crate::text::terminal::one_line;
use millpond_control::{
    Condition, DedupBucket, DedupStats, PoolInfo, Purpose, VdevClass, VdevInfo, VdevKind,
    VdevState, condition,
};

pub use super::status_json::json_identity;

/// Prints the status of pools.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let mut operands = parsed.operands.clone();
    let rounds = Rounds::read(parsed, &mut operands)?;
    let ask = Args::read(session, parsed)?;
    let scripts = Request::read(session, parsed)?;
    if let Request::List = scripts {
        scripts::list(session, "status")?;
        return Ok(0);
    }
    rounds.run(session, |session, _| {
        round(session, &ask, &operands, &scripts)
    })
}

/// The parsed command line.
pub struct Args {
    /// `-x`.
    pub only_unhealthy: bool,
    /// `-v`.
    pub is_verbose: bool,
    /// `-e`.
    pub only_unhealthy_vdevs: bool,
    /// `-s`.
    pub has_slow: bool,
    /// `-d`.
    pub has_direct: bool,
    /// `--power`.
    pub has_power: bool,
    /// `-D`.
    pub has_dedup: bool,
    /// `-i`.
    pub has_initialize: bool,
    /// `-t`.
    pub has_trim: bool,
    /// `-p` and the JSON options.
    pub style: Style,
    /// `--json-flat-vdevs`.
    pub is_flat: bool,
    /// `--json-pool-key-guid`.
    pub is_keyed_by_guid: bool,
    /// `-j`.
    pub is_json: bool,
    /// `-g`, `-L`, `-P`.
    pub naming: Naming,
    ignore_ashift: bool,
}

impl Args {
    fn read(session: &Session, parsed: &Parsed) -> Result<Args, Failure> {
        Ok(Args {
            only_unhealthy: parsed.has("x"),
            is_verbose: parsed.has("v"),
            only_unhealthy_vdevs: parsed.has("e"),
            has_slow: parsed.has("s"),
            has_direct: parsed.has("d"),
            has_power: parsed.has("power"),
            has_dedup: parsed.has("D"),
            has_initialize: parsed.has("i"),
            has_trim: parsed.has("t"),
            style: Style::read(parsed)?,
            is_flat: parsed.has("json-flat-vdevs"),
            is_keyed_by_guid: parsed.has("json-pool-key-guid"),
            is_json: parsed.has("j"),
            naming: Naming::read(parsed, session.environment),
            ignore_ashift: session
                .environment
                .variables
                .contains_key("ZPOOL_STATUS_NON_NATIVE_ASHIFT_IGNORE"),
        })
    }

    /// Formats a counter or a size, with `-p` in digits.
    pub fn count(&self, number: u64) -> String {
        if self.style.is_exact {
            number.to_string()
        } else {
            number::count(number)
        }
    }

    /// The condition that is reported for an open pool.
    pub fn condition(&self, pool: &PoolInfo) -> Option<Condition> {
        condition(
            pool,
            Purpose::Status {
                ignore_ashift: self.ignore_ashift,
            },
        )
    }
}

fn round(session: &mut Session, ask: &Args, operands: &[String], scripts: &Request) -> Ending {
    let (pools, has_failed) = pools_named(session, operands)?;
    let status = u8::from(has_failed);
    let columns = scripts.columns(&pools);
    let columns = columns.as_ref();
    let is_shown = |pool: &&PoolInfo| {
        !ask.only_unhealthy
            || ask
                .condition(pool)
                .is_some_and(|found| !found.is_healthy_for_summary())
    };
    if ask.is_json {
        if !has_failed {
            let shown: Vec<&PoolInfo> = pools.iter().filter(is_shown).collect();
            super::status_json::print(session, ask, &shown, columns)?;
        }
        return Ok(status);
    }
    if pools.is_empty() {
        if !has_failed {
            writeln!(session.err, "no pools available")?;
        }
        return Ok(status);
    }
    let mut is_first = true;
    for pool in pools.iter().filter(is_shown) {
        if !is_first {
            writeln!(session.out)?;
        }
        is_first = false;
        print(session, ask, pool, columns)?;
    }
    if is_first {
        match operands {
            [] => writeln!(session.out, "all pools are healthy")?,
            _ => {
                for pool in &pools {
                    writeln!(session.out, "pool '{}' is healthy", pool.name)?;
                }
            }
        }
    }
    Ok(status)
}

fn print(
    session: &mut Session,
    ask: &Args,
    pool: &PoolInfo,
    columns: Option<&Columns>,
) -> Result<(), Failure> {
    let mut text = format!("  pool: {}\n state: {}\n", pool.name, pool.health());
    let environment = session.environment;
    if let Some(found) = ask.condition(pool) {
        let (status, action) = condition_text::live(found, pool, &environment.zone);
        text += &format!("status: {}\n", status.replace('\n', "\n\t"));
        if !action.is_empty() {
            text += &format!("action: {}\n", action.replace('\n', "\n\t"));
        }
        if let Some(id) = found.id() {
            text += &format!("   see: {SEE}{id}\n");
        }
    }
    let now_s = environment.now();
    let around = Surroundings {
        zone: &environment.zone,
        now_s,
        naming: ask.naming,
    };
    text += &scan_text::lines(pool, around);
    text += "config:\n\n";
    config(&mut text, session, ask, (pool, columns));
    errors(&mut text, ask, pool);
    if ask.has_dedup {
        dedup(&mut text, ask, pool.dedup.as_ref());
    }
    session.out.write_all(text.as_bytes())?;
    Ok(())
}

fn config(
    text: &mut String,
    session: &Session,
    ask: &Args,
    (pool, columns): (&PoolInfo, Option<&Columns>),
) {
    // Hidden vdevs count too.
    let width = groups::walk(pool)
        .into_iter()
        .map(|(vdev, depth)| ask.naming.of(vdev).len() + depth)
        .fold(pool.name.len().max(10), usize::max);
    let mut head = String::from("\t");
    pad_right(&mut head, "NAME", width);
    head += "  STATE     READ WRITE CKSUM";
    for (is_wanted, title) in [
        (ask.has_slow, " SLOW"),
        (ask.has_power, "POWER"),
        (ask.has_direct, "  DIO"),
    ] {
        if is_wanted {
            head.push(' ');
            head.push_str(title);
        }
    }
    if let Some(columns) = columns {
        columns.head(&mut head);
    }
    *text += &head;
    text.push('\n');
    let mut table = Table {
        text,
        session,
        ask,
        pool,
        columns,
        width,
    };
    table.row(&pool.root, &pool.name, 0);
    for vdev in groups::of_class(pool, VdevClass::Normal) {
        table.tree(vdev, 2);
    }
    for (class, title) in TITLED {
        let members: Vec<&VdevInfo> = groups::of_class(pool, class).collect();
        table.group(&format!("{title}\t"), members);
    }
    table.group("cache", pool.caches.iter().collect());
    table.group("spares", pool.spares.iter().collect());
}

/// Formats the rows of a pool's vdevs.
struct Table<'a, 'b> {
    text: &'a mut String,
    session: &'a Session<'b>,
    ask: &'a Args,
    pool: &'a PoolInfo,
    columns: Option<&'a Columns>,
    width: usize,
}

impl Table<'_, '_> {
    fn group(&mut self, title: &str, members: Vec<&VdevInfo>) {
        if members.iter().all(|vdev| vdev.kind == VdevKind::Indirect) {
            return;
        }
        *self.text += &format!("\t{title}\n");
        for vdev in members {
            self.tree(vdev, 2);
        }
    }

    fn tree(&mut self, vdev: &VdevInfo, depth: usize) {
        if vdev.kind == VdevKind::Indirect
            || (self.ask.only_unhealthy_vdevs && !has_trouble(vdev, self.ask.has_slow))
        {
            return;
        }
        self.row(vdev, &self.ask.naming.of(vdev), depth);
        for child in &vdev.children {
            self.tree(child, depth + 2);
        }
    }

    fn row(&mut self, vdev: &VdevInfo, name: &str, depth: usize) {
        // The root shows its own state even if I/O is suspended.
        let state = groups::state_word(vdev);
        let mut line = format!("\t{}", " ".repeat(depth));
        pad_right(&mut line, name, self.width - depth);
        line += "  ";
        pad_right(&mut line, state, 8);
        if vdev.spare_use.is_none() {
            for cell in self.counters(vdev) {
                line.push(' ');
                pad_left(&mut line, &cell, 5);
            }
        }
        if let Some(columns) = self.columns {
            columns.row(&mut line, vdev);
        }
        let environment = self.session.environment;
        line += &vdev_note::live(vdev, self.pool, self.ask, &environment.zone);
        *self.text += &line;
        self.text.push('\n');
    }

    fn counters(&self, vdev: &VdevInfo) -> Vec<String> {
        let ask = self.ask;
        let mut cells: Vec<String> = [vdev.read_errors, vdev.write_errors, vdev.checksum_errors]
            .map(|number| ask.count(number))
            .into();
        if ask.has_slow {
            let is_counted = vdev.children.is_empty() || ask.style.is_exact;
            let is_counted = is_counted && vdev.kind != VdevKind::Root || ask.style.is_exact;
            cells.push(if is_counted {
                ask.count(vdev.slow_ios)
            } else {
                "-".into()
            });
        }
        if ask.has_power {
            cells.push("-".into());
        }
        if ask.has_direct {
            cells.push(ask.count(vdev.direct_verify_errors));
        }
        cells
    }
}

/// Whether `status -e` shows a vdev because of problems at or below it.
fn has_trouble(vdev: &VdevInfo, has_slow: bool) -> bool {
    let errors = vdev
        .read_errors
        .max(vdev.write_errors)
        .max(vdev.checksum_errors);
    let is_troubled =
        vdev.state != VdevState::Healthy || errors > 0 || (has_slow && vdev.slow_ios > 0);
    is_troubled
        || vdev
            .children
            .iter()
            .any(|child| has_trouble(child, has_slow))
}

fn errors(text: &mut String, ask: &Args, pool: &PoolInfo) {
    if !pool.is_loaded {
        return;
    }
    *text += "\n";
    if pool.error_count == 0 {
        *text += "errors: No known data errors\n";
    } else if ask.is_verbose {
        *text += "errors: Permanent errors have been detected in the following files:\n\n";
        for error in &pool.errors {
            *text += &format!("        {}\n", one_line(&error.name));
        }
    } else {
        let count = pool.error_count;
        *text += &format!("errors: {count} data errors, use '-v' for a list\n");
    }
}

fn dedup(text: &mut String, ask: &Args, stats: Option<&DedupStats>) {
    let Some(stats) = stats.filter(|stats| stats.entries > 0) else {
        *text += "\n dedup: no DDT entries\n";
        return;
    };
    let bytes = |n: u64| {
        if ask.style.is_exact {
            n.to_string()
        } else {
            number::bytes(n)
        }
    };
    *text += &format!(
        "\n dedup: DDT entries {}, size {} on disk, {} in core",
        stats.entries,
        bytes(stats.disk_bytes),
        bytes(stats.core_bytes)
    );
    if stats.cached_bytes > 0 {
        let hundredths =
            u128::from(stats.cached_bytes) * 10_000 / u128::from(stats.core_bytes.max(1));
        let (whole, part) = (hundredths / 100, hundredths % 100);
        *text += &format!(
            ", {} cached ({whole}.{part:02}%)",
            bytes(stats.cached_bytes)
        );
    }
    *text += "\n\n";
    *text += HISTOGRAM_HEAD;
    let mut total = DedupBucket::default();
    for bucket in &stats.buckets {
        let label = 1u64
            .checked_shl(u32::from(bucket.refcount_log2))
            .unwrap_or(u64::MAX);
        histogram_row(text, &number::count(label), bucket);
        add(&mut total, bucket);
    }
    histogram_row(text, "Total", &total);
    *text += "\n";
}

fn histogram_row(text: &mut String, label: &str, bucket: &DedupBucket) {
    let count = number::count;
    *text += &format!(
        "{label:>6}   {:>6}   {:>5}   {:>5}   {:>5}   {:>6}   {:>5}   {:>5}   {:>5}\n",
        count(bucket.blocks),
        count(bucket.logical_bytes),
        count(bucket.physical_bytes),
        count(bucket.allocated_bytes),
        count(bucket.referenced_blocks),
        count(bucket.referenced_logical_bytes),
        count(bucket.referenced_physical_bytes),
        count(bucket.referenced_allocated_bytes)
    );
}

fn add(total: &mut DedupBucket, bucket: &DedupBucket) {
    let sum = |total: &mut u64, part: u64| *total = total.saturating_add(part);
    sum(&mut total.blocks, bucket.blocks);
    sum(&mut total.logical_bytes, bucket.logical_bytes);
    sum(&mut total.physical_bytes, bucket.physical_bytes);
    sum(&mut total.allocated_bytes, bucket.allocated_bytes);
    sum(&mut total.referenced_blocks, bucket.referenced_blocks);
    sum(
        &mut total.referenced_logical_bytes,
        bucket.referenced_logical_bytes,
    );
    sum(
        &mut total.referenced_physical_bytes,
        bucket.referenced_physical_bytes,
    );
    sum(
        &mut total.referenced_allocated_bytes,
        bucket.referenced_allocated_bytes,
    );
}

/// The URL prefix of the pages that explain conditions.
pub const SEE: &str = "https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-";

const HISTOGRAM_HEAD: &str = concat!(
    "bucket              allocated                       referenced          \n",
    "______   ______________________________   ______________________________\n",
    "refcnt   blocks   LSIZE   PSIZE   DSIZE   blocks   LSIZE   PSIZE   DSIZE\n",
    "------   ------   -----   -----   -----   ------   -----   -----   -----\n",
);
