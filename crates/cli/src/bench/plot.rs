//! Plots as SVG text that stands alone: no scripts, no fonts, nothing fetched.

use std::fmt::Write;

/// Bars of one test, side by side.
#[derive(Debug)]
pub struct Group {
    /// The test.
    pub name: String,
    /// Its bars, from above.
    pub bars: Vec<Bar>,
}

/// One bar.
#[derive(Debug)]
pub struct Bar {
    /// Whose it is; the same name has the same colour everywhere.
    pub series: String,
    /// Length in units of the axis.
    pub value: f64,
    /// Written behind the bar.
    pub label: String,
}

const COLOURS: [&str; 6] = ["#2563a8", "#d97b29", "#4a9a5b", "#b0465a", "#7d5ba6", "#6b7280"];
const WIDTH: f64 = 760.0;
/// Room for names on the left, and for labels on the right.
const LEFT: f64 = 110.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 48.0;
const BAR: f64 = 18.0;
/// Height of a row of spans.
const ROW: f64 = 14.0;

/// Horizontal bars by group on one axis. `unit` stands at its ticks; `mark` is a line that stands
/// out.
pub fn bars(title: &str, unit: &str, mark: Option<f64>, groups: &[Group]) -> String {
    let all = || groups.iter().flat_map(|g| &g.bars);
    let values = all().map(|b| b.value).filter(|v| v.is_finite());
    let (top, step) = scale(values.fold(mark.unwrap_or(0.0), f64::max));
    let mut series: Vec<&str> = Vec::new();
    for bar in all() {
        if !series.contains(&&*bar.series) {
            series.push(&bar.series);
        }
    }
    let rows: f64 = groups.iter().map(|g| g.bars.len() as f64 * BAR + 10.0).sum();
    let mut svg = Svg::new(WIDTH, TOP + rows + 34.0);
    svg.text(LEFT, 16.0, Anchor::Start, "t", title);
    svg.legend(&series);
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * value / top;
    let bottom = TOP + rows;
    for i in 0..=(top / step).round() as usize {
        let at = i as f64 * step;
        svg.line(x(at), TOP, x(at), bottom, "grid");
        svg.text(x(at), bottom + 16.0, Anchor::Middle, "s", &format!("{}{unit}", tick(at)));
    }
    if let Some(mark) = mark {
        svg.line(x(mark), TOP, x(mark), bottom, "limit");
    }
    let mut y = TOP + 5.0;
    for group in groups {
        let middle = y + group.bars.len() as f64 * BAR / 2.0 + 4.0;
        svg.text(LEFT - 8.0, middle, Anchor::End, "n", &group.name);
        for bar in &group.bars {
            let length = if bar.value.is_finite() { bar.value.max(0.0) } else { 0.0 };
            let colour = series.iter().position(|s| *s == bar.series).unwrap_or(0);
            svg.rect(LEFT, y, x(length) - LEFT, BAR - 3.0, colour);
            svg.text(x(length) + 5.0, y + BAR - 6.0, Anchor::Start, "s", &bar.label);
            y += BAR;
        }
        y += 10.0;
    }
    svg.finish()
}

/// A line through points.
#[derive(Debug)]
pub struct Curve {
    /// Whose it is.
    pub name: String,
    /// In order of x.
    pub points: Vec<(f64, f64)>,
}

/// Curves over one pair of axes, both from zero.
pub fn curves(title: &str, x_label: &str, y_label: &str, curves: &[Curve]) -> String {
    const HEIGHT: f64 = 280.0;
    let (right, bottom) = (WIDTH - 20.0, HEIGHT - 42.0);
    let all = || curves.iter().flat_map(|c| &c.points);
    let (x_top, x_step) = scale(all().map(|p| p.0).fold(0.0, f64::max));
    let (y_top, y_step) = scale(all().map(|p| p.1).fold(0.0, f64::max));
    let x = |value: f64| LEFT + (right - LEFT) * value / x_top;
    let y = |value: f64| bottom - (bottom - TOP) * value / y_top;
    let mut svg = Svg::new(WIDTH, HEIGHT);
    svg.text(LEFT, 16.0, Anchor::Start, "t", title);
    svg.legend(&curves.iter().map(|c| c.name.as_str()).collect::<Vec<_>>());
    for i in 0..=(x_top / x_step).round() as usize {
        let at = i as f64 * x_step;
        svg.line(x(at), TOP, x(at), bottom, "grid");
        svg.text(x(at), bottom + 16.0, Anchor::Middle, "s", &tick(at));
    }
    for i in 0..=(y_top / y_step).round() as usize {
        let at = i as f64 * y_step;
        svg.line(LEFT, y(at), right, y(at), "grid");
        svg.text(LEFT - 8.0, y(at) + 4.0, Anchor::End, "s", &tick(at));
    }
    svg.text((LEFT + right) / 2.0, HEIGHT - 8.0, Anchor::Middle, "s", x_label);
    svg.text(LEFT - 8.0, TOP - 10.0, Anchor::End, "s", y_label);
    for (colour, curve) in curves.iter().enumerate() {
        let points: Vec<(f64, f64)> = curve.points.iter().map(|p| (x(p.0), y(p.1))).collect();
        svg.polyline(&points, colour);
    }
    svg.finish()
}

