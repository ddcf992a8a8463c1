//! The rule by which an objective makes its inputs of texts.

use std::sync::Arc;

use fathom_text::Tokenizer;
use fathom_text::store::Store;

use crate::encoder::MaskingRule;
use crate::error::Result;
use crate::recipe::{MethodName, Recipe};
use crate::retrieval::RetrievalRule;
use crate::seq2seq::PairingRule;
use crate::source::Rule;

/// The rule of a recipe; `None` if it predicts the next token of a text as it is.
///
/// # Errors
/// A tokenizer without the tokens that the rule puts into a text; text without its neighbours.
pub(crate) fn rule(
    recipe: &Recipe,
    tokenizer: &Tokenizer,
    corpus: Option<&Arc<Store>>,
) -> Result<Option<Arc<dyn Rule>>> {
    Ok(match (recipe.objective.method, recipe.objective.seq2seq()) {
        (MethodName::Retro, _) => match corpus {
            Some(corpus) => Some(Arc::new(RetrievalRule::new(recipe, corpus, tokenizer)?)),
            None => None,
        },
        (MethodName::Mlm, _) => Some(Arc::new(MaskingRule::new(recipe, tokenizer)?)),
        (_, Some(objective)) => Some(Arc::new(PairingRule::new(recipe, objective, tokenizer)?)),
        _ => None,
    })
}
