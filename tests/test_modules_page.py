"""The code on the page of own modules runs as it is written."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "modules.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_code_runs(number):
    code = BLOCKS[number]
    for package, module in (("torchax", "torch"), ("flax", "flax"), ("equinox", "equinox")):
        if re.search(rf"^(import|from) {module}\b", code, re.M) and find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    exec(compile(code, f"docs/modules.md, block {number}", "exec"), {"__name__": "page"})


def test_all_four_are_there():
    assert len(BLOCKS) == 4
