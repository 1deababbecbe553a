//! The `Idempotency-Key` header: a bare token, or a quoted string as in the IETF draft
//! (RFC 8941 `sf-string`). Both forms of one text are the same key.

/// The greatest length in characters.
pub(crate) const MAX: usize = 255;

/// The header is absent, empty, too long, or not one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an Idempotency-Key of 1 to 255 printable ASCII characters is required, bare or quoted")]
pub(crate) struct InvalidKey;

/// Reads the value of the header.
///
/// # Errors
/// [`InvalidKey`].
pub(crate) fn parse(header: &[u8]) -> Result<String, InvalidKey> {
    let text = std::str::from_utf8(header)
        .map_err(|_| InvalidKey)?
        .trim_matches([' ', '\t']);
    let key = match text.strip_prefix('"') {
        Some(rest) => unquote(rest)?,
        None if text.contains('"') => return Err(InvalidKey),
        None => text.to_owned(),
    };
    // An inbox or index key must stay small, and a log line readable.
    let printable = key.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
    if key.is_empty() || key.len() > MAX || !printable {
        return Err(InvalidKey);
    }
    Ok(key)
}

/// The rest of an `sf-string` after its opening quote; nothing may follow the closing one.
fn unquote(rest: &str) -> Result<String, InvalidKey> {
    let mut key = String::with_capacity(rest.len());
    let mut chars = rest.chars();
    loop {
        match chars.next() {
            Some('"') => break,
            Some('\\') => match chars.next() {
                Some(escaped @ ('"' | '\\')) => key.push(escaped),
                _ => return Err(InvalidKey),
            },
            Some(other) => key.push(other),
            None => return Err(InvalidKey),
        }
    }
    if chars.next().is_some() {
        Err(InvalidKey)
    } else {
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_and_quoted_keys_are_the_same() {
        assert_eq!(parse(b"abc-1").unwrap(), "abc-1");
        assert_eq!(parse(b"\"abc-1\"").unwrap(), "abc-1");
        assert_eq!(parse(b"  abc-1 ").unwrap(), "abc-1");
        assert_eq!(parse(br#""a\"b\\c""#).unwrap(), r#"a"b\c"#);
        assert_eq!(parse(&[b'k'; 255]).unwrap().len(), 255);
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let long = [b'k'; 256];
        let bad: [&[u8]; 10] = [
            b"",
            b"   ",
            b"\"\"",
            b"\"abc",
            b"abc\"",
            b"\"a\"b",
            br#""a\n""#,
            b"\xff",
            "schl\u{fc}ssel".as_bytes(),
            &long,
        ];
        for key in bad {
            assert_eq!(
                parse(key),
                Err(InvalidKey),
                "{:?}",
                String::from_utf8_lossy(key)
            );
        }
    }
}
