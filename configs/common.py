"""Every field of an experiment, with its meaning and unit. Experiments derive from `base()`.

A config file holds one `get_config(arg="")`. `arg` is a comma list of switches that move several
fields at once (`--config=configs/tiny_sao.py:tiny`); everything else is a dotted override
(`--config.rl.num_steps=50`). The config is locked: an unknown key is an error.
"""

from ml_collections import ConfigDict


def base() -> ConfigDict:
    """The common config; each experiment changes what it needs and says why."""
    config = ConfigDict()
    config.seed = 0  # of parameters, data order and sampling
    config.mode = "local"  # local: trainer and sampler processes | sync: one process, deterministic
    config.algorithm = _sao()
    config.model = _model()
    config.env = _env()
    config.warm_start = _warm_start()
    config.value_pretraining = _value_pretraining()
    config.rl = _rl()
    config.critic = _critic()
    config.policy_optimizer = _optimizer(learning_rate=6e-4)
    # Near success the gradients vanish, Adam rescales what is left, and steps of the first size
    # can throw the policy off within five updates; so the steps become smaller by then.
    config.policy_optimizer.update({"decay_steps": 150, "final_fraction": 0.1})
    config.critic_optimizer = _optimizer(learning_rate=1e-3)
    config.batch = _batch()
    config.sampler = _sampler()
    config.rollout = _rollout()
    config.vllm = _vllm()
    config.sync = ConfigDict({"lag": 0})  # sync mode samples with the weights of `lag` versions ago
    config.eval = _eval()
    config.trainer = _trainer()
    config.checkpoint = _checkpoint()
    config.trajectories = _trajectories()
    config.weights = _weights()
    config.gate = _gate()
    config.supervisor = _supervisor()
    return config


def finish(config: ConfigDict, arg: str) -> ConfigDict:
    """Applies the switches that every config has and locks it.

    `tiny` shrinks the run to seconds, for tests: it shows that it runs, not that it learns.
    """
    if parse_arg(arg, tiny=False)["tiny"]:
        shrink(config)
    config.lock()
    return config


def parse_arg(arg: str, **defaults: bool) -> dict[str, bool]:
    """Reads the comma list after the colon of --config; each switch may be given once.

    Raises:
      ValueError: an unknown switch; the message lists the known ones.
    """
    switches = dict(defaults)
    for name in filter(None, arg.split(",")):
        if name not in switches:
            raise ValueError(
                f"unknown config switch {name!r}; this config knows {sorted(switches)}"
            )
        switches[name] = True
    return switches


def shrink(config: ConfigDict) -> None:
    """Makes any config run in seconds on CPU: every stage and code path, hardly any learning."""
    small = base()
    for section in ("model", "sampler", "trainer", "gate"):
        config[section] = small[section]
    config.warm_start.update({"num_demonstrations": 64, "num_steps": 4, "batch_size": 8})
    config.value_pretraining.update({"num_trajectories": 16, "max_steps": 4, "eval_every": 2})
    rl = config.rl
    rl.update({"num_steps": 4, "group_size": min(rl.group_size, 4)})
    rl.critic_only_steps = min(rl.critic_only_steps, 1)
    minibatches = min(config.algorithm.num_minibatches, 8)
    config.algorithm.num_minibatches = minibatches
    rows = 8 // max(2, minibatches)  # two micro-batches at least, and one for each minibatch
    config.batch.update(
        {"num_trajectories": 8, "rows_per_micro_batch": rows, "row_buckets": (8,), "row_length": 96}
    )
    config.env.update({"max_turns": 5, "max_turn_tokens": 12, "max_tokens": 96})
    config.env.update(
        {"tool_latency_s": 0.0, "num_train_tasks": min(config.env.num_train_tasks, 8)}
    )
    config.sampler.update({"num_slots": 8, "prefill_pages": (4,)})
    config.sampler.update({"num_aux_draws": 3, "top_k": 3})
    config.rollout.max_in_flight = 8
    config.eval.update({"num_tasks": 16, "every_steps": 2, "periodic_num_tasks": 8})
    config.checkpoint.every_steps = 2
    config.trajectories.every_steps = 2


def _sao() -> ConfigDict:
    """Overrides of a row of jaxrl_single/algorithms/table.py, by the names of its fields."""
    return ConfigDict(
        {
            "name": "sao",  # the row
            "reduction": "token_mean",  # mean over all tokens: long trajectories weigh more
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass
            "num_critic_steps": 2,  # critic updates per policy update (SAO: K = 2)
            "advantage": {
                "discount": 1.0,  # per action token
                "lambda_alpha": 1.5,  # policy lambda = 1 - 1 / (alpha x action tokens), at least 0
                "critic_lambda": 1.0,  # of the critic's target; 1 = realised return
            },
            "keep_rule": {
                "low": 0.3,  # DIS keeps ratios in the open interval (1 - low, 1 + high)
                "high": 5.0,  # published for mathematics; for coding 0.8 and 3.0
            },
        }
    )


