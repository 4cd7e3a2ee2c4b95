"""Work done ahead of time on other threads, a few items and no more, in order."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")


def prefetch(items: Iterable[T], depth: int = 3) -> Generator[T, None, None]:
    """Reads ahead on a thread of its own, from now on, so that decoding overlaps with what follows."""
    reading = _prefetch(items, depth)
    next(reading)
    return reading


def _prefetch(items: Iterable[T], depth: int) -> Generator[Any, None, None]:
    """Gives None first: it has begun, and whoever drops it now ends the thread."""
    ahead: queue.Queue[tuple[bool, Any]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(entry: tuple[bool, Any]) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                ahead.put(entry, timeout=0.1)
                return

    def read() -> None:
        try:
            for item in items:
                put((True, item))
                if stopped.is_set():
                    return
            put((False, None))
        except BaseException as error:
            put((False, error))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield None
        while True:
            more, item = ahead.get()
            if more:
                yield item
            elif item is None:
                return
            else:
                raise item
    finally:
        stopped.set()
        if threading.current_thread() is not thread:  # it may be the garbage collector's turn there
            thread.join()


def later(work: Callable[..., T], *arguments: Any) -> Future[T]:
    """Begins work(…) on a thread of its own; its result is waited for where it is asked for."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def mapped(
    work: Callable[[T], U], items: Iterable[T], workers: int, prepare: Callable[[], None]
) -> Iterator[U]:
    """work(item) for each, in order, by so many threads, each of which is prepared first."""
    pool = ThreadPoolExecutor(workers, initializer=prepare)
    begun: deque[Future[U]] = deque()
    try:
        for item in items:
            begun.append(pool.submit(work, item))
            if len(begun) > workers + 1:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
