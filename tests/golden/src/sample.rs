//! Long tests run a part by default, and whole where `TOKENMILL_TESTS=whole` says so (`.ci/run`).

use tokenmill_ir::sampling::splitmix;

/// Which of a test's numbered parts run.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    whole: bool,
    seed: u64,
}

impl Sample {
    /// As the environment says; `TOKENMILL_TEST_SEED=n` draws other parts.
    pub fn from_env() -> Self {
        let text = |name: &str| std::env::var(name).ok();
        let seed = text("TOKENMILL_TEST_SEED").and_then(|seed| seed.parse().ok()).unwrap_or(0);
        Self { whole: text("TOKENMILL_TESTS").as_deref() == Some("whole"), seed }
    }

    /// Whether all parts run.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Whether part `index` runs: all do in a whole test, else exactly one of each `of` in a row, so
    /// that every seed draws as many.
    pub fn has(&self, index: u64, of: u64) -> bool {
        let (row, place) = (index / of, index % of);
        self.whole || splitmix(self.seed ^ splitmix(row)) % of == place
    }
}
