import json

import pytest

from vitrail.tracking.atomic import replacing, write_json, write_text


def test_a_write_that_fails_leaves_the_previous_file_and_nothing_else(tmp_path, full_disk):
    path = tmp_path / "notes.txt"
    write_text(path, "whole\n")
    with full_disk(512), pytest.raises(OSError, match=r"too large: .*/notes.txt"):
        write_text(path, "half" * 1000)
    assert path.read_text() == "whole\n"
    assert list(tmp_path.iterdir()) == [path]


def test_writing_that_is_stopped_half_way_leaves_the_previous_file(tmp_path):
    def write():
        with replacing(path) as draft:
            draft.write_text("half")
            raise KeyboardInterrupt

    path = tmp_path / "last.ckpt"
    path.write_text("whole")
    with pytest.raises(KeyboardInterrupt):
        write()
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


def test_content_that_json_does_not_know_leaves_the_previous_file(tmp_path):
    path = tmp_path / "receipt.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}


def test_text_is_written_as_given_to_a_file_as_readable_as_any_other(tmp_path):
    write_text(tmp_path / "a", "é\nb\r\n")
    assert (tmp_path / "a").read_bytes() == "é\nb\r\n".encode()
    (tmp_path / "plain").write_text("")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode
