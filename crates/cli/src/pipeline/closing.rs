//! What a finished run prints: its figures, and what to do next.

use anyhow::Result;
use fathom_base::human;
use fathom_report::RunLog;

use super::Job;
use crate::commands;

/// Words of a prompt.
const WORDS: usize = 4;
/// Its most characters.
const MOST: usize = 60;

impl Job<'_> {
    /// Writes the page; prints the figures and what next.
    pub(super) fn report(&self) -> Result<()> {
        let page = self.page();
        let log = commands::report::write(&self.folder, &page)?;
        commands::report::print(&log);
        println!("\nfinished in {}. What next:", human::seconds(self.begun.elapsed().as_secs_f64()));
        let me = std::env::current_exe().map_or("fathom".to_string(), |path| path.display().to_string());
        let out = self.folder.display();
        println!("  read the report     {}", page.display());
        println!("  talk to the model   {me} generate {out}{} --temperature 0.7", prompt(&log));
        println!("  load it in Python   AutoModelForCausalLM.from_pretrained(\"{out}/model\")");
        if self.recipe.run.name.starts_with("quickstart") {
            println!("  train longer        {me} quickstart --minutes 60 --out out/longer");
        }
        println!("  plan something big  {me} plan llama3-8b-1m");
        Ok(())
    }
}

/// A prompt as an argument, with a space before it: words of the run's own held-out text. Without any the verb asks for one.
fn prompt(log: &RunLog) -> String {
    let lines = log.samples.iter().rev().flat_map(|sample| sample.prompt.lines());
    opening(lines).map_or(String::new(), |words| format!(" {}", quoted(&words)))
}

/// The first words of the first line that has enough of them.
fn opening<'a>(lines: impl Iterator<Item = &'a str>) -> Option<String> {
    let words = |line: &str| {
        // A line may begin with a piece of a character, which nobody can type.
        let line = line.replace('\u{fffd}', "");
        let words: Vec<&str> = line.split_whitespace().take(WORDS).collect();
        (words.len() >= 2).then(|| words.join(" "))
    };
    lines.filter_map(words).find(|text| text.chars().count() <= MOST && text.chars().any(char::is_alphabetic))
}

/// A text as a shell takes it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_words_of_the_text() {
        for (text, expected) in [
            ("the old river carries stone", Some("'the old river carries'")),
            ("}\n--- ---\nit's the\told light", Some("'it'\\''s the old light'")),
            ("\u{fffd}\u{fffd}une pierre", Some("'une pierre'")),
            ("word\n", None),
            (&format!("{} b", "a".repeat(80)), None),
        ] {
            assert_eq!(opening(text.lines()).map(|words| quoted(&words)).as_deref(), expected, "{text}");
        }
    }
}
