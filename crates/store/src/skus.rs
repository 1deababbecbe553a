//! The catalogue. A change of it raises `stock.version`, so that the gate takes the new window and
//! limit; opening stock is an adjustment like any other (invariant I3).

use std::collections::BTreeMap;

use contracts::{HoldId, Money, Sku, Timestamp};
use domain::{Register, Shard};

use crate::{
    Store, Tx,
    adjustments::{self, NewAdjustment},
    error::{Bounded, Result, StoreError, expect_rows},
    stock::{self, StockRow},
    text,
};

/// Whether a SKU has a waiting room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WaitingRoom {
    /// Never.
    #[default]
    Off,
    /// Always.
    On,
    /// While the queue is long.
    Auto,
}

impl WaitingRoom {
    /// The word in the database and in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Auto => "auto",
        }
    }

    /// The value of a word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Off, Self::On, Self::Auto]
            .into_iter()
            .find(|room| room.as_str() == word)
    }
}

/// A SKU as it is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkuPut {
    /// Which.
    pub sku: Sku,
    /// Opening stock; counts only when the SKU is new.
    pub on_hand: i64,
    /// Of one unit.
    pub unit_price: Money,
    /// The most units that one buyer may hold and own.
    pub per_customer_limit: Option<i32>,
    /// The sale is closed before.
    pub opens_at: Option<Timestamp>,
    /// The sale is closed from then on.
    pub closes_at: Option<Timestamp>,
    /// How long a reservation lasts.
    pub reservation_ttl_seconds: i32,
    /// Whether it has a waiting room.
    pub waiting_room: WaitingRoom,
    /// Where its gate lives; counts only when the SKU is new.
    pub shard: Shard,
}

/// A SKU as it is: catalogue and stock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkuRow {
    /// Which.
    pub sku: Sku,
    /// Where its gate lives.
    pub shard: Shard,
    /// Of one unit.
    pub unit_price: Money,
    /// The most units that one buyer may hold and own.
    pub per_customer_limit: Option<i32>,
    /// The sale is closed before.
    pub opens_at: Option<Timestamp>,
    /// The sale is closed from then on.
    pub closes_at: Option<Timestamp>,
    /// How long a reservation lasts.
    pub reservation_ttl_seconds: i32,
    /// Whether it has a waiting room.
    pub waiting_room: WaitingRoom,
    /// Units received and not written off.
    pub on_hand: i64,
    /// Units of RESERVED orders.
    pub held: i64,
    /// Units of CONFIRMED orders.
    pub sold: i64,
    /// Rises with every change but the accept's.
    pub version: i64,
}

impl SkuRow {
    /// What can still be reserved.
    #[must_use]
    pub fn available(&self) -> i64 {
        self.on_hand - self.held - self.sold
    }

    /// What the gate is told.
    #[must_use]
    pub fn register(&self) -> Register {
        Register {
            sku: self.sku.clone(),
            limit: self.on_hand - self.sold,
            version: self.version,
            opens_at_ms: self.opens_at.map(|at| at.timestamp_millis()),
            closes_at_ms: self.closes_at.map(|at| at.timestamp_millis()),
            per_customer_limit: self.per_customer_limit.map(i64::from),
        }
    }
}

/// What [`put`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The SKU is new: its opening stock is an adjustment, and `STOCK_ADJUSTED` goes out.
    Created,
    /// The catalogue was changed, the stock not.
    Updated,
}

/// Creates or changes a SKU. `request_id` names the opening adjustment. Gaining a per-customer
/// limit counts the units of all live and confirmed orders; losing it forgets them.
///
/// # Errors
/// [`crate::StoreError::constraint`] names the rule that a value breaks.
pub async fn put(tx: &mut Tx, put: &SkuPut, request_id: HoldId) -> Result<Put> {
    let inserted = sqlx::query!(
        "insert into skus (sku, shard, unit_price_minor, currency, per_customer_limit, opens_at,
                           closes_at, reservation_ttl_seconds, waiting_room)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
         on conflict (sku) do nothing",
        put.sku.as_str(),
        put.shard.0,
        put.unit_price.amount_minor,
        put.unit_price.currency.as_str(),
        put.per_customer_limit,
        put.opens_at,
        put.closes_at,
        put.reservation_ttl_seconds,
        put.waiting_room.as_str(),
    )
    .execute(&mut **tx)
    .answer("insert a SKU")
    .await?;
    if inserted.rows_affected() == 1 {
        open_stock(tx, put, request_id).await?;
        return Ok(Put::Created);
    }
    change(tx, put).await?;
    Ok(Put::Updated)
}

