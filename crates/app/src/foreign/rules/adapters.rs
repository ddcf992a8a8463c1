//! Keys of adapters, trained weights and quantization.

use serde_json::Value;
use toml_edit::Array;

use super::{Row, RuleResult, on};
use crate::foreign::draft::Draft;
use crate::foreign::values::{flag, float, int, names, text};

/// Rules for all files.
pub(in crate::foreign) const RULES: &[Row] = &[
    (&["adapter", "finetuning_type"], |draft, v| match text(v)? {
        "full" | "lora" | "dora" | "rslora" => Ok(()),
        "qlora" => {
            draft.bits = Some(4);
            Ok(())
        }
        other => Err(format!(
            "`{other}` is no method that has a recipe; adapter.method and model.trained say which weights are trained"
        )),
    }),
    (&["use_peft", "use_lora"], |_, v| flag(v).map(drop)),
    (&["lora_r", "lora_rank", "model.lora_rank", "r"], |draft, v| adapts(draft, "rank", int(v)? as i64)),
    (&["lora_alpha", "model.lora_alpha"], |draft, v| adapts(draft, "alpha", float(v)?)),
    (&["lora_dropout", "model.lora_dropout"], |draft, v| match float(v)? {
        0.0 => {
            draft.dropless = true;
            Ok(())
        }
        rate => adapts(draft, "dropout", rate),
    }),
    (
        &[
            "lora_target_modules",
            "lora_target",
            "model.lora_attn_modules",
            "target_modules",
            "lora_target_parameters",
        ],
        |draft, v| targets(draft, v),
    ),
    (&["lora_target_linear"], |draft, v| {
        if flag(v)? {
            adapts(draft, "targets", "all-linear")?;
        }
        Ok(())
    }),
    (&["model.apply_lora_to_mlp"], |draft, v| {
        on(v, || draft.targets.extend(["gate_proj", "up_proj", "down_proj"].map(String::from)))
    }),
    (&["model.apply_lora_to_output"], |draft, v| on(v, || draft.targets.push("lm_head".into()))),
    (&["use_dora", "lora_use_dora", "peft_use_dora", "model.use_dora"], |draft, v| {
        only(draft, v, "dora", "is of another adapter than the one that the file asks for")
    }),
    (&["use_rslora", "lora_use_rslora", "peft_use_rslora"], |draft, v| {
        let why = "is a method of its own, so that another divides by the rank and not by its root; \
                   `adapter.alpha` times that root is the same";
        only(draft, v, "rslora", why)
    }),
    (&["pissa_init"], |draft, v| {
        only(
            draft,
            v,
            "pissa",
            "is a method of its own, which does not go with the one that the file asks for",
        )
    }),
    (&["pissa_iter"], |_, _| Err("the singular parts are found exactly".into())),
    (&["pissa_convert"], |_, _| Err("an adapter of pissa is written as what it changed of the base".into())),
    (&["init_lora_weights", "peft_init_lora_weights"], |draft, v| match v.as_str() {
        Some(how) if how.starts_with("pissa") && draft.adapter == Some("pissa") => Ok(()),
        _ if *v == Value::Bool(true) => Ok(()),
        _ => Err("adapters begin as LoRA's do, or as PiSSA's".into()),
    }),
    (&["loraplus_lr_ratio"], |draft, v| adapts(draft, "lr_ratio", float(v)?)),
    (&["lora_modules_to_save", "additional_target", "unfrozen_parameters"], |draft, v| {
        let list = names(v)?;
        // axolotl selects rows of a weight with `[:`.
        let whole = list.iter().map(|name| name.split("[:").next().unwrap_or_default());
        draft.set("model.trained", whole.collect::<Array>());
        if list.iter().any(|name| name.contains("[:")) {
            return Err("rows of a weight are not trained alone; the whole weight is (model.trained)".into());
        }
        Ok(())
    }),
    (&["freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules"], |_, _| {
        Err("which weights are trained is said by their names (model.trained = [\"layers\\\\.3[01]\\\\.\"])"
            .into())
    }),
    (&["lora_model_dir", "adapter_name_or_path"], |_, _| {
        Err("a run starts with a new adapter; `fathom export --with DIR=1` adds an earlier one to its model first".into())
    }),
    (&["load_in_4bit", "model.quantize_base"], |draft, v| on(v, || draft.bits = Some(4))),
    (&["load_in_8bit"], |draft, v| on(v, || draft.bits = Some(8))),
    (&["quantization_bit"], |draft, v| int(v).map(|v| draft.bits = Some(v))),
    (&["double_quantization", "bnb_4bit_use_double_quant", "use_bnb_nested_quant"], |draft, v| {
        flag(v).map(|on| draft.set("model.double_quant", on))
    }),
    (&["qat.weight_dtype"], |draft, v| match text(v)? {
        _ if draft.adapter.is_some() => Err(ROUNDED_ADAPTER.into()),
        format @ ("int4" | "nvfp4" | "mxfp4") => {
            draft.set("precision.qat", format);
            Ok(())
        }
        other => Err(format!("`{other}` is none of int4, nvfp4 and mxfp4 (precision.qat)")),
    }),
    (&["qat.activation_dtype"], |_, _| Err("weights are rounded, and activations stay as they are".into())),
    (&["qat.group_size", "quantizer.groupsize"], |_, _| {
        Err("groups are of 16 (nvfp4), 32 (mxfp4) and 128 columns or fewer (int4)".into())
    }),
    (&["qat.fake_quant_after_n_steps", "fake_quant_after_n_steps"], |_, _| {
        Err("weights are rounded from the first step on".into())
    }),
    (&["quantizer._component_"], |draft, v| match text(v)? {
        _ if draft.adapter.is_some() => Err(ROUNDED_ADAPTER.into()),
        name if name.contains("Int4Weight") && name.contains("QAT") => {
            draft.set("precision.qat", "int4");
            if name.contains("Int8DynAct") {
                return Err(
                    "weights are rounded to int4 (precision.qat); activations stay as they are".into()
                );
            }
            Ok(())
        }
        other => Err(format!("`{other}` is no format of precision.qat")),
    }),
    (&["fp8"], |draft, v| on(v, || draft.set("precision.gemm", "fp8_current"))),
    (&["fp8_backend", "fp8_enable_fsdp_float8_all_gather"], |_, _| Ok(())),
];

