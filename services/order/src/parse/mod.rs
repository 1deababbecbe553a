//! Reading bodies into types that cannot be wrong. All that is wrong with a body is named at once,
//! each thing with its field. The same rules hold for HTTP and for requests by Kafka.

pub(crate) mod adjustment;
pub(crate) mod fields;
pub(crate) mod json;
pub(crate) mod order;
pub(crate) mod sku;

use std::borrow::Cow;

use serde::Serialize;
use utoipa::ToSchema;

/// What is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct FieldError {
    /// The path of the field, for example `lines[0].quantity`; `body` for the whole.
    pub(crate) field: String,
    /// The rule that it breaks.
    #[schema(value_type = String)]
    pub(crate) detail: Cow<'static, str>,
}

/// Why a body is not what was wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// Not JSON at all, or JSON that means nothing (a member twice, too deep).
    Malformed(String),
    /// JSON that breaks rules.
    Invalid(Vec<FieldError>),
}

/// The greatest depth of nesting of a body.
pub(crate) const MAX_DEPTH: u8 = 8;