def _model() -> ConfigDict:
    return ConfigDict(
        {
            "size": "tiny_moe",  # a name in jaxrl_single/models/sizes.py, if there is no path
            # A directory in Hugging Face layout, a GGUF file, or "package:NAME/FILE" of an
            # installed package; its tokenizer and chat template come along.
            "path": "",  # start from these weights; empty = random ones
            # A template that shows the date shows the one on which the run began, in UTC.
            "template_args": {},  # variables of its chat template: {"enable_thinking": False}
            # describe: in the system message, in the form of docs/models.md | refuse: an error.
            "tools_fallback": "describe",  # tools that the chat template does not show
            # segment: go on with what the template shows | append: with what was really said.
            "on_rewrite": "segment",  # if the template shows the past otherwise than it was
            # The optimiser keeps a float32 copy of parameters that are narrower.
            "dtype": "float32",  # of parameters and activations; losses are float32 always
            "remat": False,  # recompute activations in the backward pass: less memory, more time
        }
    )


def _env() -> ConfigDict:
    return ConfigDict(
        {
            "name": "calculator",  # in jaxrl_single/envs/table.py, or "package.module:factory"
            "tasks_file": "",  # JSONL with question, answer, optional id; empty = generated tasks
            "eval_tasks_file": "",  # the held-out ones of the same form; needed with tasks_file
            "num_train_tasks": 0,  # RL plays so many tasks again and again; 0 = all there are
            "num_operations": 2,  # dependent operations in a question, each needs one tool call
            "num_digits": 2,  # of each operand in a generated question
            "max_result": 999,  # largest result of an operation in a generated question
            "operators": "+-*",  # that a generated question may use
            "max_turns": 5,  # actions per episode, the answer included; more is a truncation
            "max_turn_tokens": 12,  # tokens of one action
            "max_tokens": 96,  # tokens of a whole episode, prompt and observations included
            "tool_enabled": True,  # False: every call gets an error; measures the tool's worth
            "tool_latency_s": 0.15,  # the tool sleeps so long, as slow tools do
            "tool_latency_spread": 0.5,  # latency is uniform in (1 +- spread) x tool_latency_s
            # A longer reset, step or close makes the episode an error; seconds, 0 = no bound.
            "step_timeout_s": 600.0,  # see above
            # The rest is for env.name = "tools".
            "dataset": "",  # of reasoning-gym, "chain_sum" for instance; empty = tasks_file
            "dataset_options": {},  # of that dataset; `size` is the number of its entries
            # calculator | python | "module:function", one's own: docs/environments.md.
            "tools": ("calculator",),  # that the model may call
            "tool_format": "hermes",  # how it writes calls, see jaxrl_single/envs/tool_formats.py
            "tool_output_chars": 2000,  # of an answer to a call; the middle of more is left out
            "tool_timeout_s": 5.0,  # of a call of python, by the clock
            # auto: bubblewrap or namespaces, or the run does not start | none: no walls, what the
            # model writes sees and changes all that you can.
            "sandbox": "auto",  # around python and judges: auto | bubblewrap | namespaces | none
            "sandbox_memory_mb": 512,  # address space of each process of python
            "observation_role": "",  # who answers a call: tool | user; empty = as the format has it
            # First message; the schemas of the tools replace `{tools}` in it, one a line, or go to
            # the chat template if there is none. Empty = none, or what the template itself says.
            "system_prompt": "",  # see above
            "answer_form": "last_number",  # where the answer is: text | last_number | tag | boxed
            # By the dataset's own rules, by math-verify, as numbers, or as texts.
            "answer_check": "dataset",  # dataset | math | number | exact | "module:function"
            "reward": "",  # "module:function" that gives it; empty = what the answer check says
            "partial_credit": False,  # the reward is the score; False: 1 for a full score, else 0
        }
    )


def _warm_start() -> ConfigDict:
    return ConfigDict(
        {
            "workdir": "",  # take the warm policy of this run instead; empty = train one
            # Conversations or exported trajectories, a JSON object a line: docs/environments.md.
            "demonstrations_file": "",  # to imitate; empty = the script of the environment plays
            "num_demonstrations": 4096,  # scripted episodes, made once
            "mistake_rate": 0.25,  # chance of a mistake at each action of the script
            "num_steps": 300,  # supervised steps; 0 skips the stage, as no script and no file do
            "batch_size": 64,  # episodes per step
            "learning_rate": 3e-3,  # peak, AdamW, linear warm-up over 5 % then cosine to 10 %
            "weight_decay": 0.01,  # AdamW
        }
    )


