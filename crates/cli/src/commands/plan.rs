//! `fathom plan`: the training step on the machine without data.

use anyhow::{Context, Result, bail};
use fathom_base::human;
use fathom_base::recipe::Recipe as Loaded;
use fathom_model::Spec;
use fathom_tensor::{Hardware, Label, Profile, Usage};
use fathom_train::recipe::{Recipe, Stage};
use fathom_train::{Budgets, Draft, Growth, Longest, MeshPlan, Settled, Why, check_places, stage};
use serde_json::{Value, json};

use super::{plan_mesh, plan_page, plan_ranks, plan_trace};
use crate::args;
use crate::device::Place;
use crate::library::{layers, load, placed};
use crate::working::Working;
use crate::{choices, device, output, pipeline, profiles};

/// No plan is of more ranks.
const MOST_GPUS: usize = 1 << 16;

/// Runs the verb.
pub fn run(args: &args::Plan) -> Result<()> {
    args.html.iter().chain(&args.trace).try_for_each(|path| output::regular(path))?;
    let mut layers = layers(&args.recipe, &args.settings);
    if let Some(profile) = &args.machine_profile {
        layers = layers.flag("--machine-profile", "machine.profile", profile);
    }
    if let Some(memory) = &args.memory {
        let bytes = human::parse_bytes(memory).map_err(anyhow::Error::msg).context("--memory")?;
        layers = layers.flag("--memory", "machine.memory_bytes", &bytes.to_string());
    }
    let loaded = load(layers)?;
    plan(args, &loaded).map_err(|error| placed(&loaded, error))
}

fn plan(args: &args::Plan, loaded: &Loaded<Recipe>) -> Result<()> {
    let recipe = &loaded.value;
    let own = stage::ranks(recipe, 0).map_or(1, |ranks| ranks.grid.ranks());
    if args.trace.is_some() && own == 1 {
        bail!(
            "--trace draws what the ranks of a mesh do, and this recipe has one rank; set mesh.pp, mesh.dp, mesh.cp or mesh.tp"
        );
    }
    if let Some(gpus) = args.gpus.filter(|gpus| !(1..=MOST_GPUS).contains(gpus)) {
        bail!("--gpus {gpus}: give a number of ranks from 1 to {MOST_GPUS}");
    }
    let profile = profiles::of_rank(&recipe.machine, args.gpus.unwrap_or(own))?;
    // All of the memory that there is, not what happens to be free: a plan says the same twice.
    let sharing = sharing(recipe, &profile, args.gpus.unwrap_or(own));
    let budgets = budgets(recipe, &profile, device::whole_budget(), sharing);
    if let Some(path) = &args.html {
        plan_page::write(args, loaded, &profile, budgets, path)?;
    }
    let mut meshes = Vec::new();
    let specs = specs(recipe)?;
    check_places(recipe, &specs, &profile)?;
    let working = Working::new();
    let mut known = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        let draft = Draft { profile: &profile, spec, recipe: recipe.clone(), index, budgets, rank: 0 };
        let what = format!("stage {} of {}, {}", index + 1, specs.len(), recipe.stage[index].name);
        working.at(format!("{what}: meshes"));
        if args.solve == Some(args::Question::Mesh) {
            let style = match (args.json, args.markdown) {
                (true, _) => plan_mesh::Style::Json,
                (_, true) => plan_mesh::Style::Markdown(&args.recipe),
                _ => plan_mesh::Style::Text,
            };
            plan_mesh::run(&draft, args.gpus, style, &working)?;
            continue;
        }
        let alike = known.iter().position(|(index, _)| is_alike(&draft, &specs, *index));
        let figures = match alike {
            Some(at) => at,
            None => {
                known.push((index, Figures::of(&draft, args, &|at| working.at(format!("{what}: {at}")))?));
                known.len() - 1
            }
        };
        let planned = Planned { draft, figures: &known[figures].1 };
        if args.json {
            println!("{}", planned.json())
        } else {
            planned.print()?
        }
        meshes.extend(planned.figures.mesh.clone());
    }
    match &args.trace {
        Some(path) => plan_trace::write(path, &meshes),
        None => Ok(()),
    }
}

/// FLOPs as JSON: a whole number while it is one that 64 bits hold.
pub fn flops(count: u128) -> Value {
    u64::try_from(count).map_or_else(|_| Value::from(count as f64), Value::from)
}

