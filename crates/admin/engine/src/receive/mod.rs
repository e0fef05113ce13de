//! Receives streams and packages.

mod correct;
mod one;
mod package;
mod problem;
mod properties;
mod recursive;
mod target;
mod user;

use crate::{Error, Pool};
use millpond_dataset::{PropertyValue, RootKey, SentKeys};
use millpond_receive::{IncomingKind, ReceiveFailure, ReceiveProblem, ReceiveStep};
use millpond_stream::{Record, RecordSource, StreamKind, StreamReader, Taken};
use package::Package;
use problem::{of_first_record, of_stream};
use std::collections::BTreeSet;
use std::io::Read;
pub use user::{ReceivingUser, UserChange, UserRights};

/// How the names of what is received are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Naming {
    /// The given name stands for the dataset that was sent.
    #[default]
    Given,
    /// The name at the sender without its pool comes below the given one.
    WithoutPool,
    /// The last component of the name at the sender comes below the given one.
    LastComponent,
}

/// Where to receive, and how.
#[derive(Debug, Clone, Default)]
pub struct ReceiveRequest<'u> {
    /// The full name of a file system, volume or snapshot.
    pub name: String,
    /// How names are made from it.
    pub naming: Naming,
    /// The full name of the snapshot that the new dataset begins with.
    pub origin: Option<String>,
    /// Whether changes and snapshots after the older snapshot are given up, and whether a full stream replaces what is
    /// there.
    pub is_forced: bool,
    /// Whether nothing is changed: the streams are only read.
    pub is_dry: bool,
    /// Whether an interruption leaves a state that another stream can resume.
    pub is_resumable: bool,
    /// Whether the snapshots that the streams are about exist, and are to be repaired with them. Nothing else is changed.
    pub is_corrective: bool,
    /// Whether the holds in a package are left out.
    pub without_holds: bool,
    /// Properties to set on the dataset. Those that concern encryption say how a new one is encrypted.
    pub properties: Vec<(String, PropertyValue)>,
    /// The user's key, if the dataset becomes an encryption root.
    pub root_key: Option<RootKey>,
    /// Properties whose received values do not take effect.
    pub excluded: Vec<String>,
    /// The user who receives it, if not the superuser.
    pub user: Option<ReceivingUser<'u>>,
}

/// What was received, and why not more.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReceiveOutcome {
    /// What was done, in order.
    pub steps: Vec<ReceiveStep>,
    /// Why it went no further.
    pub failure: Option<ReceiveFailure>,
}

impl ReceiveOutcome {
    /// The full names of the snapshots that were received.
    ///
    /// # Errors
    /// Why it went no further.
    pub fn into_names(self) -> Result<Vec<String>, Error> {
        if let Some(failure) = self.failure {
            return Err(Error::Receive(Box::new(failure.problem)));
        }
        let names = self.steps.into_iter().filter_map(|step| match step {
            ReceiveStep::Stream { name, .. } => Some(name),
            _ => None,
        });
        Ok(names.collect())
    }
}

/// Told what a receive is about to do, so that mounts follow.
pub trait ReceiveWatch {
    /// The contents of a file system or volume are about to be replaced. It must be closed when this returns.
    ///
    /// # Errors
    /// [`ReceiveProblem`] if it is in use: the stream is then not received.
    fn before_replacing(&mut self, dataset: &str) -> Result<(), ReceiveProblem>;
    /// The contents were replaced, or are the same because that failed.
    fn after_replacing(&mut self, is_done: bool);
    /// A dataset is about to be renamed or destroyed. It must not be mounted.
    ///
    /// # Errors
    /// [`ReceiveProblem`] if it is in use: the change is then not made.
    fn before_moving(&mut self, dataset: &str) -> Result<(), ReceiveProblem>;
    /// It was renamed or destroyed, or that failed.
    fn after_moving(&mut self);
    /// A file system or volume was created.
    fn created(&mut self, dataset: &str);
}

/// For pools without mounts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unwatched;

impl ReceiveWatch for Unwatched {
    fn before_replacing(&mut self, _: &str) -> Result<(), ReceiveProblem> {
        Ok(())
    }
    fn after_replacing(&mut self, _: bool) {}
    fn before_moving(&mut self, _: &str) -> Result<(), ReceiveProblem> {
        Ok(())
    }
    fn after_moving(&mut self) {}
    fn created(&mut self, _: &str) {}
}

