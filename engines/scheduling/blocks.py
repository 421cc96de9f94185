"""BlockPool: where every KV block is. Exactly one of

    free       never handed out, or forgotten
    held       in at least one block table (its reference count says in how many)
    pending    given back, but a launched step may still write it (its fence has not been passed)
    cached     given back, its content is still in the prefix index; handed out again, oldest first, when free runs out

Usable blocks are 1..num_blocks; block 0 is the dummy that absorbs padding writes and is never handed out.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

from engines.scheduling.prefix import PrefixIndex


class BlockPool:
    def __init__(self, num_blocks: int, index: PrefixIndex) -> None:
        self.num_blocks = num_blocks
        self._index = index
        # A pool may have millions of blocks, and most runs touch few: those never handed out are only counted.
        self._references = [0]  # of blocks that ever were, and of the dummy
        self._free: deque[int] = deque()  # given back, longest free first; all others were free before these
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently given back first
        self._pending: list[tuple[int, list[int]]] = []  # (fence step, blocks)
        self._num_pending = 0

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, at the price of forgetting cached content."""
        return self._num_unused + len(self._free) + len(self._cached)

    @property
    def _num_unused(self) -> int:
        """Blocks that were never handed out: those from len(self._references) on."""
        return self.num_blocks + 1 - len(self._references)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_pending(self) -> int:
        return self._num_pending

    @property
    def num_held(self) -> int:
        return len(self._references) - 1 - len(self._free) - len(self._cached) - self._num_pending

    def take(self, count: int) -> list[int]:
        """`count` blocks for one owner, longest free first, then the least recently used of the cache. The caller has
        checked num_free."""
        unused = min(count, self._num_unused)
        begin = len(self._references)
        blocks = list(range(begin, begin + unused))
        self._references.extend([1] * unused)
        if unused == count:
            return blocks
        free = min(count - unused, len(self._free))
        blocks += [self._free.popleft() for _ in range(free)]
        for _ in range(count - unused - free):
            block, _nothing = self._cached.popitem(last=False)
            self._index.forget(block)
            blocks.append(block)
        for block in blocks:
            self._references[block] = 1
        return blocks

    def num_cached_of(self, blocks: Iterable[int]) -> int:
        """How many of these would leave the cache if shared: they count against num_free."""
        return sum(block in self._cached for block in blocks)

    def sharable(self, block: int) -> bool:
        return self._references[block] > 0 or block in self._cached

    def share(self, blocks: Iterable[int]) -> None:
        """One more table holds each of these blocks."""
        for block in blocks:
            self._references[block] += 1
            self._cached.pop(block, None)

    def release(self, blocks: list[int], fence: int, collected: int) -> None:
        """One table fewer holds each block. What no table holds can be handed out once step `fence` is collected
        (`collected` is the newest such step). The deepest block of a table is forgotten first."""
        gone = []
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                gone.append(block)
        if fence <= collected:
            self._recycle(gone)
        elif gone:
            self._pending.append((fence, gone))
            self._num_pending += len(gone)

    def pass_fence(self, collected: int) -> None:
        """Step `collected` has ended: what waited for it can be handed out."""
        if not self._pending:
            return
        for fence, blocks in self._pending:
            if fence <= collected:
                self._recycle(blocks)
                self._num_pending -= len(blocks)
        self._pending = [(fence, blocks) for fence, blocks in self._pending if fence > collected]

    def _recycle(self, blocks: list[int]) -> None:
        if not self._index.enabled:
            self._free.extend(blocks)
            return
        # Another table may have given back the blocks above these while they were pending. The highest come last.
        for block in reversed(blocks):
            if block in self._index and not self._index.is_reachable(block):
                self._index.forget(block)
        for block in blocks:
            if block in self._index:
                self._cached[block] = None
                self._keep_longer(self._index.parent(block))
                continue
            self._free.append(block)
            # What its owner entered below a twin hangs on the other now, which must not leave before that.
            self._keep_longer(self._index.drop_twin(block))

    def _keep_longer(self, block: int | None) -> None:
        """A cached block and those above it are forgotten after what has just been cached below it."""
        while block is not None and block in self._cached:
            self._cached.move_to_end(block)
            block = self._index.parent(block)

    def references(self, block: int) -> int:
        return self._references[block]

    def check_invariants(self, owned: list[int]) -> None:
        """`owned`: every entry of every table. Each block is in one place, with the right count."""
        pending = [block for _, blocks in self._pending for block in blocks]
        assert self._num_pending == len(pending)
        unused = range(len(self._references), self.num_blocks + 1)
        everything = sorted([*unused, *self._free, *self._cached, *pending, *set(owned)])
        assert everything == list(range(1, self.num_blocks + 1)), f"blocks lost or doubled: {everything}"
        for block in range(1, len(self._references)):
            assert self._references[block] == owned.count(block), f"block {block}: wrong reference count"
        self._index.check_invariants(pending)
        assert all(block in self._index for block in self._cached)
        assert not any(block in self._index for block in self._free)
