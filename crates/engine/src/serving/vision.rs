//! Images on their way into prompts: an encoder that serves beside its model makes rows of their
//! patches. Rows of images that were seen lately are kept, and those that are being made are waited for
//! by all who want them.

use std::collections::HashMap;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokenmill_models::vision::arranged;
use tokenmill_sched::{Embeddings, Inputs, Media, Numbers};

use crate::handle::{Cancel, Engine, RowsError};
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

/// An image, or a tile of one, as its encoder is asked for it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Glance {
    /// A hash of all that its rows depend on.
    content: u128,
    inputs: Arc<Inputs>,
    order: Arc<[u32]>,
}

impl Glance {
    /// Rows that it becomes.
    pub fn rows(&self) -> usize {
        self.inputs.outputs.len()
    }
}

/// For whom an image is looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Viewer {
    /// Whose share of the encoder it takes.
    pub account: u64,
    /// With whom rows are shared.
    pub salt: u64,
    /// As [`Request::priority`].
    pub priority: i32,
}

/// Takes the rows of an image, or why there are none; called once, maybe on the engine's thread: it must
/// not block.
pub type RowsSink = Box<dyn FnOnce(Result<Arc<Embeddings>, RowsError>) + Send>;

/// Somebody who waits for rows. Dropped, he waits no more; with the last of them the work ends.
pub struct Look(Option<(Arc<Mutex<Table>>, Key, u64)>);

/// An encoder that serves beside a model.
pub struct Vision {
    encoder: Engine,
    identity: String,
    table: Arc<Mutex<Table>>,
}

/// Salt and content.
type Key = (u64, u128);

/// Rows of images: those looked at last, and those that are being made, each of which is a request at
/// the encoder.
struct Table {
    rows: HashMap<Key, (u64, Arc<Embeddings>)>,
    bytes: u64,
    most_bytes: u64,
    looks: u64,
    open: HashMap<Key, Open>,
}

