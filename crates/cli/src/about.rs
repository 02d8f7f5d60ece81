//! What this program is made of, for `--version`, and its manual pages.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::OnceLock;

use crate::failure::{Failure, tell};
use crate::{args, devices};

/// Version and features, one a line.
pub fn version() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let (arch, os) = (std::env::consts::ARCH, std::env::consts::OS);
        let mut text = env!("CARGO_PKG_VERSION").to_owned();
        for (name, what) in [
            ("system", format!("{arch} {os}")),
            ("devices", devices::built().to_owned()),
            ("instructions", devices::instruction_sets()),
            (
                "built",
                if cfg!(debug_assertions) { "with debug assertions" } else { "for release" }
                    .to_owned(),
            ),
        ] {
            let _ = write!(text, "\n{name:<13} {what}");
        }
        text
    })
}

/// `man`: the page of a command, or all of them into a folder.
pub fn man(command: Option<&str>, folder: Option<&Path>) -> Result<(), Failure> {
    let mut all = args::command().disable_help_subcommand(true);
    all.build();
    if let Some(folder) = folder {
        let failed = |e| Failure::new(format!("cannot write pages to {}", folder.display()), e);
        std::fs::create_dir_all(folder).map_err(failed)?;
        clap_mangen::generate_to(all, folder).map_err(failed)?;
        tell!("to read them: man -l {}", folder.join("tokenmill.1").display());
        return Ok(());
    }
    let page = match command {
        None => all,
        Some(name) => match all.find_subcommand(name) {
            Some(found) => found.clone(),
            None => {
                let names: Vec<&str> = all.get_subcommands().map(clap::Command::get_name).collect();
                return Err(Failure::new(format!("there is no command {name}"), names.join(" ")));
            }
        },
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text).map_err(Failure::output)?;
    std::io::stdout().write_all(&text).map_err(Failure::output)
}
