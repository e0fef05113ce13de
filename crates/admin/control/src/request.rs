//! The requests: each with its reply, its kind of error, and who may make it.
//!
//! A new request is one entry in the table below. Then it needs its handler (in `millpond-service`, or in the
//! daemon if it needs one), its parser and its printer. The socket needs nothing.

use crate::failure::Denied as _;
use crate::{
    About, ArcInfo, ChangeError, ChangeFailure, ChangeProgress, Changed, ControlError, DatasetInfo,
    DatasetPermissions, DatasetQuery, DeviceFacts, DeviceProblem, DiffQuery, Event, Failure,
    HistoryRecord, ImportError, ImportProgress, ImportRequest, ImportablePool, Imported,
    KeyProblem, MountInfo, MountProblem, MountRequest, NewDevices, NewPoolRequest, OwnerKind,
    OwnerSpace, PathDifference, PoolChange, PoolInfo, ProgramProblem, ProgramRequest, ProgramValue,
    Property, ReceiveProblem, ReceiveStream, Received, SearchPaths, Secret, SendPlan, SendProblem,
    SendStream, TunableInfo, UnmountFailure,
};

/// Who may make a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rights {
    /// Every user of the system.
    Anyone,
    /// Every user, as far as the permissions of the datasets concerned were delegated to them. The service checks that.
    Delegate,
    /// The user that the daemon runs as, and root: the request may change something, or may show what others
    /// should not see.
    Owner,
}

