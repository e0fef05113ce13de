//! Walks the sources of a copy into a pool, and copies them with several threads.

use super::source::{Entry, Facts, Source, Xattrs};
use super::target::{Target, TargetDir, is_end};
use crate::verbs::cp::links::{Claim, Links};
use crate::verbs::cp::queue::{Job, Queue};
use crate::verbs::cp::report::{Problem, Report};
use crate::verbs::ls::joined;
use millpond_engine::{
    Caller, FileError, FileKind, Node, ObjectId, SetAttributes, WriteAt, is_safe_name,
};
use millpond_env::sync::Arc;
use millpond_env::thread;
use std::convert::Infallible;

/// Called between two changes by a copy that writes its txgs itself.
pub type Pump<'p> = dyn Fn() -> Result<(), String> + Sync + 'p;

/// A copy of trees into one file system.
pub struct Fill<'p> {
    pub target: Arc<Target>,
    pub report: Arc<Report>,
    pub is_recursive: bool,
    /// If set, the calling thread does all work in the order of names. Otherwise several threads do.
    pub pump: Option<&'p Pump<'p>>,
    links: Links<(u64, u64), Directory, ObjectId>,
    queue: Queue<File, Infallible>,
}

/// One tree or file to copy.
pub struct Order {
    pub source: Arc<dyn Source>,
    /// Its path in messages.
    pub path: Vec<u8>,
    /// The name of the copy; with `None` the content goes into the destination itself.
    pub name: Option<Vec<u8>>,
}

/// A directory that is being filled.
///
/// When the last handle is dropped, everything in it is complete and it gets its attributes.
pub struct Directory {
    target: Arc<Target>,
    report: Arc<Report>,
    pub place: TargetDir,
    /// The source path, for messages.
    path: Vec<u8>,
    depth: u32,
    attributes: Option<(Facts, Xattrs, bool)>,
}

/// One file for a worker.
struct File {
    parent: Arc<dyn Source>,
    entry: Entry,
    directory: Arc<Directory>,
}

impl Drop for Directory {
    fn drop(&mut self) {
        let Some((facts, xattrs, hands_down)) = &self.attributes else {
            return;
        };
        let node = &self.place.node;
        let (path, report) = (&self.path, &self.report);
        let finished = self
            .target
            .finish(node, facts, xattrs, *hands_down, path, report);
        if let Err(error) = finished {
            failed(report, path.clone(), &error);
        }
    }
}

impl<'p> Fill<'p> {
    /// Prepares a copy.
    pub fn new(
        target: Arc<Target>,
        report: Arc<Report>,
        is_recursive: bool,
        pump: Option<&'p Pump<'p>>,
    ) -> Self {
        Self {
            target,
            report,
            is_recursive,
            pump,
            links: Links::default(),
            queue: Queue::new(),
        }
    }

    /// Copies everything into `top`. On return, every copy is complete and has its attributes.
    pub fn run(&self, top: &Node, orders: Vec<Order>) {
        let top = Arc::new(Directory {
            target: Arc::clone(&self.target),
            report: Arc::clone(&self.report),
            place: self.target.place(top.clone()),
            path: vec![],
            depth: 0,
            attributes: None,
        });
        if self.pump.is_some() {
            for order in orders {
                self.walk(&top, order);
            }
            return;
        }
        thread::scope(|scope| {
            for _ in 0..workers() {
                scope.spawn(|| {
                    let mut buffer = vec![];
                    while let Some((Job::File(file), _taken)) = self.queue.take() {
                        if !self.report.is_stopped() {
                            self.copy_entry(file, &mut buffer);
                        }
                    }
                });
            }
            for order in orders {
                self.walk(&top, order);
            }
            self.queue.close();
        });
    }

    fn pump(&self) {
        if let Some(pump) = self.pump
            && let Err(error) = pump()
        {
            self.report.absent(b"the pool".to_vec(), error);
            self.report.stop();
        }
    }

