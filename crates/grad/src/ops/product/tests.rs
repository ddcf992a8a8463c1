//! Products against the reference.

use super::reference::product;
use crate::testing;
use crate::{Ctx, Val};

#[test]
fn products_of_halves() {
    for (tokens, width) in [(1, 1), (3, 33), (130, 16)] {
        let record = |cx: &mut Ctx<'_>, name, [a, b]: [Val; 2]| cx.product(name, a, b);
        testing::check_pair("product", [tokens, width], &record, &product);
    }
}
