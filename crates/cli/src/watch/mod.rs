//! The full-screen view of a run: losses, rates, memory along a step, ranks. It draws what the log has; the terminal is
//! the business of `commands/watch.rs`.

mod memory;

use fathom_base::{human, tokens};
use fathom_report::runs::{Along, Curve, Facts, Run, State};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Bar, BarChart, BarGroup, Block, Chart, Dataset, Gauge, GraphType, Paragraph};

use memory::QUIET;

/// Points of a curve.
const POINTS: usize = 400;
/// Most ranks that are drawn.
const RANKS: usize = 64;

const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);

/// Settings that keys change.
#[derive(Clone, Copy, Debug, Default)]
pub struct View {
    /// Quantity along which curves run.
    pub along: Along,
    /// Draws the second half of the steps alone.
    pub late: bool,
}

impl View {
    /// Takes the next quantity along which curves run.
    pub fn turn(&mut self) {
        self.along = match self.along {
            Along::Step => Along::Tokens,
            Along::Tokens => Along::Time,
            Along::Time => Along::Step,
        };
    }
}

/// Draws a run.
pub fn draw(frame: &mut Frame, name: &str, run: &Run, view: View) {
    let [head, gauge, body, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(6),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(heading(name, run)), head);
    progress(frame, gauge, run);
    if body.width >= 90 {
        let [left, right] = Layout::horizontal([Constraint::Percentage(60), Constraint::Min(30)]).areas(body);
        let [loss, rate] = Layout::vertical([Constraint::Percentage(62), Constraint::Min(5)]).areas(left);
        curve(frame, loss, run, ("loss", Color::Cyan), view);
        curve(frame, rate, run, ("tokens per second", Color::Green), view);
        side(frame, right, run);
    } else {
        let [loss, lower] = Layout::vertical([Constraint::Percentage(50), Constraint::Min(5)]).areas(body);
        curve(frame, loss, run, ("loss", Color::Cyan), view);
        side(frame, lower, run);
    }
    let keys = "q quits   x steps, tokens or time   l the second half alone";
    frame.render_widget(Paragraph::new(Line::styled(keys, QUIET)), foot);
}

fn heading(name: &str, run: &Run) -> Vec<Line<'static>> {
    let facts = &run.facts;
    let (word, colour) = match run.state() {
        State::Running => ("running", Color::Green),
        State::Finished => ("finished", Color::Blue),
        State::Stopped => ("stopped", Color::Red),
    };
    let stage = facts.stages.values().next_back();
    let stage = stage.map(|stage| format!("{} · {}", stage.name, tokens::format(stage.seq_len_tokens)));
    let mut first = vec![Span::styled(name.to_string(), STRONG), Span::raw("  "), Span::styled(word, colour)];
    first.extend(stage.map(|stage| Span::styled(format!("  {stage}"), QUIET)));
    let mut parts = Vec::new();
    if facts.params > 0 {
        parts.push(format!("{}, {} parameters", facts.family, human::count(facts.params)));
    }
    if let Some(last) = &facts.last {
        parts.push(format!("{} tokens", human::count(last.tokens_total)));
        parts.extend(last.loss.map(|loss| format!("loss {loss:.4}")));
        parts.extend(last.tokens_per_s.map(|rate| format!("{} tokens/s", human::si(rate).trim_end())));
        parts.extend(last.model_tflops.map(|rate| format!("{} TFLOP/s", human::number(rate))));
        parts.push(format!("peak {}", human::bytes(facts.peak_bytes)));
    }
    let noted =
        [(facts.checkpoints, "checkpoint"), (facts.resumes, "resume"), (facts.recoveries, "recovery")];
    for (count, what) in noted.into_iter().filter(|(count, _)| *count > 0) {
        let many = if what == "recovery" && count > 1 {
            format!("{count} recoveries")
        } else {
            human::counted(count, what)
        };
        parts.push(many);
    }
    if parts.is_empty() {
        parts.push("the log has no step yet".into());
    }
    vec![Line::from(first), Line::styled(parts.join(" · "), QUIET)]
}

