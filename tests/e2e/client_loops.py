"""Loops of three turns with tools, by the clients of others; run by test_clients.py.

    CLIENTS_PYTHON client_loops.py LOOP URL [MODEL]

Prints what the client says at the end. None of our packages is imported here.
"""

import asyncio
import dataclasses
import json
import sys

TASK = "What is (12 + 30) * 2? Use the tools."
IDS = {"return_token_ids": True}


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a + b


def multiply(a: int, b: int) -> int:
    """Multiplies two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a * b


FUNCTIONS = {"add": add, "multiply": multiply}
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": function.__doc__,
            "parameters": PARAMETERS,
            "strict": False,
        },
    }
    for name, function in FUNCTIONS.items()
]
# What clients send and what changes nothing here.
COURTESY = {
    "n": 1,
    "seed": 5,
    "user": "somebody",
    "store": False,
    "metadata": {"run": "1"},
    "parallel_tool_calls": True,
    "response_format": {"type": "text"},
    "max_completion_tokens": 400,
    "presence_penalty": 0.0,
    "frequency_penalty": 0,
    "logit_bias": {},
    "tool_choice": "auto",
}


def _play(ask) -> str:
    """The loop that every harness has; ask(messages) gives an assistant's message as a dict."""
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": TASK}]},
    ]
    for _ in range(3):
        message = ask(messages)
        messages.append(message)
        for call in message.get("tool_calls") or []:
            arguments = json.loads(call["function"]["arguments"])
            result = FUNCTIONS[call["function"]["name"]](**arguments)
            answer = {"role": "tool", "tool_call_id": call["id"], "content": str(result)}
            messages.append(answer)
    return messages[-1]["content"]


def openai_whole(url: str, model: str) -> str:
    import openai

    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)

    def ask(messages):
        answer = client.chat.completions.create(
            model=model, messages=messages, tools=TOOLS, extra_body=IDS, **COURTESY
        )
        return answer.choices[0].message.model_dump(exclude_none=True)

    return _play(ask)


def openai_streamed(url: str, model: str) -> str:
    """By the client's own accumulation of a stream."""
    import openai

    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)

    def ask(messages):
        with client.chat.completions.stream(
            model=model,
            messages=messages,
            tools=TOOLS,
            extra_body=IDS,
            stream_options={"include_usage": True},
        ) as stream:
            for _ in stream:
                pass
            found = stream.get_final_completion()
        assert found.usage.completion_tokens > 0
        message = found.choices[0].message.model_dump(exclude_none=True)
        for call in message.get("tool_calls") or []:
            call["function"].pop("parsed_arguments", None)
        message.pop("parsed", None)
        return message

    return _play(ask)


def openai_required(url: str, model: str) -> str:
    """With a real model, which is too small to call of its own accord; prints its answers."""
    import openai

    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    shown = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    messages = [
        {"role": "system", "content": f"You are a calculator. Call one tool at a time: {shown}"},
        {"role": "user", "content": "What is 12 + 30? Call add."},
    ]
    answers = []
    for name in ("add", "multiply", None):
        choice = {"type": "function", "function": {"name": name}} if name else "none"
        answer = client.chat.completions.create(
            model=model,
            messages=messages,
            tools=TOOLS,
            tool_choice=choice,
            temperature=0,
            max_tokens=60,
            extra_body=IDS,
        )
        answers.append(answer.model_dump())
        message = answer.choices[0].message.model_dump(exclude_none=True)
        messages.append(message)
        for call in message.get("tool_calls", []):
            function = FUNCTIONS[call["function"]["name"]]
            try:
                result = function(**json.loads(call["function"]["arguments"]))
            except TypeError as error:  # so small a model may name other arguments
                result = error
            answer = {"role": "tool", "tool_call_id": call["id"], "content": str(result)}
            messages.append(answer)
        messages.append({"role": "user", "content": "Now multiply it by 2. Call multiply."})
    return json.dumps(answers)


def litellm(url: str, model: str) -> str:
    import litellm as client

    def ask(messages):
        answer = client.completion(
            model=f"openai/{model}",
            api_base=url,
            api_key="none",
            messages=messages,
            tools=TOOLS,
            extra_body=IDS,
            num_retries=0,
        )
        return answer.choices[0].message.model_dump(exclude_none=True)

    return _play(ask)


def litellm_streamed(url: str, model: str) -> str:
    import litellm as client

    def ask(messages):
        chunks = client.completion(
            model=f"openai/{model}",
            api_base=url,
            api_key="none",
            messages=messages,
            tools=TOOLS,
            stream=True,
            extra_body=IDS,
            num_retries=0,
        )
        answer = client.stream_chunk_builder(list(chunks), messages=messages)
        return answer.choices[0].message.model_dump(exclude_none=True)

    return _play(ask)


def smolagents(url: str, model: str) -> str:
    import smolagents as client

    agent = client.ToolCallingAgent(
        tools=[client.tool(add), client.tool(multiply)],
        model=client.OpenAIServerModel(
            model_id=model, api_base=url, api_key="none", extra_body=IDS
        ),
        max_steps=3,
        verbosity_level=0,
    )
    return str(agent.run(TASK))


def pydantic_ai(url: str, model: str) -> str:
    return _pydantic_ai(url, model, str)


def pydantic_ai_structured(url: str, model: str) -> str:
    """Its last answer is a call of a tool that every request requires."""
    return _pydantic_ai(url, model, dataclasses.make_dataclass("Answer", [("answer", str)])).answer


def _pydantic_ai(url: str, model: str, output_type: type):
    import pydantic_ai as client
    from pydantic_ai.models import openai as models
    from pydantic_ai.providers import openai as providers

    agent = client.Agent(
        models.OpenAIChatModel(
            model, provider=providers.OpenAIProvider(base_url=url, api_key="none")
        ),
        tools=[add, multiply],
        instructions="Be brief.",
        output_type=output_type,
        model_settings={"extra_body": IDS},
    )
    return agent.run_sync(TASK).output


def openai_agents(url: str, model: str) -> str:
    import agents as client

    return asyncio.run(client.Runner.run(_openai_agent(url, model), TASK)).final_output


def openai_agents_streamed(url: str, model: str) -> str:
    import agents as client

    async def play():
        result = client.Runner.run_streamed(_openai_agent(url, model), TASK)
        async for _ in result.stream_events():
            pass
        return result.final_output

    return asyncio.run(play())


def _openai_agent(url: str, model: str):
    import agents as client
    import openai

    client.set_tracing_disabled(True)
    return client.Agent(
        name="calculator",
        instructions="Be brief.",
        tools=[client.function_tool(add), client.function_tool(multiply)],
        model=client.OpenAIChatCompletionsModel(
            model=model,
            openai_client=openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0),
        ),
        model_settings=client.ModelSettings(extra_body=IDS),
    )


LOOPS = (
    openai_whole,
    openai_streamed,
    openai_required,
    litellm,
    litellm_streamed,
    smolagents,
    pydantic_ai,
    pydantic_ai_structured,
    openai_agents,
    openai_agents_streamed,
)

if __name__ == "__main__":
    loop, url, *model = sys.argv[1:]
    print({found.__name__: found for found in LOOPS}[loop](url, model[0] if model else "policy"))
