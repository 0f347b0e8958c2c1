"""What a run folder remembers of its run in a federation, and the name that the run has on the server."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewjoule.errors import InputError
from fewjoule.files import write_atomically

FILE = "federation.json"


def job_id(specs: Sequence[str]) -> str:
    """32 hexadecimal digits that stand for these specs."""
    return hashlib.blake2b("\n".join(specs).encode(), digest_size=16).hexdigest()


def read_facts(folder: Path) -> dict[str, Any]:
    """Name and id of the federation, the texts of all specs, and whether an exchange of them was complete."""
    path = folder / FILE
    if not path.is_file():
        raise InputError(f"{folder} is not the run folder of a federation: it has no {FILE}.")
    try:
        facts = json.loads(path.read_bytes())
        known = {key: facts[key] for key in ("federation", "id", "specs", "begun")}
        if not known["specs"] or not all(isinstance(text, str) for text in known["specs"]):
            raise ValueError("it holds no specs")
        return known
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged or of another release ({error}); start a new run.") from None


def write_facts(folder: Path, facts: dict[str, Any]) -> None:
    write_atomically(folder / FILE, (json.dumps(facts, indent=1) + "\n").encode(), force=True)