def _value_pretraining() -> ConfigDict:
    return ConfigDict(
        {
            "num_trajectories": 3072,  # rollouts of the warm policy, the held-out ones included
            "held_out_fraction": 0.25,  # of them, used for explained variance only
            "max_steps": 160,  # cap on gradient steps; 0 skips the stage
            "eval_every": 20,  # steps between measurements of held-out explained variance
            "patience": 3,  # measurements without a new best before stopping
            "learning_rate": 1e-3,  # AdamW, all of the critic is trained here
        }
    )


def _rl() -> ConfigDict:
    return ConfigDict(
        {
            "num_steps": 160,  # policy updates; may be raised on a rerun of the same workdir
            # First steps that update the critic alone (SAO §4.1), fewer than num_steps.
            "critic_only_steps": 10,  # steps
            "critic_first": True,  # advantages come from the critic after its update on this batch
            "group_size": 1,  # trajectories per task; 1 = single rollout
            "kl_budget": 0.0,  # nats per token that an update may move the policy; 0 = no limit
            "kl_max_scale": 1.0,  # factor on steps far below kl_budget; 1 = none is lengthened
            "max_staleness": 2,  # older trajectories are dropped when they would be consumed
        }
    )


def _critic() -> ConfigDict:
    return ConfigDict(
        {
            # Ordered (regex on the parameter path, label); first match wins; unmatched = error.
            # Labels: "train", "frozen". SAO §3.2: only expert projections and value head train.
            "rules": (
                ("value_head/.*", "train"),
                (".*/(experts|mlp)/.*", "train"),
                (".*", "frozen"),
            ),
        }
    )


def _optimizer(learning_rate: float) -> ConfigDict:
    return ConfigDict(
        {
            "learning_rate": learning_rate,  # peak
            "warmup_steps": 0,  # linear warm-up, in updates of this optimiser
            "decay": "linear",  # linear | cosine
            "decay_steps": 0,  # updates of the decay after which final_fraction is reached
            "final_fraction": 1.0,  # of the peak, after decay_steps
            "b1": 0.9,  # AdamW
            "b2": 0.95,  # AdamW
            "weight_decay": 0.0,  # AdamW, on all trained parameters
            "clip_norm": 1.0,  # global norm of the gradient; 0 = no clipping
        }
    )


def _batch() -> ConfigDict:
    return ConfigDict(
        {
            "num_trajectories": 64,  # per policy update (rejected ones are replaced)
            "row_length": 128,  # tokens of a packed row; must hold env.max_tokens
            "rows_per_micro_batch": 32,  # rows in memory at once; gradients do not depend on it
            # Allowed row counts of a batch, ascending: few, so few compilations.
            "row_buckets": (32, 64),  # rows
        }
    )


def _sampler() -> ConfigDict:
    return ConfigDict(
        {
            "num_slots": 40,  # episodes decoded together; fixed, so a token's numbers are too
            "decode_chunk": 6,  # tokens decoded per dispatch; weights swap between chunks
            # Smaller numbers of slots that a dispatch may be for while no more are busy; each is
            # compiled, and the rounding of a token then depends on how many sample together.
            "decode_slots": (),  # ascending or not; empty = one size
            "page_size": 32,  # tokens of a page of the cache; accelerators like 128
            "cache_tokens": 0,  # most tokens cached in all slots; 0 = all of them full
            # Smaller sizes that the cache may have, as fractions of that: memory and the cost of a
            # step follow the tokens there are, but each size is compiled, which small models feel.
            "cache_sizes": (),  # ascending or not; empty = one size
            "prefix_cache": "prompts",  # shared beginnings: off | prompts: no number changes | all
            # Pages per prefill dispatch, ascending; a turn takes the smallest that holds what is
            # new, else the largest several times.
            "prefill_pages": (8,),  # each is compiled
            "max_fed_tokens": 8,  # turns with so few new tokens read them by decode steps instead
            "num_aux_draws": 128,  # one-token draws per sampled token, if the algorithm reads them
            "top_k": 16,  # likeliest tokens recorded per sampled token, for those that need them
            "record_experts": False,  # of each token; the trainer replays the choice (MoE models)
            "swap": "keep",  # keep: sequences in flight keep their cache | recompute: it is rebuilt
            "devices": "",  # chips of the samplers, "4,5"; "cpu"; empty = second half
            "memory_fraction": 0.45,  # of the memory of a GPU shared with the trainer, in all
            # The rest is for rollout.client = "http".
            "num_processes": 1,  # samplers that the run starts; 0 = started by run.sampler only
            "host": "127.0.0.1",  # to listen on; a host that others reach needs a token
            "port": 0,  # of the first sampler, the next ones follow; 0 = any, see WORKDIR/samplers
            "token_file": "",  # holds the bearer token; empty = JAXRL_SAMPLER_TOKEN, or no token
            # Likelier tokens that OpenAI's endpoints can tell (logprobs, top_logprobs); each decode
            # step then looks for them.
            "top_logprobs": 0,  # so many at most
            "max_waiting": 1024,  # requests that wait for a slot; more are told to come again
            "idle_s": 60.0,  # a session idle for so long gives its slot to a request that waits
        }
    )