/// The specification before each stage.
pub fn specs(recipe: &Recipe) -> Result<Vec<Spec>> {
    let mut spec = pipeline::spec(recipe)?;
    let mut specs = Vec::new();
    for (index, table) in recipe.stage.iter().enumerate() {
        specs.push(spec.clone());
        spec = stage::extend(&spec, table, index)?;
    }
    if specs.is_empty() {
        bail!("the recipe has no stage");
    }
    Ok(specs)
}

/// With how many of `ranks` ranks of a plan one shares what it uses: on the processor ranks are threads of one process; each has a
/// graphics processor of its own.
pub fn sharing(recipe: &Recipe, profile: &Profile, ranks: usize) -> Place {
    let own = profile.hardware == Hardware::Graphics;
    let disk = match profile.fabric.filter(|_| own && recipe.machine.spill.is_some()) {
        Some(fabric) => fabric.node_ranks.min(ranks),
        None => ranks,
    };
    let host = if own { 1 } else { ranks };
    Place { ranks, local: 0, cores: host, host, memory: host, disk }
}

/// A rank's share of what the recipe allows, else of what a run may use of the memory that the profile has, else of `memory`.
pub fn budgets(recipe: &Recipe, profile: &Profile, memory: u64, sharing: Place) -> Budgets {
    let together = sharing.memory as u64;
    let memory = match (recipe.machine.memory_bytes, profile.memory_bytes) {
        (None, Some(all)) => profile.pool_bytes(all, together),
        (given, _) => given.unwrap_or(memory) / together,
    };
    let budgets = Budgets::new(memory, profile, recipe, &recipe.run.out, sharing.disk);
    // The free disk of this machine says nothing of another.
    match (profile.hardware, recipe.machine.disk_bytes) {
        (Hardware::Processor, _) | (_, Some(_)) => budgets,
        (Hardware::Graphics, None) => Budgets { disk: u64::MAX, ..budgets },
    }
}

/// Whether the stage of a draft needs what an earlier one needs: it differs in what a plan does not depend on.
fn is_alike(draft: &Draft<'_>, specs: &[Spec], earlier: usize) -> bool {
    let plain = |stage: &Stage| Stage {
        name: String::new(),
        steps: None,
        minutes_share: 0.0,
        lr_scale: 0.0,
        warmup_steps: None,
        blend: Vec::new(),
        length_weights: Vec::new(),
        ..stage.clone()
    };
    let stages = &draft.recipe.stage;
    *draft.spec == specs[earlier] && plain(&stages[draft.index]) == plain(&stages[earlier])
}

/// A stage, planned.
struct Planned<'a> {
    draft: Draft<'a>,
    figures: &'a Figures,
}

/// What is known of a stage.
struct Figures {
    settled: Settled,
    /// Of one rank alone, as `longest`.
    growth: Option<Growth>,
    longest: Option<usize>,
    /// With `--solve max-tokens`.
    of_all: Option<Option<Longest>>,
    /// With `--why`.
    why: Option<Why>,
    /// Of more than one rank.
    mesh: Option<MeshPlan>,
}

impl Figures {
    /// All that the flags ask for; `say` hears what is at hand.
    fn of(draft: &Draft<'_>, args: &args::Plan, say: &dyn Fn(&str)) -> Result<Figures> {
        say("a step");
        let settled = draft.settle()?;
        let mesh = plan_ranks::of(draft)?;
        let alone = mesh.is_none();
        let growth = alone.then(|| draft.growth(&settled.how)).transpose()?;
        say("the longest sequence that fits");
        let longest = if alone { draft.longest()? } else { None };
        let of_all = args.solve.map(|_| draft.longest_of_all()).transpose()?;
        say("changes that lower the peak");
        let why = args.why.then(|| draft.why()).transpose()?;
        Ok(Figures { settled, growth, longest, of_all, why, mesh })
    }
}

