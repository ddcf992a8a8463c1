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
    /// What computes the embeddings of virtual tokens.
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
    /// An adapter: trained alone, with a model of which nothing changes.
    pub struct AdapterTable {
        /// The method.
        pub method: AdapterName = AdapterName::None,
        /// For methods with low-rank terms columns between A and B, 16 where nothing is said; for `houlsby` the width of the networks, 32.
        pub rank: Option<usize> [Whole(1, COLUMNS)],
        /// Their weight is `alpha / rank`, with `rslora` `alpha / sqrt(rank)`. None: twice the rank, with `pissa` the rank.
        pub alpha: Option<f64> [Above0(NO_END)],
        /// Which projections: a list of ends of names, as `["q_proj", "v_proj"]`; a regular expression that whole names match;
        /// or `all-linear` for every projection of the blocks but those of experts. With low-rank terms also the embedding (`embed_tokens`),
        /// the head (`lm_head`), and experts: each by its name in files (`w1`), or all of a layer as they are stacked
        /// (`mlp.experts.gate_up_proj`, `mlp.experts.down_proj`). None: all-linear, with `ia3` k_proj, v_proj and down_proj. `houlsby` and
        /// methods with virtual tokens have none.
        pub targets: Option<Value>,
        /// Of methods with low-rank terms but `pissa`: tokens of which the rows of the embedding are trained too.
        pub token_rows: Vec<usize> [Whole(0, COLUMNS)],
        /// Of `lora`, `rslora` and `pissa`: the share of what low-rank terms read that each step drops.
        pub dropout: Option<f64> [Below1],
        /// LoRA+ (Hayou and others, 2024): how many times the learning rate of A that of B is; none for the same.
        pub lr_ratio: Option<f64> [Above0(NO_END)],
        /// LoRA+: how many times the learning rate that of the embedding's low-rank terms is; none for the same.
        pub embedding_lr_ratio: Option<f64> [Above0(NO_END)],
        /// Of `prompt`, `p_tuning` and `prefix`: virtual tokens before each document, which `seq_tokens` count. None: 20.
        pub virtual_tokens: Option<usize> [Whole(1, COLUMNS)],
        /// Of `prompt`: the virtual tokens begin as this text's, repeated or cut to as many. None: random.
        pub prompt_text: Option<String>,
        /// Of `p_tuning`: what computes the virtual tokens, as in PEFT.
        pub encoder_reparameterization_type: EncoderName = EncoderName::Mlp,
        /// Of `prefix`: a network of all layers computes the keys and values (PEFT's `prefix_projection`).
        pub prefix_projection: bool,
        /// Of `p_tuning`: hidden columns of the network, of an LSTM in each direction. None: the model's columns. Of `prefix` with
        /// `prefix_projection`: those of its MLP of two layers. None: the columns of the model's keys.
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
    /// One of several adapters of a run: over the base of all, on lessons of its own, with an optimizer of its own, as if it were trained
    /// alone. What it does not say is as in `adapter`.
    pub struct NamedAdapter {
        /// Its name, and that of its folder inside the run's `adapter`: letters, digits, `-` and `_`.
        pub name: String = String::new(),
        /// Its lessons, or with `rl.loss` its prompts, in place of `data.paths`: files, folders and addresses.
        pub paths: Vec<PathBuf>,
        /// What its answers are worth, in place of `rl.reward`.
        pub reward: Option<PathBuf>,
        /// As `adapter.method`, but `pissa`, which changes the base.
        pub method: Option<AdapterName>,
        /// As `adapter.rank`.
        pub rank: Option<usize> [Whole(1, COLUMNS)],
        /// As `adapter.alpha`.
        pub alpha: Option<f64> [Above0(NO_END)],
        /// As `adapter.targets`.
        pub targets: Option<Value>,
        /// As `adapter.token_rows`.
        pub token_rows: Vec<usize> [Whole(0, COLUMNS)],
        /// As `adapter.dropout`.
        pub dropout: Option<f64> [Below1],
        /// As `adapter.lr_ratio`.
        pub lr_ratio: Option<f64> [Above0(NO_END)],
        /// As `adapter.embedding_lr_ratio`.
        pub embedding_lr_ratio: Option<f64> [Above0(NO_END)],
        /// As `adapter.virtual_tokens`.
        pub virtual_tokens: Option<usize> [Whole(1, COLUMNS)],
        /// As `adapter.prompt_text`.
        pub prompt_text: Option<String>,
        /// As `adapter.encoder_reparameterization_type`.
        pub encoder_reparameterization_type: Option<EncoderName>,
        /// As `adapter.prefix_projection`.
        pub prefix_projection: Option<bool>,
        /// As `adapter.encoder_hidden_size`.
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
