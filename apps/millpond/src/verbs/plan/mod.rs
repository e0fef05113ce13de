//! `millpond plan`: compares the layouts that disks can have.

mod picture;

use super::Global;
use super::flag;
use crate::session::{Ending, Session};
use crate::text::number;
use clap::{Arg, ArgMatches, Command, value_parser};
use millpond_plan::{Assumptions, Goal, Plan, plans};
use serde_json::json;
use std::io;
use std::path::PathBuf;

/// Layouts shown as text. `--all` and `--json` show all.
const SHOWN_MAX: usize = 8;

/// Defines the command.
pub fn command() -> Command {
    let number = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("NUMBER")
            .value_parser(value_parser!(f64))
            .help(help)
    };
    Command::new("plan")
        .about("Compare the layouts that disks can have: space, safety, speed, growth")
        .long_about(
            "Shows for each layout of equal disks how much space a pool made so has, which failures it \
             survives and how likely its loss is, how fast it is, what a rebuild reads and how it grows. \
             The best one comes first. Space is exact, for records of 128 KiB. Chances assume that disks \
             fail independently; speeds are those of the disks. No device is opened.\n\n\
             dRAID is not planned.",
        )
        .arg(
            Arg::new("disks")
                .value_name("DISKS")
                .required(true)
                .value_parser(value_parser!(u64))
                .help("How many disks"),
        )
        .arg(
            Arg::new("size")
                .value_name("SIZE")
                .required(true)
                .value_parser(size)
                .help("The size of each: 4T is 4 TiB, 4TB is 4 * 10^12 bytes"),
        )
        .arg(
            Arg::new("for")
                .long("for")
                .value_name("GOAL")
                .value_parser(["balance", "space", "safety", "speed"])
                .default_value("balance")
                .help("What matters most; balance: the most space that is safe"),
        )
        .arg(
            Arg::new("ashift")
                .long("ashift")
                .value_name("N")
                .value_parser(value_parser!(u64))
                .default_value("12")
                .help("The sector size as a power of two"),
        )
        .arg(number("failure-rate", "Percent of disks that fail in a year [default: 1.5]"))
        .arg(number("replace-hours", "Hours until a failed disk is replaced [default: 24]"))
        .arg(number("rebuild-speed", "MB/s that a rebuild writes [default: 100]"))
        .arg(number("fill", "Percent of the pool in use when a disk fails [default: 80]"))
        .arg(number("disk-speed", "MB/s of one disk [default: 200]"))
        .arg(number("disk-reads", "Reads at random per second of one disk [default: 150]"))
        .arg(number(
            "read-errors",
            "Unreadable bits, not found by a scrub, for each 10^16 bits read [default: 1]",
        ))
        .arg(number(
            "safe",
            "Percent of pools that may lose data in a year and are still safe [default: 0.1]",
        ))
        .arg(
            Arg::new("svg")
                .long("svg")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Write a picture"),
        )
        .arg(flag("all", "Show all layouts"))
}

/// Plans.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let ask = assumptions(matches);
    let goal = match matches.get_one::<String>("for").map(String::as_str) {
        Some("space") => Goal::Space,
        Some("safety") => Goal::Safety,
        Some("speed") => Goal::Speed,
        _ => Goal::Balance,
    };
    let found = plans(&ask, goal).map_err(super::global::refused)?;
    let shown = match matches.get_flag("all") || global.is_json {
        true => found.len(),
        false => SHOWN_MAX,
    };
    let shown = found.get(..shown).unwrap_or(&found);
    if let Some(path) = matches.get_one::<PathBuf>("svg") {
        let written = std::fs::write(path, picture::svg(shown));
        written.map_err(|error| super::global::refused(format!("{}: {error}", path.display())))?;
    }
    if global.is_json {
        write_json(session, &ask, &found)?;
    } else {
        write_text(session, &ask, shown, found.len())?;
    }
    Ok(0)
}