impl Planned<'_> {
    fn json(&self) -> Value {
        let (figures, draft) = (self.figures, &self.draft);
        let plan = &figures.settled.plan;
        let by_category: serde_json::Map<String, Value> = plan
            .usage
            .peak_by_category
            .iter()
            .map(|(category, bytes)| (category.name().to_string(), bytes.into()))
            .collect();
        let table = &draft.recipe.stage[draft.index];
        let mut row = json!({
            "stage": table.name,
            "seq_tokens": table.seq_tokens,
            "profile": draft.profile.name,
            "peak_bytes": plan.usage.peak_live,
            "peak_reserved_bytes": plan.usage.peak_reserved,
            "by_category": by_category,
            "peak_op": plan.usage.peak_op,
            "model_flops": flops(plan.model_flops),
            "hardware_flops": flops(plan.hardware_flops),
            "host_bytes": plan.host_bytes,
            "host_peak_bytes": plan.host_peak_bytes,
            "disk_bytes": plan.disk_bytes,
            "disk_peak_bytes": plan.disk_peak_bytes,
            "step_s": plan.step_s(),
            "times": plan.times,
            "tokens_per_s": plan.tokens_per_s(),
            "memory_bytes": draft.budgets.memory,
            "fits": draft.budgets.hold(plan),
            "max_tokens": figures.longest,
        });
        if let Some(growth) = &figures.growth {
            let by_name = growth.by_name.iter().map(|(name, bytes)| (name.clone(), json!(bytes + 0.0)));
            // A sum with 0 is never -0.
            row["bytes_per_token"] = json!(growth.bytes + 0.0);
            row["bytes_per_token_by_name"] = by_name.collect::<serde_json::Map<_, _>>().into();
        }
        if let Some(mesh) = &figures.mesh {
            row["mesh"] = plan_ranks::json(mesh);
        }
        if let Some(of_all) = &figures.of_all {
            row["max_tokens_auto"] = json!(of_all.as_ref().map(|(tokens, _)| tokens));
        }
        if let Some(why) = &figures.why {
            row["why"] = json!({
                "largest": why.largest.iter().take(LARGEST).map(|(label, bytes)| json!({
                    "name": label.name,
                    "layer": label.layer,
                    "gradient": label.gradient,
                    "category": label.category.name(),
                    "bytes": bytes,
                })).collect::<Vec<_>>(),
                "edit": why.best.as_ref().map(|change| change.settings.join(" ")),
                "edit_peak_bytes": why.best.as_ref().map(|change| change.plan.usage.peak_live),
                "edit_step_s": why.best.as_ref().and_then(|change| change.plan.step_s()),
            });
        }
        row
    }

    fn print(&self) -> Result<()> {
        let (recipe, figures) = (&self.draft.recipe, self.figures);
        let plan = &figures.settled.plan;
        let table = &recipe.stage[self.draft.index];
        println!(
            "stage {} ({} tokens a sample, {} a step)",
            table.name,
            human::grouped(table.seq_tokens as u64),
            human::grouped(plan.tokens)
        );
        for (category, bytes) in plan.usage.peak_by_category.iter() {
            if bytes > 0 {
                size(category.name(), bytes, "");
            }
        }
        size("peak", plan.usage.peak_live, &format!("in {}", plan.usage.peak_op));
        // What a token adds is worked out between two lengths of one rank.
        if let Some(growth) = &figures.growth {
            let note = format!("bytes at the peak: {}", by_name(growth));
            line("per token", &human::number(growth.bytes), &note);
        }
        let budget = human::bytes(self.draft.budgets.memory);
        let verdict = match self.draft.budgets.lack(plan) {
            None => format!("fits into {budget}"),
            Some((of, _, there)) => format!("does NOT fit into {} of {of}", human::bytes(there)),
        };
        size("reserved", plan.usage.peak_reserved, &verdict);
        if let Some(beside) = self.draft.profile.beside_bytes {
            size("outside pool", beside, "what libraries take of the device, as measured");
        }
        if plan.host_bytes > 0 {
            let moved = format!("{} to the host and back in a step", human::bytes(plan.host_bytes));
            size("host", plan.host_peak_bytes, &moved);
        }
        if plan.disk_bytes > 0 {
            let moved = format!("{} written and read in a step", human::bytes(plan.disk_bytes));
            size("disk", plan.disk_peak_bytes, &moved);
        }
        let share = plan.hardware_flops as f64 / plan.model_flops as f64 - 1.0;
        let note = format!("recompute and score products add {}", human::percent(share));
        line("step FLOPs", &human::si(plan.model_flops as f64), &note);
        let tokens =
            |tokens: Option<usize>| tokens.map_or("none".into(), |tokens| human::grouped(tokens as u64));
        if figures.mesh.is_none() {
            self.print_times();
            line("longest", &tokens(figures.longest), &format!("tokens a sample that fit into {budget}"));
        }
        if let Some(solution) = &figures.settled.solution {
            println!("{}", choices::table(solution));
        }
        if let Some(of_all) = &figures.of_all {
            let found = of_all.as_ref().map(|(tokens, _)| *tokens);
            line("longest auto", &tokens(found), "tokens a sample with activations.memory=auto");
            if let Some(solution) = of_all.as_ref().and_then(|(_, settled)| settled.solution.as_ref()) {
                println!("{}", choices::table(solution));
            }
        }
        figures.why.iter().for_each(|why| println!("  {}", sentence(why)));
        figures.mesh.iter().for_each(plan_ranks::print);
        Ok(())
    }

    fn print_times(&self) {
        let plan = &self.figures.settled.plan;
        let (Some(times), Some(rate)) = (plan.times, plan.tokens_per_s()) else { return };
        let parts = [
            ("products", times.matmul_s),
            ("attention", times.attention_s),
            ("memory", times.memory_s),
            ("stalled", times.stall_s),
        ];
        let parts: Vec<String> = parts
            .into_iter()
            .filter(|(_, seconds)| *seconds > 0.0)
            .map(|(name, seconds)| format!("{name} {}", human::seconds(seconds)))
            .collect();
        let beside = [("disk", times.disk_s), ("host link", times.host_s)]
            .into_iter()
            .filter(|(_, seconds)| *seconds > 0.0)
            .map(|(name, seconds)| format!("; {name} {} beside", human::seconds(seconds)))
            .collect::<String>();
        let on = &self.draft.profile.name;
        line("step time", &human::seconds(times.elapsed_s()), &format!("{}{beside}", parts.join(", ")));
        line("tokens/s", &rounded(rate), &format!("by the rates of {on} ({})", self.draft.profile.isa));
    }
}

