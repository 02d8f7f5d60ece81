//! Images on their way into a prompt. How long it will be is known from their sizes; then each is decoded in
//! the workshop, and its rows are waited for without a place there.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokenmill_engine::{
    Embeddings, Eyes, EyesError, Glance, Look, PictureError, Refusal, RequestError, RowsError,
    Sketch, Viewer,
};
use tokenmill_ir::TokenId;
use tokenmill_media::{Ceilings, decode, size};
use tokenmill_text::{Encoder, Special};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::config::Limits;
use crate::error::ApiError;
use crate::images::{Image, files, not_seen};
use crate::prepare::Prepared;
use crate::shared::{Model, Phase, Shared, reached};
use crate::shares::{Party, Share};

/// Images of a prompt that are still to be seen.
pub struct Pictures {
    sketch: Sketch,
    album: Album,
    /// Of the memory for bodies, which the files take still.
    share: Option<Share>,
}

/// Images of a request, and who sees them.
pub struct Album {
    eyes: Arc<Eyes>,
    files: Vec<File>,
    ceilings: Ceilings,
}

struct File {
    /// The part of the request that it is.
    path: String,
    bytes: Arc<[u8]>,
    /// Width and height, pixels.
    size: [u32; 2],
}

/// A rendered prompt with places for the rows of its images, and what is to be seen.
///
/// # Errors
/// 400 for an image that is none or of no use to the model, where the template does not write it, and for a
/// prompt longer than `most` tokens.
pub fn sketched(
    model: &Model,
    images: &[&Image],
    tokens: Vec<TokenId>,
    (encoder, limits, most): (&Encoder<'_>, &Limits, usize),
) -> Result<(Vec<TokenId>, Option<Pictures>), ApiError> {
    let Some(album) = Album::of(model, images, limits)? else { return Ok((tokens, None)) };
    let (eyes, files) = (&album.eyes, &album.files);
    let sizes: Vec<[u32; 2]> = files.iter().map(|file| file.size).collect();
    let encode = |text: &str| encoder.encode(text, Special::Parse).map_err(|e| e.to_string());
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let sketch = eyes.sketch(&tokens, &sizes, (&encode, most));
    let sketch = sketch.map_err(|error| {
        let path = |index: usize| files.get(index).map(|file| file.path.as_str());
        not_shown(error, model, path)
    })?;
    let tokens = sketch.tokens().to_vec();
    Ok((tokens, Some(Pictures { sketch, album, share: None })))
}

fn not_shown<'a>(
    error: EyesError,
    model: &Model,
    path: impl Fn(usize) -> Option<&'a str>,
) -> ApiError {
    match error {
        EyesError::Picture { index, error } => not_seen(&error, path(index).unwrap_or("messages")),
        EyesError::Context { tokens, .. } => {
            ApiError::context_length(tokens, model.context(), "messages")
        }
        EyesError::Prompt(PictureError::Rows(RowsError::Refused(refusal))) => refusal.into(),
        EyesError::Prompt(PictureError::Rows(RowsError::Failed(error))) => error.into(),
        EyesError::Prompt(other) => ApiError::bad("messages", other.to_string()),
    }
}

/// Puts the rows of a request's images into its prompt. They are made on the account that the request is
/// on; who goes away waits no more.
///
/// # Errors
/// 400 for an image that is broken behind its header; what the encoder says.
pub async fn see(shared: &Shared, prepared: &mut Prepared, party: Party) -> Result<(), ApiError> {
    let Some(pictures) = prepared.pictures.take() else { return Ok(()) };
    let Some(first) = prepared.requests.first() else { return Ok(()) };
    let viewer = Viewer { account: first.account, salt: first.salt, priority: first.priority };
    let (begun, timeout) = (Instant::now(), first.timeout);
    let album = &pictures.album;
    let rows = album.rows_within(shared, &prepared.model, (viewer, party), timeout).await?;
    let (prompt, inputs) = pictures.sketch.filled(&rows).map_err(|error| {
        tracing::error!(%error, "a bug where images are put into a prompt");
        ApiError::internal()
    })?;
    let inputs = Arc::new(inputs);
    for request in &mut prepared.requests {
        request.prompt.clone_from(&prompt);
        request.inputs = Some(Arc::clone(&inputs));
        request.timeout = timeout.map(|all| all.saturating_sub(begun.elapsed()));
    }
    Ok(())
}

/// The seconds of a time limit, when they have passed.
async fn passed(timeout: Option<Duration>) -> f64 {
    match timeout {
        Some(timeout) => {
            tokio::time::sleep(timeout).await;
            timeout.as_secs_f64()
        }
        None => std::future::pending().await,
    }
}

/// A tile at the encoder.
struct Open {
    answer: oneshot::Receiver<Result<Arc<Embeddings>, RowsError>>,
    /// Dropped, nobody waits any more.
    _look: Look,
}

impl Pictures {
    /// Holds a share of the memory for bodies until they are seen.
    pub fn hold(&mut self, share: Share) {
        self.share.get_or_insert(share);
    }
}

impl Album {
    /// Of the images of a request, looked at as far as their headers; `None`: there are none, or the model
    /// sees none.
    ///
    /// # Errors
    /// 400 for too many, and for what is no image or elsewhere.
    pub fn of(model: &Model, images: &[&Image], limits: &Limits) -> Result<Option<Self>, ApiError> {
        let given = files(images, limits)?;
        let (Some(eyes), false) = (&model.served.eyes, given.is_empty()) else { return Ok(None) };
        let ceilings = limits.images_ceilings();
        let file = |(image, bytes): (&&Image, &Arc<[u8]>)| {
            let path = &image.path;
            let size = size(bytes, &ceilings).map_err(|error| not_seen(&error, path))?;
            Ok(File { path: path.clone(), bytes: Arc::clone(bytes), size })
        };
        let files = images.iter().zip(given).map(file).collect::<Result<_, ApiError>>()?;
        Ok(Some(Self { eyes: Arc::clone(eyes), files, ceilings }))
    }

