"""Sessions with the same beginning read it once, and nobody's numbers change."""

import pytest
import sampler_lab as lab

PAGE = lab.SHAPE["page_size"]
PROMPT = lab.prompts_of([37])[0]


def _ask(engine, name, tokens, ticket=0, **changes):
    return engine.submit(lab.request(name, tokens, ticket=ticket, **changes))


def _alone(make_engine, tokens, ticket=0, **changes):
    engine = make_engine(prefix_cache="off")
    (answer,) = lab.run(engine, _ask(engine, "alone", tokens, ticket, **changes))
    assert engine.stats()["shared_tokens"] == 0
    return lab.numbers(answer)


def test_a_group_is_prefilled_once(make_engine):
    engine = make_engine()
    futures = [_ask(engine, f"g{i}", PROMPT, ticket=i) for i in range(6)]
    answers = lab.run(engine, *futures)
    # Read by two prefills of two pages, because they are more than one prefill holds.
    assert engine.stats()["prefill_tokens"] == len(PROMPT) - 1
    assert engine.stats()["shared_tokens"] == 5 * (len(PROMPT) - 1)
    assert [answer.num_cached_tokens for answer in answers] == [0] + 5 * [len(PROMPT) - 1]
    for ticket, answer in enumerate(answers):
        assert lab.numbers(answer) == _alone(make_engine, PROMPT, ticket)
    assert len({tuple(answer.tokens) for answer in answers}) == 6


def test_a_branch_shares_whole_pages_and_goes_its_own_way(make_engine):
    """Another suffix, after the first session is in the middle of its turn."""
    engine = make_engine()
    first = _ask(engine, "first", PROMPT, max_new_tokens=20)
    engine.step()
    other = PROMPT[:-3] + lab.prompts_of([5], seed=9)[0]
    (branch,) = lab.run(engine, _ask(engine, "branch", other, ticket=4))
    assert branch.num_cached_tokens == (len(PROMPT) - 3) // PAGE * PAGE == 32
    assert lab.numbers(branch) == _alone(make_engine, other, 4)
    (answer,) = lab.run(engine, first)
    assert lab.numbers(answer) == _alone(make_engine, PROMPT, max_new_tokens=20)


def test_what_an_ended_session_held_is_of_use_until_it_is_overwritten(make_engine):
    engine = make_engine()
    lab.run(engine, _ask(engine, "gone", PROMPT))
    engine.release("gone")
    (again,) = lab.run(engine, _ask(engine, "new", PROMPT, ticket=1))
    assert again.num_cached_tokens == len(PROMPT) - 1
    assert lab.numbers(again) == _alone(make_engine, PROMPT, 1)
    # A session that starts over uses what it holds itself.
    (over,) = lab.run(engine, _ask(engine, "new", PROMPT, ticket=2))
    assert over.num_cached_tokens == len(PROMPT) - 1
    assert lab.numbers(over) == _alone(make_engine, PROMPT, 2)


def test_a_conversation_in_new_sessions_reads_only_what_is_new(make_engine):
    """What was sampled is read by decode steps, and by a prefill when it comes in a prompt: those
    tokens are shared only if that may cost the last bit."""
    found = {}
    for mode in ("prompts", "all"):
        engine = make_engine(prefix_cache=mode)
        (first,) = lab.run(engine, _ask(engine, "one", PROMPT, max_new_tokens=15))
        engine.release("one")
        longer = PROMPT + first.tokens + [3, 1, 4]
        (second,) = lab.run(engine, _ask(engine, "two", longer, ticket=1))
        alone = _alone(make_engine, longer, 1)
        assert second.tokens == alone.tokens
        assert (lab.numbers(second) == alone) or mode == "all"
        assert max(abs(a - b) for a, b in zip(second.logprobs, alone.logprobs, strict=True)) < 2e-5
        found[mode] = second.num_cached_tokens
    assert found == {"prompts": len(PROMPT) - 1, "all": len(PROMPT) - 1 + 15}


@pytest.mark.parametrize("swap", ["keep", "recompute"])
def test_nothing_read_by_old_weights_is_shared(make_engine, swap):
    """PITFALLS: prefix caches that outlive an update."""
    engine = make_engine(swap=swap)
    running = _ask(engine, "running", PROMPT, max_new_tokens=20)
    lab.run(engine, _ask(engine, "warm", PROMPT, ticket=1))
    engine.release("warm")
    lab.run(engine, _ask(engine, "idle", PROMPT, ticket=1))
    assert not running.done()
    engine.load_weights(1, lab.params_of("tiny_moe", 1))
    (answer,) = lab.run(engine, _ask(engine, "new", PROMPT, ticket=2))
    fresh = make_engine(weights=1, version=1)
    (expected,) = lab.run(fresh, _ask(fresh, "x", PROMPT, ticket=2))
    assert lab.numbers(answer) == lab.numbers(expected)
    # What "running" has read again by the new weights is as good as new.
    assert answer.num_cached_tokens == (0 if swap == "keep" else len(PROMPT) - 1)


def test_fed_beginnings_are_not_waited_for(make_engine):
    engine = make_engine(max_fed_tokens=64)
    answers = lab.run(engine, *(_ask(engine, f"g{i}", PROMPT, ticket=i) for i in range(3)))
    assert engine.stats()["shared_tokens"] == 0
    assert len(answers) == 3


def test_a_source_that_ends_while_others_wait_for_it(make_engine):
    """The first of a group is released before its prompt is read; the others read it."""
    engine = make_engine()
    futures = [_ask(engine, f"g{i}", PROMPT, ticket=i) for i in range(3)]
    engine.step()  # half of the prompt
    engine.release("g0")
    answers = lab.run(engine, *futures)
    assert answers[0].finish_reason == "cancelled"
    for ticket in (1, 2):
        assert lab.numbers(answers[ticket]) == _alone(make_engine, PROMPT, ticket)


def test_a_dispatch_of_copies_reads_no_page_that_it_writes(make_engine):
    """The oldest of equal sources may be one that is just receiving its pages."""
    engine = make_engine()
    lab.run(engine, _ask(engine, "idle", PROMPT))
    programs, dispatches = engine._batch._programs, []
    copy = programs.copy

    def watched(sources, targets):
        dispatches.append((set(sources.tolist()), set(targets.tolist())))
        copy(sources, targets)

    programs.copy = watched
    answers = lab.run(engine, *(_ask(engine, f"g{i}", PROMPT, ticket=i) for i in range(3)))
    assert sum(len(targets) for _, targets in dispatches) == 3 * 3
    assert not any(sources & targets for sources, targets in dispatches)
    for ticket, answer in enumerate(answers):
        assert lab.numbers(answer) == _alone(make_engine, PROMPT, ticket)
