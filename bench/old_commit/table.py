"""What the attacks and faults of trials 33 to 46 do to the commit they were found on (b3a8631), and which test refuses
each today.

Needs a checkout of that commit, and an environment in which it is installed with its extras `federation` and `test`:

    python bench/old_commit/table.py --old CHECKOUT --python ENVIRONMENT/bin/python

It starts that commit's own processes on loopback, takes some minutes, and prints a Markdown table. Nothing of it is
part of the tests: those run today's code.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
MOST_SECONDS = 900


class Case(NamedTuple):
    """One attack. `name` is what attacks.py and faults.py call it; None where it was not carried out here."""

    trial: int
    name: str | None
    attack: str
    test: str


CASES = [
    Case(
        33, "model", "an agent asks a peer for its model", "attacks: test_trial_33_an_agents_messages_reach_nobody_else"
    ),
    Case(33, "key", "an agent reads a peer's private key", "attacks: test_trial_33_an_agent_cannot_call_anything_else"),
    Case(33, "files", "an agent reads a peer's files", "attacks: test_trial_33_an_agent_cannot_call_anything_else"),
    Case(34, "code", "the operator runs code at an agent", "attacks: test_trial_34_*"),
    Case(35, "port", "a local user speaks to an agent's daemon", "attacks: test_trial_35_agents_listen_on_no_port"),
    Case(36, "large", "an agent's answer is huge", "attacks: test_trial_36_an_answer_of_a_gigabyte_takes_no_memory"),
    Case(37, "poison", "a poisoned answer below the bound", "trust: test_trial_37_a_poisoned_message_*"),
    Case(37, "joules", "an agent reports 1e300 J", "trust: test_trial_37_impossible_readings_are_refused_*"),
    Case(
        37, "text", "an agent's text forges lines", "trust: test_trial_37_an_agents_text_forges_no_line_and_no_escape"
    ),
    Case(37, "stuck", "an agent is stuck, policy `skip`", "drive: test_trial_37_a_stuck_agent_does_not_cost_*"),
    Case(38, "swap", "states of two agents are swapped", "journal: test_trial_38_a_swapped_state_is_refused_by_name"),
    Case(38, "data", "data change between two starts", "journal: test_trial_38_data_that_changed_*"),
    Case(39, "hang", "an agent hangs, policy `wait`", "drive, real: test_trial_39_*"),
    Case(40, "coded", "a coded run against the simulator", "equality, real: test_trial_40_*"),
    Case(41, "renew", "a year passes", "members, kits, year: test_trial_41_*"),
    Case(42, "taken", "the server's port is in use", "real: test_trial_42_a_port_in_use_is_one_line_and_exit_code_2"),
    Case(42, None, "a copied kit, a server without its state, a full disk", "real, carrier, drive: test_trial_42_*"),
    Case(43, "twice", "agents answer slowly", "carrier: test_trial_43_a_slow_agent_is_asked_once"),
    Case(43, "baseline", "a run is resumed by a new process", "journal: test_trial_43_counters_of_a_later_process_*"),
    Case(43, "state", "many rounds", "journal: test_trial_43_what_a_round_writes_does_not_grow_*"),
    Case(44, "threads", "threads while a run goes", "real: test_trial_44_and_46_few_threads_and_little_memory"),
    Case(45, "status", "`status`", "lazy: test_commands_about_members_and_runs_import_no_jax"),
    Case(45, "mode", "a private key that others may read", "kits: test_trial_45_a_key_that_others_may_read_is_refused"),
    Case(45, "log", "the log of a kit", "attacks: test_nothing_of_a_kit_is_for_others"),
    Case(46, "memory", "memory of one agent", "real: test_trial_44_and_46_few_threads_and_little_memory"),
]


def found(script: str, old: Path, python: str) -> dict[str, dict[str, object]]:
    """What one of the scripts says, by the name of the attack; it runs in an empty folder, with the old code alone."""
    paths = os.pathsep.join(str(old.resolve() / each) for each in ("src", ""))
    environment = {**os.environ, "PYTHONPATH": paths}
    environment.pop("XLA_FLAGS", None)
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [python, str(HERE / script)], stdout=subprocess.PIPE, text=True, cwd=folder, env=environment,
            timeout=MOST_SECONDS,
        )  # fmt: skip
    if run.returncode:
        print(f"{script} ended with code {run.returncode}", file=sys.stderr)
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return {line["attack"]: line for line in lines}


def row(case: Case, facts: dict[str, dict[str, object]]) -> str:
    result = facts.get(case.name or "")
    if case.name is None:
        told = "not carried out again: it takes minutes of waiting"
    elif result is None:
        told = "the script ended before it"
    else:
        told = f"{'succeeds' if result['succeeded'] else 'not shown'}: {str(result['how']).replace('|', '/')}"
    return f"| {case.trial} | {case.attack} | {told} | `{case.test}` |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True, help="a checkout of commit b3a8631")
    parser.add_argument("--python", required=True, help="the interpreter of an environment that it runs in")
    options = parser.parse_args()
    facts = {**found("faults.py", options.old, options.python), **found("attacks.py", options.old, options.python)}
    print("| trial | attack or fault | on the old commit | today's test |\n|---|---|---|---|")
    for case in CASES:
        print(row(case, facts))


if __name__ == "__main__":
    main()
