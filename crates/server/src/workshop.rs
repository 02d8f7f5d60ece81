//! Where work that computes for long is done, away from the connections: few jobs at once.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::error::ApiError;

/// A bounded number of places.
#[derive(Debug)]
pub struct Workshop(Arc<Semaphore>);

impl Workshop {
    /// One with that many places, at least one.
    pub fn new(places: usize) -> Self {
        Self(Arc::new(Semaphore::new(places.max(1))))
    }

    /// Does a job when a place is free. A client that goes away while it waits takes no place.
    ///
    /// # Errors
    /// The job's own, or 500 when it panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = Arc::clone(&self.0).acquire_owned().await;
        let work = move || {
            let _place = place;
            job()
        };
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| {
            tracing::error!(%panic, "a bug while a request was prepared");
            Err(ApiError::internal())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_job_that_panics_costs_its_request_only() {
        let workshop = Workshop::new(1);
        let broken: Result<(), ApiError> = workshop.run(|| panic!("secret")).await;
        let error = broken.expect_err("failed");
        assert_eq!(error, ApiError::internal());
        assert_eq!(workshop.run(|| Ok(7)).await, Ok(7), "its place is free again");
    }
}