fn assumptions(matches: &ArgMatches) -> Assumptions {
    let whole = |name: &str| matches.get_one::<u64>(name).copied();
    let number = |name: &str| matches.get_one::<f64>(name).copied();
    let usual = Assumptions::hard_disks(whole("disks").unwrap_or(0), whole("size").unwrap_or(0));
    let percent = |name: &str, usual: f64| number(name).map_or(usual, |percent| percent / 100.0);
    let megabytes = |name: &str, usual: f64| number(name).map_or(usual, |mega| mega * 1e6);
    Assumptions {
        ashift: whole("ashift").unwrap_or(usual.ashift),
        yearly_failure: percent("failure-rate", usual.yearly_failure),
        replace_hours: number("replace-hours").unwrap_or(usual.replace_hours),
        rebuild_bytes_per_s: megabytes("rebuild-speed", usual.rebuild_bytes_per_s),
        fill: percent("fill", usual.fill),
        disk_bytes_per_s: megabytes("disk-speed", usual.disk_bytes_per_s),
        disk_reads_per_s: number("disk-reads").unwrap_or(usual.disk_reads_per_s),
        read_errors_per_bit: number("read-errors")
            .map_or(usual.read_errors_per_bit, |count| count / 1e16),
        acceptable_loss: percent("safe", usual.acceptable_loss),
        ..usual
    }
}

/// Parses a size: `4T` in powers of 1024, `4TB` in powers of 1000.
fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no size, like 4T or 4TB");
    let upper = text.to_ascii_uppercase();
    let (digits, step) = match upper.strip_suffix("IB") {
        Some(digits) => (digits, 1024f64),
        None => match upper.strip_suffix('B') {
            Some(digits) => (digits, 1000.0),
            None => (upper.as_str(), 1024.0),
        },
    };
    let letter = digits.chars().next_back().filter(char::is_ascii_alphabetic);
    let (digits, power) = match letter {
        None => (digits, 0),
        Some(letter) => {
            let power = "KMGTPE".find(letter).ok_or_else(wrong)?;
            (digits.trim_end_matches(letter), power + 1)
        }
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let bytes = number * step.powi(i32::try_from(power).map_err(|_| wrong())?);
    match bytes.is_finite() && (1.0..9e18).contains(&bytes) {
        true => Ok(bytes as u64),
        false => Err(wrong()),
    }
}

fn write_text(
    session: &mut Session,
    ask: &Assumptions,
    shown: &[Plan],
    count: usize,
) -> io::Result<()> {
    let out = &mut *session.out;
    let width = |plan: &Plan| plan.layout.to_string().len();
    let width = shown
        .iter()
        .map(width)
        .max()
        .unwrap_or(0)
        .max("LAYOUT".len());
    writeln!(
        out,
        "{:width$}  USABLE  SURVIVES  NEXT KILLS  POOL LOST  DATA LOST  READ MB/s  WRITE MB/s  READS/s  REBUILD",
        "LAYOUT"
    )?;
    for plan in shown {
        let risk = &plan.risk;
        let survives = match risk.always_survived == risk.survived_at_most {
            true => risk.always_survived.to_string(),
            false => format!("{} to {}", risk.always_survived, risk.survived_at_most),
        };
        writeln!(
            out,
            "{:width$}  {:>6}  {survives:>8}  {:>10}  {:>9}  {:>9}  {:>9.0}  {:>10.0}  {:>7.0}  {:>6.1}h",
            plan.layout.to_string(),
            number::bytes(plan.space.usable_bytes),
            percent(risk.next_kills),
            percent(risk.yearly_loss),
            percent(risk.yearly_damage),
            plan.read_bytes_per_s / 1e6,
            plan.write_bytes_per_s / 1e6,
            plan.reads_per_s,
            plan.rebuild_hours,
        )?;
    }
    writeln!(out)?;
    for line in picture::bars(shown, width) {
        writeln!(out, "{line}")?;
    }
    if let Some(best) = shown.first() {
        write_best(out, ask, best)?;
    }
    if count > shown.len() {
        writeln!(out, "{} more with --all", count - shown.len())?;
    }
    Ok(())
}