/// Steps done of those that are planned, and the time that the others need.
fn progress(frame: &mut Frame, area: Rect, run: &Run) {
    let Facts { last: Some(last), planned_steps, finished, .. } = &run.facts else { return };
    let (done, all) = (last.step, *planned_steps);
    let spent = human::seconds(last.time_s.unwrap_or(f64::NAN));
    if all == 0 {
        frame.render_widget(Paragraph::new(format!("step {}, {spent}", human::grouped(done))), area);
        return;
    }
    let left = all.saturating_sub(done) as f64 * last.step_s.unwrap_or(f64::NAN);
    let left = if *finished {
        String::new()
    } else {
        format!(", about {} left in this stage", human::seconds(left))
    };
    let label = format!("step {} of {}, {spent}{left}", human::grouped(done), human::grouped(all));
    let share = (done as f64 / all as f64).clamp(0.0, 1.0);
    let style = Style::new().fg(Color::Cyan).bg(Color::Black);
    frame.render_widget(Gauge::default().ratio(share).label(label).gauge_style(style), area);
}

fn curve(frame: &mut Frame, area: Rect, run: &Run, (metric, colour): (&str, Color), view: View) {
    let Curve { mut x, mean, .. } = run.series.curve(metric, view.along, POINTS);
    let mut points: Vec<(f64, f64)> = x.drain(..).zip(mean).map(|(x, y)| (x, f64::from(y))).collect();
    if view.late {
        points.drain(..points.len() / 2);
    }
    let bounds = |values: &mut dyn Iterator<Item = f64>| {
        values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], x| [low.min(x), high.max(x)])
    };
    let title = match points.last() {
        Some((_, y)) => format!(" {metric} {} ", human::number(*y)),
        None => format!(" {metric} "),
    };
    let block = Block::bordered().title(title).border_style(QUIET);
    let [left, right] = bounds(&mut points.iter().map(|point| point.0));
    let [low, high] = bounds(&mut points.iter().map(|point| point.1));
    if points.is_empty() {
        frame.render_widget(block, area);
        return;
    }
    let room = ((high - low) * 0.05).max(high.abs() * 1e-6).max(1e-9);
    let show = |x: f64| match view.along {
        Along::Time => human::seconds(x),
        Along::Step | Along::Tokens => human::count(x.max(0.0) as u64),
    };
    let data =
        Dataset::default().marker(Marker::Braille).graph_type(GraphType::Line).style(colour).data(&points);
    let across = Axis::default().style(QUIET).bounds([left, right.max(left + 1e-9)]).labels([
        show(left),
        show((left + right) / 2.0),
        show(right),
    ]);
    let upwards = Axis::default().style(QUIET).bounds([low - room, high + room]).labels([
        human::number(low),
        human::number((low + high) / 2.0),
        human::number(high),
    ]);
    frame.render_widget(Chart::new(vec![data]).block(block).x_axis(across).y_axis(upwards), area);
}

fn side(frame: &mut Frame, area: Rect, run: &Run) {
    let ranks = run.facts.ranks.as_ref().filter(|ranks| ranks.busy_s.len() > 1);
    let rows = ranks.map_or(0, |ranks| (ranks.busy_s.len().min(RANKS) as u16 + 2).min(area.height / 2));
    let [map, below] = Layout::vertical([Constraint::Min(4), Constraint::Length(rows)]).areas(area);
    memory::draw(frame, map, &run.facts);
    if let Some(ranks) = ranks {
        let slowest = ranks.busy_s.iter().copied().fold(0.0, f64::max);
        let bar = |(rank, seconds): (usize, &f64)| {
            let slow = *seconds > 0.0
                && *seconds >= slowest * 0.999
                && ranks.relative.get(rank).is_some_and(|x| *x < 0.9);
            Bar::default()
                .label(Line::raw(format!("rank {rank}")))
                .value((seconds / slowest.max(1e-12) * 1000.0).max(0.0) as u64)
                .text_value(human::seconds(*seconds))
                .style(if slow { Color::Red } else { Color::Blue })
        };
        let bars: Vec<Bar> = ranks.busy_s.iter().enumerate().take(RANKS).map(bar).collect();
        let chart = BarChart::default()
            .direction(ratatui::layout::Direction::Horizontal)
            .bar_width(1)
            .bar_gap(0)
            .max(1000)
            .data(BarGroup::default().bars(&bars))
            .block(Block::bordered().title(" own time of each rank ").border_style(QUIET));
        frame.render_widget(chart, below);
    }
}

#[cfg(test)]
mod tests;
