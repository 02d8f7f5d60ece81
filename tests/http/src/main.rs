//! A server over the simulated device as a process of its own, for signals and for clients in other
//! languages: `serve-sim [ADDRESS [STEP_MS [DRAIN_MS]]]`. Prints its address, ends as the real one.

use std::process::ExitCode;
use std::time::Duration;

use tokenmill_device_tests::sim::SimControl;
use tokenmill_http_tests::Setup;
use tokenmill_server::{ServerConfig, serve};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let address = args.next().unwrap_or_else(|| "127.0.0.1:0".into());
    let Ok(bind) = address.parse() else {
        eprintln!("{address} is no address");
        return ExitCode::FAILURE;
    };
    let mut millis = || args.next().and_then(|a| a.parse().ok()).map(Duration::from_millis);
    let step = millis().unwrap_or_default();
    let mut server = ServerConfig::new(bind);
    server.timeouts.drain = millis().unwrap_or(server.timeouts.drain);
    let setup = Setup { step, context: 4096, blocks: 2000, ..Setup::default() };
    let model = setup.model(&SimControl::default());
    let engine = model.engine.clone();
    let done = serve(server, vec![model], |address, _| println!("{address}"));
    engine.shut_down();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
