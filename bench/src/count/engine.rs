//! Benchmarks on whole pools.
//!
//! The pool is a mirror of two simulated disks, and the calling thread writes its txgs.

use super::{Step, Work};
use anyhow::{Context, Result, ensure};
use millpond_engine::{
    AllocationClass, Caller, DirEntryRef, FeatureChoice, FileSystem, NewDevice, NewLayout, NewMode,
    NewPool, NewTop, NewVdevOptions, NewVdevs, Node, Pool, PropertyValue, RenameMode, SyncMode,
    Vfs, WriteAt, WriteOptions,
};
use millpond_fuse::abi::{REPLY_BYTES_MAX, ROOT_NODE, opcode};
use millpond_fuse::session::Session;
use millpond_sim::World;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of operations between two txgs.
const TXG_EVERY: u64 = 64;
const DISK_BYTES: u64 = 1 << 30;

struct Rig {
    pool: Pool,
    files: Arc<FileSystem>,
    root: Node,
    caller: Caller,
}

impl Rig {
    fn new(cache_bytes: u64, properties: &[(String, PropertyValue)]) -> Result<Self> {
        let world = World::without_journal(7);
        let devices = (0..2).map(|number| {
            let disk = world.disk(DISK_BYTES, 4096);
            NewDevice::file(&format!("/sim/d{number}.img"), disk)
        });
        let top = NewTop {
            layout: NewLayout::Mirror,
            class: AllocationClass::Normal,
            devices: devices.collect(),
        };
        let new = NewPool {
            name: "tank".into(),
            vdevs: NewVdevs {
                tops: vec![top],
                ..NewVdevs::default()
            },
            vdev_options: NewVdevOptions {
                ashift: Some(12),
                force: true,
            },
            features: FeatureChoice::Default,
            settings: vec![],
            root_properties: BTreeMap::from([("compression".to_owned(), "off".to_owned())]),
            writing: WriteOptions {
                sync_mode: SyncMode::Caller,
                ..WriteOptions::default()
            },
            system: "sim".into(),
            cache_bytes: Some(cache_bytes),
        };
        let pool = Pool::create(&world.env(), &new)?;
        pool.datasets()
            .create_filesystem("tank/files", properties)?;
        let files = pool.file_system("tank/files")?;
        Ok(Self {
            root: files.root()?,
            pool,
            files,
            caller: Caller::root(),
        })
    }
    fn create(&self, name: &str) -> Result<Node> {
        let mode = NewMode::exactly(0o644);
        let made = self
            .files
            .create(&self.caller, &self.root, name.as_bytes(), mode, true)?;
        Ok(made.0)
    }
    fn write(&self, node: &Node, offset: u64, bytes: &[u8]) -> Result<()> {
        self.files
            .write(&self.caller, node, WriteAt::Offset(offset), bytes)?;
        Ok(())
    }
    /// Creates a file with this many records of 128 KiB, on the disks.
    fn file(&self, records: u64) -> Result<Node> {
        let node = self.create("content")?;
        for record in 0..records {
            self.write(&node, record << 17, &vec![record as u8 | 1; 128 << 10])?;
            if record % 16 == 15 {
                self.pool.sync()?;
            }
        }
        self.pool.sync()?;
        Ok(node)
    }
    /// Creates `count` files of 4 KiB, on the disks.
    fn many(&self, count: u64) -> Result<()> {
        for number in 0..count {
            let node = self.create(&name(number))?;
            self.write(&node, 0, &[7; 4096])?;
            self.sync_after(number)?;
        }
        Ok(self.pool.sync()?)
    }
    fn sync_after(&self, number: u64) -> Result<()> {
        if number % TXG_EVERY == TXG_EVERY - 1 {
            self.pool.sync()?;
        }
        Ok(())
    }
}

fn name(number: u64) -> String {
    format!("file-{number:06}")
}

/// A benchmark on a pool whose cache holds everything.
fn on_pool(name: &str, times: u64, make: impl FnOnce(Rig) -> Result<Step> + 'static) -> Work {
    Work::new(name, times, || make(Rig::new(256 << 20, &[])?))
}

