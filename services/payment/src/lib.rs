//! Charges, voids and refunds through the payment gateway; receives its webhooks.