const ROUNDED_ADAPTER: &str =
    "an adapter leaves the model's weights as they are and is not rounded (precision.qat)";

/// Sets a key of the adapter; has no effect if none is trained, as in the other tools.
fn adapts(draft: &mut Draft, key: &str, to: impl Into<toml_edit::Value>) -> RuleResult {
    if draft.adapter.is_some() {
        draft.set(&format!("adapter.{key}"), to);
    }
    Ok(())
}

fn targets(draft: &mut Draft, value: &Value) -> RuleResult {
    match value {
        Value::String(text) if text == "all" || text == "all-linear" => {
            adapts(draft, "targets", "all-linear")
        }
        // A regular expression.
        Value::String(text) if text.contains(|char| "\\*+?()[]|^$".contains(char)) => {
            adapts(draft, "targets", text.as_str())
        }
        other => {
            let list = names(other)?;
            if list == ["all"] || list == ["all-linear"] {
                return adapts(draft, "targets", "all-linear");
            }
            // torchtune's name for `o_proj`.
            let name = |name: &String| {
                if name.starts_with("experts.") {
                    return format!("mlp.{name}");
                }
                name.replace("output_proj", "o_proj")
            };
            draft.targets.extend(list.iter().map(name));
            Ok(())
        }
    }
}

/// Accepts a switch only with one method.
fn only(draft: &Draft, value: &Value, method: &str, why: &str) -> RuleResult {
    if flag(value)? && draft.adapter != Some(method) { Err(why.into()) } else { Ok(()) }
}
