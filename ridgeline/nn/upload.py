"""Slices of weights on their way to a device: several threads read them into pinned memory of their own, from
where they go over while the next are read. Whether all numbers are finite is looked at once, in the end.

Knows no format: a slice is read by whoever hands it in.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

_THREADS = 16
Room = Callable[[int], Tensor]  # bytes -> uint8 memory to read into
Read = Callable[[Room], Tensor]
_BUFFERS = 2  # of a thread


class _Buffer:
    """Pinned memory that grows, and the event after which it may be written again."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._sent = torch.cuda.Event()

    def room(self, num_bytes: int) -> Tensor:
        """So many bytes, once what was here has gone."""
        self._sent.synchronize()
        if len(self._bytes) < num_bytes:
            self._bytes = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        return self._bytes[:num_bytes]

    def sent(self, stream: torch.cuda.Stream) -> None:
        self._sent.record(stream)


class Uploads:
    """Use as a context: at its end all slices are there. ValueError of `broken` where one is not finite."""

    def __init__(self, device: torch.device, threads: int = _THREADS) -> None:
        self._device = device
        self._pool = ThreadPoolExecutor(threads, "upload")
        self._own = threading.local()
        self._going: list[Future[tuple[Tensor, Tensor, Exception]]] = []

    def put(self, out: Tensor, slices: Sequence[tuple[Tensor, Read]], broken: Exception) -> None:
        """Have what each slice's `read` leaves in the room that it asks for, of any dtype, brought to where
        the slice lies in `out`, memory of the device in the same shape. By one thread: slices keep the pinned
        memory small, and what a call costs besides is paid once for all of them. broken: what to raise where
        one is not finite."""
        self._going.append(self._pool.submit(self._send, out, slices, broken))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            self._pool.shutdown(cancel_futures=True)

    def _finish(self) -> None:
        sent = [future.result() for future in self._going]
        torch.cuda.synchronize(self._device)
        if sent and not torch.stack([total for total, *_ in sent]).isfinite().all():
            for total, out, broken in sent:
                if not total.isfinite() and not out.isfinite().all():
                    raise broken

    def _send(
        self, out: Tensor, slices: Sequence[tuple[Tensor, Read]], broken: Exception
    ) -> tuple[Tensor, Tensor, Exception]:
        """On a thread. The sum is not finite when a number is not, and seldom else."""
        own = self._own
        if not hasattr(own, "stream"):
            own.stream = torch.cuda.Stream(self._device)
            own.buffers = cycle([_Buffer() for _ in range(_BUFFERS)])
        with torch.cuda.stream(own.stream):
            for to, read in slices:
                buffer = next(own.buffers)
                pinned = read(buffer.room)
                if pinned.dtype == to.dtype:
                    to.copy_(pinned, non_blocking=True)
                else:
                    to.copy_(pinned.to(self._device, non_blocking=True))
                buffer.sent(own.stream)
            return out.sum(dtype=torch.float32), out, broken
