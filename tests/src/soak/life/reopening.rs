//! Exports and power cuts during a run, and the checks at the next open.

use super::*;

/// One of this many snapshots is compared at each reopening; all at the end of a run.
const SNAPSHOT_TURNS: u64 = 3;
/// At one of this many reopenings a pool with a checkpoint returns to it.
const REWIND_TURNS: u64 = 2;
/// The end of a difference about files without a name.
const ORPHANS: &str = " files left unlinked";

impl Lived<'_> {
    /// The first candidate model that the pool matches.
    ///
    /// With `is_amid` a txg was committed during an operation: a file without names may still wait for its
    /// free, which takes transactions of its own.
    pub(super) fn demand(
        &self,
        read: &View,
        models: &[(Model, u64)],
        is_amid: bool,
    ) -> Result<usize, String> {
        let mut all = vec![];
        for (number, (model, _)) in models.iter().enumerate() {
            // Verification has read all blocks. Of the snapshots' files, a part is compared each time.
            let mut differences = model.differences_in_turn(read, self.openings, SNAPSHOT_TURNS);
            if is_amid || self.has_orphans {
                differences.retain(|line| !line.ends_with(ORPHANS));
            }
            if differences.is_empty() {
                return Ok(number);
            }
            all.push(format!(
                "differs at txg {} from model {number}:\n  {}",
                read.inner().uberblock().txg,
                differences.join("\n  ")
            ));
        }
        Err(all.join("\n"))
    }

    /// Opens every file system.
    ///
    /// Files that a power cut left unlinked are freed when their file system is opened; afterwards none may
    /// remain.
    pub(super) fn open_all(&mut self, pool: &Pool) -> Result<(), String> {
        self.has_orphans = false;
        let heads = self.life.model.heads.iter();
        for (name, _) in heads.filter(|(_, head)| matches!(head.content, Content::Files(_))) {
            let opened = pool.file_system(name);
            opened.map_err(|error| failure_text(&format!("opening {name}"), &error))?;
        }
        Ok(())
    }

    pub(super) fn reopen(&mut self) -> Result<Goes, String> {
        self.note(None)?;
        let pool = self.pool.take().ok_or("not open")?;
        self.life.close_file_systems();
        self.open_all(&pool)?;
        pool.export()
            .map_err(|error| failure_text("export", &error))?;
        self.states.clear();
        self.logs = Logs::default();
        self.stats.reopened += 1;
        self.may_be_torn = false;
        self.life.log.push("exported".to_owned());
        let kept = self.kept.clone();
        let kept = kept.filter(|_| self.openings.is_multiple_of(REWIND_TURNS));
        self.rewinds = kept.is_some();
        if let Some(kept) = kept {
            self.life.model = kept.model;
            self.stats.rewound += 1;
            self.life.log.push("rewound to the checkpoint".to_owned());
        }
        let state = State::of(Txg(0), self.life.model.clone(), self.next);
        // The checkpoint may have logs on the devices that were lost since.
        let found_logs = match self.rewinds && !self.absent.is_disjoint(&self.log_disks) {
            true => FoundLogs::Discard,
            false => FoundLogs::Replay,
        };
        self.open_again(usize::MAX, |_| Ok(state), found_logs)
    }

    /// The power fails, and log devices without redundancy are lost.
    ///
    /// Only the promises on them may be lost, and a log is discarded only on request.
    pub(super) fn lose_log(&mut self, seed: u64) -> Result<Goes, String> {
        if self.log_disks.is_empty() || !self.absent.is_disjoint(&self.log_disks) {
            return Ok(Goes::On);
        }
        self.stats.lost_logs += 1;
        self.cut_with(seed, true)
    }

    pub(super) fn cut(&mut self, seed: u64) -> Result<Goes, String> {
        self.cut_with(seed, false)
    }

    fn cut_with(&mut self, seed: u64, loses_logs: bool) -> Result<Goes, String> {
        self.note(None)?;
        self.cut_now(seed, loses_logs)
    }

    /// Like [`Lived::cut`], after a txg of which it is not known whether it was committed.
    pub(super) fn cut_now(&mut self, seed: u64, loses_logs: bool) -> Result<Goes, String> {
        self.life.close_file_systems();
        self.pool = None;
        let mut rng = Seed::new(seed);
        let recorded = self.world.recorded();
        // Usually within the last events.
        let window = if rng.below(2) == 0 {
            200
        } else {
            recorded as u64
        };
        let back = usize::try_from(rng.below(window + 1)).unwrap_or(0);
        // The pool found at the last open may have been on the disk that was lost since. It is certain only
        // once the open has committed its own txg.
        let count = recorded.saturating_sub(back).max(self.none_went_before);
        let cut = match rng.below(8) {
            0 => PowerCut::EverythingWritten,
            1 => PowerCut::NothingUnflushed,
            2 => PowerCut::First(1 + rng.below(6) as usize),
            3 => PowerCut::AllBut(rng.below(20) as usize),
            _ => PowerCut::Torn(rng.fork()),
        };
        let broken: u64 = self
            .world
            .disks()
            .iter()
            .map(|disk| disk.broken_promises())
            .sum();
        self.stats.broken_promises += broken;
        self.world = self.world.reborn(count, &cut);
        if loses_logs {
            self.absent.extend(&self.log_disks);
            self.harmed.extend(&self.log_disks);
        }
        for number in &self.absent {
            self.disk(*number).set_absent(true);
        }
        self.stats.cuts += 1;
        self.may_be_torn = true;
        self.has_orphans = true;
        self.life.log.push(format!(
            "power cut after {count} of {recorded} requests, {cut:?}{}",
            if loses_logs { ", log devices gone" } else { "" }
        ));
        let least = self
            .acknowledged
            .iter()
            .rev()
            .find(|(events, _)| *events <= count)
            .map_or(Txg(0), |(_, txg)| *txg);
        let states = std::mem::take(&mut self.states);
        let last = self.committed;
        // The log devices may have been lost earlier, and the power failed before the discard was
        // committed.
        let is_undecided = count < self.opened_after && !self.absent.is_disjoint(&self.log_disks);
        let found_logs = match loses_logs || is_undecided {
            true => FoundLogs::Discard,
            false => FoundLogs::Replay,
        };
        let expected = |txg| {
            if txg < least || txg > last {
                return Err(format!(
                    "txg {txg} is found; {least} was acknowledged, {last} is the last that was written"
                ));
            }
            let at = states.into_iter().find(|state| state.txg == txg);
            at.ok_or_else(|| format!("nothing is known of txg {txg}"))
        };
        self.open_again(count, expected, found_logs)
    }

    /// Judges the content of the disks, then opens the pool again and judges what the intent logs restored.
    ///
    /// `expected` returns the possible content at a txg, `count` is the number of requests that the disks
    /// had received.
    fn open_again(
        &mut self,
        count: usize,
        expected: impl FnOnce(Txg) -> Result<State, String>,
        found_logs: FoundLogs,
    ) -> Result<Goes, String> {
        self.openings += 1;
        let openings = self.openings;
        let is_due = |every: u64| every > 0 && openings.is_multiple_of(every);
        let options = OpenOptions {
            cache_bytes: Some(self.mood.cache_bytes),
            at_checkpoint: self.rewinds,
            ..OpenOptions::default()
        };
        let (state, from) = {
            let candidate = found(&self.world, &self.absent)?;
            let read = view(self.shape, &candidate, &options)
                .map_err(|error| failure_text("opening for reading", &error))?;
            let mut state = expected(read.inner().uberblock().txg)?;
            let mut from = state.from;
            if !state.is_replaying {
                let mut candidates = state.candidates();
                let which = self.demand(&read, &candidates, state.after.is_some())?;
                (state.model, from) = candidates.swap_remove(which);
                self.stats.compared += 1;
            }
            // The logs of a checkpoint go on in blocks that were used since.
            let may_be_torn = self.may_be_torn || self.rewinds;
            verified(&read, &self.may_be_wrong(&read), may_be_torn)?;
            if !self.rewinds {
                self.look_at_checkpoint(&read, &candidate)?;
            }
            // The blocks of logs with a missing device are unknown and stay allocated.
            self.may_leak |= found_logs == FoundLogs::Discard;
            // What a checkpoint keeps is not all that is allocated.
            if is_due(self.options.recount_every) && !self.may_leak && !self.rewinds {
                recounted(&read)?;
                self.stats.recounted += 1;
            }
            (state, from)
        };
        let candidate = found(&self.world, &self.absent)?;
        // Opening writes too, so the power may fail during it.
        self.committed = candidate
            .newest()
            .map_or(Txg(0), |found| found.uberblock.txg);
        self.world.forget();
        self.none_went_before = 0;
        let mut wanted = std::mem::take(&mut self.logs).after(from, count);
        let open_with = |found_logs| {
            let writing = WriteOptions {
                found_logs,
                ..writing()
            };
            open(&self.world, self.shape, &candidate, &options, &writing)
        };
        let mut opened = None;
        if found_logs == FoundLogs::Discard {
            // Promised data must not be discarded without a request. Data promised while the device was
            // absent is stored elsewhere, so all of it is present. An interrupted earlier replay is not
            // checked here.
            let is_promised = wanted.iter().any(|wanted| !wanted.kept.is_empty());
            if is_promised && state.replayed.is_none() {
                opened = open_with(FoundLogs::Replay).ok();
            }
            if opened.is_none() {
                wanted.clear();
            }
        }
        let is_given_up = found_logs == FoundLogs::Discard && opened.is_none();
        let pool = match opened {
            Some(pool) => pool,
            None => open_with(found_logs).map_err(|error| failure_text("opening", &error))?,
        };
        self.mood.force_gangs(&pool);
        self.life.model = state.model.clone();
        if std::mem::take(&mut self.rewinds) {
            self.kept = None;
            self.start(pool);
            return self.read_layout().map(|()| Goes::On);
        }
        if let Some(replayed) = state.replayed.as_ref().filter(|_| !is_given_up) {
            self.life.model = Model::clone(replayed);
            let read = pool.committed();
            let read = read.map_err(|error| failure_text("committed", &error))?;
            self.demand(&read, &[(self.life.model.clone(), 0)], false)
                .map_err(|text| format!("replayed once more: {text}"))?;
        } else if !wanted.is_empty() {
            let read = pool.committed();
            let read = read.map_err(|error| failure_text("committed", &error))?;
            self.brought_back(&read, &wanted)?;
        } else if is_given_up && state.is_replaying {
            // The progress of the replay is not recorded anywhere.
            return Ok(Goes::Out);
        }
        let first = self.committed;
        let last = pool.inner().uberblock().txg;
        // Several opens in a row may fail before their txg is written; each finds the same logs.
        let is_again = state.replayed.is_some() && !is_given_up;
        let is_replayed = state.is_replaying || is_again || !wanted.is_empty();
        let replayed = is_replayed.then(|| Arc::new(self.life.model.clone()));
        self.states = vec![State {
            replayed: replayed.clone(),
            from: self.next,
            then: vec![],
            after: None,
            ..state
        }];
        self.states[0].txg = first;
        for txg in first.0 + 1..=last.0 {
            let mut state = State::of(Txg(txg), self.life.model.clone(), self.next);
            state.is_replaying = is_replayed && txg < last.0;
            state.replayed = replayed.clone().filter(|_| txg < last.0);
            self.states.push(state);
        }
        self.acknowledged = vec![(0, first), (self.world.recorded(), last)];
        self.stats.txgs += last.0 - first.0;
        self.committed = last;
        if self.has_orphans && self.openings.is_multiple_of(2) {
            self.open_all(&pool)?;
        }
        self.pool = Some(pool);
        self.opened_after = self.world.recorded();
        self.read_layout()?;
        Ok(Goes::On)
    }

    /// The disks that may hold wrong data: those that were made to fail, and those that are not complete yet.
    pub(super) fn may_be_wrong(&self, read: &View) -> BTreeSet<String> {
        let harmed = self.harmed.iter().map(|disk| path(*disk));
        let topology = read.inner().store().topology();
        let leaves = topology.tree.leaves();
        let incomplete = leaves.filter(|(leaf, _)| !topology.health.missed(*leaf).is_empty());
        let incomplete = incomplete.filter_map(|(_, node)| node.config.path.clone());
        // What a disk of the start lacks, it lacks because it failed.
        let is_new = |path: &String| {
            let number = path
                .strip_prefix("/sim/d")
                .and_then(|text| text.parse().ok());
            let is_spare = !path.starts_with('/');
            is_spare || number.is_some_and(|number: usize| number >= self.shape.disks())
        };
        harmed.chain(incomplete.filter(is_new)).collect()
    }

    /// Checks that intent logs restored exactly the promises, or additional work in progress.
    fn brought_back(&mut self, read: &View, wanted: &[Wanted]) -> Result<(), String> {
        for one in wanted {
            let is_it = |content: &_| {
                let mut differences = content_differences(read, &one.dataset, content);
                if self.has_orphans {
                    differences.retain(|line| !line.ends_with(ORPHANS));
                }
                match differences.is_empty() {
                    true => Ok(()),
                    false => Err(differences.join("\n  ")),
                }
            };
            let shared = |content: &_, effect: &_| {
                let there = bytes_of(read, &one.dataset, content, effect)?;
                let (at, length) = effect.range()?;
                let new = effect.bytes()?;
                let same = there.get(at..)?.iter().zip(new);
                let same = same.take_while(|(one, other)| one == other).count();
                (same > 0 && same < length).then_some(same)
            };
            let base = &self.life.model;
            let (content, more) = one.find(base, is_it, shared)?;
            if let Some(head) = self.life.model.heads.get_mut(&*one.dataset) {
                head.content = content;
            }
            self.stats.brought_back += (one.kept.len() + more) as u64;
            self.stats.torn += u64::from(!one.maybe.is_empty());
        }
        Ok(())
    }
}