pub fn works() -> Vec<Work> {
    let mut works = vec![
        on_pool("pool/sync", 32, |rig| {
            let node = rig.file(1)?;
            Ok(Box::new(move |number| {
                rig.write(&node, 0, &[number as u8; 4096])?;
                Ok(rig.pool.sync()?)
            }))
        }),
        on_pool("pool/snapshot", 16, |rig| {
            Ok(Box::new(move |number| {
                let name = format!("tank/files@{number}");
                Ok(rig.pool.datasets().snapshot(&[&name], &[])?)
            }))
        }),
        on_pool("files/create", 256, |rig| {
            Ok(Box::new(move |number| {
                let node = rig.create(&name(number))?;
                rig.write(&node, 0, &[7; 4096])?;
                rig.sync_after(number)
            }))
        }),
        on_pool("files/lookup", 16384, |rig| {
            rig.many(512)?;
            Ok(Box::new(move |number| {
                let found = rig.root.lookup(name(number % 512).as_bytes())?;
                ensure!(found.size_bytes() == 4096);
                Ok(())
            }))
        }),
        on_pool("files/rename", 128, |rig| {
            rig.many(256)?;
            Ok(Box::new(move |number| {
                let (old, new) = (name(number), format!("new-{number}"));
                let directory = &rig.root;
                let from = DirEntryRef {
                    directory,
                    name: old.as_bytes(),
                };
                let to = DirEntryRef {
                    directory,
                    name: new.as_bytes(),
                };
                rig.files
                    .rename(&rig.caller, from, to, RenameMode::Replace)?;
                rig.sync_after(number)
            }))
        }),
        on_pool("files/unlink", 128, |rig| {
            rig.many(256)?;
            Ok(Box::new(move |number| {
                rig.files.unlink(&rig.root, name(number).as_bytes())?;
                rig.sync_after(number)
            }))
        }),
        on_pool("files/write-1m", 32, |rig| {
            let node = rig.create("content")?;
            let bytes = vec![7; 1 << 20];
            Ok(Box::new(move |number| {
                rig.write(&node, number << 20, &bytes)?;
                if number % 16 == 15 {
                    rig.pool.sync()?;
                }
                Ok(())
            }))
        }),
        on_pool("files/overwrite-4k", 256, |rig| {
            let node = rig.file(64)?;
            Ok(Box::new(move |number| {
                let place = number.wrapping_mul(2_654_435_761) % 2048;
                rig.write(&node, place * 4096, &[7; 4096])?;
                rig.sync_after(number)
            }))
        }),
        on_pool("files/fsync", 512, |rig| {
            let node = rig.file(8)?;
            Ok(Box::new(move |number| {
                rig.write(&node, (number % 256) * 4096, &[7; 4096])?;
                Ok(rig.files.fsync(&node)?)
            }))
        }),
        on_pool("files/read-4k", 32768, |rig| {
            let node = rig.file(16)?;
            let mut buffer = vec![0; 4096];
            Ok(Box::new(move |number| {
                let place = number.wrapping_mul(2_654_435_761) % 512;
                ensure!(node.read(place * 4096, &mut buffer)? == 4096);
                Ok(())
            }))
        }),
    ];
    works.push(Work::new("files/read-128k-uncached", 512, || {
        let rig = Rig::new(1 << 20, &[])?;
        let node = rig.file(128)?;
        let mut buffer = vec![0; 128 << 10];
        Ok(Box::new(move |number| {
            // Not in sequential order, which would cause prefetch.
            let record = number.wrapping_mul(37) % 128;
            ensure!(node.read(record << 17, &mut buffer)? == buffer.len());
            Ok(())
        }))
    }));
    works.extend(snapshots());
    works.extend(requests());
    works
}

/// Takes a snapshot and opens its files.
fn snapshot(rig: &Rig) -> Result<Arc<FileSystem>> {
    rig.pool.datasets().snapshot(&["tank/files@s"], &[])?;
    Ok(rig
        .pool
        .committed()?
        .dataset("tank/files@s")?
        .file_system()?)
}

