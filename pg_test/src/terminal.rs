//! How the demo and the benchmark talk: colour and a moving line where people look, plain lines where a program reads.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

/// Between two pictures of a moving line.
const FRAME: Duration = Duration::from_millis(80);
const SPINNER: [char; 4] = ['|', '/', '-', '\\'];
const BAR_WIDTH: usize = 30;

/// Standard output.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    moving: bool,
    colour: bool,
}

impl Terminal {
    /// Looks what standard output is.
    pub fn new() -> Terminal {
        let moving = io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        Terminal { moving, colour: moving && std::env::var_os("NO_COLOR").is_none() }
    }

    /// The title of a part.
    pub fn title(&self, text: impl Display) {
        println!("\n{}", self.paint("1;36", text));
    }

    /// A plain line of the story.
    pub fn say(&self, text: impl Display) {
        println!("  {text}");
    }

    /// Something that people could type; every line of it.
    pub fn code(&self, text: &str) {
        for line in text.lines() {
            println!("    {}", self.paint("33", line));
        }
    }

    /// Something that came out well.
    pub fn good(&self, text: impl Display) {
        println!("  {} {text}", self.paint("1;32", "ok"));
    }

    /// Something that did not.
    pub fn bad(&self, text: impl Display) {
        println!("  {} {text}", self.paint("1;31", "FAILED"));
    }

    /// Something that was to be reached, and whether it was.
    pub fn verdict(&self, reached: bool, text: impl Display) {
        let verdict = if reached { self.paint("1;32", "ok    ") } else { self.paint("1;31", "missed") };
        println!("  {verdict} {text}");
    }

    /// Emphasis inside a line.
    pub fn strong(&self, text: impl Display) -> String {
        self.paint("1", text)
    }

    /// Does something that takes a while, shows that it goes on, and says how long it took.
    pub fn during<T: Send>(&self, what: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let since = Instant::now();
        if !self.moving {
            self.say(format_args!("{what} ..."));
        }
        let result = thread::scope(|scope| {
            let worker = scope.spawn(work);
            for frame in 0.. {
                if worker.is_finished() {
                    break;
                }
                self.draw(format_args!("{} {what}", SPINNER[frame % SPINNER.len()]));
                thread::sleep(FRAME);
            }
            worker.join().map_err(|_| anyhow!("panic while {what}"))
        });
        self.wipe();
        let value = result??;
        self.good(format_args!("{what} ({:.1} s)", since.elapsed().as_secs_f64()));
        Ok(value)
    }

    /// Draws a bar until `look` says that all is done; `look` returns what is done, of how much, and a remark.
    pub fn bar(&self, what: &str, mut look: impl FnMut() -> Result<(u64, u64, String)>) -> Result<()> {
        loop {
            let (done, all, remark) = look()?;
            let filled = (BAR_WIDTH as u64 * done.min(all) / all.max(1)) as usize;
            self.draw(format_args!("[{:<BAR_WIDTH$}] {what}: {done} of {all}{remark}", "#".repeat(filled)));
            if done >= all {
                self.wipe();
                return Ok(());
            }
            thread::sleep(FRAME);
        }
    }

    /// Replaces the moving line; nothing where nobody sees it move.
    pub fn draw(&self, text: impl Display) {
        if self.moving {
            print!("\r\x1b[K  {text}");
            // A terminal that is gone needs no picture.
            let _ = io::stdout().flush();
        }
    }

    /// Takes the moving line away.
    pub fn wipe(&self) {
        if self.moving {
            print!("\r\x1b[K");
            let _ = io::stdout().flush();
        }
    }

    fn paint(&self, colour: &str, text: impl Display) -> String {
        if self.colour { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_string() }
    }
}

impl Default for Terminal {
    fn default() -> Self {
        Terminal::new()
    }
}
