"""PrefixIndex: finds the KV blocks that already hold the beginning of a prompt.

A trie in one dictionary. A node is a full block of tokens after a certain prefix:

    (parent node, the block's tokens as bytes) -> block;      a root per salt, so that tenants never share

Keys hold the tokens themselves, so a hit is exact and there is no hash to collide. A block is entered only after the
step that computed it has been collected, and leaves when its memory is handed out again. Requests that computed equal
blocks in one step have twins: one is in the index, and another takes its place when that one leaves first.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]


class PrefixIndex:
    def __init__(self, block_size: int, enabled: bool) -> None:
        self.enabled = enabled
        self._block_size = block_size
        self._block_at: dict[tuple[int, bytes], int] = {}
        self._key_of: dict[int, tuple[int, bytes]] = {}
        self._node_of: dict[int, int] = {}  # block -> its node number
        self._block_of: dict[int, int] = {}  # node -> the block of it
        self._twins: dict[int, list[int]] = {}  # block -> others of the same content, which their owners hold
        self._twin_of: dict[int, int] = {}  # such another -> the block that is in the index
        self._roots: dict[str, int] = {}
        self._root_nodes: set[int] = set()
        self._next_node = 0

    def __contains__(self, block: int) -> bool:
        return block in self._key_of

    def __len__(self) -> int:
        return len(self._key_of)

    def root(self, salt: str) -> int:
        if salt not in self._roots:
            self._roots[salt] = node = self._new_node()
            self._root_nodes.add(node)
        return self._roots[salt]

    def match(self, salt: str, tokens: Tokens, known: int) -> list[int]:
        """Blocks that hold the longest computed prefix of tokens[:known], leaving at least one token to compute."""
        found: list[int] = []
        node = self.root(salt)
        for at in range(0, known - self._block_size, self._block_size):
            block = self._block_at.get((node, tokens[at : at + self._block_size].tobytes()))
            if block is None:
                break
            found.append(block)
            node = self._node_of[block]
        return found

    def publish(self, parent: int, tokens: Tokens, block: int) -> int:
        """Enter a computed block; returns the node that is its successor's parent.

        Where the same content is there already, that one stays, and this block is its twin until it is dropped.
        """
        key = (parent, tokens.tobytes())
        if (known := self._block_at.get(key)) is not None:
            self._twins.setdefault(known, []).append(block)
            self._twin_of[block] = known
            return self._node_of[known]
        self._block_at[key] = block
        self._key_of[block] = key
        self._node_of[block] = node = self._new_node()
        self._block_of[node] = block
        return node

    def parent(self, block: int) -> int | None:
        """The block below which this one of the index is entered; None if it is a first one."""
        return self._block_of.get(self._key_of[block][0])

    def is_reachable(self, block: int) -> bool:
        """Whether what this block of the index is entered below is there too: a root, or a block of the index."""
        parent = self._key_of[block][0]
        return parent in self._block_of or parent in self._root_nodes

    def node(self, block: int) -> int:
        return self._node_of[block]

    def forget(self, block: int) -> None:
        """The block is handed out again. A twin takes its place, so what was entered below it is still found."""
        key, node = self._key_of.pop(block), self._node_of.pop(block)
        del self._block_at[key], self._block_of[node]
        if not (twins := self._twins.pop(block, [])):
            return
        heir, *others = twins
        self._block_at[key], self._key_of[heir], self._node_of[heir] = heir, key, node
        self._block_of[node] = heir
        del self._twin_of[heir]
        if others:
            self._twins[heir] = others
            self._twin_of.update(dict.fromkeys(others, heir))

    def drop_twin(self, block: int) -> int | None:
        """The block is free. Returns the one in the index with its content; None if it was no twin."""
        if (known := self._twin_of.pop(block, None)) is not None:
            self._twins[known].remove(block)
            if not self._twins[known]:
                del self._twins[known]
        return known

    def check_invariants(self, pending: Collection[int] = ()) -> None:
        """Every block in the index can be found from a root, but for those pending."""
        hanging = [block for block in self._key_of if block not in pending and not self.is_reachable(block)]
        assert not hanging, f"entered below one that is gone: {hanging}"
        assert self._key_of.keys() == self._node_of.keys() == set(self._block_at.values())
        assert sorted(self._twin_of.items()) == sorted((b, k) for k, twins in self._twins.items() for b in twins)
        assert not self._twin_of.keys() & self._key_of.keys()

    def _new_node(self) -> int:
        self._next_node += 1
        return self._next_node
