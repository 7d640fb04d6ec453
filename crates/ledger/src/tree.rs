//! The Merkle tree of RFC 6962 over the hashes of all events, in ledger order, and its proofs.
//!
//! A root commits to every event before it. A proof shows that an event is included under a root, or that one
//! root extends another, without revealing the other events.

use crate::hash::{Hash, hash_parts, sha256};

/// An append-only tree. It stores one hash per full subtree instead of the leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    size: u64,
    /// Roots of the full subtrees, largest first: one for each set bit of `size`.
    peaks: Vec<Hash>,
}

impl Tree {
    pub fn push(&mut self, event: &Hash) {
        self.push_leaf(leaf(event.as_bytes()));
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn root(&self) -> Hash {
        let mut peaks = self.peaks.iter().rev().copied();
        let Some(smallest) = peaks.next() else { return sha256(&[]) };
        peaks.fold(smallest, |right, left| node(&left, &right))
    }

    fn push_leaf(&mut self, mut subtree: Hash) {
        for _ in 0..self.size.trailing_ones() {
            if let Some(left) = self.peaks.pop() {
                subtree = node(&left, &subtree);
            }
        }
        self.peaks.push(subtree);
        self.size += 1;
    }
}

impl Extend<Hash> for Tree {
    fn extend<I: IntoIterator<Item = Hash>>(&mut self, events: I) {
        events.into_iter().for_each(|event| self.push(&event));
    }
}

/// The audit path from the event at `index` to the root of all `events`, or `None` if there is no such event.
pub fn prove_inclusion(events: &[Hash], index: usize) -> Option<Vec<Hash>> {
    (index < events.len()).then(|| path(events, index))
}

/// Proves that the tree of all events extends the tree of the first `old` ones; `None` if `old` is too large.
pub fn prove_consistency(events: &[Hash], old: usize) -> Option<Vec<Hash>> {
    match old {
        0 => Some(Vec::new()),
        old if old <= events.len() => Some(subproof(events, old, true)),
        _ => None,
    }
}

/// Whether `proof` shows that `event` is at `index` in the tree with this size and root.
pub fn verify_inclusion(event: &Hash, index: u64, size: u64, root: &Hash, proof: &[Hash]) -> bool {
    leaf_is_included(leaf(event.as_bytes()), index, size, root, proof)
}

/// Whether `proof` shows that the new tree extends the old one.
pub fn verify_consistency(old: (u64, &Hash), new: (u64, &Hash), proof: &[Hash]) -> bool {
    let ((old_size, old_root), (new_size, new_root)) = (old, new);
    if old_size > new_size || old_size == 0 || old_size == new_size {
        let empty = old_size > 0 || *old_root == sha256(&[]);
        let same = old_size != new_size || old_root == new_root;
        return old_size <= new_size && empty && same && proof.is_empty();
    }
    // If the old tree is full, its root is the first node, and the proof does not repeat it.
    let (first, rest) = match proof.split_first() {
        _ if old_size.is_power_of_two() => (*old_root, proof),
        Some((first, rest)) => (*first, rest),
        None => return false,
    };
    let (mut old_node, mut new_node) = (old_size - 1, new_size - 1);
    while old_node & 1 == 1 {
        (old_node, new_node) = (old_node >> 1, new_node >> 1);
    }
    let (mut old_hash, mut new_hash) = (first, first);
    for step in rest {
        if new_node == 0 {
            return false;
        }
        if old_node & 1 == 1 || old_node == new_node {
            (old_hash, new_hash) = (node(step, &old_hash), node(step, &new_hash));
            while old_node & 1 == 0 && old_node != 0 {
                (old_node, new_node) = (old_node >> 1, new_node >> 1);
            }
        } else {
            new_hash = node(&new_hash, step);
        }
        (old_node, new_node) = (old_node >> 1, new_node >> 1);
    }
    new_node == 0 && old_hash == *old_root && new_hash == *new_root
}

fn leaf_is_included(leaf: Hash, index: u64, size: u64, root: &Hash, proof: &[Hash]) -> bool {
    if index >= size {
        return false;
    }
    let (mut at, mut last, mut hash) = (index, size - 1, leaf);
    for step in proof {
        if last == 0 {
            return false;
        }
        if at & 1 == 1 || at == last {
            hash = node(step, &hash);
            while at & 1 == 0 && at != 0 {
                (at, last) = (at >> 1, last >> 1);
            }
        } else {
            hash = node(&hash, step);
        }
        (at, last) = (at >> 1, last >> 1);
    }
    last == 0 && hash == *root
}

fn path(events: &[Hash], index: usize) -> Vec<Hash> {
    if events.len() <= 1 {
        return Vec::new();
    }
    let (left, right) = events.split_at(split(events.len()));
    let (mut proof, sibling) = match index.checked_sub(left.len()) {
        None => (path(left, index), right),
        Some(index) => (path(right, index), left),
    };
    proof.push(root_of(sibling));
    proof
}

fn subproof(events: &[Hash], old: usize, whole: bool) -> Vec<Hash> {
    if old == events.len() {
        return if whole { Vec::new() } else { vec![root_of(events)] };
    }
    let (left, right) = events.split_at(split(events.len()));
    let (mut proof, sibling) = match old.checked_sub(left.len()) {
        None | Some(0) => (subproof(left, old, whole), right),
        Some(old) => (subproof(right, old, false), left),
    };
    proof.push(root_of(sibling));
    proof
}

/// The largest power of two below `count`, which is at least 2.
fn split(count: usize) -> usize {
    1 << (count - 1).ilog2()
}

fn root_of(events: &[Hash]) -> Hash {
    let mut tree = Tree::default();
    tree.extend(events.iter().copied());
    tree.root()
}

fn leaf(data: &[u8]) -> Hash {
    hash_parts(&[&[0], data])
}

fn node(left: &Hash, right: &Hash) -> Hash {
    hash_parts(&[&[1], left.as_bytes(), right.as_bytes()])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Test vectors published with Certificate Transparency.
    #[test]
    fn matches_certificate_transparency_test_vectors() {
        let leaves = [
            "",
            "00",
            "10",
            "2021",
            "3031",
            "40414243",
            "5051525354555657",
            "606162636465666768696a6b6c6d6e6f",
        ];
        let roots = [
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
            "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
            "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
            "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
            "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
            "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
        ];
        let mut tree = Tree::default();
        assert_eq!(tree.root(), sha256(b""));
        for (data, root) in leaves.iter().zip(roots) {
            tree.push_leaf(leaf(&hex::decode(data).unwrap()));
            assert_eq!(tree.root().to_string(), root);
        }
        assert_eq!(tree.size(), 8);
    }

    fn events(count: u64) -> Vec<Hash> {
        (0..count).map(|number| sha256(&number.to_be_bytes())).collect()
    }

    #[test]
    fn inclusion_proofs_hold_for_all_small_trees() {
        for size in 1..40 {
            let events = events(size);
            let root = root_of(&events);
            for (index, event) in (0..).zip(&events) {
                let proof = prove_inclusion(&events, usize::try_from(index).unwrap()).unwrap();
                assert!(verify_inclusion(event, index, size, &root, &proof), "{index} of {size}");
                assert!(!verify_inclusion(event, index + 1, size, &root, &proof), "{index} of {size}");
                assert!(!verify_inclusion(&root, index, size, &root, &proof));
                let longer = [&proof[..], &[root]].concat();
                assert!(!verify_inclusion(event, index, size, &root, &longer));
                if let Some((_, shorter)) = proof.split_last() {
                    assert!(!verify_inclusion(event, index, size, &root, shorter));
                }
            }
        }
        assert_eq!(prove_inclusion(&events(3), 3), None);
    }

    #[test]
    fn consistency_proofs_hold_for_all_small_trees() {
        for size in 0..34 {
            let events = events(size);
            let root = root_of(&events);
            for old in 0..=size {
                let count = usize::try_from(old).unwrap();
                let old_root = root_of(&events[..count]);
                let proof = prove_consistency(&events, count).unwrap();
                assert!(verify_consistency((old, &old_root), (size, &root), &proof), "{old} of {size}");
                assert!(!verify_consistency((size, &root), (old, &old_root), &proof) || old == size);
                let longer = [&proof[..], &[root]].concat();
                assert!(!verify_consistency((old, &old_root), (size, &root), &longer), "{old} of {size}");
                let wrong = sha256(b"another");
                assert!(!verify_consistency((old, &wrong), (size, &root), &proof), "{old} of {size}");
                if old > 0 {
                    assert!(!verify_consistency((old, &old_root), (size, &wrong), &proof), "{old} of {size}");
                }
            }
        }
        assert_eq!(prove_consistency(&events(3), 4), None);
    }

    proptest! {
        /// Generalizes the published negative test vectors: any other proof, size or index is rejected.
        #[test]
        fn a_changed_proof_is_rejected(size in 2_u64..200, at in any::<u64>(), which in any::<usize>(), bit in 0..256_usize) {
            let events = events(size);
            let (root, index) = (root_of(&events), usize::try_from(at % size).unwrap());
            let mut proof = prove_inclusion(&events, index).unwrap();
            let step = which % proof.len();
            let mut bytes = *proof[step].as_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            proof[step] = Hash::from_bytes(bytes);
            prop_assert!(!verify_inclusion(&events[index], at % size, size, &root, &proof));
        }
    }
}
