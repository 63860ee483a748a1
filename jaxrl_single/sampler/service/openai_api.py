"""Requests of /v1/completions and /v1/chat/completions, read into requests of the wire.

Besides OpenAI's own fields (echo among them, with max_tokens = 0 for the prompt alone): prompts as
token ids, top_k, min_p, stop_token_ids, ignore_eos, allowed_token_ids, skip_special_tokens,
chat_template_kwargs, continue_final_message, return_token_ids, session_id (keeps the cache from
turn to turn until POST /release) and policy_version (exactly that version samples). A field that
would change the answer and can't be followed is refused by name, never ignored.
https://platform.openai.com/docs/api-reference
"""

from __future__ import annotations

import dataclasses
import secrets
import uuid
from typing import Any

from jaxrl_single import wire
from jaxrl_single.data import text as text_lib
from jaxrl_single.envs import thoughts, tool_formats
from jaxrl_single.sampler.service import fields as fields_lib
from jaxrl_single.sampler.service import http_errors, openai_prompts, openai_tools

ALIAS = "policy"  # every server's model, so that a client need not know what is trained
MAX_CHOICES = 1024  # of one request, over all its prompts
_COMPLETION_TOKENS = 16  # of /v1/completions, where max_tokens is absent
_THINK_TOKENS = 16  # at the end of a prompt hold "<think>" if the template opens a thought there
_SEEDS = 2**32
_INT64 = 2**63

