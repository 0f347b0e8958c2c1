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

from fewjoule.energy import BEFORE_FIRST_ROUND, Ledger, charge_radio, link
from fewjoule.federation import wire
from fewjoule.federation.server import COLUMNS, TRACE
from fewjoule.federation.spec import Contract, contract, read_spec
from fewjoule.federation.state import RESULT, unpack
from fewjoule.federation.study import FederatedStudy
from fewjoule.files import write_atomically
from fewjoule.simulate.rules import DIVERGED_AT
from fewjoule.simulate.work import adaptation_flops
from fewjoule.study.outputs import write_results
from fewjoule.study.parts import Part
from fewjoule.study.summary import summarise
from fewjoule.training.adapt import adapt

TRAFFIC = ("payload_up", "payload_down", "network_up", "network_down", "charged_up", "charged_down")


class Result(NamedTuple):
    """One finished run, as the server left it."""

    contract: Contract
    meta: np.ndarray
    losses: tuple[float, float]  # at the meta-model, at the start
    trace: np.ndarray  # [rounds, 6]
    table: np.ndarray  # [exchanges, agents, columns]
    pretraining: np.ndarray
    baseline: np.ndarray
    sources: list[str]
    skipped: list[dict[str, Any]]

    def column(self, name: str) -> np.ndarray:
        """[exchanges, agents]"""
        return np.asarray(self.table[..., COLUMNS.index(name)])

    @property
    def before(self) -> int:
        """Number of exchanges before the first round."""
        return len(self.contract.plan) - 1 - self.contract.method.rounds

    def round_of(self, exchange: int) -> int:
        """As the ledger counts: 0 before the first round, then 1, 2, ...; the close belongs to the last."""
        return min(max(0, exchange - self.before + 1), self.contract.method.rounds)

    def bits(self, name: str) -> np.ndarray:
        """[rounds + 1, agents], as the simulator gives them."""
        charged = np.nan_to_num(8 * self.column(name))
        return np.vstack([charged[: self.before].sum(0), charged[self.before : -1]]).astype(np.int64)


def read_result(data: bytes) -> Result:
    values, arrays = unpack(data, RESULT, None)
    agreed = contract(read_spec(values["spec"]))
    losses = tuple(float(v) for v in values["losses"])
    return Result(
        agreed, arrays["meta"], (losses[0], losses[1]), arrays["trace"], arrays["table"], arrays["pretraining"],
        arrays["baseline"], values["sources"], values["skipped"],
    )  # fmt: skip


def write_federated_folder(folder: Path, study: FederatedStudy, results: list[Result]) -> None:
    """Write every file; `results` are in the order of `specs_of`."""
    agents, model = results[0].contract.spec.agents, results[0].contract.model
    by_method = {
        entry.name: results[i * len(study.seeds) : (i + 1) * len(study.seeds)] for i, entry in enumerate(study.methods)
    }
    finished = {name: _part(study, each) for name, each in by_method.items()}
    ledger = Ledger()
    for entry in study.methods:
        for seed, result in zip(study.seeds, by_method[entry.name], strict=True):
            charge_result(ledger, study, entry.name, seed, result)
        facts = finished[entry.name].facts
        for seed in study.seeds if facts else ():
            shares, flops = len(study.seeds) * study.evaluation.tasks, facts["adaptation_flops"]
            same: dict[str, Any] = {"method": entry.name, "seed": seed, "phase": "adaptation"}
            ledger.add_reading(facts["adaptation"], **same, shares=shares, of="new task", flops=flops)
    data = "each agent's own, at its site"
    summary = summarise(study, model, agents, data, finished, ledger)
    for name, each in by_method.items():
        summary["methods"][name]["traffic"] = {
            column: sum(sum(row[column] or 0 for row in traffic(result)) for result in each) / len(each)
            for column in TRAFFIC
        }
        summary["methods"][name]["skipped"] = sum(len(result.skipped) for result in each)
    cards = {
        e.name: [{"study": study.name, "method": e.build().describe(), "seed": seed} for seed in study.seeds]
        for e in study.methods
    }
    write_results(folder, study, model, finished, ledger, summary, cards)
    _write_csv(folder / "paths.csv", ("method", "agent", "round", "pc1", "pc2"), [])
    _write_csv(
        folder / "traffic.csv",
        ("method", "seed", "agent", "round", *TRAFFIC),
        [
            {"method": name, "seed": seed, **row}
            for name, each in by_method.items()
            for seed, result in zip(study.seeds, each, strict=True)
            for row in traffic(result)
        ],
    )
    _write_csv(
        folder / "skipped.csv",
        ("method", "seed", "exchange", "round", "agent", "reason"),
        [
            {"method": name, "seed": seed, **row, "round": row["round"] + (row["exchange"] == "round")}
            for name, each in by_method.items()
            for seed, result in zip(study.seeds, each, strict=True)
            for row in result.skipped
        ],
    )