/// A receive under way.
struct Run<'a> {
    pool: &'a Pool,
    request: &'a ReceiveRequest<'a>,
    watch: &'a mut dyn ReceiveWatch,
    steps: Vec<ReceiveStep>,
    package: Option<Package>,
    /// The keys that raw streams brought.
    sent_keys: SentKeys,
    /// The datasets that have their received properties.
    described: BTreeSet<String>,
}

fn unknown(problem: ReceiveProblem) -> ReceiveFailure {
    ReceiveFailure {
        kind: IncomingKind::Unknown,
        problem,
    }
}

impl Pool {
    /// Receives a stream or package. Each of its streams is complete and on stable storage before the next begins.
    ///
    /// A stream that fails leaves the state before, or the resumable one that was asked for.
    pub fn receive(
        &self,
        request: &ReceiveRequest<'_>,
        input: impl Read + Send,
        watch: &mut dyn ReceiveWatch,
    ) -> ReceiveOutcome {
        self.receive_records(request, &mut StreamReader::new(input), watch)
    }

    /// Like [`Pool::receive`], from records that were read and verified elsewhere.
    pub fn receive_records(
        &self,
        request: &ReceiveRequest<'_>,
        source: &mut (impl RecordSource + Send),
        watch: &mut dyn ReceiveWatch,
    ) -> ReceiveOutcome {
        let mut run = Run {
            pool: self,
            request,
            watch,
            steps: vec![],
            package: None,
            sent_keys: SentKeys::new(),
            described: BTreeSet::new(),
        };
        let failure = run.all(source).err();
        ReceiveOutcome {
            steps: run.steps,
            failure,
        }
    }

    /// Gives up an interrupted receive that could be resumed.
    ///
    /// # Errors
    /// If there is none, or it is still under way.
    pub fn abort_receive(&self, name: &str) -> Result<(), Error> {
        Ok(self.datasets().abort_resumable(name)?)
    }
}

/// What the receive of a stream leads to if the pool does not exist.
pub fn receive_nowhere(request: &ReceiveRequest<'_>, input: impl Read) -> ReceiveOutcome {
    let first = StreamReader::new(input).take();
    let failure = match first {
        Err(error) => unknown(of_first_record(error)),
        Ok(Some(Taken {
            record: Record::Begin(begin),
            ..
        })) => one::nowhere(request, &begin),
        Ok(_) => unknown(ReceiveProblem::NoStream),
    };
    ReceiveOutcome {
        steps: vec![],
        failure: Some(failure),
    }
}

impl Run<'_> {
    fn all<S: RecordSource + Send>(&mut self, stream: &mut S) -> Result<(), ReceiveFailure> {
        let first = stream
            .take()
            .map_err(|error| unknown(of_first_record(error)))?;
        let Some(first) = first else {
            return Err(unknown(ReceiveProblem::NoStream));
        };
        let Record::Begin(begin) = &first.record else {
            return Err(unknown(ReceiveProblem::BadMagic));
        };
        let name = String::from_utf8_lossy(&begin.to_name).into_owned();
        let Some((top, _)) = name.split_once('@') else {
            return Err(unknown(ReceiveProblem::BadName));
        };
        let known = millpond_receive::check_features(begin);
        known.map_err(|error| unknown(problem::of_receive(error, top)))?;
        match begin.kind {
            _ if self.request.user.is_some() && self.request.is_corrective => {
                Err(unknown(ReceiveProblem::Denied))
            }
            StreamKind::Stream => self.one(stream, &first, top),
            StreamKind::Package => self.package(stream, &first, top),
        }
    }

    fn package<S: RecordSource + Send>(
        &mut self,
        stream: &mut S,
        first: &Taken,
        top: &str,
    ) -> Result<(), ReceiveFailure> {
        let package = Package::decode(top, &first.payload);
        let package = package.ok_or_else(|| unknown(ReceiveProblem::BadList))?;
        if package.has_several() && self.request.name.contains('@') {
            return Err(unknown(ReceiveProblem::SeveralSnapshots));
        }
        let failed = |error| unknown(of_stream(error));
        // The end of the package's header.
        stream.take().map_err(failed)?;
        if self.request.is_corrective {
            while let Some(taken) = stream.take().map_err(failed)?
                && let Record::Begin(_) = taken.record
            {
                self.one(stream, &taken, top)?;
            }
            return Ok(());
        }
        self.reconcile(&package).map_err(unknown)?;
        self.package = Some(package.clone());
        while let Some(taken) = stream.take().map_err(failed)? {
            match taken.record {
                Record::Begin(_) => self.one(stream, &taken, top)?,
                // The end of the package.
                _ => break,
            }
        }
        self.reconcile(&package).map_err(unknown)?;
        self.set_roots(&package).map_err(unknown)
    }
}
