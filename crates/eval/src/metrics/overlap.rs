//! Words that an answer shares with a reference, after the normalisations of SQuAD (English) and of LongBench (Chinese).

use jieba_rs::Jieba;

use super::{counted, shared};
use crate::python::pattern;

/// Punctuation of Chinese text that LongBench removes, with that of ASCII.
const CHINESE: &str = "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏.";

/// A text in lower case without ASCII punctuation, articles and repeated white space.
///
/// # Errors
/// The search for articles does not end.
pub fn plain(text: &str) -> Result<String, String> {
    let mut text = text.to_lowercase();
    text.retain(|c| !c.is_ascii_punctuation());
    let text = pattern::replace(&text, r"\b(a|an|the)\b", " ")?;
    Ok(crate::python::words(&text).collect::<Vec<_>>().join(" "))
}

/// F1 of words after [`plain`].
///
/// # Errors
/// Those of [`plain`].
pub fn f1(answer: &str, gold: &str) -> Result<f64, String> {
    let [answer, gold] = [plain(answer)?, plain(gold)?];
    let [answer, gold] = [&answer, &gold].map(|text| crate::python::words(text).collect::<Vec<_>>());
    Ok(of_words(&answer, &gold))
}

/// F1 of the words that jieba finds in Chinese text, without punctuation.
pub fn chinese_f1(answer: &str, gold: &str, jieba: &Jieba) -> f64 {
    let words = |text: &str| -> Vec<String> {
        let plain = |word: &str| -> String {
            let lower = word.to_lowercase();
            let is_kept =
                |c: &char| !c.is_ascii_punctuation() && !CHINESE.contains(*c) && !crate::python::is_space(*c);
            lower.chars().filter(is_kept).collect()
        };
        cut(text, jieba).map(|word| plain(&word)).filter(|word| !word.is_empty()).collect()
    };
    of_words(&words(answer), &words(gold))
}

/// Words of a text by jieba.
pub fn cut<'t>(text: &'t str, jieba: &Jieba) -> impl Iterator<Item = String> + use<'t> {
    let words: Vec<String> = jieba.cut(text, true).into_iter().map(|it| it.word.to_string()).collect();
    words.into_iter()
}

fn of_words<T: std::hash::Hash + Eq>(answer: &[T], gold: &[T]) -> f64 {
    let same = shared(&counted(answer.iter()), &counted(gold.iter())) as f64;
    if same == 0.0 {
        return 0.0;
    }
    let (precision, recall) = (same / answer.len() as f64, same / gold.len() as f64);
    2.0 * precision * recall / (precision + recall)
}
