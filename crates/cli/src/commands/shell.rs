//! `fathom completions` and `fathom man`, from the declaration of the flags.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Args;

/// Prints the completions of a shell.
pub fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "fathom", &mut script);
    print(&script)
}

/// Prints the manual page of a verb, by its words, or writes all pages to a folder.
pub fn man(words: &[String], out: Option<&Path>) -> Result<()> {
    let mut command = Args::command();
    command.build();
    if let Some(folder) = out {
        std::fs::create_dir_all(folder)
            .and_then(|()| clap_mangen::generate_to(command, folder))
            .with_context(|| format!("cannot write {}", folder.display()))?;
        outln!("{}", folder.display());
        return Ok(());
    }
    let mut page = Vec::new();
    Man::new(find(command, words)?).render(&mut page)?;
    print(&page)
}

/// The command of some words; it is built, so it knows the whole name of its page.
fn find(command: Command, words: &[String]) -> Result<Command> {
    let mut found = &command;
    let mut name = vec!["fathom"];
    for word in words {
        let Some(next) = found.find_subcommand(word) else {
            bail!(
                "no page `{} {word}`; `fathom help {}` lists what there is",
                name.join("-"),
                name[1..].join(" ")
            );
        };
        found = next;
        name.push(next.get_name());
    }
    Ok(found.clone())
}

/// Writes all of it; println's own handling of a reader that left holds here too.
fn print(bytes: &[u8]) -> Result<()> {
    out!("{}", String::from_utf8_lossy(bytes));
    std::io::stdout().flush().context("cannot write to standard output")
}
