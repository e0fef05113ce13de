//! `zpool status -j`.

use super::condition_text;
use super::groups::{self, TITLED};
use super::list::{json_head, json_key};
use super::scan_text::top_level;
use super::scripts::Columns;
use super::status::{Args, SEE};
use super::vdev_name::Naming;
use crate::session::{Environment, Failure, Session};
use crate::text::json::{self, Style};
use crate::text::{date, number};
use millpond_control::{
    ActivityState, PoolInfo, ProgressState, RebuildInfo, ScanFunction, ScanInfo, SpareUse,
    VdevActivity, VdevAux, VdevClass, VdevInfo, VdevKind, VdevState,
};
use serde_json::{Map, Value as Json};

/// Prints all pools as one object.
pub fn print(
    session: &mut Session,
    ask: &Args,
    pools: &[&PoolInfo],
    columns: Option<&Columns>,
) -> Result<(), Failure> {
    let mut all = Map::new();
    for pool in pools {
        let object = Writer {
            ask,
            environment: session.environment,
            pool,
            columns,
        }
        .pool();
        all.insert(json_key(pool, ask.is_keyed_by_guid), object.into());
    }
    let mut document = json::document("zpool status");
    document.insert("pools".into(), all.into());
    writeln!(session.out, "{}", Json::Object(document))?;
    Ok(())
}

/// The members that identify a vdev, at the start of every vdev object.
pub fn json_identity(naming: Naming, vdev: &VdevInfo, style: Style) -> Map<String, Json> {
    let mut object = Map::new();
    let mut put = |key: &str, value: Json| {
        object.insert(key.to_string(), value);
    };
    put("name", naming.of(vdev).into());
    put("vdev_type", vdev.kind.word().into());
    put("guid", style.digits(vdev.guid));
    for (key, text) in [
        ("path", &vdev.path),
        ("phys_path", &vdev.phys_path),
        ("devid", &vdev.devid),
    ] {
        if let Some(text) = text {
            put(key, text.clone().into());
        }
    }
    put("class", class_word(vdev).into());
    put("state", state_word(vdev).into());
    object
}

fn class_word(vdev: &VdevInfo) -> &'static str {
    if vdev.kind == VdevKind::Hole {
        return "hole";
    }
    match vdev.class {
        VdevClass::Normal => "normal",
        VdevClass::Log => "log",
        VdevClass::Special => "special",
        VdevClass::Dedup => "dedup",
        VdevClass::Cache => "l2cache",
        VdevClass::Spare => "spare",
    }
}

fn state_word(vdev: &VdevInfo) -> &'static str {
    match vdev.spare_use {
        Some(_) => groups::state_word(vdev),
        None => vdev.state.raw_word(),
    }
}

struct Writer<'a> {
    ask: &'a Args,
    environment: &'a Environment,
    pool: &'a PoolInfo,
    columns: Option<&'a Columns>,
}

