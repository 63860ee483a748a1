"""Episodes in chat templates: segments, masks by provenance, sampled ids that stay as they are."""

import asyncio
import dataclasses

import numpy as np
import tokenizers
from chat_lab import make_chat, make_text
from episode_lab import LIMITS, TASK, TICKET, Prepared
from tokenizers import models

from jaxrl_single import types, wire
from jaxrl_single.data import packing
from jaxrl_single.data import text as text_lib
from jaxrl_single.envs import base
from jaxrl_single.rollout import episode, text_chat

ROOMY = dataclasses.replace(LIMITS, max_turn_tokens=64, max_tokens=256)


# The last context is the longest.
ASKED = (
    base.StepResult("why?", role="user"),
    base.StepResult("really? the cat is on the mat, the cat is on the mat", role="user"),
)


class Talk:
    """Answers action k with the k-th result; the last one ends the episode."""

    def __init__(self, *results):
        self._results = list(results)
        self.actions = []

    async def reset(self, task, seed):
        return task.question

    async def step(self, action):
        self.actions.append(action)
        if self._results:
            return self._results.pop(0)
        return base.StepResult("", 1.0, terminated=True)

    async def close(self):
        pass


def sampled(ids, *, finish_reason="stop", **more):
    count = len(ids)
    return wire.Completion(ids, [-0.5] * count, [0.1] * count, [3] * count, finish_reason, **more)


def play(language, env, answers, limits=ROOMY, task=TASK):
    client = Prepared(*answers)
    ticket = dataclasses.replace(TICKET, task=task)
    trajectory = asyncio.run(episode.run_episode(ticket, env, client, language, limits))
    if trajectory.error is None:
        types.validate(trajectory)
    return trajectory, client


def pack(trajectory, row_length):
    return packing.pack(
        [trajectory],
        num_trajectories=1,
        row_length=row_length,
        rows_per_micro_batch=1,
        row_buckets=(1, 2, 3),
        on_limit="terminal",
    )


def forgetful_episode():
    """Three actions; after the first and the second a person speaks, and thoughts are left out."""
    language = make_chat("thinks")
    said = ("<think>\nhm\n</think>\n\nthe mat", "<think>\nso\n</think>\n\nyes", "no")
    answers = [sampled(language.action_ids(text)) for text in said]
    env = Talk(*ASKED)
    return (*play(language, env, answers), env, answers, said)


def test_a_rewritten_past_is_read_again_and_each_sampled_token_trained_once():
    trajectory, client, env, answers, said = forgetful_episode()
    text = make_text("thinks")
    assert env.actions == list(said)
    assert [m["content"] for m in trajectory.messages] == [
        TASK.question, said[0], ASKED[0].observation, said[1], ASKED[1].observation, said[2],
    ]  # fmt: skip
    history = [{"role": m["role"], "content": m["content"]} for m in trajectory.messages]
    for number, request in enumerate(client.requests):
        assert request.tokens == text.render(history[: 2 * number + 1]), number
        assert request.session == TICKET.key
        here = trajectory.segment_ids == number + 1
        assert trajectory.tokens[here].tolist() == request.tokens + answers[number].tokens
        assert trajectory.tokens[here & trajectory.action_mask].tolist() == answers[number].tokens
        assert (trajectory.turn_ids[here] == number).all()
    shown = text.decode(client.requests[2].tokens, keep_special=True)
    assert "hm" not in shown
    assert "so" not in shown
    assert shown.count("why?") == shown.count("really?") == 1
    assert trajectory.num_actions == sum(len(answer.tokens) for answer in answers)
    assert np.flatnonzero(trajectory.rewards).tolist() == [trajectory.num_tokens - 1]
    assert trajectory.terminated
    assert trajectory.reward == 1.0