/// Makes [`Request`], [`Reply`], [`Item`] and [`Service`] from the table.
///
/// An entry is `Name, "its name in messages", method(field: type as argument) -> reply, error, rights`. The
/// error is a variant of [`Failure`]. Attributes are those of the field. An argument is turned into its field with `to_owned`.
macro_rules! requests {
    (
        calls {
            $(
                $(#[doc = $doc:literal])*
                $name:ident, $text:literal,
                $method:ident($($(#[$attribute:meta])* $field:ident: $type:ty as $argument:ty),*)
                    -> $reply:ty, $error:ident($error_type:ty), $rights:ident;
            )*
        }
        streams {
            $(
                $(#[doc = $stream_doc:literal])*
                $stream:ident, $stream_text:literal,
                $stream_method:ident($($stream_field:ident: $stream_type:ty as $stream_argument:ty),*)
                    -> each $item:ty, $stream_rights:ident;
            )*
        }
    ) => {
        /// A request about pools.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "serde", serde(tag = "method", content = "parameters"))]
        #[allow(missing_docs)] // fields are named as in the methods of `Service`
        pub enum Request {
            $(
                $(#[doc = $doc])*
                #[cfg_attr(feature = "serde", serde(rename = $text))]
                $name { $($(#[$attribute])* $field: $type),* },
            )*
            $(
                $(#[doc = $stream_doc])*
                #[cfg_attr(feature = "serde", serde(rename = $stream_text))]
                $stream { $($stream_field: $stream_type),* },
            )*
        }

        /// The reply to a request that has one reply.
        #[derive(Debug, Clone, PartialEq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        #[cfg_attr(feature = "serde", serde(untagged))]
        #[allow(missing_docs)] // variants are named as in `Request`
        #[allow(clippy::large_enum_variant)] // there is one at a time
        pub enum Reply {
            $( $name($reply), )*
        }

        /// One of many replies to a request.
        #[derive(Debug, Clone, PartialEq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        #[cfg_attr(feature = "serde", serde(untagged))]
        #[allow(missing_docs)] // variants are named as in `Request`
        pub enum Item {
            $( $stream($item), )*
        }

        impl Request {
            /// The names of all requests in messages.
            pub const NAMES: &[&str] = &[$($text,)* $($stream_text,)*];

            /// The request's name in messages.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $( Self::$name { .. } => $text, )*
                    $( Self::$stream { .. } => $stream_text, )*
                }
            }

            /// Who may make the request with this name; [`Rights::Owner`] for unknown names.
            #[must_use]
            pub fn rights_of(name: &str) -> Rights {
                match name {
                    $( $text => Rights::$rights, )*
                    $( $stream_text => Rights::$stream_rights, )*
                    _ => Rights::Owner,
                }
            }

            /// The failure that tells a caller that it may not make the request with this name.
            #[must_use]
            pub fn denied(name: &str) -> Failure {
                match name {
                    $( $text => Failure::$error(<$error_type>::denied()), )*
                    _ => Failure::Control(ControlError::Denied),
                }
            }

            /// Whether it is answered by [`Service::stream`] instead of [`Service::call`].
            #[must_use]
            pub fn is_stream(&self) -> bool {
                match self {
                    $( Self::$name { .. } => false, )*
                    $( Self::$stream { .. } => true, )*
                }
            }
        }

        #[cfg(feature = "serde")]
        impl Request {
            /// Decodes the reply to this request.
            ///
            /// # Errors
            /// If it is not of the request's type, or the request is a stream.
            pub fn decode_reply<'de, D: serde::Deserializer<'de>>(
                &self,
                from: D,
            ) -> Result<Reply, D::Error> {
                use serde::{Deserialize, de::Error};
                match self {
                    $( Self::$name { .. } => Ok(Reply::$name(Deserialize::deserialize(from)?)), )*
                    $( Self::$stream { .. } => Err(D::Error::custom("one reply to a stream")), )*
                }
            }

            /// Decodes some replies to this request.
            ///
            /// # Errors
            /// If they are not of the request's type, or the request has one reply.
            pub fn decode_items<'de, D: serde::Deserializer<'de>>(
                &self,
                from: D,
            ) -> Result<Vec<Item>, D::Error> {
                use serde::{Deserialize, de::Error};
                match self {
                    $( Self::$name { .. } => Err(D::Error::custom("many replies to a call")), )*
                    $( Self::$stream { .. } => {
                        let items = Vec::<$item>::deserialize(from)?;
                        Ok(items.into_iter().map(Item::$stream).collect())
                    } )*
                }
            }
        }

        /// Answers requests: in this process, or by asking another one.
        ///
        /// An implementation provides [`Service::call`] and [`Service::stream`]. Callers use the other methods,
        /// one for each request. A reply about a pool describes one committed state; two replies may describe
        /// different ones.
        pub trait Service {
            /// Answers a request that has one reply.
            ///
            /// # Errors
            /// A failure of the request's kind; [`Failure::Call`] if there is no answer.
            fn call(&self, request: &Request) -> Result<Reply, Failure>;

            /// Answers a request that comes with a descriptor to write to or read from. `is_abandoned` says whether the caller is gone:
            /// then nothing more should be written.
            ///
            /// # Errors
            /// As [`Service::call`].
            fn transfer(
                &self,
                request: &Request,
                descriptor: std::os::fd::OwnedFd,
                is_abandoned: &(dyn Fn() -> bool + Sync),
            ) -> Result<Reply, Failure> {
                let _ = (request, descriptor, is_abandoned);
                Err(Failure::needs_daemon())
            }

            /// Calls `each` with every reply to a request, one at a time, so that they need not be in memory
            /// together. Stops at the first error of `each` and returns it.
            ///
            /// # Errors
            /// As [`Service::call`].
            fn stream(
                &self,
                request: &Request,
                each: &mut dyn FnMut(Item) -> Result<(), ControlError>,
            ) -> Result<(), Failure>;

            $(
                $(#[doc = $doc])*
                ///
                /// # Errors
                /// The request's error; see [`Failure`].
                fn $method(&self, $($field: $argument),*) -> Result<$reply, $error_type> {
                    let request = Request::$name { $($field: $field.to_owned()),* };
                    match self.call(&request) {
                        Ok(Reply::$name(reply)) => Ok(reply),
                        Ok(_) => Err(Failure::other_reply().into()),
                        Err(failure) => Err(failure.into()),
                    }
                }
            )*
            $(
                $(#[doc = $stream_doc])*
                ///
                /// # Errors
                /// Also the first error of `each`.
                fn $stream_method(
                    &self,
                    $($stream_field: $stream_argument,)*
                    each: &mut dyn FnMut($item) -> Result<(), ControlError>,
                ) -> Result<(), ControlError> {
                    let request = Request::$stream { $($stream_field: $stream_field.to_owned()),* };
                    let outcome = self.stream(&request, &mut |item| match item {
                        Item::$stream(item) => each(item),
                        _ => Err(Failure::other_reply().into()),
                    });
                    outcome.map_err(ControlError::from)
                }
            )*
        }
    };
}

requests! {
    calls {
        /// Names of the pools that are open, in byte order.
        Pools, "org.millpond.Pools", pools() -> Vec<String>, Control(ControlError), Anyone;
        /// Everything about a pool except its datasets.
        Pool, "org.millpond.Pool", pool(name: String as &str) -> PoolInfo, Control(ControlError), Anyone;
        /// The properties of one vdev (`zpool get all POOL VDEV`), user properties last. Properties that the vdev
        /// does not have are omitted.
        VdevProperties, "org.millpond.VdevProperties", vdev_properties(pool: String as &str, guid: u64 as u64)
            -> Vec<Property>, Control(ControlError), Anyone;
        /// The holds on a snapshot, by tag. Each has the time of its creation in seconds since 1970.
        Holds, "org.millpond.Holds", holds(snapshot: String as &str)
            -> Vec<(String, u64)>, Control(ControlError), Anyone;
        /// The permissions granted at a file system or volume, and at each of its ancestors up to the root.
        Permissions, "org.millpond.Permissions", permissions(dataset: String as &str)
            -> Vec<DatasetPermissions>, Control(ControlError), Anyone;
        /// Usage and quotas of users, groups or projects in a file system, by id.
        SpaceByOwner, "org.millpond.SpaceByOwner", space_by_owner(dataset: String as &str, owners: OwnerKind as OwnerKind)
            -> Vec<OwnerSpace>, Control(ControlError), Anyone;
        /// Inspects a path as a device for a new vdev.
        Device, "org.millpond.Device", device(path: String as &str)
            -> DeviceFacts, Device(DeviceProblem), Owner;
        /// Creates a pool. It is on stable storage when this returns; nothing is modified before the first label
        /// is written. `command` goes into its history.
        CreatePool, "org.millpond.CreatePool", create_pool(request: NewPoolRequest as &NewPoolRequest, command: String as &str)
            -> Changed, Change(ChangeError), Owner;
        /// Checks whether these devices could be added to a pool, as [`PoolChange::Add`] would.
        CheckAdd, "org.millpond.CheckAdd", check_add(pool: String as &str, devices: NewDevices as &NewDevices)
            -> (), Change(ChangeError), Owner;
        /// Makes changes of one pool in the given order. Each is on stable storage before the next starts. The
        /// first error ends the sequence; earlier changes stay. `command` goes into the pool's history if all
        /// changes succeed.
        Change, "org.millpond.Change", change(pool: String as &str, changes: Vec<PoolChange> as &[PoolChange], command: String as &str)
            -> Changed, ChangeFailure(ChangeFailure), Delegate;
        /// Wipes the labels of a device. Without `force`, it refuses a device that a pool may need.
        ClearLabels, "org.millpond.ClearLabels", clear_labels(path: String as &str, force: bool as bool)
            -> (), Change(ChangeError), Owner;
        /// Pools that are not open and can be imported from these paths.
        Importable, "org.millpond.Importable",
            importable(#[cfg_attr(feature = "serde", serde(rename = "places"))] search: SearchPaths as &SearchPaths)
            -> Vec<ImportablePool>, Import(ImportError), Owner;
        /// Opens a pool and keeps it open. `command` goes into its history.
        Import, "org.millpond.Import", import(request: ImportRequest as &ImportRequest, command: String as &str)
            -> Imported, Import(ImportError), Owner;
        /// The mounts, in the order in which they were made.
        Mounts, "org.millpond.Mounts", mounts() -> Vec<MountInfo>, Control(ControlError), Anyone;
        /// Mounts a file system at the mount point given by its properties.
        Mount, "org.millpond.Mount", mount(dataset: String as &str, request: MountRequest as &MountRequest)
            -> (), Mount(MountProblem), Owner;
        /// Unmounts a file system and all mounts below it.
        Unmount, "org.millpond.Unmount", unmount(dataset: String as &str, force: bool as bool)
            -> (), Unmount(UnmountFailure), Owner;
        /// Loads the key of an encryption root, or only checks whether it is right.
        LoadKey, "org.millpond.LoadKey", load_key(dataset: String as &str, key: Secret as &Secret, only_check: bool as bool)
            -> (), Key(KeyProblem), Delegate;
        /// Unloads the key of an encryption root.
        UnloadKey, "org.millpond.UnloadKey", unload_key(dataset: String as &str) -> (), Key(KeyProblem), Delegate;
        /// The number of deleted files of a file system that are not freed yet, because they are large or still open. 0 if
        /// it is not mounted.
        DeleteQueue, "org.millpond.DeleteQueue", delete_queue(dataset: String as &str)
            -> u64, Control(ControlError), Anyone;
        /// Writes a send stream, and returns its length in bytes when all of it is written. Answered by
        /// [`Service::transfer`] only, to the descriptor that comes with the request.
        Send, "org.millpond.Send", send(request: SendStream as &SendStream) -> u64, Send(SendProblem), Delegate;
        /// Receives a stream or package from the descriptor that comes with the request, and returns when all of it is
        /// on stable storage, or it failed. Answered by [`Service::transfer`] only. `command` goes into the pool's history.
        Receive, "org.millpond.Receive", receive(request: ReceiveStream as &ReceiveStream, command: String as &str)
            -> Received, Receive(ReceiveProblem), Delegate;
        /// Runs a channel program, whose script is read from the descriptor that comes with the request. Returns its
        /// value when its changes are on stable storage. Answered by [`Service::transfer`] only. `command` goes into the
        /// pool's history.
        RunProgram, "org.millpond.RunProgram", run_program(request: ProgramRequest as &ProgramRequest, command: String as &str)
            -> ProgramValue, Program(ProgramProblem), Owner;
        /// Keeps the last committed state of a pool, so that the caller can read it from the devices: its txg is written to the
        /// descriptor that comes with the request, as a line. Nothing that the state refers to is overwritten until the other
        /// end is closed. Returns then, or before if the state cannot be kept any longer; the other end reads the end then.
        /// Answered by [`Service::transfer`] only.
        KeepState, "org.millpond.KeepState", keep_state(pool: String as &str) -> (), Control(ControlError), Owner;
        /// The streams that [`Request::Send`] would write, in order.
        SendPlan, "org.millpond.SendPlan", send_plan(request: SendStream as &SendStream)
            -> SendPlan, Send(SendProblem), Delegate;
        /// The events after number `after`, oldest first; 0 for all events kept. If there is none, the answer waits for
        /// one, `wait_ms` milliseconds at most and no longer than a second.
        Events, "org.millpond.Events", events(after: u64 as u64, wait_ms: u64 as u64)
            -> Vec<Event>, Control(ControlError), Owner;
        /// Deletes all events and returns their count.
        ClearEvents, "org.millpond.ClearEvents", clear_events() -> u64, Control(ControlError), Owner;
        /// The version, process and user of the process that answers.
        About, "org.millpond.About", about() -> About, Control(ControlError), Anyone;
        /// Statistics of the cache that all pools of the process share.
        ArcStatistics, "org.millpond.ArcStatistics", arc_statistics() -> ArcInfo, Control(ControlError), Anyone;
        /// The imports that have not ended, and what they are doing.
        ImportProgress, "org.millpond.ImportProgress", import_progress() -> Vec<ImportProgress>, Control(ControlError), Anyone;
        /// The changes of a pool that have not ended, as far as they are many steps.
        ChangeProgress, "org.millpond.ChangeProgress", change_progress(pool: String as &str)
            -> Vec<ChangeProgress>, Control(ControlError), Anyone;
        /// The settings of the process that answers, which OpenZFS has as module parameters.
        Tunables, "org.millpond.Tunables", tunables() -> Vec<TunableInfo>, Control(ControlError), Anyone;
        /// Changes a setting of the process that answers. It takes effect at once, and is not stored.
        SetTunable, "org.millpond.SetTunable", set_tunable(name: String as &str, value: u64 as u64)
            -> (), Control(ControlError), Owner;
    }
    streams {
        /// Every dataset that a query selects, in no guaranteed order.
        Datasets, "org.millpond.Datasets", datasets(query: DatasetQuery as &DatasetQuery)
            -> each DatasetInfo, Anyone;
        /// Every record of a pool's history, oldest first.
        History, "org.millpond.History", history(pool: String as &str) -> each HistoryRecord, Owner;
        /// Every file that differs between two states of a file system, by object number.
        Diff, "org.millpond.Diff", diff(query: DiffQuery as &DiffQuery) -> each PathDifference, Delegate;
    }
}
