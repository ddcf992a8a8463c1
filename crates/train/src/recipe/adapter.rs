//! Keys for training an adapter over a frozen model.

use std::path::PathBuf;

use fathom_base::{choice, recipe};
use toml::Value;

use super::Recipe;
use super::limits::{Above0, Below1, COLUMNS, NO_END, Whole};

choice! {
    /// An adapter.
    pub enum AdapterName {
        /// None: the model's own weights are trained.
        None = "none",
        /// Low-rank terms (Hu and others, 2021).
        Lora = "lora",
        /// The same with the weight `alpha / sqrt(rank)` (Kalajdzievski, 2023).
        Rslora = "rslora",
        /// Low-rank terms of the directions of rows, whose lengths are trained apart (Liu and others, 2024).
        Dora = "dora",
        /// Low-rank terms that begin as the largest singular parts of the base (Meng and others, 2024).
        Pissa = "pissa",
        /// Factors of keys, values and of what the MLP's way out reads (Liu and others, 2022).
        Ia3 = "ia3",
        /// A small network behind each sub-layer (Houlsby and others, 2019).
        Houlsby = "houlsby",
        /// Embeddings of virtual tokens before each document (Lester and others, 2021).
        Prompt = "prompt",
        /// The same, computed by a small network (Liu and others, 2021).
        PTuning = "p_tuning",
        /// Keys and values of each layer at virtual tokens before each document (Li and Liang, 2021).
        Prefix = "prefix",
    }
}

choice! {
    /// Network that computes the embeddings of virtual tokens.
    pub enum EncoderName {
        /// An MLP of three layers.
        Mlp = "mlp",
        /// An LSTM of two layers in both directions, and an MLP of two layers.
        Lstm = "lstm",
    }
}

impl AdapterName {
    /// True if it has low-rank terms.
    pub fn is_low_rank(self) -> bool {
        matches!(self, AdapterName::Lora | AdapterName::Rslora | AdapterName::Dora | AdapterName::Pissa)
    }

    /// True if it has virtual tokens.
    pub fn leads(self) -> bool {
        matches!(self, AdapterName::Prompt | AdapterName::PTuning | AdapterName::Prefix)
    }
}

recipe! {
    /// An adapter, which is trained while the model itself stays unchanged.
    pub struct AdapterTable {
        /// The method.
        pub method: AdapterName = AdapterName::None,
        /// Rank of low-rank terms, 16 by default; for `houlsby` the width of the networks, 32 by default.
        pub rank: Option<usize> [Whole(1, COLUMNS)],
        /// Low-rank terms are multiplied by `alpha / rank`, with `rslora` by `alpha / sqrt(rank)`. Unset: twice the rank; for
        /// `pissa` the rank.
        pub alpha: Option<f64> [Above0(NO_END)],
        /// Projections to adapt: a list of name endings such as `["q_proj", "v_proj"]`; a regular expression for whole names; or
        /// `all-linear` for every projection of the blocks except experts. Low-rank terms can also adapt the embedding
        /// (`embed_tokens`), the head (`lm_head`), and experts, each by its name in files (`w1`) or all of a layer as stacked
        /// tensors (`mlp.experts.gate_up_proj`, `mlp.experts.down_proj`). Unset: all-linear; for `ia3` the projections of
        /// keys and values and those that close MLPs. `houlsby` and methods with virtual tokens have no targets.
        pub targets: Option<Value>,
        /// For low-rank methods except `pissa`: tokens whose rows of the embedding are trained too.
        pub token_rows: Vec<usize> [Whole(0, COLUMNS)],
        /// For `lora`, `rslora` and `pissa`: dropout rate on the input of the low-rank terms.
        pub dropout: Option<f64> [Below1],
        /// LoRA+ (Hayou and others, 2024): learning rate of B divided by that of A; unset: 1.
        pub lr_ratio: Option<f64> [Above0(NO_END)],
        /// LoRA+: factor on the learning rate of the embedding's low-rank terms; unset: 1.
        pub embedding_lr_ratio: Option<f64> [Above0(NO_END)],
        /// For `prompt`, `p_tuning` and `prefix`: number of virtual tokens before each document; they count towards `seq_tokens`.
        /// Unset: 20.
        pub virtual_tokens: Option<usize> [Whole(1, COLUMNS)],
        /// For `prompt`: text that initialises the virtual tokens, repeated or cut to their number. Unset: random values.
        pub prompt_text: Option<String>,
        /// For `p_tuning`: the network that computes the virtual tokens, as in PEFT.
        pub encoder_reparameterization_type: EncoderName = EncoderName::Mlp,
        /// For `prefix`: computes the keys and values of all layers by one network (PEFT's `prefix_projection`).
        pub prefix_projection: bool,
        /// For `p_tuning`: hidden columns of the network, per direction for an LSTM; unset: the model's columns. For `prefix` with
        /// `prefix_projection`: hidden columns of the two-layer MLP; unset: the columns of the model's keys.
        pub encoder_hidden_size: Option<usize> [Whole(2, COLUMNS)],
    }
}

impl AdapterTable {
    /// Number of virtual tokens before each document.
    pub fn leads(&self) -> usize {
        if self.method.leads() { self.virtual_tokens.unwrap_or(20) } else { 0 }
    }
}

