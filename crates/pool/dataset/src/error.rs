use millpond_object::ObjectError;
use millpond_ondisk::DecodeError;
use millpond_pool::PoolError;
use millpond_zap::ZapError;

/// Why a dataset could not be found or opened.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// No dataset has this name.
    #[error("'{name}': dataset does not exist")]
    NotFound {
        /// The full name asked for.
        name: String,
    },
    /// The name breaks the rules for names.
    #[error("'{name}': {reason}")]
    InvalidName {
        /// The name asked for.
        name: String,
        /// Which rule.
        reason: &'static str,
    },
    /// An object of the dataset layer could not be read.
    #[error("{name}: {error}")]
    Object {
        /// The dataset concerned.
        name: String,
        /// What went wrong.
        error: ObjectError,
    },
    /// A table of the dataset layer could not be read.
    #[error("{name}: {error}")]
    Zap {
        /// The dataset concerned.
        name: String,
        /// What went wrong.
        error: ZapError,
    },
    /// A structure of the dataset layer cannot be what a correct writer wrote.
    #[error("{name}: {error}")]
    Invalid {
        /// The dataset concerned.
        name: String,
        /// What is wrong.
        error: DecodeError,
    },
    /// The pool could not serve the request.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The dataset is encrypted and its key is not loaded.
    #[error("'{name}': encryption key not loaded")]
    Locked {
        /// The dataset concerned.
        name: String,
    },
    /// The key given does not unlock the dataset.
    #[error("Key load error: {reason}")]
    Key {
        /// The dataset concerned.
        name: String,
        /// Why, in the words users know.
        reason: String,
    },
}

/// Attaches a dataset's name to errors from below.
pub(crate) trait Named<T> {
    fn named(self, name: &str) -> Result<T, DatasetError>;
}

impl<T> Named<T> for Result<T, ObjectError> {
    fn named(self, name: &str) -> Result<T, DatasetError> {
        self.map_err(|error| {
            if error.is_locked() {
                DatasetError::Locked {
                    name: name.to_owned(),
                }
            } else {
                DatasetError::Object {
                    name: name.to_owned(),
                    error,
                }
            }
        })
    }
}

impl<T> Named<T> for Result<T, ZapError> {
    fn named(self, name: &str) -> Result<T, DatasetError> {
        self.map_err(|error| DatasetError::Zap {
            name: name.to_owned(),
            error,
        })
    }
}

impl<T> Named<T> for Result<T, DecodeError> {
    fn named(self, name: &str) -> Result<T, DatasetError> {
        self.map_err(|error| DatasetError::Invalid {
            name: name.to_owned(),
            error,
        })
    }
}
