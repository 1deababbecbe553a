//! One example of every event. Its golden file is append-only: see `golden/README.md`.

use contracts::{
    Code, Currency, Envelope, HoldId, Line, Money, PaymentId, Quantity, RefundKey, Sku, Timestamp,
    envelope::{dataschema, source},
    events::{
        NewEvent, OrderEnded, OrderEvent, OrderRejected, OrderRequestEvent, OrderRequested,
        OrderReserved, PaymentCompleted, PaymentEvent, PaymentFailed, PaymentRefunded, PricedLine,
        RefundRequested, StockAdjusted, StockEvent, StockSettled,
    },
    ids::OrderId,
};
use uuid::Uuid;

/// A record as it is written.
pub(crate) struct Example {
    /// The name of its golden files.
    pub(crate) name: &'static str,
    /// The topic's name.
    pub(crate) topic: String,
    pub(crate) key: String,
    pub(crate) envelope: Envelope,
    pub(crate) data: String,
}

pub(crate) fn all() -> Vec<Example> {
    [orders(), payments(), stock(), requests()]
        .into_iter()
        .flatten()
        .collect()
}

fn orders() -> Vec<Example> {
    let order = |name, version, event: OrderEvent| {
        written(
            name,
            NewEvent::order(source::ORDER, order_id(), version, &event),
        )
    };
    vec![
        order(
            "ORDER_RESERVED.v1",
            1,
            OrderEvent::Reserved(OrderReserved {
                order_id: order_id(),
                customer_id: "c-42".parse().expect("a customer"),
                lines: lines(),
                total: won(38_700),
                payment_method: "card".parse().expect("a method"),
                reserved_until: time("2026-03-01T12:10:00.250Z"),
                version: 1,
            }),
        ),
        order(
            "ORDER_CONFIRMED.v1",
            2,
            OrderEvent::Confirmed(ended("paid")),
        ),
        order(
            "ORDER_CANCELED.v1",
            2,
            OrderEvent::Canceled(ended("payment-failed")),
        ),
        order(
            "ORDER_EXPIRED.v1",
            2,
            OrderEvent::Expired(ended("deadline-passed")),
        ),
        written(
            "ORDER_REJECTED.v1",
            NewEvent::rejection(hold_id(), rejected()),
        ),
        written(
            "REFUND_REQUESTED.v1",
            NewEvent::order(
                source::STOCK,
                order_id(),
                2,
                &OrderEvent::RefundRequested(RefundRequested {
                    refund_key: RefundKey::of(&payment_id()),
                    payment_id: payment_id(),
                    order_id: order_id(),
                    amount: won(38_700),
                    reason: "the order has expired".to_owned(),
                }),
            ),
        ),
    ]
}

fn payments() -> Vec<Example> {
    let payment =
        |name, version, event| written(name, NewEvent::payment(order_id(), version, &event));
    vec![
        payment(
            "PAYMENT_COMPLETED.v1",
            2,
            PaymentEvent::Completed(PaymentCompleted {
                payment_id: payment_id(),
                order_id: order_id(),
                amount: won(38_700),
                method: "card".parse().expect("a method"),
                completed_at: time("2026-03-01T12:00:03.5Z"),
            }),
        ),
        payment(
            "PAYMENT_FAILED.v1",
            2,
            PaymentEvent::Failed(PaymentFailed {
                payment_id: payment_id(),
                order_id: order_id(),
                reason_code: "card-declined".to_owned(),
                is_final: true,
            }),
        ),
        payment(
            "PAYMENT_REFUNDED.v1",
            3,
            PaymentEvent::Refunded(PaymentRefunded {
                refund_key: RefundKey::of(&payment_id()),
                payment_id: payment_id(),
                order_id: order_id(),
                amount: won(38_700),
            }),
        ),
    ]
}