fn snapshots() -> Vec<Work> {
    vec![
        on_pool("snapshot/lookup", 16384, |rig| {
            rig.many(512)?;
            let files = snapshot(&rig)?;
            let root = files.root()?;
            Ok(Box::new(move |number| {
                let _rig = &rig;
                let found = root.lookup(name(number % 512).as_bytes())?;
                ensure!(found.size_bytes() == 4096);
                Ok(())
            }))
        }),
        on_pool("snapshot/stat", 16384, |rig| {
            rig.many(16)?;
            let files = snapshot(&rig)?;
            let node = files.root()?.lookup(name(3).as_bytes())?;
            Ok(Box::new(move |_| {
                let _rig = &rig;
                ensure!(node.stat()?.size_bytes == 4096);
                Ok(())
            }))
        }),
        on_pool("snapshot/list-512", 512, |rig| {
            rig.many(512)?;
            let files = snapshot(&rig)?;
            let root = files.root()?;
            Ok(Box::new(move |_| {
                let _rig = &rig;
                let mut count = 0;
                for entry in root.entries()? {
                    entry?;
                    count += 1;
                }
                ensure!(count == 512);
                Ok(())
            }))
        }),
        on_pool("snapshot/read-4k", 32768, |rig| {
            rig.file(16)?;
            let files = snapshot(&rig)?;
            let node = files.root()?.lookup(b"content")?;
            let mut buffer = vec![0; 4096];
            Ok(Box::new(move |number| {
                let _rig = &rig;
                let place = number.wrapping_mul(2_654_435_761) % 512;
                ensure!(node.read(place * 4096, &mut buffer)? == 4096);
                Ok(())
            }))
        }),
    ]
}

/// Sends requests like the kernel, in the layout of `linux/fuse.h`.
struct Kernel {
    session: Session,
    reply: Vec<u8>,
    /// The pool must outlive the session.
    _rig: Rig,
}

impl Kernel {
    fn new() -> Result<Self> {
        let rig = Rig::new(256 << 20, &[])?;
        rig.many(256)?;
        rig.file(8)?;
        let session = Session::new(rig.pool.served("tank/files")? as Arc<dyn Vfs>)?;
        let mut kernel = Self {
            session,
            reply: vec![0; REPLY_BYTES_MAX],
            _rig: rig,
        };
        let init = [words(&[7, 45, 1 << 20, u32::MAX, u32::MAX]), vec![0; 44]].concat();
        kernel.ask(opcode::INIT, 0, &init)?;
        Ok(kernel)
    }
    /// Sends a request and returns the body of the reply.
    fn ask(&mut self, opcode: u32, node: u64, body: &[u8]) -> Result<&[u8]> {
        let mut message = words(&[u32::try_from(40 + body.len())?, opcode]);
        message.extend(7_u64.to_ne_bytes());
        message.extend(node.to_ne_bytes());
        message.extend(words(&[0, 0, 4242, 0]));
        message.extend(body);
        let reply = self
            .session
            .answer(&message, &mut self.reply)
            .context("no reply")?;
        ensure!(
            reply.get(4..8) == Some(&[0; 4]),
            "request {opcode} of node {node}: {reply:?}"
        );
        Ok(&reply[16..])
    }
    fn find(&mut self, name: &str) -> Result<u64> {
        let entry = self.ask(opcode::LOOKUP, ROOT_NODE, format!("{name}\0").as_bytes())?;
        Ok(u64::from_ne_bytes(
            *entry.first_chunk().context("an entry")?,
        ))
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn requests() -> Vec<Work> {
    vec![
        Work::new("fuse/lookup", 16384, || {
            let mut kernel = Kernel::new()?;
            Ok(Box::new(move |number| {
                kernel.find(&name(number % 256))?;
                Ok(())
            }))
        }),
        Work::new("fuse/getattr", 65536, || {
            let mut kernel = Kernel::new()?;
            let node = kernel.find(&name(3))?;
            Ok(Box::new(move |_| {
                kernel.ask(opcode::GETATTR, node, &[0; 16])?;
                Ok(())
            }))
        }),
        Work::new("fuse/read-4k", 16384, || {
            let mut kernel = Kernel::new()?;
            let node = kernel.find("content")?;
            Ok(Box::new(move |number| {
                let mut body = vec![0; 8];
                body.extend(((number.wrapping_mul(2_654_435_761) % 256) * 4096).to_ne_bytes());
                body.extend(words(&[4096, 0, 0, 0, 0, 0]));
                ensure!(kernel.ask(opcode::READ, node, &body)?.len() == 4096);
                Ok(())
            }))
        }),
    ]
}
