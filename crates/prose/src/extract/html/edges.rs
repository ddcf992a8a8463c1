//! Removes text before and after an article inside its container: title, date, addresses, introductions to other
//! articles.

use super::blocks::{Block, Blocks, Kind, is_sure};
use super::{endings, phrases};

/// Applies all rules to the blocks kept so far.
pub(super) fn drop_surroundings(all: &Blocks, keep: &mut [bool]) {
    drop_lead(all, keep);
    drop_related(all, keep);
    drop_loose_text(all, keep);
    drop_copy(all, keep);
    drop_contacts(all, keep);
}

/// Drops the text above the first paragraph: the title, which is not part of the article's text, and lines with a
/// date.
fn drop_lead(all: &Blocks, keep: &mut [bool]) {
    const LINE: u32 = 45;
    let is_text =
        |i: &usize| keep[*i] && is_sure(&all.blocks[*i]) && !phrases::dates_article(all.of(&all.blocks[*i]));
    let Some(first) = (0..keep.len()).find(is_text) else { return };
    for (block, keep) in all.blocks[..first].iter().zip(keep.iter_mut()) {
        *keep &= match block.kind {
            Kind::Heading(level) => level != 1,
            _ => !(has_date(all.of(block)) && (block.chars < LINE || phrases::dates_article(all.of(block)))),
        };
    }
}

/// Returns true if a line contains a year or a time of day.
fn has_date(line: &str) -> bool {
    let is_time = |word: &str| {
        let digits = |part: &str| (1..=2).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        word.split_once([':', '.']).is_some_and(|(hour, rest)| {
            digits(hour) && rest.len() >= 2 && rest.bytes().take(2).all(|b| b.is_ascii_digit())
        })
    };
    let is_year = |word: &str| word.len() == 4 && (word.starts_with("19") || word.starts_with("20"));
    let is_past = |line: &str| line.ends_with(" ago") && line.contains(|c: char| c.is_ascii_digit());
    is_past(line)
        || line.split(|c: char| !c.is_ascii_digit()).any(is_year)
        || line.split_whitespace().any(is_time)
}

/// Returns true if a line is just the address of a page.
pub(super) fn is_address(line: &str) -> bool {
    ["http://", "https://", "www."].iter().any(|start| line.starts_with(start))
        && !line.contains(char::is_whitespace)
}

/// Drops sections of other articles: from a line that announces them to the next heading of its level, or to the next
/// paragraph if the line is not a heading; unless that would remove much of the text.
fn drop_related(all: &Blocks, keep: &mut [bool]) {
    const SHARE: f32 = 0.3;
    // Too long sections are reconsidered from the next line; this limit keeps a page of only such sections linear.
    const MOST_REFUSED: usize = 16;
    let blocks = &all.blocks;
    let total: u32 = blocks.iter().zip(keep.iter()).filter(|(_, k)| **k).map(|(b, _)| b.chars).sum();
    let (mut start, mut refused) = (0, 0);
    while start < blocks.len() && refused < MOST_REFUSED {
        let Some(section) = section_of_others(all, start) else {
            start += 1;
            continue;
        };
        let kept = section.clone().skip(1).filter(|&i| keep[i]);
        let chars: u32 = kept.map(|i| blocks[i].chars).sum();
        if (chars as f32) < SHARE * total as f32 {
            start = section.end;
            keep[section].fill(false);
        } else {
            (start, refused) = (start + 1, refused + 1);
        }
    }
}

/// Blocks of a section of other articles that begins at `start`.
fn section_of_others(all: &Blocks, start: usize) -> Option<std::ops::Range<usize>> {
    let first = &all.blocks[start];
    let text = all.of(first);
    let level = match first.kind {
        Kind::Heading(level) => Some(level),
        Kind::Paragraph | Kind::Bare if text.ends_with(':') || first.chars < 30 => None,
        _ => return None,
    };
    if !phrases::announces_others(text) {
        return None;
    }
    let ends = |block: &Block| match (block.kind, level) {
        (Kind::Heading(next), Some(level)) => next <= level,
        (Kind::Heading(_), None) => true,
        (Kind::Paragraph | Kind::Quote | Kind::Pre, None) => block.chars > 80 && block.link_density() < 0.5,
        _ => false,
    };
    let behind = &all.blocks[start + 1..];
    Some(start..start + 1 + behind.iter().position(ends).unwrap_or(behind.len()))
}

/// If most of a page's text is in paragraphs, drops text directly in boxes: captions, buttons, notes.
fn drop_loose_text(all: &Blocks, keep: &mut [bool]) {
    const PROSE: u32 = 600;
    const SHARE: f32 = 0.8;
    let (mut prose, mut total) = (0, 0);
    for (block, _) in all.blocks.iter().zip(keep.iter()).filter(|(_, k)| **k) {
        total += block.chars;
        if matches!(block.kind, Kind::Paragraph | Kind::Quote | Kind::Pre) {
            prose += block.chars;
        }
    }
    if prose >= PROSE && prose as f32 >= SHARE * total as f32 {
        for (block, keep) in all.blocks.iter().zip(keep) {
            *keep &= block.kind != Kind::Bare;
        }
    }
}

/// Drops the longest block if it repeats the text of the others, as included for programs that read the page.
fn drop_copy(all: &Blocks, keep: &mut [bool]) {
    const COMPARED: usize = 12;
    const FEWEST: usize = 4;
    let sure = |i: &usize| keep[*i] && is_sure(&all.blocks[*i]);
    let Some(longest) = (0..keep.len()).filter(sure).max_by_key(|&i| all.blocks[i].chars) else { return };
    let squeezed = |i: usize| all.of(&all.blocks[i]).split_whitespace().collect::<String>();
    let whole = squeezed(longest);
    let others: Vec<usize> = (0..keep.len()).filter(sure).filter(|&i| i != longest).take(COMPARED).collect();
    let found = others.iter().filter(|&&i| whole.contains(&squeezed(i))).count();
    if others.len() >= FEWEST && found * 2 > others.len() {
        keep[longest] = false;
    }
}

/// Drops paragraphs at the end with contact details, accounts to follow, authors and first publication.
fn drop_contacts(all: &Blocks, keep: &mut [bool]) {
    const LAST: usize = 3;
    const ENDINGS: usize = 5;
    // Shorter texts may consist of nothing else.
    const FEWEST: usize = 6;
    let kept: Vec<usize> = (0..keep.len()).filter(|&i| keep[i]).collect();
    if kept.len() < FEWEST {
        return;
    }
    for &i in &kept[kept.len() - LAST..] {
        keep[i] = !phrases::is_contact(all.of(&all.blocks[i]), all.blocks[i].chars);
    }
    for &i in &kept[kept.len() - ENDINGS..] {
        keep[i] &= !endings::is_ending(all.of(&all.blocks[i]));
    }
}
