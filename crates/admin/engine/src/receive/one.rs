//! Receives one stream.

use super::problem::{of_dataset, of_engine, of_receive, of_stream, parent_of};
use super::properties::{NewEncryption, is_on};
use super::target::{Target, makes_new};
use super::user::UserChange;
use super::{ReceiveFailure, ReceiveRequest, Run};
use millpond_dataset::{IncomingSnapshot, ReceiveTarget, Receiving, ResumePoint};
use millpond_nvlist::NvList;
use millpond_receive::{
    IncomingKind, ReceiveError, ReceiveFrom, ReceiveProblem, ReceiveStep, incoming_snapshot,
    receive, resume_allowances,
};
use millpond_stream::{Begin, Record, RecordSource, StreamFeatures, Taken};

fn kind_of(begin: &Begin, is_new: bool) -> IncomingKind {
    match begin.features.contains(StreamFeatures::RESUMING) {
        true => IncomingKind::Resuming,
        false if is_new => IncomingKind::New,
        false => IncomingKind::Incremental,
    }
}

/// Why a stream cannot be received into a pool that does not exist.
pub(super) fn nowhere(request: &ReceiveRequest<'_>, begin: &Begin) -> ReceiveFailure {
    let is_new = makes_new(begin, request);
    let name = request.name.split('@').next().unwrap_or_default();
    let pool = name.split('/').next().unwrap_or_default();
    let problem = match is_new {
        _ if request.naming != super::Naming::Given => ReceiveProblem::NoBase(name.to_owned()),
        true => ReceiveProblem::NoParent(pool.to_owned()),
        false => ReceiveProblem::NoDestination(name.to_owned()),
    };
    ReceiveFailure {
        kind: kind_of(begin, is_new),
        problem,
    }
}

