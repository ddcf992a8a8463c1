//! `/v1/search`: passages of the server's documents; and the sources of a conversation.

use fathom_base::{Conversation, SpecialTokens};
use serde_json::{Value, json};

use super::params::most;
use super::{AdmittedRequest, Answer, Server, ignored, json_answer, on_blocking_thread};
use crate::fault::Fault;
use crate::fields::Fields;
use crate::knowledge::{SearchRequest, Sources, passage_json};
use crate::shared::Model;

/// Passages where the request does not say how many.
const PASSAGES: usize = 5;

/// The endpoint.
///
/// # Errors
/// The server has no documents; an invalid condition.
pub async fn search(server: Server, asked: AdmittedRequest) -> Answer {
    let (found, unknown) = on_blocking_thread(asked, move |mut asked| {
        let Some(base) = &server.knowledge else {
            return Err(Fault::missing(
                "this server has no documents; `fathom serve MODEL --knowledge INDEX` has",
            ));
        };
        let _permit = asked.permit.take();
        let mut fields: Fields = Fields::parse(&asked.body)?;
        // Clients of several models name one; the documents are the server's.
        _ = fields.take::<String>("model")?;
        let query: String = fields.need("query")?;
        let k = fields.or("k", PASSAGES)?.max(1);
        most("k", k, server.settings.max_texts)?;
        let conditions: Vec<Value> = fields.or("where", Vec::new())?;
        let condition = |value: &Value| value.as_str().map(str::to_string);
        let conditions = conditions.iter().map(condition).collect::<Option<Vec<String>>>();
        let conditions =
            conditions.ok_or_else(|| Fault::field("where", "has to be a list of strings, KEY=VALUE"))?;
        let unknown = fields.rest()?;
        Ok((base.search(&SearchRequest { query, k, conditions }).map_err(Fault::refused)?, unknown))
    })
    .await?;
    let data: Value =
        (1..).zip(&found.passages).map(|(number, passage)| passage_json(number, passage)).collect();
    Ok(ignored(json_answer(&json!({"object": "list", "data": data, "omitted": found.omitted})), &unknown))
}

/// Puts sources into a conversation, unless the request says `"knowledge": false`.
///
/// # Errors
/// The documents cannot be searched.
pub fn ground(
    server: &Server,
    fields: &mut Fields,
    conversation: &mut Conversation,
    model: &Model,
) -> Result<Option<Sources>, Fault> {
    let wanted = fields.or("knowledge", true)?;
    match &server.knowledge {
        Some(base) if wanted => {
            let service = &model.service;
            let tokens =
                |text: &str| service.encode(text, SpecialTokens::Text).map_or(usize::MAX, |ids| ids.len());
            // The other half is for the conversation and the answer.
            base.ground(conversation, &tokens, service.card().context_tokens / 2)
        }
        _ => Ok(None),
    }
}
