import errno
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.atomic import write_atomic
from results.sealed import read_sealed, write_sealed

VALUES = {"b": [1, 2.5, None], "a": {"text": "ä"}, "n": 0.1}
NUMBERED = {"sizes": {2: "a", 10: "b"}}


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "folder" / "x.json"
    write_sealed(path, VALUES)
    assert read_sealed(path, "do this") == VALUES
    assert list(json.loads(path.read_text()))[-1] == "sha256"
    before = path.read_bytes()
    write_sealed(path, dict(reversed(VALUES.items())))
    assert read_sealed(path, "do this") == VALUES
    assert sorted(before) == sorted(path.read_bytes()), "the digest does not depend on the order of keys"


def test_keys_that_are_numbers_become_text(tmp_path):
    """As text they are in another order."""
    for compact in (False, True):
        write_sealed(tmp_path / "x.json", NUMBERED, compact=compact)
        assert read_sealed(tmp_path / "x.json", "do this") == {"sizes": {"2": "a", "10": "b"}}


def test_compact_one_more_item_is_one_more_line(tmp_path):
    path, values = tmp_path / "x.json", {"a": {"b": [1, 2]}, "empty": [], "items": [{"n": n} for n in range(3)]}
    write_sealed(path, values, compact=True)
    before = path.read_text().splitlines()
    assert read_sealed(path, "do this") == values and before[0] == "{" and before[-1] == "}"
    write_sealed(path, values | {"items": [*values["items"], {"n": 3}]}, compact=True)
    after = path.read_text().splitlines()
    assert len(after) == len(before) + 1 and after[-4] == '  {"n": 3}' and after[:-5] == before[:-4]


def test_numbers_that_are_not_json_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_sealed(tmp_path / "x.json", {"a": float("nan")})
    assert not list(tmp_path.iterdir())


def only_space_changed(one: bytes, other: bytes) -> bool:
    """Between the parts of a JSON file space has no meaning."""
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


@settings(max_examples=200)
@given(st.data())
def test_every_flip_and_cut_is_noticed(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("sealed") / "x.json"
    write_sealed(path, VALUES)
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 2))  # the last newline means nothing
    if data.draw(st.booleans()):
        path.write_bytes(whole[:place])
    else:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << data.draw(st.integers(0, 7)))]) + whole[place + 1 :])
    if only_space_changed(whole, path.read_bytes()):
        assert read_sealed(path, "do this") == VALUES
        return
    with pytest.raises(ValueError, match=r"do this$") as caught:
        read_sealed(path, "do this")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"a": 1}', '{"sha256": 3}', "\x00", "[" * 100_000])
def test_what_is_no_sealed_file_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="do this") as caught:
        read_sealed(path, "do this")
    assert "\n" not in str(caught.value) and ("x.json has no sha256" in str(caught.value)) == (text in ("{}", '{"a": 1}'))
    with pytest.raises(ValueError, match=r"nothing\.json is missing: do this"):
        read_sealed(tmp_path / "nothing.json", "do this")


def test_files_are_as_open_to_others_as_the_umask_says(tmp_path):
    before = os.umask(0)
    try:
        for umask, mode in ((0o077, 0o600), (0o022, 0o644), (0o002, 0o664)):
            os.umask(umask)
            write_atomic(tmp_path / "file", "text")
            assert (tmp_path / "file").stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)


def test_a_full_disk_is_told_with_the_file(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("results.atomic.os.fsync", full)
    with pytest.raises(OSError, match="No space left") as error:
        write_atomic(tmp_path / "file", "text")
    assert error.value.filename == str(tmp_path / "file") and not list(tmp_path.iterdir())


@pytest.mark.parametrize("values", [{"a": "1", "b": {}}, {"a": 1, "b": []}, {"a": 1}, {"a": None, "b": {}}])
def test_a_file_whose_values_are_of_other_types_is_of_another_version(tmp_path, values):
    types = {"a": int, "b": dict}
    write_sealed(tmp_path / "x.json", {"a": 1, "b": {}, "c": None})
    assert read_sealed(tmp_path / "x.json", "", types) == {"a": 1, "b": {}, "c": None}
    write_sealed(tmp_path / "x.json", values)
    assert read_sealed(tmp_path / "x.json", "") == values
    with pytest.raises(ValueError, match=r"x\.json is of another version: make it again"):
        read_sealed(tmp_path / "x.json", "make it again", types)
