//! A running server whose models are loaded when they are asked for: slowly, in vain or not at all,
//! as it is told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokenmill_device_tests::sim::SimControl;
use tokenmill_engine::KeepAlive;
use tokenmill_server::{
    Abilities, Card, Fetching, IsWanted, Listed, Loader, Needs, NotLoaded, Recipe, Running,
    ServedModel, Stock, Trouble, spawn,
};

use crate::client::Client;
use crate::site::Setup;

/// What becomes of loads, and what is in memory.
#[derive(Debug, Default)]
pub struct Shelf {
    /// How long a load takes.
    pub slow: Duration,
    /// Loads do not end before it is false.
    pub held: bool,
    /// Models whose files are broken, and how.
    pub broken: BTreeMap<String, String>,
    /// Models in memory, and those on their way, by bytes.
    pub resident: BTreeMap<String, u64>,
    /// Models that give vectors in the place of text.
    pub embedders: Vec<String>,
    /// What a model takes when its caches are small, where that is less.
    pub floors: BTreeMap<String, u64>,
    /// Models whose caches were made small, in their order.
    pub shrunk: Vec<String>,
    /// The most bytes that were in memory at once.
    pub most_bytes: u64,
    /// Loads that were begun, of each model.
    pub loads: BTreeMap<String, u32>,
    /// Loads that were broken off.
    pub broken_off: u32,
    /// Models that were made of others.
    pub recipes: Vec<Recipe>,
    /// Models that were pulled beside those that were there, and their bytes.
    pub pulled: Vec<(String, u64)>,
    /// Models that were deleted.
    pub removed: Vec<String>,
}

struct ShelfLoader {
    shelf: Arc<Mutex<Shelf>>,
    sizes: Vec<(&'static str, u64)>,
    setup: Setup,
}

impl ShelfLoader {
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names and sizes of what is there.
    fn all(&self) -> Vec<(String, u64)> {
        let own = self.sizes.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes));
        let shelf = self.shelf();
        let all = own.chain(shelf.pulled.iter().cloned());
        all.filter(|(name, _)| !shelf.removed.contains(name)).collect()
    }

    fn bytes(&self, id: &str) -> u64 {
        self.all().iter().find(|(name, _)| name == id).expect("one of the list").1
    }

    fn is_embedder(&self, id: &str) -> bool {
        self.shelf().embedders.iter().any(|name| name == id)
    }

    fn fault(&self, id: &str) -> Option<Trouble> {
        let reason = self.shelf().broken.get(id).cloned()?;
        Some(Trouble { reason, of_files: true })
    }
}

impl Loader for ShelfLoader {
    fn list(&self) -> Vec<Listed> {
        let listed = |(name, bytes): (String, u64)| Listed {
            aliases: vec![format!("user/{name}:q8")],
            id: name,
            created: 1_700_000_000,
            bytes,
            digest: String::new(),
        };
        self.all().into_iter().map(listed).collect()
    }

    fn measure(&self, id: &str) -> Result<Needs, Trouble> {
        match self.fault(id) {
            Some(trouble) => Err(trouble),
            None => {
                let bytes = self.bytes(id);
                let floor_bytes = self.shelf().floors.get(id).copied().unwrap_or(bytes);
                Ok(Needs { bytes, floor_bytes, load_s: 0.01 })
            }
        }
    }

    fn abilities(&self, id: &str) -> Option<Abilities> {
        let (context, bytes) = (self.setup.context, self.bytes(id));
        let embeddings = self.is_embedder(id);
        let (chat, rerank) = (!embeddings, embeddings);
        let rest = Abilities::default();
        Some(Abilities { chat, embeddings, rerank, context, bytes, ..rest })
    }

    fn load(&self, id: &str, wanted: &dyn Fn() -> bool) -> Result<ServedModel, NotLoaded> {
        let begin = Instant::now();
        {
            let bytes = self.bytes(id);
            let mut shelf = self.shelf();
            *shelf.loads.entry(id.to_owned()).or_default() += 1;
            let second = shelf.resident.insert(id.to_owned(), bytes);
            assert_eq!(second, None, "a second copy of {id}");
            shelf.most_bytes = shelf.most_bytes.max(shelf.resident.values().sum());
        }
        loop {
            let mut shelf = self.shelf();
            if !wanted() {
                shelf.resident.remove(id);
                shelf.broken_off += 1;
                return Err(NotLoaded::BrokenOff);
            }
            if !shelf.held && begin.elapsed() >= shelf.slow {
                break;
            }
            drop(shelf);
            std::thread::sleep(Duration::from_millis(1));
        }
        let control = SimControl::default();
        let model = match self.is_embedder(id) {
            true => Setup { columns: Some(8), chat: false, ..self.setup.clone() }.model(&control),
            false => self.setup.model(&control),
        };
        let names = vec![id.to_owned(), format!("user/{id}:q8")];
        Ok(ServedModel { names, ..model })
    }

