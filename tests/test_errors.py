"""Messages name the thing, the rule, the value and the cure."""

import pytest

import fewjoule as fj
from fewjoule.errors import unknown


def test_a_near_name_is_offered_and_else_the_list():
    assert (
        str(unknown("link", "papr", ["paper", "wifi"]))
        == "unknown link 'papr'; did you mean 'paper'? There are paper, wifi."
    )
    assert str(unknown("link", "zzz", ["paper", "wifi"])) == "unknown link 'zzz'; choose one of paper, wifi."


@pytest.mark.parametrize(("name", "old"), [("fedsgd", "step"), ("reptile", "meta_step"), ("maml", "inner_step")])
def test_a_setting_that_was_renamed_is_named(name, old):
    new = old.removesuffix("step") + "learning_rate"
    with pytest.raises(fj.InputError, match=f"'{old}'; it is called '{new}' now"):
        fj.method(name, **{old: 0.1})
