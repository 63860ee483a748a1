from jaxrl_single.rollout import sampler_choice


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def make(*urls):
    clock, there = Clock(), list(urls)
    return sampler_choice.SamplerChoice(lambda: there, clock=clock), clock, there


def test_the_least_loaded_is_taken_and_ties_go_to_the_first():
    choice, _, there = make("a", "b")
    assert [choice.take() for _ in range(4)] == ["a", "b", "a", "b"]
    choice.leave("b")
    assert choice.take() == "b"
    there.append("c")
    assert [choice.take() for _ in range(3)] == ["c", "c", "a"]


def test_a_failed_one_rests_longer_each_time_until_it_answers():
    choice, clock, _ = make("a")
    rests = []
    for _ in range(8):
        choice.failed("a")
        assert choice.take() is None
        rests.append(round(choice.rest_s(), 6))
        clock.now += choice.rest_s()
        assert choice.take() == "a"
    assert rests == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    choice.well("a")
    choice.failed("a")
    assert round(choice.rest_s(), 6) == 0.1


def test_a_busy_one_is_left_alone_for_as_long_as_it_says():
    choice, clock, _ = make("a", "b")
    choice.busy("a", 3.0)
    assert [choice.take(), choice.take()] == ["b", "b"]
    choice.busy("b", 1.0)
    assert choice.take() is None
    assert choice.rest_s() == 1.0
    clock.now += 3.0
    assert choice.take() == "a"


def test_nobody_there_is_looked_for_again_soon():
    choice, _, there = make()
    assert choice.take() is None
    assert 0 < choice.rest_s() < 1
    there.append("a")
    assert choice.take() == "a"