/// Rows that are being made.
struct Open {
    /// Which request makes them.
    ask: u64,
    waiting: Vec<(u64, RowsSink)>,
    /// Of that request; `None` while it is handed on.
    cancel: Option<Cancel>,
    /// The engine ended before it was handed on.
    gone: bool,
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Vision {
    /// Of an encoder whose rows are told apart by `identity` too: all that they depend on beside the
    /// patches, its program and weights. Keeps at most so many bytes of rows.
    pub fn new(encoder: Engine, identity: String, most_bytes: u64) -> Self {
        let (rows, open) = (HashMap::new(), HashMap::new());
        let table = Table { rows, bytes: 0, most_bytes, looks: 0, open };
        Self { encoder, identity, table: Arc::new(Mutex::new(table)) }
    }

    /// The encoder.
    pub(crate) fn encoder(&self) -> &Engine {
        &self.encoder
    }

    /// Patches as the encoder is asked for them; what they are is hashed on the caller's thread.
    pub(crate) fn glance(&self, patches: Patches) -> Result<Glance, Refusal> {
        let content = self.content(&patches);
        let Patches { cols, data, positions, blocks, outputs, order } = patches;
        let rows = Arc::new(Embeddings::new(cols, data, content));
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
        let media = vec![Media { at: 0, rows }];
        let inputs = Arc::new(Inputs { media, blocks, positions, next: 0, outputs });
        Ok(Glance { content, inputs, order: order.into() })
    }

    /// Has an image looked at: its rows are there, on their way already, or computed.
    pub(crate) fn look(
        &self,
        glance: &Glance,
        viewer: Viewer,
        sink: RowsSink,
    ) -> Result<Look, Refusal> {
        let key = (viewer.salt, glance.content);
        let mut table = lock(&self.table);
        if let Some(rows) = table.look(key) {
            drop(table);
            sink(Ok(rows));
            return Ok(Look(None));
        }
        table.looks += 1;
        let waiter = table.looks;
        let look = Look(Some((Arc::clone(&self.table), key, waiter)));
        if let Some(open) = table.open.get_mut(&key) {
            open.waiting.push((waiter, sink));
            return Ok(look);
        }
        let (ask, waiting) = (waiter, vec![(waiter, sink)]);
        table.open.insert(key, Open { ask, waiting, cancel: None, gone: false });
        drop(table);
        self.ask(glance, (key, ask), viewer)?;
        Ok(look)
    }

    /// Hands an image to the encoder.
    fn ask(&self, glance: &Glance, (key, ask): (Key, u64), viewer: Viewer) -> Result<(), Refusal> {
        let rows = glance.inputs.media.first().map(|media| media.rows.ids.clone());
        let mut request = Request::new(rows.unwrap_or_default());
        request.inputs = Some(Arc::clone(&glance.inputs));
        request.numbers = Some(Numbers::Listed);
        (request.account, request.priority) = (viewer.account, viewer.priority);
        let (table, order) = (Arc::clone(&self.table), Arc::clone(&glance.order));
        let mut landing = Landing { table, key, ask, order };
        let submitted = self.encoder.submit_to(request, Box::new(move |e| landing.take(e)));
        let mut table = lock(&self.table);
        let open = table.open.get_mut(&key).filter(|open| open.ask == ask);
        match (submitted, open) {
            (Ok(cancel), Some(open)) => {
                open.cancel = Some(cancel);
                let is_gone = open.gone;
                drop(table);
                if is_gone {
                    land(&self.table, (key, ask), Err(RequestError::ShutDown.into()));
                }
                Ok(())
            }
            // It has come already.
            (Ok(_), None) => Ok(()),
            (Err(refusal), _) => {
                drop(table);
                land(&self.table, (key, ask), Err(refusal.clone().into()));
                Err(refusal)
            }
        }
    }

    /// Rows of each image, computed together where they are not kept; waits for them.
    pub(crate) fn see(
        &self,
        images: &[Glance],
        viewer: Viewer,
    ) -> Result<Vec<Arc<Embeddings>>, RowsError> {
        let look = |glance: &Glance| {
            let (sender, receiver) = channel();
            let sink = Box::new(move |rows| drop(sender.send(rows))); // who waited may be gone
            Ok((self.look(glance, viewer, sink)?, receiver))
        };
        let looks: Vec<_> = images.iter().map(look).collect::<Result<_, Refusal>>()?;
        let rows = looks.iter().map(|(_, receiver)| {
            receiver.recv().unwrap_or_else(|_| Err(RequestError::ShutDown.into()))
        });
        rows.collect()
    }

    /// A hash of all that the rows of an image depend on.
    fn content(&self, patches: &Patches) -> u128 {
        let mut hash = blake3::Hasher::new();
        hash.update(self.identity.as_bytes());
        hash.update(&[0]);
        let Patches { cols, data, positions, blocks, outputs, order } = patches;
        let lengths = [data.len(), positions.len(), blocks.len(), outputs.len(), order.len()];
        for length in lengths.into_iter().chain([*cols as usize]) {
            hash.update(&(length as u64).to_le_bytes());
        }
        // (An image has many megabytes of numbers: no copy of all of them.)
        for numbers in data.chunks(4096) {
            let numbers: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
            hash.update(&numbers);
        }
        let places = positions.iter().flatten().chain(blocks.iter().flatten());
        let places = places.chain(outputs).chain(order);
        let bytes: Vec<u8> = places.flat_map(|place| place.to_le_bytes()).collect();
        hash.update(&bytes);
        let mut content = [0; 16];
        hash.finalize_xof().fill(&mut content);
        u128::from_le_bytes(content)
    }
}

/// Where an encoder's answer goes.
struct Landing {
    table: Arc<Mutex<Table>>,
    key: Key,
    ask: u64,
    order: Arc<[u32]>,
}

impl Landing {
    fn take(&mut self, event: Event) -> bool {
        let rows = match event {
            Event::Rows(rows) => {
                let numbers = arranged(rows.numbers, &self.order);
                Ok(Arc::new(Embeddings::new(rows.width as u32, numbers, self.key.1)))
            }
            Event::Failed(error) => Err(error.into()),
            _ => return true,
        };
        if let Ok(rows) = &rows {
            lock(&self.table).keep(self.key, rows);
        }
        land(&self.table, (self.key, self.ask), rows);
        true
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        // (Who was told before is not there any more.)
        let mut table = lock(&self.table);
        let open = table.open.get_mut(&self.key).filter(|open| open.ask == self.ask);
        match open {
            Some(open) if open.cancel.is_none() => open.gone = true,
            Some(_) => {
                drop(table);
                land(&self.table, (self.key, self.ask), Err(RequestError::ShutDown.into()));
            }
            None => {}
        }
    }
}

/// Tells all who wait for what a request makes.
fn land(table: &Mutex<Table>, (key, ask): (Key, u64), rows: Result<Arc<Embeddings>, RowsError>) {
    let mut table = lock(table);
    // (Who waits for another request of that key waits on.)
    let is_it = table.open.get(&key).is_some_and(|open| open.ask == ask);
    let open = if is_it { table.open.remove(&key) } else { None };
    drop(table);
    let waiting = open.into_iter().flat_map(|open| open.waiting);
    waiting.for_each(|(_, sink)| sink(rows.clone()));
}

impl Drop for Look {
    fn drop(&mut self) {
        let Some((table, key, waiter)) = self.0.take() else { return };
        let mut table = lock(&table);
        let Some(open) = table.open.get_mut(&key) else { return };
        let at = open.waiting.iter().position(|(id, _)| *id == waiter);
        let left = at.map(|at| open.waiting.swap_remove(at));
        let ended = open.waiting.is_empty().then(|| table.open.remove(&key));
        drop(table);
        drop((left, ended)); // (what they hold may want the table)
    }
}

impl Table {
    fn look(&mut self, key: Key) -> Option<Arc<Embeddings>> {
        self.looks += 1;
        let (last, rows) = self.rows.get_mut(&key)?;
        *last = self.looks;
        Some(Arc::clone(rows))
    }

    /// Keeps rows that there can be room for; those that were looked at longest ago go.
    fn keep(&mut self, key: Key, rows: &Arc<Embeddings>) {
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
