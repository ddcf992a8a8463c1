//! `fathom plan`: the training step on the machine without data.

use anyhow::{Context, Result, bail};
use fathom_app::plan::{LARGEST, PlanOptions, PlannedStage, plan as plan_job, trace};
use fathom_app::several::planned as planned_job;
use fathom_app::stored::Footprint;
use fathom_app::{Job, library, output};
use fathom_base::human;
use fathom_tensor::{Category, Label, PoolUsage};
use fathom_train::{Growth, Resource, Why};

use super::{plan_mesh, plan_ranks};
use crate::working::WorkReport;
use crate::{args, choices};

/// Most ranks of a plan.
const MOST_GPUS: usize = 1 << 16;

/// Runs the verb.
pub fn run(args: &args::Plan) -> Result<()> {
    args.html.iter().chain(&args.trace).try_for_each(|path| output::regular(path))?;
    let mut layers = library::layers(&args.recipe, &args.settings);
    if let Some(profile) = &args.machine_profile {
        layers = layers.flag("--machine-profile", "machine.profile", profile);
    }
    if let Some(memory) = &args.memory {
        let bytes = human::parse_bytes(memory).map_err(anyhow::Error::msg).context("--memory")?;
        layers = layers.flag("--memory", "machine.memory_bytes", &bytes.to_string());
    }
    let working = WorkReport::new();
    let job = planned_job(library::load(layers)?, &working)?;
    plan(args, &job, &working)
}

fn plan(args: &args::Plan, job: &Job, working: &WorkReport) -> Result<()> {
    if args.trace.is_some() && job.world() == 1 {
        bail!(
            "--trace draws what the ranks of a mesh do, and this recipe has one rank; set mesh.pp, mesh.dp, mesh.cp or mesh.tp"
        );
    }
    if let Some(gpus) = args.gpus.filter(|gpus| !(1..=MOST_GPUS).contains(gpus)) {
        bail!("--gpus {gpus}: give a number of ranks from 1 to {MOST_GPUS}");
    }
    let plans = plan_job(job, args.gpus)?;
    if let Some(path) = &args.html {
        let command = format!("fathom plan {} {}", args.recipe, args.settings.join(" "));
        plans.page(command.trim_end(), path)?;
    }
    if args.solve == Some(args::Question::Mesh) {
        return (0..job.stages.len()).try_for_each(|index| plan_mesh::run(args, &plans, index, working));
    }
    let stored = Footprint::of(job)?;
    let asked = PlanOptions { longest_of_all: args.solve.is_some(), why: args.why };
    let mut meshes = Vec::new();
    for planned in plans.stages(asked, working) {
        let planned = planned?;
        if args.json {
            outln!("{}", planned.to_json(&stored))
        } else {
            print(&planned)
        }
        meshes.extend(planned.figures.mesh.clone());
    }
    if !args.json {
        let Footprint { checkpoint_bytes, checkpoints, model_bytes } = stored;
        let [each, model] = [checkpoint_bytes, model_bytes].map(human::bytes);
        let note = format!(
            "at most, in {}: {checkpoints} checkpoints of {each}, a model of {model}",
            job.folder.display()
        );
        size("stored", stored.bytes(), &note);
    }
    args.trace.as_ref().map_or(Ok(()), |path| Ok(trace(path, &meshes)?))
}