# What does not change the answer.
_IGNORED = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
)
# What may be said only where it says nothing.
_NEUTRAL = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "include_stop_str_in_output": (False,),
}
_NEUTRAL_COMPLETION = {"best_of": (1,), "suffix": ("",)}
_NEUTRAL_CHAT = {
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one server allows and how its model is called; see `server.Server`.

    Attributes:
      model_name: the model's own name; `ALIAS` means the same model.
    """

    model_name: str
    max_tokens: int
    max_top_logprobs: int
    tool_format: tool_formats.Format | None = None

    @property
    def model_names(self) -> tuple[str, ...]:
        """What clients may call the model."""
        return tuple(dict.fromkeys((ALIAS, self.model_name)))


@dataclasses.dataclass(frozen=True)
class Call:
    """A request of either endpoint, checked.

    Attributes:
      chat: which endpoint.
      prompts: token ids of each.
      num_choices: answers to each prompt.
      settings: fields of wire.Request that all answers share.
      seed: of the draws; drawn at random if the client gave none.
      logprobs: whether answers have them.
      top_logprobs: so many of the likeliest tokens besides.
      stream: server-sent events instead of one body.
      include_usage: the stream ends with the counts of tokens.
      return_token_ids: ids, versions and whatever else training needs.
      keep_special: special tokens are part of the text.
      session_id: whose cache is kept; None = these are sessions of one request.
      echo: answers begin with their prompts, see openai_echo.py.
      tools: what the answers may call, None if nothing. Calls may be written with special tokens,
        so all of these are part of the text then.
      forced: ids that each answer begins with; they are taken, not drawn.
    """

    chat: bool
    prompts: list[list[int]]
    num_choices: int
    settings: dict[str, Any]
    seed: int | None
    logprobs: bool
    top_logprobs: int
    stream: bool
    include_usage: bool
    return_token_ids: bool
    keep_special: bool
    session_id: str | None
    echo: bool
    tools: openai_tools.Tools | None = None
    forced: tuple[int, ...] = ()

    def requests(self) -> list[wire.Request]:
        """One for each choice, prompt by prompt; none where nothing is to be sampled.

        The randomness of a choice is named by the seed and its number among those of its prompt;
        without a seed each prompt gets one of its own, equal prompts too.
        """
        if not self.settings["max_new_tokens"]:
            return []
        once = f"openai/{uuid.uuid4().hex}"
        seeds = [
            secrets.randbelow(_SEEDS) if self.seed is None else self.seed for _ in self.prompts
        ]
        return [
            wire.Request(
                session=self.session_id or f"{once}/{number}/{choice}",
                ticket=choice,
                attempt=0,
                turn=0,
                tokens=prompt,
                seed=seeds[number],
                record=self.top_logprobs > 0,
                forced_tokens=self.forced,
                **self.settings,
            )
            for number, prompt in enumerate(self.prompts)
            for choice in range(self.num_choices)
        ]


def completion_call(body: dict[str, Any], text: text_lib.Text, limits: Limits) -> Call:
    """Reads the body of POST /v1/completions.

    Raises:
      ApiError: 400, a field is wrong; 404, another model.
    """
    found = fields_lib.Fields(body)
    prompts = openai_prompts.of_completion(found.take("prompt"), text)
    found.refuse_unless(_NEUTRAL_COMPLETION)
    top = _alternatives(found, "logprobs", None, limits)
    echo = found.boolean("echo")
    max_tokens = found.integer("max_tokens", _COMPLETION_TOKENS, 1 - echo, limits.max_tokens)
    return _call(
        found,
        text,
        limits,
        chat=False,
        echo=echo,
        prompts=prompts,
        logprobs=top is not None,
        top_logprobs=top or 0,
        max_tokens=max_tokens,
    )


def chat_call(body: dict[str, Any], text: text_lib.Text, limits: Limits) -> Call:
    """Reads the body of POST /v1/chat/completions.

    Raises:
      ApiError: 400, a field is wrong; 404, another model.
    """
    found = fields_lib.Fields(body)
    prompt, schemas = openai_prompts.of_chat(found, text)
    tools = openai_tools.of_call(found, schemas, limits.tool_format)
    if tools is not None:
        shown = text.decode(prompt[-_THINK_TOKENS:], keep_special=True)
        tools = dataclasses.replace(tools, thinking=thoughts.begun(shown))
    found.refuse_unless(_NEUTRAL_CHAT)
    logprobs = found.boolean("logprobs")
    top = _alternatives(found, "top_logprobs", 0, limits)
    if top and not logprobs:
        raise http_errors.wrong("top_logprobs needs logprobs = true", "top_logprobs")
    older = found.integer("max_tokens", limits.max_tokens, 1, limits.max_tokens)
    max_tokens = found.integer("max_completion_tokens", older, 1, limits.max_tokens)
    call = _call(
        found,
        text,
        limits,
        chat=True,
        echo=False,
        prompts=[prompt],
        logprobs=logprobs,
        top_logprobs=top,
        max_tokens=max_tokens,
    )
    return dataclasses.replace(
        call,
        tools=tools,
        keep_special=call.keep_special or tools is not None,
        forced=_forced(body.get("tool_choice"), tools, schemas, text, max_tokens),
    )


def _forced(
    choice: Any,
    tools: openai_tools.Tools | None,
    schemas: list[dict[str, Any]],
    text: text_lib.Text,
    max_tokens: int,
) -> tuple[int, ...]:
    beginning = openai_tools.beginning(choice, tools, schemas)
    if not beginning:
        return ()
    if tools is not None and tools.thinking:  # a call that is only thought of would be none
        beginning = f"\n</think>\n\n{beginning}"
    forced = tuple(text.tokenise(beginning))
    if len(forced) >= max_tokens:
        raise http_errors.wrong(
            f"max_tokens is {max_tokens}; the beginning of a call, which tool_choice forces, has "
            f"{len(forced)} tokens alone",
            "max_tokens",
        )
    return forced


def check_model(model: Any, limits: Limits) -> None:
    """Raises ApiError (404) unless it is None or this server's."""
    if model is not None and model not in limits.model_names:
        raise http_errors.ApiError(
            404,
            f"no such model: {model!r:.80}; this server has "
            f"{' and '.join(map(repr, limits.model_names))}, which are the same model",
            param="model",
            code="model_not_found",
        )


def _call(
    found: fields_lib.Fields,
    text: text_lib.Text,
    limits: Limits,
    *,
    chat: bool,
    echo: bool,
    prompts: list[list[int]],
    logprobs: bool,
    top_logprobs: int,
    max_tokens: int,
) -> Call:
    """What both endpoints share."""
    check_model(found.take("model"), limits)
    session = found.string("session_id")
    num_choices = _num_choices(found, len(prompts), session)
    seed = found.integer("seed", None, -_INT64, _INT64 - 1)
    stream = found.boolean("stream")
    if stream and echo:
        raise http_errors.wrong("echo can't be streamed; leave one of the two out", "echo")
    call = Call(
        chat=chat,
        prompts=prompts,
        num_choices=num_choices,
        settings=_settings(found, text) | {"max_new_tokens": max_tokens},
        seed=None if seed is None else seed % _SEEDS,
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        stream=stream,
        include_usage=_include_usage(found, stream),
        return_token_ids=found.boolean("return_token_ids"),
        keep_special=not found.boolean("skip_special_tokens", True),
        session_id=session,
        echo=echo,
    )
    for name in _IGNORED:
        found.take(name)
    found.refuse_unless(_NEUTRAL)
    found.refuse_rest()
    return call


def _alternatives(
    found: fields_lib.Fields, name: str, default: int | None, limits: Limits
) -> int | None:
    """So many of the likeliest tokens; 0 still gives the log-probs of the sampled ones."""
    count = found.integer(name, default, 0, 2**31 - 1)
    if count is not None and count > limits.max_top_logprobs:
        raise http_errors.wrong(
            f"{name} is {count}, and this server tells at most {limits.max_top_logprobs} of the "
            f"likeliest tokens (sampler.top_logprobs of its config)",
            name,
        )
    return count


def _num_choices(found: fields_lib.Fields, num_prompts: int, session: str | None) -> int:
    num_choices = found.integer("n", 1, 1, MAX_CHOICES)
    if num_prompts * num_choices > MAX_CHOICES:
        raise http_errors.wrong(
            f"{num_prompts} prompts with n = {num_choices} are more than {MAX_CHOICES} choices",
            "n",
        )
    if session is not None and num_prompts * num_choices > 1:
        raise http_errors.wrong("a session has one prompt and n = 1 at a time", "session_id")
    return num_choices


def _settings(found: fields_lib.Fields, text: text_lib.Text) -> dict[str, Any]:
    top_p = found.number("top_p", 1.0, 0.0, 1.0)
    if top_p == 0:
        raise http_errors.wrong("top_p is 0, it must be above; use temperature = 0", "top_p")
    top_k = found.integer("top_k", 0, -1, 2**31 - 1)
    stop_token_ids = found.ids("stop_token_ids")
    strings = found.strings("stop")
    special = {string: _special_token(string, text) for string in strings}
    stop_token_ids += tuple(token for token in special.values() if token is not None)
    if not found.boolean("ignore_eos"):
        stop_token_ids = tuple(dict.fromkeys((*text.stop_token_ids, *stop_token_ids)))
    return {
        "temperature": found.number("temperature", 1.0, 0.0),
        "top_p": top_p,
        "top_k": max(top_k, 0),  # -1 is off, too
        "min_p": found.number("min_p", 0.0, 0.0, 1.0),
        "stop": tuple(string for string in strings if special[string] is None),
        "stop_token_ids": stop_token_ids,
        "logit_bias": _logit_bias(found.mapping("logit_bias")),
        "allowed_token_ids": found.ids("allowed_token_ids"),
        "policy_version": found.integer("policy_version", None, 0, 2**31 - 1),
    }


def _special_token(string: str, text: text_lib.Text) -> int | None:
    """The special token that is written so: text does not show it, so its id must stop instead."""
    try:
        found = text.encode(string)
    except ValueError:  # letters that the model does not know
        return None
    for token in found:
        if text.decode([token], keep_special=True) == string and not text.decode([token]):
            return token
    return None


def _logit_bias(given: dict[str, Any]) -> tuple[tuple[int, float], ...]:
    for token, bias in given.items():
        if not token.isdecimal() or len(token) > 10 or not fields_lib.are_ids([int(token)]):
            raise http_errors.wrong(f"logit_bias: {token!r:.80} is no token id", "logit_bias")
        if not fields_lib.is_number(bias) or abs(bias) > 100:
            raise http_errors.wrong(
                f"logit_bias of {token} is {bias!r:.80}, expected a number, -100 .. 100",
                "logit_bias",
            )
    return tuple((int(token), float(bias)) for token, bias in given.items())


def _include_usage(found: fields_lib.Fields, stream: bool) -> bool:
    options = fields_lib.Fields(found.mapping("stream_options"))
    include = options.boolean("include_usage")
    options.take("continuous_usage_stats")
    options.take("include_obfuscation")
    options.refuse_rest()
    return include and stream