async fn open_stock(tx: &mut Tx, put: &SkuPut, request_id: HoldId) -> Result<()> {
    sqlx::query!(
        "insert into stock (sku, on_hand, limited) values ($1, $2, $3)",
        put.sku.as_str(),
        put.on_hand,
        put.per_customer_limit.is_some(),
    )
    .execute(&mut **tx)
    .answer("insert stock")
    .await?;
    let opening = NewAdjustment {
        request_id,
        // Nobody repeats it: a second PUT finds the SKU.
        fingerprint: [0; 32],
        sku: put.sku.clone(),
        delta: put.on_hand,
        reason: "opening".to_owned(),
    };
    let after = StockRow {
        on_hand: put.on_hand,
        held: 0,
        sold: 0,
        version: 1,
        limited: put.per_customer_limit.is_some(),
    };
    adjustments::record(tx, &opening, after).await.map(|_| ())
}

/// Changes the catalogue under the lock of the stock row, so that no accept or settlement runs
/// between the change of a limit and the count of the buyers' units.
async fn change(tx: &mut Tx, put: &SkuPut) -> Result<()> {
    if put.per_customer_limit.is_none() {
        lock_buyers(tx, &put.sku).await?;
    }
    let rows = stock::lock(tx, std::slice::from_ref(&put.sku)).await?;
    let limited_before = rows.get(&put.sku).is_some_and(|row| row.limited);
    let changed = sqlx::query!(
        "update skus
         set unit_price_minor = $2, currency = $3, per_customer_limit = $4, opens_at = $5,
             closes_at = $6, reservation_ttl_seconds = $7, waiting_room = $8,
             updated_at = clock_timestamp()
         where sku = $1
           and (unit_price_minor, currency, per_customer_limit, opens_at, closes_at,
                reservation_ttl_seconds, waiting_room)
             is distinct from ($2, $3, $4::integer, $5::timestamptz, $6::timestamptz, $7, $8)",
        put.sku.as_str(),
        put.unit_price.amount_minor,
        put.unit_price.currency.as_str(),
        put.per_customer_limit,
        put.opens_at,
        put.closes_at,
        put.reservation_ttl_seconds,
        put.waiting_room.as_str(),
    )
    .execute(&mut **tx)
    .answer("change a SKU")
    .await?;
    if changed.rows_affected() == 0 {
        return Ok(());
    }
    let limited = put.per_customer_limit.is_some();
    let bumped = sqlx::query!(
        "update stock set version = version + 1, limited = $2 where sku = $1",
        put.sku.as_str(),
        limited,
    )
    .execute(&mut **tx)
    .answer("raise the version of stock")
    .await?;
    expect_rows("raise the version of stock", 1, bumped.rows_affected())?;
    match (limited_before, limited) {
        (false, true) => count_buyers(tx, &put.sku).await,
        (true, false) => forget_buyers(tx, &put.sku).await,
        (false, false) | (true, true) => Ok(()),
    }
}

/// Before the stock row, as the lock order wants it.
async fn lock_buyers(tx: &mut Tx, sku: &Sku) -> Result<()> {
    sqlx::query!(
        "select count(*) from (
             select 1 from buyer_units where sku = $1 order by shop, customer_id
             for no key update) as locked",
        sku.as_str(),
    )
    .fetch_one(&mut **tx)
    .answer("lock buyers")
    .await
    .map(|_| ())
}

async fn count_buyers(tx: &mut Tx, sku: &Sku) -> Result<()> {
    sqlx::query!(
        "insert into buyer_units (sku, shop, customer_id, units)
         select l.sku, o.shop, o.customer_id, sum(l.quantity)
         from order_lines l
                  join orders o on o.id = l.order_id
         where l.sku = $1 and o.status in ('RESERVED', 'CONFIRMED')
         group by l.sku, o.shop, o.customer_id
         on conflict (sku, shop, customer_id) do update set units = excluded.units",
        sku.as_str(),
    )
    .execute(&mut **tx)
    .slowly("count buyers' units")
    .await
    .map(|_| ())
}

async fn forget_buyers(tx: &mut Tx, sku: &Sku) -> Result<()> {
    sqlx::query!("delete from buyer_units where sku = $1", sku.as_str())
        .execute(&mut **tx)
        .answer("forget buyers' units")
        .await
        .map(|_| ())
}

