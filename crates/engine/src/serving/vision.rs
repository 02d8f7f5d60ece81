//! Images on their way into prompts: an encoder that serves beside its model makes rows of their
//! patches, and rows of images that were seen lately are kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokenmill_models::vision::arranged;
use tokenmill_sched::{Embeddings, Inputs, Media, Numbers};

use crate::handle::{Engine, Events, RowsError};
use crate::request::{Event, Refusal, Request, RequestError};

/// What an encoder reads of one image, in the order it wants: patches that become one row follow each
/// other.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Patches {
    /// Numbers of a patch: as many as the encoder's program reads.
    pub cols: u32,
    /// Patch after patch. [patches × cols]
    pub data: Vec<f32>,
    /// Where each patch is, on the axes of the encoder's rotations; empty: its index.
    pub positions: Vec<[u32; 3]>,
    /// Patches that see each other where the encoder looks at windows: begin and end, in order.
    pub blocks: Vec<[u32; 2]>,
    /// The first patch of each row that comes out, in order.
    pub outputs: Vec<u32>,
    /// The place of each of these rows among the image's; empty: as they come.
    pub order: Vec<u32>,
}

/// An encoder that serves beside a model.
pub struct Vision {
    encoder: Engine,
    identity: String,
    kept: Mutex<Kept>,
}

/// Rows of images, those looked at last.
struct Kept {
    rows: HashMap<u128, (u64, Arc<Embeddings>)>,
    bytes: u64,
    most_bytes: u64,
    looks: u64,
}

impl Vision {
    /// Of an encoder whose rows are told apart by `identity` too: all that they depend on beside the
    /// patches, its program and weights. Keeps at most so many bytes of rows.
    pub fn new(encoder: Engine, identity: String, most_bytes: u64) -> Self {
        let kept = Kept { rows: HashMap::new(), bytes: 0, most_bytes, looks: 0 };
        Self { encoder, identity, kept: Mutex::new(kept) }
    }

    /// The encoder.
    pub(crate) fn encoder(&self) -> &Engine {
        &self.encoder
    }

    /// Rows of each image, computed together where they are not kept.
    pub(crate) fn see(
        &self,
        images: Vec<Patches>,
        account: u64,
    ) -> Result<Vec<Arc<Embeddings>>, RowsError> {
        let (mut known, mut asked) = (HashMap::new(), Vec::new());
        let mut keys = Vec::with_capacity(images.len());
        for patches in images {
            let key = self.key(&patches);
            keys.push(key);
            if known.contains_key(&key) {
                continue;
            }
            let rows = self.kept().look(key);
            if rows.is_none() {
                let order = patches.order.clone();
                asked.push((key, order, self.ask(key, patches, account)?));
            }
            known.insert(key, rows);
        }
        for (key, order, events) in asked {
            let rows = Arc::new(answer(key, &order, events)?);
            self.kept().keep(key, &rows);
            known.insert(key, Some(rows));
        }
        let found = |key: &u128| known.get(key).cloned().flatten();
        let all: Option<Vec<_>> = keys.iter().map(found).collect();
        all.ok_or_else(|| RequestError::Internal("an image without rows".to_owned()).into())
    }

    /// A hash of all that the rows of an image depend on.
    fn key(&self, patches: &Patches) -> u128 {
        let mut hash = blake3::Hasher::new();
        hash.update(self.identity.as_bytes());
        hash.update(&[0]);
        let Patches { cols, data, positions, blocks, outputs, order } = patches;
        let lengths = [data.len(), positions.len(), blocks.len(), outputs.len(), order.len()];
        for length in lengths.into_iter().chain([*cols as usize]) {
            hash.update(&(length as u64).to_le_bytes());
        }
        let numbers: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        hash.update(&numbers);
        let places = positions.iter().flatten().chain(blocks.iter().flatten());
        let places = places.chain(outputs).chain(order);
        let bytes: Vec<u8> = places.flat_map(|place| place.to_le_bytes()).collect();
        hash.update(&bytes);
        let mut key = [0; 16];
        hash.finalize_xof().fill(&mut key);
        u128::from_le_bytes(key)
    }

    fn ask(&self, key: u128, patches: Patches, account: u64) -> Result<Events, Refusal> {
        let Patches { cols, data, positions, blocks, outputs, order } = patches;
        let rows = Arc::new(Embeddings::new(cols, data, key));
        let bad = |reason| Err(Refusal::BadParameter { name: "image", reason });
        let (count, limit) = (rows.len(), self.encoder.longest() as usize);
        if count == 0 || count > limit {
            return bad(format!("{count} patches, at least 1 and at most {limit}"));
        }
        let mut places = order.clone();
        places.sort_unstable();
        let is_order = places.iter().zip(0..).all(|(&place, i)| place == i);
        if !order.is_empty() && (order.len() != outputs.len() || !is_order) {
            return bad(format!("{} places for {} rows", order.len(), outputs.len()));
        }
        let mut request = Request::new(rows.ids.clone());
        let media = vec![Media { at: 0, rows }];
        request.inputs = Some(Arc::new(Inputs { media, blocks, positions, next: 0, outputs }));
        (request.numbers, request.account) = (Some(Numbers::Listed), account);
        self.encoder.submit(request)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rows that an encoder answers, each at its place.
fn answer(key: u128, order: &[u32], events: Events) -> Result<Embeddings, RowsError> {
    for event in events {
        match event {
            Event::Rows(rows) => {
                let numbers = arranged(rows.numbers, order);
                return Ok(Embeddings::new(rows.width as u32, numbers, key));
            }
            Event::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    Err(RequestError::ShutDown.into())
}

impl Kept {
    fn look(&mut self, key: u128) -> Option<Arc<Embeddings>> {
        self.looks += 1;
        let (last, rows) = self.rows.get_mut(&key)?;
        *last = self.looks;
        Some(Arc::clone(rows))
    }

    /// Keeps rows that there can be room for; those that were looked at longest ago go.
    fn keep(&mut self, key: u128, rows: &Arc<Embeddings>) {
        let bytes = |rows: &Embeddings| size_of_val(&*rows.data) as u64;
        if bytes(rows) > self.most_bytes {
            return;
        }
        self.looks += 1;
        if let Some((_, before)) = self.rows.insert(key, (self.looks, Arc::clone(rows))) {
            self.bytes -= bytes(&before);
        }
        self.bytes += bytes(rows);
        while self.bytes > self.most_bytes {
            let Some(oldest) = self.rows.iter().min_by_key(|(_, (last, _))| *last) else { return };
            let oldest = *oldest.0;
            if let Some((_, rows)) = self.rows.remove(&oldest) {
                self.bytes -= bytes(&rows);
            }
        }
    }
}
