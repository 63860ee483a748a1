"""Tickets on disk: whole or not at all, each once, foreign and broken ones refused."""

import dataclasses
import json
import threading

import pytest

from jaxrl_single import types, workdir
from jaxrl_single.data import ticket_files, tickets

TASK = types.Task("t", "1+2", "3", {"level": 1})


def ticket(number, attempt=0, **changes):
    return dataclasses.replace(types.Ticket("run", number, attempt, TASK), **changes)


def names(directory):
    return sorted(path.name for path in directory.glob("*.json"))


def test_what_is_written_is_polled_once_in_the_order_of_issue(tmp_path):
    source = ticket_files.FileTickets(tmp_path, "run")
    assert source.poll() == []
    batch = [ticket(3), ticket(1, attempt=1), ticket(1), ticket(2, split="eval", policy_version=4)]
    ticket_files.write(tmp_path, batch)
    assert source.poll() == [batch[2], batch[1], batch[3], batch[0]]
    assert source.poll() == []
    ticket_files.write(tmp_path, [ticket(4)])
    assert source.poll() == [ticket(4)]


def test_a_ticket_stays_until_it_is_done(tmp_path):
    ticket_files.write(tmp_path, [ticket(0), ticket(1)])
    first = ticket_files.FileTickets(tmp_path, "run")
    first.poll()
    first.done(ticket(0))
    first.done(ticket(0))
    assert names(tmp_path) == ["000000001-0.json"]
    successor = ticket_files.FileTickets(tmp_path, "run")
    assert successor.poll() == [ticket(1)]


def test_a_ticket_issued_again_after_done_or_withdrawal_is_new(tmp_path):
    source = ticket_files.FileTickets(tmp_path, "run")
    ticket_files.write(tmp_path, [ticket(0), ticket(1), ticket(2)])
    source.poll()
    source.done(ticket(0))
    (tmp_path / "000000001-0.json").unlink()
    assert names(tmp_path) == ["000000002-0.json"]
    ticket_files.write(tmp_path, [ticket(0)])
    assert source.poll() == [ticket(0)]
    ticket_files.write(tmp_path, [ticket(1)])
    assert source.poll() == [ticket(1)]
    ticket_files.clear(tmp_path)
    assert names(tmp_path) == []
    assert source.poll() == []
    ticket_files.write(tmp_path, [ticket(2)])
    assert source.poll() == [ticket(2)]


def _foreign():
    return json.dumps(tickets.to_json(ticket(5, run_id="another")))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (_foreign(), "of run 'another', this run is 'run'"),
        ("{", "Expecting"),
        ("", "Expecting"),
        ("[]", "a ticket has the fields"),
        (json.dumps(tickets.to_json(ticket(6))), "it holds ticket 000000006-0"),
        (json.dumps({**tickets.to_json(ticket(5)), "temperature": -1}), "temperature -1"),
        (b"\xff\xfe{", "codec can't decode"),
    ],
)
def test_foreign_and_broken_files_are_refused_reported_and_put_aside(tmp_path, content, complaint):
    path = tmp_path / "000000005-0.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    ticket_files.write(tmp_path, [ticket(7)])
    source = ticket_files.FileTickets(tmp_path, "run")
    assert source.poll() == [ticket(7)]
    (line,) = source.rejections
    assert complaint in line
    assert "rejected/000000005-0.json is not used" in line
    assert not path.exists()
    assert (tmp_path / "rejected" / path.name).exists()
    assert source.poll() == []
    assert len(source.rejections) == 1


def test_a_good_ticket_in_place_of_a_rejected_one_is_used(tmp_path):
    (tmp_path / "000000005-0.json").write_text("{")
    source = ticket_files.FileTickets(tmp_path, "run")
    assert source.poll() == []
    ticket_files.write(tmp_path, [ticket(5)])
    assert source.poll() == [ticket(5)]


def test_other_names_and_a_missing_directory_are_left_alone(tmp_path):
    (tmp_path / "README").write_text("not a ticket")
    (tmp_path / ".tmp-000000001-0.json").write_text("{")
    assert ticket_files.FileTickets(tmp_path, "run").poll() == []
    assert (tmp_path / ".tmp-000000001-0.json").exists()
    assert ticket_files.FileTickets(tmp_path / "nowhere", "run").poll() == []
    ticket_files.clear(tmp_path / "nowhere")
    with pytest.raises(workdir.CannotWrite, match="nowhere"):
        ticket_files.write(tmp_path / "nowhere", [ticket(0)])


def test_a_reader_beside_the_writer_sees_every_ticket_once_and_whole(tmp_path):
    source = ticket_files.FileTickets(tmp_path, "run")
    batch = [ticket(number) for number in range(300)]
    writer = threading.Thread(target=ticket_files.write, args=(tmp_path, batch))
    writer.start()
    seen = []
    while writer.is_alive():
        seen += source.poll()
    writer.join()
    seen += source.poll()
    assert sorted(seen, key=lambda t: t.number) == batch
    assert source.rejections == []


def test_withdrawn_numbers_are_told(tmp_path):
    """What a killed writer of another machine or somebody else left there is no ticket."""
    ticket_files.write(tmp_path, [ticket(7, attempt=1), ticket(1_234_567_890)])
    for name in (".tmp-HOST-12-000000123-0.json", "notes.json", "000000124-0.txt"):
        (tmp_path / name).write_text("{}")
    assert sorted(ticket_files.clear(tmp_path)) == [7, 1_234_567_890]
    assert ticket_files.clear(tmp_path) == []
