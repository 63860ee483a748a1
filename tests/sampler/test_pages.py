"""The table of pages and the settings that size it, without a device."""

import numpy as np
import pytest

from jaxrl_single.sampler import pages, settings

SETTINGS = {
    "num_slots": 8,
    "cache_length": 50,
    "page_size": 16,
    "cache_tokens": 0,
    "cache_sizes": (0.1, 0.5),
    "decode_slots": (),
    "decode_chunk": 4,
    "prefill_pages": (1, 3),
    "max_fed_tokens": 5,
    "prefix_cache": "prompts",
    "swap": "keep",
    "seed": 0,
    "experts_read": None,
}


def _settings(**changes) -> settings.Settings:
    return settings.Settings(**(SETTINGS | changes))


def test_pages_with_low_ids_go_first_and_the_map_names_each_owner():
    table = pages.Pages(3, 4, (6,))
    table.take(2, 2)
    table.take(0, 1)
    table.give_back(2)  # pages 0 and 1 are free again
    table.take(0, 3)
    table.take(2, 1)
    assert table.table[0, :3].tolist() == [2, 0, 1]
    assert table.table[2, :1].tolist() == [3]
    assert (table.counts.tolist(), table.num_free) == ([3, 0, 1], 2)
    owner, index = table.map(np.arange(3))
    assert owner.tolist() == [0, 0, 0, 2, 0, 0]
    assert index.tolist() == [1, 2, 0, 0, 4, 4]  # 4, behind the last page of a slot: free
    owner, index = table.map(np.array([1, 2]))  # slot 2 is row 1; who is not there looks free
    assert (owner.tolist(), index.tolist()) == ([0, 0, 0, 1, 0, 0], [4, 4, 4, 0, 4, 4])


def test_a_smaller_pool_moves_what_lies_behind_its_end():
    table = pages.Pages(2, 4, (4, 8))
    table.grow(table.larger)
    table.take(0, 3)
    table.take(1, 3)
    table.give_back(0)
    table.take(0, 1)
    before = {(1, column): page for column, page in enumerate(table.table[1, :3].tolist())}
    sources, targets = table.shrink(table.smaller)
    moved = dict(zip(sources.tolist(), targets.tolist(), strict=True))
    assert moved == {4: 1, 5: 2}
    after = {(1, column): page for column, page in enumerate(table.table[1, :3].tolist())}
    assert after == {place: moved.get(page, page) for place, page in before.items()}
    assert (table.num_pages, table.num_free, table.smaller, table.larger) == (4, 0, None, 8)
    owner, index = table.map(np.arange(2))
    assert owner.tolist() == [0, 1, 1, 1]
    assert index.tolist() == [0, 1, 2, 0]


def test_more_pages_than_there_are_is_a_mistake_of_the_caller():
    table = pages.Pages(2, 4, (4,))
    table.take(0, 3)
    with pytest.raises(AssertionError, match="too few free pages"):
        table.take(1, 2)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (4, 16, 32)),  # 4 pages a slot; a tenth would not hold an episode
        ({"cache_tokens": 200}, (4, 7, 13)),
        ({"cache_sizes": ()}, (32,)),
        ({"cache_tokens": 10**6}, (4, 16, 32)),  # more than all slots can hold
    ],
)
def test_sizes_of_the_pool(changes, expected):
    assert _settings(**changes).pool_sizes() == expected


def test_a_turn_is_read_by_what_it_brings_alone():
    """FED = 0 up to max_fed_tokens besides the last; then the smallest prefill that holds it."""
    how = _settings().reading
    assert [how(0, length) for length in (1, 6, 7, 17, 18, 49)] == [0, 0, 1, 1, 2, 2]
    assert how(30, 36) == 0
    # Seven tokens on one page, on two pages.
    assert (how(20, 28), how(28, 36)) == (1, 2)
    assert np.all([_settings(max_fed_tokens=49).prefills == ()])
