"""From the server's results to the run folder: the files of a simulated run, and what only a real one knows.

federation.json    the federation, its agents, the specs of the runs, the jobs that carried them
traffic.csv        method, seed, agent, round, and bytes: payload, what crossed the network, what the link charges
skipped.csv        method, seed, exchange, round, agent, reason: who was left out, and why
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fewjoule.energy import BEFORE_FIRST_ROUND, Ledger, charge_radio, link
from fewjoule.errors import InputError
from fewjoule.federation import blocks, wire
from fewjoule.federation.records import COLUMNS, Records
from fewjoule.federation.spec import Contract, contract, read_spec
from fewjoule.federation.state import unpack
from fewjoule.federation.study import FederatedStudy
from fewjoule.files import write_csv
from fewjoule.report.run_folder import PATHS
from fewjoule.simulate.rules import has_diverged
from fewjoule.simulate.run import Trace
from fewjoule.study.outputs import charge_adaptation, write_results
from fewjoule.study.parts import Part
from fewjoule.study.run import judge
from fewjoule.study.summary import summarise

TRAFFIC = ("payload_up", "payload_down", "network_up", "network_down", "charged_up", "charged_down")
TRAFFIC_COLUMNS = ("method", "seed", "agent", "round", *TRAFFIC)
SKIPPED_COLUMNS = ("method", "seed", "exchange", "round", "agent", "reason")


class Result(NamedTuple):
    """One finished run, as the server left it."""

    contract: Contract
    meta: np.ndarray
    losses: np.ndarray  # at the meta-model, at the start
    trace: Trace
    records: Records
    skipped: list[dict[str, Any]]

    def round_of(self, exchange: int) -> int:
        """As the ledger counts: 0 before the first round, then 1, 2, ...; the close belongs to the last."""
        return min(max(0, exchange - self.contract.before + 1), self.contract.method.rounds)

    def bits(self, name: str) -> np.ndarray:
        """[rounds + 1, agents], as the simulator gives them."""
        charged, before = np.nan_to_num(8 * self.records.column(name)), self.contract.before
        return np.vstack([charged[:before].sum(0), charged[before:-1]]).astype(np.int64)


def read_result(data: bytes) -> Result:
    """What a server's job left; `InputError` where it is no result of a run."""
    try:
        values, arrays = unpack(data, blocks.RESULT, None, {"spec": str, "sources": list, "skipped": list})
        records = Records.load(arrays, values["sources"])
        agreed, trace = contract(read_spec(values["spec"])), Trace(*arrays["trace"].T)
        return Result(agreed, arrays["meta"], arrays["losses"], trace, records, values["skipped"])
    except (blocks.BlockError, KeyError, TypeError) as error:
        raise InputError(f"the server's result cannot be read: {error}; use one release on all sites.") from None


def write_federated_folder(folder: Path, study: FederatedStudy, results: list[Result]) -> None:
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
    cards = {
        e.name: [{"study": study.name, "method": e.build().describe(), "seed": seed} for seed in study.seeds]
        for e in study.methods
    }
    summary = summary.model_copy(update={"methods": methods})
    write_results(folder, study, model, finished, ledger, summary, cards)
    PATHS.write(folder, [])
    for file, columns, rows_of in (("traffic", TRAFFIC_COLUMNS, traffic), ("skipped", SKIPPED_COLUMNS, _skipped)):
        rows = [{"method": name, "seed": seed, **row} for (name, seed), result in runs for row in rows_of(result)]
        write_csv(folder / f"{file}.csv", columns, ([row[column] for column in columns] for row in rows))


