//! Why a request was not answered.

use crate::{
    ChangeError, ChangeFailure, ControlError, DeviceProblem, ImportError, KeyProblem, MountProblem,
    ProgramProblem, ReceiveProblem, SendProblem,
};

/// Where unmounting stopped, and why.
pub type UnmountFailure = (String, MountProblem);

/// Why a request failed. Each request has one kind of failure besides [`Failure::Call`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Failure {
    /// A query failed.
    Control(ControlError),
    /// A change failed.
    Change(ChangeError),
    /// One of several changes failed.
    ChangeFailure(ChangeFailure),
    /// A path is not a device for a vdev.
    Device(DeviceProblem),
    /// An import failed.
    Import(ImportError),
    /// A mount failed.
    Mount(MountProblem),
    /// Unmounting failed, at this mount point or dataset.
    Unmount(UnmountFailure),
    /// A key was not loaded or unloaded.
    Key(KeyProblem),
    /// A stream was not sent.
    Send(SendProblem),
    /// A stream was not received.
    Receive(ReceiveProblem),
    /// A channel program failed.
    Program(ProgramProblem),
    /// There is no answer; the text says why.
    Call(String),
}

impl Failure {
    /// For a reply of another type than the request's.
    #[must_use]
    pub fn other_reply() -> Self {
        Self::Call("the reply answers another request".into())
    }

    /// For a request that needs a process which keeps pools open.
    #[must_use]
    pub fn needs_daemon() -> Self {
        Self::Call("only a process that keeps pools open can do this".into())
    }

    /// The same failure without texts that borrow from the program; see [`ChangeError::portable`].
    #[must_use]
    pub fn portable(self) -> Self {
        match self {
            Self::Change(error) => Self::Change(error.portable()),
            Self::ChangeFailure(failure) => Self::ChangeFailure(ChangeFailure {
                done: failure.done,
                error: failure.error.portable(),
            }),
            Self::Import(ImportError::Change(error)) => {
                Self::Import(ImportError::Change(error.portable()))
            }
            other => other,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Call(text) => text.clone(),
            _ => "the reply is the failure of another kind of request".into(),
        }
    }
}

/// Converts between [`Failure`] and the error of one kind of request, and makes the error for callers without
/// the right.
macro_rules! kinds {
    ($($kind:ident($error:ty): denied $denied:expr, otherwise $otherwise:expr;)*) => {
        $(
            impl From<$error> for Failure {
                fn from(error: $error) -> Self {
                    Self::$kind(error)
                }
            }
            impl From<Failure> for $error {
                fn from(failure: Failure) -> Self {
                    match failure {
                        Failure::$kind(error) => error,
                        other => $otherwise(other.text()),
                    }
                }
            }
            impl Denied for $error {
                fn denied() -> Self {
                    $denied
                }
            }
        )*
    };
}

/// Errors that can say that a request is not allowed.
pub(crate) trait Denied {
    fn denied() -> Self;
}

kinds! {
    Control(ControlError): denied Self::Denied, otherwise Self::Io;
    Change(ChangeError): denied Self::Denied, otherwise Self::Failed;
    ChangeFailure(ChangeFailure):
        denied Self { done: 0, error: ChangeError::Denied },
        otherwise |text| Self { done: 0, error: ChangeError::Failed(text) };
    Device(DeviceProblem):
        denied Self::Unusable("permission denied".into()), otherwise Self::Unusable;
    Import(ImportError): denied Self::Denied, otherwise Self::Unreadable;
    Mount(MountProblem): denied Self::Denied, otherwise Self::Failed;
    // The name is that of the request: a client over a socket fills it in.
    Unmount(UnmountFailure):
        denied (String::new(), MountProblem::Denied),
        otherwise |text| (String::new(), MountProblem::Failed(text));
    Key(KeyProblem): denied Self::Denied, otherwise Self::Text;
    Send(SendProblem): denied Self::Denied, otherwise Self::Failed;
    Receive(ReceiveProblem): denied Self::Denied, otherwise Self::Failed;
    Program(ProgramProblem): denied Self::Denied, otherwise Self::Failed;
}
