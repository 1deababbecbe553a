//! A hold as it is stored: `BUYER SKU=UNITS,SKU=UNITS BITS`, where a bit says whether the line was
//! counted for its buyer.

use contracts::{CustomerId, HoldId, Line, Quantity, Shop, Sku};
use domain::gate::{Buyer, Hold};

/// A hold that was read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredHold {
    /// Who holds what.
    pub hold: Hold,
    /// For each line, whether it was counted for its buyer (the SKU had a per-customer limit).
    pub counted: Vec<bool>,
}

impl StoredHold {
    /// Reads the stored text; `None` when none of the scripts could have written it.
    pub(crate) fn parse(hold_id: HoldId, text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let (buyer, lines, bits) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let counted: Option<Vec<bool>> = bits
            .bytes()
            .map(|bit| match bit {
                b'0' => Some(false),
                b'1' => Some(true),
                _ => None,
            })
            .collect();
        let lines: Option<Vec<Line>> = lines.split(',').map(parse_line).collect();
        let (counted, lines, buyer) = (counted?, lines?, parse_buyer(buyer)?);
        if counted.len() != lines.len() || lines.windows(2).any(|pair| pair[0].sku == pair[1].sku) {
            return None;
        }
        Some(Self {
            hold: Hold {
                hold_id,
                buyer,
                lines,
            },
            counted,
        })
    }
}

pub(crate) fn parse_buyer(text: &str) -> Option<Buyer> {
    let (shop, customer) = text.split_once('/')?;
    Some(Buyer {
        shop: Shop::parse(shop).ok()?,
        customer: CustomerId::parse(customer).ok()?,
    })
}

fn parse_line(text: &str) -> Option<Line> {
    let (sku, units) = text.split_once('=')?;
    Some(Line {
        sku: Sku::parse(sku).ok()?,
        quantity: Quantity::new(parse_number(units)?).ok()?,
    })
}

/// Plain digits without a leading zero, at most 15: the same that the scripts take.
pub(crate) fn parse_number(text: &str) -> Option<i64> {
    let plain = text.len() <= 15 && text.bytes().all(|b| b.is_ascii_digit());
    if !plain || (text.starts_with('0') && text != "0") {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_hold_is_read_back() {
        let id = HoldId::derive("s", "r", "k");
        let stored = StoredHold::parse(id, "shop/c:1 A=2,B-1=1000 01").unwrap();
        assert_eq!(stored.hold.buyer.to_string(), "shop/c:1");
        assert_eq!(stored.hold.lines[1].quantity.get(), 1000);
        assert_eq!(stored.counted, [false, true]);
    }

    #[test]
    fn what_no_script_writes_is_not_a_hold() {
        let id = HoldId::derive("s", "r", "k");
        for text in [
            "",
            "x",
            "shop/c A=1",
            "shop/c A=1 2",
            "shop/c A=1 01",
            "shop/c A=0 0",
            "shop/c A=01 0",
            "shop/c A=1001 0",
            "shop/c A=1e1 0",
            "c A=1 0",
            "shop/c a=1 0",
            "shop/c A=1 0 ",
            "shop/c A=1,A=1 00",
        ] {
            assert_eq!(StoredHold::parse(id, text), None, "{text:?}");
        }
    }
}
