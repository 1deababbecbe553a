//! A JSON document as it was written: a number with a fraction or an exponent stays one that is not
//! an integer, a member that comes twice is refused, nesting is bounded. Strings without escapes
//! are borrowed from the body.

use std::{borrow::Cow, fmt};

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::{BodyError, MAX_DEPTH};

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json<'a> {
    Null,
    Bool,
    /// A number without fraction and exponent that fits 64 bits.
    Integer(i64),
    /// Any other number.
    Number,
    Text(Cow<'a, str>),
    Array(Vec<Json<'a>>),
    /// In the order of the document; no name comes twice.
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

impl Json<'_> {
    /// What it is, for people.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool => "a boolean",
            Self::Integer(_) => "an integer",
            Self::Number => "a number that is not an integer",
            Self::Text(_) => "a string",
            Self::Array(_) => "an array",
            Self::Object(_) => "an object",
        }
    }
}

impl Json<'_> {
    fn into_owned<'b>(self) -> Json<'b> {
        match self {
            Self::Null => Json::Null,
            Self::Bool => Json::Bool,
            Self::Integer(number) => Json::Integer(number),
            Self::Number => Json::Number,
            Self::Text(text) => Json::Text(Cow::Owned(text.into_owned())),
            Self::Array(items) => Json::Array(items.into_iter().map(Json::into_owned).collect()),
            Self::Object(members) => Json::Object(
                members
                    .into_iter()
                    .map(|(name, value)| (Cow::Owned(name.into_owned()), value.into_owned()))
                    .collect(),
            ),
        }
    }
}

/// Reads a document.
///
/// # Errors
/// [`BodyError::Malformed`].
pub(crate) fn parse(body: &[u8]) -> Result<Json<'_>, BodyError> {
    if body.is_empty() {
        return Err(BodyError::Malformed("the body is empty".to_owned()));
    }
    // Once for the whole: the parser then borrows without checking again.
    let text = std::str::from_utf8(body)
        .map_err(|_| BodyError::Malformed("the body is not UTF-8".to_owned()))?;
    match read(text) {
        Ok(value) => Ok(value),
        // A number that no double holds ends the parser before it can say which field it is.
        Err(error) if error.is_syntax() => match tamed(text) {
            Some(tamed) => match read(&tamed) {
                Ok(value) => Ok(value.into_owned()),
                Err(_) => Err(BodyError::Malformed(error.to_string())),
            },
            None => Err(BodyError::Malformed(error.to_string())),
        },
        Err(error) => Err(BodyError::Malformed(error.to_string())),
    }
}

fn read(text: &str) -> Result<Json<'_>, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Depth(0).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// The document with every exponent made 0; `None` when it has none. Numbers with an exponent are no
/// integers whatever it is, so nothing that is accepted changes.
fn tamed(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let (mut in_string, mut escaped, mut in_exponent, mut changed) = (false, false, false, false);
    let mut before = ' ';
    for c in text.chars() {
        if in_string {
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
        } else {
            in_string = c == '"';
            in_exponent = match c {
                'e' | 'E' => before.is_ascii_digit(),
                '0'..='9' | '+' | '-' => in_exponent,
                _ => false,
            };
        }
        let tame = in_exponent && c.is_ascii_digit();
        changed |= tame;
        out.push(if tame { '0' } else { c });
        before = c;
    }
    changed.then_some(out)
}

/// How deep the value to be read is.
#[derive(Clone, Copy)]
struct Depth(u8);

impl Depth {
    fn deeper<E: serde::de::Error>(self) -> Result<Self, E> {
        if self.0 >= MAX_DEPTH {
            return Err(E::custom(format_args!("nested deeper than {MAX_DEPTH}")));
        }
        Ok(Self(self.0 + 1))
    }
}

impl<'de> DeserializeSeed<'de> for Depth {
    type Value = Json<'de>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Depth {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E>(self) -> Result<Json<'de>, E> {
        Ok(Json::Null)
    }
    fn visit_bool<E>(self, _: bool) -> Result<Json<'de>, E> {
        Ok(Json::Bool)
    }
    fn visit_i64<E>(self, value: i64) -> Result<Json<'de>, E> {
        Ok(Json::Integer(value))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Json<'de>, E> {
        Ok(i64::try_from(value).map_or(Json::Number, Json::Integer))
    }
    fn visit_f64<E>(self, _: f64) -> Result<Json<'de>, E> {
        Ok(Json::Number)
    }
    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Borrowed(text)))
    }
    fn visit_str<E>(self, text: &str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json<'de>, A::Error> {
        let inner = self.deeper()?;
        let mut out = Vec::new();
        while let Some(item) = items.next_element_seed(inner)? {
            out.push(item);
        }
        Ok(Json::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Json<'de>, A::Error> {
        let inner = self.deeper()?;
        let mut out: Vec<(Cow<'de, str>, Json<'de>)> = Vec::new();
        while let Some(name) = members.next_key_seed(Name)? {
            if out.len() >= MAX_MEMBERS {
                members.next_value::<IgnoredAny>()?;
                return Err(A::Error::custom(format_args!(
                    "more than {MAX_MEMBERS} members"
                )));
            }
            if out.iter().any(|(known, _)| *known == name) {
                return Err(A::Error::custom(format_args!(
                    "member {name:?} comes twice"
                )));
            }
            let value = members.next_value_seed(inner)?;
            out.push((name, value));
        }
        Ok(Json::Object(out))
    }
}

/// More members than any body of ours has; keeps the search for a repeated name short.
const MAX_MEMBERS: usize = 64;

struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member's name")
    }
    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }
    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}
