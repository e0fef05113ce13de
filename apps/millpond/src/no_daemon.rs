//! Answers for an ordinary user who can have no daemon while root has none either.

use millpond_control::{ControlError, Failure, Item, Reply, Request, Rights, Service};
use millpond_service::LocalService;

/// No pool is imported that such a user could see, so queries find none. Everything else fails.
pub struct NoDaemon {
    /// Has no pools.
    none: LocalService,
    /// Why there is no daemon.
    reason: String,
}

impl NoDaemon {
    /// `none` must have no pools.
    pub fn new(none: LocalService, reason: String) -> Self {
        Self { none, reason }
    }

    fn check(&self, request: &Request) -> Result<(), Failure> {
        match Request::rights_of(request.name()) {
            Rights::Anyone => Ok(()),
            Rights::Delegate | Rights::Owner => Err(Failure::Call(self.reason.clone())),
        }
    }
}

impl Service for NoDaemon {
    fn call(&self, request: &Request) -> Result<Reply, Failure> {
        self.check(request)?;
        self.none.call(request)
    }

    fn stream(
        &self,
        request: &Request,
        each: &mut dyn FnMut(Item) -> Result<(), ControlError>,
    ) -> Result<(), Failure> {
        self.check(request)?;
        self.none.stream(request, each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_control::ChangeError;
    use millpond_engine::Search;
    use millpond_service::{LocalChanges, LocalPools};

    #[test]
    fn queries_find_no_pools_and_changes_say_why() {
        let folder = tempfile::tempdir().unwrap();
        let search = Search::new([folder.path()]);
        let changes = LocalChanges::new(search.clone(), None, 1000);
        let none = LocalService::new(LocalPools::search(&search), changes);
        let none = NoDaemon::new(none, "no home".into());
        assert_eq!(none.pools().unwrap(), Vec::<String>::new());
        assert!(matches!(none.pool("tank"), Err(ControlError::NoSuchPool)));
        let refused = none.clear_labels("/dev/null", false);
        assert_eq!(refused, Err(ChangeError::Failed("no home".into())));
    }
}
