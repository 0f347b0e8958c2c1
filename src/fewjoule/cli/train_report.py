"""The run folder and the page that `fewjoule train --run` leaves: the method beside the controls, on new tasks."""

from pathlib import Path
from typing import Any

from jax import Array

from fewjoule.cli.progress import progress
from fewjoule.cli.screen import say
from fewjoule.energy import Ledger
from fewjoule.errors import InputError
from fewjoule.models.model import Model
from fewjoule.study.parts import PRETRAINING, Parts
from fewjoule.study.run import new_folder, prepare, run_study
from fewjoule.study.settings import EnergySettings, LocalSettings
from fewjoule.study.train_run import pretraining_part, study_of
from fewjoule.tasks.files import DataFormat, read_tasks


class TrainingReport:
    """A report that is checked before the training and written after it."""

    def __init__(
        self,
        folder: Path,
        family: dict[str, Any],
        reading: DataFormat,
        model: Model,
        *,
        init: str,
        method: str,
        settings: dict[str, Any],
        seed: int,
        local: LocalSettings,
        energy: EnergySettings,
        shots: int | None,
        steps: list[int],
        step: float,
    ) -> None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} exists and is not empty; choose another --run.")
        read_tasks(family["new_tasks"], reading, shots=shots)  # says which file lacks x_test where shots are not given
        evaluation: dict[str, Any] = {"steps": steps, "headline": 10 if 10 in steps else steps[-1], "step": step}
        if shots is not None:
            evaluation["shots"] = shots
        study = study_of(
            {key: value for key, value in family.items() if value is not None},
            model=model,
            init=init,
            method=method,
            settings=settings,
            seed=seed,
            local=local.model_dump(exclude_none=True),
            energy=energy.model_dump(),
            evaluation=evaluation,
        )
        self._prepared = prepare(study)
        self._folder = folder

    def write(self, models: Array | None, ledger: Ledger) -> None:
        """Run the method and the controls, judge them on the new tasks, draw the page.

        Local models that are already there are used with what they cost; None has them trained for the controls.
        """
        new_folder(self._prepared.study, str(self._folder))
        if models is not None:
            Parts(self._folder / ".parts").save(PRETRAINING, pretraining_part(models, ledger))
        shown = progress()
        try:
            run_study(self._prepared, self._folder, shown)
        finally:
            shown.finish()
        say(f"report: {self._folder / 'report.html'}")
