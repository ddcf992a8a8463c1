//! All routes in one table, with access, input and handler. The router is built from it, so every route has all of
//! these.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::routing::{MethodFilter, on};

use crate::api::view;
use crate::api::{
    AdmittedRequest, Answer, admin, chat, checks, completions, info, json_answer, kserve, messages,
    responses, search, tokens, vectors,
};
use crate::door;
use crate::fault::Words;
use crate::openapi;
use crate::page;
use crate::route::{Access, Route, Takes};
use crate::shared::ServerState;

macro_rules! routes {
    ($($method:ident $path:literal $access:ident $takes:ident $words:ident $call:path, $about:literal;)*) => {
        &[$(Route {
            method: stringify!($method),
            path: $path,
            access: Access::$access,
            takes: Takes::$takes,
            words: Words::$words,
            about: $about,
            call: |server, asked| Box::pin($call(server, asked)),
        }),*]
    };
}

/// The routes of the server.
pub const ROUTES: &[Route] = routes! {
    GET "/" Open Nothing OpenAi page::page, "A page to talk and look";
    GET "/health/live" Open Nothing OpenAi info::live, "The process answers";
    GET "/health/ready" Open Nothing OpenAi info::ready, "The server takes requests";
    GET "/health" Keyed Nothing OpenAi info::ready, "The server takes requests";
    GET "/version" Keyed Nothing OpenAi info::version, "The program's version";
    GET "/metrics" Keyed Nothing OpenAi info::metrics, "Metrics, as Prometheus reads them";
    GET "/load" Keyed Nothing OpenAi info::load, "How full the models are";
    GET "/openapi.json" Keyed Nothing OpenAi document, "This document";
    GET "/v1/models" Keyed Nothing OpenAi info::models, "The models and their adapters";
    GET "/v1/models/{*name}" Keyed Nothing OpenAi info::model, "A model or an adapter";
    POST "/v1/chat/completions" Keyed Work OpenAi chat::answer, "Answers a conversation";
    POST "/v1/completions" Keyed Work OpenAi completions::answer, "Continues prompts";
    POST "/v1/responses" Keyed Work OpenAi responses::answer, "Answers a conversation, as items";
    POST "/v1/messages" Keyed Work Anthropic messages::answer, "Answers a conversation, as Anthropic's clients ask";
    POST "/v1/messages/count_tokens" Keyed Work Anthropic messages::count, "Counts the tokens of a conversation";
    GET "/v2" Keyed Nothing Kserve kserve::server, "The server, as KServe has it";
    GET "/v2/health/live" Keyed Nothing Kserve info::live, "The process answers";
    GET "/v2/health/ready" Keyed Nothing Kserve info::ready, "The server takes requests";
    GET "/v2/models/{name}" Keyed Nothing Kserve kserve::model, "A model, as KServe has it";
    GET "/v2/models/{name}/ready" Keyed Nothing Kserve kserve::ready, "The model takes requests";
    POST "/v2/models/{name}/generate" Keyed Work Kserve kserve::generate, "Continues a text";
    POST "/v2/models/{name}/generate_stream" Keyed Work Kserve kserve::generate_stream, "Continues a text, piece by piece";
    POST "/v2/models/{name}/infer" Keyed Work Kserve kserve::infer, "Continues a text that is a tensor";
    GET "/v2/models/{name}/versions/{version}" Keyed Nothing Kserve kserve::model, "A model, as KServe has it";
    GET "/v2/models/{name}/versions/{version}/ready" Keyed Nothing Kserve kserve::ready, "The model takes requests";
    POST "/v2/models/{name}/versions/{version}/generate" Keyed Work Kserve kserve::generate, "Continues a text";
    POST "/v2/models/{name}/versions/{version}/generate_stream" Keyed Work Kserve kserve::generate_stream, "Continues a text, piece by piece";
    POST "/v2/models/{name}/versions/{version}/infer" Keyed Work Kserve kserve::infer, "Continues a text that is a tensor";
    POST "/v1/embeddings" Keyed Work OpenAi vectors::embeddings, "Vectors of texts";
    POST "/v1/rerank" Keyed Work OpenAi vectors::rerank, "Documents by how well they answer a query";
    POST "/v2/rerank" Keyed Work OpenAi vectors::rerank, "The same, as Cohere's clients ask";
    POST "/rerank" Keyed Work OpenAi vectors::rerank, "The same";
    POST "/v1/score" Keyed Work OpenAi vectors::score, "How well texts answer others";
    POST "/score" Keyed Work OpenAi vectors::score, "The same";
    POST "/v1/search" Keyed Work OpenAi search::search, "Passages of the server's documents";
    POST "/classify" Keyed Work OpenAi vectors::classify, "Labels of texts";
    POST "/v1/checks" Keyed Work OpenAi checks::checks, "Judges messages by the guardrails, without a model";
    GET "/v1/rails/configs" Keyed Nothing OpenAi checks::configs, "The configurations of the guardrails";
    GET "/v1/health" Keyed Nothing OpenAi checks::health, "The server and the models of its guardrails take requests";
    GET "/healthz" Open Nothing OpenAi checks::healthz, "The same, for everyone";
    POST "/tokenize" Keyed Work OpenAi tokens::tokenize, "Ids of a text or a conversation";
    POST "/detokenize" Keyed Work OpenAi tokens::detokenize, "The text of ids";
    GET "/tokenizer_info" Keyed Nothing OpenAi tokens::info, "What the tokenizer is";
};