impl Writer<'_> {
    fn pool(&self) -> Map<String, Json> {
        let (ask, pool) = (self.ask, self.pool);
        let mut object = json_head(pool, ask.style, false);
        if let Some(found) = ask.condition(pool) {
            let (status, action) = condition_text::live(found, pool, &self.environment.zone);
            object.insert(
                "status".into(),
                format!("{}\n", status.replace('\n', "\n\t")).into(),
            );
            object.insert(
                "action".into(),
                format!("{}\n", action.replace('\n', "\n\t")).into(),
            );
            if let Some(id) = found.id() {
                object.insert("msgid".into(), format!("ZFS-8000-{id}").into());
                object.insert("moreinfo".into(), format!("{SEE}{id}").into());
            }
        }
        if pool.scan.is_some() || !pool.rebuilds.is_empty() {
            let scan = pool.scan.unwrap_or_default();
            object.insert("scan_stats".into(), self.scan(&scan).into());
        }
        self.removal(&mut object);
        self.checkpoint(&mut object);
        self.expansion(&mut object);
        self.vdevs(&mut object);
        if ask.has_dedup {
            object.insert("dedup_stats".into(), self.dedup());
        }
        object.insert("error_count".into(), self.count(pool.error_count));
        if ask.is_verbose && pool.error_count > 0 {
            let list: Vec<Json> = pool.errors.iter().map(|e| e.name.clone().into()).collect();
            object.insert("errlist".into(), list.into());
        }
        object
    }

    fn count(&self, number: u64) -> Json {
        self.ask.style.value(&self.ask.count(number))
    }

    /// Seconds, which are never rounded.
    fn digits(&self, number: u64) -> Json {
        self.ask.style.value(&number.to_string())
    }

    fn bytes(&self, number: u64) -> Json {
        let text = if self.ask.style.is_exact {
            number.to_string()
        } else {
            number::bytes(number)
        };
        self.ask.style.value(&text)
    }

    fn time(&self, time_s: u64) -> Json {
        let text = match (time_s, self.ask.style.is_exact) {
            (_, true) => time_s.to_string(),
            (0, false) => "-".into(),
            (_, false) => date::with_zone(time_s, &self.environment.zone),
        };
        self.ask.style.value(&text)
    }

    fn scan(&self, scan: &ScanInfo) -> Map<String, Json> {
        let function = match scan.function {
            ScanFunction::None => "NONE",
            ScanFunction::Scrub => "SCRUB",
            ScanFunction::Resilver => "RESILVER",
        };
        let members = [
            ("function", function.into()),
            ("state", progress_word(scan.state).into()),
            ("start_time", self.time(scan.start_s)),
            ("end_time", self.time(scan.end_s)),
            ("to_examine", self.bytes(scan.to_examine_bytes)),
            ("examined", self.bytes(scan.examined_bytes)),
            ("skipped", self.bytes(scan.skipped_bytes)),
            ("processed", self.bytes(scan.processed_bytes)),
            ("errors", self.count(scan.errors)),
            ("bytes_per_scan", self.bytes(scan.pass_examined_bytes)),
            ("pass_start", self.digits(scan.pass_start_s)),
            ("scrub_pause", self.time(scan.paused_at_s)),
            ("scrub_spent_paused", self.digits(scan.spent_paused_s)),
            ("issued_bytes_per_scan", self.bytes(scan.pass_issued_bytes)),
            ("issued", self.bytes(scan.issued_bytes)),
        ];
        let mut object: Map<String, Json> = members
            .into_iter()
            .map(|(key, value)| (key.to_string(), value))
            .collect();
        let newer = scan
            .error_scrub
            .filter(|errors| errors.start_s >= scan.start_s);
        if let Some(errors) = newer {
            object.insert("err_scrub_func".into(), "ERRORSCRUB".into());
            object.insert("err_scrub_state".into(), progress_word(errors.state).into());
            object.insert("err_scrub_start_time".into(), self.time(errors.start_s));
            object.insert("err_scrub_end_time".into(), self.time(errors.end_s));
            object.insert("err_scrub_examined".into(), self.count(errors.examined));
            object.insert("err_scrub_to_examine".into(), self.count(errors.to_examine));
            object.insert("err_scrub_pause".into(), self.time(errors.paused_at_s));
        }
        let rebuilds = self.pool.rebuilds.iter().filter_map(|rebuild| {
            let vdev = top_level(self.pool, rebuild.top_id)?;
            let stats = self.rebuild(vdev, rebuild);
            Some((self.ask.naming.of(vdev), stats.into()))
        });
        let rebuilds: Map<String, Json> = rebuilds.collect();
        if !rebuilds.is_empty() {
            object.insert("rebuild_stats".into(), rebuilds.into());
        }
        object
    }

    fn rebuild(&self, vdev: &VdevInfo, rebuild: &RebuildInfo) -> Map<String, Json> {
        let mut stats = json_identity(self.ask.naming, vdev, self.ask.style);
        let state = match rebuild.state {
            ProgressState::None => "NONE",
            ProgressState::Active => "ACTIVE",
            ProgressState::Finished => "COMPLETE",
            ProgressState::Canceled => "CANCELED",
        };
        let members = [
            ("state", state.into()),
            ("start_time", self.time(rebuild.start_s)),
            ("end_time", self.time(rebuild.end_s)),
            ("scan_time", self.duration(rebuild.scan_time_ms)),
            ("scanned", self.bytes(rebuild.scanned_bytes)),
            ("issued", self.bytes(rebuild.issued_bytes)),
            ("rebuilt", self.bytes(rebuild.rebuilt_bytes)),
            ("to_scan", self.bytes(rebuild.estimated_bytes)),
            ("errors", self.count(rebuild.errors)),
            ("pass_time", self.duration(rebuild.pass_time_ms)),
            ("pass_scanned", self.bytes(rebuild.pass_scanned_bytes)),
            ("pass_issued", self.bytes(rebuild.pass_issued_bytes)),
            ("pass_skipped", self.bytes(rebuild.skipped_bytes)),
        ];
        let members = members.into_iter();
        stats.extend(members.map(|(key, value)| (key.to_owned(), value)));
        stats
    }

    fn duration(&self, time_ms: u64) -> Json {
        match self.ask.style.is_exact {
            true => self.digits(time_ms),
            false => {
                let text = number::time(time_ms.saturating_mul(1_000_000));
                self.ask.style.value(&text)
            }
        }
    }

    fn removal(&self, object: &mut Map<String, Json>) {
        let Some(removal) = self.pool.removal else {
            return;
        };
        let mut stats = Map::new();
        if let Some(vdev) = top_level(self.pool, removal.top_id) {
            stats.extend(json_identity(self.ask.naming, vdev, self.ask.style));
        }
        stats.insert("state".into(), progress_word(removal.state).into());
        stats.insert("removing_vdev".into(), self.count(removal.top_id));
        stats.insert("start_time".into(), self.time(removal.start_s));
        stats.insert("end_time".into(), self.time(removal.end_s));
        stats.insert("to_copy".into(), self.bytes(removal.to_copy_bytes));
        stats.insert("copied".into(), self.bytes(removal.copied_bytes));
        stats.insert("mapping_memory".into(), self.bytes(removal.mapping_bytes));
        object.insert("removal_stats".into(), stats.into());
    }

    fn checkpoint(&self, object: &mut Map<String, Json>) {
        let Some(checkpoint) = self.pool.checkpoint else {
            return;
        };
        let mut stats = Map::new();
        let state = if checkpoint.is_discarding {
            "DISCARDING"
        } else {
            "EXISTS"
        };
        stats.insert("state".into(), state.into());
        stats.insert("start_time".into(), self.time(checkpoint.start_s));
        stats.insert("space".into(), self.bytes(checkpoint.space_bytes));
        object.insert("checkpoint_stats".into(), stats.into());
    }

    fn expansion(&self, object: &mut Map<String, Json>) {
        let Some(expansion) = self.pool.expansion else {
            return;
        };
        let mut stats = Map::new();
        if let Some(vdev) = top_level(self.pool, expansion.top_id) {
            stats.extend(json_identity(self.ask.naming, vdev, self.ask.style));
        }
        stats.insert("state".into(), progress_word(expansion.state).into());
        stats.insert("expanding_vdev".into(), self.count(expansion.top_id));
        stats.insert("start_time".into(), self.time(expansion.start_s));
        stats.insert("end_time".into(), self.time(expansion.end_s));
        stats.insert("to_reflow".into(), self.bytes(expansion.to_reflow_bytes));
        stats.insert("reflowed".into(), self.bytes(expansion.reflowed_bytes));
        let waiting = u64::from(expansion.is_waiting_for_resilver);
        stats.insert("waiting_for_resilver".into(), self.count(waiting));
        object.insert("raidz_expand_stats".into(), stats.into());
    }

    fn vdevs(&self, object: &mut Map<String, Json>) {
        let pool = self.pool;
        let root_name = pool.name.clone();
        let mut vdevs = Map::new();
        if self.ask.is_flat {
            for vdev in groups::of_class(pool, VdevClass::Normal) {
                self.flat(vdev, &root_name, &mut vdevs);
            }
        }
        let mut root = self.vdev(&pool.root, &root_name, None);
        let children: Map<String, Json> = groups::of_class(pool, VdevClass::Normal)
            .filter(|vdev| self.is_shown(vdev))
            .map(|vdev| self.named(vdev, &root_name))
            .collect();
        if !children.is_empty() {
            root.insert("vdevs".into(), children.into());
        }
        vdevs.insert(root_name.clone(), root.into());
        object.insert("vdevs".into(), vdevs.into());
        let groups = TITLED
            .iter()
            .map(|(class, title)| (*title, groups::of_class(pool, *class).collect::<Vec<_>>()))
            .chain([
                ("l2cache", pool.caches.iter().collect::<Vec<_>>()),
                ("spares", pool.spares.iter().collect()),
            ]);
        for (title, members) in groups.filter(|(_, members)| !members.is_empty()) {
            let members: Map<String, Json> = members
                .into_iter()
                .filter(|vdev| self.is_shown(vdev))
                .map(|vdev| self.named(vdev, &root_name))
                .collect();
            object.insert(title.into(), members.into());
        }
    }

    fn is_shown(&self, vdev: &VdevInfo) -> bool {
        let has_errors = vdev
            .read_errors
            .max(vdev.write_errors)
            .max(vdev.checksum_errors)
            > 0;
        vdev.kind != VdevKind::Indirect
            && (!self.ask.only_unhealthy_vdevs || vdev.state != VdevState::Healthy || has_errors)
    }

    fn flat(&self, vdev: &VdevInfo, parent: &str, all: &mut Map<String, Json>) {
        let name = self.ask.naming.of(vdev);
        if vdev.children.is_empty() {
            all.insert(name, self.vdev(vdev, "", Some(parent)).into());
            return;
        }
        for child in &vdev.children {
            self.flat(child, &name, all);
        }
    }

    fn named(&self, vdev: &VdevInfo, parent: &str) -> (String, Json) {
        let name = self.ask.naming.of(vdev);
        let parent = self.ask.is_flat.then_some(parent);
        let mut object = self.vdev(vdev, "", parent);
        let children: Map<String, Json> = vdev
            .children
            .iter()
            .filter(|child| self.is_shown(child))
            .map(|child| self.named(child, &name))
            .collect();
        if !children.is_empty() {
            object.insert("vdevs".into(), children.into());
        }
        (name, object.into())
    }

    /// One vdev without its children. `root_name` is the root's name.
    fn vdev(&self, vdev: &VdevInfo, root_name: &str, parent: Option<&str>) -> Map<String, Json> {
        let ask = self.ask;
        let mut object = json_identity(ask.naming, vdev, ask.style);
        if vdev.kind == VdevKind::Root {
            object.insert("name".into(), root_name.into());
        }
        if let Some(parent) = parent {
            object.insert("parent".into(), parent.into());
        }
        if vdev.spare_use.is_none() {
            for (key, number) in [
                ("alloc_space", vdev.allocated_bytes),
                ("total_space", vdev.total_bytes),
                ("def_space", vdev.deflated_bytes),
                ("rep_dev_size", vdev.replaceable_bytes),
                ("ex_dev_size", vdev.expandable_bytes),
                ("self_healed", vdev.self_healed_bytes),
                ("phys_space", vdev.physical_bytes),
            ] {
                if number > 0 {
                    object.insert(key.into(), self.bytes(number));
                }
            }
            object.insert("read_errors".into(), self.count(vdev.read_errors));
            object.insert("write_errors".into(), self.count(vdev.write_errors));
            object.insert("checksum_errors".into(), self.count(vdev.checksum_errors));
            for (key, number) in [
                ("scan_processed", vdev.scan_processed_bytes),
                ("checkpoint_space", vdev.checkpoint_bytes),
            ] {
                if number > 0 {
                    object.insert(key.into(), self.bytes(number));
                }
            }
            if vdev.is_resilver_deferred {
                object.insert("resilver_deferred".into(), true.into());
            }
            if vdev.kind.is_leaf() {
                object.insert("slow_ios".into(), self.count(vdev.slow_ios));
            }
            for (title, value) in self.columns.iter().flat_map(|columns| columns.values(vdev)) {
                // A script cannot change what is known.
                object.entry(title).or_insert_with(|| value.into());
            }
            if ask.has_power {
                object.insert("power_state".into(), "-".into());
            }
            if ask.has_direct {
                let errors = self.count(vdev.direct_verify_errors);
                object.insert("dio_verify_errors".into(), errors);
            }
        }
        self.notes(vdev, &mut object);
        object
    }

    fn notes(&self, vdev: &VdevInfo, object: &mut Map<String, Json>) {
        let ask = self.ask;
        if vdev.is_absent {
            object.insert("not_present".into(), self.count(1));
            object.insert("was".into(), vdev.path.clone().unwrap_or_default().into());
        } else if vdev.aux != VdevAux::None {
            object.insert("aux".into(), vdev.aux.json_word().into());
        } else if vdev.configured_ashift != 0 && vdev.configured_ashift < vdev.physical_ashift {
            object.insert(
                "configured_ashift".into(),
                self.count(vdev.configured_ashift),
            );
            object.insert("physical_ashift".into(), self.count(vdev.physical_ashift));
        }
        if let Some(SpareUse::InOtherPool(Some(pool))) = &vdev.spare_use {
            object.insert("in_use".into(), pool.clone().into());
        }
        if vdev.is_removing {
            object.insert("removing".into(), self.count(1));
        } else if vdev.is_non_allocating {
            object.insert("noalloc".into(), self.count(1));
        }
        if !vdev.kind.is_leaf() {
            return;
        }
        if ask.has_initialize {
            let keys = [
                "init_state",
                "initialized",
                "to_initialize",
                "init_time",
                "init_errors",
            ];
            self.activity(&vdev.initialize, keys, "UNINITIALIZED", object);
        }
        if ask.has_trim {
            let keys = [
                "trim_state",
                "trimmed",
                "to_trim",
                "trim_time",
                "trim_errors",
            ];
            self.activity(&vdev.trim, keys, "UNTRIMMED", object);
            if vdev.is_trim_unsupported {
                object.insert("trim_notsup".into(), self.count(1));
            }
        }
    }

    fn activity(
        &self,
        activity: &VdevActivity,
        keys: [&str; 5],
        never: &str,
        object: &mut Map<String, Json>,
    ) {
        let state = match activity.state {
            ActivityState::None => never,
            ActivityState::Active => "ACTIVE",
            ActivityState::Canceled => "CANCELED",
            ActivityState::Suspended => "SUSPENDED",
            ActivityState::Complete => "COMPLETE",
        };
        let [state_key, done_key, total_key, time_key, errors_key] = keys;
        object.insert(state_key.into(), state.into());
        if activity.state == ActivityState::None {
            return;
        }
        object.insert(done_key.into(), self.bytes(activity.done_bytes));
        object.insert(total_key.into(), self.bytes(activity.total_bytes));
        object.insert(time_key.into(), self.time(activity.action_time_s));
        object.insert(errors_key.into(), self.count(activity.errors));
    }

    fn dedup(&self) -> Json {
        let mut stats = Map::new();
        let entries = self.pool.dedup.as_ref().map_or(0, |dedup| dedup.entries);
        stats.insert("obj_count".into(), self.count(entries));
        stats.insert("ddt_object_stats".into(), Map::new().into());
        stats.into()
    }
}

fn progress_word(state: ProgressState) -> &'static str {
    match state {
        ProgressState::None => "NONE",
        ProgressState::Active => "SCANNING",
        ProgressState::Finished => "FINISHED",
        ProgressState::Canceled => "CANCELED",
    }
}
