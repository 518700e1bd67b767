"""Files are replaced whole, or left as they were with nothing beside them."""

import hashlib

import pytest

from benchmark.disk import replacing, sha256, write_json


def test_a_file_is_replaced_at_the_end_of_the_block_or_after_an_error_not_at_all(tmp_path):
    file = tmp_path / "new" / "a.json"
    write_json(file, {"a": 1})
    assert sha256(file) == hashlib.sha256(b'{\n "a": 1\n}\n').hexdigest()
    with replacing(file) as beside:
        beside.write_text("2")
        assert file.read_text() == '{\n "a": 1\n}\n'
    assert file.read_text() == "2"
    with pytest.raises(ZeroDivisionError), replacing(file) as beside:
        beside.write_text(f"{1 / 0}")
    assert (file.read_text(), [each.name for each in file.parent.iterdir()]) == ("2", ["a.json"])
