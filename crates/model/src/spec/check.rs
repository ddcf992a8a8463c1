//! Ranges of a specification's numbers. Every family's configuration is checked here: kernels and plans rely on these
//! ranges.

use crate::spec::{LayerSpec, Spec};

/// Most columns of a matrix, of all heads together, and of a latent.
const MOST_COLUMNS: usize = 1 << 20;
/// Most rows of the embedding, positions, and tokens of a window.
const MOST_ROWS: usize = 1 << 28;
/// Most parameters: bytes of all their state are counted in 64 bits.
const MOST_PARAMS: u128 = 1 << 50;

/// An out-of-range value: the keys that a configuration may have it under, and the reason.
pub(crate) type Unsound = (&'static [&'static str], String);

/// Keys of the norms' epsilon.
const EPS: &[&str] = &["rms_norm_eps", "norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"];

/// Largest head size that attention supports.
const MOST_HEAD_COLUMNS: usize = 512;

/// The reason to refuse heads of this many columns, if attention does not take them.
pub(crate) fn head_columns_refused(columns: usize) -> Option<String> {
    let what = || format!("gives heads of {columns} columns; 1 to {MOST_HEAD_COLUMNS} are supported");
    (!(1..=MOST_HEAD_COLUMNS).contains(&columns)).then(what)
}

impl Spec {
    /// Checks that every number is in range.
    pub(crate) fn check(&self) -> Result<(), Unsound> {
        let eps = self.norm.eps;
        if !(0.0..=1.0).contains(&eps) {
            return Err((EPS, format!("gives {eps}; the epsilon of a norm is from 0 to 1")));
        }
        let scale = self.attention_scale;
        if self.attends() && scale <= 0.0 {
            let keys: &'static [&'static str] =
                &["key_multiplier", "attention_multiplier", "query_pre_attn_scalar"];
            return Err((
                keys,
                format!("gives scores of attention the factor {scale}; a positive one is supported"),
            ));
        }
        let shared = self.moe.as_ref().and_then(|moe| moe.shared);
        let latent = self.latent.as_ref();
        let heads = |heads: usize| self.attends().then(|| heads.saturating_mul(self.head_dim));
        // A matrix of one row would be mistaken for a vector.
        let columns: [(&'static [&'static str], Option<usize>); 10] = [
            (&["embedding_size"], Some(self.embed_cols())),
            (&["hidden_size", "n_embd", "d_model"], Some(self.hidden)),
            (
                &["intermediate_size", "n_inner", "ffn_hidden_size"],
                Some(self.ffn).filter(|_| self.has_dense_ffn()),
            ),
            (&["moe_intermediate_size", "intermediate_size"], self.moe.as_ref().map(|moe| moe.ffn)),
            (&["n_shared_experts", "shared_expert_intermediate_size"], shared.map(|shared| shared.ffn)),
            (&["num_attention_heads", "n_head", "n_heads"], heads(self.heads)),
            (&["num_key_value_heads"], heads(self.kv_heads)),
            (&["q_lora_rank"], latent.and_then(|latent| latent.query)),
            (&["kv_lora_rank"], latent.map(|latent| latent.key_value)),
            (&["v_head_dim"], latent.map(|latent| latent.value)),
        ];
        for (keys, size) in columns {
            if let Some(size) = size.filter(|size| !(2..=MOST_COLUMNS).contains(size)) {
                return Err((keys, format!("gives {size} columns; 2 to {MOST_COLUMNS} are supported")));
            }
        }
        if !(2..=MOST_ROWS).contains(&self.vocab) {
            return Err((&["vocab_size"], format!("is {}; 2 to {MOST_ROWS} are supported", self.vocab)));
        }
        let wide = |window: &usize| !(1..=MOST_ROWS).contains(window);
        if let Some(window) = self.layers.iter().filter_map(LayerSpec::window).find(wide) {
            return Err((&["sliding_window"], format!("is {window}; 1 to {MOST_ROWS} tokens are supported")));
        }
        self.check_factors()?;
        if self.most_params() > MOST_PARAMS {
            let what = format!("and the other sizes give more than {MOST_PARAMS} parameters");
            return Err((&["num_hidden_layers", "n_layer"], what));
        }
        Ok(())
    }

    /// Checks that every factor is finite in f32.
    fn check_factors(&self) -> Result<(), Unsound> {
        let factors: [(&'static [&'static str], f32); 7] = [
            (&["attention_multiplier", "query_pre_attn_scalar", "rope_scaling"], self.attention_scale),
            (&["embedding_multiplier"], self.embed_scale),
            (&["residual_multiplier"], self.residual_scale),
            (&["logits_scaling", "logit_scale"], self.logit_scale),
            (&["attn_logit_softcapping"], self.attention_softcap),
            (&["final_logit_softcapping"], self.logit_softcap),
            (&["routed_scaling_factor"], self.moe.as_ref().map_or(1.0, |moe| moe.routing.scale)),
        ];
        let unsound = |(keys, factor): (&'static [&'static str], f32)| {
            (keys, format!("gives the factor {factor}, which is not a number that can be computed with"))
        };
        factors.into_iter().find(|(_, factor)| !factor.is_finite()).map_or(Ok(()), |bad| Err(unsound(bad)))
    }

    /// Upper bound on the number of weights.
    fn most_params(&self) -> u128 {
        let [hidden, heads, kv, ffn, table] =
            [self.hidden, self.q_cols(), self.kv_cols(), self.ffn, self.embed_cols().max(self.hidden)]
                .map(|size| size as u128);
        let experts = self.moe.as_ref().map_or(0, |moe| (moe.experts * moe.ffn) as u128);
        let gates = u128::from(self.attention_gate);
        let layer = hidden * ((2 + gates) * heads + 2 * kv + 3 * (ffn + experts));
        layer * self.layers.len() as u128 + 2 * table * self.vocab as u128
    }
}