fn by_name(growth: &Growth) -> String {
    let part = |(name, bytes): &(String, f64)| format!("{name} {}", human::number(*bytes));
    let shown = growth.by_name.iter().filter(|(_, bytes)| bytes.abs() >= 1.0).map(part);
    shown.collect::<Vec<_>>().join(", ")
}

/// A rate, in groups of three where they are needed.
fn rounded(rate: f64) -> String {
    if rate < 1000.0 { human::number(rate) } else { human::grouped(rate.round() as u64) }
}

/// Buffers that `--why` names.
const LARGEST: usize = 4;

/// The peak as one sentence.
fn sentence(why: &Why) -> String {
    let name = |label: &Label| match (label.gradient, label.layer) {
        (false, -1) => label.name.to_string(),
        (false, layer) => format!("{} of layer {layer}", label.name),
        (true, -1) => format!("the gradient of {}", label.name),
        (true, layer) => format!("the gradient of {} of layer {layer}", label.name),
    };
    // Buffers of one name in many layers are one entry.
    let mut sums: Vec<(Label, usize, u64)> = Vec::new();
    for (label, bytes) in &why.largest {
        let same = |(other, ..): &&mut (Label, usize, u64)| {
            (other.name, other.gradient) == (label.name, label.gradient)
        };
        match sums.iter_mut().find(same) {
            Some((_, count, sum)) => (*count, *sum) = (*count + 1, *sum + bytes),
            None => sums.push((*label, 1, *bytes)),
        }
    }
    sums.sort_by_key(|(.., bytes)| std::cmp::Reverse(*bytes));
    let part = |(label, count, bytes): &(Label, usize, u64)| match count {
        1 => format!("{} ({})", name(label), human::bytes(*bytes)),
        _ => format!("{} of {count} layers ({})", name(&Label { layer: -1, ..*label }), human::bytes(*bytes)),
    };
    let parts: Vec<String> = sums.iter().take(LARGEST).map(part).collect();
    let Usage { peak_live, peak_op, .. } = &why.plan.usage;
    let edit = match &why.best {
        None => "no single change lowers it".to_string(),
        Some(change) => {
            let time = match (why.plan.step_s(), change.plan.step_s()) {
                (Some(now), Some(then)) => {
                    format!(", a step {} instead of {}", human::seconds(then), human::seconds(now))
                }
                _ => String::new(),
            };
            let peak = human::bytes(change.plan.usage.peak_live);
            format!("{} lowers it most, to {peak}{time}", change.settings.join(" "))
        }
    };
    format!(
        "The peak of {} is in {peak_op}, where a step's largest buffers are {}; {edit}.",
        human::bytes(*peak_live),
        parts.join(", ")
    )
}

fn size(name: &str, bytes: u64, note: &str) {
    let row = format!("  {name:<12} {:>12}  {:>22}  {note}", human::bytes(bytes), human::grouped(bytes));
    println!("{}", row.trim_end());
}

fn line(name: &str, figure: &str, note: &str) {
    println!("  {name:<12} {figure:>12}  {note}");
}