fn print(planned: &PlannedStage<'_>) {
    let PlannedStage { draft, figures } = planned;
    let recipe = &draft.recipe;
    let plan = &figures.settled.plan;
    let table = &recipe.stage[draft.index];
    outln!(
        "stage {} ({} tokens a sample, {} a step): {}",
        table.name,
        human::grouped(table.seq_tokens as u64),
        human::grouped(plan.tokens),
        answer(planned)
    );
    for (category, bytes) in plan.usage.peak_by_category.iter() {
        if bytes > 0 {
            size(category.name(), bytes, "");
        }
    }
    size("peak", plan.usage.peak_live, &format!("in {}", plan.usage.peak_op));
    // Growth per token is derived from two lengths of one rank.
    if let Some(growth) = &figures.growth {
        let note = format!("bytes at the peak: {}", by_name(growth));
        line("per token", &human::number(growth.bytes), &note);
    }
    let budget = human::bytes(draft.budgets.memory);
    let verdict = match draft.budgets.lack(plan) {
        None => format!("fits into {budget}"),
        Some((of, _, there)) => format!("does NOT fit into {} of {of}", human::bytes(there)),
    };
    size("reserved", plan.usage.peak_reserved, &verdict);
    if let Some(rollout) = &figures.rollout {
        let pages = human::bytes(rollout.peak_by_category[Category::Kv]);
        size(
            "rollout",
            rollout.peak_live,
            &format!("while answers are written, {pages} of it keys and values; in {}", rollout.peak_op),
        );
        let verdict = if rollout.peak_reserved <= draft.budgets.memory { "fits" } else { "does NOT fit" };
        size("of it reserved", rollout.peak_reserved, &format!("{verdict} into {budget}"));
        let held = recipe.rl.held_bytes(table.seq_tokens, draft.spec.vocab);
        if held > 0 {
            size("answers held", held, "at most, on the host and in checkpoints, from one step to the next");
        }
    }
    if let Some(outside) = draft.profile.outside_pool_bytes {
        size("outside pool", outside, "what libraries take of the device, as measured");
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
    let tokens = |tokens: Option<usize>| tokens.map_or("none".into(), |tokens| human::grouped(tokens as u64));
    if figures.mesh.is_none() {
        print_times(planned);
        line("longest", &tokens(figures.longest), &format!("tokens a sample that fit into {budget}"));
    }
    if let Some(solution) = &figures.settled.solution {
        outln!("{}", choices::table(solution));
    }
    if let Some(of_all) = &figures.of_all {
        let found = of_all.as_ref().map(|(tokens, _)| *tokens);
        line("longest auto", &tokens(found), "tokens a sample with activations.memory=auto");
        for (settings, tokens) in &figures.offloaded {
            let note = format!("tokens a sample with that and {settings}");
            line("offloaded", &human::grouped(*tokens as u64), &note);
        }
        if let Some(solution) = of_all.as_ref().and_then(|(_, settled)| settled.solution.as_ref()) {
            outln!("{}", choices::table(solution));
        }
    }
    figures.why.iter().for_each(|why| outln!("  {}", sentence(why)));
    figures.mesh.iter().for_each(plan_ranks::print);
}

/// Returns whether the stage fits, its needs and a step's duration, over all ranks and rollouts.
fn answer(PlannedStage { draft, figures }: &PlannedStage<'_>) -> String {
    let plan = &figures.settled.plan;
    let kinds = figures.mesh.iter().flat_map(|mesh| mesh.kinds.iter().map(|kind| &kind.plan));
    let steps = || kinds.clone().chain([plan]);
    let rollout = figures.rollout.as_ref().map_or(0, |usage| usage.peak_reserved);
    let memory = steps().map(|plan| plan.usage.peak_reserved).max().unwrap_or(0).max(rollout);
    let there = draft.budgets.memory;
    let lacks = steps().find_map(|plan| draft.budgets.lack(plan));
    let lacks = lacks.or((memory > there).then_some((Resource::Memory, memory, there)));
    let needs = match lacks {
        None => format!("fits, needs {} of {}", human::bytes(memory), human::bytes(there)),
        Some((of, needed, there)) => {
            format!(
                "does NOT fit, needs {} of {of} and {} are there",
                human::bytes(needed),
                human::bytes(there)
            )
        }
    };
    let step_s = figures.mesh.as_ref().map_or_else(|| plan.step_s(), |mesh| mesh.step_s());
    // Rows seldom fill a sample, and answers are seldom of maximum length.
    let bound = draft.recipe.data.is_lessons() || draft.recipe.rl.is_on();
    let most = if bound { "at most " } else { "" };
    let takes =
        step_s.map_or(String::new(), |step_s| format!(", takes {most}{} a step", human::seconds(step_s)));
    needs + &takes
}

fn print_times(PlannedStage { draft, figures }: &PlannedStage<'_>) {
    let plan = &figures.settled.plan;
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
    let overlapped = [("disk", times.disk_s), ("host link", times.host_s)]
        .into_iter()
        .filter(|(_, seconds)| *seconds > 0.0)
        .map(|(name, seconds)| format!("; {name} {} overlapped", human::seconds(seconds)))
        .collect::<String>();
    let on = &draft.profile.name;
    line("step time", &human::seconds(times.elapsed_s()), &format!("{}{overlapped}", parts.join(", ")));
    line("tokens/s", &rounded(rate), &format!("by the rates of {on} ({})", draft.profile.isa));
}

fn by_name(growth: &Growth) -> String {
    let part = |(name, bytes): &(String, f64)| format!("{name} {}", human::number(*bytes));
    let shown = growth.by_name.iter().filter(|(_, bytes)| bytes.abs() >= 1.0).map(part);
    shown.collect::<Vec<_>>().join(", ")
}

/// A rate, with digits grouped by three if large.
fn rounded(rate: f64) -> String {
    if rate < 1000.0 { human::number(rate) } else { human::grouped(rate.round() as u64) }
}

/// The peak as one sentence.
fn sentence(why: &Why) -> String {
    let name = |label: &Label| match (label.gradient, label.layer) {
        (false, -1) => label.name.to_string(),
        (false, layer) => format!("{} of layer {layer}", label.name),
        (true, -1) => format!("the gradient of {}", label.name),
        (true, layer) => format!("the gradient of {} of layer {layer}", label.name),
    };
    // Buffers of one name in many layers are combined.
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
    let PoolUsage { peak_live, peak_op, .. } = &why.plan.usage;
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
    let fastest = why.fastest.as_ref().map_or(String::new(), |change| {
        let time = change
            .plan
            .step_s()
            .map_or(String::new(), |step_s| format!(", a step {}", human::seconds(step_s)));
        let peak = human::bytes(change.plan.usage.peak_live);
        format!(
            " The fastest single change with which it fits is {}: {peak}{time}.",
            change.settings.join(" ")
        )
    });
    format!(
        "The peak of {} is in {peak_op}, where a step's largest buffers are {}; {edit}.{fastest}",
        human::bytes(*peak_live),
        parts.join(", ")
    )
}

fn size(name: &str, bytes: u64, note: &str) {
    let row = format!("  {name:<12} {:>12}  {:>22}  {note}", human::bytes(bytes), human::grouped(bytes));
    outln!("{}", row.trim_end());
}

fn line(name: &str, figure: &str, note: &str) {
    outln!("  {name:<12} {figure:>12}  {note}");
}
