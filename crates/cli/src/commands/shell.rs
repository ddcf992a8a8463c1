//! `fathom completions` and `fathom man`, from the flags' declarations.

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

/// Finds a built command by its words, which has its page's full name.
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

/// Writes all bytes; a closed reader is handled as for other output.
fn print(bytes: &[u8]) -> Result<()> {
    out!("{}", String::from_utf8_lossy(bytes));
    std::io::stdout().flush().context("cannot write to standard output")
}