recipe! {
    /// One of several adapters of a run. They share the base; each has its own lessons and optimizer, as if it were trained alone.
    /// Unset keys are as in `adapter`.
    pub struct NamedAdapter {
        /// Its name, and that of its folder inside the run's `adapter`: letters, digits, `-` and `_`.
        pub name: String = String::new(),
        /// Its lessons, or with `rl.loss` its prompts, in place of `data.paths`: files, folders and addresses.
        pub paths: Vec<PathBuf>,
        /// Its reward file, in place of `rl.reward`.
        pub reward: Option<PathBuf>,
        /// `adapter.method` of this adapter, except `pissa`, which changes the base.
        pub method: Option<AdapterName>,
        /// `adapter.rank` of this adapter.
        pub rank: Option<usize> [Whole(1, COLUMNS)],
        /// `adapter.alpha` of this adapter.
        pub alpha: Option<f64> [Above0(NO_END)],
        /// `adapter.targets` of this adapter.
        pub targets: Option<Value>,
        /// `adapter.token_rows` of this adapter.
        pub token_rows: Vec<usize> [Whole(0, COLUMNS)],
        /// `adapter.dropout` of this adapter.
        pub dropout: Option<f64> [Below1],
        /// `adapter.lr_ratio` of this adapter.
        pub lr_ratio: Option<f64> [Above0(NO_END)],
        /// `adapter.embedding_lr_ratio` of this adapter.
        pub embedding_lr_ratio: Option<f64> [Above0(NO_END)],
        /// `adapter.virtual_tokens` of this adapter.
        pub virtual_tokens: Option<usize> [Whole(1, COLUMNS)],
        /// `adapter.prompt_text` of this adapter.
        pub prompt_text: Option<String>,
        /// `adapter.encoder_reparameterization_type` of this adapter.
        pub encoder_reparameterization_type: Option<EncoderName>,
        /// `adapter.prefix_projection` of this adapter.
        pub prefix_projection: Option<bool>,
        /// `adapter.encoder_hidden_size` of this adapter.
        pub encoder_hidden_size: Option<usize> [Whole(2, COLUMNS)],
    }
}

impl NamedAdapter {
    /// Its settings, with those of `common` where it has none.
    pub fn over(&self, common: &AdapterTable) -> AdapterTable {
        let NamedAdapter { method, rank, alpha, dropout, lr_ratio, embedding_lr_ratio, .. } = *self;
        AdapterTable {
            method: method.unwrap_or(common.method),
            rank: rank.or(common.rank),
            alpha: alpha.or(common.alpha),
            targets: self.targets.clone().or_else(|| common.targets.clone()),
            token_rows: [&common.token_rows, &self.token_rows][usize::from(!self.token_rows.is_empty())]
                .clone(),
            dropout: dropout.or(common.dropout),
            lr_ratio: lr_ratio.or(common.lr_ratio),
            embedding_lr_ratio: embedding_lr_ratio.or(common.embedding_lr_ratio),
            virtual_tokens: self.virtual_tokens.or(common.virtual_tokens),
            prompt_text: self.prompt_text.clone().or_else(|| common.prompt_text.clone()),
            encoder_reparameterization_type: self
                .encoder_reparameterization_type
                .unwrap_or(common.encoder_reparameterization_type),
            prefix_projection: self.prefix_projection.unwrap_or(common.prefix_projection),
            encoder_hidden_size: self.encoder_hidden_size.or(common.encoder_hidden_size),
        }
    }

    /// True if it is the recipe's own adapter, which sets nothing and takes everything from `adapter`.
    pub fn is_own(&self) -> bool {
        self.name.is_empty()
    }

    /// An adapter with all settings of a table, and with a file of rewards.
    fn saying(name: &str, table: AdapterTable, reward: Option<PathBuf>) -> NamedAdapter {
        NamedAdapter {
            name: name.to_string(),
            paths: Vec::new(),
            reward,
            method: Some(table.method),
            rank: table.rank,
            alpha: table.alpha,
            targets: table.targets,
            token_rows: table.token_rows,
            dropout: table.dropout,
            lr_ratio: table.lr_ratio,
            embedding_lr_ratio: table.embedding_lr_ratio,
            virtual_tokens: table.virtual_tokens,
            prompt_text: table.prompt_text,
            encoder_reparameterization_type: Some(table.encoder_reparameterization_type),
            prefix_projection: Some(table.prefix_projection),
            encoder_hidden_size: table.encoder_hidden_size,
        }
    }
}

impl Recipe {
    /// The adapters with the indices `trained`, for the recipe of the one at `index`: the others have all settings
    /// ([`Recipe::over_same_base`] reads them), and this one none, by which [`NamedAdapter::is_own`] recognises it.
    pub fn among(&self, index: usize, trained: &[usize]) -> Vec<NamedAdapter> {
        let saying = |at: &usize| match &self.adapters[*at] {
            _ if *at == index => NamedAdapter::default(),
            other => {
                NamedAdapter::saying(&other.name, other.over(&self.adapter), self.reward_of(other).cloned())
            }
        };
        trained.iter().map(saying).collect()
    }

    /// The file of rewards of one of the adapters.
    pub fn reward_of<'a>(&'a self, one: &'a NamedAdapter) -> Option<&'a PathBuf> {
        one.reward.as_ref().or(self.rl.reward.as_ref())
    }

    /// The recipes of the other adapters, as far as they concern their weights, their state, and everything else that
    /// they keep in memory.
    pub fn over_same_base(&self) -> impl Iterator<Item = Recipe> + '_ {
        let alone = |other: &NamedAdapter| {
            let adapter = other.over(&AdapterTable::default());
            let mut alone = Recipe { adapter, adapters: Vec::new(), ..self.clone() };
            alone.rl.reward.clone_from(&other.reward);
            alone
        };
        self.adapters.iter().filter(|one| !one.is_own()).map(alone)
    }
}
