//! `millpond mount`: mounts a dataset on a directory for as long as the command runs.

use super::Global;
use super::address::Address;
use super::global::refused;
use super::parse;
use super::pools::{Pools, explained};
use super::writing::WritePools;
use crate::session::{Ending, Failure, Session};
use clap::{ArgMatches, Args, Command};
use millpond_engine::{Pool, Vfs};
use millpond_env::sync::Arc;
use millpond_env::thread;
use millpond_fuse::{FuseError, FuseServer, Mount, MountOptions, MountTarget, clear_dead_mount};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::path::{Component, PathBuf};

/// Minimum number of requests served at once.
const THREADS_MIN: usize = 4;

#[derive(Debug, Args)]
struct Options {
    /// Open the pool read-only; so are older states (-T, --checkpoint)
    #[arg(short = 'r', long)]
    read_only: bool,
    #[command(flatten)]
    kernel: Kernel,
    /// Open a pool that another system used last and did not export
    #[arg(long)]
    force_import: bool,
    /// The file system, POOL or POOL/DATASET; a snapshot of one is read-only
    #[arg(value_name = "DATASET")]
    dataset: OsString,
    /// An existing directory
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
}

// No doc comment: it would become the help of the command.
#[derive(Debug, Args)]
pub(super) struct Kernel {
    /// Mount over a directory that is not empty
    #[arg(short = 'O', long)]
    overlay: bool,
    /// Allow access only to the user who mounts (root's default: all users)
    #[arg(long)]
    private: bool,
}

/// A mount to come. Signals are caught from now on, so nothing that is opened afterwards stays open.
pub(super) struct Mounting {
    signals: Signals,
    mountpoint: PathBuf,
    options: MountOptions,
}

/// Defines the command.
pub fn command() -> Command {
    Options::augment_args(Command::new("mount").about(
        "Mount a file system through FUSE until interrupted (Ctrl-C), then unmount and export",
    ))
}

/// Mounts the dataset, waits and unmounts it.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let options: Options = parse(matches)?;
    let address = Address::parse(&options.dataset).map_err(Failure::Usage)?;
    if address.path.is_some() {
        return Err(Failure::Usage("a whole file system is mounted".into()));
    }
    let mut mounting = Mounting::new(&options.kernel, options.mountpoint)?;
    if options.read_only || global.is_past() || address.dataset.contains('@') {
        let dataset = Pools::new(global).dataset(&address)?;
        let files = dataset
            .served()
            .map_err(|error| refused(explained(&error)))?;
        return mounting.stay(session, dataset.name(), files);
    }
    let mut pools = WritePools::new(global, options.force_import);
    let pool: Pool = pools.pool(address.pool())?;
    let name = format!(
        "{}{}",
        pool.name(),
        &address.dataset[address.pool().len()..]
    );
    let outcome = match (pool.served(&name), pool.mount_settings(&name)) {
        (Ok(files), Ok(settings)) => {
            let mount_options = &mut mounting.options;
            mount_options.read_only |= settings.read_only;
            mount_options.exec = settings.exec;
            mount_options.suid = settings.suid;
            mount_options.devices = settings.devices;
            mount_options.atime = settings.atime;
            mount_options.overlay |= settings.overlay;
            mounting.stay(session, &name, files)
        }
        (Err(error), _) | (_, Err(error)) => Err(refused(explained(&error))),
    };
    drop(pool);
    pools.finish()?;
    outcome
}

impl Mounting {
    pub(super) fn new(kernel: &Kernel, mountpoint: PathBuf) -> Result<Self, Failure> {
        let mut options = MountOptions::default();
        options.overlay = kernel.overlay;
        if kernel.private {
            options.allow_other = false;
        }
        Ok(Self {
            signals: Signals::new([SIGINT, SIGTERM, SIGHUP])?,
            mountpoint,
            options,
        })
    }

    /// Mounts the dataset and waits for a signal or an unmount by another program.
    pub(super) fn stay(mut self, session: &mut Session, name: &str, files: Arc<dyn Vfs>) -> Ending {
        let threads = (2 * thread::parallelism()).max(THREADS_MIN);
        let to_error = |error: FuseError| refused(error.to_string());
        // A killed command may have left a dead mount on the same directory.
        clear_dead_mount(&self.mountpoint).map_err(to_error)?;
        let server = FuseServer::start(threads).map_err(to_error)?;
        // The path stays as typed, except for `..`. The server follows a symbolic link in it only if no other
        // user could have created the link.
        let goes_up = self
            .mountpoint
            .components()
            .any(|part| part == Component::ParentDir);
        let mountpoint = match goes_up {
            true => self.mountpoint.canonicalize()?,
            false => std::path::absolute(&self.mountpoint)?,
        };
        let target = MountTarget {
            files,
            source: name.to_owned(),
            mountpoint,
            root: None,
        };
        let mount = server.mount(target, &self.options).map_err(to_error)?;
        writeln!(
            session.out,
            "{name} is mounted on {}",
            mount.mountpoint().display()
        )?;
        session.out.flush()?;
        let handle = self.signals.handle();
        thread::scope(|scope| {
            scope.spawn(|| {
                mount.wait();
                handle.close();
            });
            let mut status = 0;
            for _ in self.signals.forever() {
                match leave(&mount) {
                    Ok(()) => break,
                    Err(FuseError::Busy(path)) => {
                        writeln!(
                            session.err,
                            "millpond: {} is in use; interrupt again when no program uses it",
                            path.display()
                        )?;
                    }
                    Err(error) => {
                        writeln!(session.err, "millpond: {error}")?;
                        status = 1;
                        let _ = mount.unmount(true);
                        break;
                    }
                }
            }
            mount.wait();
            Ok(status)
        })
    }
}

fn leave(mount: &Mount) -> Result<(), FuseError> {
    mount.unmount(false)
}
