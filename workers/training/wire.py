"""Values between a worker and its own loader processes, over a socket.

Tensors and arrays travel as raw bytes beside the rest and are not shared: shared memory is small in most containers
(64 MiB in Docker's own), is not counted by the limit on a worker's memory, and breaks when the one that made it is
killed. Both ends run the same code of the same job, so what is unpickled is trusted.
"""

from __future__ import annotations

import io
import pickle
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_COUNT = struct.Struct("<I")


class TooLargeError(Exception):
    """A value takes more bytes than may be sent."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A value ready to be sent, any number of times: ``body``, and the memory of its tensors and arrays as it is."""

    body: bytes
    buffers: Sequence[memoryview]

    @property
    def num_bytes(self) -> int:
        return len(self.body) + sum(buffer.nbytes for buffer in self.buffers)


def pack(value: object, limit_bytes: int | None = None) -> Packed:
    """Take a value apart; what is in its tensors and arrays is not copied.

    Raises TooLargeError above ``limit_bytes``, and whatever the value's classes raise where they cannot be pickled.
    """
    body = _Bounded(limit_bytes)
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> None:
        buffers.append(buffer.raw())
        body.count(buffers[-1].nbytes)

    _Pickler(body, protocol=5, buffer_callback=keep).dump(value)
    return Packed(body.getvalue(), buffers)


def send(sock: socket.socket, packed: Packed) -> None:
    """Send a value. Raises OSError where the other end is gone."""
    parts = [memoryview(packed.body), *packed.buffers]
    sock.sendall(_COUNT.pack(len(parts)) + struct.pack(f"<{len(parts)}Q", *(part.nbytes for part in parts)))
    for part in parts:
        sock.sendall(part)


def receive(sock: socket.socket) -> Any:
    """The next value, its tensors in fresh memory.

    Raises EOFError where the other end is gone, and whatever the value's classes raise where they cannot be made.
    """
    (count,) = _COUNT.unpack(_exactly(sock, _COUNT.size))
    sizes = struct.unpack(f"<{count}Q", _exactly(sock, 8 * count))
    body, *buffers = [_exactly(sock, size) for size in sizes]
    return pickle.loads(body, buffers=buffers)


def _exactly(sock: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    left = memoryview(data)
    while left:
        count = sock.recv_into(left)
        if count == 0:
            raise EOFError("the other end is gone")
        left = left[count:]
    return data


class _Bounded(io.BytesIO):
    """Takes no more than so many bytes, those counted besides with them."""

    def __init__(self, limit_bytes: int | None) -> None:
        super().__init__()
        self._limit_bytes, self._num_bytes = limit_bytes, 0

    def write(self, data: Any, /) -> int:
        self.count(memoryview(data).nbytes)
        return super().write(data)

    def count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if self._limit_bytes is not None and self._num_bytes > self._limit_bytes:
            raise TooLargeError(f"it takes more than {self._limit_bytes} bytes")


class _Pickler(pickle.Pickler):
    """Pickles plain tensors on the CPU as arrays of bytes: torch's own way copies them several times."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not torch.Tensor or not _is_plain(obj):
            return NotImplemented
        bytes_N = obj.contiguous().reshape(-1).view(torch.uint8).numpy()
        return _tensor, (bytes_N, obj.dtype, tuple(obj.shape))


def _is_plain(tensor: torch.Tensor) -> bool:
    is_dense = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    return is_dense and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())


def _tensor(bytes_N: NDArray[np.uint8], dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(bytes_N).view(dtype).view(shape)
