//! Taking an object apart field by field, gathering every rule that is broken.

use std::borrow::Cow;

use super::{BodyError, FieldError, json::Json};

/// The rule that a value breaks.
pub(crate) type Detail = Cow<'static, str>;

/// What is wrong so far.
#[derive(Debug, Default)]
pub(crate) struct Errors(Vec<FieldError>);

impl Errors {
    pub(crate) fn add(&mut self, field: impl Into<String>, detail: impl Into<Detail>) {
        self.0.push(FieldError {
            field: field.into(),
            detail: detail.into(),
        });
    }

    /// The value, when nothing is wrong and it is there.
    ///
    /// # Errors
    /// [`BodyError::Invalid`] with everything that was added.
    pub(crate) fn finish<T>(self, value: Option<T>) -> Result<T, BodyError> {
        match value {
            Some(value) if self.0.is_empty() => Ok(value),
            _ => Err(BodyError::Invalid(self.0)),
        }
    }
}

/// The members of an object that have not been taken yet.
pub(crate) struct Fields<'a, 'b> {
    members: Vec<(Cow<'a, str>, Json<'a>)>,
    prefix: &'b str,
}

impl<'a, 'b> Fields<'a, 'b> {
    /// The members of `value`; `prefix` (empty, or ending in a dot) goes before their names in
    /// errors. `None` when it is no object, which is added to the errors as `whole`.
    pub(crate) fn of(
        value: Json<'a>,
        whole: &str,
        prefix: &'b str,
        errors: &mut Errors,
    ) -> Option<Self> {
        match value {
            Json::Object(members) => Some(Self { members, prefix }),
            other => {
                errors.add(whole, format!("must be an object, not {}", other.kind()));
                None
            }
        }
    }

    fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn take(&mut self, name: &str) -> Option<Json<'a>> {
        let at = self.members.iter().position(|(known, _)| known == name)?;
        Some(self.members.swap_remove(at).1)
    }

    /// A field that must be there.
    pub(crate) fn required<T>(
        &mut self,
        name: &str,
        errors: &mut Errors,
        read: impl FnOnce(Json<'a>) -> Result<T, Detail>,
    ) -> Option<T> {
        let Some(value) = self.take(name) else {
            errors.add(self.path(name), "is required");
            return None;
        };
        read(value)
            .map_err(|detail| errors.add(self.path(name), detail))
            .ok()
    }

    /// A field that may be absent or null: `Some(None)` then.
    pub(crate) fn optional<T>(
        &mut self,
        name: &str,
        errors: &mut Errors,
        read: impl FnOnce(Json<'a>) -> Result<T, Detail>,
    ) -> Option<Option<T>> {
        match self.take(name) {
            None | Some(Json::Null) => Some(None),
            Some(value) => read(value)
                .map_err(|detail| errors.add(self.path(name), detail))
                .ok()
                .map(Some),
        }
    }

    /// A field that must be there and whose reader adds its own errors.
    pub(crate) fn nested<T>(
        &mut self,
        name: &str,
        errors: &mut Errors,
        read: impl FnOnce(Json<'a>, &mut Errors) -> Option<T>,
    ) -> Option<T> {
        let Some(value) = self.take(name) else {
            errors.add(self.path(name), "is required");
            return None;
        };
        read(value, errors)
    }

    /// Names every member that nobody took.
    pub(crate) fn refuse_unknown(self, errors: &mut Errors) {
        for (name, _) in self.members {
            // The name is the sender's: shortened, and escaped when the answer is written.
            let shown: String = name.chars().take(64).collect();
            errors.add(format!("{}{shown}", self.prefix), "is not known");
        }
    }
}

/// An integer of a range.
pub(crate) fn integer(value: Json<'_>, min: i64, max: i64) -> Result<i64, Detail> {
    match value {
        Json::Integer(number) if (min..=max).contains(&number) => Ok(number),
        Json::Integer(_) | Json::Number => {
            Err(format!("must be an integer from {min} to {max}").into())
        }
        other => Err(format!(
            "must be an integer from {min} to {max}, not {}",
            other.kind()
        )
        .into()),
    }
}

/// A string that a type accepts.
pub(crate) fn text<T, E: std::fmt::Display>(
    value: Json<'_>,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, Detail> {
    match value {
        Json::Text(text) => parse(&text).map_err(|error| error.to_string().into()),
        other => Err(format!("must be a string, not {}", other.kind()).into()),
    }
}

/// A text for people: 1 to 200 characters, none of them a control character.
pub(crate) fn reason(value: Json<'_>) -> Result<String, Detail> {
    text(value, |text| {
        let length = text.chars().count();
        if (1..=200).contains(&length) && !text.chars().any(char::is_control) {
            Ok(text.to_owned())
        } else {
            Err("must be 1 to 200 characters without control characters")
        }
    })
}
