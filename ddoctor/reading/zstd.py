"""Frames of zstd, read piece by piece."""

from __future__ import annotations

from io import BufferedReader

import zstandard

PIECE = 1024
"""Compressed bytes at a time: a block of four bytes may hold 128 KiB."""


class Frames:
    """Frames that follow one another; the library's own reader does not notice a cut one."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._raw = self._ahead = b""

    def read(self, most: int) -> bytes:
        """The next ``most`` bytes; fewer at the end.

        Raises:
            EOFError: the last frame is cut off.
            OSError: the data is damaged.
        """
        parts, known = [self._ahead], len(self._ahead)
        while known < most and (data := self._more()):
            parts.append(data)
            known += len(data)
        whole = b"".join(parts)
        self._ahead = whole[most:]
        return whole[:most]

    def _more(self) -> bytes:
        """The next decompressed bytes; empty: there are no more."""
        data = b""
        while not data:
            raw = self._raw or self._file.read(PIECE)
            self._raw = b""
            if not raw and self._frame is None:
                return b""
            if not raw:
                raise EOFError("its last frame has no end")
            self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            try:
                data = self._frame.decompress(raw)
            except zstandard.ZstdError as error:
                raise OSError(str(error)) from error
            if self._frame.eof:
                self._raw, self._frame = self._frame.unused_data, None
        return data
