//! Who may import whom, read from the manifests.

use std::collections::{BTreeMap, BTreeSet};

use toml::Table;

use crate::tree;

/// The allowed edges between our packages. A new dependency needs its place here, with the reason
/// in `docs/decisions` when it is not one of the arrows of `docs/architecture.md`.
const EDGES: &[(&str, &[&str])] = &[
    ("contracts", &[]),
    ("domain", &["contracts"]),
    ("platform", &[]),
    ("store", &["contracts", "domain"]),
    ("reservations", &["contracts", "domain"]),
    ("messaging", &["contracts", "domain", "store", "platform"]),
    (
        "order",
        &[
            "contracts",
            "domain",
            "store",
            "reservations",
            "messaging",
            "platform",
        ],
    ),
    (
        "payment",
        &["contracts", "domain", "store", "messaging", "platform"],
    ),
    (
        "stock",
        &[
            "contracts",
            "domain",
            "store",
            "reservations",
            "messaging",
            "platform",
        ],
    ),
    ("gateway-sim", &["contracts", "platform"]),
    (
        "bench",
        &[
            "contracts",
            "domain",
            "store",
            "reservations",
            "messaging",
            "platform",
            "order",
            "payment",
            "stock",
            "gateway-sim",
        ],
    ),
    (
        "cli",
        &[
            "contracts",
            "domain",
            "store",
            "reservations",
            "messaging",
            "platform",
            "order",
            "payment",
            "stock",
            "gateway-sim",
            "bench",
        ],
    ),
    ("model", &["contracts", "domain"]),
    (
        "tests",
        &[
            "contracts",
            "domain",
            "store",
            "reservations",
            "messaging",
            "platform",
            "order",
            "payment",
            "stock",
            "gateway-sim",
            "bench",
            "cli",
            "model",
        ],
    ),
    (
        "chaos",
        &[
            "contracts",
            "domain",
            "store",
            "reservations",
            "messaging",
            "platform",
            "gateway-sim",
            "cli",
        ],
    ),
    ("tidy", &["contracts", "domain"]),
];

/// The driver of each outside system, and who may name it. The suite of a service lives in its
/// package (`docs/decisions`), so its tests may name drivers too; its sources may not.
const DRIVERS: &[(&str, &[&str])] = &[
    ("sqlx", &["store", "bench", "tests", "chaos"]),
    ("redis", &["reservations", "tests", "chaos"]),
    ("rdkafka", &["messaging", "tests", "chaos"]),
    // no driver, but one place all the same: the walk over all states
    ("stateright", &["model"]),
];

const SERVICES: &[&str] = &["order", "payment", "stock", "gateway-sim"];

/// Other ways to the same systems: there is one way to each.
const OTHER_DRIVERS: &[&str] = &[
    "tokio-postgres",
    "postgres",
    "diesel",
    "sea-orm",
    "deadpool-postgres",
    "bb8",
    "fred",
    "redis-async",
    "deadpool-redis",
    "rskafka",
    "kafka",
    "samsa",
    "reqwest",
];

/// The packages without a runtime, a driver or a clock, and all that they may import from others.
const PURE: &[(&str, &[&str])] = &[
    (
        "contracts",
        &[
            "serde",
            "serde_json",
            "uuid",
            "chrono",
            "schemars",
            "sha2",
            "hex",
            "thiserror",
            "bytes",
            "proptest",
        ],
    ),
    (
        "domain",
        &["chrono", "uuid", "thiserror", "serde", "proptest"],
    ),
];

struct Manifest {
    path: String,
    table: Table,
}

impl Manifest {
    fn name(&self) -> &str {
        self.table["package"]["name"].as_str().unwrap()
    }

    /// All dependencies: normal, of tests and of build scripts, of every target.
    fn dependencies(&self) -> BTreeMap<String, toml::Value> {
        self.of_kinds(&["dependencies", "dev-dependencies", "build-dependencies"])
    }

    /// Those that what is shipped is built with.
    fn shipped(&self) -> BTreeMap<String, toml::Value> {
        self.of_kinds(&["dependencies", "build-dependencies"])
    }

