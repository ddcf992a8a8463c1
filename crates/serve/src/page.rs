//! The page at `/`: a single file that loads nothing from elsewhere.

use axum::http::{HeaderValue, header};

use crate::api::{Answer, Asked, Server, typed};

const PAGE: &str = include_str!("page.html");

/// The page. A nonce, new in each response, permits its script and style.
///
/// # Errors
/// None.
pub async fn page(server: Server, _: Asked) -> Answer {
    let nonce = server.unique("");
    let mut response = typed("text/html; charset=utf-8", PAGE.replace("{nonce}", &nonce));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; base-uri 'none'; form-action \
         'none'; frame-ancestors 'none'"
    );
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    Ok(response)
}
