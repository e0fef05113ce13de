//! Walks the sources and copies them with several threads.

use super::attributes::{Attributes, Wanted};
use super::file::{Chunk, Copied, FIRST_NAME_FAILED, FileId, HostLinks, Lost, OpenFile};
use super::links::Claim;
use super::place::{DIRECTORY_FLAGS, Directory};
use super::queue::{Job, Queue};
use super::report::Report;
use crate::verbs::content::Content;
use crate::verbs::pools::FileTarget;
use millpond_engine::{FileKind, FileSystem, Node, ObjectId, Stat, is_safe_name};
use millpond_env::sync::atomic::AtomicBool;
use millpond_env::sync::{Arc, Mutex};
use millpond_env::thread;
use rustix::fd::AsFd;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, linkat, makedev, mknodat, openat2, symlinkat,
};
use rustix::io::Errno;
use std::collections::HashSet;

/// What to copy, and how.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    pub wanted: Wanted,
    pub is_recursive: bool,
    /// Whether existing files of the destination stay.
    pub is_kept: bool,
    /// Whether damaged files are left out.
    pub is_whole_wanted: bool,
}

/// One file for a worker.
pub struct File {
    source: usize,
    files: Arc<FileSystem>,
    id: ObjectId,
    directory: Arc<Directory>,
    name: Vec<u8>,
    path: Vec<u8>,
}

/// A copy of one or more sources into one destination.
pub struct Copy {
    pub rules: Rules,
    /// The destination's directory.
    pub top: Arc<Directory>,
    pub report: Arc<Report>,
    pub links: Arc<HostLinks>,
    pub queue: Queue<File, Chunk>,
}

/// One source of a copy and its destination.
pub struct Order {
    pub target: FileTarget,
    /// Number of the source's dataset.
    pub source: usize,
    /// The path in messages: `DATASET:/PATH`.
    pub path: Vec<u8>,
    /// The name of the copy; with `None` the content goes into the destination itself.
    pub name: Option<Vec<u8>>,
}

impl Copy {
    /// Copies all sources. On return, every copy is complete and has its attributes.
    pub fn run(&self, orders: Vec<Order>) {
        thread::scope(|scope| {
            for _ in 0..workers() {
                scope.spawn(|| self.work());
            }
            for order in orders {
                self.walk(order);
            }
            self.queue.close();
        });
    }

    /// Copies a volume into a file.
    pub fn run_volume(&self, content: Content, name: Vec<u8>, path: Vec<u8>) {
        let fd = match self.top.place_file(&name, self.rules.is_kept) {
            Ok(Some(fd)) => fd,
            Ok(None) => return,
            Err(error) => return self.report.absent(path, std::io::Error::from(error)),
        };
        thread::scope(|scope| {
            for _ in 0..workers() {
                scope.spawn(|| self.work());
            }
            let file = Arc::new(OpenFile {
                content,
                fd,
                directory: Arc::clone(&self.top),
                name,
                source: path,
                attributes: None,
                link: None,
                links: Arc::clone(&self.links),
                report: Arc::clone(&self.report),
                lost: Mutex::new(Lost::default()),
                has_write_failed: AtomicBool::new(false),
                is_whole_wanted: self.rules.is_whole_wanted,
            });
            file.copy(&|chunk| self.queue.push_chunk(chunk));
            drop(file);
            self.queue.close();
        });
    }

    fn walk(&self, order: Order) {
        let node = &order.target.node;
        if node.kind() != FileKind::Directory {
            let name = order.name.unwrap_or_default();
            if !is_safe_name(&name) {
                return self
                    .report
                    .absent(order.path, "it has no name to copy it by");
            }
            return self.queue.push_file(File {
                source: order.source,
                files: order.target.files,
                id: node.id(),
                directory: Arc::clone(&self.top),
                name,
                path: order.path,
            });
        }
        if !self.rules.is_recursive {
            let reason = "it is a directory: use -r to copy it with its content";
            return self.report.absent(order.path, reason);
        }
        let files = Arc::clone(&order.target.files);
        // A directory has one name. One that is found again is a loop, which would be copied without end.
        let mut seen = HashSet::new();
        let mut stack = vec![(Arc::clone(&self.top), order.name, node.id(), order.path)];
        while let Some((parent, name, id, path)) = stack.pop() {
            if self.report.is_stopped() {
                return;
            }
            if !seen.insert(id) {
                let reason = "the directory has a second name, which no correct writer makes";
                self.report.absent(path, reason);
                continue;
            }
            if parent.depth() >= DEPTH_MAX {
                let reason = format!("nested deeper than {DEPTH_MAX} directories");
                self.report.absent(path, reason);
                continue;
            }
            let node = match files.node(id) {
                Ok(node) => node,
                Err(error) => {
                    self.report.absent(path, error);
                    continue;
                }
            };
            let Some(directory) = self.make_directory(&node, &parent, name.as_deref(), &path)
            else {
                continue;
            };
            let entries = match node.entries() {
                Ok(entries) => entries,
                Err(error) => {
                    self.report.absent(path, error);
                    continue;
                }
            };
            for entry in entries {
                if self.report.is_stopped() {
                    return;
                }
                let entry = match entry {
                    Ok(entry) => entry,
                    Err(error) => {
                        let reason = format!("some of its names cannot be read: {error}");
                        self.report.absent(path.clone(), reason);
                        continue;
                    }
                };
                let path = directory.source_of(&entry.name);
                if !is_safe_name(&entry.name) {
                    let reason = "the name could lead out of the destination";
                    self.report.absent(path, reason);
                    continue;
                }
                // File systems of version 1 do not store kinds in directory entries.
                let kind = entry
                    .kind
                    .or_else(|| files.node(entry.id).ok().map(|node| node.kind()));
                if kind == Some(FileKind::Directory) {
                    let name = Some(entry.name);
                    stack.push((Arc::clone(&directory), name, entry.id, path));
                } else {
                    self.queue.push_file(File {
                        source: order.source,
                        files: Arc::clone(&files),
                        id: entry.id,
                        directory: Arc::clone(&directory),
                        name: entry.name,
                        path,
                    });
                }
            }
        }
    }

