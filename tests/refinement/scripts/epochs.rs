//! Gates that are lost, and epochs that are begun and opened in their place, also by a rebuild that
//! was overtaken.

use model::protocol::{
    SKUS,
    gate::{Epoch, GateOp, Word},
};
use rand::RngExt;
use reservations::Gate;

use super::{Walk, wipe};
use crate::{
    agreement::{Agreed, same},
    names::{self, SHARD},
};

impl Walk {
    /// An epoch is begun, perhaps from a wrong idea of the newest one; or one is opened, perhaps by a
    /// rebuild that was overtaken.
    pub(super) async fn turn_epoch(&mut self) -> Agreed {
        match self.model.epoch {
            Some(Epoch { id, open: false }) if self.rng.random_bool(0.7) => {
                let before = id.checked_sub(1).filter(|_| self.rng.random_bool(0.2));
                self.open_epoch(before.unwrap_or(id)).await
            }
            _ => self.begin_epoch().await,
        }
    }

    fn epoch(&self, id: u32) -> String {
        self.epochs[usize::try_from(id).unwrap()].clone()
    }

    async fn open_epoch(&mut self, epoch: u32) -> Agreed {
        self.history.tell(format!("open epoch {epoch}"));
        let answer = self
            .gate
            .open_epoch(SHARD, &self.epoch(epoch))
            .await
            .unwrap();
        let word = self.run(&GateOp::Open { epoch });
        same("open an epoch", answer.as_str(), word.as_str())
    }

    /// Rebuilds that were overtaken open theirs late, and so does one that tries again.
    pub(super) async fn open_again(&mut self) -> Agreed {
        let newest = self.model.epoch.map(|epoch| epoch.id);
        let begun = u32::try_from(self.epochs.len()).unwrap();
        match newest {
            Some(id) if self.rng.random_bool(0.5) => self.open_epoch(id).await,
            _ if begun > 0 => {
                let any = self.rng.random_range(0..begun);
                self.open_epoch(any).await
            }
            _ => self.begin_epoch().await,
        }
    }

    async fn begin_epoch(&mut self) -> Agreed {
        let newest = self.model.epoch.map(|epoch| epoch.id);
        let epoch = u32::try_from(self.epochs.len()).unwrap();
        let replaces = match newest {
            Some(id) if self.rng.random_bool(0.2) => id.checked_sub(1),
            None if epoch > 0 && self.rng.random_bool(0.2) => Some(epoch - 1),
            newest => newest,
        };
        self.history
            .tell(format!("begin epoch {epoch} after {replaces:?}"));
        let name = Gate::new_epoch_id();
        self.epochs.push(name.clone());
        let old = replaces.map(|id| self.epoch(id));
        let answer = self.gate.begin_epoch(SHARD, &name, old.as_deref()).await;
        let word = self.run(&GateOp::Begin { epoch, replaces });
        if word == Word::Begun {
            self.fragile = false;
            if let Some(old) = old {
                self.gate.drop_epoch(SHARD, &old).await.unwrap();
            }
        }
        same("begin an epoch", answer.unwrap().as_str(), word.as_str())
    }

    pub(super) async fn lose(&mut self) -> Agreed {
        let all = self.model.epoch.is_none() || self.rng.random_bool(0.4);
        let pattern = if all {
            self.run(&GateOp::Wipe);
            self.fragile = false;
            format!("{}:*", self.prefix)
        } else {
            let sku = self.rng.random_range(0..SKUS);
            self.run(&GateOp::LoseRow { sku });
            self.fragile = true;
            format!("{}:*:gate:{}", self.prefix, names::sku(sku))
        };
        self.history.tell(format!("lose {pattern}"));
        wipe(&mut self.raw, &pattern).await;
        Ok(())
    }
}
