//! The prompts that wait for their turn. Their contents are in the database.

use std::collections::VecDeque;

use store::QueuedPrompt;

/// The maximum number and total size of queued prompts.
const MAX_PROMPTS: usize = 100;
const MAX_BYTES: u64 = 64 * 1024 * 1024;

pub(super) struct PromptQueue {
    prompts: VecDeque<QueuedPrompt>,
    /// The length that was last broadcast.
    broadcast_len: usize,
}

impl PromptQueue {
    pub(super) fn new(prompts: Vec<QueuedPrompt>) -> Self {
        Self { prompts: prompts.into(), broadcast_len: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.prompts.is_empty()
    }

    /// Whether the queue accepts another prompt of this size.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        let queued: u64 = self.prompts.iter().map(|prompt| prompt.bytes).sum();
        self.prompts.len() < MAX_PROMPTS && queued.saturating_add(bytes) <= MAX_BYTES
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.prompts.iter().any(|prompt| prompt.id == id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &QueuedPrompt> {
        self.prompts.iter()
    }

    pub(super) fn front(&self) -> Option<&QueuedPrompt> {
        self.prompts.front()
    }

    pub(super) fn push(&mut self, prompt: QueuedPrompt) {
        self.prompts.push_back(prompt);
    }

    pub(super) fn pop(&mut self) {
        self.prompts.pop_front();
    }

    pub(super) fn remove(&mut self, id: &str) {
        self.prompts.retain(|prompt| prompt.id != id);
    }

    /// Removes all prompts and returns their ids.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = String> + use<> {
        std::mem::take(&mut self.prompts).into_iter().map(|prompt| prompt.id)
    }

    /// Returns the length if it is not the one that was last returned, for a broadcast.
    pub(super) fn changed_len(&mut self) -> Option<usize> {
        let len = self.prompts.len();
        (std::mem::replace(&mut self.broadcast_len, len) != len).then_some(len)
    }
}