struct Row {
    sku: String,
    shard: i32,
    unit_price_minor: i64,
    currency: String,
    per_customer_limit: Option<i32>,
    opens_at: Option<Timestamp>,
    closes_at: Option<Timestamp>,
    reservation_ttl_seconds: i32,
    waiting_room: String,
    on_hand: i64,
    held: i64,
    sold: i64,
    version: i64,
}

impl TryFrom<Row> for SkuRow {
    type Error = StoreError;
    fn try_from(row: Row) -> Result<Self> {
        Ok(Self {
            sku: text::sku(&row.sku)?,
            shard: Shard(row.shard),
            unit_price: text::money(row.unit_price_minor, &row.currency)?,
            per_customer_limit: row.per_customer_limit,
            opens_at: row.opens_at,
            closes_at: row.closes_at,
            reservation_ttl_seconds: row.reservation_ttl_seconds,
            waiting_room: WaitingRoom::parse(&row.waiting_room).ok_or(StoreError::Malformed {
                column: "skus.waiting_room",
                value: row.waiting_room,
            })?,
            on_hand: row.on_hand,
            held: row.held,
            sold: row.sold,
            version: row.version,
        })
    }
}

/// One SKU.
///
/// # Errors
/// No answer.
pub async fn get(store: &Store, sku: &Sku) -> Result<Option<SkuRow>> {
    Ok(find_many(store, std::slice::from_ref(sku))
        .await?
        .remove(sku))
}

/// Several SKUs; those that do not exist are left out.
///
/// # Errors
/// No answer.
pub async fn find_many(store: &Store, skus: &[Sku]) -> Result<BTreeMap<Sku, SkuRow>> {
    let names: Vec<&str> = skus.iter().map(Sku::as_str).collect();
    let mut conn = store.conn().await?;
    let rows = sqlx::query_as!(
        Row,
        "select k.sku, k.shard, k.unit_price_minor, k.currency, k.per_customer_limit, k.opens_at,
                k.closes_at, k.reservation_ttl_seconds, k.waiting_room,
                s.on_hand, s.held, s.sold, s.version
         from skus k
                  join stock s on s.sku = k.sku
         where k.sku = any($1)",
        &names as &[&str],
    )
    .fetch_all(&mut *conn)
    .answer("find SKUs")
    .await?;
    rows.into_iter()
        .map(|row| SkuRow::try_from(row).map(|row| (row.sku.clone(), row)))
        .collect()
}

/// Where the gate of every SKU lives.
///
/// # Errors
/// No answer.
pub async fn shards(store: &Store) -> Result<BTreeMap<Sku, Shard>> {
    let mut conn = store.conn().await?;
    let rows = sqlx::query!("select sku, shard from skus")
        .fetch_all(&mut *conn)
        .answer("read the shards")
        .await?;
    rows.into_iter()
        .map(|row| Ok((text::sku(&row.sku)?, Shard(row.shard))))
        .collect()
}

/// What the gate is told of some SKUs.
///
/// # Errors
/// No answer.
pub async fn registers(store: &Store, skus: &[Sku]) -> Result<Vec<(Shard, Register)>> {
    let rows = find_many(store, skus).await?;
    Ok(rows
        .into_values()
        .map(|row| (row.shard, row.register()))
        .collect())
}

/// SKUs in order, after `after`, at most `limit`; of one shard, or of all.
///
/// # Errors
/// No answer.
pub async fn page(
    store: &Store,
    shard: Option<Shard>,
    after: Option<&Sku>,
    limit: i64,
) -> Result<Vec<SkuRow>> {
    let mut conn = store.conn().await?;
    let rows = sqlx::query_as!(
        Row,
        "select k.sku, k.shard, k.unit_price_minor, k.currency, k.per_customer_limit, k.opens_at,
                k.closes_at, k.reservation_ttl_seconds, k.waiting_room,
                s.on_hand, s.held, s.sold, s.version
         from skus k
                  join stock s on s.sku = k.sku
         where k.sku > $2 and ($1::integer is null or k.shard = $1)
         order by k.sku
         limit $3",
        shard.map(|shard| shard.0),
        after.map_or("", Sku::as_str),
        limit,
    )
    .fetch_all(&mut *conn)
    .answer("page SKUs")
    .await?;
    rows.into_iter().map(SkuRow::try_from).collect()
}
