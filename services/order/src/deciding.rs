//! The keys that the accept of this process is deciding. The gate may refuse such a key (its first
//! attempt came before a rebuild, say) and the look-up finds no row yet: what is true of it will be
//! known in a moment, and a refusal would be a guess (P11).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use contracts::HoldId;

/// The keys. Cloning shares them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Deciding {
    /// With the number of attempts: twins are decided at the same time.
    keys: Arc<Mutex<HashMap<HoldId, usize>>>,
}

/// One attempt of a key; over when dropped.
#[derive(Debug)]
pub(crate) struct Attempt {
    of: Deciding,
    key: HoldId,
}

impl Deciding {
    /// An attempt begins.
    pub(crate) fn begin(&self, key: HoldId) -> Attempt {
        *self.lock().entry(key).or_default() += 1;
        Attempt {
            of: self.clone(),
            key,
        }
    }

    /// Whether an attempt is under way: its commit may still come. To be asked *before* the row is
    /// looked for: one that has ended by then has left its row.
    pub(crate) fn contains(&self, key: HoldId) -> bool {
        self.lock().contains_key(&key)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<HoldId, usize>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let mut keys = self.of.lock();
        if let Some(attempts) = keys.get_mut(&self.key) {
            *attempts -= 1;
            if *attempts == 0 {
                keys.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_being_decided_until_its_last_attempt_ends() {
        let (deciding, key) = (Deciding::default(), HoldId::derive("s", "r", "k"));
        assert!(!deciding.contains(key));
        let (first, twin) = (deciding.begin(key), deciding.begin(key));
        drop(first);
        assert!(deciding.contains(key));
        drop(twin);
        assert!(!deciding.contains(key));
    }
}
