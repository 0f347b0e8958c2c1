"""From the server's results to the run folder: the files of a simulated run, and what only a real one knows.

federation.json    the federation, its agents, the specs of the runs, the jobs that carried them
traffic.csv        method, seed, agent, round, and bytes: payload, what crossed the network, what the link charges
skipped.csv        method, seed, exchange, round, agent, reason: who was left out, and why
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fewjoule.energy import BEFORE_FIRST_ROUND, Ledger, charge_radio, charge_server, device, link
from fewjoule.errors import InputError
from fewjoule.federation import blocks, wire
from fewjoule.federation.records import COLUMNS, Records, Skipped
from fewjoule.federation.spec import Contract, contract, read_spec
from fewjoule.federation.state import unpack
from fewjoule.files import write_csv
from fewjoule.reporting.run_folder import PATHS
from fewjoule.simulation.rules import has_diverged, weight_bytes
from fewjoule.simulation.run import Trace
from fewjoule.simulation.work import server_flops
from fewjoule.studies.families import FilesFamily
from fewjoule.studies.outputs import charge_adaptation, write_results
from fewjoule.studies.parts import Part
from fewjoule.studies.run import judge
from fewjoule.studies.settings import Study
from fewjoule.studies.summary import summarise
from fewjoule.training.tuning import card_of

TRAFFIC = ("payload_up", "payload_down", "network_up", "network_down", "charged_up", "charged_down")
READING = ("joules", "seconds", "kind", "source")
TRAFFIC_COLUMNS = ("method", "seed", "exchange", "round", "agent", *TRAFFIC)
SKIPPED_COLUMNS = ("method", "seed", "exchange", "round", "agent", "reason")


class Result(NamedTuple):
    """One finished run, as the server left it."""

    contract: Contract
    meta: np.ndarray
    losses: np.ndarray  # at the meta-model, at the start
    trace: Trace
    records: Records
    samples: np.ndarray  # [agents] as they said; 0 where they are not told
    skipped: list[Skipped]
    rates: np.ndarray | None = None  # [d] learning rates of a new device's fine-tuning, where the method has them

    def bits(self, name: str) -> np.ndarray:
        """[rounds + 1, agents], as the simulator gives them."""
        charged, before = np.nan_to_num(8 * self.records.column(name)), self.contract.before
        first = charged[:before].sum(0) + (8 * self.charged_at_agreement if name == "charged_up" else 0)
        return np.vstack([first, charged[before:-1]]).astype(np.int64)

    @property
    def charged_at_agreement(self) -> np.ndarray:
        """[agents] bytes, of those that said there how many samples they have."""
        return weight_bytes(self.contract.method) * (self.samples > 0)


def read_result(data: bytes) -> Result:
    """What a server's job left; `InputError` where it is no result of a run."""
    try:
        types = {"spec": str, "sources": list[str], "skipped": list[Skipped]}
        agreed = contract(read_spec(unpack(data, blocks.RESULT, None, types).values["spec"]))
        agents = len(agreed.spec.agents)
        records = Records(len(agreed.plan), agents)
        due = {"meta": np.zeros(agreed.model.size, np.float32), "losses": np.zeros(2), "samples": np.zeros(agents)}
        if agreed.method.rates is not None:
            due["rates"] = due["meta"]
        forms = {name: blocks.form_of(array) for name, array in (due | records.arrays()).items()}
        values, arrays = unpack(data, blocks.RESULT, None, types, forms)
        records.take(arrays)
        records.sources = values["sources"]
        trace = Trace(*arrays["trace"][agreed.before : -1].T)
        told = (arrays["samples"], values["skipped"], arrays.get("rates"))
        return Result(agreed, arrays["meta"], arrays["losses"], trace, records, *told)
    except blocks.BlockError as error:
        raise InputError(f"the server's result cannot be read: {error}; use one release on all sites.") from None


def write_federated_folder(folder: Path, study: Study, results: list[Result]) -> None:
    """Write every file; `results` are in the order of `specs_of`."""
    agents, model = results[0].contract.spec.agents, results[0].contract.model
    names = [entry.name for entry in study.methods]
    runs = list(zip([(name, seed) for name in names for seed in study.seeds], results, strict=True))
    by_method = {name: [result for (of, _), result in runs if of == name] for name in names}
    finished = {name: _part(study, each) for name, each in by_method.items()}
    ledger = Ledger()
    for (name, seed), result in runs:
        charge_result(ledger, study, name, seed, result)
        charge_adaptation(ledger, study, finished[name], method=name, seed=seed)
    summary = summarise(study, model, agents, "each agent's own, at its site", finished, ledger)
    methods = {}
    for name, each in by_method.items():
        rows = [row for result in each for row in traffic(result)]
        real = {
            "traffic": {column: sum(row[column] or 0 for row in rows) / len(each) for column in TRAFFIC},
            "skipped": sum(len(result.skipped) for result in each),
        }
        methods[name] = summary.methods[name].model_copy(update=real)
    cards = {}
    for e in study.methods:
        told = {"study": study.name, "method": e.build().describe(), **card_of(e.build().tuning)}
        cards[e.name] = [{**told, "seed": seed} for seed in study.seeds]
    summary = summary.model_copy(update={"methods": methods})
    write_results(folder, study, model, finished, ledger, summary, cards)
    PATHS.write(folder, [])
    for file, columns, rows_of in (
        ("traffic", TRAFFIC_COLUMNS, traffic),
        ("skipped", SKIPPED_COLUMNS, lambda result: result.skipped),
    ):
        rows = [{"method": name, "seed": seed, **row} for (name, seed), result in runs for row in rows_of(result)]
        write_csv(folder / f"{file}.csv", columns, ([row[column] for column in columns] for row in rows))


