//! Steps of like sizes told to the GPU at once: a launch costs the host 3.5 to 4.2 µs by itself, a
//! graph of 500 as much as one of them (measured on an H200).
//!
//! A graph has the grids of the largest step of its bucket; blocks without work end at once, since
//! kernels read from the step what there is. Addresses stay, so that nothing of it ever changes.

use std::sync::Arc;

use crate::driver::{Driver, DriverError, Launched};
use crate::plan::Sizes;

/// Steps of more tokens are launched one by one: beside their work that costs nothing.
const MOST_TOKENS: u32 = 256;
/// Graphs that are kept; of buckets those used last.
const MOST_GRAPHS: usize = 32;

/// A graph of a driver.
struct Graph {
    driver: Arc<dyn Driver>,
    name: u64,
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.driver.forget_graph(self.name);
    }
}

/// The graphs of a program.
#[derive(Default)]
pub(crate) struct Graphs {
    /// Buckets that were seen, the last at the end, with the graphs of those seen twice.
    seen: Vec<(Sizes, Option<Graph>)>,
    /// The driver makes none.
    is_off: bool,
}

impl Graphs {
    /// Runs a step of those sizes; false where its launches are to be told one by one.
    pub fn run(
        &mut self,
        driver: &Arc<dyn Driver>,
        sizes: Sizes,
        launches: impl FnOnce(Sizes) -> Vec<Launched>,
    ) -> Result<bool, DriverError> {
        if self.is_off || sizes.tokens > MOST_TOKENS {
            return Ok(false);
        }
        let bucket = bucket(sizes);
        let known = self.seen.iter().position(|(b, _)| *b == bucket);
        let Some(known) = known.map(|i| self.seen.remove(i)) else {
            if self.seen.len() == MOST_GRAPHS {
                self.seen.remove(0);
            }
            self.seen.push((bucket, None));
            return Ok(false);
        };
        let graph = match known.1 {
            Some(graph) => graph,
            None => match driver.graph(&launches(bucket)) {
                Ok(name) => Graph { driver: Arc::clone(driver), name },
                Err(lost @ DriverError::Lost(_)) => return Err(lost),
                Err(_) => {
                    self.is_off = true;
                    self.seen.clear();
                    return Ok(false);
                }
            },
        };
        let answer = driver.replay(graph.name);
        self.seen.push((bucket, Some(graph)));
        answer.map(|()| true)
    }

    /// Addresses have changed.
    pub fn clear(&mut self) {
        self.seen.clear();
    }
}

/// The largest sizes that have a graph in common with these.
fn bucket(sizes: Sizes) -> Sizes {
    // (What there is none of needs no launch.)
    let up = |n: u32| if n == 0 { 0 } else { n.next_power_of_two() };
    Sizes { tokens: up(sizes.tokens), outputs: up(sizes.outputs), spans: up(sizes.spans) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_their_steps() {
        let of = |tokens, outputs, spans| Sizes { tokens, outputs, spans };
        for (step, expected) in [
            (of(1, 1, 1), of(1, 1, 1)),
            (of(3, 0, 2), of(4, 0, 2)),
            (of(9, 5, 5), of(16, 8, 8)),
            (of(256, 33, 1), of(256, 64, 1)),
        ] {
            assert_eq!(bucket(step), expected, "{step:?}");
        }
    }
}
