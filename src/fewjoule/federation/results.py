"""From the server's results to the run folder: the files of a simulated run, and what only a real one knows.

federation.json    the federation, its agents, the specs of the runs, the jobs that carried them
traffic.csv        method, seed, agent, round, and bytes: payload, what crossed the network, what the link charges
skipped.csv        method, seed, exchange, round, agent, reason: who was left out, and why
"""

import csv
import io
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fewjoule.energy import BEFORE_FIRST_ROUND, Ledger, charge_downlink, charge_uplink, link
from fewjoule.errors import InputError
from fewjoule.federation import blocks, wire
from fewjoule.federation.records import COLUMNS, Records
from fewjoule.federation.spec import Contract, contract, read_spec
from fewjoule.federation.state import unpack
from fewjoule.federation.study import FederatedStudy
from fewjoule.files import write_atomically
from fewjoule.simulate.rules import has_diverged
from fewjoule.simulate.simulate import Trace
from fewjoule.simulate.work import adaptation_flops
from fewjoule.study.folder import receives, write_results
from fewjoule.study.parts import Part
from fewjoule.study.summary import summarise
from fewjoule.tasks.samples import AgentData, Agents, Samples
from fewjoule.training.adapt import adapt

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
    for name in names:
        for seed, result in zip(study.seeds, by_method[name], strict=True):
            charge_result(ledger, study, name, seed, result)
        _charge_adaptation(ledger, study, name, finished[name])
    summary = summarise(study, model, _named(agents), "each agent's own, at its site", finished, ledger)
    summary["tasks"] = study.evaluation.tasks if study.family is not None else 0
    for name, each in by_method.items():
        rows = [row for result in each for row in traffic(result)]
        summary["methods"][name] |= {
            "traffic": {column: sum(row[column] or 0 for row in rows) / len(each) for column in TRAFFIC},
            "skipped": sum(len(result.skipped) for result in each),
        }
    write_results(folder, study, model, finished, ledger, summary)
    _write_csv(folder / "paths.csv", ("method", "agent", "round", "pc1", "pc2"), [])
    for file, columns, rows_of in (("traffic", TRAFFIC_COLUMNS, traffic), ("skipped", SKIPPED_COLUMNS, _skipped)):
        rows = [{"method": name, "seed": seed, **row} for (name, seed), result in runs for row in rows_of(result)]
        _write_csv(folder / f"{file}.csv", columns, rows)


def charge_result(ledger: Ledger, study: FederatedStudy, name: str, seed: int, result: Result) -> None:
    """Every agent's own readings, and its radio as the link charges it."""
    agents, method = result.contract.spec.agents, result.contract.method
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
    same: dict[str, Any] = {"method": name, "seed": seed, "agents": agents, "rounds": method.rounds}
    chosen, up, down = link(study.energy.link), result.bits("charged_up"), result.bits("charged_down")
    charge_uplink(ledger, chosen, **same, bits_per_message=up[1:], first_bits=up[0])
    if receives(study):
        charge_downlink(ledger, chosen, **same, bits_per_message=down[1:], first_bits=down[0])


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
    facts: dict[str, Any] = {}
    steps = len(study.evaluation.steps)
    if study.family is None:
        arrays |= {name: np.zeros((len(results), 0, steps)) for name in ("loss", "accuracy")}
    else:
        e = study.evaluation
        tasks = study.family.build(list(study.seeds), e)[1]
        model = results[0].contract.model
        flops = adaptation_flops(model, tasks, e.headline, e.step)
        judged, reading = study.energy.metering().read(
            lambda around: around(
                lambda: adapt(model, jnp.asarray(meta), tasks, steps=e.steps, step=e.step, optimiser=e.optimiser)
            ),
            flops * len(results) * e.tasks,
        )
        arrays |= {"loss": np.asarray(judged.loss), "accuracy": np.asarray(judged.accuracy)}
        facts = {"adaptation": reading, "adaptation_flops": flops}
    return Part(arrays, facts)


def _charge_adaptation(ledger: Ledger, study: FederatedStudy, name: str, part: Part) -> None:
    if not part.facts:
        return
    reading, shares = part.facts["adaptation"], len(study.seeds) * study.evaluation.tasks
    for seed in study.seeds:
        ledger.add(
            method=name, seed=seed, phase="adaptation", kind=reading["kind"],
            source=f"{reading['source']}; one reading shared by {shares} new tasks",
            joules=reading["joules"] / shares, seconds=reading["seconds"] / shares,
            flops=part.facts["adaptation_flops"],
        )  # fmt: skip


def _named(names: tuple[str, ...]) -> Agents:
    """Agents of whom nothing but the names is known here."""
    nothing = Samples(jnp.zeros((0, 0)), jnp.zeros((0, 0)), jnp.zeros((0, 0)))
    return Agents(AgentData(nothing, nothing), names)


def _write_csv(path: Path, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, buffer.getvalue().encode(), force=True)