def _rollout() -> ConfigDict:
    return ConfigDict(
        {
            "temperature": 1.0,  # of training and evaluation
            "on_limit": "terminal",  # turn, token and context limits: terminal | bootstrap | mask
            "max_in_flight": 40,  # episodes at once, at most the slots of all samplers
            # Batches of episodes under way or waiting to be trained, at most. Fewer help where the
            # sampler is faster than the trainer and what it plays ahead gets too old. (In
            # mode=sync they are sync.lag + 1.)
            "open_batches": 0,  # 0 = all that can be fresh enough, rl.max_staleness + 1
            "client": "in_process",  # beside the engine | http: by itself | vllm: a vLLM server's
            "sampler_urls": (),  # http: use these samplers instead of starting any
            "sampler_patience_s": 600.0,  # http, vllm: a request failing so long fails the episode
            "max_attempts": 2,  # tries of a ticket whose episode failed with an error
            "max_consecutive_errors": 20,  # so many failed episodes in a row stop the run
        }
    )


def _vllm() -> ConfigDict:
    return ConfigDict(
        {
            "url": "http://127.0.0.1:8000",  # of a server that launch/vllm.sh has started
            "directory": "",  # for checkpoints; the server reads them too; empty = WORKDIR/vllm
        }
    )


def _eval() -> ConfigDict:
    return ConfigDict(
        {
            "num_tasks": 512,  # held-out tasks before and after RL
            "every_steps": 25,  # RL steps between periodic evaluations; 0 = none
            "periodic_num_tasks": 128,  # held-out tasks of a periodic evaluation
        }
    )


def _trainer() -> ConfigDict:
    return ConfigDict(
        {
            "mesh": {"data": 1, "fsdp": 1, "tensor": 1, "expert": 1, "context": 1},  # axis sizes
            "devices": "",  # chips of the trainer, "0,1"; empty = first half
            "memory_fraction": 0.45,  # of the memory of a GPU shared with the other process
            "log_every": 1,  # steps between lines of metrics.jsonl
            "no_progress_s": 600.0,  # no trajectory for so long stops the run with an error
        }
    )


def _checkpoint() -> ConfigDict:
    return ConfigDict(
        {
            "every_steps": 25,  # RL steps between checkpoints; also at the end and on SIGTERM
            "keep": 2,  # newest checkpoints kept
            "keep_best": True,  # the policy of the best evaluation stays in WORKDIR/best
        }
    )


def _trajectories() -> ConfigDict:
    """What stays of trained steps, so that they can be scored again; see docs/evidence.md."""
    return ConfigDict(
        {
            # all: of every step, dropped ones too | every_nth: of every nth step of RL and of all
            # evaluations | none: what a checkpoint covers is deleted.
            "keep": "every_nth",  # trajectories, and beside them the evidence of their step
            "every_steps": 10,  # the n of every_nth
            "max_gb": 4.0,  # 10^9 bytes of both in all; the oldest steps go first
        }
    )


def _weights() -> ConfigDict:
    return ConfigDict(
        {
            # Published versions; empty = WORKDIR/weights. /dev/shm/... is faster, but what a
            # finished run leaves there, the newest versions in DIRECTORY/RUN_ID, takes memory until
            # you delete it. Should rl.num_steps be raised, the run continues without them.
            "directory": "",  # see above
            "keep": 4,  # newest versions kept; versions of running evaluations are kept too
        }
    )


def _gate() -> ConfigDict:
    return ConfigDict(
        {
            "enabled": True,  # at the first step and after a resume: sampler against trainer
            "max_difference": 2e-5,  # of log-probs at equal weights, times 1 / min(1, temperature)
            "mean_difference": 2e-6,  # the same for the mean; for float32 and tiny models
        }
    )


def _supervisor() -> ConfigDict:
    return ConfigDict(
        {
            "max_restarts": 3,  # of a sampler that died; the next death stops the run
            "heartbeat_s": 600.0,  # a process silent for so long is killed; compiling is silent too
            # From SIGTERM to SIGKILL when stopping a child. In mode=sync: how long a stop waits for
            # the next of the episodes that old weights still sample.
            "stop_timeout_s": 20.0,  # seconds
        }
    )
