//! Just enough of Rust's syntax to tell code from comments and strings, and tests from the rest.

/// A Rust source, taken apart. Offsets are into the original text.
pub(crate) struct Source {
    /// The code, with comments and the insides of strings as blanks.
    pub(crate) code: String,
    /// The strings: offset and inside.
    pub(crate) strings: Vec<(usize, String)>,
}

/// Takes a source apart; modules under `#[cfg(test)]` are blanked too.
pub(crate) fn without_tests(text: &str) -> Source {
    let mut source = take_apart(text);
    while let Some((start, end)) = test_module(&source.code) {
        source.strings.retain(|(at, _)| !(start..end).contains(at));
        let blanks = blank(&source.code[start..end]);
        source.code.replace_range(start..end, &blanks);
    }
    source
}

/// The line of an offset.
pub(crate) fn line(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

pub(crate) fn take_apart(text: &str) -> Source {
    let mut source = Source {
        code: String::with_capacity(text.len()),
        strings: Vec::new(),
    };
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let comment = comment_length(rest);
        if comment > 0 {
            source.code.push_str(&blank(&rest[..comment]));
            at += comment;
        } else if let Some((open, inside, close)) = string_at(text, at) {
            source.code.push_str(&rest[..open]);
            let body = &rest[open..open + inside];
            source.strings.push((at, body.to_owned()));
            source.code.push_str(&blank(body));
            source
                .code
                .push_str(&rest[open + inside..open + inside + close]);
            at += open + inside + close;
        } else {
            let length = char_literal(rest).unwrap_or_else(|| first(rest).len_utf8());
            source.code.push_str(&rest[..length]);
            at += length;
        }
    }
    source
}

/// Where a name stands as a whole word in code, each with the reason why it may not.
pub(crate) fn found(text: &str, code: &str, needle: &str, why: &str) -> Vec<String> {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(needle)
        .filter(|(at, _)| {
            let inside = needle.starts_with(word) && code[..*at].ends_with(word);
            let longer = needle.ends_with(word) && code[at + needle.len()..].starts_with(word);
            !inside && !longer
        })
        .map(|(at, _)| format!("{}: {needle}: {why}", line(text, at)))
        .collect()
}

fn first(text: &str) -> char {
    text.chars().next().unwrap()
}

/// As many bytes of blanks, with the line ends.
fn blank(text: &str) -> String {
    text.bytes()
        .map(|byte| if byte == b'\n' { '\n' } else { ' ' })
        .collect()
}

fn comment_length(rest: &str) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if !rest.starts_with("/*") {
        return 0;
    }
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += first(&rest[at..]).len_utf8();
        }
    }
    rest.len()
}

/// Lengths of opening quote, inside and closing quote of a string that begins here.
fn string_at(text: &str, at: usize) -> Option<(usize, usize, usize)> {
    let rest = &text[at..];
    let in_word = text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    if let Some(inside) = rest.strip_prefix('"') {
        let mut escaped = false;
        for (i, c) in inside.char_indices() {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => return Some((1, i, 1)),
                _ => {}
            }
        }
        return Some((1, inside.len(), 0));
    }
    if in_word {
        return None;
    }
    let prefix = if rest.starts_with("br") || rest.starts_with("cr") {
        2
    } else {
        1
    };
    if prefix == 1 && !rest.starts_with('r') {
        return None;
    }
    let hashes = rest[prefix..]
        .bytes()
        .take_while(|byte| *byte == b'#')
        .count();
    let open = prefix + hashes + 1;
    if !rest[prefix + hashes..].starts_with('"') {
        return None;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    match rest[open..].find(&end) {
        Some(inside) => Some((open, inside, end.len())),
        None => Some((open, rest.len() - open, 0)),
    }
}

/// The length of a character literal, so that `'"'` opens no string; lifetimes are none.
fn char_literal(rest: &str) -> Option<usize> {
    let inside = rest.strip_prefix('\'')?;
    let length = if let Some(escape) = inside.strip_prefix('\\') {
        let kind = first(escape).len_utf8();
        1 + kind + escape[kind..].find('\'')?
    } else {
        inside.chars().next()?.len_utf8()
    };
    inside[length..].starts_with('\'').then_some(length + 2)
}

/// The first module under `#[cfg(test)]`, from its attribute to its closing brace.
fn test_module(code: &str) -> Option<(usize, usize)> {
    let start = code.find("#[cfg(test)]")?;
    let open = start + code[start..].find(['{', ';'])?;
    if code[open..].starts_with(';') {
        return Some((start, open + 1));
    }
    let mut depth = 0_i32;
    for (i, byte) in code[open..].bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some((start, open + i + 1));
        }
    }
    Some((start, code.len()))
}

#[test]
fn strings_comments_and_tests_are_told_from_code() {
    let text = r##"
        // "no string"
        /* fn nor() { /* this */ "x" } */
        fn f<'a>(x: &'a str) -> char { let y = "a \" b"; let z = r#"raw "s" "#; '"' }
        #[cfg(test)]
        mod tests { fn hidden() { "secret"; } }
        fn g() {}
    "##;
    let whole = take_apart(text);
    let strings: Vec<&str> = whole
        .strings
        .iter()
        .map(|(_, inside)| inside.as_str())
        .collect();
    assert_eq!(strings, [r#"a \" b"#, r#"raw "s" "#, "secret"]);
    assert_eq!(whole.code.len(), text.len());
    assert!(!whole.code.contains("nor") && whole.code.contains("fn f<'a>"));
    let source = without_tests(text);
    assert_eq!(source.strings.len(), 2);
    assert!(!source.code.contains("hidden") && source.code.contains("fn g()"));
}