    fn free(&self, id: &str, model: ServedModel) {
        model.engine.shut_down();
        self.shelf().resident.remove(id).expect("it was there");
    }

    fn held_bytes(&self, id: &str, model: &ServedModel) -> u64 {
        let stats = model.engine.stats();
        let blocks: u32 = stats.groups[..stats.group_count].iter().map(|g| g.total).sum();
        assert!(blocks < 2 * self.setup.blocks, "{blocks} blocks of {id}: its caches are large");
        let mut shelf = self.shelf();
        let floor = shelf.floors[id];
        shelf.shrunk.push(id.to_owned());
        shelf.resident.insert(id.to_owned(), floor);
        floor
    }

    fn card(&self, _: &str) -> Option<Card> {
        Some(Card {
            format: "gguf".into(),
            family: "sim".into(),
            parameters: 134_515_008,
            quantization: "Q8_0".into(),
            width: 8,
            defaults: self.setup.defaults.clone(),
            ..Card::default()
        })
    }

    fn changes(&self) -> Result<(), Trouble> {
        Ok(())
    }

    /// Names of `broken` are on no registry; `endless` comes as long as somebody waits for it.
    fn pull(
        &self,
        name: &str,
        on: &mut dyn FnMut(Fetching),
        wanted: IsWanted,
    ) -> Result<(), Trouble> {
        if let Some(trouble) = self.fault(name) {
            return Err(trouble);
        }
        if name == "endless" {
            while wanted() {
                on(Fetching::Bytes { file: "model.gguf".into(), done: 1, total: 100 });
                std::thread::sleep(Duration::from_millis(5));
            }
            self.shelf().broken_off += 1;
            return Err(Trouble { reason: "nobody waits for it".into(), of_files: true });
        }
        for done in [0, 50, 100] {
            on(Fetching::Bytes { file: "model.gguf".into(), done, total: 100 });
        }
        on(Fetching::Words("verifying sha256 digest".into()));
        self.shelf().pulled.push((name.to_owned(), 100));
        Ok(())
    }

    fn remove(&self, id: &str) -> Result<(), Trouble> {
        assert!(!self.shelf().resident.contains_key(id), "{id} is in memory");
        self.shelf().removed.push(id.to_owned());
        Ok(())
    }

    fn recipes(&self) -> Vec<Recipe> {
        self.shelf().recipes.clone()
    }

    fn keep(&self, recipes: &[Recipe]) -> Result<(), Trouble> {
        self.shelf().recipes = recipes.to_vec();
        Ok(())
    }
}

/// A server whose models come and go.
pub struct ShelfSite {
    _server: Running,
    /// Asks the server.
    pub client: Client,
    shelf: Arc<Mutex<Shelf>>,
}

impl ShelfSite {
    /// Models of these sizes under a cap, which stay for a minute.
    pub fn new(setup: Setup, cap_bytes: u64, sizes: &[(&'static str, u64)]) -> Self {
        let shelf = Arc::<Mutex<Shelf>>::default();
        let server = setup.server.clone();
        let loader = ShelfLoader { shelf: Arc::clone(&shelf), sizes: sizes.to_vec(), setup };
        let stock = Stock {
            present: Vec::new(),
            pinned: Vec::new(),
            aliases: Vec::new(),
            loader: Some(Arc::new(loader)),
            cap_bytes,
            keep: KeepAlive::Seconds(60.0),
        };
        let server = spawn(server, stock).expect("the server starts");
        let client = Client::new(server.address());
        Self { _server: server, client, shelf }
    }

    /// What becomes of loads, and what is in memory.
    pub fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often a model was loaded, how many loads were broken off, and who is in memory.
    pub fn seen(&self, id: &str) -> (u32, u32, Vec<String>) {
        let shelf = self.shelf();
        let loads = shelf.loads.get(id).copied().unwrap_or(0);
        (loads, shelf.broken_off, shelf.resident.keys().cloned().collect())
    }

    /// The state of a model as `/v1/models` tells it.
    pub fn status(&self, id: &str) -> serde_json::Value {
        self.client.get(&format!("/v1/models/{id}")).json()["status"].clone()
    }

    /// Waits until a condition holds; panics after some seconds.
    pub fn wait_until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < Duration::from_secs(10), "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until a model is in that state; panics after some seconds.
    pub fn wait_for(&self, id: &str, state: &str) {
        let start = Instant::now();
        while self.status(id)["value"] != state {
            let status = self.status(id);
            assert!(start.elapsed() < Duration::from_secs(10), "{id} is not {state}: {status}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