/// A piece of a row: from when to when, and what.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// From 0, from above.
    pub row: usize,
    /// Its colour, by its place among the names.
    pub series: usize,
    /// On the axis.
    pub from: f64,
    /// On the axis.
    pub to: f64,
}

/// Rows of spans over one axis from zero. Where spans of a row overlap, later ones are thinner.
pub fn rows(title: &str, rows: usize, names: &[&str], spans: &[Span]) -> String {
    let (top, step) = scale(spans.iter().map(|s| s.to).fold(0.0, f64::max));
    let bottom = TOP + rows as f64 * ROW;
    let right = WIDTH - 20.0;
    let mut svg = Svg::new(WIDTH, bottom + 34.0);
    svg.text(LEFT, 16.0, Anchor::Start, "t", title);
    svg.legend(names);
    let x = |value: f64| LEFT + (right - LEFT) * value / top;
    for i in 0..=(top / step).round() as usize {
        let at = i as f64 * step;
        svg.line(x(at), TOP, x(at), bottom, "grid");
        svg.text(x(at), bottom + 16.0, Anchor::Middle, "s", &tick(at));
    }
    for row in 0..rows {
        let y = TOP + (row as f64 + 1.0) * ROW - 3.0;
        svg.text(LEFT - 8.0, y, Anchor::End, "s", &(row + 1).to_string());
    }
    let mut ends = vec![(0.0_f64, 0.0_f64); rows];
    for span in spans.iter().filter(|s| s.row < rows) {
        let (end, inset) = &mut ends[span.row];
        *inset = if span.from < *end { (*inset + 2.0).min(ROW / 2.0 - 2.0) } else { 0.0 };
        *end = span.to.max(*end);
        let y = TOP + span.row as f64 * ROW + 1.0 + *inset;
        let width = (x(span.to) - x(span.from)).max(0.5);
        svg.rect(x(span.from), y, width, ROW - 2.0 - 2.0 * *inset, span.series);
    }
    svg.finish()
}

/// A number at an axis, without needless digits.
fn tick(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A page around a body, which must be HTML already.
pub fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>body{{font:14px system-ui,sans-serif;max-width:960px;margin:2em auto;\
         padding:0 1em;color:#222;background:#fff}}pre{{overflow-x:auto}}\
         table{{border-collapse:collapse}}td,th{{padding:.2em .8em;text-align:right;\
         border-bottom:1px solid #ddd}}td:first-child,th:first-child{{text-align:left}}\
         svg{{max-width:100%;height:auto}}</style>\n<h1>{title}</h1>\n{body}\n</html>\n"
    )
}

/// Text as it may stand between tags and in attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c => out.push(c),
        }
    }
    out
}

/// An axis' end at or above `most`, and the distance of its ticks: 1, 2 or 5 times a power of 10.
fn scale(most: f64) -> (f64, f64) {
    let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
    let rough = most / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|f| f * power >= rough).unwrap_or(10.0);
    let step = factor * power;
    ((most / step).ceil() * step, step)
}

/// Where a text stands about its point.
enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture being written.
struct Svg {
    text: String,
}

