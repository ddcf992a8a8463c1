//! The memory map: live bytes along one step, stacked by category.

use fathom_base::human;
use fathom_base::metrics::events::MemoryTimeline;
use fathom_report::runs::Facts;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph};

/// Frames, and text that is not looked at first.
pub const QUIET: Style = Style::new().fg(Color::DarkGray);
/// Colours of categories, in the order of a timeline.
const COLOURS: [Color; 10] = [
    Color::Blue,
    Color::LightBlue,
    Color::Yellow,
    Color::Green,
    Color::Red,
    Color::Magenta,
    Color::LightMagenta,
    Color::LightYellow,
    Color::Gray,
    Color::DarkGray,
];

/// Draws the map, or says that the log has none.
pub fn draw(frame: &mut Frame, area: Rect, facts: &Facts) {
    let Some(timeline) = facts.timeline.as_ref().filter(|timeline| !timeline.live_bytes.is_empty()) else {
        let block = Block::bordered().title(" memory along a step ").border_style(QUIET);
        let said = if facts.planned_peak_bytes > 0 {
            format!(
                "planned peak {}; a stage is measured in its third step",
                human::bytes(facts.planned_peak_bytes)
            )
        } else {
            "not measured yet".into()
        };
        frame.render_widget(Paragraph::new(Line::styled(said, QUIET)).block(block), area);
        return;
    };
    let columns = columns(timeline);
    let peak = columns.iter().map(|column| column.iter().sum()).max().unwrap_or(0u64);
    let title = format!(" memory along a step of {}: peak {} ", timeline.stage, human::bytes(peak));
    let block = Block::bordered().title(title).border_style(QUIET);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let shown: Vec<usize> = (0..timeline.categories.len())
        .filter(|at| columns.iter().any(|column| column.get(*at) > Some(&0)))
        .collect();
    let [map, legend] = Layout::vertical([
        Constraint::Min(2),
        Constraint::Length((shown.len() as u16).min(inner.height / 2)),
    ])
    .areas(inner);
    stack(frame, map, &columns, peak);
    let at_peak = columns.iter().max_by_key(|column| column.iter().sum::<u64>());
    let line = |at: &usize| {
        let bytes = at_peak.and_then(|column| column.get(*at)).copied().unwrap_or(0);
        Line::from(vec![
            Span::styled("█ ", COLOURS[at % COLOURS.len()]),
            Span::raw(format!("{:<12}", timeline.categories[*at])),
            Span::styled(format!("{:>11} at the peak", human::bytes(bytes)), QUIET),
        ])
    };
    frame.render_widget(Paragraph::new(shown.iter().map(line).collect::<Vec<_>>()), legend);
}

/// Bytes by category at each point. A timeline has a list of points for each category.
fn columns(timeline: &MemoryTimeline) -> Vec<Vec<u64>> {
    let points = timeline.live_bytes.iter().map(Vec::len).max().unwrap_or(0);
    let at =
        |point: usize| timeline.live_bytes.iter().map(|of| of.get(point).copied().unwrap_or(0)).collect();
    (0..points).map(at).collect()
}

/// Draws one column of cells for each stretch of points, at the stretch's peak.
fn stack(frame: &mut Frame, area: Rect, columns: &[Vec<u64>], peak: u64) {
    if peak == 0 || columns.is_empty() {
        return;
    }
    let (width, height) = (usize::from(area.width), f64::from(area.height));
    for x in 0..area.width {
        let from = usize::from(x) * columns.len() / width.max(1);
        let to = ((usize::from(x) + 1) * columns.len() / width.max(1)).max(from + 1).min(columns.len());
        let column =
            columns[from.min(columns.len() - 1)..to].iter().max_by_key(|column| column.iter().sum::<u64>());
        let mut below = 0u64;
        for (category, bytes) in column.into_iter().flatten().enumerate() {
            let row = |bytes: u64| (bytes as f64 / peak as f64 * height).round() as u16;
            let (low, high) = (row(below), row(below + bytes).min(area.height));
            below += bytes;
            for y in low..high {
                let cell = frame.buffer_mut().cell_mut((area.x + x, area.bottom() - 1 - y));
                if let Some(cell) = cell {
                    cell.set_symbol("█").set_style(Style::new().fg(COLOURS[category % COLOURS.len()]));
                }
            }
        }
    }
}
