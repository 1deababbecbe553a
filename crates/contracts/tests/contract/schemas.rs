//! JSON Schemas as files, for those who read events without our code.

use std::{collections::BTreeSet, fs, path::PathBuf};

use contracts::{envelope::dataschema, schema};
use serde_json::Value;

use crate::examples;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/schemas")
}

#[test]
fn the_schemas_in_docs_are_those_of_the_types() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    for (event_type, schema) in schema::all() {
        let path = folder().join(schema::file_name(event_type));
        let text = schema::to_text(&schema);
        if update {
            fs::create_dir_all(folder()).expect("docs/schemas");
            fs::write(&path, &text).expect("the schema is written");
        }
        let file = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            file,
            text,
            "{}: stale; UPDATE_GOLDEN=1 writes it",
            path.display()
        );
    }
}

#[test]
fn docs_hold_no_schema_of_a_type_that_is_gone() {
    let known: BTreeSet<String> = schema::all()
        .iter()
        .map(|(event_type, _)| schema::file_name(event_type))
        .collect();
    let found: BTreeSet<String> = fs::read_dir(folder())
        .expect("docs/schemas")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    assert_eq!(found, known);
}

#[test]
fn a_schema_is_named_by_what_ce_dataschema_says() {
    for (event_type, schema) in schema::all() {
        assert_eq!(schema["$id"], dataschema(event_type));
        assert_eq!(schema["title"], event_type);
    }
}

#[test]
fn every_example_fits_the_schema_of_its_type() {
    let schemas = schema::all();
    for example in examples::all() {
        let (_, schema) = schemas
            .iter()
            .find(|(event_type, _)| *event_type == example.envelope.event_type)
            .expect("a schema for each type");
        let data = serde_json::from_str(&example.data).expect("JSON");
        fits(schema, schema, &data, example.name);
    }
}

/// Checks what our schemas use: references, types, required and unknown properties, items, enums
/// and bounds. A keyword that it does not know fails, so that none is passed over.
fn fits(root: &Value, schema: &Value, data: &Value, at: &str) {
    for (keyword, rule) in schema.as_object().expect("a schema is an object") {
        match keyword.as_str() {
            "$id" | "$schema" | "$defs" | "title" | "description" | "format" | "pattern" => {}
            "$ref" => {
                let pointer = rule
                    .as_str()
                    .and_then(|uri| uri.strip_prefix('#'))
                    .expect("local");
                fits(root, root.pointer(pointer).expect("a definition"), data, at);
            }
            "type" => assert!(has_type(data, rule), "{at}: {data} is not {rule}"),
            "required" => {
                for name in rule.as_array().expect("names") {
                    assert!(
                        data.get(name.as_str().expect("a name")).is_some(),
                        "{at}: no {name}"
                    );
                }
            }
            "properties" => {
                for (name, value) in data.as_object().expect("an object") {
                    let property = rule.get(name).unwrap_or_else(|| panic!("{at}: {name}?"));
                    fits(root, property, value, &format!("{at}.{name}"));
                }
            }
            "additionalProperties" => assert_eq!(rule, &Value::Bool(false), "{at}"),
            "items" => {
                for item in data.as_array().expect("a list") {
                    fits(root, rule, item, &format!("{at}[]"));
                }
            }
            "oneOf" => {
                let words = rule.as_array().expect("variants");
                assert!(
                    words.iter().any(|word| word.get("const") == Some(data)),
                    "{at}: {data}"
                );
            }
            "minimum" => assert!(data.as_f64() >= rule.as_f64(), "{at}: {data} < {rule}"),
            "maximum" => assert!(data.as_f64() <= rule.as_f64(), "{at}: {data} > {rule}"),
            other => panic!("{at}: the keyword {other} is not checked"),
        }
    }
}

fn has_type(data: &Value, rule: &Value) -> bool {
    match rule.as_str() {
        Some("object") => data.is_object(),
        Some("array") => data.is_array(),
        Some("string") => data.is_string(),
        Some("integer") => data.is_i64() || data.is_u64(),
        Some("boolean") => data.is_boolean(),
        _ => false,
    }
}
