"""What a method's agents send, in words: what a card of the page says."""

import pytest

from fewjoule.methods import METHODS, method

SAID = {
    "each agent sends 20 answers of its own model, once": ("answers", {"questions": "range:-5:5", "number": 20}),
    "each agent sends 2 answers of its own model, once": ("answers", {"questions": ((0.0,), (1.0,))}),
    "each agent sends its weights once": ("average", {}),
    "one agent sends its weights, once": ("local", {}),
    "no agent sends anything": ("random", {}),
    "each agent sends its weights 51 times": ("meta_backward", {"rounds": 50}),
    "each agent sends its weights twice": ("fedavg", {"rounds": 1}),
    "each agent sends its weights 5 times": ("fedavg", {"rounds": 5, "start": "random"}),
    "each agent sends its weights once, then 50 updates": ("fedsgd", {"rounds": 50}),
    "each agent sends one update to its weights": ("fisher", {}),
    "each agent sends its weights 10 times, compressed": ("lean", {"target": "better"}),
    "each agent sends the shared part of its weights 6 times": ("fedrep", {"rounds": 5}),
}


@pytest.mark.parametrize("words", SAID)
def test_what_is_sent_is_said_plainly(words):
    name, settings = SAID[words]
    assert method(name, **settings).sent_in_words == words


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_it(name):
    said = method(name).sent_in_words
    assert said.split()[1] == "agent"
    assert len(said) < 70
