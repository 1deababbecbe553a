//! Where PostgreSQL's messages end, and what they ask.

use super::frame::{Cut, Kind};

const SSL: u32 = 80_877_103;
const GSS: u32 = 80_877_104;
const CANCEL: u32 = 80_877_102;

/// The length at `at`, which counts itself.
fn length(buffer: &[u8], at: usize) -> Option<usize> {
    let bytes: [u8; 4] = buffer.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_be_bytes(bytes)).ok()
}

/// The client's side. `started`: whether its start-up packet has been seen.
pub(super) fn request(started: &mut bool, buffer: &[u8]) -> Cut {
    if *started {
        return message(buffer);
    }
    let (Some(length), Some(code)) = (length(buffer, 0), length(buffer, 4)) else {
        return Cut::More;
    };
    if !(8..=100_000).contains(&length) {
        return Cut::Unreadable;
    }
    if buffer.len() < length {
        return Cut::More;
    }
    let kind = match u32::try_from(code).unwrap_or(0) {
        SSL | GSS => Some(Kind::Encryption),
        CANCEL => None,
        _ => {
            *started = true;
            Some(Kind::Other)
        }
    };
    Cut::Frame { length, kind }
}

fn message(buffer: &[u8]) -> Cut {
    let (Some(tag), Some(length)) = (buffer.first(), length(buffer, 1)) else {
        return Cut::More;
    };
    if length < 4 {
        return Cut::Unreadable;
    }
    let Some(body) = buffer.get(5..1 + length) else {
        return Cut::More;
    };
    let kind = match tag {
        b'Q' if begins(body, b"COMMIT") => Some(Kind::Commit),
        b'Q' if begins(body, b"BEGIN") => Some(Kind::Begin),
        b'Q' | b'S' | b'F' => Some(Kind::Other),
        // the others are answered before the next of these, or not at all
        _ => None,
    };
    Cut::Frame {
        length: 1 + length,
        kind,
    }
}

fn begins(text: &[u8], word: &[u8]) -> bool {
    text.get(..word.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(word))
}

/// The server's side: an answer ends with `ReadyForQuery`; the one about encryption is one byte.
/// Whether the answer ends comes in `kind`.
pub(super) fn reply(asked: Option<&Kind>, buffer: &[u8]) -> Cut {
    if asked == Some(&Kind::Encryption) {
        return match buffer.first() {
            Some(b'N') => Cut::Frame {
                length: 1,
                kind: Some(Kind::Other),
            },
            Some(_) => Cut::Unreadable,
            None => Cut::More,
        };
    }
    let (Some(tag), Some(length)) = (buffer.first(), length(buffer, 1)) else {
        return Cut::More;
    };
    if length < 4 {
        return Cut::Unreadable;
    }
    if buffer.len() < 1 + length {
        return Cut::More;
    }
    Cut::Frame {
        length: 1 + length,
        kind: (*tag == b'Z').then_some(Kind::Other),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::frame::all, *};

    fn query(text: &str) -> Vec<u8> {
        let mut message = vec![b'Q'];
        message.extend(u32::try_from(text.len() + 5).unwrap().to_be_bytes());
        message.extend(text.as_bytes());
        message.push(0);
        message
    }

    #[test]
    fn requests_are_found_however_they_are_cut() {
        let mut bytes = [&8_u32.to_be_bytes()[..], &SSL.to_be_bytes()].concat();
        bytes.extend([9_u32.to_be_bytes(), 196_608_u32.to_be_bytes()].concat());
        bytes.push(0);
        bytes.extend(query("BEGIN"));
        bytes.extend(query("select 1"));
        bytes.extend([b'P', 0, 0, 0, 4, b'S', 0, 0, 0, 4]);
        bytes.extend(query("commit"));
        let expected = [
            Some(Kind::Encryption),
            Some(Kind::Other),
            Some(Kind::Begin),
            Some(Kind::Other),
            None,
            Some(Kind::Other),
            Some(Kind::Commit),
        ];
        for size in 1..=bytes.len() {
            let mut started = false;
            let found = all(&bytes, size, |buffer| request(&mut started, buffer));
            assert_eq!(found, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn an_answer_ends_with_ready_for_query() {
        let bytes = [
            &b"C\0\0\0\x0bCOMMIT\0"[..],
            &b"Z\0\0\0\x05I"[..],
            &b"N\0\0\0\x04"[..],
        ]
        .concat();
        for size in 1..=bytes.len() {
            let found = all(&bytes, size, |buffer| reply(Some(&Kind::Commit), buffer));
            assert_eq!(found, [None, Some(Kind::Other), None]);
        }
        assert_eq!(
            reply(Some(&Kind::Encryption), b"N"),
            Cut::Frame {
                length: 1,
                kind: Some(Kind::Other)
            }
        );
        assert_eq!(reply(Some(&Kind::Encryption), b"S"), Cut::Unreadable);
    }
}
