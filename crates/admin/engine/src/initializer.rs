//! Creates the initial content of datasets. Implements a port of the dataset layer with the file layer.

use millpond_dataset::{DatasetInitializer, NewContents};
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_object::ObjectSet;
use millpond_pool::WriteOptions;
use millpond_posix::{Case, NewFileSystem, create_file_system};
use millpond_txg::Transaction;
use millpond_volume::create_volume;
use std::error::Error;

/// Creates the first objects of file systems and volumes.
pub struct FileSystemInitializer {
    env: Env,
    /// Default uid and gid of root directories.
    owner: (u32, u32),
}

impl FileSystemInitializer {
    /// Root directories without an owner get the one of the options.
    #[must_use]
    pub fn of(env: &Env, writing: &WriteOptions) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            owner: writing.owner,
        })
    }
}

impl DatasetInitializer for FileSystemInitializer {
    fn create(
        &self,
        set: &Arc<ObjectSet>,
        tx: &Transaction,
        new: &NewContents,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        match new {
            NewContents::FileSystem(new) => {
                let (uid, gid) = match new.owner {
                    (0, 0) => self.owner,
                    named => named,
                };
                let files = NewFileSystem {
                    version: new.version,
                    normalisation: new.normalization,
                    is_utf8_only: new.is_utf8_only,
                    case: match new.case_sensitivity {
                        0 => Case::Sensitive,
                        1 => Case::Insensitive,
                        _ => Case::Mixed,
                    },
                    has_projects: new.has_projects,
                    dnode_slots: 1,
                    default_quotas: new.default_quotas,
                    uid,
                    gid,
                };
                create_file_system(set, tx, &self.env, &files)?;
            }
            NewContents::Volume {
                size_bytes,
                block_bytes,
            } => create_volume("new volume", set, tx, &self.env, *size_bytes, *block_bytes)?,
        }
        Ok(())
    }
}