def charge_result(ledger: Ledger, study: Study, name: str, seed: int, result: Result) -> None:
    """Every agent's own readings, and its radio as the link charges it."""
    records, agents = result.records, result.contract.spec.agents
    same: dict[str, Any] = {"method": name, "seed": seed}
    readings = np.stack([records.column(column) for column in READING], -1)
    for i, agent in enumerate(agents):
        rows = [(BEFORE_FIRST_ROUND, "pretraining", "", records.pretraining[i])]
        for exchange, (kind_of_exchange, _) in enumerate(result.contract.plan):
            note = "; losses at the end" if kind_of_exchange == blocks.CLOSE else ""
            rows.append((result.contract.round_of(exchange), "computation", note, readings[exchange, i]))
        for round, phase, note, (joules, seconds, kind, source) in rows:
            if kind > 0:  # NaN where the agent was absent, 0 where it has no meter
                ledger.add(
                    **same, agent=agent, round=round, phase=phase, kind=wire.METER_KINDS[int(kind)],
                    source=records.sources[int(source)] + note, joules=float(joules), seconds=float(seconds),
                )  # fmt: skip
    up, down = result.bits("charged_up"), result.bits("charged_down")
    served = server_flops(result.contract.method, result.contract.model, len(agents))
    charge_server(ledger, device(study.energy.device), served, **same)
    charge_radio(ledger, link(study.energy.link), **same, agents=agents, uplink_bits=up, downlink_bits=down)


def traffic(result: Result) -> list[dict[str, Any]]:
    """Bytes of every agent at agreement and in every exchange; the network's are None where its counters began anew or
    are not known.

    An agent reads its counters before it answers, so what it sent in an exchange shows in the next one, and what it
    had received when it agreed holds all that came before.
    """
    rows, records = [], result.records
    sent, received = (
        np.vstack([records.baseline[:, i], records.column(name)])
        for i, name in enumerate(("bytes_sent", "bytes_received"))
    )
    after = np.vstack([sent[1:], np.full(sent.shape[1], np.nan)])
    before = np.vstack([np.full(sent.shape[1], np.nan), received[:-1]])
    kinds = ["agreement", *(wire.EXCHANGES[kind] for kind, _ in result.contract.plan)]
    for i, agent in enumerate(result.contract.spec.agents):
        up, down = records.agreement[i]
        charged = {"charged_up": result.charged_at_agreement[i], "charged_down": 0}
        told = {0: {"payload_up": up, "payload_down": down, **charged}} if up else {}
        for exchange in np.flatnonzero(records.column("present")[:, i] == 1):
            told[int(exchange) + 1] = dict(zip(COLUMNS, records.table[exchange, i], strict=True))
        for row, amounts in told.items():
            rows.append({
                "exchange": kinds[row],
                "round": result.contract.round_of(row - 1),
                "agent": agent,
                **{column: int(amounts[column]) for column in TRAFFIC if column in amounts},
                "network_up": _grown(sent[row, i], after[row, i]),
                "network_down": _grown(before[row, i], received[row, i]),
            })  # fmt: skip
    return rows


def _grown(before: float, after: float) -> int | None:
    return int(after - before) if np.isfinite(after - before) and after > before > 0 else None


def _part(study: Study, results: list[Result]) -> Part:
    """The runs of one method, one per seed, as a simulated method leaves them; new tasks are judged here."""
    agreed, meta = results[0].contract, np.stack([result.meta for result in results])
    final, start = np.stack([result.losses for result in results], 1)
    trace = {name: np.stack([getattr(result.trace, name) for result in results]) for name in Trace._fields}
    last = trace["loss"][:, -1] if agreed.method.rounds else final
    finite = np.isfinite(meta).all(-1)
    told = ~np.isnan(start)  # nobody tells the losses where all agents left after their message
    diverged = np.where(told, has_diverged(agreed.method, start, final, last, finite), ~finite)
    arrays = {
        "meta": np.where(diverged[:, None], np.float32(np.nan), meta),
        "diverged": diverged,
        "uplink_bits": np.stack([result.bits("charged_up") for result in results]),
        "downlink_bits": np.stack([result.bits("charged_down") for result in results]),
        "final_loss": final,
        "start_loss": start,
        **{f"trace_{name}": rows for name, rows in trace.items()},
    }
    tasks, evaluation = None, study.evaluation
    if study.family is not None and not isinstance(study.family, FilesFamily):
        tasks = study.family.build(list(study.seeds), evaluation).tasks
    if agreed.method.rates is not None:
        arrays["rates"] = np.stack([result.rates for result in results])  # type: ignore[misc]
    judged = judge(
        agreed.model, tasks, jnp.asarray(arrays["meta"]), evaluation, study.energy.metering(), agreed.method.tuning,
        arrays.get("rates"),
    )  # fmt: skip
    return Part(arrays | judged.arrays, judged.facts)