    fn of_kinds(&self, kinds: &[&str]) -> BTreeMap<String, toml::Value> {
        let mut all = BTreeMap::new();
        let targets = self
            .table
            .get("target")
            .and_then(|targets| targets.as_table());
        let tables = targets.into_iter().flat_map(|targets| targets.values());
        for table in tables
            .filter_map(|target| target.as_table())
            .chain([&self.table])
        {
            for kind in kinds {
                let found = table.get(*kind).and_then(|found| found.as_table());
                all.extend(
                    found
                        .into_iter()
                        .flatten()
                        .map(|(k, v)| (k.clone(), v.clone())),
                );
            }
        }
        all
    }
}

fn manifests() -> Vec<Manifest> {
    tree::ending("Cargo.toml")
        .into_iter()
        .map(|file| Manifest {
            table: file.text.parse().unwrap(),
            path: file.path,
        })
        .filter(|manifest| manifest.table.contains_key("package"))
        .collect()
}

fn manifest(text: &str) -> Manifest {
    Manifest {
        path: "planted".to_owned(),
        table: text.parse().unwrap(),
    }
}

fn allowed<'a>(table: &'a [(&str, &[&'a str])], name: &str) -> Option<&'a [&'a str]> {
    table
        .iter()
        .find(|(one, _)| *one == name)
        .map(|(_, allowed)| *allowed)
}

fn edges(manifest: &Manifest) -> Vec<String> {
    let name = manifest.name();
    let Some(may) = allowed(EDGES, name) else {
        return vec![format!("{name} has no row in the table of edges")];
    };
    let ours: BTreeSet<&str> = EDGES.iter().map(|(one, _)| *one).collect();
    let dependencies = manifest.dependencies();
    let names = dependencies.keys().map(String::as_str);
    names
        .filter(|one| ours.contains(one) && !may.contains(one))
        .map(|one| format!("{name} may not import {one}"))
        .collect()
}

fn drivers(manifest: &Manifest) -> Vec<String> {
    let name = manifest.name();
    let mut complaints = Vec::new();
    let shipped = manifest.shipped();
    for dependency in manifest.dependencies().keys() {
        let for_tests = SERVICES.contains(&name) && !shipped.contains_key(dependency);
        let barred = allowed(DRIVERS, dependency).is_some_and(|may| !may.contains(&name));
        if barred && !for_tests {
            complaints.push(format!("{name} may not name the driver {dependency}"));
        }
        if OTHER_DRIVERS.contains(&dependency.as_str()) {
            complaints.push(format!(
                "{name}: {dependency} is a second way to the same system"
            ));
        }
        if allowed(PURE, name).is_some_and(|may| {
            !may.contains(&dependency.as_str()) && allowed(EDGES, dependency).is_none()
        }) {
            complaints.push(format!("{name} is pure and may not import {dependency}"));
        }
    }
    complaints
}

/// Versions and paths stand in the workspace's manifest alone, lints apply everywhere.
fn shared(manifest: &Manifest) -> Vec<String> {
    let name = manifest.name();
    let inherits = |value: &toml::Value| {
        value
            .get("workspace")
            .and_then(toml::Value::as_bool)
            .unwrap_or(false)
    };
    let mut complaints: Vec<String> = manifest
        .dependencies()
        .iter()
        .filter(|(_, value)| !inherits(value))
        .map(|(one, _)| format!("{name}: write {one}.workspace = true"))
        .collect();
    if !manifest.table.get("lints").is_some_and(inherits) {
        complaints.push(format!("{name}: [lints] workspace = true is missing"));
    }
    if manifest.table["package"].get("description").is_none() {
        complaints.push(format!("{name}: a description says what it is for"));
    }
    complaints
}

fn complaints(rule: fn(&Manifest) -> Vec<String>) -> Vec<String> {
    let of = |one: &Manifest| {
        let found = rule(one).into_iter();
        found
            .map(|complaint| format!("{}: {complaint}", one.path))
            .collect::<Vec<_>>()
    };
    manifests().iter().flat_map(of).collect()
}

#[test]
fn packages_import_only_whom_they_may() {
    tree::none(&complaints(edges));
    let order = "[package]\nname = 'order'\n[dev-dependencies]\npayment.workspace = true";
    assert_eq!(edges(&manifest(order)), ["order may not import payment"]);
    let domain = "[package]\nname = 'domain'\n[dependencies]\nstore.workspace = true";
    assert_eq!(edges(&manifest(domain)), ["domain may not import store"]);
    let new = "[package]\nname = 'common'";
    assert_eq!(
        edges(&manifest(new)),
        ["common has no row in the table of edges"]
    );
}

#[test]
fn every_row_of_the_table_is_a_package() {
    let found: BTreeSet<String> = manifests()
        .iter()
        .map(|one| one.name().to_owned())
        .collect();
    let rows: BTreeSet<String> = EDGES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(found, rows);
}

#[test]
fn the_table_has_no_cycle_and_no_service_in_another() {
    // Each package may import only those above it.
    let mut above = BTreeSet::new();
    let mut order: Vec<&(&str, &[&str])> = EDGES.iter().collect();
    while !order.is_empty() {
        let before = order.len();
        order.retain(|(name, may)| {
            let ready = may.iter().all(|one| above.contains(one));
            if ready {
                above.insert(*name);
            }
            !ready
        });
        assert!(order.len() < before, "a cycle among {order:?}");
    }
    let services = ["order", "payment", "stock", "gateway-sim"];
    for service in services {
        let may = allowed(EDGES, service).unwrap();
        assert!(!may.iter().any(|one| services.contains(one)), "{service}");
    }
}

#[test]
fn each_driver_is_named_by_its_package_alone() {
    tree::none(&complaints(drivers));
    let plant = |name: &str, dependency: &str| {
        let text = format!("[package]\nname = '{name}'\n[dependencies]\n{dependency} = '1'");
        drivers(&manifest(&text)).len()
    };
    assert_eq!(plant("order", "sqlx"), 1);
    assert_eq!(plant("cli", "redis"), 1);
    assert_eq!(plant("store", "rdkafka"), 1);
    assert_eq!(plant("stock", "fred"), 1);
    assert_eq!(plant("contracts", "tokio"), 1);
    assert_eq!(plant("domain", "rand"), 1);
    assert_eq!(plant("store", "sqlx"), 0);
    let in_tests = |name: &str| {
        let text = format!("[package]\nname = '{name}'\n[dev-dependencies]\nsqlx = '1'");
        drivers(&manifest(&text)).len()
    };
    assert_eq!((in_tests("stock"), in_tests("cli")), (0, 1));
}

#[test]
fn versions_and_lints_stand_in_the_workspace_alone() {
    tree::none(&complaints(shared));
    let planted = "[package]\nname = 'order'\n[dependencies]\nserde = '1'\ntokio.workspace = true";
    assert_eq!(shared(&manifest(planted)).len(), 3);
}

#[test]
fn the_workspace_forbids_unsafe_code_and_keeps_no_dependency_that_nobody_uses() {
    let workspace: Table = tree::read("Cargo.toml").parse().unwrap();
    let workspace = workspace["workspace"].as_table().unwrap();
    assert_eq!(
        workspace["lints"]["rust"]["unsafe_code"].as_str(),
        Some("forbid")
    );
    let used: BTreeSet<String> = manifests()
        .iter()
        .flat_map(|one| one.dependencies().into_keys())
        .collect();
    let shared = workspace["dependencies"].as_table().unwrap();
    let unused: Vec<String> = shared
        .keys()
        .filter(|one| !used.contains(*one) && allowed(EDGES, one).is_none())
        .map(|one| format!("{one} is in the workspace's manifest and in no other"))
        .collect();
    tree::none(&unused);
}

#[test]
fn packages_come_from_the_public_index() {
    let lock: Table = tree::read("Cargo.lock").parse().unwrap();
    let index = "registry+https://github.com/rust-lang/crates.io-index";
    let strangers: Vec<String> = lock["package"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|package| {
            package
                .get("source")
                .is_some_and(|source| source.as_str() != Some(index))
        })
        .map(|package| package["name"].to_string())
        .collect();
    tree::none(&strangers);
}
