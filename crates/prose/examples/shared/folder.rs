//! Readers for published sets of labelled pages.

use std::error::Error;
use std::io::Read;
use std::path::Path;

use fathom_prose::extract::charset;
use fathom_prose::extract::labelled::LabelledPage;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A page with segments that should and should not be found, or with the complete expected text.
#[derive(Serialize, Deserialize)]
pub struct Page {
    #[serde(flatten)]
    pub labels: LabelledPage,
    /// Complete expected text; empty if there are segments.
    #[serde(default)]
    pub body: String,
}

/// Pages of a folder, restricted to one half.
///
/// # Errors
/// A file is missing or does not contain labels.
pub fn read(folder: &Path, half: &str) -> Result<Vec<Page>, Box<dyn Error>> {
    if !matches!(half, "even" | "odd" | "all") {
        return Err(format!("no half of a set: {half}").into());
    }
    let articles = folder.join("ground-truth.json");
    let segments = folder.join("tests/evaldata.json");
    let is_articles = articles.exists();
    let labels: Value =
        serde_json::from_slice(&std::fs::read(if is_articles { articles } else { segments })?)?;
    let mut pages = Vec::new();
    for (name, label) in labels.as_object().ok_or("the labels are no object")? {
        let chosen =
            if blake3::hash(name.as_bytes()).as_bytes()[0].is_multiple_of(2) { "even" } else { "odd" };
        if half != "all" && half != chosen {
            continue;
        }
        pages.push(if is_articles { article(folder, name, label)? } else { segmented(folder, label)? });
    }
    Ok(pages)
}

fn article(folder: &Path, name: &str, label: &Value) -> Result<Page, Box<dyn Error>> {
    let packed = std::fs::File::open(folder.join("html").join(format!("{name}.html.gz")))?;
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes)?;
    let labels = LabelledPage { html: decoded(&bytes)?, with: Vec::new(), without: Vec::new() };
    let body = label["articleBody"].as_str().unwrap_or_default().to_string();
    Ok(Page { labels, body })
}

fn segmented(folder: &Path, label: &Value) -> Result<Page, Box<dyn Error>> {
    let file = label["file"].as_str().ok_or("a label names no file")?;
    let places = ["tests/cache", "tests/eval"].map(|place| folder.join(place).join(file));
    let path = places.iter().find(|path| path.exists()).ok_or_else(|| format!("{file}: not there"))?;
    let list = |key: &str| -> Vec<String> {
        let found = label[key].as_array().into_iter().flatten();
        found.filter_map(|segment| segment.as_str().map(str::to_string)).collect()
    };
    let labels =
        LabelledPage { html: decoded(&std::fs::read(path)?)?, with: list("with"), without: list("without") };
    Ok(Page { labels, body: String::new() })
}

fn decoded(bytes: &[u8]) -> Result<String, Box<dyn Error>> {
    let (page, _) = charset::decode(bytes, None).map_err(|refusal| refusal.to_string())?;
    Ok(page)
}
