//! The shared words of tokenmill: what is computed ([`Op`], [`Program`]), on what ([`WeightSpec`],
//! [`CacheSpec`]), for whom ([`Batch`], [`SamplingParams`]) and with which outcome ([`StepOutput`]).
//!
//! Pure: no file, network, thread, clock or environment. Everything here is plain data.

pub mod batch;
pub mod cache;
pub mod checkpoint;
pub mod cost;
pub mod defaults;
pub mod device;
pub mod math;
pub mod mode;
pub mod op;
pub mod program;
pub mod rope;
pub mod sampling;
pub mod view;
pub mod weight;

pub use batch::{
    Batch, BlockCopy, BlockId, MAX_GROUPS, Output, OutputKind, OutputRow, Span, StepOutput,
    TokenSource,
};
pub use cache::{CacheKind, CacheSpec, GroupKind, KvFormat};
pub use checkpoint::{
    Checkpoint, Container, Extent, Meta, MetaError, MetaValue, TensorInfo, visible,
};
pub use cost::{Cost, Load, key_reads};
pub use defaults::{Defaults, SamplingValues};
pub use device::{DeviceCaps, Limits};
pub use mode::Mode;
pub use op::{
    Act, AttendSource, Expr, GateAct, GateOrder, GroupRule, HeadNorm, KeyHead, Mask, NormKind, Op,
    Operand, PoolKind, PositionScale, Rope, RopePairing, RouteRule, RouteScore, Store, Unary,
};
pub use program::{Program, ProgramError};
pub use sampling::{Sampled, SamplingParams};
pub use view::{BufferId, BufferSpec, CacheId, RopeId, Rows, View};
pub use weight::{
    ColumnOrder, Columns, RowPart, RowSlices, SourceError, WeightId, WeightSource, WeightSpec,
    WeightUse,
};

/// A token id of the model's vocabulary.
pub type TokenId = u32;

/// Ids from here on are of no vocabulary: each stands in a text for a row that is in the place of a
/// token, the same for the same row.
pub const FIRST_MEDIA: TokenId = 1 << 31;