def test_segments_fill_rows_one_by_one_when_they_do_not_fit_together():
    trajectory, *_ = forgetful_episode()
    lengths = np.bincount(trajectory.segment_ids)[1:]
    for row_length, num_rows in ((int(lengths.max()), 3), (int(lengths.sum()), 1)):
        batch = pack(trajectory, row_length)
        assert batch.tokens.shape[0] == num_rows
        real = batch.segment_ids > 0
        np.testing.assert_array_equal(batch.tokens[real], trajectory.tokens)
        np.testing.assert_array_equal(batch.loss_mask[real], trajectory.action_mask)
        assert batch.loss_mask.sum() == trajectory.num_actions
        starts = np.cumsum([0, *lengths[:-1]])
        assert np.flatnonzero(batch.positions[real] == 0).tolist() == starts.tolist()


def test_the_token_limit_bounds_a_segment_not_the_episode():
    _, client, _, answers, _ = forgetful_episode()
    longest = max(
        len(request.tokens) + len(answer.tokens)
        for request, answer in zip(client.requests, answers, strict=True)
    )
    limits = dataclasses.replace(ROOMY, max_tokens=longest)
    language = make_chat("thinks")

    def again(limits):
        env = Talk(*ASKED)
        return play(language, env, answers, limits)[0]

    whole = again(limits)
    assert whole.terminated
    assert whole.num_tokens > longest
    assert np.bincount(whole.segment_ids).max() == longest
    # A context that does not fit is not read at all, and the episode ends there.
    last_context = len(client.requests[2].tokens)
    assert last_context < longest
    cut = again(dataclasses.replace(limits, max_tokens=last_context - 1))
    assert cut.truncated
    assert not cut.terminated
    assert set(cut.segment_ids.tolist()) == {1, 2}
    assert cut.messages[-1]["content"] == ASKED[1].observation


def test_a_bound_on_all_segments_cuts_the_episode_where_one_would_pass_it():
    whole, client, _, answers, _ = forgetful_episode()
    language = make_chat("thinks")
    ends = np.cumsum(np.bincount(whole.segment_ids)[1:]).tolist()
    for bound, num_segments in ((ends[2], 3), (ends[1] + len(client.requests[2].tokens) - 1, 2)):
        env = Talk(*ASKED)
        limits = dataclasses.replace(ROOMY, max_episode_tokens=bound)
        trajectory, asked = play(language, env, answers, limits)
        assert trajectory.terminated == (num_segments == 3)
        assert trajectory.num_tokens == ends[num_segments - 1]
        last = asked.requests[-1]
        start = ends[num_segments - 2]
        assert last.max_new_tokens == min(64, bound - start - len(last.tokens))


def test_a_context_after_the_last_turn_is_part_of_the_state():
    language = make_chat("thinks")
    answers = [sampled(language.action_ids("<think>\nhm\n</think>\n\nthe mat"))]
    env = Talk(base.StepResult("why?", role="user"))
    limits = dataclasses.replace(ROOMY, max_turns=1)
    trajectory, _ = play(language, env, answers, limits)
    assert trajectory.truncated
    last = trajectory.segment_ids == 2
    assert last.sum() > 5
    assert not trajectory.action_mask[last].any()
    batch = pack(trajectory, 128)
    assert batch.last_token[0] == trajectory.num_tokens - 1


def test_experts_are_recorded_where_their_tokens_lie():
    """A sampler counts from the beginning of its request; the episode from its own."""
    language = make_chat("thinks")
    ids = language.action_ids("<think>\nhm\n</think>\n\nthe mat")
    starts = []

    class Routed(Prepared):
        async def generate(self, request):
            answer = await super().generate(request)
            starts.append(len(request.tokens))
            experts = [[[request.turn, 7]]] * (len(request.tokens) + len(answer.tokens) - 1)
            return dataclasses.replace(answer, expert_ids=experts, expert_start=0)

    client = Routed(sampled(ids), sampled(language.action_ids("no")))
    env = Talk(base.StepResult("why?", role="user"))
    trajectory = asyncio.run(episode.run_episode(TICKET, env, client, language, ROOMY))
    assert trajectory.error is None
    types.validate(trajectory)
    for turn in range(2):
        entries = trajectory.expert_ids[trajectory.segment_ids == turn + 1]
        assert (entries[:-1] == [turn, 7]).all()
        assert (entries[-1] == types.UNKNOWN_EXPERT).all()


