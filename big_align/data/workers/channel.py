"""Messages between the parent and a process, from one thread of each to one of the other.

The parent orders a job. The process answers that it is done or what went wrong; before that it may
call objects that stayed with the parent, as often as it likes.
"""

import functools
import pickle
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from big_align.core.errors import UserError

VALUE, ERROR, CALL = range(3)


class ChannelClosed(Exception):
    """The other side has gone."""


class Channel:
    """A connection that carries objects: one end of a pair of sockets, which is closed with it."""

    def __init__(self, descriptor: int):
        self._connection = Connection(descriptor)

    def send(self, *message: Any) -> None:
        """Sends some objects; raises ChannelClosed."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        try:
            self._connection.send_bytes(data)
        except OSError as error:
            raise ChannelClosed from error

    def receive(self) -> tuple[Any, ...]:
        """Waits for the objects of one `send`; raises ChannelClosed."""
        try:
            data = self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise ChannelClosed from error
        return pickle.loads(data)

    def send_error(self, error: BaseException) -> None:
        """Sends an error that the other side is to raise."""
        self.send(ERROR, _make_portable(error))

    def close(self) -> None:
        self._connection.close()


def order(channel: Channel, job: tuple[Any, ...], staying: Sequence[Any]) -> None:
    """Makes the process do a job, and answers its calls to what stayed; raises what it raised."""
    channel.send(*job)
    while True:
        kind, *content = channel.receive()
        if kind == VALUE:
            return
        if kind == ERROR:
            raise content[0]
        number, method, arguments = content
        try:
            value = getattr(staying[number], method)(*arguments)
        except Exception as error:
            channel.send_error(error)
        else:
            channel.send(VALUE, value)


def serve(channel: Channel, do: Callable[..., Any]) -> None:
    """Does jobs in the process until the parent closes the channel."""
    _CURRENT.channel = channel
    while True:
        try:
            job = channel.receive()
        except ChannelClosed:
            return
        try:
            do(*job)
        except ChannelClosed:
            return
        except BaseException as error:
            channel.send_error(error)
        else:
            channel.send(VALUE)


_CURRENT = threading.local()


class Remote:
    """In a process: represents an object that stayed with the parent, and calls it there."""

    def __init__(self, number: int, attributes: dict[str, Any]):
        self.__dict__.update(attributes)
        self._number = number

    def __call__(self, *arguments: Any) -> Any:
        return self._ask("__call__", *arguments)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return functools.partial(self._ask, name)

    def _ask(self, method: str, *arguments: Any) -> Any:
        channel = _CURRENT.channel
        channel.send(CALL, self._number, method, arguments)
        kind, answer = channel.receive()
        if kind == ERROR:
            raise answer
        return answer


def _make_portable(error: BaseException) -> BaseException:
    """Returns an error that the other side can unpickle, with the place where it was raised."""
    try:
        same = pickle.loads(pickle.dumps(error))
        if type(same) is not type(error) or str(same) != str(error):
            raise TypeError("it does not survive pickling")
    except Exception:
        same = RuntimeError(f"{type(error).__name__}: {error}")
    if not isinstance(error, UserError):
        trace = "".join(traceback.format_exception(error)).rstrip()
        same.add_note(f"raised in another process:\n{trace}")
    return same
