//! The stages available to recipes: thin wrappers around this crate's operations on texts and tables.

mod classify;
mod corpus;
mod dedup;
mod extract;
mod filters;
mod function;
mod kind;
mod model;
mod model_client;
mod option_names;
mod order;
mod perplexity;
mod rows;
mod semantic;
mod text;
mod tokenize;
mod write;

pub use kind::Kind;

/// Every kind, in the order of a typical recipe.
pub(crate) fn kinds() -> &'static [Kind] {
    const KINDS: &[Kind] = &[
        Kind::of::<extract::Extract>(),
        Kind::of::<text::Clean>(),
        Kind::of::<text::Languages>(),
        Kind::of::<rows::Length>(),
        Kind::of::<filters::Heuristics>(),
        Kind::of::<filters::C4Pages>(),
        Kind::of::<filters::Characters>(),
        Kind::of::<filters::Code>(),
        Kind::of::<filters::Tokens>(),
        Kind::of::<text::Quality>(),
        Kind::of::<classify::Classify>(),
        Kind::of::<perplexity::Perplexity>(),
        Kind::of::<text::Personal>(),
        Kind::of::<function::Function>(),
        Kind::of::<rows::Head>(),
        Kind::of::<dedup::Exact>(),
        Kind::of::<dedup::Fuzzy>(),
        Kind::of::<dedup::Bloom>(),
        Kind::of::<dedup::Substrings>(),
        Kind::of::<semantic::Semantic>(),
        Kind::of::<corpus::Decontaminate>(),
        Kind::of::<corpus::BlendSources>(),
        Kind::of::<order::Shuffle>(),
        Kind::of::<corpus::SplitRows>(),
        Kind::of::<write::WriteFiles>(),
        Kind::of::<tokenize::Tokenize>(),
    ];
    KINDS
}
