//! `vt`: a chain of assignments of variables among noise, after an example of its own.

use super::haystack::{HaystackParts, Sample, Size, thrice};
use super::needles::{NOISE, SHORT_TOKENS};
use crate::error::Result;
use crate::python::random::Random;
use crate::python::{strip, words};

/// Assignments after the first.
const HOPS: usize = 4;
/// Length of the example.
const EXAMPLE_TOKENS: usize = 500;
/// Value of the example before it is replaced.
const VALUE: &str = "12345";

/// A number as NumPy's `randint(10000, 99999)` draws it: masked bits, drawn again above the bound.
fn number(random: &mut Random) -> String {
    const SPAN: u32 = 99_999 - 10_000 - 1;
    loop {
        let drawn = random.next_u32() & (SPAN.next_power_of_two() - 1);
        if drawn <= SPAN {
            return (10_000 + drawn).to_string();
        }
    }
}

/// A prompt, and the variables of its chain.
fn draw(
    drawing: &mut HaystackParts<'_>,
    mut numpy: Option<&mut Random>,
    size: usize,
) -> Result<(String, Vec<String>)> {
    let letters = if numpy.is_some() { 5 } else { 3 };
    let mut names: Vec<String> = (0..=HOPS).map(|_| drawing.letters(b'A', letters)).collect();
    let distinct = |names: &[String]| names.iter().collect::<std::collections::BTreeSet<_>>().len();
    while distinct(&names) <= HOPS {
        names.push(drawing.letters(b'A', letters));
    }
    let mut number = || numpy.as_deref_mut().map_or_else(|| VALUE.to_string(), number);
    let value = number();
    // A variable too many begins a second chain, for which there are too few.
    if names.len() > HOPS + 1 {
        number();
        return Err(drawing.wrong("drew a variable twice"));
    }
    let mut chain = vec![format!("VAR {} = {value}", names[0])];
    chain.extend(names.windows(2).map(|two| format!("VAR {} = VAR {} ", two[1], two[0])));
    let mut lines: Vec<&str> = vec![NOISE; size];
    let places = drawing.random.sample(size, chain.len());
    let mut places = places.ok_or_else(|| drawing.wrong("has less noise than assignments"))?;
    places.sort_unstable();
    for (at, (place, line)) in places.into_iter().zip(&chain).enumerate() {
        lines.insert(place + at, line);
    }
    let context = lines.join("\n").replace(". \n", ".\n");
    let text = format!(
        "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\nQuestion: Find all variables \
         that are assigned the value {value} in the text above. Answer: According to the chain(s) of variable assignment in the text \
         above, {} variables are assigned the value {value}, they are: ",
        HOPS + 1
    );
    Ok((text, names))
}

/// The example with other names and another value.
fn renamed(drawing: &mut HaystackParts<'_>, numpy: &mut Random, example: &str) -> String {
    let names: Vec<&str> = words(strip(example)).collect();
    let mut text = example.to_string();
    for name in &names[names.len() - HOPS - 1..] {
        let other = drawing.letters(b'A', name.chars().count());
        text = text.replace(name, &other);
    }
    text.replace(VALUE, &number(numpy))
}

/// The samples of the task.
///
/// # Errors
/// The length is too short.
pub fn samples(drawing: &mut HaystackParts<'_>, count: usize) -> Result<Vec<Sample>> {
    let mut numpy = Random::numpy(drawing.seed as u32);
    let (tokens, most) = (drawing.tokens, drawing.most);
    let answer_tokens = std::mem::take(&mut drawing.answer_tokens);
    drawing.most = EXAMPLE_TOKENS.saturating_sub(tokens - most);
    let size = Size { step: 5, probe: 5, bound: thrice, extra: 0 };
    let mut of_example = |drawing: &mut HaystackParts<'_>, size| draw(drawing, None, size);
    let lines = drawing.largest(&size, &mut of_example)?;
    let example = drawing.sample(&size, lines, &mut of_example)?;
    let example = format!("{} {}\n", example.text, example.answers.join(" "));
    (drawing.most, drawing.answer_tokens) = (most, answer_tokens);
    let step = if tokens < SHORT_TOKENS { 5 } else { 10 };
    let extra = drawing.count(&example)? + answer_tokens;
    let size = Size { step, probe: step, bound: thrice, extra };
    let lines = drawing.largest(&size, &mut |drawing, size| draw(drawing, Some(&mut numpy), size))?;
    let mut whole = |drawing: &mut HaystackParts<'_>, size| {
        let (text, names) = draw(drawing, Some(&mut numpy), size)?;
        Ok((format!("{}\n{text}", renamed(drawing, &mut numpy, &example)), names))
    };
    (0..count).map(|_| drawing.sample(&size, lines, &mut whole)).collect()
}
