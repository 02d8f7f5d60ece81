//! docs/constraints.md says of every keyword what becomes of it.

use tokenmill_grammar::{KEYWORDS, Treatment};

#[test]
fn the_page_has_a_row_for_every_keyword() {
    let page = include_str!("../../../docs/constraints.md");
    let page = page.split("## Keywords").nth(1).expect("the section");
    for keyword in KEYWORDS {
        let treatment = match keyword.treatment {
            Treatment::Enforced => "enforced",
            Treatment::Partly => "in part",
            Treatment::Annotation => "says nothing",
            Treatment::Refused => "refused",
        };
        let row = format!("| `{}` | {treatment} | {} |", keyword.name, keyword.note);
        assert!(page.contains(&row), "docs/constraints.md lacks: {row}");
    }
    assert_eq!(page.matches("\n| `").count(), KEYWORDS.len(), "and no other");
}
