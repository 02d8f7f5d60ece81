//! What a sequence keeps between steps: keys and values, latents, recurrent states.

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// 32-bit floats: exact, for goldens.
    F32,
    /// bfloat16, rounded to nearest even.
    Bf16,
    /// Signed codes in 16 bits with one f32 scale a token and head: `x ≈ s·q`, `s = max|x| / 4095`.
    Int16,
    /// Signed bytes with one f32 scale a token and head: `x ≈ s·q`, `s = max|x| / 127`.
    Int8,
    /// Heads after a Hadamard transform, then 4 bits a number with one f16 scale for 32
    /// columns: `x ≈ s·(2q − 15)`, `s = max|x| / 15`. Not for latents.
    Int4,
    /// Keys as `Int8`, values as `Int4`. Not for latents.
    K8V4,
}

impl KvFormat {
    /// Every format, from the widest on.
    pub const ALL: [Self; 6] =
        [Self::F32, Self::Bf16, Self::Int16, Self::Int8, Self::Int4, Self::K8V4];

    /// The format of latents where keys and values have this one: at least bytes, since a
    /// latent is all that its layer keeps of a token.
    pub fn of_latents(self) -> Self {
        match self {
            Self::Int4 | Self::K8V4 => Self::Int8,
            other => other,
        }
    }

    /// Formats of keys and of values.
    #[inline]
    pub const fn parts(self) -> (Self, Self) {
        match self {
            Self::K8V4 => (Self::Int8, Self::Int4),
            other => (other, other),
        }
    }
}

/// What one layer keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheKind {
    /// Keys and values of every token.
    Full {
        /// Key/value heads.
        kv_heads: u32,
        /// Columns of a key head.
        k_dim: u32,
        /// Columns of a value head.
        v_dim: u32,
    },
    /// As `Full`, but only the last `tokens` tokens (the current one included) are ever read.
    Window {
        /// Window length, tokens.
        tokens: u32,
        /// Key/value heads.
        kv_heads: u32,
        /// Columns of a key head.
        k_dim: u32,
        /// Columns of a value head.
        v_dim: u32,
    },
    /// Multi-head latent attention: one row of `latent + rope` numbers a token, shared by all heads.
    Latent {
        /// Columns of the compressed latent (also the value).
        latent: u32,
        /// Columns of the rotated key part.
        rope: u32,
    },
    /// A fixed number of f32 a sequence, whatever its length (convolution tails, recurrent states).
    State {
        /// f32 numbers.
        len: u32,
    },
}

/// A cache of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheSpec {
    /// What is kept.
    pub kind: CacheKind,
    /// Storage format; states are always f32.
    pub format: KvFormat,
    /// Caches of one group share block tables: one block id is a run of tokens in all of them.
    pub group: u32,
}

/// How a group's blocks live; all the scheduler needs to know of caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupKind {
    /// Blocks live as long as their sequence.
    Full,
    /// Blocks behind the window may be given back.
    Window {
        /// Window length, tokens.
        tokens: u32,
    },
    /// One slot a sequence, overwritten in place; a "block" is a slot.
    State,
}

impl CacheSpec {
    /// The kind of the group this cache belongs to.
    pub fn group_kind(&self) -> GroupKind {
        match self.kind {
            CacheKind::Full { .. } | CacheKind::Latent { .. } => GroupKind::Full,
            CacheKind::Window { tokens, .. } => GroupKind::Window { tokens },
            CacheKind::State { .. } => GroupKind::State,
        }
    }

    /// Bytes one token takes in this cache (for a state: bytes of one slot).
    pub fn unit_bytes(&self) -> u64 {
        let row_of = |format: KvFormat, heads: u32, dim: u32| {
            let dim = u64::from(dim);
            u64::from(heads)
                * match format {
                    KvFormat::F32 => dim * 4,
                    KvFormat::Bf16 => dim * 2,
                    KvFormat::Int16 => dim * 2 + 4,
                    KvFormat::Int8 => dim + 4,
                    KvFormat::Int4 | KvFormat::K8V4 => dim.div_ceil(32) * 18,
                }
        };
        let (keys, values) = self.format.parts();
        let row = |heads, dim| row_of(self.format, heads, dim);
        match self.kind {
            CacheKind::Full { kv_heads, k_dim, v_dim }
            | CacheKind::Window { kv_heads, k_dim, v_dim, .. } => {
                row_of(keys, kv_heads, k_dim) + row_of(values, kv_heads, v_dim)
            }
            CacheKind::Latent { latent, rope } => row(1, latent) + row(1, rope),
            CacheKind::State { len } => u64::from(len) * 4,
        }
    }
}