    fn walk(&self, top: &Arc<Directory>, order: Order) {
        let mut buffer = vec![];
        let facts = order.source.facts();
        if facts.kind != FileKind::Directory {
            let name = order.name.unwrap_or_default();
            if !is_safe_name(&name) {
                return self
                    .report
                    .absent(order.path, "it has no name to copy it by");
            }
            return self.copy_file(&order.source, top, &name, order.path, &mut buffer);
        }
        if !self.is_recursive {
            let reason = "it is a directory: use -r to copy it with its content";
            return self.report.absent(order.path, reason);
        }
        let mut stack = vec![(order.source, order.name, Arc::clone(top), order.path)];
        while let Some((source, name, parent, path)) = stack.pop() {
            if self.report.is_stopped() {
                return;
            }
            let Some(directory) = self.make_directory(&*source, name, &parent, path.clone()) else {
                continue;
            };
            self.pump();
            let entries = match source.entries() {
                Ok(entries) => entries,
                Err(error) => {
                    self.report.absent(path, error);
                    continue;
                }
            };
            let mut below = vec![];
            for entry in entries {
                if self.report.is_stopped() {
                    return;
                }
                let path = joined(&path, &entry.name);
                if !is_safe_name(&entry.name) {
                    self.report.absent(path, "no file can have this name");
                    continue;
                }
                let is_directory = match entry.kind {
                    Some(kind) => kind == FileKind::Directory,
                    None => source
                        .child(&entry)
                        .is_ok_and(|child| child.facts().kind == FileKind::Directory),
                };
                if is_directory {
                    if self.target.is_self(&source.facts(), &entry) {
                        self.report.absent(path, "the copy itself lies in it");
                        continue;
                    }
                    match source.child(&entry) {
                        Ok(child) => {
                            below.push((child, Some(entry.name), Arc::clone(&directory), path));
                        }
                        Err(error) => self.report.absent(path, error),
                    }
                    continue;
                }
                let file = File {
                    parent: Arc::clone(&source),
                    entry,
                    directory: Arc::clone(&directory),
                };
                match self.pump {
                    Some(_) => self.copy_entry(file, &mut buffer),
                    None => self.queue.push_file(file),
                }
            }
            stack.extend(below.into_iter().rev());
        }
    }

    fn make_directory(
        &self,
        source: &dyn Source,
        name: Option<Vec<u8>>,
        parent: &Arc<Directory>,
        path: Vec<u8>,
    ) -> Option<Arc<Directory>> {
        let facts = source.facts();
        if parent.depth >= DEPTH_MAX {
            let reason = format!("nested deeper than {DEPTH_MAX} directories");
            self.report.absent(path, reason);
            return None;
        }
        let made = match &name {
            None => Ok(Some(parent.place.node.clone())),
            Some(name) => self.target.make(&parent.place, name, &facts, None),
        };
        let node = match made {
            Ok(Some(node)) => node,
            Ok(None) => return None,
            Err(error) => {
                failed(&self.report, path, &error);
                return None;
            }
        };
        let xattrs = self.xattrs(source, &path);
        let place = self.target.place(node);
        self.report.copied();
        Some(Arc::new(Directory {
            target: Arc::clone(&self.target),
            report: Arc::clone(&self.report),
            attributes: Some((facts, xattrs, place.hands_down)),
            place: TargetDir {
                hands_down: place.hands_down,
                node: place.node,
            },
            path,
            depth: parent.depth + 1,
        }))
    }

    fn xattrs(&self, source: &dyn Source, path: &[u8]) -> Xattrs {
        if !self.target.preserved.has_xattrs {
            return vec![];
        }
        source.xattrs().unwrap_or_else(|error| {
            self.report.problem(Problem {
                path: path.to_vec(),
                reason: format!("extended attributes: {error}"),
                lost: vec![],
                is_absent: false,
            });
            vec![]
        })
    }

    fn copy_entry(&self, file: File, buffer: &mut Vec<u8>) {
        let path = joined(&file.directory.path, &file.entry.name);
        match file.parent.child(&file.entry) {
            Ok(source) => self.copy_file(&source, &file.directory, &file.entry.name, path, buffer),
            Err(error) => self.report.absent(path, error),
        }
    }

    fn copy_file(
        &self,
        source: &Arc<dyn Source>,
        directory: &Arc<Directory>,
        name: &[u8],
        path: Vec<u8>,
        buffer: &mut Vec<u8>,
    ) {
        let facts = source.facts();
        if facts.kind == FileKind::Directory {
            return self
                .report
                .absent(path, "it has become a directory meanwhile");
        }
        let is_linked = facts.links > 1;
        let claim = match is_linked {
            true => self.links.claim(facts.id, facts.links, directory, name),
            false => Claim::CopyAlone,
        };
        match claim {
            Claim::CopyAlone => {
                self.copy(&**source, &facts, directory, name, path, buffer);
            }
            Claim::Copy => {
                let made = self.copy(&**source, &facts, directory, name, path, buffer);
                let id = made.as_ref().map(Node::id);
                for waiting in self.links.settle(facts.id, id) {
                    let path = joined(&waiting.directory.path, &waiting.name);
                    match &made {
                        Some(node) => self.link(node, &waiting.directory, &waiting.name, path),
                        None => self.report.absent(path, FIRST_NAME_FAILED),
                    }
                }
            }
            Claim::Waits => {}
            Claim::Failed => self.report.absent(path, FIRST_NAME_FAILED),
            Claim::Link(id) => match self.target.files.node(id) {
                Ok(node) => self.link(&node, directory, name, path),
                Err(error) => failed(&self.report, path, &error),
            },
        }
        self.pump();
    }

