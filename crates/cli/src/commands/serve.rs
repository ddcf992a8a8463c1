//! `fathom serve`: models over HTTP.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use fathom_app::serve::{Order, ServerLinks, Sizes, serve, settings, sizes};
use fathom_base::human;
use fathom_serve::{Log, ServerAddresses};

use crate::listen::Plain;
use crate::{args, console, program, signals, version};

/// Runs the verb.
pub fn run(args: &args::Serve) -> Result<()> {
    let listener = Plain::default();
    let order = order(args)?;
    if args.dry_run {
        for (name, sizes) in sizes(&order, &listener)? {
            print(&name, &sizes);
        }
        return Ok(());
    }
    let stop = Arc::new(AtomicBool::new(false));
    signals::ask(&stop)?;
    let scheme = if args.tls_cert.is_some() { "https" } else { "http" };
    let heard = |addresses: &[SocketAddr]| {
        for (address, what) in addresses.iter().zip(["serving at", "admin at"]) {
            let scheme = if what == "admin at" { "http" } else { scheme };
            outln!("{what} {scheme}://{address}");
        }
    };
    Ok(serve(&order, &ServerLinks { stop: &stop, log: log(), heard: &heard, events: &listener })?)
}

/// Log lines as JSON on standard error: with `--verbose`, or if that is not a terminal and not with `--quiet`.
pub fn log() -> Option<Log> {
    let wanted = console::is_verbose() || (!std::io::stderr().is_terminal() && !console::is_quiet());
    wanted.then(|| Arc::new(|line: &serde_json::Value| console::line(&line.to_string())) as Log)
}

fn order(args: &args::Serve) -> Result<Order> {
    let (mut keys, models): (Vec<String>, Vec<String>) =
        args.models.iter().cloned().partition(|word| word.starts_with("serve.") && word.contains('='));
    if models.is_empty() {
        bail!("name a model: the folder of a run, or a Hugging Face folder");
    }
    let adapter = |word: &String| {
        let (name, folder) =
            word.split_once('=').with_context(|| format!("--adapter {word}: write NAME=DIR"))?;
        Ok((name.to_string(), PathBuf::from(folder)))
    };
    keys.extend(args.draft.iter().map(|folder| format!("serve.draft={}", folder.display())));
    keys.extend(args.knowledge.iter().map(|folder| format!("serve.knowledge={}", folder.display())));
    let memory = args.memory.as_deref().map(human::parse_bytes).transpose();
    Ok(Order {
        models: models.into_iter().map(PathBuf::from).collect(),
        names: args.name.clone(),
        adapters: args.adapter.iter().map(adapter).collect::<Result<_>>()?,
        precision: args.precision,
        kv: args.kv.format(),
        template: args.chat_template.clone(),
        machine: args.machine.kind(),
        threads: args.threads,
        mesh: args.mesh.asked(),
        memory_bytes: memory.map_err(anyhow::Error::msg).context("--memory")?,
        prefixes: args.prefix_store.clone(),
        guard: args.guard.clone(),
        settings: settings(args.recipe.as_deref(), &keys)?,
        at: ServerAddresses {
            host: args.host.clone(),
            port: args.port,
            admin_port: args.admin_port,
            tls: args.tls_cert.clone().zip(args.tls_key.clone()),
        },
        keys: args.api_key_file.clone(),
        version: version::long().lines().next().unwrap_or_default().to_string(),
        again: false,
        compiler: Some(program::image().to_path_buf()),
    })
}

fn print(name: &str, sizes: &Sizes) {
    // Rows that do not apply to encoders.
    let of_pages = ["adapters", "pages", "tokens in pages", "sequences at once"];
    let has_pages = sizes.has_pages();
    let rows = [
        ("weights", human::bytes(sizes.weights_bytes)),
        ("adapters", human::bytes(sizes.adapters_bytes)),
        ("pages", human::bytes(sizes.pages_bytes)),
        ("workspace", human::bytes(sizes.workspace_bytes)),
        ("may use", human::bytes(sizes.budget_bytes)),
        ("tokens in pages", human::grouped(sizes.tokens as u64)),
        ("context, tokens", human::grouped(sizes.limits.context_tokens as u64)),
        ("sequences at once", sizes.capacity.sequences.to_string()),
    ];
    let draft = [
        ("draft's weights", human::bytes(sizes.draft_bytes)),
        ("pages for it", human::bytes(sizes.draft_pages_bytes)),
    ];
    let on_disk = sizes.capacity.on_disk * fathom_tensor::PAGE_ROWS;
    let disk = (on_disk > 0).then(|| ("tokens on disk", human::grouped(on_disk as u64)));
    let experts = sizes.experts.iter().map(|experts| ("experts", experts.clone()));
    outln!("{name}");
    let draft = draft.into_iter().filter(|_| sizes.draft_bytes > 0);
    let rows = rows.into_iter().filter(|(what, _)| has_pages || !of_pages.contains(what));
    for (what, value) in rows.chain(draft).chain(disk).chain(experts) {
        outln!("  {what:<18} {value}");
    }
}