fn stock() -> Vec<Example> {
    let settled = |held, sold, version| StockSettled {
        sku: sku("SKU-1"),
        quantity: 2,
        order_ids: vec![order_id()],
        on_hand: 100,
        held,
        sold,
        version,
    };
    let stock = |name, source, version, event| {
        written(
            name,
            NewEvent::stock(source, &sku("SKU-1"), version, &event),
        )
    };
    vec![
        stock(
            "STOCK_COMMITTED.v1",
            source::STOCK,
            7,
            StockEvent::Committed(settled(8, 32, 7)),
        ),
        stock(
            "STOCK_RELEASED.v1",
            source::STOCK,
            8,
            StockEvent::Released(settled(6, 32, 8)),
        ),
        stock(
            "STOCK_ADJUSTED.v1",
            source::ORDER,
            9,
            StockEvent::Adjusted(StockAdjusted {
                sku: sku("SKU-1"),
                quantity: -5,
                adjustment_id: id("0195525c-0000-7000-8000-0000000000ad"),
                on_hand: 95,
                held: 6,
                sold: 32,
                version: 9,
            }),
        ),
    ]
}

/// What an upstream service writes: its own source, and no version of an aggregate.
fn requests() -> Vec<Example> {
    let event = OrderRequestEvent::Requested(OrderRequested {
        customer_id: "c-42".parse().expect("a customer"),
        lines: vec![line("SKU-1", 2), line("SKU-2", 1)],
        payment_method: "card".parse().expect("a method"),
    });
    let envelope = Envelope {
        id: "request-0001".to_owned(),
        source: "https://shop.example/checkout".to_owned(),
        event_type: event.event_type().to_owned(),
        time: Some(time("2026-03-01T12:00:00Z")),
        subject: Some("c-42".to_owned()),
        dataschema: Some(dataschema(event.event_type())),
        aggregate_version: None,
        traceparent: None,
    };
    vec![Example {
        name: "ORDER_REQUESTED.v1",
        topic: OrderRequestEvent::TOPIC.to_string(),
        key: "c-42".to_owned(),
        envelope,
        data: event.data(),
    }]
}

fn written(name: &'static str, mut event: NewEvent) -> Example {
    event.event_id = id("0195525c-0000-7000-8000-0000000000e1");
    event.traceparent = Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned());
    Example {
        name,
        topic: event.topic.clone(),
        key: event.key.clone(),
        envelope: event.envelope(time("2026-03-01T12:00:00.123456Z")),
        data: event.data,
    }
}

fn ended(reason: &str) -> OrderEnded {
    OrderEnded {
        order_id: order_id(),
        customer_id: "c-42".parse().expect("a customer"),
        version: 2,
        lines: lines(),
        reason: reason.to_owned(),
    }
}

fn rejected() -> OrderRejected {
    OrderRejected {
        request_source: "https://shop.example/checkout".to_owned(),
        request_id: "request-0002".to_owned(),
        code: Code::SoldOut,
        detail: "SKU-1 is sold out".to_owned(),
    }
}

fn lines() -> Vec<PricedLine> {
    [("SKU-1", 2), ("SKU-2", 1)]
        .into_iter()
        .map(|(name, quantity)| {
            let Line { sku, quantity } = line(name, quantity);
            PricedLine {
                sku,
                quantity,
                unit_price: won(12_900),
            }
        })
        .collect()
}

fn line(name: &str, quantity: i64) -> Line {
    Line {
        sku: sku(name),
        quantity: Quantity::new(quantity).expect("a quantity"),
    }
}

fn won(amount_minor: i64) -> Money {
    Money::new(amount_minor, Currency::parse("KRW").expect("a currency")).expect("an amount")
}

fn sku(name: &str) -> Sku {
    Sku::parse(name).expect("a SKU")
}

fn payment_id() -> PaymentId {
    PaymentId::parse("0195525c-0000-7000-8000-0000000000a1").expect("a payment")
}

fn order_id() -> OrderId {
    OrderId(id("0195525c-0000-7000-8000-000000000001"))
}

fn hold_id() -> HoldId {
    HoldId::derive(
        "https://shop.example/checkout",
        "orders.requests",
        "request-0002",
    )
}

fn id(text: &str) -> Uuid {
    Uuid::parse_str(text).expect("a UUID")
}

fn time(text: &str) -> Timestamp {
    text.parse().expect("a time")
}
