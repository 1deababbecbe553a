//! The handler of order requests for one that was set aside and is handled again, beside the running
//! service.
//!
//! The gate is not asked: PostgreSQL decides, as for every order whose gate is away (DIRECT). So a
//! redrive that is rolled back leaves no hold behind. After the commit the gate is told.
//! *Dies before:* the sweep of the stock service tells it.

use std::sync::Arc;

use contracts::{ConsumerName, Envelope, Shop};
use domain::deadline::HoldRules;
use messaging::{Aside, HandleError, Handler, Inbound, Rejection};
use platform::Shutdown;
use reservations::Gate;
use store::{PgClock, Store, Tx};

use crate::{
    catalogue::Catalogue,
    request_orders::{Prepared, RequestOrders, Requested},
    sync_gate::SyncGate,
};

/// A handler over the stores, for the requests of `shop`. What it tells the gate is a task of `tasks`
/// that ends with the handler.
#[must_use]
pub fn handler(
    store: Store,
    gate: Gate,
    shop: Shop,
    rules: HoldRules,
    tasks: &Shutdown,
) -> impl Handler + use<> {
    Direct(RequestOrders {
        sync: SyncGate::start(store.clone(), gate.clone(), tasks),
        catalogue: Arc::new(Catalogue::new(rules)),
        clock: PgClock::new(),
        store,
        gate,
        shop,
    })
}

/// Order requests without the gate.
#[derive(Debug)]
struct Direct(RequestOrders);

impl Handler for Direct {
    type Event = Requested;
    type Prepared = Prepared;

    fn consumer(&self) -> ConsumerName {
        self.0.consumer()
    }

    fn decode(&self, envelope: &Envelope, data: &[u8]) -> Result<Option<Requested>, Rejection> {
        self.0.decode(envelope, data)
    }

    async fn prepare(&self, _: &[Inbound<Requested>]) -> Result<Prepared, HandleError> {
        // No refusal of a gate: all is for the accept to decide, the keys too.
        Ok(Prepared::new())
    }

    async fn handle(
        &self,
        tx: &mut Tx,
        events: &[Inbound<Requested>],
        prepared: Prepared,
    ) -> Result<Vec<Aside>, HandleError> {
        self.0.handle(tx, events, prepared).await
    }

    async fn after_commit(&self, events: &[Inbound<Requested>]) {
        self.0.after_commit(events).await;
    }
}
