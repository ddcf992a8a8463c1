//! `/tokenize`, `/detokenize`, `/tokenizer_info`: a model's tokenizer over HTTP, as evaluation harnesses use it.

use fathom_base::{Service, SpecialTokens};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::{AdmittedRequest, Answer, Server, ignored, json_answer, on_blocking_thread, talk, typed};
use crate::fault::Fault;
use crate::fields::Fields;

fn spelled(service: &dyn Service, id: u32) -> String {
    String::from_utf8_lossy(&service.token_bytes(id)).into_owned()
}

/// The tokens of a text, serialised directly: a text may have millions.
#[derive(Serialize)]
struct Tokenization<'a> {
    count: usize,
    max_model_len: usize,
    tokens: &'a [u32],
    token_strs: Option<Spellings<'a>>,
}

/// The spelling of each token.
struct Spellings<'a>(&'a dyn Service, &'a [u32]);

impl Serialize for Spellings<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.1.iter().map(|id| spelled(self.0, *id)))
    }
}

/// `/tokenize`: the ids of a text, or of a conversation.
///
/// # Errors
/// There is no such model; a text that it cannot encode.
pub async fn tokenize(server: Server, asked: AdmittedRequest) -> Answer {
    let (body, unknown) = on_blocking_thread(asked, move |asked| {
        let mut fields = Fields::parse(&asked.body)?;
        let (model, _) = server.model(fields.take::<String>("model")?.as_deref())?;
        let service = &*model.service;
        let special: Option<bool> = fields.take("add_special_tokens")?;
        let reading = |usual: bool| {
            if special.unwrap_or(usual) { SpecialTokens::Prompt } else { SpecialTokens::Rendered }
        };
        let ids = match fields.take::<String>("prompt")? {
            Some(text) => service.encode(&text, reading(true)),
            None => {
                let conversation = talk::conversation(&mut fields)?;
                let text = service.render(&conversation).map_err(Fault::refused)?;
                service.encode(&text, reading(false))
            }
        };
        let ids = ids.map_err(Fault::refused)?;
        let spelled = fields.or("return_token_strs", false)?;
        let body = Tokenization {
            count: ids.len(),
            max_model_len: service.card().context_tokens,
            tokens: &ids,
            token_strs: spelled.then_some(Spellings(service, &ids)),
        };
        let body = serde_json::to_string(&body).map_err(|error| Fault::ours(error.to_string()))?;
        Ok((body, fields.rest()?))
    })
    .await?;
    Ok(ignored(typed("application/json", body), &unknown))
}

/// `/detokenize`: the text of ids.
///
/// # Errors
/// There is no such model; ids that it does not have.
pub async fn detokenize(server: Server, asked: AdmittedRequest) -> Answer {
    let (body, unknown) = on_blocking_thread(asked, move |asked| {
        let mut fields = Fields::parse(&asked.body)?;
        let (model, _) = server.model(fields.take::<String>("model")?.as_deref())?;
        let ids: Vec<u32> = fields.need("tokens")?;
        Ok((json!({"prompt": model.service.decode(&ids).map_err(Fault::refused)?}), fields.rest()?))
    })
    .await?;
    Ok(ignored(json_answer(&body), &unknown))
}

/// `/tokenizer_info`, which lm-evaluation-harness requests before it sends ids.
///
/// # Errors
/// There are several models.
pub async fn info(server: Server, _: AdmittedRequest) -> Answer {
    let (model, _) = server.model(None)?;
    let (service, card) = (&*model.service, model.service.card());
    let spelled = |id: Option<u32>| id.map_or(Value::Null, |id| spelled(service, id).into());
    let eos = card.eos.first().copied();
    Ok(json_answer(&json!({
        "tokenizer_class": "fathom",
        "model_max_length": card.context_tokens,
        "vocab_size": card.vocabulary,
        "bos_token": spelled(card.bos),
        "bos_token_id": card.bos,
        "eos_token": spelled(eos),
        "eos_token_id": eos,
        "pad_token": card.pad_token,
        "add_bos_token": card.bos.is_some_and(|bos| {
            service.encode("", SpecialTokens::Prompt).is_ok_and(|ids| ids.first() == Some(&bos))
        }),
        "chat_template": card.chat_template,
    })))
}