fn write_best(out: &mut dyn io::Write, ask: &Assumptions, best: &Plan) -> io::Result<()> {
    let growth = best.layout.kind.growth();
    writeln!(out)?;
    writeln!(out, "{}", best.layout)?;
    writeln!(out, "  it grows {growth}")?;
    if best.layout.kind.parity() > 0 {
        let read = number::bytes(best.rebuild_read_bytes);
        let [_, two, three, _] = best.risk.lost_with;
        writeln!(
            out,
            "  a rebuild reads {read} from the other disks, in {:.1} hours",
            best.rebuild_hours
        )?;
        writeln!(
            out,
            "  lost with two failures at once: {}, with three: {}",
            percent(two),
            percent(three)
        )?;
    } else {
        writeln!(out, "  it survives no failure")?;
    }
    let ashift = ask.ashift;
    let words = best.layout.create_arguments();
    writeln!(out, "  zpool create -o ashift={ashift} POOL {words}")
}

/// A share as percent, with two significant digits.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        percent if percent <= 0.0 => "0%".into(),
        percent if percent >= 9.95 => format!("{percent:.0}%"),
        percent if percent >= 0.0995 => format!("{percent:.1}%"),
        percent if percent >= 0.000_995 => format!("{percent:.3}%"),
        percent => format!("{percent:.0e}%"),
    }
}

fn write_json(session: &mut Session, ask: &Assumptions, found: &[Plan]) -> io::Result<()> {
    let plans: Vec<_> = found
        .iter()
        .map(|plan| {
            let (layout, space, risk) = (&plan.layout, &plan.space, &plan.risk);
            json!({
                "layout": layout.to_string(), "vdevs": layout.vdevs,
                "disks_per_vdev": layout.kind.disks(), "parity": layout.kind.parity(),
                "spares": layout.spares, "create": layout.create_arguments(),
                "disk_bytes": space.disk_bytes, "size_bytes": space.size_bytes,
                "usable_bytes": space.usable_bytes, "slop_bytes": space.slop_bytes,
                "spare_bytes": space.spare_bytes,
                "always_survived": risk.always_survived, "survived_at_most": risk.survived_at_most,
                "lost_with": risk.lost_with, "next_kills": risk.next_kills,
                "yearly_loss": risk.yearly_loss, "yearly_damage": risk.yearly_damage,
                "read_bytes_per_s": plan.read_bytes_per_s,
                "write_bytes_per_s": plan.write_bytes_per_s, "reads_per_s": plan.reads_per_s,
                "rebuild_read_bytes": plan.rebuild_read_bytes, "rebuild_hours": plan.rebuild_hours,
                "growth": layout.kind.growth(),
            })
        })
        .collect();
    let whole = json!({
        "disks": ask.disks, "disk_bytes": ask.disk_bytes, "ashift": ask.ashift,
        "yearly_failure": ask.yearly_failure, "replace_hours": ask.replace_hours,
        "rebuild_bytes_per_s": ask.rebuild_bytes_per_s, "fill": ask.fill,
        "read_errors_per_bit": ask.read_errors_per_bit, "plans": plans,
    });
    writeln!(session.out, "{whole}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_or_decimal() {
        assert_eq!(size("4T"), Ok(4 << 40));
        assert_eq!(size("4TiB"), Ok(4 << 40));
        assert_eq!(size("4TB"), Ok(4_000_000_000_000));
        assert_eq!(size("1.5g"), Ok(3 << 29));
        assert_eq!(size("512"), Ok(512));
        for wrong in ["", "T", "4X", "-1T", "1e30T", "0"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shares_have_two_digits() {
        assert_eq!(percent(0.0), "0%");
        assert_eq!(percent(1.0), "100%");
        assert_eq!(percent(0.0909), "9.1%");
        assert_eq!(percent(0.00012), "0.012%");
        assert_eq!(percent(2e-9), "2e-7%");
    }
}
