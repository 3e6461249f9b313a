"""Exceptions: what they also are, and what they carry."""

from __future__ import annotations

import pickle

import pytest

from slu import errors


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.SettingError, ValueError),
        (errors.SelectionError, ValueError),
        (errors.ModelError, ValueError),
        (errors.DataError, ValueError),
        (errors.MissingDataError, errors.DataError),
        (errors.ChangedDataError, errors.DataError),
        (errors.NumericalError, RuntimeError),
    ],
)
def test_every_error_is_also_the_one_a_caller_would_guess(error, builtin):
    assert issubclass(error, errors.SluError)
    assert issubclass(error, builtin)
    with pytest.raises(builtin, match="what came"):
        raise error("what came")


def test_every_error_of_the_module_is_a_slu_error():
    found = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, Exception) and not issubclass(value, Warning)
    ]
    assert len(found) >= 7
    assert all(issubclass(value, errors.SluError) for value in found)


def test_a_numerical_error_carries_what_was_found_before_also_to_another_process():
    error = errors.NumericalError("overflow", partial=[1, 2])
    assert error.partial == [1, 2]
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.partial) == ("overflow", [1, 2])
    assert errors.NumericalError("overflow").partial is None


def test_an_unknown_name_is_answered_with_all_valid_ones_of_the_table():
    error = errors.unknown("sketch", "shft", {"shift": object, "dense": object})
    assert isinstance(error, errors.SettingError)
    assert str(error) == "unknown sketch 'shft'; valid are 'shift', 'dense'"


def test_what_a_file_says_does_not_begin_a_line():
    for error in (errors.StorageError, errors.DamagedFileError, errors.MismatchError):
        assert str(error("a\nslu: all is well, ×")) == r"a\nslu: all is well, ×"
    assert str(errors.SluError("two\nlines\x1b")) == "two\nlines\\x1b"