/// The routes of the admin listener.
pub const ADMIN: &[Route] = routes! {
    GET "/health/live" Open Nothing OpenAi info::live, "The process answers";
    GET "/metrics" Keyed Nothing OpenAi info::metrics, "Metrics, as Prometheus reads them";
    GET "/load" Keyed Nothing OpenAi info::load, "How full the models are";
    POST "/v1/load_lora_adapter" Keyed Json OpenAi admin::load_adapter, "Loads an adapter";
    POST "/v1/unload_lora_adapter" Keyed Json OpenAi admin::unload_adapter, "Unloads an adapter";
    POST "/erase_prefixes" Keyed Json OpenAi admin::erase_prefixes, "Erases the beginnings of prompts that are remembered";
    POST "/reload" Keyed Json OpenAi admin::reload, "Loads a model again; running requests end with the old one";
    POST "/reload_rails" Keyed Json OpenAi admin::reload_rails, "Reads the guardrails again; running requests end with those that they began with";
    POST "/drain" Keyed Json OpenAi admin::drain, "Ends the server when its requests have ended";
};

/// The routes of a server with a view.
pub const VIEW: &[Route] = routes! {
    GET "/" Open Nothing OpenAi view::page, "The page";
    POST "/ask" Keyed Json OpenAi view::ask, "An answer for the page";
    GET "/health/live" Open Nothing OpenAi view::live, "The process answers";
};

/// `/openapi.json`.
///
/// # Errors
/// None.
async fn document(server: Arc<ServerState>, _: AdmittedRequest) -> Answer {
    Ok(json_answer(&openapi::document(&server.version, [ROUTES, ADMIN])))
}

/// Builds a router from a table.
pub fn router(server: &Arc<ServerState>, routes: &'static [Route]) -> Router {
    let mut router = Router::new();
    for route in routes {
        let filter = if route.method == "GET" { MethodFilter::GET } else { MethodFilter::POST };
        let server = server.clone();
        let handler = move |request: Request| door::enter(server, Some(route), request);
        router = router.route(route.path, on(filter, handler));
    }
    let [lost, wrong] = [server.clone(), server.clone()];
    router
        .fallback(move |request: Request| door::enter(lost, None, request))
        .method_not_allowed_fallback(move |request: Request| door::enter(wrong, None, request))
}