    fn make_directory(
        &self,
        node: &Node,
        parent: &Arc<Directory>,
        name: Option<&[u8]>,
        path: &[u8],
    ) -> Option<Arc<Directory>> {
        if node.kind() != FileKind::Directory {
            let reason = "no directory, though its name says so";
            self.report.absent(path.to_vec(), reason);
            return None;
        }
        let attributes = match node.stat() {
            Ok(stat) => self.attributes(node, &stat, path),
            Err(error) => {
                self.report.absent(path.to_vec(), error);
                return None;
            }
        };
        let made = match name {
            Some(name) => parent.make(name, path.to_vec(), attributes),
            None => parent.merged(path.to_vec(), attributes),
        };
        match made {
            Ok(directory) => {
                self.report.copied();
                Some(directory)
            }
            Err(error) => {
                let reason = match error {
                    Errno::NOTDIR | Errno::LOOP => "something else has its name there".into(),
                    error => cannot_make(error),
                };
                self.report.absent(path.to_vec(), reason);
                None
            }
        }
    }

    fn attributes(&self, node: &Node, stat: &Stat, path: &[u8]) -> Attributes {
        let (attributes, trouble) = Attributes::of(node, stat, self.rules.wanted);
        if let Some(trouble) = trouble {
            self.report.problem(super::report::Problem {
                path: path.to_vec(),
                reason: format!("extended attributes: {trouble}"),
                lost: vec![],
                is_absent: false,
            });
        }
        attributes
    }

    fn work(&self) {
        while let Some((job, _taken)) = self.queue.take() {
            if self.report.is_stopped() {
                continue;
            }
            match job {
                Job::Chunk(chunk) => chunk.copy(),
                Job::File(file) => self.copy_file(file),
            }
        }
    }

    fn copy_file(&self, file: File) {
        let node = match file.files.node(file.id) {
            Ok(node) => node,
            Err(error) => return self.report.absent(file.path, error),
        };
        let stat = match node.stat() {
            Ok(stat) => stat,
            Err(error) => return self.report.absent(file.path, error),
        };
        if stat.kind == FileKind::Directory {
            let reason = "a directory, though its name says otherwise";
            return self.report.absent(file.path, reason);
        }
        if stat.links < 2 {
            return self.make(file, &node, &stat, None);
        }
        let id = (file.source, file.id.0);
        match self
            .links
            .claim(id, stat.links, &file.directory, &file.name)
        {
            Claim::Copy => self.make(file, &node, &stat, Some(id)),
            Claim::CopyAlone => self.make(file, &node, &stat, None),
            Claim::Waits => {}
            Claim::Failed => self.report.absent(file.path, FIRST_NAME_FAILED),
            Claim::Link(copy) => match self.link_to(&copy, &file) {
                Ok(()) => self.report.copied(),
                // The first copy cannot be linked to (removed, or too deep), so the file is copied again.
                Err(_) => self.make(file, &node, &stat, None),
            },
        }
    }

