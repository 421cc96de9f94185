"""PrefixIndex: finds the KV blocks that already hold the beginning of a prompt.

A trie in one dictionary. A node is a full block of tokens after a certain prefix:

    (parent node, the block's tokens as bytes) -> block;      a root per salt, so that tenants never share

Keys hold the tokens themselves, so a hit is exact and there is no hash to collide. A block is entered only after the
step that computed it has been collected, and leaves when its memory is handed out again. Node numbers are never
reused: a child whose parent was forgotten can no longer be found, and is recycled in its turn.
"""

from __future__ import annotations

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
        self._roots: dict[str, int] = {}
        self._next_node = 0

    def __contains__(self, block: int) -> bool:
        return block in self._key_of

    def __len__(self) -> int:
        return len(self._key_of)

    def root(self, salt: str) -> int:
        if salt not in self._roots:
            self._roots[salt] = self._new_node()
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

        Where the same content is there already, that one stays and this block remains its owner's alone.
        """
        key = (parent, tokens.tobytes())
        if (known := self._block_at.get(key)) is not None:
            return self._node_of[known]
        self._block_at[key] = block
        self._key_of[block] = key
        self._node_of[block] = node = self._new_node()
        return node

    def node(self, block: int) -> int:
        return self._node_of[block]

    def forget(self, block: int) -> None:
        del self._block_at[self._key_of.pop(block)]
        del self._node_of[block]

    def _new_node(self) -> int:
        self._next_node += 1
        return self._next_node
