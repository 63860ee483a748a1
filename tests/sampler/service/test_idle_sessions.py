"""Sessions whose client has gone between two requests: they must not hold their slots for ever."""

import threading
import time

import pytest
import sampler_lab as lab
import server_lab

NUM_SLOTS = lab.SHAPE["num_slots"]


def generate(service, session, turn=0, tokens=(3, 4)):
    body = dict(session=session, ticket=1, attempt=0, turn=turn, tokens=list(tokens))
    body |= dict(max_new_tokens=4, stop_token_ids=[], temperature=1.0)
    return service.post("/generate", body)


def test_an_idle_session_gives_its_slot_to_a_request_that_waits_and_loses_nothing(make_engine):
    engine = make_engine()
    engine.start()
    with server_lab.serving(engine, idle_s=0.3) as service:
        first = [generate(service, f"s{n}")[1] for n in range(NUM_SLOTS)]
        time.sleep(0.6)
        assert service.get("/stats")[1]["held_slots"] == NUM_SLOTS, "nobody waits for a slot"
        status, answer = generate(service, "new")
        assert (status, answer["tokens"]) == (200, first[0]["tokens"])
        assert service.get("/stats")[1]["held_slots"] == NUM_SLOTS
        # The one that was idle longest has lost its slot; its next turn goes on from its tokens.
        returned = generate(service, "s0", turn=1, tokens=(3, 4, *first[0]["tokens"], 5))[1]
        stayed = generate(service, "s7", turn=1, tokens=(3, 4, *first[7]["tokens"], 5))[1]
        assert stayed["num_cached_tokens"] > 0
        assert returned["tokens"] == stayed["tokens"]
        # Its sampled tokens were prefilled now, not decoded: the bounds are those of rounding.
        assert returned["logprobs"] == pytest.approx(stayed["logprobs"], rel=0, abs=2e-5)


def test_a_session_that_was_idle_for_less_keeps_its_slot(make_engine):
    engine = make_engine()
    engine.start()
    with server_lab.serving(engine, idle_s=30.0) as service:
        for number in range(NUM_SLOTS):
            generate(service, f"s{number}")
        waiting = threading.Thread(target=generate, args=(service, "new"))
        waiting.start()
        service.wait_for(lambda: engine.num_waiting == 1)
        time.sleep(1.2)
        assert engine.num_waiting == 1
        assert service.post("/release", {"session": "s3"})[0] == 200
        waiting.join(30)
        assert engine.num_waiting == 0