def charge_result(ledger: Ledger, study: FederatedStudy, name: str, seed: int, result: Result) -> None:
    """Every agent's own readings, and its radio as the link charges it."""
    agents = result.contract.spec.agents
    for i, agent in enumerate(agents):
        joules, seconds, kind, source = result.pretraining[i]
        if np.isfinite(joules):
            ledger.add(
                method=name, seed=seed, agent=agent, round=BEFORE_FIRST_ROUND, phase="pretraining",
                kind=wire.METER_KINDS[int(kind)], source=result.sources[int(source)], joules=joules, seconds=seconds,
            )  # fmt: skip
        for exchange, (exchanged, _) in enumerate(result.contract.plan):
            kind = result.column("kind")[exchange, i]
            if not np.isfinite(kind) or not kind:
                continue
            source = result.sources[int(result.column("source")[exchange, i])]
            ledger.add(
                method=name, seed=seed, agent=agent, round=result.round_of(exchange), phase="computation",
                kind=wire.METER_KINDS[int(kind)],
                source=source + ("; losses at the end" if exchanged == wire.CLOSE else ""),
                joules=float(result.column("joules")[exchange, i]),
                seconds=float(result.column("seconds")[exchange, i]),
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
    sent, received = result.column("bytes_sent"), result.column("bytes_received")
    for i, agent in enumerate(result.contract.spec.agents):
        for exchange in range(len(result.contract.plan)):
            if result.column("present")[exchange, i] != 1:
                continue
            known = received[exchange - 1, i] if exchange else result.baseline[i, 1]
            after = sent[exchange + 1, i] if exchange + 1 < len(sent) else np.nan
            row: dict[str, Any] = {"agent": agent, "round": result.round_of(exchange)}
            for column in TRAFFIC:
                row[column] = int(result.column(column)[exchange, i]) if column in COLUMNS else None
            row["network_down"] = _grown(known, received[exchange, i])
            row["network_up"] = _grown(sent[exchange, i], after)
            rows.append(row)
    return rows


def _grown(before: float, after: float) -> int | None:
    return int(after - before) if np.isfinite(after - before) and after > before > 0 else None


def _part(study: FederatedStudy, results: list[Result]) -> Part:
    metas, diverged = [], []
    for result in results:
        final, start = result.losses
        limit = DIVERGED_AT * max(start, 1e-12)
        last = result.trace[-1, TRACE.index("loss")] if len(result.trace) else final
        gone = not (np.isfinite(result.meta).all() and (final <= limit or last <= limit))
        diverged.append(gone)
        metas.append(np.full_like(result.meta, np.nan) if gone else result.meta)
    meta = np.stack(metas)
    arrays = {
        "meta": meta,
        "diverged": np.asarray(diverged),
        "uplink_bits": np.stack([r.bits("charged_up") for r in results]),
        "downlink_bits": np.stack([r.bits("charged_down") for r in results]),
        "final_loss": np.asarray([r.losses[0] for r in results]),
        "start_loss": np.asarray([r.losses[1] for r in results]),
        **{f"trace_{name}": np.stack([r.trace[:, i] for r in results]) for i, name in enumerate(TRACE)},
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


def _write_csv(path: Path, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, buffer.getvalue().encode(), force=True)