impl Svg {
    fn new(width: f64, height: f64) -> Svg {
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width} {height:.0}\">\n<style>\
             text{{font-family:system-ui,sans-serif;font-size:12px;fill:#222}}\
             .t{{font-size:14px;font-weight:600}}.s{{font-size:11px;fill:#555}}\
             .n{{font-weight:600}}.grid{{stroke:#ddd}}.limit{{stroke:#222;stroke-dasharray:4 3}}\
             .curve{{fill:none;stroke-width:1.8}}</style>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
        );
        Svg { text }
    }

    fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, colour: usize) {
        let colour = COLOURS[colour % COLOURS.len()];
        self.put(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{colour}\"/>"
        ));
    }

    fn line(&mut self, x1: f64, y1: f64, x2: f64, y2: f64, class: &str) {
        self.put(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>"
        ));
    }

    fn text(&mut self, x: f64, y: f64, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}</text>"
        ));
    }

    fn polyline(&mut self, points: &[(f64, f64)], colour: usize) {
        let colour = COLOURS[colour % COLOURS.len()];
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let points = points.join(" ");
        self.put(format_args!(
            "<polyline points=\"{points}\" class=\"curve\" stroke=\"{colour}\"/>"
        ));
    }

    /// Names with their colours, under the title.
    fn legend(&mut self, names: &[&str]) {
        let mut x = LEFT;
        for (colour, name) in names.iter().enumerate() {
            self.rect(x, 26.0, 10.0, 10.0, colour);
            self.text(x + 14.0, 35.0, Anchor::Start, "s", name);
            x += 30.0 + 6.5 * name.chars().count() as f64;
        }
    }

    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{element}");
    }

    fn finish(mut self) -> String {
        self.text += "</svg>\n";
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_on_a_tick() {
        for (most, expect) in [(100.0, (100.0, 20.0)), (7.0, (8.0, 2.0)), (0.03, (0.03, 0.01))] {
            let (top, step) = scale(most);
            let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
            assert!(near(top, expect.0) && near(step, expect.1), "{most}: {top} {step}");
        }
        assert_eq!(scale(f64::NAN), scale(1.0));
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let bar =
            |series: &str, value: f64| Bar { series: series.into(), value, label: "<&>".into() };
        let groups = [
            Group { name: "pp512".into(), bars: vec![bar("a", 50.0), bar("b", 25.0)] },
            Group { name: "tg128".into(), bars: vec![bar("b", 200.0), bar("a", f64::NAN)] },
        ];
        let svg = bars("x \"y\"", " %", Some(100.0), &groups);
        // The axis is 500 wide and ends at 200 %.
        for width in ["125.0", "62.5", "500.0", "0.0"] {
            assert!(svg.contains(&format!("width=\"{width}\" height=\"15.0\"")), "{width}: {svg}");
        }
        assert!(svg.contains("&lt;&amp;&gt;") && svg.contains("x &quot;y&quot;"));
        assert!(svg.contains("class=\"limit\"") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("NaN"));
        assert!(svg.contains(">200 %<"));
        assert!(page("a<b", &svg).contains("<h1>a&lt;b</h1>"));
    }

    #[test]
    fn curves_go_through_their_points() {
        let points = vec![(0.0, 0.0), (0.5, 100.0), (1.0, 50.0)];
        let svg = curves("t", "s", "tok/s", &[Curve { name: "a".into(), points }]);
        // x from 110 to 740 over 0..1, y from 238 down to 48 over 0..100.
        assert!(svg.contains("points=\"110.0,238.0 425.0,48.0 740.0,143.0\""), "{svg}");
        assert!(svg.contains(">0.2<") && svg.contains(">100<"), "{svg}");
        assert!(!curves("t", "s", "y", &[]).contains("NaN"));
    }

    #[test]
    fn spans_lie_in_their_rows() {
        let span = |row, series, from, to| Span { row, series, from, to };
        let spans = [span(0, 0, 0.0, 5.0), span(1, 0, 2.0, 4.0), span(1, 1, 3.0, 10.0)];
        let svg = rows("t", 2, &["a", "b"], &spans);
        // x from 110 to 740 over 0..10, rows of 14 from 48; the second of a row stands inside.
        assert!(svg.contains("x=\"110.0\" y=\"49.0\" width=\"315.0\" height=\"12.0\""), "{svg}");
        assert!(svg.contains("x=\"236.0\" y=\"63.0\" width=\"126.0\" height=\"12.0\""), "{svg}");
        assert!(svg.contains("x=\"299.0\" y=\"65.0\" width=\"441.0\" height=\"8.0\""), "{svg}");
        assert!(!rows("t", 0, &[], &[]).contains("NaN"));
    }
}
