//! The OpenAPI document, generated from the table of routes.

use serde_json::{Map, Value, json};

use crate::route::{Access, Route, Takes};

/// The document of two tables of routes: those of the server, and those of its admin listener.
pub fn document(version: &str, [own, admin]: [&'static [Route]; 2]) -> Value {
    let mut paths = Map::new();
    let here = |route: &&Route| own.iter().any(|other| other.path == route.path);
    let admin = admin.iter().filter(|route| !here(route)).map(|route| (route, true));
    for (route, admin) in own.iter().map(|route| (route, false)).chain(admin) {
        let path = route.path.replace("{*", "{");
        let entry = paths.entry(path).or_insert_with(|| json!({}));
        entry[route.method.to_lowercase()] = operation(route);
        if admin {
            entry[route.method.to_lowercase()]["description"] =
                "At the admin listener (--admin-port).".into();
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "fathom serve", "version": version},
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Error": {"type": "object", "properties": {"error": {"type": "object", "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                }}}},
            },
        },
    })
}

fn operation(route: &Route) -> Value {
    let error = json!({"description": "What is wrong", "content": {"application/json": {
        "schema": {"$ref": "#/components/schemas/Error"},
    }}});
    let mut responses = json!({"200": {"description": route.about}});
    if route.takes != Takes::Nothing {
        responses["400"] = error.clone();
    }
    if route.access == Access::Keyed {
        responses["401"] = error.clone();
    }
    if route.takes == Takes::Work {
        responses["429"] = error;
    }
    let mut operation = json!({"summary": route.about, "responses": responses});
    if route.takes != Takes::Nothing {
        let schema = json!({"type": "object", "properties": properties(route.path)});
        operation["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    if route.access == Access::Keyed {
        operation["security"] = json!([{"key": []}]);
    }
    let names = route.path.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0));
    let parameter = |name: &str| json!({"name": name.trim_start_matches('*'), "in": "path", "required": true, "schema": {"type": "string"}});
    let parameters: Vec<Value> = names.map(parameter).collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    operation
}

/// Common fields of requests to generate, with their types.
const SHARED: &[(&str, &str)] = &[
    ("model", "string"),
    ("max_tokens", "integer"),
    ("temperature", "number"),
    ("top_p", "number"),
    ("top_k", "integer"),
    ("min_p", "number"),
    ("typical_p", "number"),
    ("repetition_penalty", "number"),
    ("frequency_penalty", "number"),
    ("presence_penalty", "number"),
    ("logit_bias", "object"),
    ("seed", "integer"),
    ("n", "integer"),
    ("use_beam_search", "boolean"),
    ("beam_width", "integer"),
    ("length_penalty", "number"),
    ("early_stopping", "any"),
    ("stop", "any"),
    ("stop_token_ids", "array"),
    ("min_tokens", "integer"),
    ("ignore_eos", "boolean"),
    ("stream", "boolean"),
    ("stream_options", "object"),
    ("response_format", "object"),
    ("structured_outputs", "object"),
    ("guided_json", "any"),
    ("guided_regex", "string"),
    ("guided_choice", "array"),
    ("guided_grammar", "string"),
    ("guided_whitespace_pattern", "string"),
    ("return_token_ids", "boolean"),
    ("return_tokens_as_token_ids", "boolean"),
    ("priority", "integer"),
    ("cache_salt", "string"),
    ("deadline_s", "number"),
];

/// Additional fields of a route.
const OWN: &[(&str, &[(&str, &str)])] = &[
    (
        "/v1/chat/completions",
        &[
            ("messages", "array"),
            ("max_completion_tokens", "integer"),
            ("logprobs", "boolean"),
            ("top_logprobs", "integer"),
            ("prompt_logprobs", "integer"),
            ("tools", "array"),
            ("tool_choice", "any"),
            ("parallel_tool_calls", "boolean"),
            ("chat_template_kwargs", "object"),
            ("add_generation_prompt", "boolean"),
            ("continue_final_message", "boolean"),
            ("reasoning_effort", "string"),
            ("documents", "array"),
            ("knowledge", "boolean"),
        ],
    ),
    ("/v1/search", &[("query", "string"), ("k", "integer"), ("where", "array")]),
    (
        "/v1/completions",
        &[
            ("prompt", "any"),
            ("echo", "boolean"),
            ("logprobs", "integer"),
            ("prompt_logprobs", "integer"),
            ("add_special_tokens", "boolean"),
        ],
    ),
    (
        "/v1/responses",
        &[
            ("model", "string"),
            ("input", "any"),
            ("instructions", "string"),
            ("max_output_tokens", "integer"),
            ("temperature", "number"),
            ("top_p", "number"),
            ("tools", "array"),
            ("tool_choice", "any"),
            ("parallel_tool_calls", "boolean"),
            ("text", "object"),
            ("reasoning", "object"),
            ("include", "array"),
            ("top_logprobs", "integer"),
            ("metadata", "object"),
            ("stream", "boolean"),
        ],
    ),
    (
        "/v1/embeddings",
        &[
            ("model", "string"),
            ("input", "any"),
            ("encoding_format", "string"),
            ("dimensions", "integer"),
            ("truncate_prompt_tokens", "integer"),
        ],
    ),
    ("/classify", &[("model", "string"), ("input", "any"), ("truncate_prompt_tokens", "integer")]),
    (
        "/v1/score",
        &[("model", "string"), ("text_1", "any"), ("text_2", "any"), ("truncate_prompt_tokens", "integer")],
    ),
    (
        "/v1/rerank",
        &[
            ("model", "string"),
            ("query", "string"),
            ("documents", "array"),
            ("top_n", "integer"),
            ("return_documents", "boolean"),
            ("truncate_prompt_tokens", "integer"),
        ],
    ),
    (
        "/tokenize",
        &[
            ("model", "string"),
            ("prompt", "string"),
            ("messages", "array"),
            ("add_special_tokens", "boolean"),
            ("return_token_strs", "boolean"),
        ],
    ),
    (
        "/v1/load_lora_adapter",
        &[("lora_name", "string"), ("lora_path", "string"), ("model", "string"), ("load_inplace", "boolean")],
    ),
    ("/v1/unload_lora_adapter", &[("lora_name", "string")]),
    ("/erase_prefixes", &[("model", "string")]),
    ("/detokenize", &[("model", "string"), ("tokens", "array")]),
];

fn properties(path: &str) -> Value {
    let is = |of: &str| of == path || of.ends_with(path) || path.ends_with(of.trim_start_matches("/v1"));
    let own = OWN.iter().find(|(of, _)| is(of)).map_or(&[][..], |(_, own)| own);
    let generates = path.ends_with("completions");
    let all = own.iter().chain(if generates { SHARED } else { &[] });
    let property = |(name, kind): &(&str, &str)| {
        let schema = if *kind == "any" { json!({}) } else { json!({ "type": kind }) };
        (name.to_string(), schema)
    };
    Value::Object(all.map(property).collect())
}