def test_two_calls_of_one_message_are_answered_by_two_messages():
    language, text = make_chat("tagged"), make_text("tagged")
    calls = "<tool_call>\n{}\n</tool_call>\n<tool_call>\n{}\n</tool_call>"
    answers = [sampled(language.action_ids(calls)), sampled(language.action_ids("101"))]
    trajectory, client = play(language, Talk(base.StepResult(("95", "6"))), answers)
    assert [(m["role"], m["content"]) for m in trajectory.messages[2:4]] == [
        ("tool", "95"),
        ("tool", "6"),
    ]
    assert client.requests[1].tokens == text.render(list(trajectory.messages[:4]))
    assert set(trajectory.segment_ids.tolist()) == {1}


def toy_chat():
    """A tokenizer that would write `hello` as one token where the policy wrote two."""
    pieces = ["<end>", "\n", ">", "h", "e", "l", "o", "he", "ll", "llo", "hello", "u", "a", "t"]
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    model = models.BPE({piece: number for number, piece in enumerate(pieces)}, merges)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.decoder = tokenizers.decoders.Fuse()
    tokenizer.add_special_tokens(["<end>"])
    source = (
        "{% for m in messages %}{{ m.role[0] + '>' + m.content + '<end>' }}{% endfor %}"
        "{% if add_generation_prompt %}a>{% endif %}"
    )
    text = text_lib.HfText(tokenizer, stop_token_ids=(0,), templates={"default": source})
    return text_chat.TextChat(text)


def test_a_tokenizer_with_several_spellings_never_spells_again():
    language = toy_chat()
    spell = language.text.tokenise
    assert spell("hello") == [10]
    he_llo = [7, 9, 0]
    task = types.Task("t", "hello", "")
    answers = [sampled(he_llo), sampled([10, 0])]
    trajectory, client = play(language, Talk(base.StepResult("tool")), answers, task=task)
    first, second = client.requests
    assert second.tokens[: len(first.tokens) + 3] == first.tokens + he_llo
    assert second.tokens == first.tokens + he_llo + spell("t>tool<end>a>")
    assert trajectory.tokens.tolist() == second.tokens + [10, 0]
    assert trajectory.tokens[trajectory.action_mask].tolist() == [7, 9, 0, 10, 0]


def test_masks_come_from_who_wrote_a_token_not_from_its_id():
    """The stop token also pads and stands in the prompt; a whole and a cut action."""
    language = make_chat("chatml")
    stop = language.stop_token_ids[0]
    few_shot = "a<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc"
    task = types.Task("t", few_shot, "")
    whole = language.action_ids("the mat")
    for ids, reason in ((whole, "stop"), ([5, stop, 7, 8, 9], "length")):
        trajectory, client = play(language, Talk(), [sampled(ids, finish_reason=reason)], task=task)
        prompt = client.requests[0].tokens
        # One for each message, that of the system included; those in the question are letters.
        assert prompt.count(stop) == 2
        assert trajectory.tokens.tolist() == prompt + ids
        expected = [False] * len(prompt) + [True] * len(ids)
        assert trajectory.action_mask.tolist() == expected
        batch = pack(trajectory, 128)
        count = len(expected)
        assert batch.loss_mask[0, 0].tolist() == expected + [False] * (128 - count)
        assert (batch.segment_ids[0, 0] > 0).tolist() == [True] * count + [False] * (128 - count)
        assert trajectory.finish_reasons == (reason,)


def test_a_template_that_refuses_the_answer_of_a_tool_makes_the_episode_an_error():
    source = """{% for m in messages %}
        {%- if m.role != 'assistant' and not loop.first %}{{ raise_exception('no answers') }}
        {%- endif %}{{ m.content }}<end>{% endfor %}"""
    tokenizer = toy_chat().text._tokenizer
    text = text_lib.HfText(tokenizer, stop_token_ids=(0,), templates={"default": source})
    language = text_chat.TextChat(text)
    task = types.Task("t", "hello", "")
    trajectory, _ = play(language, Talk(base.StepResult("tool")), [sampled([7, 0])], task=task)
    assert trajectory.error.kind == "env"
    assert "the chat template refuses these messages: no answers" in trajectory.error.message
