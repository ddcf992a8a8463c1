//! The admin listener: adapters, and shutdown. Always requires a key.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;

use super::{AdmittedRequest, Answer, Server, json_answer, typed};
use crate::drain::Phase;
use crate::fault::Fault;
use crate::fields::Fields;
use crate::shared::Model;

/// `/v1/load_lora_adapter`: loads an adapter from below `serve.adapters`, under a name that requests can use.
///
/// # Errors
/// A missing folder, or one outside; a name that is taken; errors of the model.
pub async fn load_adapter(server: Server, asked: AdmittedRequest) -> Answer {
    let work = move |asked: AdmittedRequest| {
        let mut fields = Fields::parse(&asked.body)?;
        let mut loaded = server.loaded_adapters();
        let (model, _) = server.model(fields.take::<String>("model")?.as_deref())?;
        let name: String = fields.need("lora_name")?;
        let path: PathBuf = fields.need::<String>("lora_path")?.into();
        let in_place = fields.or("load_inplace", false)?;
        fields.rest()?;
        if in_place {
            return Err(Fault::field("load_inplace", "is not supported; unload the adapter first"));
        }
        if name.is_empty() {
            return Err(Fault::field("lora_name", "is empty"));
        }
        if server.model(Some(&name)).is_ok() {
            return Err(
                Fault::bad(format!("The lora adapter '{name}' has already been loaded.")).of("lora_name")
            );
        }
        let refuse = |why: &str| Err(Fault::field("lora_path", why));
        let Some(root) = &server.settings.adapters else {
            return refuse("cannot be loaded: no folder of adapters is named (serve.adapters)");
        };
        let Ok(root) = root.canonicalize() else {
            return refuse("cannot be loaded: serve.adapters is no folder");
        };
        match root.join(path).canonicalize() {
            Ok(folder) if folder.starts_with(&root) => {
                model.service.load_adapter(&name, &folder).map_err(Fault::refused)?;
                loaded.insert((model.name.clone(), name.clone()), folder);
            }
            _ => return refuse("is no folder below serve.adapters"),
        }
        Ok(format!("Success: LoRA adapter '{name}' added successfully."))
    };
    done(asked, work, "loading the adapter failed").await
}

/// `/v1/unload_lora_adapter`: removes an adapter's name at once, and answers when the requests that use it have ended.
///
/// # Errors
/// There is no adapter of this name.
pub async fn unload_adapter(server: Server, asked: AdmittedRequest) -> Answer {
    let work = move |asked: AdmittedRequest| {
        let mut fields = Fields::parse(&asked.body)?;
        let name: String = fields.need("lora_name")?;
        fields.rest()?;
        let mut loaded = server.loaded_adapters();
        let Ok((model, Some(_))) = server.model(Some(&name)) else {
            return Err(Fault::missing(format!("The lora adapter '{name}' cannot be found.")).of("lora_name"));
        };
        loaded.remove(&(model.name.clone(), name.clone()));
        // Its requests may take long to end.
        drop(loaded);
        model.service.unload_adapter(&name).map_err(Fault::refused)?;
        Ok(format!("Success: LoRA adapter '{name}' removed successfully."))
    };
    done(asked, work, "unloading the adapter failed").await
}

/// Runs work that a model does between steps or waits for, outside the threads that drive connections; answers with
/// vLLM's text.
async fn done(
    asked: AdmittedRequest,
    work: impl FnOnce(AdmittedRequest) -> Result<String, Fault> + Send + 'static,
    failed: &'static str,
) -> Answer {
    let done = tokio::task::spawn_blocking(move || work(asked)).await;
    Ok(typed("text/plain; charset=utf-8", done.unwrap_or_else(|_| Err(Fault::ours(failed)))?))
}

/// `/erase_prefixes`: one model, or all, drops its cached prefixes, in memory and on disk.
///
/// # Errors
/// There is no such model.
pub async fn erase_prefixes(server: Server, asked: AdmittedRequest) -> Answer {
    let work = move |asked: AdmittedRequest| {
        let mut fields = Fields::parse(&asked.body)?;
        let name: Option<String> = fields.take("model")?;
        fields.rest()?;
        let models = match &name {
            Some(name) => vec![server.model(Some(name))?.0],
            None => server.models(),
        };
        let erase = |model: &Arc<Model>| model.service.erase_prefixes().map_err(Fault::refused);
        let erased: u64 = models.iter().map(erase).sum::<Result<u64, Fault>>()?;
        Ok(json!({"erased_bytes": erased}))
    };
    // A model answers between two of its steps.
    let done = tokio::task::spawn_blocking(move || work(asked)).await;
    let body = done.unwrap_or_else(|_| Err(Fault::ours("erasing the beginnings failed")))?;
    Ok(json_answer(&body))
}

/// `/reload`: loads a model's folder again in addition to the current model, which finishes its requests.
///
/// # Errors
/// There is no such model; it cannot be loaded, and the old one stays.
pub async fn reload(server: Server, asked: AdmittedRequest) -> Answer {
    let work = move |asked: AdmittedRequest| {
        let mut fields = Fields::parse(&asked.body)?;
        let (model, _) = server.model(fields.take::<String>("model")?.as_deref())?;
        fields.rest()?;
        let (name, was) = (model.name.clone(), model.service.card().fingerprint);
        // This handler must not count as a request of the old model.
        drop(model);
        let card = server.reload(&name)?.service.card();
        server.log(|| json!({"event": "reloaded", "model": name, "fingerprint": card.fingerprint}));
        Ok(json!({"status": "reloaded", "model": name, "fingerprint": card.fingerprint, "was": was}))
    };
    let done = tokio::task::spawn_blocking(move || work(asked)).await;
    Ok(json_answer(
        &done.unwrap_or_else(|_| Err(Fault::ours("loading the model failed; the old one is served on")))?,
    ))
}

/// `/reload_rails`: reads the configurations of the guardrails again.
///
/// # Errors
/// The server has no guardrails; a file is refused, and the configurations stay as they were.
pub async fn reload_rails(server: Server, _: AdmittedRequest) -> Answer {
    let rails = server.rails.clone().ok_or_else(super::checks::without)?;
    let done = tokio::task::spawn_blocking(move || rails.reload().map(|()| rails.configs())).await;
    let read = done.unwrap_or_else(|_| Err("reading the guardrails failed; the old ones stay".into()));
    Ok(json_answer(&read.map_err(Fault::unprocessable)?))
}

/// `/drain`: shuts the server down as a signal would.
///
/// # Errors
/// None.
pub async fn drain(server: Server, _: AdmittedRequest) -> Answer {
    server.drain.go(Phase::Draining);
    Ok(json_answer(&json!({"status": "draining", "open": server.requests.used()})))
}