    /// Patches of each image.
    pub fn patches(&self) -> impl Iterator<Item = u32> {
        let alone = self.files.len() == 1;
        self.files.iter().map(move |file| self.eyes.patches(file.size, alone))
    }

    /// The rows of all tiles of all images, in order, within that time.
    ///
    /// # Errors
    /// 400 for an image that is broken behind its header; what the encoder says.
    pub async fn rows_within(
        &self,
        shared: &Shared,
        model: &Model,
        who: (Viewer, Party),
        timeout: Option<Duration>,
    ) -> Result<Vec<Arc<Embeddings>>, ApiError> {
        let mut phase = shared.phases();
        tokio::select! {
            rows = self.rows(shared, model, who) => rows,
            limit_s = passed(timeout) => Err(RequestError::TimedOut { limit_s }.into()),
            () = reached(&mut phase, Phase::Stopping) => Err(RequestError::ShutDown.into()),
        }
    }

    /// Several are at the encoder at once.
    async fn rows(
        &self,
        shared: &Shared,
        model: &Model,
        (viewer, party): (Viewer, Party),
    ) -> Result<Vec<Arc<Embeddings>>, ApiError> {
        let (mut rows, mut open) = (Vec::new(), VecDeque::new());
        for (index, file) in self.files.iter().enumerate() {
            let bytes = self.eyes.patch_bytes(file.size, self.files.len() == 1);
            let room = Arc::new(shared.patches.take(bytes).await);
            for glance in self.glances(shared, model, (index, party)).await? {
                loop {
                    match look(model, &glance, viewer, &room) {
                        Ok(one) => {
                            open.push_back(one);
                            break;
                        }
                        // A full queue is waited for as long as some of it is ours.
                        Err(refusal) => match (refusal, open.pop_front()) {
                            (Refusal::QueueFull { .. }, Some(first)) => {
                                rows.push(wait(first).await?)
                            }
                            (refusal, _) => return Err(refusal.into()),
                        },
                    }
                }
            }
        }
        for one in open {
            rows.push(wait(one).await?);
        }
        Ok(rows)
    }

    /// The tiles of an image, as its encoder takes them.
    async fn glances(
        &self,
        shared: &Shared,
        model: &Model,
        (index, party): (usize, Party),
    ) -> Result<Vec<Glance>, ApiError> {
        let Some(file) = self.files.get(index) else { return Ok(Vec::new()) };
        let (path, bytes, ceilings) = (file.path.clone(), Arc::clone(&file.bytes), self.ceilings);
        let (eyes, model, alone) = (Arc::clone(&self.eyes), model.clone(), self.files.len() == 1);
        // It is as much work as it has pixels, however short its file is.
        let work = file.size[0] as usize * file.size[1] as usize * 3;
        let job = move |_: crate::workshop::Wanted<'_>| {
            let picture = decode(&bytes, &ceilings).map_err(|error| not_seen(&error, &path))?;
            let found = eyes.glances(&model.served.engine, (index, picture), alone);
            found.map_err(|error| not_shown(error, &model, |_| Some(path.as_str())))
        };
        shared.workshop.run(party, work, job).await
    }
}

/// Hands a tile to the encoder; `room` is held until its rows have come.
fn look(
    model: &Model,
    glance: &Glance,
    viewer: Viewer,
    room: &Arc<Option<OwnedSemaphorePermit>>,
) -> Result<Open, Refusal> {
    let (sender, answer) = oneshot::channel();
    let room = Arc::clone(room);
    let sink = Box::new(move |rows| {
        let _ = sender.send(rows); // who waited may be gone
        drop(room);
    });
    Ok(Open { _look: model.served.engine.look(glance, viewer, sink)?, answer })
}

async fn wait(one: Open) -> Result<Arc<Embeddings>, ApiError> {
    match one.answer.await {
        Ok(Ok(rows)) => Ok(rows),
        Ok(Err(RowsError::Refused(refusal))) => Err(refusal.into()),
        Ok(Err(RowsError::Failed(error))) => Err(error.into()),
        Err(_) => Err(RequestError::ShutDown.into()),
    }
}

/// Memory for the patches of images, all requests together: who finds none waits.
#[derive(Debug)]
pub struct Room {
    /// In KiB.
    all: u32,
    free: Arc<Semaphore>,
}

impl Room {
    /// For so many bytes.
    pub fn new(bytes: u64) -> Self {
        let all =
            u32::try_from(bytes >> 10).unwrap_or(u32::MAX).clamp(1, Semaphore::MAX_PERMITS as u32);
        Self { all, free: Arc::new(Semaphore::new(all as usize)) }
    }

    /// Takes so many bytes, as soon as they are free; one that wants more than there is takes all. They are
    /// free again when the result is dropped.
    async fn take(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let kib = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX).clamp(1, self.all);
        Arc::clone(&self.free).acquire_many_owned(kib).await.ok() // (it is never closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn patches_wait_for_room() {
        let room = Room::new(10 << 10);
        let first = room.take(6 << 10).await;
        let second = room.take(1 << 30);
        tokio::pin!(second);
        tokio::select! {
            biased;
            _ = &mut second => panic!("there is none"),
            () = tokio::task::yield_now() => {}
        }
        drop(first);
        assert_eq!(second.await.map(|all| all.num_permits()), Some(10));
    }
}