    fn link_to(&self, copy: &Copied, file: &File) -> Result<(), Errno> {
        if copy.below.is_empty() {
            return link(&self.top, &copy.name, &file.directory, &file.name);
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let flags = DIRECTORY_FLAGS | OFlags::PATH;
        let directory = openat2(
            self.top.fd(),
            copy.below.as_slice(),
            flags,
            Mode::empty(),
            resolve,
        )?;
        place_link(directory.as_fd(), &copy.name, &file.directory, &file.name)
    }

    fn make(&self, file: File, node: &Node, stat: &Stat, link: Option<FileId>) {
        let attributes = self.attributes(node, stat, &file.path);
        if stat.kind == FileKind::Regular {
            return self.make_plain(file, node, attributes, link);
        }
        let is_device = matches!(stat.kind, FileKind::BlockDevice | FileKind::CharacterDevice);
        if is_device && !self.rules.wanted.is_trusted {
            let leave_out = |path: &[u8]| {
                let what = "device nodes left out (see --trusted)";
                self.report.note(what.into(), path);
            };
            leave_out(&file.path);
            let waiting = link.map(|id| self.links.settle(id, None));
            for other in waiting.unwrap_or_default() {
                leave_out(&other.directory.source_of(&other.name));
            }
            return;
        }
        let made = self.make_special(&file, node, stat);
        let is_made = matches!(made, Ok(true));
        match made {
            Ok(true) => {
                let is_symlink = stat.kind == FileKind::Symlink;
                let (name, path) = (&file.name, &file.path);
                let fd = file.directory.fd().as_fd();
                attributes.tell_left_out(path, &self.report);
                attributes.give_by_name(fd, name, is_symlink, path, &self.report);
                self.report.copied();
            }
            Ok(false) => {}
            Err(reason) => self.report.absent(file.path.clone(), reason),
        }
        let Some(id) = link else {
            return;
        };
        let copy = is_made.then(|| Copied {
            below: file.directory.below().to_vec(),
            name: file.name.clone(),
        });
        for waiting in self.links.settle(id, copy) {
            let made = if is_made {
                place(
                    &file.directory,
                    &file.name,
                    &waiting.directory,
                    &waiting.name,
                )
            } else {
                Err(FIRST_NAME_FAILED.to_owned())
            };
            match made {
                Ok(()) => self.report.copied(),
                Err(reason) => {
                    let path = waiting.directory.source_of(&waiting.name);
                    self.report.absent(path, reason);
                }
            }
        }
    }

    fn make_plain(&self, file: File, node: &Node, attributes: Attributes, link: Option<FileId>) {
        let fd = match file.directory.place_file(&file.name, self.rules.is_kept) {
            Ok(Some(fd)) => fd,
            unmade => {
                if let Err(error) = unmade {
                    self.report.absent(file.path, cannot_make(error));
                }
                // Its other names become separate copies.
                for waiting in link
                    .map(|id| self.links.settle(id, None))
                    .unwrap_or_default()
                {
                    let path = waiting.directory.source_of(&waiting.name);
                    self.report.absent(path, FIRST_NAME_FAILED);
                }
                return;
            }
        };
        let open = Arc::new(OpenFile {
            content: Content::from(node),
            fd,
            directory: file.directory,
            name: file.name,
            source: file.path,
            attributes: Some(attributes),
            link,
            links: Arc::clone(&self.links),
            report: Arc::clone(&self.report),
            lost: Mutex::new(Lost::default()),
            has_write_failed: AtomicBool::new(false),
            is_whole_wanted: self.rules.is_whole_wanted,
        });
        open.copy(&|chunk| self.queue.push_chunk(chunk));
    }

    /// Creates a link, pipe, socket or device node. Returns false if the name is taken and is to stay.
    fn make_special(&self, file: &File, node: &Node, stat: &Stat) -> Result<bool, String> {
        let directory = &file.directory;
        let name = file.name.as_slice();
        let made = if stat.kind == FileKind::Symlink {
            let target = node.link_target().map_err(|error| error.to_string())?;
            let target = target.ok_or("the link leads nowhere")?;
            directory.place(name, self.rules.is_kept, || {
                symlinkat(target.as_slice(), directory.fd(), name)
            })
        } else {
            let kind = match stat.kind {
                FileKind::Fifo => FileType::Fifo,
                FileKind::Socket => FileType::Socket,
                FileKind::BlockDevice => FileType::BlockDevice,
                _ => FileType::CharacterDevice,
            };
            let (major, minor) = stat.device.unwrap_or((0, 0));
            let device = makedev(major, minor);
            let mode = Mode::RUSR | Mode::WUSR;
            directory.place(name, self.rules.is_kept, || {
                mknodat(directory.fd(), name, kind, mode, device)
            })
        };
        made.map(|made| made.is_some()).map_err(cannot_make)
    }
}

/// Creates a hard link to a file of the destination. An existing file with the new name is replaced.
pub fn link(
    from: &Directory,
    from_name: &[u8],
    to: &Directory,
    to_name: &[u8],
) -> Result<(), Errno> {
    place_link(from.fd().as_fd(), from_name, to, to_name)
}

fn place(from: &Directory, from_name: &[u8], to: &Directory, to_name: &[u8]) -> Result<(), String> {
    link(from, from_name, to, to_name).map_err(cannot_make)
}

fn place_link(
    from: rustix::fd::BorrowedFd<'_>,
    from_name: &[u8],
    to: &Directory,
    to_name: &[u8],
) -> Result<(), Errno> {
    let made = to.place(to_name, false, || {
        linkat(from, from_name, to.fd(), to_name, AtFlags::empty())
    });
    made.map(|_| ())
}

fn cannot_make(error: Errno) -> String {
    format!("cannot make it: {}", std::io::Error::from(error))
}

/// Number of copying threads. They spend about as much time waiting for devices as computing.
fn workers() -> usize {
    (thread::parallelism() * 2).clamp(2, 16)
}

/// Maximum depth, because each level holds a file descriptor.
const DEPTH_MAX: u32 = 2000;