impl Run<'_> {
    /// Receives the stream that begins with `first`, to its end. `top` is the dataset that the whole package is about.
    pub(super) fn one<S: RecordSource + Send>(
        &mut self,
        stream: &mut S,
        first: &Taken,
        top: &str,
    ) -> Result<(), ReceiveFailure> {
        let Record::Begin(begin) = &first.record else {
            return Ok(());
        };
        if self.request.is_corrective {
            let kind = match begin.from_guid {
                0 => IncomingKind::New,
                _ => IncomingKind::Incremental,
            };
            let corrected = self.correct_one(stream, begin, top);
            return corrected.map_err(|problem| ReceiveFailure { kind, problem });
        }
        let kind = kind_of(begin, makes_new(begin, self.request));
        let received = self.received(stream, first, begin, top);
        received.map_err(|problem| ReceiveFailure { kind, problem })
    }

    fn received<S: RecordSource + Send>(
        &mut self,
        stream: &mut S,
        first: &Taken,
        begin: &Begin,
        top: &str,
    ) -> Result<(), ReceiveProblem> {
        let incoming = incoming_snapshot(first, begin).map_err(|error| of_receive(error, top))?;
        let target = self.target(begin, top)?;
        if target.is_present {
            let name = target.full_name();
            self.steps.push(ReceiveStep::Present { name });
            return skip(stream).map(drop);
        }
        self.check_allowed(&UserChange::Receive(&target.dataset))?;
        if let Some(origin) = &target.origin {
            self.check_allowed(&UserChange::Clone(origin))?;
        }
        self.check_encrypted(begin, &target)?;
        self.check_raw_properties(begin)?;
        self.check_given_encryption(begin, &target)?;
        if let (Some(origin), None) = (&target.origin, &self.request.origin) {
            self.steps.push(ReceiveStep::FoundOrigin {
                name: origin.clone(),
            });
        }
        let step = self.steps.len();
        self.steps.push(ReceiveStep::Stream {
            is_full: begin.from_guid == 0,
            sent_name: incoming.sent_name.clone(),
            name: target.full_name(),
            bytes: None,
            time_ns: 0,
        });
        let clock = &self.pool.inner().env().clock;
        let before_ns = clock.monotonic_ns();
        let length = match self.request.is_dry {
            true => self.tried(stream, first, begin, &incoming, &target)?,
            false => self.applied(stream, first, begin, &incoming, &target)?,
        };
        let took_ns = clock.monotonic_ns().saturating_sub(before_ns);
        if let Some(ReceiveStep::Stream { bytes, time_ns, .. }) = self.steps.get_mut(step) {
            (*bytes, *time_ns) = (length, took_ns);
        }
        Ok(())
    }

    /// Blocks in pointers cannot be encrypted.
    fn check_encrypted(&self, begin: &Begin, target: &Target) -> Result<(), ReceiveProblem> {
        if !begin.features.contains(StreamFeatures::EMBEDDED) {
            return Ok(());
        }
        match self.new_encryption(begin, target) {
            // An unencrypted dataset of a raw package stays so below an encrypted one.
            NewEncryption::Plain => return Ok(()),
            NewEncryption::Given(given) if is_on(&given) => {
                return Err(ReceiveProblem::EmbeddedEncrypted);
            }
            _ => {}
        }
        let name = match target.exists {
            true => &target.dataset,
            false => parent_of(&target.dataset),
        };
        let root = self.pool.committed().and_then(|view| {
            let found = super::target::found(&view, name)?;
            Ok(found.map_or(Ok(false), |found| found.is_encrypted())?)
        });
        match root.map_err(|error| of_engine(error, name))? {
            true => Err(ReceiveProblem::EmbeddedEncrypted),
            false => Ok(()),
        }
    }

    /// Keys and suite of a raw stream are those of the sender.
    fn check_raw_properties(&self, begin: &Begin) -> Result<(), ReceiveProblem> {
        if !begin.features.contains(StreamFeatures::RAW) {
            return Ok(());
        }
        let given = self.request.properties.iter().map(|(name, _)| name);
        let of_keys =
            |name: &&String| ["encryption", "keyformat", "pbkdf2iters"].contains(&name.as_str());
        match given.chain(&self.request.excluded).find(of_keys) {
            Some(name) => Err(ReceiveProblem::RawProperty(name.clone())),
            None => Ok(()),
        }
    }

    fn receive_target(&self, begin: &Begin, target: &Target) -> ReceiveTarget {
        let encryption = self.new_encryption(begin, target);
        let is_plain = matches!(encryption, NewEncryption::Plain);
        let (encryption, root_key) = match encryption {
            NewEncryption::Given(given) => (given, self.request.root_key.clone()),
            _ => (vec![], None),
        };
        ReceiveTarget {
            name: target.dataset.clone(),
            snapshot: target.snapshot.clone(),
            origin: target.origin.clone(),
            is_forced: self.request.is_forced,
            resume: self.request.is_resumable.then(|| resume_allowances(begin)),
            is_plain,
            encryption,
            root_key,
            creator: self.request.user.as_ref().map(|user| user.creator.clone()),
        }
    }

    /// Checks what would be received, and reads it. Returns no length.
    fn tried<S: RecordSource>(
        &self,
        stream: &mut S,
        first: &Taken,
        begin: &Begin,
        incoming: &IncomingSnapshot,
        target: &Target,
    ) -> Result<Option<u64>, ReceiveProblem> {
        let into = self.receive_target(begin, target);
        let datasets = self.pool.datasets();
        let checked = match resumed_point(first, begin)? {
            None => datasets.check_receive(incoming, &into),
            Some(point) => datasets.check_resume_receive(incoming, &into, point),
        };
        checked.map_err(|error| of_dataset(error, &target.dataset))?;
        skip(stream)?;
        Ok(None)
    }

    fn applied<S: RecordSource + Send>(
        &mut self,
        stream: &mut S,
        first: &Taken,
        begin: &Begin,
        incoming: &IncomingSnapshot,
        target: &Target,
    ) -> Result<Option<u64>, ReceiveProblem> {
        let name = &target.dataset;
        self.make_ancestors(name)?;
        let into = self.receive_target(begin, target);
        let (receiving, point) = self.begun(first, begin, incoming, &into)?;
        let from = ReceiveFrom {
            at: first.at,
            point,
            // A stream that resumes need not name the origin again.
            is_over_origin: begin.from_guid == 0 && receiving.has_origin(),
        };
        match self.filled(stream, begin, &receiving, from, target) {
            Ok(length) => {
                self.ended(receiving, target)?;
                self.describe(begin, target)?;
                Ok(Some(length))
            }
            Err(error) => Err(self.given_up(receiving, error, name)),
        }
    }

    fn filled<S: RecordSource + Send>(
        &mut self,
        stream: &mut S,
        begin: &Begin,
        receiving: &Receiving,
        from: ReceiveFrom,
        target: &Target,
    ) -> Result<u64, ReceiveError> {
        self.turn_off(begin, target)?;
        if !target.exists {
            self.set_properties(begin, target)?;
        }
        receive(stream, begin, receiving, from)
    }

    /// Begins a receive, or continues an interrupted one.
    fn begun(
        &self,
        first: &Taken,
        begin: &Begin,
        incoming: &IncomingSnapshot,
        into: &ReceiveTarget,
    ) -> Result<(Receiving, ResumePoint), ReceiveProblem> {
        let datasets = self.pool.datasets();
        let begun = match resumed_point(first, begin)? {
            None => {
                let begun = datasets.begin_receive(incoming, into);
                begun.map(|receiving| (receiving, ResumePoint::default()))
            }
            Some(point) => datasets.resume_receive(incoming, into, point),
        };
        begun.map_err(|error| of_dataset(error, &into.name))
    }

    fn ended(&mut self, receiving: Receiving, target: &Target) -> Result<(), ReceiveProblem> {
        let name = &target.dataset;
        let datasets = self.pool.datasets();
        if target.exists
            && let Err(problem) = self.watch.before_replacing(name)
        {
            let _ = datasets.abort_receive(receiving, true);
            return Err(problem);
        }
        let sent_key = receiving.sent_key().cloned();
        let ended = datasets.end_receive(receiving);
        if let (Ok(()), Some(key)) = (&ended, sent_key) {
            self.sent_keys.insert(key.guid, key);
        }
        match target.exists {
            true => self.watch.after_replacing(ended.is_ok()),
            false if ended.is_ok() => self.watch.created(name),
            false => {}
        }
        ended.map_err(|error| of_dataset(error, name))
    }

    /// Gives up what was received, or keeps it for another stream.
    fn given_up(&self, receiving: Receiving, error: ReceiveError, name: &str) -> ReceiveProblem {
        let is_resumable = receiving.is_resumable();
        let datasets = self.pool.datasets();
        // If it cannot be destroyed now, that is done when the pool is opened next.
        let _ = datasets.abort_receive(receiving, false);
        let problem = of_receive(error, name);
        let is_interruption = matches!(
            problem,
            ReceiveProblem::Truncated | ReceiveProblem::Checksum
        );
        if !is_resumable || !is_interruption {
            return problem;
        }
        let token = self.pool.sync().and_then(|()| {
            let view = self.pool.committed()?;
            let found = super::target::found(&view, name)?;
            Ok(found.map_or(Ok(None), |found| found.resume_token())?)
        });
        match token {
            Ok(Some(token)) => ReceiveProblem::Interrupted(token),
            _ => problem,
        }
    }

    /// Creates the file systems above, where names at the sender have more components.
    fn make_ancestors(&mut self, name: &str) -> Result<(), ReceiveProblem> {
        if self.request.naming != super::Naming::WithoutPool {
            return Ok(());
        }
        let view = self.pool.committed();
        let view = view.map_err(|error| of_engine(error, name))?;
        let mut missing = vec![];
        let mut at = parent_of(name);
        while super::target::found(&view, at)
            .map_err(|error| of_engine(error, at))?
            .is_none()
            && at.contains('/')
        {
            missing.push(at);
            at = parent_of(at);
        }
        for name in missing.into_iter().rev() {
            let made = self.pool.datasets().create_filesystem(name, &[]);
            made.map_err(|error| of_dataset(error, name))?;
            self.watch.created(name);
        }
        Ok(())
    }
}

/// The object and offset from which a stream continues; `None` if it begins anew.
fn resumed_point(first: &Taken, begin: &Begin) -> Result<Option<(u64, u64)>, ReceiveProblem> {
    if !begin.features.contains(StreamFeatures::RESUMING) {
        return Ok(None);
    }
    let list = NvList::decode(&first.payload).map_err(|_| ReceiveProblem::BadList)?;
    let number = |key| list.u64(key).map_err(|_| ReceiveProblem::BadList);
    Ok(Some((number("resume_object")?, number("resume_offset")?)))
}

/// Reads a stream to its end, and verifies it.
pub(super) fn skip<S: RecordSource>(stream: &mut S) -> Result<(), ReceiveProblem> {
    loop {
        match stream.take().map_err(of_stream)? {
            Some(Taken {
                record: Record::End(_),
                ..
            }) => return Ok(()),
            Some(_) => {}
            None => return Err(ReceiveProblem::Truncated),
        }
    }
}