def charge_result(ledger: Ledger, study: FederatedStudy, name: str, seed: int, result: Result) -> None:
    """Every agent's own readings, and its radio as the link charges it."""
    agents = result.contract.spec.agents
    for i, agent in enumerate(agents):
        joules, seconds, kind, source = result.records.pretraining[i]
        if np.isfinite(joules):
            ledger.add(
                method=name, seed=seed, agent=agent, round=BEFORE_FIRST_ROUND, phase="pretraining",
                kind=wire.METER_KINDS[int(kind)], source=result.records.sources[int(source)],
                joules=joules, seconds=seconds,
            )  # fmt: skip
        for exchange, (exchanged, _) in enumerate(result.contract.plan):
            kind = result.records.column("kind")[exchange, i]
            if not np.isfinite(kind) or not kind:
                continue
            source = result.records.sources[int(result.records.column("source")[exchange, i])]
            ledger.add(
                method=name, seed=seed, agent=agent, round=result.round_of(exchange), phase="computation",
                kind=wire.METER_KINDS[int(kind)],
                source=source + ("; losses at the end" if exchanged == blocks.CLOSE else ""),
                joules=float(result.records.column("joules")[exchange, i]),
                seconds=float(result.records.column("seconds")[exchange, i]),
            )  # fmt: skip
    charge_radio(
        ledger, link(study.energy.link), method=name, seed=seed, agents=agents,
        uplink_bits=result.bits("charged_up"), downlink_bits=result.bits("charged_down"),
    )  # fmt: skip


def traffic(result: Result) -> list[dict[str, Any]]:
    """Bytes of every agent in every exchange; the network's are None where its counters began anew or are not known.

    An agent reads its counters before it answers, so what it sent in an exchange shows in the next one.
    """
    rows = []
    sent, received = result.records.column("bytes_sent"), result.records.column("bytes_received")
    for i, agent in enumerate(result.contract.spec.agents):
        for exchange in range(len(result.contract.plan)):
            if result.records.column("present")[exchange, i] != 1:
                continue
            known = received[exchange - 1, i] if exchange else result.records.baseline[i, 1]
            after = sent[exchange + 1, i] if exchange + 1 < len(sent) else np.nan
            row: dict[str, Any] = {"agent": agent, "round": result.round_of(exchange)}
            for column in TRAFFIC:
                row[column] = int(result.records.column(column)[exchange, i]) if column in COLUMNS else None
            row["network_down"] = _grown(known, received[exchange, i])
            row["network_up"] = _grown(sent[exchange, i], after)
            rows.append(row)
    return rows


def _skipped(result: Result) -> list[dict[str, Any]]:
    """Who was left out, with rounds that count from 1."""
    return [{**row, "round": row["round"] + (row["exchange"] == "round")} for row in result.skipped]


def _grown(before: float, after: float) -> int | None:
    return int(after - before) if np.isfinite(after - before) and after > before > 0 else None


def has_gone_astray(result: Result) -> bool:
    """Whether the run has diverged, by the simulator's rule."""
    final, start = result.losses
    last = result.trace.loss[-1] if len(result.trace.loss) else final
    return bool(has_diverged(result.contract.method, start, final, last, np.isfinite(result.meta).all()))


def _part(study: FederatedStudy, results: list[Result]) -> Part:
    diverged = np.asarray([has_gone_astray(result) for result in results])
    meta = np.where(diverged[:, None], np.float32(np.nan), np.stack([result.meta for result in results]))
    arrays = {
        "meta": meta,
        "diverged": diverged,
        "uplink_bits": np.stack([r.bits("charged_up") for r in results]),
        "downlink_bits": np.stack([r.bits("charged_down") for r in results]),
        "final_loss": np.asarray([r.losses[0] for r in results]),
        "start_loss": np.asarray([r.losses[1] for r in results]),
        **{f"trace_{name}": np.stack([getattr(r.trace, name) for r in results]) for name in Trace._fields},
    }
    tasks = None if study.family is None else study.family.build(list(study.seeds), study.evaluation)[1]
    model, meter = results[0].contract.model, study.energy.metering()
    judged = judge(model, tasks, jnp.asarray(meta), study.evaluation, meter)
    return Part(arrays | judged.arrays, judged.facts)
