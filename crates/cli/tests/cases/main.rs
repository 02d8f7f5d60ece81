//! Files and requests that went wrong for somebody, each with the right value beside it
//! (tests/cases/NAME/README.md), run through the program itself. A test is named as its folder.

mod agents;
mod attacks;
mod bundles;
mod commands;
mod configs;
mod impossible;
mod plans;
mod program;
mod requests;
mod seeing;
mod settings;
mod several;
mod stored;
mod texts;
mod watching;
