"""Which errors tell launchers that starting again is of no use."""

import contextlib

import pytest

from big_align.core.errors import (
    ConfigError,
    MissingFile,
    NotSavedError,
    UserError,
    WrongValue,
    check_at_least,
    check_known,
    checking_values,
    find_status,
    naming_field,
)


def catch(act):
    with pytest.raises(Exception) as error:
        act()
    return error.value


def raising(error, *around):
    """Raises an error inside of contexts, the innermost first."""

    def act():
        with contextlib.ExitStack() as stack:
            for context in reversed(around):
                stack.enter_context(context())
            raise error

    return act


def name():
    return naming_field("config.data")


def test_a_wrong_value_stays_one_whatever_it_is_told_with():
    for act in (
        lambda: check_known("decay", "steep", ("linear",)),
        lambda: check_at_least(1, steps=0),
        raising(WrongValue("--profile=x")),
        raising(ValueError("width = -1"), name, checking_values),
        raising(ConfigError("config.x is unknown"), checking_values),
    ):
        assert find_status(catch(act)) == 2

        def named(act=act):
            with naming_field("config.objective"):
                act()

        assert find_status(catch(named)) == 2


def test_what_may_be_there_next_time_is_none():
    for act in (
        raising(UserError("the labels are of other classes")),
        raising(ConfigError("config.data.source: no row")),
        raising(NotSavedError("a disk is full")),
        raising(OSError(28, "No space left on device")),
        raising(OSError(107, "not connected"), checking_values),
        raising(MissingFile("no file matches"), checking_values),
        raising(MissingFile("no file matches"), name, checking_values),
        raising(KeyError("a bug"), checking_values),
    ):
        assert find_status(catch(act)) == 1
