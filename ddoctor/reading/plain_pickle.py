"""Reads pickles of plain containers, in bounded memory, and executes nothing.

torch writes such files with Python's pickle module (protocol 4 or 5), and with its pickler in C++
(torch/csrc/jit/serialization/pickler.cpp, protocol 2). Python's unpickler would call what a pickle
names, and a few bytes make it ask for gigabytes.
"""

from __future__ import annotations

import struct
import sys
from struct import Struct
from typing import Any, Protocol

from ddoctor.reading.inputs import BLOCK

MOST_HELD = 512 * 2**20
"""Bytes of memory of the objects."""
MOST_STEPS = 100_000_000
"""Opcodes: about 20 seconds on one core."""
LONGEST_TEXT = 2**20
"""Bytes."""
CHECKED = 2**16
"""Bytes of input after which the memory is checked: one byte makes at most about 100 of memory."""
AHEAD = LONGEST_TEXT + 2 * CHECKED
"""Bytes of input that are kept at least, so that no opcode reaches beyond them."""
POINTER, NUMBER = 8, 32
"""Bytes of memory of a reference, and of a number."""
LONGEST_NUMBER = 16
"""Bytes of an integer; torch writes at most 9."""

_INT, _UINT, _LONG, _FLOAT = Struct("<i"), Struct("<I"), Struct("<Q"), Struct(">d")


class Readable(Protocol):
    """A file, or the content of one."""

    def read(self, most: int, /) -> bytes:
        """The next ``most`` bytes; none at the end."""


def load(file: Readable) -> Any:
    """Return the dicts, lists, tuples, texts and numbers of a pickle.

    Raises:
        ValueError: it holds something else, takes too much memory or time, or is damaged.
    """
    try:
        return _Machine(file).run()
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise ValueError("the pickle is damaged") from error


class _Machine:
    """The stack machine of a pickle; opcodes are in Python's pickle.py and pickletools.py."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._held = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: list[Any] = []

    def run(self) -> Any:
        stack, marks, memo = self._stack, self._marks, self._memo
        data, at, check = b"", 0, 0
        for _ in range(MOST_STEPS):
            if at >= check:
                self._check()
                data, at, check = self._more(data[at:]), 0, CHECKED
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
                at += 1 + size
                stack.append(int.from_bytes(data[at - size : at], "little", signed=True))
                self._held += NUMBER
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
                (size,) = length.unpack_from(data, at)
                if size > LONGEST_TEXT:
                    raise ValueError("a text is too long")
                at += length.size + size
                self._push(data[at - size : at].decode(errors="replace"))
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
        raise ValueError(f"the pickle has more than {MOST_STEPS} opcodes")

    def _more(self, data: bytes) -> bytes:
        """The data with what follows it, if it is short; at the end of the file, it stays short."""
        while len(data) < AHEAD and (more := self._file.read(BLOCK)):
            data += more
        return data

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