    fn link(&self, node: &Node, directory: &Directory, name: &[u8], path: Vec<u8>) {
        match self.target.link(node, &directory.place, name) {
            Ok(()) => self.report.copied(),
            Err(error) => failed(&self.report, path, &error),
        }
    }

    /// Copies one file of any kind except a directory.
    fn copy(
        &self,
        source: &dyn Source,
        facts: &Facts,
        directory: &Directory,
        name: &[u8],
        path: Vec<u8>,
        buffer: &mut Vec<u8>,
    ) -> Option<Node> {
        let outcome = self.try_copy(source, facts, directory, name, &path, buffer);
        match outcome {
            Ok(node) => {
                if node.is_some() {
                    self.report.copied();
                }
                node
            }
            Err(Trouble::Source(reason)) => {
                self.report.absent(path, reason);
                None
            }
            Err(Trouble::Target(error)) => {
                failed(&self.report, path, &error);
                None
            }
        }
    }

    fn try_copy(
        &self,
        source: &dyn Source,
        facts: &Facts,
        directory: &Directory,
        name: &[u8],
        path: &[u8],
        buffer: &mut Vec<u8>,
    ) -> Result<Option<Node>, Trouble> {
        let link_target = match facts.kind {
            FileKind::Symlink => Some(source.link_target().map_err(Trouble::Source)?),
            _ => None,
        };
        let place = &directory.place;
        let made = self
            .target
            .make(place, name, facts, link_target.as_deref())?;
        let Some(node) = made else { return Ok(None) };
        if facts.kind == FileKind::Regular
            && let Err(trouble) = self.copy_bytes(source, facts, &node, buffer)
        {
            // Remove the partial copy, which would look complete.
            let _ = self.target.files.unlink(&place.node, name);
            return Err(trouble);
        }
        let xattrs = self.xattrs(source, path);
        let report = &self.report;
        self.target
            .finish(&node, facts, &xattrs, place.hands_down, path, report)?;
        Ok(Some(node))
    }

    fn copy_bytes(
        &self,
        source: &dyn Source,
        facts: &Facts,
        node: &Node,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Trouble> {
        let files = &self.target.files;
        let caller = Caller::root();
        let chunk = CHUNK_BYTES.max(u64::from(files.settings().record_bytes));
        let mut at = 0;
        'data: while let Some((start, end)) = source.next_data(at).map_err(Trouble::Source)? {
            at = start;
            while at < end {
                let wanted = (chunk - at % chunk).min(end - at) as usize;
                if buffer.len() < wanted {
                    buffer.resize(wanted, 0);
                }
                let read = source.read(at, &mut buffer[..wanted]);
                let count = read.map_err(Trouble::Source)?;
                if count == 0 {
                    // The file has become shorter in the meantime.
                    break 'data;
                }
                files.write(&caller, node, WriteAt::Offset(at), &buffer[..count])?;
                self.report.wrote(count as u64);
                at += count as u64;
                self.pump();
                if self.report.is_stopped() {
                    return Err(Trouble::Source("stopped".into()));
                }
            }
        }
        if node.size_bytes() < facts.size_bytes {
            let set = SetAttributes {
                size_bytes: Some(facts.size_bytes),
                ..SetAttributes::default()
            };
            files.set_attributes(&caller, node, &set)?;
        }
        Ok(())
    }
}

/// Why a file was not copied.
enum Trouble {
    Source(String),
    Target(FileError),
}

impl From<FileError> for Trouble {
    fn from(error: FileError) -> Self {
        Self::Target(error)
    }
}

fn failed(report: &Report, path: Vec<u8>, error: &FileError) {
    report.absent(path, error);
    if is_end(error) {
        report.stop();
    }
}

/// Number of copying threads. They spend about as much time waiting for the host's devices as computing.
fn workers() -> usize {
    (thread::parallelism() * 2).clamp(2, 16)
}

/// Bytes per read and write, unless a record is larger.
const CHUNK_BYTES: u64 = 1 << 20;
const FIRST_NAME_FAILED: &str = "another name of the file could not be copied";
/// Maximum depth, because each level may hold a file descriptor of the host.
const DEPTH_MAX: u32 = 2000;
