//! The page at `/`: a single file that loads nothing from elsewhere.

use crate::api::view::with_nonce;
use crate::api::{AdmittedRequest, Answer, Server};

const PAGE: &str = include_str!("page.html");

/// The page. A nonce, new in each response, permits its script and style.
///
/// # Errors
/// None.
pub async fn page(server: Server, _: AdmittedRequest) -> Answer {
    Ok(with_nonce(&server, PAGE))
}
