//! The engine: models that serve, turned by one thread for each device, and the handles through which
//! requests reach them. It speaks tokens and events; it knows no socket and no JSON protocol.

pub mod direct;
pub mod kv_divergence;
pub mod ledger;
pub mod loading;
pub mod planner;
pub mod residency;
pub mod serving;

pub use loading::{
    describe, door, encoder, library, load, packaged, plan, sight, start, vocabulary,
};
use serving::{answer, draft, eyes, feed, pictures, queue, repeats, rows, stats, vision};
pub use serving::{
    backlog, constraint, draft_model, engine, handle, host, request, sampling, tier, timeline,
};

pub use answer::Sink;
pub use draft::DraftMode;
pub use engine::{Clock, Core, EngineParts, Rebuild, Ticket, Turn};
pub use eyes::{Eyes, EyesError};
pub use feed::{CacheFeed, CacheNews, Medium};
pub use handle::{Cancel, Engine, Events, LeasesAsk, LeasesSink, RowsError, system_clock};
pub use host::{Host, ModelId, Rota};
pub use ledger::{Entry, Ledger, Memory, State};
pub use pictures::{Outline, PictureError, Sketch, Tile, Tiles};
pub use queue::NOBODY;
pub use repeats::{RepeatRule, Repeated};
pub use request::{
    Divergence, Event, Lease, Leased, Reading, Refusal, Request, RequestError, StopReason,
    TokenInfo, TopToken, Usage,
};
pub use residency::KeepAlive;
pub use rows::{Rows, Scored, cosine, relevance};
pub use sampling::Sampling;
pub use sight::Sight;
pub use stats::{EngineStats, STEP_BOUNDS_S};
pub use timeline::{Chunk, Ending, Part, Timekeeper, Timeline};
pub use tokenmill_ir::{Defaults, SamplingValues};
pub use tokenmill_output as output;
pub use tokenmill_sched::{Change, Changes, Embeddings, Inputs, Media, Miss, Numbers};
pub use vision::{Glance, Look, Patches, RowsSink, Viewer, Vision};
