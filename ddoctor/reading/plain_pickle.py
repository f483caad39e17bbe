"""Reads pickles of plain containers, in bounded memory, and executes nothing.

torch writes such files with Python's pickle module (protocol 4 or 5), and with its pickler in C++
(torch/csrc/jit/serialization/pickler.cpp, protocol 2). Python's unpickler would call what a pickle
names, and a few bytes make it ask for gigabytes.
"""

from __future__ import annotations

import struct
import sys
from struct import Struct
from typing import Any

MOST_HELD = 512 * 2**20
"""Bytes of memory of the objects."""
CHECKED = 2**16
"""Bytes of input after which the memory is checked: one byte makes at most about 100 of memory."""
POINTER, NUMBER = 8, 32
"""Bytes of memory of a reference, and of a number."""
LONGEST_NUMBER = 16
"""Bytes of an integer; torch writes at most 8."""

_INT, _UINT, _LONG, _FLOAT = Struct("<i"), Struct("<I"), Struct("<Q"), Struct(">d")


def loads(data: bytes) -> Any:
    """Return the dicts, lists, tuples, texts and numbers of a pickle.

    Raises:
        ValueError: it holds something else, takes too much memory, or is damaged.
    """
    try:
        return _Machine(data).run()
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise ValueError("the pickle is damaged") from error


class _Machine:
    """The stack machine of a pickle; opcodes are in Python's pickle.py and pickletools.py."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._held = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: list[Any] = []

    def run(self) -> Any:
        data, stack, marks, memo = self._data, self._stack, self._marks, self._memo
        at, check = 0, 0
        while True:
            if at >= check:
                self._check()
                check = at + CHECKED
            code = data[at : at + 1]
            at += 1
            # The most frequent ones come first.
            if code == b"h":  # BINGET
                stack.append(memo[data[at]])
                at += 1
            elif code == b"j":  # LONG_BINGET
                stack.append(memo[_UINT.unpack_from(data, at)[0]])
                at += 4
            elif code == b"\x94":  # MEMOIZE
                memo.append(stack[-1])
            elif code == b"K":  # BININT1
                stack.append(data[at])
                at += 1
            elif code == b"J":  # BININT
                stack.append(_INT.unpack_from(data, at)[0])
                self._held += NUMBER
                at += 4
            elif code == b"\x8a":  # LONG1
                size = data[at]
                if size > LONGEST_NUMBER:
                    raise ValueError("a number is too long")
                stack.append(int.from_bytes(self._bytes(at + 1, size), "little", signed=True))
                self._held += NUMBER
                at += 1 + size
            elif code == b"}":  # EMPTY_DICT
                self._push({})
            elif code == b"(":  # MARK
                marks.append(len(stack))
            elif code == b"u":  # SETITEMS
                self._fill(marks.pop())
            elif code == b"]":  # EMPTY_LIST
                self._push([])
            elif code == b"e":  # APPENDS
                self._extend(marks.pop())
            elif code == b"a":  # APPEND
                self._extend(len(stack) - 1)
            elif code == b"s":  # SETITEM
                self._fill(len(stack) - 2)
            elif code == b"M":  # BININT2
                stack.append(data[at] | data[at + 1] << 8)
                self._held += NUMBER
                at += 2
            elif code in _TEXTS:
                length = _TEXTS[code]
                start = at + length.size
                (size,) = length.unpack_from(data, at)
                self._push(self._bytes(start, size).decode(errors="replace"))
                at = start + size
            elif code in (b"q", b"r"):  # BINPUT, LONG_BINPUT
                # Each pickler counts them up, so the number says nothing new.
                memo.append(stack[-1])
                at += 1 if code == b"q" else 4
            elif code == b"G":  # BINFLOAT
                stack.append(_FLOAT.unpack_from(data, at)[0])
                self._held += NUMBER
                at += 8
            elif code in _CONSTANTS:
                stack.append(_CONSTANTS[code])
            elif code == b"t":  # TUPLE
                self._tuple(marks.pop())
            elif code in _SHORT_TUPLES:
                self._tuple(len(stack) - _SHORT_TUPLES[code])
            elif code == b"\x95":  # FRAME
                at += 8
            elif code == b"\x80":  # PROTO
                at += 1
            elif code == b".":  # STOP
                return stack.pop()
            elif not code:
                raise ValueError("the pickle is cut off")
            else:
                raise ValueError(f"the pickle holds more than plain data: opcode {code!r}")

    def _bytes(self, start: int, size: int) -> bytes:
        found = self._data[start : start + size]
        if len(found) < size:
            raise ValueError("the pickle is cut off")
        return found

    def _check(self) -> None:
        pointers = len(self._stack) + len(self._marks) + len(self._memo)
        if self._held + POINTER * pointers > MOST_HELD:
            raise ValueError(f"its objects take more than {MOST_HELD >> 20} MiB of memory")

    def _push(self, new: Any) -> None:
        self._stack.append(new)
        self._held += sys.getsizeof(new)

    def _fill(self, mark: int) -> None:
        """Put the pairs above a mark into the dict below it."""
        stack = self._stack
        into: dict[Any, Any] = stack[mark - 1]
        keys, values = stack[mark::2], stack[mark + 1 :: 2]
        if len(keys) != len(values):
            raise ValueError("a key has no value")
        # Hashing a tuple that is nested a million times would overflow the stack of Python itself.
        if {*map(type, keys)} - {str}:
            raise ValueError("a key is no text")
        before = sys.getsizeof(into)
        into.update(zip(keys, values, strict=True))
        del stack[mark:]
        self._held += sys.getsizeof(into) - before

    def _extend(self, mark: int) -> None:
        """Put what is above a mark into the list below it."""
        stack = self._stack
        into: list[Any] = stack[mark - 1]
        before = sys.getsizeof(into)
        into += stack[mark:]
        del stack[mark:]
        self._held += sys.getsizeof(into) - before

    def _tuple(self, mark: int) -> None:
        new = tuple(self._stack[mark:])
        del self._stack[mark:]
        self._push(new)


_TEXTS = {
    b"\x8c": Struct("<B"),  # SHORT_BINUNICODE
    b"X": _UINT,  # BINUNICODE
    b"\x8d": _LONG,  # BINUNICODE8
}
_CONSTANTS = {b"N": None, b"\x88": True, b"\x89": False, b")": ()}
_SHORT_TUPLES = {b"\x85": 1, b"\x86": 2, b"\x87": 3}
