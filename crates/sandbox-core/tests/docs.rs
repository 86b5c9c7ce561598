//! What the documents say about policies is what the code does.

#![allow(clippy::expect_used, reason = "this is a test")]

use std::{fs, path::Path};

/// With this variable set the table is written instead of compared.
const UPDATE: &str = "UPDATE_DOCS";
const BEGIN: &str = "<!-- presets -->\n";
const END: &str = "<!-- end of presets -->";

#[test]
fn the_table_of_presets_is_the_one_of_the_code() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/policy.md");
    let text = fs::read_to_string(&file).expect("docs/policy.md");
    let (before, rest) = text.split_once(BEGIN).expect("where the table begins");
    let (table, after) = rest.split_once(END).expect("where the table ends");
    let expected = sandbox_core::policy::markdown();
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&file, format!("{before}{BEGIN}{expected}{END}{after}")).expect("written");
    } else {
        assert!(table == expected, "docs/policy.md is old: run `{UPDATE}=1 cargo test -p sandbox-core --test docs`");
    }
}
