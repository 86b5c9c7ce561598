//! Room that the layers of one image take up while they come, several at once, against what all images may have. Compressed
//! sizes say nothing about that, and one layer alone says little.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{Digest, ImageError};

/// The room of one image, seen by all who bring its layers.
#[derive(Clone)]
pub struct Room {
    budget: u64,
    taken: Arc<Mutex<BTreeMap<Digest, u64>>>,
}

impl Room {
    /// None of it taken.
    pub fn of(budget: u64) -> Self {
        Self { budget, taken: Arc::default() }
    }

    /// A layer takes up so much by now; an error if that is too much with all others.
    pub fn take(&self, layer: &Digest, bytes: u64) -> Result<(), ImageError> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.insert(layer.clone(), bytes);
        let sum = taken.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        if sum > self.budget { Err(too_much(self.budget)) } else { Ok(()) }
    }

    /// What the others leave to a layer.
    pub fn left_to(&self, layer: &Digest) -> u64 {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let others = taken.iter().filter(|(other, _)| *other != layer).map(|(_, bytes)| *bytes);
        self.budget.saturating_sub(others.fold(0, u64::saturating_add))
    }
}

fn too_much(budget: u64) -> ImageError {
    let budget = budget >> 20;
    ImageError::malformed(format!(
        "its layers take up more than the {budget} MiB that the setting `image_budget` allows for all images together"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_share_what_there_is() {
        let (one, other) = (Digest::of(b"one"), Digest::of(b"other"));
        let room = Room::of(100);
        assert!(room.take(&one, 40).is_ok() && room.take(&one, 60).is_ok(), "the same layer, further on");
        assert_eq!((room.left_to(&other), room.left_to(&one)), (40, 100));
        assert!(room.take(&other, 40).is_ok() && room.take(&other, 41).is_err());
        assert!(room.take(&other, u64::MAX).is_err());
    }
}
