//! Where the values of RESP end, and which command a request is.

use super::frame::{Cut, Kind};

/// The client's side: an array of strings, or a line.
pub(super) fn request(buffer: &[u8]) -> Cut {
    match end(buffer, 0, 0) {
        Extent::End(length) => Cut::Frame {
            length,
            kind: Some(Kind::Command(name(&buffer[..length]))),
        },
        Extent::More => Cut::More,
        Extent::Unreadable => match line(buffer, 0) {
            Some((_, length)) => Cut::Frame {
                length,
                kind: Some(Kind::Other),
            },
            None => Cut::More,
        },
    }
}

/// The server's side: each value is an answer, but for what it pushes unasked.
pub(super) fn reply(buffer: &[u8]) -> Cut {
    match end(buffer, 0, 0) {
        Extent::End(length) => Cut::Frame {
            length,
            kind: (buffer.first() != Some(&b'>')).then_some(Kind::Other),
        },
        Extent::More => Cut::More,
        Extent::Unreadable => Cut::Unreadable,
    }
}

enum Extent {
    End(usize),
    More,
    Unreadable,
}

/// The text of the line at `at`, and where the next one begins.
fn line(buffer: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let rest = buffer.get(at..)?;
    let end = rest.windows(2).position(|two| two == b"\r\n")?;
    Some((&rest[..end], at + end + 2))
}

/// Where the value at `at` ends.
fn end(buffer: &[u8], at: usize, depth: usize) -> Extent {
    let Some(tag) = buffer.get(at) else {
        return Extent::More;
    };
    if !b"+-:_#,($!=*~>%|".contains(tag) || depth > 16 {
        return Extent::Unreadable;
    }
    let Some((text, next)) = line(buffer, at + 1) else {
        return Extent::More;
    };
    if b"+-:_#,(".contains(tag) {
        return Extent::End(next);
    }
    let Some(count) = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse::<i64>().ok())
    else {
        return Extent::Unreadable;
    };
    // null, in the older spelling
    let Ok(count) = usize::try_from(count) else {
        return Extent::End(next);
    };
    if b"$!=".contains(tag) {
        let end = next + count + 2;
        return if buffer.len() < end {
            Extent::More
        } else {
            Extent::End(end)
        };
    }
    let values = match tag {
        b'%' => count * 2,
        // attributes stand before the value that they belong to
        b'|' => count * 2 + 1,
        _ => count,
    };
    let mut at = next;
    for _ in 0..values {
        match end(buffer, at, depth + 1) {
            Extent::End(next) => at = next,
            other => return other,
        }
    }
    Extent::End(at)
}

/// The first string of an array, in capitals.
fn name(request: &[u8]) -> String {
    let first = line(request, 0).and_then(|(_, at)| line(request, at));
    let text = first.and_then(|(_, at)| line(request, at));
    let text = text.map(|(text, _)| text).unwrap_or_default();
    String::from_utf8_lossy(text).to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::{super::frame::all, *};

    #[test]
    fn commands_are_found_however_they_are_cut() {
        let bytes = b"*2\r\n$4\r\nauth\r\n$3\r\na\r\n\r\nPING\r\n*3\r\n$7\r\nEVALSHA\r\n$2\r\nab\r\n$1\r\n0\r\n";
        for size in 1..=bytes.len() {
            let found = all(bytes, size, request);
            let expected = [
                Some(Kind::Command("AUTH".to_owned())),
                Some(Kind::Other),
                Some(Kind::Command("EVALSHA".to_owned())),
            ];
            assert_eq!(found, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn answers_of_both_versions_are_found() {
        let bytes = b"+OK\r\n$-1\r\n*2\r\n:1\r\n*1\r\n$3\r\n\r\n\r\r\n>2\r\n+a\r\n+b\r\n%1\r\n+k\r\n_\r\n-ERR x\r\n";
        for size in 1..=bytes.len() {
            let found: Vec<bool> = all(bytes, size, reply)
                .iter()
                .map(Option::is_some)
                .collect();
            assert_eq!(found, [true, true, true, false, true, true]);
        }
        assert_eq!(reply(b"HTTP/1.1 400\r\n"), Cut::Unreadable);
    }
}
