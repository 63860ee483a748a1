"""vLLM under benchmarks/sampler.py: vllm_cpu.py MODEL_DIRECTORY NUM_SESSIONS CONTEXT"""

import sys
from collections.abc import Callable

import vllm
import worker


def make(directory: str, num_sessions: int, context: int) -> Callable[[worker.Workload], int]:
    llm = vllm.LLM(
        directory,
        dtype="float32",
        enforce_eager=True,
        block_size=32,
        enable_prefix_caching=True,
        max_model_len=context,
        max_num_seqs=num_sessions,
        skip_tokenizer_init=True,
        logprobs_mode="processed_logprobs",
        seed=0,
    )
    return lambda workload: play(llm.llm_engine, workload)


def play(engine, workload: worker.Workload) -> int:
    """A session's next turn is handed in as soon as the one before has ended."""
    contexts = [[] for _ in workload.sessions]
    left = [list(session) for session in workload.sessions]

    def submit(number: int) -> None:
        turn = left[number].pop(0)
        contexts[number] += turn.tokens
        sampling = vllm.SamplingParams(
            max_tokens=turn.num_new, temperature=1.0, logprobs=0, ignore_eos=True, detokenize=False
        )
        name = f"{workload.seed}-{number}-{len(left[number])}"
        engine.add_request(name, {"prompt_token_ids": list(contexts[number])}, sampling)

    for number in range(len(left)):
        submit(number)
    num_tokens = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if not output.finished:
                continue
            number = int(output.request_id.split("-")[1])
            tokens = list(output.outputs[0].token_ids)
            contexts[number] += tokens
            num_tokens += len(tokens)
            if left[number]:
                submit(number)
    return num_tokens


if __name__ == "__main__":
    worker.serve(lambda: make(sys.argv[1], *map(int, sys.argv[2:])))
