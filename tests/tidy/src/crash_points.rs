//! The crash points: one list of names, and each name at one place of the sources.

use crate::{
    lexer::{line, take_apart},
    tree,
};

const LIST: &str = "crates/platform/src/failpoints/points.rs";

/// Where the macro is called with a name: the name, and whether it gives an error there.
fn places(path: &str, text: &str) -> Vec<(String, bool, String)> {
    let source = take_apart(text);
    let mut found = Vec::new();
    for (at, call) in source.code.match_indices("platform::crash_point!(") {
        let end = at + source.code[at..].find(");").unwrap_or(0);
        let name = source.strings.iter().find(|(o, _)| (at..end).contains(o));
        let gives_error = source.code[at + call.len()..end].contains("err =>");
        if let Some((_, name)) = name {
            let place = format!("{path}:{}", line(text, at));
            found.push((name.clone(), gives_error, place));
        }
    }
    found
}

/// The names in the list, and whether they can give an error.
fn listed() -> Vec<(String, bool)> {
    let source = take_apart(&tree::read(LIST));
    let names = source.strings.iter().filter(|(_, text)| {
        text.strip_prefix("cp")
            .is_some_and(|number| number.parse::<u32>().is_ok())
    });
    names
        .map(|(at, name)| {
            let gives_error = source.code[..*at].trim_end().ends_with("at(");
            (name.clone(), gives_error)
        })
        .collect()
}

#[test]
fn the_list_of_crash_points_is_complete() {
    let names: Vec<String> = listed().into_iter().map(|(name, _)| name).collect();
    let all: Vec<String> = (1..=26).map(|number| format!("cp{number}")).collect();
    assert_eq!(names, all);
}

#[test]
fn each_crash_point_is_at_one_place() {
    let mut found: Vec<_> = tree::ending(".rs")
        .iter()
        .filter(|file| !file.path.starts_with("tests/"))
        .flat_map(|file| places(&file.path, &file.text))
        .collect();
    found.sort();
    let mut complaints = Vec::new();
    for (name, gives_error) in listed() {
        let here: Vec<_> = found.iter().filter(|(one, ..)| *one == name).collect();
        match here.as_slice() {
            [(_, gives, place)] if *gives != gives_error => {
                complaints.push(format!("{place}: {name}: its error is not as listed"));
            }
            [_] => {}
            _ => complaints.push(format!("{name} is at {} places: {here:?}", here.len())),
        }
        found.retain(|(one, ..)| *one != name);
    }
    complaints.extend(
        found
            .iter()
            .map(|(name, _, place)| format!("{place}: {name} is not in {LIST}")),
    );
    tree::none(&complaints);
    let planted = "fn f() { platform::crash_point!(\"x\", if a(), err => return); }";
    assert_eq!(
        places("p", planted),
        [("x".to_owned(), true, "p:1".to_owned())]
    );
}
