//! Any argument that is not what a script's header says is refused before anything is written.

use reservations::{SCRIPTS, Script};

use crate::support::{SHARD, TestGate, hold, hold_id, register};

const HOSTILE: [&str; 18] = [
    "1e3",
    "0x10",
    "-5",
    "",
    " 5",
    "5 ",
    "+5",
    "05",
    "1.5",
    "nan",
    "inf",
    "-0",
    "\0",
    "1\0",
    "9007199254740992",
    "9223372036854775807",
    "1000000000000000",
    "\u{665}",
];

fn texts(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

/// The keys and arguments of a call that works.
fn valid_call(test: &TestGate, script: &Script) -> (Vec<String>, Vec<String>) {
    let (epoch, id) = (test.epoch.as_str(), hold_id("held").to_string());
    let id = id.as_str();
    let mut keys = vec![test.meta()];
    if script.keys != "meta" {
        keys.extend(["holds", "due"].map(|name| test.key(name)));
        for sku in ["A", "B"] {
            keys.push(test.key(&format!("gate:{sku}")));
            if script.keys.contains("buyers") {
                keys.push(test.key(&format!("buyers:{sku}")));
            }
        }
    }
    let registers = [
        "2", "A", "5", "50", "1", "2", "3", "B", "6", "60", "4", "5", "6",
    ];
    let order = ["1", id, "shop/c", "2", "1", "1", "2", "2"];
    let args = match script.name {
        "reserve" => [&[epoch, "100", "5000", "2", "A", "B"], &order[..]].concat(),
        "keep" => [&[epoch, "30000"], &registers[..], &order[..]].concat(),
        "commit" | "release" => [&[epoch], &registers[..], &["1", id]].concat(),
        "correct_buyers" => {
            keys.truncate(5);
            vec![epoch, "1", "A", "1", "shop/c", "0", "5"]
        }
        "begin_epoch" => vec!["e2", epoch],
        "open_epoch" => vec![epoch],
        other => panic!("no valid call of {other} is known here"),
    };
    (keys, texts(&args))
}

async fn assert_refused(test: &mut TestGate, script: &Script, keys: &[String], args: &[String]) {
    let before = test.dump().await;
    let reply = test.eval(script, keys, args).await;
    match &reply {
        Err(error) => assert_eq!(
            error.code(),
            Some("MALFORMED"),
            "{} {args:?} fails otherwise: {error}",
            script.name
        ),
        Ok(words) => panic!("{} takes {args:?}: {words:?}", script.name),
    }
    assert_eq!(test.dump().await, before, "{} {args:?} wrote", script.name);
}

async fn fixture() -> TestGate {
    let test = TestGate::new().await;
    test.gate
        .put_registers(SHARD, &[register("A", 1, 10), register("B", 1, 10)])
        .await
        .expect("registers");
    let held = hold("held", "c", &[("A", 1), ("B", 1)]);
    test.gate.reserve(SHARD, 0, &[held]).await;
    test
}

#[tokio::test]
async fn the_calls_that_the_other_tests_spoil_do_work() {
    for script in SCRIPTS {
        let mut test = fixture().await;
        let (keys, args) = valid_call(&test, script);
        let reply = test.eval(script, &keys, &args).await.unwrap();
        assert!(
            !reply.contains(&"NO_GATE".to_owned()),
            "{}: {reply:?}",
            script.name
        );
        assert!(
            !reply.contains(&"DAMAGED".to_owned()),
            "{}: {reply:?}",
            script.name
        );
        test.done().await;
    }
}

#[tokio::test]
async fn a_hostile_argument_anywhere_is_refused_and_writes_nothing() {
    let mut test = fixture().await;
    for script in SCRIPTS {
        let (keys, args) = valid_call(&test, script);
        for place in 0..args.len() {
            for word in HOSTILE {
                // These are texts that an epoch can be.
                let epoch_like = [
                    "1e3",
                    "0x10",
                    "05",
                    "nan",
                    "inf",
                    "9007199254740992",
                    "9223372036854775807",
                    "1000000000000000",
                ];
                if keys.len() == 1 && epoch_like.contains(&word) {
                    continue;
                }
                let mut spoiled = args.clone();
                word.clone_into(&mut spoiled[place]);
                assert_refused(&mut test, script, &keys, &spoiled).await;
            }
        }
    }
    test.done().await;
}

#[tokio::test]
async fn missing_and_surplus_arguments_and_keys_are_refused() {
    let mut test = fixture().await;
    for script in SCRIPTS {
        let (keys, args) = valid_call(&test, script);
        for size in 0..args.len() {
            assert_refused(&mut test, script, &keys, &args[..size]).await;
        }
        let surplus = [&args[..], &["1".to_owned()]].concat();
        assert_refused(&mut test, script, &keys, &surplus).await;
        for size in 0..keys.len() {
            assert_refused(&mut test, script, &keys[..size], &args).await;
        }
        let surplus = [&keys[..], &[test.key("gate:C")]].concat();
        assert_refused(&mut test, script, &surplus, &args).await;
        for place in 0..keys.len() {
            let mut spoiled = keys.clone();
            spoiled[place] = test.key("other");
            assert_refused(&mut test, script, &spoiled, &args).await;
        }
    }
    test.done().await;
}

#[tokio::test]
async fn units_and_places_out_of_range_are_refused() {
    let mut test = fixture().await;
    let reserve = SCRIPTS
        .iter()
        .find(|script| script.name == "reserve")
        .unwrap();
    let (keys, args) = valid_call(&test, reserve);
    let last = args.len() - 1;
    for (place, words) in [
        (last, ["0", "1001", "-1"]),
        (last - 1, ["0", "1", "3"]),
        (last - 4, ["0", "1", "1001"]),
    ] {
        for word in words {
            let mut spoiled = args.clone();
            word.clone_into(&mut spoiled[place]);
            assert_refused(&mut test, reserve, &keys, &spoiled).await;
        }
    }
    let mut crowd = args[..6].to_vec();
    crowd.push("129".to_owned());
    for n in 0..129 {
        let id = hold_id(&n.to_string()).to_string();
        crowd.extend(texts(&[&id, "shop/c", "1", "1", "1"]));
    }
    assert_refused(&mut test, reserve, &keys, &crowd).await;
    test.done().await;
}
