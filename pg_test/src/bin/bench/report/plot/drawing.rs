//! The few marks of SVG that plots are made of.

use std::fmt::Write as _;

/// Colours by what is said with them; the second set is for readers who have their screen dark.
const STYLE: &str = "
  text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; paint-order: stroke; stroke-width: 4; stroke-linejoin: round; }
  .title { font-size: 16px; font-weight: 600; }
  .strong { font-weight: 600; }
  text { stroke: #ffffff; }
  .ground { fill: #ffffff; }
  .title, .ink, .strong { fill: #1f2328; }
  .soft { fill: #59636e; }
  .ours, .good { fill: #0969da; }
  .others { fill: #9aa4ae; }
  .bad { fill: #cf4a0c; }
  .grid { stroke: #d8dee4; }
  .limit, .aim, .range { stroke: #1f2328; }
  .limit { stroke-width: 1.5; }
  .range { stroke-width: 2; }
  .aim { stroke-width: 3; }
  @media (prefers-color-scheme: dark) {
    text { stroke: #0d1117; }
    .ground { fill: #0d1117; }
    .title, .ink, .strong { fill: #f0f6fc; }
    .soft { fill: #9198a1; }
    .ours, .good { fill: #4493f8; }
    .others { fill: #6e7681; }
    .bad { fill: #f0883e; }
    .grid { stroke: #30363d; }
    .limit, .aim, .range { stroke: #f0f6fc; }
  }
";

/// A picture in the making.
pub struct Drawing {
    svg: String,
}

/// Which end of a text is at its place.
#[derive(Clone, Copy)]
pub enum Anchor {
    /// The first letter.
    Start,
    /// The middle.
    Middle,
    /// The last letter.
    End,
}

impl Drawing {
    /// An empty one with a title.
    pub fn new(width: f64, height: f64, title: &str) -> Drawing {
        let title = escaped(title);
        let mut drawing = Drawing {
            svg: format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
                 height=\"{height}\" role=\"img\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
                 <rect class=\"ground\" width=\"{width}\" height=\"{height}\"/>\n"
            ),
        };
        drawing.text(20.0, 28.0, Anchor::Start, "title", &title);
        drawing
    }

    /// Words at a place.
    pub fn text(&mut self, x: f64, y: f64, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}</text>"
        ));
    }

    /// A filled rectangle.
    pub fn bar(&mut self, x: f64, y: f64, width: f64, height: f64, class: &str) {
        self.add(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" class=\"{class}\"/>"
        ));
    }

    /// A straight line.
    pub fn line(&mut self, x1: f64, y1: f64, x2: f64, y2: f64, class: &str) {
        self.add(format_args!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>"));
    }

    /// The whole file.
    pub fn finish(mut self) -> String {
        self.svg += "</svg>\n";
        self.svg
    }

    fn add(&mut self, mark: std::fmt::Arguments<'_>) {
        // A string takes all that is written to it.
        let _ = writeln!(self.svg, "{mark}");
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
