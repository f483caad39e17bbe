"""Simulates how much GPU memory torch's caching allocator reserves for a list of allocations.

The rules are those of c10/cuda/CUDACachingAllocator.cpp (torch 2.13), on one stream. Sizes are
rounded to 512 bytes. With default settings, blocks of at most 1 MiB are parts of 2 MiB segments,
blocks below 10 MiB of 20 MiB segments; a larger block has a separate segment, rounded to 2 MiB.

With expandable_segments, all blocks of at most 1 MiB are in one segment that grows by 2 MiB, and
all others in one that grows by 20 MiB, so that few pieces are left over.

The allocator takes the smallest free block that is large enough, and splits it if enough is left.
It keeps segments. On a full GPU it frees the empty segments and retries: the run gets slower before
it fails.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

MIB = 2**20
ROUNDED = 512
SMALL = MIB
SMALL_SEGMENT = 2 * MIB
MIDDLE = 10 * MIB
MIDDLE_SEGMENT = 20 * MIB
LARGE_ROUNDED = 2 * MIB
# Where the expandable segment of small blocks begins: far behind the other one.
SMALL_ADDRESSES = 2**50


@dataclass(kw_only=True)
class _Block:
    address: int
    size: int
    small: bool
    before: _Block | None = None
    after: _Block | None = None
    free: bool = False


class Allocator:
    """An allocator on a GPU with unlimited memory."""

    def __init__(self, *, expandable: bool = False) -> None:
        self._expandable = expandable
        self._last = dict[bool, _Block]()
        """The last blocks of the two expandable segments: of small ones, and of others."""
        self.reserved = 0
        """Total bytes of all segments."""
        self.allocated = 0
        """Total bytes of all blocks in use, rounded."""
        self.peak = 0
        """The most bytes of blocks in use so far."""
        self._used: dict[int, _Block] = {}
        # Free small blocks and other free blocks, by size and then by address.
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._at: dict[int, _Block] = {}
        self._end = 0

    def allocate(self, size: int) -> int:
        """Allocate bytes and return their address."""
        needed = -(-size // ROUNDED) * ROUNDED
        small = needed <= SMALL
        block = self._found(needed, small) or self._made(needed, small)
        rest = block.size - needed
        if rest >= ROUNDED if small or self._expandable else rest > SMALL:
            self._split(block, needed)
        self._used[block.address] = block
        self.allocated += block.size
        self.peak = max(self.peak, self.allocated)
        return block.address

    def release(self, address: int) -> None:
        """Free the block at this address."""
        block = self._used.pop(address)
        self.allocated -= block.size
        for other in (block.before, block.after):
            if other is not None and other.free:
                self._take(other)
                block = self._joined(block, other)
        block.free = True
        self._at[block.address] = block
        insort(self._free[block.small], (block.size, block.address))

    def _found(self, size: int, small: bool) -> _Block | None:
        rows = self._free[small]
        place = bisect_left(rows, (size, 0))
        if place == len(rows):
            return None
        if place + 1 < len(rows) and self._at[rows[place][1]] is self._last.get(small):
            # It counts as large as it can grow.
            place += 1
        block = self._at[rows[place][1]]
        self._take(block)
        return block

    def _take(self, block: _Block) -> None:
        rows = self._free[block.small]
        rows.pop(bisect_left(rows, (block.size, block.address)))
        del self._at[block.address]
        block.free = False

    def _made(self, size: int, small: bool) -> _Block:
        if self._expandable:
            return self._grown(size, small)
        if small:
            segment = SMALL_SEGMENT
        elif size < MIDDLE:
            segment = MIDDLE_SEGMENT
        else:
            segment = -(-size // LARGE_ROUNDED) * LARGE_ROUNDED
        block = _Block(address=self._end, size=segment, small=small)
        self._end += segment
        self.reserved += segment
        return block

    def _grown(self, size: int, small: bool) -> _Block:
        """The last block of the segment that grows, if it is free, or a new one behind it."""
        last = self._last.get(small)
        if last is not None and last.free:
            self._take(last)
            block = last
        else:
            address = last.address + last.size if last is not None else small * SMALL_ADDRESSES
            block = _Block(address=address, size=0, small=small, before=last)
            if last is not None:
                last.after = block
        page = SMALL_SEGMENT if small else MIDDLE_SEGMENT
        more = -(-(size - block.size) // page) * page
        block.size += more
        self.reserved += more
        self._last[small] = block
        return block

    def _split(self, block: _Block, size: int) -> None:
        rest = _Block(
            address=block.address + size,
            size=block.size - size,
            small=block.small,
            before=block,
            after=block.after,
            free=True,
        )
        if block.after is not None:
            block.after.before = rest
        block.size, block.after = size, rest
        if self._last.get(block.small) is block:
            self._last[block.small] = rest
        self._at[rest.address] = rest
        insort(self._free[rest.small], (rest.size, rest.address))

    def _joined(self, block: _Block, other: _Block) -> _Block:
        first, second = (other, block) if other is block.before else (block, other)
        first.size += second.size
        first.after = second.after
        if self._last.get(block.small) is second:
            self._last[block.small] = first
        if second.after is not None:
            second.after.before = first
        return first


def replay(sizes: Iterable[tuple[int, int]], *, expandable: bool = False) -> Allocator:
    """Replay allocations: pairs of a block's number and its new size; size 0 frees the block."""
    allocator, places = Allocator(expandable=expandable), dict[int, int]()
    for number, size in sizes:
        if number in places:
            allocator.release(places.pop(number))
        if size:
            places[number] = allocator.allocate(size)
    return allocator
