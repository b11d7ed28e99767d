"""What all readers of a hub share: its package, its retries, and its errors in one line."""

import functools
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from big_align.core.errors import UserError, put_in_a_line, tell_in_a_line
from big_align.data.remote import retries

INSTALL = "pip install 'big_align[hub]' (in a checkout: pip install -e '.[hub]')"
LOGIN = "`hf auth login` or the variable HF_TOKEN gives a token"
HTTP = "httpx"  # how the names of the modules begin whose errors are those of a connection


class HubError(UserError):
    """A hub does not give what was asked for; `status` is its answer, 0 if there was none."""

    def __init__(self, message: str, status: int = 0):
        super().__init__(message)
        self.status = status


def load_library(name: str) -> ModuleType:
    """Imports huggingface_hub; a UserError says what installs it, for the name that needs it."""
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise UserError(
            f"{name} is on Hugging Face's hub, which takes the package huggingface_hub: {INSTALL}"
        ) from error


def _call(cached: bool, what: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Calls a function of huggingface_hub; a HubError tells what has failed, in one line.

    What a hub refuses for now is tried again, or when it says; the library itself tries again where
    a connection is cut.
    """

    def judge(error: Exception) -> retries.Verdict | None:
        if not is_of_hub(error):
            return None
        status = find_status(error)
        kind = functools.partial(HubError, status=status)
        told = f"{what}: {tell(error, cached)}"
        return retries.Verdict(kind, told, status in retries.PASSING, find_pause(error))

    return retries.call(lambda: function(*args, **options), judge)


call = functools.partial(_call, False)
call_cached = functools.partial(_call, True)
"""For functions that take from the cache of the hub what is there."""


def is_of_hub(error: BaseException) -> bool:
    """Returns whether an error is of huggingface_hub, or of the connection that it uses."""
    return any(_is_own(each) for each in _follow(error))


def find_status(error: BaseException) -> int:
    """Returns the HTTP status behind an error; 0 if nothing was answered."""
    return getattr(_find_response(error), "status_code", 0)


def find_pause(error: BaseException) -> float | None:
    """Returns for how many seconds a hub asks to wait; None if it does not."""
    response = _find_response(error)
    seconds = response.headers.get("Retry-After", "") if response is not None else ""
    return float(seconds) if seconds.isdigit() else None


def is_offline(error: BaseException) -> bool:
    """Returns whether the user has forbidden to ask a hub."""
    return any(type(each).__name__ == "OfflineModeIsEnabled" for each in _follow(error))


def is_missing_file(error: BaseException) -> bool:
    """Returns whether a repository is there, and a file or folder in it is not."""
    response = _find_response(error)
    return response is not None and response.headers.get("X-Error-Code") == "EntryNotFound"


def tell(error: BaseException, cached: bool = False) -> str:
    """Returns what an error means and what would mend it, in one line.

    `cached` is whether the cache of the hub would have served what was asked for.
    """
    hub = importlib.import_module("huggingface_hub.constants")
    response, fault = _find_response(error), _find_fault(error)
    if is_offline(error):
        lacking = f"the cache, {hub.HF_HUB_CACHE}, does not have all of it: fetch it once without"
        remedy = f"and {lacking} this variable" if cached else "but this is read from the hub"
        return f"HF_HUB_OFFLINE is set, {remedy}"
    if response is not None:
        return _tell_answer(response, hub.ENDPOINT)
    if fault is not None:
        told = f"the connection to {hub.ENDPOINT} failed ({tell_in_a_line(fault)})"
        lacking = f"and the cache, {hub.HF_HUB_CACHE}, does not have all of it"
        return f"{told}, {lacking}; the same command goes on from there" if cached else told
    return put_in_a_line(str(error))


def _tell_answer(response: Any, endpoint: str) -> str:
    """Returns what an answer that is an error means."""
    status, code = response.status_code, response.headers.get("X-Error-Code", "")
    if code == "GatedRepo":
        return (
            f"{endpoint} refuses access ({status}), as the repository is gated: accept its terms "
            f"on its page; then {LOGIN}"
        )
    if code == "RevisionNotFound":
        return f"the repository has no such revision ({status})"
    if code == "EntryNotFound":
        return f"the repository has no such file ({status})"
    if status in (401, 404):
        return (
            f"{endpoint} has no such repository ({status}), or a private one, which takes a token: "
            f"{LOGIN}"
        )
    if status == 403:
        return f"{endpoint} refuses access ({status}): the token may not do this; {LOGIN}"
    if status == 429:
        seconds = response.headers.get("Retry-After", "")
        later = f", for {seconds} seconds" if seconds.isdigit() else ""
        return f"{endpoint} refuses more requests{later} (429); one with a token may send more"
    if status >= 500:
        return f"{endpoint} fails now ({status}); try again later"
    return (
        f"{endpoint} answers {status}: {put_in_a_line(response.headers.get('X-Error-Message', ''))}"
    )


def _follow(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and those that have caused it."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        yield cause
        cause = cause.__cause__ or cause.__context__


def _is_own(error: BaseException) -> bool:
    return type(error).__module__.startswith(("huggingface_hub.", HTTP))


def _find_response(error: BaseException) -> Any:
    answers = (getattr(each, "response", None) for each in _follow(error) if _is_own(each))
    return next((answer for answer in answers if answer is not None), None)


def _find_fault(error: BaseException) -> BaseException | None:
    """Returns the failure of a connection behind an error that no answer explains."""
    if _find_response(error) is not None:
        return None
    kinds = ((type(each).__module__, each) for each in _follow(error))
    return next((each for module, each in kinds if module.startswith(HTTP)), None)
