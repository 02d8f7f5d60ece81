//! Why a prompt was not found in the prefix cache, and why a sequence has no part of a step.

use crate::block_pool::NONE;
use crate::cache::KvCache;
use crate::scheduler::Scheduler;
use crate::sequence::{SeqId, Sequence, Want};

/// Why no more of a prompt was found in the prefix cache than was. It tells of texts of the same salt
/// only: whether others sent the same is not to be found out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Miss {
    /// All was found that can be: the last token is always computed, and with it its block.
    Nothing,
    /// The prompt is shorter than a block and a token.
    Short,
    /// The model shares no prefixes.
    Unshared,
    /// Rows of the prompt's tokens are wanted, which are not kept.
    Rows,
    /// No text of this salt begins with the same block.
    #[default]
    New,
    /// Cached texts go on differently there, or end.
    Differs,
    /// It was there, and gave its place to others.
    Evicted,
    /// The block is there, but not what windows and states need to go on behind it; or it ends within
    /// tokens that see each other.
    Incomplete,
}

/// Why a sequence had no part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It was held back by the caller.
    HeldBack,
    /// It gave its blocks up.
    Memory,
    /// It has not begun: it waits for a place, or for time in a step.
    Place,
    /// It has not begun: there are too few blocks for it, or for one that comes before it.
    Blocks,
    /// The step had no room left for it.
    Room,
}

impl KvCache {
    /// Why no more was found for a sequence that was just attached, of at most `most` tokens.
    pub fn miss(&self, seq: &Sequence, most: u32) -> Miss {
        let size = self.block_tokens;
        if !self.is_shared() {
            return Miss::Unshared;
        }
        if seq.tokens.len() as u32 <= size {
            return Miss::Short;
        }
        let (begin, end) = (seq.attached * size, (seq.attached + 1) * size);
        if end > most {
            let is_text = matches!(seq.want, Want::Tokens { .. });
            return if is_text || most + 1 >= seq.goal() { Miss::Nothing } else { Miss::Rows };
        }
        let Some(block) = seq.tokens.get(begin as usize..end as usize) else {
            return Miss::Nothing;
        };
        let parent = seq.path.last().copied().unwrap_or(NONE);
        match () {
            () if self.tree.child(parent, seq.salt, block).is_some() => Miss::Incomplete,
            () if self.tree.was_child(parent, seq.salt, block) => Miss::Evicted,
            () if parent == NONE => Miss::New,
            () => Miss::Differs,
        }
    }
}

impl Scheduler {
    /// The caller's name of a sequence.
    pub fn key(&self, id: SeqId) -> Option<u64> {
        self.get(id).map(|seq| seq.key)
    }

    /// Tokens that a sequence was submitted with.
    pub fn prompt(&self, id: SeqId) -> Option<u32> {
        self.get(id).map(|seq| seq.prompt)
    }

    /// Why a sequence had no part of the step that was planned last, if it had none.
    pub fn wait(&self, id: SeqId) -> Option<Wait> {
        let seq = self.get(id)?;
        Some(match self.place_in_running(id.slot) {
            _ if seq.held_back => Wait::HeldBack,
            Ok(_) => Wait::Room,
            Err(_) if seq.started => Wait::Memory,
            Err(_) if self.lacks_blocks => Wait::Blocks,
            Err(_) => Wait::Place,
        })
    }
}
